#!/bin/bash
# GNU getopt, then key=value words; conditions of every sort
set -u
OPTS=$(getopt -o n: --long tp:,pp:,nodes:,dry-run -- "$@") || exit 1
eval set -- "$OPTS"
TP=1 PP=1 NODES=1
while :; do
  case "$1" in
    --tp) TP=$2; shift 2 ;;
    --pp) PP=$2; shift 2 ;;
    -n | --nodes) NODES=$2; shift 2 ;;
    --dry-run) shift ;;
    --) shift; break ;;
  esac
done
for word in "$@"; do
  case "$word" in
    mbs=*) MBS="${word#*=}" ;;
    gbs=*) GBS=${word##*=} ;;
  esac
done
declare -A SIZE
SIZE[layers]=32
SIZE[hidden]=4096
if [ "$TP" -gt 1 -a "$PP" -ge 1 ] && ! [[ ($TP == 3 || $PP == 3) && -n $TP ]]; then SP=--sequence-parallel; fi
if { true; [ "$TP" = 0 -o "$PP" = 0 ]; } || ( false ); then exit 2; fi
if test $NODES; then WORLD=$((-8*-$NODES)); fi
: "${MBS:?give mbs=N}" ${GBS:=64}
cat <<END | tee layout.txt > /dev/null
--pipeline-model-parallel-size $PP
END
printf "%s=%d\n" nodes $NODES tp $TP > run.env
sed -i 's/nodes/NODES/' run.env
. run.env
CMD=(torchrun --nnodes "$NODES" --nproc_per_node 8 -m pretrain_gpt)
"${CMD[@]}" --num-layers "${SIZE[layers]}" --hidden-size "${SIZE[hidden]}" --num-attention-heads 32 --seq-length 2048 \
  --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size $MBS --global-batch-size $GBS --bf16 \
  --tensor-model-parallel-size $TP $(cat layout.txt) ${SP:-} $'--exp-name' a
