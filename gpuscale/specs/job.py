"""One training job: what is trained, on what, and how the framework runs it; everything that is not searched."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.model import ModelSpec

FLOP_CONVENTION = (
    "model FLOPs = 3 x forward matmuls (1 multiply-add = 2 FLOPs) incl. LM head, attention causal "
    "(lower triangle only), recomputation not counted; peak = dense peak of the GEMM precision"
)
"""Stated beside every FLOP/s and MFU."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of each training state (defaults: Megatron-LM mixed precision with Adam, 18 bytes).

    Source of the defaults: Megatron-LM `docs` on the distributed optimizer (bf16 parameters, fp32 gradients:
    2 + 4 bytes, and 12 bytes of fp32 master weight and two fp32 moments).
    """

    weight: float = 2.0
    gradient: float = 4.0
    master: float = 4.0
    moments: float = 8.0

    @property
    def optimizer(self) -> float:
        """Master weight and moments together."""
        return self.master + self.moments

    @property
    def total(self) -> float:
        """Unsharded bytes per parameter."""
        return self.weight + self.gradient + self.master + self.moments


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """How the training framework runs a step; the defaults are today's Megatron-LM core.

    Attributes:
        name: the framework whose behaviour these switches describe.
        attention: `native` (fused, made for the GPU), `flash2` or `flash1` (fused, of an older generation), or
            `unfused` (score matrix in memory, masked half computed too).
        eager: which of `norm`, `rotary`, `activation` and `loss` run as chains of eager PyTorch operations rather than
            as fused kernels.
        dropout: dropout after attention, projection and MLP (GPT-3 recipes; Llama recipes have none).
        wgrad_fusion: weight gradients are added onto the fp32 buffer inside the GEMM; otherwise by a kernel of its own.
        loss: cross entropy `standard` (in place, fp32) or `fused` (one kernel each way, on 16-bit logits).
        overlap_tp: TP collectives are pipelined with the GEMM beside them (Megatron `--tp-comm-overlap`).
        async_tp_reduce: without SP, the backward AllReduce of TP runs beside the weight gradient.
        overlap_grad_reduce: gradient reduction runs under the backward pass.
        overlap_param_gather: parameter gathering runs under the forward pass.
        overlap_cp: ring context parallelism passes keys and values under the attention of the previous block.
        sequence_parallel: whether TP comes with sequence parallelism when nothing is said.
        zero_stage: the ZeRO stage when nothing is said.
        selective_share: share of a layer's forward pass that the framework's own `selective` recomputes where that is no
            set of modules (torchtitan recomputes every other matrix product or every other layer); 0 for modules.
        expert_dispatch: `alltoall` sends every copy of a token over the network, `deduplicated` one per node, forwarded
            over NVLink (DeepEP, HybridEP).
        pipeline_split: how layers are dealt out to stages: `even`, or by `cost` with the LM head counted (nanotron).
        bucket_bytes: gradient bucket that cannot be hidden at the end of the backward pass.
        context_bytes: CUDA context, loaded kernels and library workspaces of the process.
        communicator_bytes: buffers of one NCCL communicator.
        host_layer_s: CPU time to issue the forward pass of one dense layer; the backward pass takes as much, and a
            layer with more kernels in proportion more.
        host_collective_s: time the CPU needs to issue one collective.
        host_checkpoint_s: CPU time of one checkpointed (recomputed) layer: saving and restoring random states.
        host_moe_sync_s: idle GPU time of one mixture of experts and pass, while the CPU waits for the token counts of its
            experts (DeepEP and Megatron's AllToAll dispatcher outside an NVLink rack; HybridEP inside one does not).
        host_microbatch_s: time of one microbatch on the last stage that nothing hides: loss, data, synchronisation.
    """

    name: str = "megatron-core"
    attention: str = "native"
    eager: tuple[str, ...] = ()
    dropout: bool = False
    wgrad_fusion: bool = True
    loss: str = "standard"
    overlap_tp: bool = True
    async_tp_reduce: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_cp: bool = True
    sequence_parallel: bool = True
    zero_stage: int = 1
    selective_share: float = 0.0
    expert_dispatch: str = "deduplicated"
    pipeline_split: str = "even"
    bucket_bytes: float = 40e6 * 4
    context_bytes: float = 1.5 * 2**30
    communicator_bytes: float = 0.25 * 2**30
    host_layer_s: float = 300e-6
    host_collective_s: float = 20e-6
    host_checkpoint_s: float = 100e-6
    host_moe_sync_s: float = 0.0
    host_microbatch_s: float = 200e-6


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A training job on a cluster.

    Attributes:
        gpus: GPUs of the job; at most `cluster.gpus`.
        sequence: tokens per sequence.
        global_batch_size: sequences per optimizer step.
        precision: precision of the layers' GEMMs; attention and LM head stay in bf16 under fp8 and fp4.
        vocab_multiple: the vocabulary is padded to a multiple of this times TP.
        memory_limit_bytes: usable memory of one GPU.
        moe_imbalance: tokens of the busiest expert-parallel rank over the mean (1 = balanced).
    """

    model: ModelSpec
    cluster: ClusterSpec
    gpus: int
    sequence: int
    global_batch_size: int
    precision: str
    states: StateBytes
    runtime: RuntimeSpec
    vocab_multiple: int
    memory_limit_bytes: float
    moe_imbalance: float

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.sequence * self.global_batch_size

    @property
    def attention_precision(self) -> str:
        """Precision of attention, LM head and communication: that of the job, but never below 16 bits."""
        return "bf16" if self.precision in {"fp8", "fp4"} else self.precision
