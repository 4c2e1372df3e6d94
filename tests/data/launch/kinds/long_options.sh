#!/bin/bash
# options as scripts parse them by hand
TP=1
PP=1
DRY=0
POSITIONAL=()
while [[ $# -gt 0 ]]; do
  key="$1"
  case $key in
    --tp)      TP="$2"; shift; shift ;;
    --pp=*)    PP="${key#*=}"; shift ;;
    --nodes|-N) NODES="$2"; shift 2 ;;
    --dry-run) DRY=1; shift ;;
    --)        shift; break ;;
    -*)        echo "unknown option $1"; exit 1 ;;
    *)         POSITIONAL+=("$1"); shift ;;
  esac
done
set -- "${POSITIONAL[@]}" "$@"
GBS=$1
EXTRA="${@:2}"
CMD="torchrun --nnodes ${NODES:-1} --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size $GBS
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP $EXTRA"
(( DRY )) && { echo "$CMD"; exit 0; }
$CMD
