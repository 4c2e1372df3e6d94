#!/bin/bash
# Pretraining of a mixture of experts of the shape of Mixtral 8x7B with Megatron-LM.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

NODES=${SLURM_NNODES:-8}

srun torchrun --nnodes=8 --nproc-per-node=8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 32768 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --vocab-size 32000 \
    --num-experts 8 --moe-router-topk 2 \
    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 \
    --moe-grouped-gemm --moe-permute-fusion \
    --moe-token-dispatcher-type alltoall \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 4 \
    --num-virtual-stages-per-pipeline-rank 8 \
    --expert-model-parallel-size 8 \
    --expert-tensor-parallel-size 1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 1 --global-batch-size 1024 \
    --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion \
    --attention-dropout 0 --hidden-dropout 0 \
    --train-iters 1000 --lr 1e-4 --mock-data
