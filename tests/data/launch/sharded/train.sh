#!/bin/bash
accelerate launch --config_file fsdp.yaml run_clm.py \
  --config_name meta-llama/Meta-Llama-3-8B \
  --tokenizer_name meta-llama/Meta-Llama-3-8B \
  --train_file data.txt --do_train --output_dir output \
  --block_size 4096 \
  --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 4 \
  --bf16 True \
  --use_liger_kernel True
