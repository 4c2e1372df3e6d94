#!/bin/bash
cat > hostfile <<EOF
worker-0 slots=8
worker-1 slots=8
worker-2 slots=8
EOF
deepspeed --hostfile=hostfile --master_port 29500 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \
  --micro-batch-size 2 --global-batch-size 192 --bf16 --tensor-model-parallel-size 2 --deepspeed --zero-stage 1
