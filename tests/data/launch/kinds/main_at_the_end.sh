#!/usr/bin/env bash
set -o errexit -o nounset
log() { echo "[$(date)] $*" >&2; }
parallel() {
  local tp=$1 pp=${2:-1}
  echo "--tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp"
}
function launch {
  local nodes="$1"; shift
  log "on $nodes nodes"
  torchrun --nnodes "$nodes" --nproc_per_node 8 pretrain_gpt.py "$@"
}
main() {
  local nodes=${1:?nodes} tp=${2:?tensor parallel}
  local -a args=(--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000)
  args+=(--micro-batch-size 1 --global-batch-size 128 --bf16)
  args+=(--tensor-model-parallel-size "$tp")
  launch "$nodes" "${args[@]}"
}
main "$@"
