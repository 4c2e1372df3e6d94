#!/bin/bash
export TP=2 NODES=2
export GPT_ARGS="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16"
unset DEBUG
if [ -n "$DEBUG" ]; then NODES=1; elif ! [ "$TP" -eq 2 ]; then exit 3; fi
bash <<'EOF'
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS --tensor-model-parallel-size $TP
EOF
