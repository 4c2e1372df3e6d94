#!/bin/bash
source "$(dirname "${BASH_SOURCE[0]}")/parts_common.sh"
set_layout 8 4
torchrun --nnodes $NODES --nproc_per_node $GPUS "${PROGRAM[@]}" "${LAYOUT[@]}"
