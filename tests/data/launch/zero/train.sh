#!/bin/bash
# Training of Llama 3 8B from its configuration, with the Trainer of Hugging Face over DeepSpeed.
export NCCL_SOCKET_IFNAME=^lo,docker
export OMP_NUM_THREADS=8

torchrun --nnodes=2 --nproc-per-node=8 run_clm.py \
  --config_name meta-llama/Meta-Llama-3-8B \
  --tokenizer_name meta-llama/Meta-Llama-3-8B \
  --train_file data.txt --do_train --output_dir output \
  --block_size 4096 \
  --per_device_train_batch_size 2 \
  --gradient_accumulation_steps 4 \
  --bf16 True \
  --use_liger_kernel True \
  --deepspeed ds_config.json
