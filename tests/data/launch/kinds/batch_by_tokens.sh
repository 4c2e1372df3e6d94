#!/bin/bash
SEQ=4096
TOKENS=$((4*1024*1024))
NODES=$(echo "$WORKERS" | tr ' ' '\n' | wc -l)
WORKERS="a b c d"
NODES=$(echo $WORKERS | wc -w)
GPUS=$(echo "0,1,2,3,4,5,6,7" | awk -F, '{print NF}')
TP=$(echo "tp=4,pp=1" | cut -d, -f1 | cut -d= -f2)
DP=`expr $NODES \* $GPUS / $TP`
GBS=$((TOKENS / SEQ))
MBS=$(echo "2 * 1" | bc)
ACC=$(( GBS / (DP * MBS) > 0 ? GBS / (DP * MBS) : 1 ))
torchrun --nnodes $NODES --nproc_per_node $GPUS pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length $SEQ --max-position-embeddings $SEQ --vocab-size 32000 --micro-batch-size $MBS --global-batch-size $GBS --bf16 \
  --tensor-model-parallel-size $TP
