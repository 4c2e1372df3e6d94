"""One training job: what is trained, on what, and how the framework runs it; everything that is not searched."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.choices import (
    ATTENTIONS,
    AXES,
    CP_COMMS,
    DISPATCHERS,
    GRAD_REDUCES,
    LOSSES,
    MEMORY_HEADROOM,
    PIPELINE_SPLITS,
    RESHARDS,
    ROUTINGS,
    TOWERS,
    TRANSPORTS,
)
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.specs.fields import Text, among
from gpuscale.specs.gpu import BLACKWELL, PRE_AMPERE, WIDE
from gpuscale.specs.lengths import LengthsSpec
from gpuscale.specs.model import AttentionSpec, LayerSpec, ModelSpec
from gpuscale.specs.site import SiteSpec
from gpuscale.specs.tuning import SFT, TEACHING, MethodSpec, ProjectionSpec, TuningSpec
from gpuscale.units import GIB

FLOP_CONVENTION = (
    "model FLOPs = 3 x forward matmuls (1 multiply-add = 2 FLOPs) incl. LM head, attention causal "
    "(lower triangle only), recomputation not counted; peak = dense peak of the GEMM precision"
)
"""Stated beside every FLOP/s and MFU; of frozen weights and of methods with `JobSpec.flop_convention`."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter of each training state. Defaults: Megatron-LM mixed precision with Adam, 18 bytes (its docs
    on the distributed optimizer: bf16 parameters, fp32 gradients, 12 bytes of fp32 master weight and two fp32
    moments)."""

    weight: float = 2.0  #: weights that the matrix products read [bytes].
    #: gradients as they are kept and reduced [bytes].
    gradient: Annotated[float, Field(alias="gradient_bytes", ge=1, le=8)] = 4.0
    master: float = 4.0  #: master weights; 0 without [bytes].
    moments: float = 8.0  #: all moments of the optimizer together [bytes].
    second_moment: float = 4.0  #: the second of them, in PyTorch's Adam; 0 in other optimizers [bytes].
    paged: bool = False  #: moments lie in unified memory and leave the GPU where it is full.

    @property
    def optimizer(self) -> float:
        """Master weight and moments together."""
        return self.master + self.moments

    @property
    def total(self) -> float:
        """Unsharded bytes per parameter."""
        return self.weight + self.gradient + self.master + self.moments


ATTENTION_KERNELS = (
    "native", "sdpa2025", "cudnn9", "cudnn8", "flash4", "flash3", "flash2", "flash1", "unfused", *ATTENTIONS,
)  # fmt: skip
"""What a framework may ask for; `RuntimeSpec.attention` says what each of them is."""

KERNELS_OF = {"fa2": "flash2", "fa3": "flash3", "fa4": "flash4", "cudnn": "native", "eager": "unfused"}
"""What users call attention kernels otherwise than profiles do (`gpuscale.choices.ATTENTIONS`) -> what profiles say."""

ATTENTION_NEEDS = {"fa3": ("hopper",), "fa4": ("hopper", "blackwell", "rubin")}
"""Beginnings of the architectures that kernels are made for (Dao-AILab/flash-attention, README)."""

LIBRARY_KERNELS = frozenset({"fa2", "fa3", "fa4", "cudnn"})
"""Kernels that take operands of 16 bits alone, on Ampere and later (`JobSpec.attention` has the sources)."""

EAGER = ("norm", "rotary", "activation", "loss", "bias")
"""What runs as operations of its own without torch.compile or kernels of a framework."""

LOSS_PEAK_BYTES = {"fused": 4.0, "chunked": 0.75, "linear": 0.0}
"""Cross entropy -> bytes per logit at its peak: 16-bit logits and their gradient (Megatron-LM
`--cross-entropy-loss-fusion`); LM head and loss by eighths of the sequence, 2 + 4 bytes in each (torchtitan
components/loss.py, ChunkedCELoss); or one kernel for both (Liger Kernel), see `CHUNK_BYTES`. A `standard` one:
`MemoryProfile.loss_bytes`."""

COMPILED_LOSSES = frozenset({"torchtitan", "torchtitan-2024"})
"""Rule sets whose `fused` cross entropy is compiled code rather than a kernel (torchtitan components/loss.py)."""

OWN_LOOPS = frozenset({"generic", "accelerate"})
"""Rule sets of frameworks in which a user's own code says how the loss is worked out."""

CHUNK_BYTES = 6.0
"""Bytes per element of a hidden state that one kernel for LM head and loss takes: it works on chunks of as many logits
as the hidden state has elements, in 16 and 32 bits (Liger Kernel, ops/fused_linear_cross_entropy.py)."""

LowPrecision = Annotated[str, among("bf16", "fp16", "fp8", "fp4")]
CpComm = Annotated[str, among(*CP_COMMS)]
PipelineSplit = Annotated[str, among(*PIPELINE_SPLITS)]


@dataclass(frozen=True)
class MemoryProfile:
    """What a framework keeps in memory beside parameters, gradients and optimizer state; facts in docs/memory.md."""

    #: per logit at the peak of a `standard` loss: 16-bit logits, fp32 copies, gradients [bytes].
    loss_bytes: Annotated[float, Field(ge=0, le=64)]
    #: under sequence parallelism inputs of column-parallel products are saved whole, as gathered.
    saves_gathered_inputs: bool
    #: copies of keys and values that stay besides those that attention reads, where they come in one tensor with the
    #: queries (multi-head attention).
    saved_kv_copies: Annotated[float, Field(ge=0, le=8)]
    #: buffers of a microbatch's hidden state that tensor parallelism keeps for its gathers.
    gather_buffers: Annotated[float, Field(ge=0, le=8)]
    fp8_activations: bool  #: under fp8 the inputs of matrix products are saved in 8 bits.
    #: under fp8 and fp4, bytes per parameter that the weights take with their copies.
    fp8_weight_bytes: Annotated[float, Field(ge=0, le=8)]
    #: one 16-bit placeholder per shape of a layer's weight gradients is kept, as these go to the fp32 buffer
    #: (Transformer Engine).
    weight_placeholders: bool
    transient_gradients: bool  #: the backward pass of a microbatch ends with 16-bit gradients of all parameters.
    #: gradient buckets under plain data parallelism (ZeRO 0), per parameter [bytes].
    replica_bucket_bytes: Annotated[float, Field(ge=0, le=8)]
    #: buffer through which sharded states' gradients are reduced [bytes].
    reduce_bucket_bytes: Annotated[float, Field(ge=0, le=1e11)]
    #: what the optimizer step needs beside sharded states, per parameter of the GPU [bytes].
    step_whole_bytes: Annotated[float, Field(ge=0, le=32)]
    step_shard_bytes: Annotated[float, Field(ge=0, le=32)]  #: the same per parameter of the GPU's shard [bytes].
    #: the master weight is the parameter, cast for use (FSDP, autocast); without a master, the 16-bit weight is.
    master_is_weight: bool
    #: what stays gathered between forward and backward pass under ZeRO-3: `none`, the LM `head`, or the embedding too
    #: (`ends`).
    root_gathered: Annotated[str, among("none", "head", "ends")]
    #: under ZeRO-3, parameters that are gathered at most at a time; 0: two layers.
    gathered_parameters: Annotated[float, Field(ge=0, le=1e12)]
    #: share by which the caching allocator holds more than what comes and goes in a step.
    fragmentation: Annotated[float, Field(ge=0, le=1)]
    #: CUDA context and loaded kernels of the process, outside PyTorch's allocator [bytes].
    context_bytes: Annotated[float, Field(alias="context_gib", ge=0, le=16 * GIB)]
    #: buffers of one NCCL communicator, likewise [bytes].
    communicator_bytes: Annotated[float, Field(alias="communicator_gib", ge=0, le=16 * GIB)]
    #: communicators besides one per parallel dimension in use.
    extra_communicators: Annotated[float, Field(ge=0, le=64)]
    #: what the framework's log calls memory: `allocated`, `reserved` or `device`.
    reported: Annotated[str, among("allocated", "reserved", "device")]
    counter_reset: bool  #: the allocator's peak counter is reset before the optimizer step: the log's peak is of that.
    #: recipe of fp8 and fp4 -> the same where it differs from `fp8_weight_bytes` [bytes].
    recipe_weight_bytes: Mapping[
        Annotated[str, among("delayed", "current", "blockwise", "mx", "nvfp4")], Annotated[float, Field(ge=0, le=8)]
    ] = field(default_factory=dict, hash=False)
    #: PyTorch's allocator extends and shrinks its segments (PYTORCH_CUDA_ALLOC_CONF), so that, short of memory, it
    #: gives back nearly all that is free.
    expandable_segments: bool = False
    #: buffer out of which FSDP reduces the gradients of a layer, per parameter of it [bytes].
    reduce_input_bytes: Annotated[float, Field(ge=0, le=8)] = 0.0
    frees_gradients: bool = False  #: gradients are freed behind the optimizer step (`zero_grad` sets them to None).
    #: RMSNorms and softmax of attention that are chains of operations work in fp32 (transformers; torch.nn.RMSNorm
    #: where no kernel fuses it).
    wide_chains: bool = False
    #: beside adapters, what is trained whole is a copy of its original, which stays (PEFT).
    keeps_originals: bool = False
    #: beside quantised matrices, other frozen weights and the residual stream are made 32-bit unless ZeRO-3 shards them
    #: (PEFT, `prepare_model_for_kbit_training`).
    widens_beside_quantised: bool = False
    #: beside frozen weights ZeRO-3 keeps the gradients of recomputed layers' inputs to the end of the backward pass.
    keeps_input_gradients: bool = False
    #: keys and values of grouped queries are copied to all heads before attention.
    expands_kv: bool = False
    #: under ZeRO-3 frozen weights have gradients too, with those of their unit of FSDP1.
    frozen_gradients: bool = False
    #: under ZeRO-3 each GPU gathers the whole model to load it.
    loads_whole: bool = False
    #: copies of the second moment that Adam's step makes of all parameters at once (PyTorch's `foreach` kernels: the
    #: denominator of the update); fused kernels make none.
    foreach_copies: Annotated[float, Field(ge=0, le=4)] = 0.0
    #: ZeRO-2 and 3 flatten the parameters of each unit into one, for which `foreach` kernels are not taken.
    flat_parameters: bool = False
    expert_outputs: bool = False  #: outputs of experts are saved, as they are weighted behind the experts.
    #: precision -> what gradients take under it per parameter, where that differs from `StateBytes.gradient` [bytes].
    stored_gradient_bytes: Mapping[LowPrecision, Annotated[float, Field(ge=1, le=16)]] = field(
        default_factory=dict, hash=False
    )


RULE_SETS = (
    "generic",
    "megatron-lm",
    "megatron-lm-2025",
    "megatron-lm-2024",
    "megatron-lm-2023",
    "megatron-lm-2022",
    "megatron-lm-2021",
    "torchtitan",
    "torchtitan-2024",
    "deepspeed",
    "megatron-deepspeed",
    "nanotron",
    "llm-foundry",
    "torchtune",
    "litgpt",
    "accelerate",
)
"""Frameworks, and generations of them, that differ in what they can run (`presets/known/rule_sets.toml`)."""


@dataclass(frozen=True)
class RuntimeSpec:
    """How the training framework runs a step."""

    name: str  #: the framework whose behaviour these switches describe.
    memory: MemoryProfile  #: what the framework keeps in memory.
    #: kernels that the framework asks for: `native` (fused, made for the GPU: cuDNN, FlashAttention-3), `sdpa`
    #: (PyTorch's choice: cuDNN on Hopper and Blackwell, else FlashAttention-2; `sdpa2025`: cuDNN on Blackwell alone),
    #: `flex` (PyTorch's FlexAttention or varlen attention), `flash3` (on Hopper) and `flash4` (on Hopper and
    #: Blackwell), elsewhere FlashAttention-2, `cudnn9` (before release 9.11), `cudnn8`, `flash2` or `flash1` (fused, of
    #: older generations), `unfused` (score matrix in memory, masked half computed too), or a name that users give
    #: (`KERNELS_OF`); `JobSpec.attention` is what runs.
    attention: Annotated[str, among(*ATTENTION_KERNELS)]
    #: which of `norm`, `rotary`, `activation` and `loss` run as chains of eager PyTorch operations, compiled or not;
    #: with `bias`, gradients of biases are sums of their own rather than by-products of weight gradients (Transformer
    #: Engine, epilogue BGRADB of cuBLASLt).
    eager: tuple[Annotated[str, among(*EAGER)], ...]
    dropout: bool  #: dropout after attention, projection and MLP (GPT-3 recipes; Llama recipes have none).
    wgrad_fusion: bool  #: weight gradients are added onto their sums inside the GEMM; otherwise by a kernel of its own.
    #: cross entropy `standard` (in place, fp32), `fused` (one kernel each way, on 16-bit logits), or with the LM head
    #: `chunked` or `linear` (one kernel).
    loss: Annotated[str, among(*LOSSES)]
    overlap_tp: bool  #: TP collectives are pipelined with the GEMM beside them (Megatron `tp_comm_overlap`).
    async_tp_reduce: bool  #: without SP, the backward AllReduce of TP runs beside the weight gradient.
    overlap_grad_reduce: bool  #: gradient reduction runs under the backward pass.
    overlap_param_gather: bool  #: parameter gathering runs under the forward pass.
    cp_comm: CpComm  #: how context-parallel ranks exchange keys and values (`gpuscale.layouts.ranks`).
    scatter_pipeline: bool  #: without SP, each TP rank sends 1/TP of a pipeline transfer, gathered on the other side.
    sequence_parallel: bool  #: whether TP comes with sequence parallelism when nothing is said.
    zero_stage: Annotated[int, Field(ge=0, le=3)]  #: the ZeRO stage when nothing is said.
    #: share of a layer's forward pass that the framework's own `selective` recomputes where that is no set of modules
    #: (torchtitan: every other matrix product or layer); 0 for modules.
    selective_share: Annotated[float, Field(ge=0, le=1)]
    #: of the expert exchange: `alltoall` sends every copy of a token over the network, `deepep` and `hybridep` one per
    #: node, forwarded over NVLink.
    dispatcher: Annotated[str, among(*DISPATCHERS)]
    #: the expert exchange of one microbatch runs beside the computation of another (Megatron
    #: `overlap_moe_expert_parallel_comm`): the CPU issues two at once.
    overlap_ep: bool
    #: `none`, `partial` (attention, router and the like are replayed, experts issued one by one) or `full` (whole
    #: iterations are replayed: nothing waits for the CPU).
    cuda_graphs: Annotated[str, among("none", "partial", "full")]
    #: how layers are dealt out to stages: `even`; `tapered`, fewer on the last stage where a mixture of experts starts
    #: with dense layers (NVIDIA's recipes); or by `cost` with the LM head counted (nanotron).
    pipeline_split: PipelineSplit
    #: how fp8 operands are quantised when nothing is said, as `JobSpec.recipe`.
    fp8_recipe: Annotated[str, among("delayed", "current", "blockwise", "mx")]
    #: CPU time to issue the forward pass of one dense layer; as much for the backward pass, and in proportion to
    #: kernels [s].
    host_layer_s: Annotated[float, Field(alias="host_layer_us", ge=0, le=1)]
    #: CPU time to issue one collective [s].
    host_collective_s: Annotated[float, Field(alias="host_collective_us", ge=0, le=1)]
    #: CPU time of one recomputed layer: saving and restoring random states [s].
    host_checkpoint_s: Annotated[float, Field(alias="host_checkpoint_us", ge=0, le=1)]
    #: CPU time to issue the forward pass of one layer with experts, which adds to the GPU's where the CPU has waited
    #: for the counts of their tokens [s].
    host_moe_s: Annotated[float, Field(alias="host_moe_us", ge=0, le=1)]
    #: time of one microbatch on the last stage that nothing hides: loss, data, synchronisation [s].
    host_microbatch_s: Annotated[float, Field(alias="host_microbatch_us", ge=0, le=1)]
    #: CPU time per token of a microbatch that nothing hides: a loop that asks the GPU for each [s].
    host_token_s: Annotated[float, Field(alias="host_token_us", ge=0, le=1)] = 0.0
    #: a `linear` loss keeps no gradients: its backward pass works out the logits anew, by chunks, in eager operations,
    #: and the gradient of the LM head whether that is trained or not.
    logits_again: bool = False
    #: which of `RULE_SETS` says what the framework can run; without one it is held to arithmetic alone.
    rule_set: Annotated[str, among(*RULE_SETS)] = "generic"
    #: without ZeRO PyTorch's DistributedDataParallel reduces gradients under the backward pass whatever
    #: `overlap_grad_reduce` says.
    ddp_without_zero: bool = False
    #: weights are quantised anew in every pass, as they come from FSDP's gathers; else once a step (Transformer
    #: Engine), which is not counted.
    casts_weights: bool = False
    #: precision -> bytes per parameter in which gradients are reduced under it, where that differs from
    #: `StateBytes.gradient` [bytes].
    reduced_gradient_bytes: Mapping[LowPrecision, Annotated[float, Field(ge=1, le=8)]] = field(
        default_factory=dict, hash=False
    )
    #: precisions under which ZeRO's gradients are AllReduced rather than ReduceScattered.
    reduced_whole: tuple[LowPrecision, ...] = ()
    #: traffic per parameter of copying into and out of ZeRO-3's buffers, per microbatch [bytes].
    shard_copy_bytes: Annotated[float, Field(ge=0, le=64)] = 0.0
    #: under ZeRO-3 with recomputation, parameters until a module's next use within which it keeps its own (DeepSpeed's
    #: `stage3_max_reuse_distance`); 0: from recomputation to the backward pass.
    reuse_parameters: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    #: CPU time of one parameter tensor and rank where ZeRO shards every tensor by itself (nanotron) [s].
    host_shard_s: Annotated[float, Field(alias="host_shard_us", ge=0, le=1)] = 0.0
    #: CPU time per parameter tensor in every optimizer step, while the GPU waits: norm, update, copy and clearing are
    #: loops over tensors around a synchronisation; experts of a grouped product are tensors of their own where these
    #: loop over them (`host_expert_s`) [s].
    host_tensor_s: Annotated[float, Field(alias="host_tensor_us", ge=0, le=1)] = 0.0
    #: CPU time to issue one kernel of one expert, where grouped products loop over the experts; 0 where one launch has
    #: all, or `host_moe_s` includes it [s].
    host_expert_s: Annotated[float, Field(alias="host_expert_us", ge=0, le=1)] = 0.0
    #: time to give all cached blocks of a full GPU back and to allocate them anew; 0 where not seen [s].
    allocator_retry_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    #: ZeRO-1 and 2 gather updated parameters behind the optimizer step, unhidden; not FSDP, which gathers layer by
    #: layer.
    gathers_after_step: bool = False
    #: ZeRO does on one GPU what it does on several: FSDP2 gathers layer by layer, DeepSpeed fills its buckets.
    zero_alone: bool = False
    #: when ZeRO-3 gives gathered parameters back after the forward pass, if no stage is asked for; where it does not,
    #: it is ZeRO-2.
    reshard: Annotated[str, among(*RESHARDS)] = "always"
    transport: Annotated[str, among(*TRANSPORTS)] = "nvshmem"  #: what DeepEP sends by, one of `TRANSPORTS`.
    #: whether ZeRO-2 and 3 reduce gradients in each microbatch or only in the last, and keep them whole until then.
    grad_reduce: Annotated[str, among(*GRAD_REDUCES)] = "each"
    #: precision in which inputs of gated activation functions wait for the backward pass (DeepSeek-V3; Megatron-LM
    #: `activation_func_fp8_input_store`).
    swiglu_input_dtype: Annotated[str, among("bf16", "fp8")] = "bf16"
    #: whether torch.compile fuses what `eager` does not name; None where kernels of the framework do.
    compile: bool | None = None
    #: which of `EAGER` have kernels of the framework's own, compiled or not.
    kernels: tuple[Annotated[str, among(*EAGER)], ...] = ()
    #: grouped products read the sizes of their groups from GPU memory (torch._grouped_mm): the CPU waits for them only
    #: where an exchange does.
    sizes_on_gpu: bool = False
    #: data type of frozen weights -> traffic per weight of making it 16-bit, if more than one reading and writing
    #: [bytes].
    unpacked_bytes: Mapping[Annotated[str, among("int4", "int8", "nf4")], Annotated[float, Field(gt=0, le=256)]] = (
        field(default_factory=dict, hash=False)
    )
    #: how adapters run: `plain` operations, those of `peft`, with casts to fp32 and back, or `fused` kernels.
    adapters: Annotated[str, among("plain", "peft", "fused")] = "plain"
    #: inputs of adapters go through dropout when nothing is said.
    lora_dropout: bool = False
    #: products with matrices quantised by bitsandbytes keep inputs that no gradient needs.
    keeps_quantised_inputs: bool = False
    #: beside frozen weights, what is trained is 16-bit, with its gradients and moments.
    trains_in_16_bits: bool = False
    #: data type in which frozen weights are stored when nothing is said.
    frozen_dtype: Annotated[str, among("16-bit", "fp32")] = "16-bit"
    #: whether a recomputed layer stops before its last product, once all is there that gradients need: `no`, `yes`
    #: (PyTorch's non-reentrant checkpoints, JAX) or `compiled` (where compiled).
    recompute_stops_early: Annotated[str, among("no", "compiled", "yes")] = "no"
    #: `dropless`, or `dropping`: every expert takes a fixed number of tokens, which the CPU knows.
    routing: Annotated[str, among(*ROUTINGS)] = "dropless"

    def split_as(self, others: Iterable[Self]) -> tuple[str, ...]:
        """Return the others' kinds of context parallelism that split some sequences as this one's."""
        kinds = {one.cp_comm for one in others}
        return tuple(kind for kind in ("a2a", "p2p") if kind in kinds) if self.cp_comm == "a2a+p2p" else ()

    @property
    def unfused(self) -> tuple[str, ...]:
        """What runs as chains of eager operations: `eager`, or all but `kernels` where nothing is compiled."""
        return tuple(name for name in EAGER if name not in self.kernels) if self.compile is False else self.eager

    @property
    def loss_kernels(self) -> str:
        """How the cross entropy runs: `eager`, `standard` (in place), `compiled`, `fused`, or `again` (`logits_again`);
        a kernel of its own needs no compiler."""
        if self.loss == "linear" and self.logits_again:
            return "again"
        kernel = self.loss == "linear" or (self.loss == "fused" and self.rule_set not in COMPILED_LOSSES)
        if "loss" in (self.eager if kernel else self.unfused):
            return "eager"
        if self.loss == "standard":
            return "compiled" if self.compile else "standard"
        return "fused"

    @property
    def loss_peak_bytes(self) -> float:
        """Bytes per logit at the peak of the loss; compiled code keeps no copies between its operations, eager code
        all of them."""
        kernels, own = self.loss_kernels, self.memory.loss_bytes
        if self.loss == "standard":
            return min(own, LOSS_PEAK_BYTES["fused"]) if kernels == "compiled" else own
        return own if self.loss == "fused" and kernels == "eager" else LOSS_PEAK_BYTES[self.loss]


OF_EXPERTS_ALONE = ("overlap", "cuda_graphs", "dispatcher")
"""Options that users set for mixtures of experts: dense models hardly wait for the CPU, and exchange nothing."""


@dataclass(frozen=True)
class SpaceSpec:
    """What a framework can run beside what it does when nothing is said, by the name of the option of a plan."""

    #: precisions of the layers' GEMMs.
    precision: tuple[Annotated[str, among("bf16", "fp16", "fp8", "nvfp4")], ...] = ()
    offload: tuple[Text, ...] = ()  #: what is kept in host memory.
    #: data types below fp32 in which the optimizer keeps moments that ZeRO shards.
    moment_dtype: tuple[Annotated[str, among("bf16", "fp16", "fp8")], ...] = ()
    cp_comm: tuple[CpComm, ...] = ()  #: exchanges of context parallelism.
    #: pipeline schedules.
    schedule: tuple[Annotated[str, among("gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe")], ...] = ()
    axis_order: tuple[Text, ...] = ()  #: orders of the parallel axes.
    pipeline_split: tuple[PipelineSplit, ...] = ()  #: ways to deal out layers to stages.
    overlap: tuple[Annotated[str, among("tp", "dp", "ep")], ...] = ()  #: communication that can run beside computation.
    cuda_graphs: tuple[Annotated[str, among("partial", "full")], ...] = ()  #: what CUDA graphs can replay.
    dispatcher: tuple[Annotated[str, among(*DISPATCHERS)], ...] = ()  #: ways to exchange tokens of experts.
    grad_reduce: tuple[Annotated[str, among("each", "last")], ...] = ()  #: when ZeRO-2 and 3 reduce gradients.
    #: those that its users set where they pay, those of experts for mixtures of experts: a plan tries them.
    usual: tuple[Annotated[str, among(*OF_EXPERTS_ALONE, "grad_reduce")], ...] = ()


@dataclass(frozen=True)
class FrameworkSpec:
    """A training framework: how it runs a step, and what it can run."""

    name: str  #: of the profile.
    title: Text  #: name for people.
    runtime: RuntimeSpec  #: how it runs a step.
    states: StateBytes  #: bytes per parameter that it keeps when nothing is said.
    vocab_multiple: Annotated[int, Field(ge=1, le=65536)]  #: the vocabulary is padded to a multiple of this times TP.
    space: SpaceSpec  #: what it can run beside.
    launch: tuple[Text, ...] = ()  #: options of the framework that make it run as the profile says.
    aliases: tuple[Text, ...] = ()  #: other names.


@dataclass(frozen=True)
class OffloadSpec:
    """What is kept in host memory rather than on the GPU."""

    #: master weights and moments, and the optimizer step itself runs on the CPU; under ZeRO-2 and 3 the gradients too.
    optimizer: bool = False
    parameters: bool = False  #: under ZeRO-3 the shards of the parameters.
    activations: float = 0.0  #: share of the saved activations [0-1].

    @property
    def any(self) -> bool:
        """Whether anything is kept in host memory."""
        return self.optimizer or self.parameters or self.activations > 0


HOST_USABLE = 0.9
"""Share of a host's memory that offloading may fill: the rest is for system, data loading, pinned staging
(guesstimate)."""


@dataclass(frozen=True)
class JobSpec:
    """A training job on a cluster."""

    model: ModelSpec  #: what is trained.
    cluster: ClusterSpec  #: on what.
    gpus: int  #: GPUs of the job; at most `cluster.gpus`.
    sequence: int  #: tokens per sequence.
    global_batch_size: int  #: sequences per optimizer step.
    precision: str  #: precision of the layers' GEMMs; attention and LM head stay in bf16 under fp8 and fp4.
    states: StateBytes  #: bytes per parameter of each training state.
    runtime: RuntimeSpec  #: how the framework runs a step.
    vocab_multiple: int  #: the vocabulary is padded to a multiple of this times TP.
    memory_limit_bytes: float  #: memory of one GPU that may be in use at most [bytes].
    moe_imbalance: float  #: tokens of the busiest expert-parallel rank over the mean (1 = balanced).
    offload: OffloadSpec = OffloadSpec()  #: what is kept in host memory.
    #: how operands of GEMMs below 16 bits are quantised, one of `gpuscale.steptime.kernels.RECIPES`.
    recipe: str = "delayed"
    #: parallel axes of `AXES`, from neighbouring ranks outwards (`gpuscale.layouts.ranks`).
    axis_order: tuple[str, ...] = AXES
    #: what is counted of towers beside the language model, one of `TOWERS`; parameters alone.
    tower: Annotated[str, among(*TOWERS)] = "none"
    tight: bool = False  #: plans may take all of the memory, not only what the usual fragmentation leaves.
    #: bytes of activations, logits and what else comes and goes, over what is predicted of them.
    transient_factor: float = 1.0
    tuning: TuningSpec | None = None  #: what is trained of a model whose other weights are frozen; None: all of it.
    lengths: LengthsSpec | None = None  #: of the samples; None where all are as long as the sequence.
    method: MethodSpec = SFT  #: what a step runs beside the forward and backward pass over its sequences.
    teacher: ModelSpec | None = None  #: frozen model whose forward pass gives the logits to learn from.
    projection: ProjectionSpec | None = None  #: how gradients are projected before the optimizer; None: they are not.
    site: SiteSpec | None = None  #: what measured runs add to the step time; None where there are none.

    def trains(self, part: str) -> bool:
        """Whether a part of the model, one of `gpuscale.specs.tuning.TRAINED`, is trained whole."""
        return self.tuning is None or part in self.tuning.trained

    @property
    def flop_convention(self) -> str:
        """Which FLOPs are counted, and against which peak."""
        text = FLOP_CONVENTION
        if self.tuning is not None:
            text = text.replace("incl. LM head", "incl. LM head and adapters (of frozen weights 2 x)")
        passes = "recomputation and passes without gradients not counted"
        more = self.method.forwards or self.teacher is not None
        return text.replace("recomputation not counted", passes) if more else text

    @cached_property
    def teaching(self) -> Self | None:
        """The job as the teacher sees it, None without one: its forward pass beside the student's, in 16 bits. It
        predicts no further tokens, and the CPU's work per microbatch is the student's."""
        if self.teacher is None:
            return None
        mtp = self.teacher.mtp and replace(self.teacher.mtp, trained=False)
        runtime = replace(self.runtime, host_microbatch_s=0.0, host_token_s=0.0)
        return replace(
            self, model=replace(self.teacher, mtp=mtp), teacher=None, method=TEACHING, tuning=None, tower="none",
            precision=self.attention_precision, runtime=runtime,
        )  # fmt: skip

    @property
    def trains_tied_embedding(self) -> bool:
        """Whether input embedding and LM head are one matrix that is trained: beside adapters, if both are."""
        return self.model.tied_embeddings and self.trains("embeddings") and self.trains("head")

    @property
    def attended_sequence(self) -> float:
        """Length of a sequence with as many keys per token as its packed samples have [tokens]."""
        packed = self.lengths is not None and self.lengths.packed
        return min(self.lengths.attended, self.sequence) if packed and self.lengths else self.sequence

    @property
    def frozen_is_tower(self) -> bool:
        """Whether what is frozen is towers alone."""
        return self.frozen_tower > 0 and self.tuning is None and not self.reference_bytes

    @property
    def reference_bytes(self) -> float:
        """Bytes per parameter of a reference model that is held beside the trained one; 0 without."""
        return 2.0 if self.method.reference and self.tuning is None else 0.0

    @property
    def widens(self) -> bool:
        """Whether frozen weights that are not quantised, and with them the residual stream, are made 32-bit; beside
        GPTQ's they stay (peft, `is_gptq_quantized`)."""
        quantised = self.tuning is not None and self.tuning.quantised and self.tuning.base != "int4"
        return quantised and self.runtime.memory.widens_beside_quantised

    @property
    def whole_share(self) -> float:
        """States of what is trained whole beside adapters over those of adapters, per parameter: half, where these are
        32-bit and it is a copy of a 16-bit module (`MemoryProfile.keeps_originals`)."""
        copied = self.tuning is not None and self.runtime.memory.keeps_originals
        wide = self.widens or self.precision in WIDE or not self.states.master
        return 0.5 if copied and not wide else 1.0

    @property
    def comfortable_bytes(self) -> float:
        """What the usual fragmentation leaves of a GPU's memory."""
        return self.memory_limit_bytes * (1 - MEMORY_HEADROOM)

    @property
    def plans_limit_bytes(self) -> float:
        """Memory of one GPU that plans may take."""
        return self.memory_limit_bytes if self.tight else self.comfortable_bytes

    def fit(self, memory_bytes: float, host_bytes: float) -> str:
        """Say of what a GPU and a host hold whether it `fits`, is `tight` (may fragment), or does not (`no`)."""
        if memory_bytes > self.memory_limit_bytes or host_bytes > self.host_limit_bytes:
            return "no"
        return "fits" if memory_bytes <= self.comfortable_bytes else "tight"

    @property
    def host_limit_bytes(self) -> float:
        """Host memory that offloading may fill on one host."""
        return self.cluster.host.memory_bytes * HOST_USABLE if self.cluster.host else 0.0

    @property
    def caveats(self) -> tuple[str, ...]:
        """What an answer should say of the model that is not modelled, and of GPUs that nobody measured."""
        return (*self.model.caveats_with(self.tower), *self.cluster.caveats)

    @property
    def trained_tower(self) -> int:
        """Parameters of towers that are trained."""
        return self.model.counted_tower if self.tower == "trained" else 0

    @property
    def frozen_tower(self) -> int:
        """Parameters of towers whose weights are held and not trained."""
        return self.model.counted_tower if self.tower == "frozen" else 0

    @property
    def frozen_tower_bytes(self) -> float:
        """Bytes of their weights before sharding: of the type of frozen weights beside them, or of trained ones."""
        each = self.states.master or self.states.weight if self.runtime.memory.master_is_weight else self.states.weight
        return self.frozen_tower * (self.tuning.beside_bytes if self.tuning else each)

    @property
    def network(self) -> LevelSpec | None:
        """The innermost level of the network that the job crosses; None where it stays inside a box or rack."""
        outside = (level for level in self.cluster.levels if level.fabric not in INSIDE)
        return next(outside, None) if self.gpus > self.cluster.levels[self.cluster.domain_index].gpus else None

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step."""
        return self.sequence * self.global_batch_size

    def vocabulary_rows(self, tp: IntArray) -> IntArray:
        """Rows of the vocabulary on one TP rank: it is padded to a multiple of `vocab_multiple` x TP
        (Megatron-LM `make-vocab-size-divisible-by`)."""
        return -(-self.model.vocab // (self.vocab_multiple * tp)) * self.vocab_multiple

    def busiest_expert_rank(self, ep: IntArray) -> FloatArray:
        """Tokens of the busiest expert-parallel rank over the mean; 1 where one rank has all experts."""
        return np.where(ep > 1, self.moe_imbalance, 1.0)

    @property
    def reduced_gradient_bytes(self) -> float:
        """Bytes per parameter in which gradients travel between data-parallel ranks."""
        return dict(self.runtime.reduced_gradient_bytes).get(self.precision, self.states.gradient)

    @property
    def activation_bytes(self) -> int:
        """Bytes of an activation, of its gradient, of a weight as products read it and of its gradient before it is
        accumulated: 16 bits (inputs of 8-bit products may be saved in 8, `MemoryProfile`), or 32."""
        return 4 if self.precision in WIDE else 2

    @property
    def attention(self) -> str:
        """The attention kernels that run on this GPU where the framework asks for `RuntimeSpec.attention`. On AMD GPUs
        and TPUs every fused kernel is one made for them (Composable Kernel, AOTriton). Before Ampere no library has
        fused kernels but PyTorch, whose memory-efficient ones are of the first generation (flash-attn README;
        Transformer Engine, requirements; PyTorch sdp_utils.cpp), as for operands of 32 bits. On Blackwell cuDNN trains
        heads whose keys are wider than their values (multi-head latent attention) since release 9.11 of mid-2025, and
        Transformer Engine takes no other kernels for them (common/fused_attn, nvte_get_fused_attn_backend; flash-attn
        wants equal widths)."""
        asked, architecture = self.runtime.attention, self.cluster.gpu.architecture
        asked = KERNELS_OF.get(asked, asked)
        if asked == "unfused":
            return asked
        if architecture in PRE_AMPERE or self.precision in WIDE:
            return "unfused" if asked in {"native", "cudnn9", "cudnn8"} else "flash1"
        if self.cluster.gpu.vendor != "NVIDIA":
            return "native"
        blackwell = architecture in BLACKWELL
        if asked in {"sdpa", "sdpa2025"}:
            return "native" if blackwell or (asked == "sdpa" and architecture == "hopper") else "flash2"
        if asked in {"cudnn9", "cudnn8"} and blackwell:
            return "unfused" if self.model.uneven_heads else "native"
        if asked in {"flash3", "flash4"}:
            return "native" if architecture == "hopper" or (asked == "flash4" and blackwell) else "flash2"
        if asked == "flex" and blackwell and self.model.uneven_heads:
            return "native"
        return {"flex": "flash2", "cudnn9": "native"}.get(asked, asked)

    def attention_of(self, kind: AttentionSpec) -> str:
        """The kernels of one layer's attention: PyTorch's own know no windows, chunks or sinks, for which FlexAttention
        compiles kernels that are about as fast as FlashAttention-2 (PyTorch blog, FlexAttention, August 2024)."""
        special = (kind.window is not None or kind.sinks) and self.runtime.attention in {"sdpa", "sdpa2025"}
        replaced = special and self.attention == "native" and self.cluster.gpu.vendor == "NVIDIA"
        return "flash2" if replaced else self.attention

    @property
    def attention_precision(self) -> str:
        """Precision of attention, LM head and communication: that of the job, but never below 16 bits."""
        return "bf16" if self.precision in {"fp8", "fp4"} else self.precision

    def of_layer(self, kind: LayerSpec) -> Self:
        """The job as one kind of layer sees it: in 16 bits where the model's own recipes keep that kind there."""
        return replace(self, precision=self.attention_precision) if self.precision in kind.wide_under else self
