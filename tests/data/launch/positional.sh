#!/bin/bash
ENV=$1
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
TP=${5}
PR=${10}
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=8
fi
if [ $MODEL_SIZE = 8B ]; then
    NUM_LAYERS=32; HIDDEN_SIZE=4096; HEADS=32
elif [ $MODEL_SIZE = 70B ]; then
    NUM_LAYERS=80; HIDDEN_SIZE=8192; HEADS=64
fi
if [ $PR = fp16 ]; then
    pr_options="--fp16"
elif [ $PR = bf16 ]; then
    pr_options="--bf16"
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_llama.py --num-layers ${NUM_LAYERS} \
    --hidden-size ${HIDDEN_SIZE} --num-attention-heads ${HEADS} --micro-batch-size ${BATCH_SIZE} \
    --global-batch-size ${GLOBAL_BATCH_SIZE} --seq-length 4096 --max-position-embeddings 4096 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 1 ${pr_options} \
    --tokenizer-type NullTokenizer --vocab-size 128255
