#!/bin/bash
#COBALT -n 8 -t 60 -q full
aprun -n $((8*4)) -N 4 -d 16 -cc depth python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \
   --micro-batch-size 1 --global-batch-size 64 --bf16 --pipeline-model-parallel-size 2
