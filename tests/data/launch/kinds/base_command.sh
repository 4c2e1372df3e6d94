#!/bin/bash
# 8 nodes of a base command platform
NODES=8
GPUS=8
ARGS="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu --seq-length 2048 \
  --max-position-embeddings 2048 --position-embedding-type rope --disable-bias-linear --normalization RMSNorm \
  --vocab-size 32000 --micro-batch-size 1 --global-batch-size 512 --bf16 --use-distributed-optimizer \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel"
bcprun -n $NODES -p $GPUS -c "python main.py $ARGS"
