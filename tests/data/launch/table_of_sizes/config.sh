#!/bin/bash
: "${SLURM_PARTITION:?Set SLURM_PARTITION, e.g. batch}"
: "${MEGATRON_DATA:?Set MEGATRON_DATA, e.g. /path/to/data}"

# what is not listed here comes by MEGATRON_EXTRA_PARAMS
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MBS} \
	--global-batch-size ${GBS} \
        --num-layers ${NLS} \
        --hidden-size ${HS} \
        --num-attention-heads ${NAH} \
	--data-path ${MEGATRON_DATA} \
        --tokenizer-type NullTokenizer --vocab-size 50256 \
        --seq-length 2048 \
        --max-position-embeddings 2048 \
        --fp16 "
