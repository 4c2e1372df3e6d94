#!/bin/bash
docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 -v $HOME:/work -e NCCL_DEBUG=INFO -w /work \
  nvcr.io/nvidia/pytorch:25.05-py3 bash -lc "
    export TP=4
    torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size \$TP"
