#!/bin/bash
HOSTS="node1:8,node2:8"
mpirun -np 16 -H $HOSTS --allow-run-as-root -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib \
    -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH \
    python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 4 --global-batch-size 128 --bf16
