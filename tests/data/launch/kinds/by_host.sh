#!/bin/bash
# one script for two sites: what differs is only where files lie
if [[ $(hostname) == login* ]]; then
  DATA=/scratch/data; module load cuda
elif [ -d /lustre ]; then
  DATA=/lustre/data
else
  DATA=/data
fi
[[ $DATA =~ ^/l ]] && EXTRA="--no-mmap-bin-files"
case "$DATA" in /scratch/*|/lustre/*) FAST=1 ;; *) FAST=0 ;; esac
test -n "$FAST" || exit 1
( cd /tmp; TP=99 )
{ TP=2; PP=2; } > /dev/null 2>&1
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --data-path $DATA $EXTRA \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
