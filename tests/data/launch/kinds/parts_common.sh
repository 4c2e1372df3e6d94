NODES=${NODES:-8}
GPUS=8
PROGRAM=(pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16)
PROGRAM=("${PROGRAM[@]/--global-batch-size/--global-batch-size}")
set_layout() {
  LAYOUT=(--tensor-model-parallel-size "$1" --pipeline-model-parallel-size "$2")
  [ "$1" -gt 1 ] && LAYOUT+=(--sequence-parallel) || true
}
