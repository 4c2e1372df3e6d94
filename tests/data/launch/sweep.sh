#!/bin/bash
run() {
    torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
        --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size "$2" --global-batch-size 256 --bf16 \
        --tensor-model-parallel-size "$1" --tokenizer-type NullTokenizer --vocab-size 50303
}
run 1 4
run 2 8
