#!/bin/bash

# Which model of the table.
MODEL_SIZE=1.7B

if [[ ${MODEL_SIZE} == "1.7B" ]]; then
    TP=1; PP=1; MBS=16; GBS=512; NLS=24; HS=2304; NAH=24; NNODES=4
elif [[ ${MODEL_SIZE} == "3.6B" ]]; then
    TP=2; PP=1; MBS=16; GBS=512; NLS=30; HS=3072; NAH=32; NNODES=8
elif [[ ${MODEL_SIZE} == "7.5B" ]]; then
    TP=4; PP=1; MBS=16; GBS=512; NLS=36; HS=4096; NAH=32; NNODES=16
else
    echo "Invalid configuration"
    exit 1
fi
JOB_NAME=results_gpt_${MODEL_SIZE}
MEGATRON_EXTRA_PARAMS="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

. `pwd`/config.sh
. `pwd`/submit.sh

exit 0
