#!/bin/bash
# the layout stands in the name of the run
NAME=${NAME:-gpt-7b-tp2-pp4-n4}
rest=${NAME#*-tp}; TP=${rest%%-*}
rest=${NAME##*-pp}; PP=${rest%%-*}
NODES=${NAME##*-n}
UPPER=${NAME^^}; LOWER=${UPPER,,}; SHORT=${LOWER:0:3}; LAST=${NAME: -2}
KIND=${NAME//-/_}; LEN=${#NAME}
torchrun --nnodes ${NODES} --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size ${TP} \
  --pipeline-model-parallel-size ${PP} --exp-name ${KIND}-${SHORT}${DEBUG:+-debug}
