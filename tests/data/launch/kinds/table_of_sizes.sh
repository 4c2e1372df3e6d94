#!/bin/bash
# sizes and layouts in associative arrays; the name of a variable in another
declare -A LAYERS=([7b]=32 [13b]=40 [70b]=80)
declare -A HIDDEN=([7b]=4096 [13b]=5120 [70b]=8192)
declare -A HEADS=([7b]=32 [13b]=40 [70b]=64)
TP_7b=1 TP_13b=2 TP_70b=8
SIZE=${SIZE:-70b}
TP_NAME=TP_${SIZE}
TP=${!TP_NAME}
for key in "${!LAYERS[@]}"; do :; done
printf -v STAMP '%s' "$(date)"
torchrun --nnodes ${NODES:=4} --nproc_per_node 8 pretrain_gpt.py --num-layers "${LAYERS[$SIZE]}" \
  --hidden-size ${HIDDEN[$SIZE]} --num-attention-heads ${HEADS[$SIZE]} --seq-length 4096 --max-position-embeddings 4096 \
  --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size $TP
