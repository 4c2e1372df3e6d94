#!/bin/bash
###############################################################################
### model sizes; the global batch follows from tokens
MODEL_SIZE=${1:-1.3}
SEQ_LEN=2048
if [[ $MODEL_SIZE == "0.125" ]]; then
    NUM_LAYERS=12; HIDDEN_SIZE=768; NUM_ATTN_HEADS=12; GLOBAL_BATCH_SIZE=256
elif [[ $MODEL_SIZE == "1.3" ]]; then
    NUM_LAYERS=24; HIDDEN_SIZE=2048; NUM_ATTN_HEADS=16; GLOBAL_BATCH_SIZE=512
elif [ "$MODEL_SIZE" = "13" ]; then
    NUM_LAYERS=40; HIDDEN_SIZE=5120; NUM_ATTN_HEADS=40; GLOBAL_BATCH_SIZE=1024
else
    echo "size ${MODEL_SIZE} is not known"; exit 1
fi
NUM_GPUS=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))
NUM_GPUS=64
NUM_GPUS_PERNODE=8
NUM_NODE=$(( ${NUM_GPUS} / ${NUM_GPUS_PERNODE} ))
MP_SIZE=4
BATCH_SIZE=$(( ${GLOBAL_BATCH_SIZE} / (${NUM_GPUS} / ${MP_SIZE}) / 2 ))
megatron_options=" \
    --tensor-model-parallel-size ${MP_SIZE} --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} \
    --num-attention-heads ${NUM_ATTN_HEADS} --seq-length ${SEQ_LEN} --max-position-embeddings ${SEQ_LEN} \
    --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} --vocab-size 50257 --fp16"
deepspeed --num_nodes ${NUM_NODE} --num_gpus ${NUM_GPUS_PERNODE} pretrain_gpt.py ${megatron_options} \
    --deepspeed --zero-stage 1 &> log_$(date +%s).txt
