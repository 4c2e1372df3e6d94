#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
#!/bin/bash
CLUSTER=a3-mega
CMD="torchrun --nnodes=\$NODES --fproc_per_lode=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
  --global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --sequence-parallel"CLUSTER=a3-mega
export NNODES=4
xpk workload create --workload gpt --cluster $CLUSTER --device-type=h100-mega-80gb-8 --num-nodes=$NNODES --command "$CMD"
