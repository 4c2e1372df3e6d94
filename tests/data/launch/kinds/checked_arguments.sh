#!/bin/bash
# ends unless it is told what it cannot do without
DATA=
MODE=${1:-}
while [[ $# -gt 1 ]]; do
  case "$2" in
    --data) DATA="$3"; shift 2 ;;
    *) echo "unknown $2"; exit 1 ;;
  esac
done
if [[ -z "$DATA" ]]; then echo "no data"; exit 1; fi
[ -n "$NODES" ] || { echo "set NODES"; exit 2; }
if [[ "$MODE" != "plain" && "$MODE" != "sharded" ]]; then
  echo "usage: $0 <plain|sharded> --data PATH" >&2
  exit 2
fi
EXTRA=""
if [ "$MODE" = "sharded" ]; then EXTRA="--use-distributed-optimizer"; fi
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 \
  --data-path "$DATA" $EXTRA
