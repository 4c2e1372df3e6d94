#!/bin/bash
usage() { echo "usage: $0 -m MODEL [-n NODES] [-t TP] [-h]" 1>&2; exit 1; }
NODES=1 TP=1
while getopts ":m:n:t:h" opt; do
  case "${opt}" in
    m) MODEL=${OPTARG} ;;
    n) NODES=${OPTARG} ;;
    t) TP=${OPTARG} ;;
    h | *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ -z "$MODEL" ] && usage
case $MODEL in
  small) L=24 H=2048 A=16 ;;
  large) L=48 H=6144 A=48 ;;
  *) usage ;;
esac
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers $L --hidden-size $H --num-attention-heads $A \
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 1 --global-batch-size 256 --bf16 \
  --tensor-model-parallel-size $TP "$@"
