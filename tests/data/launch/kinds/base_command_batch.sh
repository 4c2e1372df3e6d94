ngc batch run --name "gpt.nodes4" --preempt RUNONCE --replicas 4 --ace-instance dgxa100.80g.8.norm --array-type PYTORCH \
  --commandline "set -x && bcprun --nnodes 4 --npernode 8 --cmd 'python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4'" \
  --result /results --image nvcr.io/nvidia/pytorch:24.05-py3
