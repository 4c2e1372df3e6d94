#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
MODEL=qwen3_30b_a3b
GLOBAL_BATCH_SIZE=128
# TP,PP,CP,EP: one for each run
PARALLELISM_CONFIGS=("1,4,2,8")
# PARALLELISM_CONFIGS=("1,4,1,8" "2,4,1,4")
for CONFIG in "${PARALLELISM_CONFIGS[@]}"; do
    IFS=',' read -r TP PP CP EP <<< "$CONFIG"
    CLI_OVERRIDES=" \
        train.global_batch_size=$GLOBAL_BATCH_SIZE \
        train.micro_batch_size=1 \
        model.tensor_model_parallel_size=$TP \
        model.pipeline_model_parallel_size=$PP \
        model.context_parallel_size=$CP \
        model.expert_model_parallel_size=$EP \
        model.seq_length=4096 dataset.seq_length=4096"
    CMD="uv run --no-sync python /opt/Megatron-Bridge/scripts/training/run_recipe.py"
    CMD="$CMD --recipe ${MODEL}_pretrain_config"
    CMD="$CMD $CLI_OVERRIDES"
    srun --mpi=pmix --container-image="$CONTAINER_IMAGE" bash -c "$CMD"
done
