#!/bin/bash
# two nodes by hand
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b_fp8"}
TP_SIZE=${2:-1}
NUM_NODES=${NUM_NODES:-2}
GPUS_PER_NODE=8
mkdir -p "$(dirname "$CHECKPOINT_PATH")"
if [[ $TP_SIZE -gt 1 ]]; then
    SP="--sequence-parallel"
fi
DTYPE="fp8"
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-recipe tensorwise")
fi
MODEL_ARGS=(
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm
    --tokenizer-type NullTokenizer --vocab-size 128255
)
if [ ! -f pretrain_gpt.py ]; then
    echo "Error: pretrain_gpt.py not found"
    exit 1
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES \
    pretrain_gpt.py \
    "${MODEL_ARGS[@]}" ${DTYPE_ARGS[@]} --bf16 --micro-batch-size 1 --global-batch-size 128 \
    --use-distributed-optimizer --tensor-model-parallel-size $TP_SIZE $SP
