#!/bin/bash
trap 'kill 0' EXIT
ulimit -n 65536
timeout 3h nohup env OMP_NUM_THREADS=8 numactl --interleave=all torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 \
  --tensor-model-parallel-size 2 > >(tee out.log) 2> >(tee err.log >&2) < /dev/null &
PID=$!
wait $PID || { echo failed; exit 1; }
