#!/bin/bash
ARGS="--tensor-model-parallel-size 2 \
  --sequence-parallel"
torchrun --nproc_per_node 8 \
  pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 $ARGS
