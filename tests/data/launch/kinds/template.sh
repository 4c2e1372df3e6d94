#!/bin/bash
# a template that is filled in and then submitted
cat > job.tmpl <<'EOF'
#!/bin/bash
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=8
srun python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size @TP@
EOF
sed -e "s/@NODES@/4/g" -e "s/@TP@/${TP:-2}/" job.tmpl > job.sh
sbatch job.sh
