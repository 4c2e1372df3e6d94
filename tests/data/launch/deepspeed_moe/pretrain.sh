#!/bin/bash
DIR=`pwd`
SEQ_LEN=2048
## GPT-3 Small 125M
# NUM_LAYERS=12
## GPT-3 XL 1.3B
MODEL_SIZE=1.3
NUM_LAYERS=24
HIDDEN_SIZE=2048
GLOBAL_BATCH_SIZE=512
TRAIN_ITERS=$(( 300000000000 * 3 / ${GLOBAL_BATCH_SIZE} / ${SEQ_LEN} ))
BATCH_SIZE=8
MP_SIZE=1
PP_SIZE=1
NUM_GPUS=64
EP_SIZE=128

if [[ $EP_SIZE -gt $NUM_GPUS ]]; then
    EP_PARALLEL_SIZE=$NUM_GPUS
else
    EP_PARALLEL_SIZE=$EP_SIZE
fi
ACTIVATION_CHECKPOINT="true"
NAME="gpt-${MODEL_SIZE}B-gpus-${NUM_GPUS}"
if [[ $EP_SIZE -gt 1 ]]; then
    NAME="${NAME}-ep-${EP_SIZE}"
fi
host="${HOSTNAME}"
current_time=$(date "+%Y.%m.%d-%H.%M.%S")

options=" \
        --tensor-model-parallel-size ${MP_SIZE} \
        --moe-expert-parallel-size ${EP_PARALLEL_SIZE} \
        --num-experts ${EP_SIZE} \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads 16 \
        --seq-length ${SEQ_LEN} \
        --max-position-embeddings ${SEQ_LEN} \
        --train-iters ${TRAIN_ITERS} \
        --vocab-size 50257 \
        --fp16"

if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
options="${options} \
        --checkpoint-activations"
fi

template_json="template.json"
config_json="ds_config_${NAME}.json"
sed "s/CONFIG_BATCH_SIZE/${GLOBAL_BATCH_SIZE}/" ${template_json} \
    | sed "s/CONFIG_MBSIZE/${BATCH_SIZE}/" \
    | sed "s/ZERO_STAGE/0/" \
    | sed "s/CONFIG_FP16_ENABLED/true/" \
	  > ${config_json}

deepspeed_options=" \
		    --deepspeed \
		    --deepspeed_config ${config_json} \
		    --pipeline-model-parallel-size ${PP_SIZE} \
		    --no-pipeline-parallel"

run_cmd="deepspeed ${DIR}/../../pretrain_gpt.py ${options} ${deepspeed_options} &> log/${NAME}_${host}_${current_time}.log &"
echo ${run_cmd}
eval ${run_cmd}
set +x
