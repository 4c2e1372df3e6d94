#!/bin/bash
# wants a size and, if one likes, nodes
if [ $# -lt 1 ]; then
  echo "usage: $0 SIZE [NODES]"
  exit 1
fi
SIZE=$1
NODES=${2:-2}
if [ "$SIZE" == small ]; then
  L=12; H=768; A=12
elif [ "$SIZE" == big ]; then
  L=24; H=2048; A=16
fi
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size $H --num-attention-heads $A \
  --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size 1 --global-batch-size 64 --bf16
