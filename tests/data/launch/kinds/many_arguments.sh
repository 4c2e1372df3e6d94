#!/bin/bash
# sh many_arguments.sh dsw 7B 2 256 4096 4096 bf16 1 1 none true
set -e
ENV=$1
MODEL_SIZE=$2    # 7B, 72B
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$5
PAD_LEN=$6
PR=${7}
TP=${8}
PP=${9}
AC=${10}
DO=${11}
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
export PYTHONPATH=${CURRENT_DIR}:$PYTHONPATH
if [ $ENV = dsw ]; then
    export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
    NNODES=1
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
case $MODEL_SIZE in
    7B)
        NUM_LAYERS=28; HIDDEN_SIZE=3584; NUM_ATTN_HEADS=28; INTERMEDIATE_SIZE=18944; NUM_KEY_VALUE_HEADS=4
        ;;
    72B)
        NUM_LAYERS=80; HIDDEN_SIZE=8192; NUM_ATTN_HEADS=64; INTERMEDIATE_SIZE=29568; NUM_KEY_VALUE_HEADS=8
        ;;
esac
if [ $AC = full ]; then
    activation_checkpoint_options=" --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = none ]; then
    activation_checkpoint_options=" "
fi
if [ $PR = fp16 ]; then
    pr_options=" --fp16"
elif [ $PR = bf16 ]; then
    pr_options=" --bf16"
fi
if [ $DO = true ]; then
    do_options=" --use-distributed-optimizer"
elif [ $DO = false ]; then
    do_options=" "
fi
megatron_options="  \
        --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${NUM_ATTN_HEADS} \
        --ffn-hidden-size ${INTERMEDIATE_SIZE} --group-query-attention --num-query-groups ${NUM_KEY_VALUE_HEADS} \
        --seq-length ${SEQ_LEN} --max-position-embeddings ${SEQ_LEN} --max-padding-length ${PAD_LEN} \
        --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
        --patch-tokenizer-type Qwen2Tokenizer --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias \
        --untie-embeddings-and-output-weights --position-embedding-type rope"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_qwen.py
 ${megatron_options} ${pr_options} ${activation_checkpoint_options} ${do_options}"
echo ${run_cmd}
eval ${run_cmd}
set +x
