#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
# Pretraining of a model of the shape of Llama 3 8B with Megatron-LM.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
export NCCL_SOCKET_IFNAME=^lo,docker

GPUS_PER_NODE=8
NNODES=16
TP=4
PP=2
VPP=4
MBS=1
GBS=512

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port 6000
)

MODEL_ARGS="
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 128256
    --make-vocab-size-divisible-by 128
"

PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage $VPP
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    --tp-comm-overlap
)

TRAIN_ARGS=(
    --micro-batch-size $MBS
    --global-batch-size $GBS
    --train-iters 100000
    --lr 3e-4
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --mock-data
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    $MODEL_ARGS \
    "${PARALLEL_ARGS[@]}" \
    "${TRAIN_ARGS[@]}" \
    --distributed-backend nccl
