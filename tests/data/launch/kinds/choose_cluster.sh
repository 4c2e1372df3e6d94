#!/bin/bash
CLUSTER=${1:-frontier}
case $CLUSTER in
  frontier | lumi) GPUS=8; NODES=8; ;;
  perlmutter) GPUS=4; NODES=16; ;;
  *) echo "no such cluster" ; exit 1 ;;
esac
select_layout() {
  case $1 in
    4) echo "--tensor-model-parallel-size 4" ;;
    8) echo "--tensor-model-parallel-size 8 --sequence-parallel" ;;
  esac
}
LAYOUT="--tensor-model-parallel-size $GPUS"
srun -N $NODES -n $((NODES * GPUS)) -c 7 --gpus-per-task=1 --gpu-bind=closest python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 $LAYOUT
