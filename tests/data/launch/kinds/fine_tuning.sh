#!/bin/bash
OUTPUT=$1
ZERO_STAGE=$2
if [ "$OUTPUT" == "" ]; then
    OUTPUT=./output_step1
fi
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
mkdir -p $OUTPUT
cat > ds_z$ZERO_STAGE.json <<E
{"zero_optimization": {"stage": $ZERO_STAGE}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto",
 "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}
E
deepspeed --num_gpus 8 train.py \
   --model_name_or_path meta-llama/Llama-2-7b-hf \
   --per_device_train_batch_size 4 \
   --gradient_accumulation_steps 2 \
   --max_seq_length 512 \
   --bf16 True \
   --gradient_checkpointing True \
   --deepspeed ds_z$ZERO_STAGE.json \
   --output_dir $OUTPUT \
   &> $OUTPUT/training.log
