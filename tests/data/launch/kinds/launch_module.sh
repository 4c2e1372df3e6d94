#! /bin/bash
# the way of 2021: torch.distributed.launch, one string of options
GPUS_PER_NODE=8
NNODES=4
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank 0 --master_addr localhost"
python -m torch.distributed.launch $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       --tensor-model-parallel-size 2 \
       --pipeline-model-parallel-size 2 \
       --num-layers 24 \
       --hidden-size 1024 \
       --num-attention-heads 16 \
       --micro-batch-size 4 \
       --global-batch-size 64 \
       --seq-length 1024 \
       --max-position-embeddings 1024 \
       --vocab-file gpt2-vocab.json \
       --merge-file gpt2-merges.txt \
       --DDP-impl local \
       --checkpoint-activations \
       --fp16
