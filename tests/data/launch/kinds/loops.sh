#!/bin/bash
# Everything is counted: hosts, batches, options of a function, lines that the script reads.
NODES=0
while read -r host slots; do
  case "$slots" in "") continue ;; esac
  NODES=$((NODES + 1)); GPUS=$slots
done < <(printf 'a 8\nb 8\n\nc 8\nd 8\n')
pick() {
  local IFS=, size=$1 n=0
  declare -i -g TP
  for one in {1..8}; do
    [[ $one -lt $size ]] || return 3
    TP=one*1
  done
}
pick 5; [ $? -eq 3 ] || exit 1
n=64; until (( n >= WANTED )); do (( n *= 2 )); [ $n -gt 4096 ] && break; done
WANTED=256
n=64; until (( n >= WANTED )); do (( n *= 2 )); done
for ((i = 0, part = 2; i < 3; i++)); do
  [ "$i" = 1 ] && continue
  printf -v SPLIT '%s' "$part"
done
declare -n split=SPLIT
readarray -t LINES <<< $'--bf16\n--swiglu'
MORE=()
for index in "${!LINES[@]}"; do MORE[index]=${LINES[$index]}; done
unset 'MORE[1]'
if echo "from llama-7b" | grep -qi LLAMA && [[ ! -v NEVER ]]; then SEQ=$(seq -s ' ' 2048 2048); fi
{ echo "lines of"; echo "the job"; } > job.txt
while ! nc -z localhost 22; do sleep 1; tried=$((tried + 1)); done
torchrun --nnodes $NODES --nproc_per_node $GPUS pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length $SEQ --max-position-embeddings ${SEQ-1} --vocab-size 32000 --micro-batch-size $((i - 2)) --global-batch-size $n \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $split "${MORE[@]}"
