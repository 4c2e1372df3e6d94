#!/bin/bash
CMD="torchrun --nnodes=1 --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8"
xpk workload create --workload gpt --cluster a3 --device-type=h100-mega-80gb-8 --num-nodes=2 --command "$CMD"
CMD="torchrun --nnodes=1 --nproc_per_node=8 pretrain_gpt.py --num-layers 16 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8"
xpk workload create --workload gpt --cluster a3 --device-type=h100-mega-80gb-8 --num-nodes=2 --command "$CMD"
