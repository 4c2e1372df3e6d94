#!/bin/bash
HOSTS=(10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4)
NNODES=${#HOSTS[@]}
MASTER=${HOSTS[0]}
for ((i = 0; i < NNODES; i++)); do
  ssh -o StrictHostKeyChecking=no "${HOSTS[$i]}" "cd $PWD && torchrun --nnodes $NNODES --nproc_per_node 8 \
    --node_rank $i --master_addr $MASTER pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 2 --global-batch-size 256 --bf16 \
    --tensor-model-parallel-size 2 > log_$i.txt 2>&1" &
done
wait
