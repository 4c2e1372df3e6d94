#!/bin/bash
NODES=4
sbatch <<-SUBMIT
	#!/bin/bash
	#SBATCH --nodes=$NODES
	#SBATCH --gpus-per-node=8
	cat > \$HOME/run.sh <<'INNER'
	torchrun --nnodes=\$SLURM_NNODES --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2
	INNER
	srun bash \$HOME/run.sh
SUBMIT
