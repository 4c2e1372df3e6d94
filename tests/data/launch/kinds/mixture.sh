#!/bin/bash
set -euo pipefail
GPUS_PER_NODE=8
NNODES=${NNODES:-"4"}
shopt -s extglob
[[ $NNODES == +([0-9]) ]] || exit 1
MOE_ARGS="
    --num-experts 8
    --moe-router-topk 2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather
    --overlap-grad-reduce
"
PARALLEL="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4"
PARALLEL+=" --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel"
torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-query-groups 8 \
    --group-query-attention --swiglu --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 \
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \
    --tokenizer-type Llama2Tokenizer --tokenizer-model /data/tokenizer.model \
    --micro-batch-size 1 --global-batch-size 256 --bf16 $MOE_ARGS $PARALLEL
