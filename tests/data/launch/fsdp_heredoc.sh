#!/bin/bash
# Submits itself; the number of nodes has to be filled in.
NNODES=${NNODES:-your_own_num_nodes}
TP=${TP:-1}
EP=${EP:-8}
MBS=${MBS:-4}
USE_FSDP=${USE_FSDP:-1}
PRETRAIN_ARGS=(
    --tensor-model-parallel-size ${TP}
    --expert-model-parallel-size ${EP}
    --micro-batch-size ${MBS}
    --global-batch-size ${GBS:-2048}
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096
    --num-experts 8 --moe-router-topk 2 --bf16 --swiglu --vocab-size 32000 --tokenizer-type NullTokenizer
)
if [ "${USE_FSDP}" = 1 ]; then
    PRETRAIN_ARGS=(
        "${PRETRAIN_ARGS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy optim_grads_params
        --use-distributed-optimizer
    )
fi
TRAINING_CMD="python /src/pretrain_gpt.py ${PRETRAIN_ARGS[@]}"
set +e
sbatch <<EOS
#!/bin/bash
#SBATCH --nodes=${NNODES}
#SBATCH --ntasks-per-node=8
#SBATCH --job-name=fsdp-\$(date)
srun --container-image ${IMAGE} bash -x -c "${TRAINING_CMD}" 2>&1 | tee ${OUT}/slurm.log
EOS
set -e
