#!/bin/bash
#flux: -N 16
#flux: -q pbatch
ARGS="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000
--micro-batch-size 2 --global-batch-size 512 --bf16 --tensor-model-parallel-size 4 --sequence-parallel"
flux run -N 16 --tasks-per-node=4 -g 1 -o mpibind=off python -u pretrain_gpt.py $ARGS
