#!/bin/bash
# layouts as tp,pp,dp in one word each, and a here-string
LAYOUT=${1:-"4,2,8"}
IFS=',' read -r TP PP DP <<< "$LAYOUT"
read -ra NAMES <<< "tp pp dp"
let WORLD=TP*PP*DP
(( NODES = WORLD / 8 ))
GBS=$(( DP * 16 ))
ACC=$((GBS/DP/1))
if (( NODES < 1 )); then NODES=1; fi
until [ $NODES -ge 1 ]; do NODES=1; done
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size $GBS --bf16 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
