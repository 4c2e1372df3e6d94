"""A job and its layout as Megatron-LM's arguments have them, both ways; its relatives name the same things otherwise.

Names and rules: NVIDIA/Megatron-LM at d98e8a64ddf3 (2026-08), megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.megatron_models import IDLE, Arguments, model_arguments, read_model
from gpuscale.launch.settings import DTYPES, GROWING_BATCH, OFF, Reading
from gpuscale.launch.shapes import MEGATRON, nearest_split, read_attention
from gpuscale.launch.writing import Writing
from gpuscale.layouts.arrays import RECOMPUTE_MODULES
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.models import load_model
from gpuscale.request import overlap_name
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.specs.gpu import BEFORE_HOPPER, BLACKWELL

FP8_RECIPES = {"delayed": "delayed", "current": "tensorwise", "blockwise": "blockwise", "mx": "mxfp8"}
PRECISION_OF = {argument: "mxfp8" if own == "mx" else f"fp8-{own}" for own, argument in FP8_RECIPES.items()}
"""Recipe of the physics -> `--fp8-recipe` -> precision as users give it."""

OPTIONS = FRAMEWORKS["megatron-lm"].options

FULL_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
STAGE_OF = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stage -> `--data-parallel-sharding-strategy` of Megatron-FSDP, and back."""

OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd-momentum": "sgd", "sgd": "sgd", "muon": "dist_muon", "lion": "lion"}

ORDERS = {"tp-cp-ep-dp-pp": False, "tp-cp-ep-pp-dp": True}
"""Order of the axes -> `--use-tp-pp-dp-mapping`."""


def job_arguments(writing: Writing) -> Arguments:
    """Return all arguments of a plan: the model, the split and how a step runs; what has none is refused."""
    found = model_arguments(writing)
    found |= writing.told(OPTIONS, {"sp": bool(writing.layout.sp)})
    if not writing.model.is_moe:
        found.pop("expert_model_parallel_size")
    for part in (_pipeline, _sharding, _precision, _states, _recompute, _kernels, _experts, _offload, _context):
        found |= part(writing)
    if writing.spec.runtime.transport == "uccl" and writing.model.is_moe:
        writing.refuse("transport", "which library DeepEP sends by is chosen when it is installed")
    return found


def _pipeline(writing: Writing) -> Arguments:
    layout, plan = writing.layout, writing.plan
    vpp = layout.vpp or 1
    found: Arguments = {}
    if plan.pipeline_layout:
        found["pipeline_model_parallel_layout"] = plan.pipeline_layout
    elif vpp > 1:
        found["num_virtual_stages_per_pipeline_rank"] = vpp
    order = "-".join(writing.spec.axis_order)
    if ORDERS.get(order) is None:
        writing.refuse("axis_order", f"it knows the orders {' and '.join(ORDERS)} (--use-tp-pp-dp-mapping)")
    return found | ({"use_tp_pp_dp_mapping": True} if ORDERS.get(order) else {})


def _sharding(writing: Writing) -> Arguments:
    layout, runtime = writing.layout, writing.spec.runtime
    ranks, zero = (layout.dp or 1) * layout.cp, layout.zero or 0
    muon = writing.asked("optimizer") == "muon"  # shards its states itself as dist_muon
    sharded = bool(zero) or writing.spec.offload.optimizer  # which the argument alone allows, for one replica too
    found: Arguments = {"use_distributed_optimizer": True} if sharded and not muon else {}
    if muon and (zero > 1 or (zero and layout.shard != ranks)):
        writing.refuse("optimizer", "Muon excludes the distributed optimizer, its replicas and FSDP (arguments.py)")
    if zero > 1:
        found |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": FULL_SHARDING[zero]}
        found |= {"ckpt_format": "fsdp_dtensor"}
    replicas = ranks // (layout.shard or ranks) if zero else 1
    found |= {"num_distributed_optimizer_instances": replicas} if replicas > 1 else {}
    found |= {"overlap_grad_reduce": True} if runtime.overlap_grad_reduce else {}
    if runtime.overlap_param_gather and zero:
        found |= {"overlap_param_gather": True}
    if runtime.overlap_grad_reduce != runtime.overlap_param_gather:
        writing.refuse("overlap", "gradients and parameters are hidden together or not at all")
    return found


def _precision(writing: Writing) -> Arguments:
    spec = writing.spec
    if spec.precision in {"bf16", "fp16"}:
        return {spec.precision: True}
    if spec.precision == "fp32":
        return {}
    if spec.precision == "fp8":
        found: Arguments = {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": FP8_RECIPES[spec.recipe]}
        gathers = spec.runtime.memory.fp8_weight_bytes < 4.0 and bool(writing.layout.zero)
        gathers &= not spec.offload.optimizer or spec.recipe == "delayed"  # arguments.py:1884
        return found | ({"fp8_param_gather": True} if gathers else {})
    if spec.precision == "fp4":
        return {"bf16": True, "fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    writing.refuse("precision", f"it does not train in {spec.precision}")
    return {}


def _states(writing: Writing) -> Arguments:
    asked = writing.asked
    gradients, master, moments = asked("grad_dtype"), asked("master_dtype"), asked("moment_dtype")
    optimizer = str(asked("optimizer"))
    if optimizer not in OPTIMIZERS:
        writing.refuse("optimizer", f"--optimizer is one for {', '.join(OPTIMIZERS)} (optimizer = {optimizer})")
    found: Arguments = {"optimizer": OPTIMIZERS.get(optimizer, "adam")}
    if optimizer == "muon" and not writing.layout.zero:
        found["optimizer"] = "muon"
    found |= {"sgd_momentum": 0.0} if optimizer == "sgd" else {}
    wide = writing.spec.precision in {"fp32", "tf32"}
    if gradients == "fp32" and not wide:
        found["accumulate_allreduce_grads_in_fp32"] = True
    elif gradients == "bf16":
        found["grad_reduce_in_bf16"] = True
    elif gradients == "fp16" and writing.spec.precision != "fp16":
        writing.refuse("grad_dtype", "fp16 gradients come with fp16 parameters alone (arguments.py)")
    if master not in {"fp32", "fp16"}:
        writing.refuse("master_dtype", "--main-params-dtype is fp32 or fp16")
    fp8 = {"activation_func_fp8_input_store": True} if writing.spec.runtime.swiglu_input_dtype == "fp8" else {}
    return found | _aware(writing, found["optimizer"], (gradients, master, moments)) | fp8


def _aware(writing: Writing, optimizer: str, dtypes: tuple[str, str, str]) -> Arguments:
    """Return what the optimizer has that counts with states of fewer bits, and whose states may be on the host."""
    (gradients, master, moments), offloaded = dtypes, writing.spec.offload.optimizer
    found: Arguments = {"main_params_dtype": master} if master != "fp32" else {}
    found |= {"exp_avg_dtype": moments, "exp_avg_sq_dtype": moments} if moments != "fp32" else {}
    for name, dtype in (("master_dtype", master), ("moment_dtype", moments)):
        if dtype != "fp32" and (not writing.layout.zero or optimizer != "adam"):
            writing.refuse(name, "--use-precision-aware-optimizer is for Adam and the distributed optimizer")
    if offloaded and optimizer != "adam":
        writing.refuse("offload", "--optimizer-cpu-offload comes with --use-precision-aware-optimizer, which is Adam's")
    if (writing.layout.zero or offloaded) and optimizer == "adam":
        found |= {"main_grads_dtype": "bf16"} if gradients == "bf16" else {}
        found |= {"use_precision_aware_optimizer": True} if found or offloaded else {}
    return found


def _recompute(writing: Writing) -> Arguments:
    kind, _, detail = writing.layout.recompute.partition(":")
    if kind == "full":
        spec, layout = writing.spec, writing.layout
        per_stage, chunks = -(-spec.model.layers // layout.pp), layout.vpp or 1
        layers = int(detail or per_stage)
        found: Arguments = {"recompute_granularity": "full"}
        if layers >= per_stage:
            return found | {"recompute_method": "uniform", "recompute_num_layers": 1}
        return found | {"recompute_method": "block", "recompute_num_layers": layers // chunks}
    if kind == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": detail.split("+")}
    return {}


def _kernels(writing: Writing) -> Arguments:
    runtime, layout = writing.spec.runtime, writing.layout
    found: Arguments = {"transformer_impl": "transformer_engine", "use_mcore_models": True, "use_flash_attn": True}
    if runtime.loss in {"chunked", "linear"}:
        writing.refuse("loss", "the cross entropy works on the logits of a whole microbatch")
    found["cross_entropy_loss_fusion"] = runtime.loss == "fused"  # recipes have it on
    found |= {"cross_entropy_fusion_impl": "native"} if runtime.loss == "fused" else {}
    if not runtime.wgrad_fusion:
        found["no_gradient_accumulation_fusion"] = True
    if _overlaps_tp(writing):
        found["tp_comm_overlap"] = True
    if not runtime.dropout:
        found |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    if kernels := writing.asked("attention"):
        found["attention_backend"] = MEGATRON[kernels]
    if runtime.cuda_graphs == "full":
        found["cuda_graph_impl"] = "full_iteration"
    elif runtime.cuda_graphs == "partial":
        whole = "moe" in layout.recompute.partition(":")[2].split(
            "+"
        )  # recomputed with their router, outside of graphs
        routers = ["moe_router"] * (writing.model.is_moe and not whole)
        found |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", *routers]}
    return found


def _experts(writing: Writing) -> Arguments:
    runtime, layout = writing.spec.runtime, writing.layout
    if not writing.model.is_moe:
        return {}
    found: Arguments = {"expert_tensor_parallel_size": layout.etp}
    if runtime.dispatcher == "alltoall":
        found["moe_token_dispatcher_type"] = "alltoall"
    else:
        found |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": runtime.dispatcher}
    if runtime.routing == "dropping":
        found |= {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    if runtime.overlap_ep:
        found |= {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}  # as `overlap_ep` counts it
    return found


def _offload(writing: Writing) -> Arguments:
    offload, layers = writing.spec.offload, writing.model.layers
    found: Arguments = {}
    if offload.optimizer:
        found |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    if offload.activations:
        whole = round(offload.activations * layers)
        if abs(whole / layers - offload.activations) > 0.0 or not 0 < whole < layers or writing.layout.pp > 1:
            why = "--cpu-offloading-num-layers takes whole layers, less than all, and PP 1 (transformer_config.py:1884)"
            writing.refuse("offload", why)
        elif writing.layout.recompute != "none":
            writing.refuse("offload", "--cpu-offloading-num-layers excludes recomputation (transformer_config.py:1884)")
        found |= {"cpu_offloading_num_layers": whole}
    return found


def _context(writing: Writing) -> Arguments:
    layout, runtime = writing.layout, writing.spec.runtime
    if layout.cp == 1:
        return {}
    found: Arguments = {"cp_comm_type": runtime.cp_comm}
    if runtime.cp_comm == "a2a+p2p":
        cluster = writing.spec.cluster
        inside = max(1, min(layout.cp, cluster.levels[cluster.domain_index].gpus // layout.tp))
        found["hierarchical_context_parallel_sizes"] = [str(inside), str(layout.cp // inside)]
    return found


def connections(writing: Writing) -> dict[str, tuple[str, str]]:
    """Return the environment that Megatron-LM asks for with a plan: variable -> value and reason."""
    layout, gpu = writing.layout, writing.spec.cluster.gpu
    if (layout.zero or 0) > 1 or gpu.architecture in BLACKWELL or layout.tp * layout.cp == 1:
        return {}
    why = "before Blackwell TP and CP need it: collectives start in the order they are issued (arguments.py:1453)"
    found = {"CUDA_DEVICE_MAX_CONNECTIONS": ("1", why)}
    if gpu.architecture in BEFORE_HOPPER and _overlaps_tp(writing):
        found["UB_SKIPMC"] = ("1", NO_MULTICAST)
    return found


NO_MULTICAST = (
    "without multicast, before Hopper, tp_comm_overlap stops; with this it maps peers' memory, which is slower "
    "(Transformer Engine, examples/pytorch/comm_gemm_overlap)"
)


def _overlaps_tp(writing: Writing) -> bool:
    return bool(writing.spec.runtime.overlap_tp and writing.layout.tp > 1 and writing.layout.sp)


# --- reading


def read_job(reading: Reading, framework: str) -> None:
    """Read Megatron-LM's arguments, under the names of their destinations, into a job and its layout.

    Raises:
        InputError: a value that makes no sense, or a model that is not modelled.
    """
    reading.options["framework"] = framework
    read_model(reading)
    named = reading.options.get("model") or reading.given.get("model")
    if named and "layers" not in reading.shape:
        reading.shape["layers"] = load_model(str(named)).layers
    reading.take(OPTIONS)
    grows = reading.get(*GROWING_BATCH) if "gbs" not in reading.options else None
    if grows:
        reading.assume("the batch grows: give the one that is meant with `gbs`", grows.name)
    if reading.layout.get("tp", 1) == 1:
        reading.means("nothing to split: TP is 1", "sequence_parallel")
    for part in (
        _read_sharding, _read_precision, _read_states, _read_pipeline, _read_recompute, _read_kernels, _read_experts,
        _read_offload, _read_context,
    ):  # fmt: skip
        part(reading)


def _read_sharding(reading: Reading) -> None:
    strategy = reading.text("data_parallel_sharding_strategy", known=tuple(STAGE_OF))
    of: tuple[str, ...] = (
        "use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2", "data_parallel_sharding_strategy",
        "use_layer_wise_distributed_optimizer", *RESHARDS,
    )  # fmt: skip
    overlapped = reading.flag("overlapped_distributed_optimizer")  # Megatron-LLaMA's
    distributed = overlapped or reading.flag(of[0]) or reading.flag(of[4])
    of = (*of, "overlapped_distributed_optimizer") if overlapped else of
    if reading.flag("use_megatron_fsdp", "use_custom_fsdp"):
        if strategy in {None, "no_shard"}:
            reading.assume(
                "no strategy is stated, or no_shard: Megatron-FSDP then shards nothing", "use_megatron_fsdp", of[3]
            )
        reading.option("zero", STAGE_OF[strategy or "no_shard"], "use_custom_fsdp", *of)
    elif reading.flag("use_torch_fsdp2"):
        kept = reading.flag(RESHARDS[0]) or (reading.text(RESHARDS[1]) or "").lower() in OFF
        reading.option("zero", 2 if kept else 3, *of)
    elif not distributed and reading.text("optimizer") != "dist_muon":
        if "zero" not in reading.layout:  # DeepSpeed shards by its own stage
            reading.option("zero", 0, *of)
    elif distributed and "zero" not in reading.layout and not _shards_by_default(reading):
        reading.option("zero", 1, *of)
    else:
        reading.means("ZeRO-1", *of)
    replicas = reading.integer("num_distributed_optimizer_instances") or 1
    if replicas > 1:
        gpus = reading.options.get("gpus") or gpus_of(reading, "the size of a shard") or 1
        ranks = gpus // (reading.layout.get("tp", 1) * reading.layout.get("pp", 1))
        reading.option("shard", max(1, ranks // replicas), "num_distributed_optimizer_instances")
    gradients, parameters = (
        reading.flag(name) or overlapped for name in ("overlap_grad_reduce", "overlap_param_gather")
    )
    sharded = reading.layout.get("zero") != 0
    if gradients and sharded and not parameters:
        reading.assume("parameters are predicted as gathered under the forward pass too", "overlap_grad_reduce")
    parts = [name for name, on in (("tp", reading.flag("tp_comm_overlap")), ("dp", gradients)) if on]
    exchanges = reading.flag("overlap_moe_expert_parallel_comm", "moe_fb_overlap")  # MindSpeed's and FlagScale's
    parts += ["ep"] if exchanges else []
    if exchanges and not reading.flag("delay_wgrad_compute"):
        reading.assume(
            "weight gradients are predicted as delayed, too", "overlap_moe_expert_parallel_comm", "moe_fb_overlap"
        )
    reading.option(
        "overlap", overlap_name(parts), "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap",
        "overlap_moe_expert_parallel_comm", "moe_fb_overlap", "delay_wgrad_compute",
    )  # fmt: skip


RESHARDS = ("torch_fsdp2_no_reshard_after_forward", "torch_fsdp2_reshard_after_forward")
"""What says whether PyTorch's FSDP gives gathered parameters back before the backward pass."""


def _shards_by_default(reading: Reading) -> bool:
    """Whether the job's framework shards optimizer states where nothing is said: not before 2024."""
    return load_framework(reading.options["framework"]).runtime.zero_stage == 1


def _read_precision(reading: Reading) -> None:
    recipe = reading.text("fp8_recipe", known=(*PRECISION_OF, "custom")) or "delayed"
    before = ("fp8_hybrid", "fp8_e4m3") if reading.tool.name == "megatron-lm" else ()  # switches of 2023
    fp8 = reading.needed("fp8_format", "fp8", *before)
    fp4 = reading.needed("fp4_format", "fp4")
    on = fp8 is not None and str(fp8.value).lower() not in OFF
    if fp4 is not None and str(fp4.value).lower() not in OFF:
        reading.option("precision", "nvfp4", "fp4_format", "fp4", "fp4_recipe", "bf16")
    elif on:
        if recipe == "custom":
            reading.refuse(reading.get("fp8_recipe"), "a recipe of one's own is not modelled", settles="precision")
        if not (reading.flag("bf16") or reading.flag("fp16") or reading.given.get("precision")):
            message = "weights are in fp32 where neither bf16 nor fp16 is stated beside fp8, which is not modelled"
            reading.refuse(fp8, message, settles="precision", likely=(PRECISION_OF[recipe],))
        reading.option("precision", PRECISION_OF[recipe], "fp8_format", "fp8", "fp8_recipe", "bf16", *before)
    elif reading.stated("fp16") and reading.flag("fp16") and not (reading.stated("bf16") and reading.flag("bf16")):
        reading.option("precision", "fp16", "fp16")
    elif reading.flag("bf16"):
        reading.option("precision", "bf16", "bf16")
    else:
        unread = any(one.text.startswith("source ") for source in reading.sources for one in source.assumed)
        if unread and not reading.given.get("precision"):
            message = "no option states the precision, and a file that may is not here"
            reading.refuse(None, message, settles="precision", likely=("bf16",))
        reading.options["precision"] = "fp32"
        reading.assume("neither bf16 nor fp16 is stated: predicted in fp32, as Megatron-LM then runs")
    gathers = reading.flag(*EIGHT_BITS)
    if on and gathers:
        reading.means("weights are gathered in 8 bits", *EIGHT_BITS)
    elif on and load_framework(reading.options["framework"]).runtime.memory.fp8_weight_bytes < 4.0:
        reading.assume(
            "8-bit weights are predicted without the 16 bits that stay beside them unless fp8_param_gather is on"
        )


EIGHT_BITS = ("fp8_param_gather", "fp8_param")
"""What keeps weights in 8 bits alone; without them 8-bit copies stand beside those in 16 (Megatron core)."""


def _read_states(reading: Reading) -> None:
    half = reading.flag("fp16") and not reading.flag("bf16")
    said = reading.stated("grad_reduce_in_fp32")  # NeMo's name and that of Megatron core, of which False is 16 bits
    exact = said is not None and reading.flag("grad_reduce_in_fp32")
    reduced = said is not None and not exact if said else reading.flag("grad_reduce_in_bf16")
    wide = exact or (not reduced and reading.flag("accumulate_allreduce_grads_in_fp32"))
    gradients = "fp16" if half and not wide else "bf16" if reduced else "fp32"
    main = reading.text("main_grads_dtype") if reading.flag("use_precision_aware_optimizer") else ""
    of = ("grad_reduce_in_fp32", "grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype")
    reading.option("grad_dtype", _short(main) if main and (reduced or not wide) else gradients, *of)
    kind = reading.text("optimizer_selection", "optimizer", "name") or "adam"
    kind = "adamw-8bit" if reading.flag("use_bnb_optimizer") else kind  # BigScience's
    same = {"adamw": "adam", "dist_muon": "muon", "cpu_adam": "adam", "hybridadam": "adam",
            "fused_adamw": "adam", "fused_torch_adamw": "adam"}  # fmt: skip
    kind = same.get(kind.lower(), kind.lower())
    if kind == "sgd" and reading.number("sgd_momentum") != 0:
        kind = "sgd-momentum"
    if kind not in {"adam", "sgd", "sgd-momentum", "muon", "lion", "adamw-8bit"}:
        reading.assume(f"optimizer {kind} is predicted as Adam", "optimizer")
        kind = "adam"
    reading.option("optimizer", kind, "optimizer", "sgd_momentum", "use_bnb_optimizer")
    aware = reading.flag("use_precision_aware_optimizer")
    for option, *names in (
        ("master_dtype", "main_params_dtype"),
        ("moment_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    ):
        types = [_short(reading.text(name) or "fp32") for name in names]
        if not aware and {*types} != {"fp32"}:
            message = "only use_precision_aware_optimizer has states in other types than fp32"
            reading.refuse(reading.get(*names), message, settles=option, likely=types[:1])
        if reading.get(*names):
            reading.option(option, types[0], *names, "use_precision_aware_optimizer")
        if len({*types}) > 1:
            reading.assume(f"second moments are predicted in {types[0]} too", names[1])
    reading.switch("swiglu_input_dtype", "fp8", None, "activation_func_fp8_input_store")


def take_type(reading: Reading, name: str) -> None:
    """Take the type of weights that a setting names (`bfloat16`) for what switches it on."""
    found = reading.get(name)
    for half in ("bf16", "fp16") if found is not None else ():
        assert found is not None
        reading.settings.setdefault(half, replace(found, value=_short(str(found.value)) == half))


def _short(dtype: str) -> str:
    """Return fp32 for `torch.float32`, and so on."""
    found = dtype.lower().removeprefix("torch.")
    return {**DTYPES, "uint8": "fp8", "float8": "fp8"}.get(found, found)


def _read_pipeline(reading: Reading) -> None:
    pp, vpp = (
        reading.layout.get("pp", 1),
        reading.integer("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"),
    )
    per_chunk, layers = reading.integer("num_layers_per_virtual_pipeline_stage"), reading.shape.get("layers")
    layers = layers + len(reading.words(IDLE)) if layers else layers
    of = ["num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"]
    if per_chunk and layers and pp > 1:
        layers += sum(map(reading.flag, LAYERS_BESIDE))
        vpp, of = max(1, layers // (pp * per_chunk)), ["num_layers_per_virtual_pipeline_stage"]
    sizes = _stated_stages(reading, pp, vpp or 1)
    if sizes and pp > 1:
        if len(sizes) % pp:
            hint = f"write a multiple of {pp} stages"
            reading.refuse(reading.get("pipeline_model_parallel_layout"), f"{len(sizes)} stages on PP {pp}", hint)
        vpp = len(sizes) // pp
        of = [*of, *LAYOUTS]
    if vpp and pp > 1:
        reading.option("vpp", vpp, *of)
    else:
        reading.means("no pipeline, or one chunk per rank", *of)
    if sizes and pp > 1 and "model" in reading.options:
        split, dealt, off = nearest_split(load_model(str(reading.options["model"])), sizes, pp, vpp or 1)
        reading.option("pipeline_split", split, *LAYOUTS)
        if off:
            said = ", ".join(map(str, dealt[:16])) + " layers" + (", ..." if len(sizes) > 16 else "")
            reading.assume(f"stages are predicted with {said}", *LAYOUTS)
    reading.switch("axis_order", "tp-cp-ep-pp-dp", None, "use_tp_pp_dp_mapping")


LAYERS_BESIDE = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""What counts as a layer of the first and of the last stage (Megatron-LM, arguments.py)."""

LAYOUTS = (
    "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    *LAYERS_BESIDE, "num_layer_list", IDLE,
)  # fmt: skip
"""What says which layers a stage has."""


def _stated_stages(reading: Reading, pp: int, vpp: int) -> list[int]:
    """Return the layers of each chunk, where the arguments say them; else nothing."""
    found = reading.get(LAYOUTS[0])
    layers = reading.shape.get("layers")
    if found is not None:
        sizes = layout_sizes(found.value)
        if sizes is None:
            reading.refuse(found, "not a layout of stages", "write Et*2|(tt|)*5t|tL: E, t, m and L, a bar per chunk")
        return sizes
    if listed := reading.words("num_layer_list"):
        return [int(one) for one in listed if one.isdecimal()]
    idle = [int(one) for one in reading.words(IDLE) if one.isdecimal()]
    if idle and layers and pp > 1:
        each = max(1, (layers + len(idle)) // (pp * vpp))
        return [each - sum(one // each == chunk for one in idle) for chunk in range(pp * vpp)]
    first = reading.integer(LAYOUTS[1], LAYOUTS[3])
    last = reading.integer(LAYOUTS[2], LAYOUTS[4])
    ends = [reading.flag(LAYOUTS[5]), reading.flag(LAYOUTS[6])]
    if layers is None or pp == 1 or not (first is not None or last is not None or any(ends)):
        return []
    if any(ends):
        each = (layers + sum(ends)) // (pp * vpp)
        return [each - ends[0], *[each] * (pp * vpp - 2), each - ends[1]]
    middle = pp - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // max(middle, 1)
    stages = [first if first is not None else each, *[each] * (pp - 2), last if last is not None else each]
    return [size // vpp for _ in range(vpp) for size in stages]


def layout_sizes(stated: Any) -> list[int] | None:
    """Return the layers of each chunk of a `--pipeline-model-parallel-layout`, or None where it is none.

    `E` is the embedding, `t` a layer, `m` a module of multi-token prediction, `L` the loss; a bar ends a chunk; `x*3`
    and `(x|)*3` repeat; commas mean nothing. A list of lists of names (Megatron-Bridge) means the same.
    """
    if isinstance(stated, list | tuple):
        chunks = [one if isinstance(one, list | tuple) else [one] for one in stated]
        return [sum(str(name) in {"decoder", "mtp", "t", "m"} for name in one) for one in chunks] or None
    text = re.sub(r"[,\s'\"]", "", str(stated)[:20_000])
    for _ in range(4):
        text = re.sub(r"\(([^()*]*(?:\*\d+[^()*]*)*)\)\*(\d{1,4})", lambda one: one[1] * min(int(one[2]), 4096), text)[
            :200_000
        ]
    text = re.sub(r"([Etml])\*(\d{1,4})", lambda one: one[1] * int(one[2]), text)[:400_000]
    if not re.fullmatch(r"[EtmL|]+", text) or "t" not in text:
        return None
    return [len(re.findall("[tm]", chunk)) for chunk in text.split("|")]


def _read_recompute(reading: Reading) -> None:
    names = ("recompute_granularity", "activations_checkpoint_granularity")
    kind = reading.text(*names, known=("full", "selective"))
    method = reading.text("recompute_method", "activations_checkpoint_method", known=("uniform", "block"))
    number = reading.integer("recompute_num_layers", "activations_checkpoint_num_layers")
    of = (
        *names, "recompute_method", "activations_checkpoint_method", "recompute_num_layers", "recompute_modules",
        "activations_checkpoint_num_layers", "recompute_activations", "checkpoint_activations", "recompute_norm",
        "recompute_mla_up_proj", "enable_recompute_layers_per_pp_rank",
    )  # fmt: skip
    if not method and reading.flag("recompute_activations"):  # which counts more
        kind = "selective"
    if (
        kind is None
        and reading.stated("activations_checkpoint_method")
        and not any(one.endswith(names[1]) for one in reading.settings)
    ):
        kind = "full"  # before there were kinds, until mid-2022
    if kind is None and reading.flag("checkpoint_activations"):
        kind, method = "full", method or "uniform"
        number = reading.integer("checkpoint_num_layers") or 1
    forks = {"recompute_norm": "layernorm", "recompute_mla_up_proj": "mla_up_proj"}  # MindSpeed's
    more = [module for name, module in forks.items() if reading.flag(name)]
    if kind == "full" and more:
        reading.assume(f"of the layers that are kept, {' and '.join(more)} are predicted as kept too", *forks)
    layers, pp = reading.shape.get("layers", 0), reading.layout.get("pp", 1)
    whole = reading.flag("enable_recompute_layers_per_pp_rank")
    per_stage, vpp = -(-layers // pp), 1 if whole else reading.layout.get("vpp") or 1
    if kind == "full" and method == "block" and number is not None and number * vpp < per_stage:
        reading.option("recompute", f"full:{number * vpp}" if number else "none", *of)
    elif kind == "full":
        reading.option("recompute", "full", *of)
        if method == "uniform" and (number or 1) > 1:
            reading.assume("one layer is kept of each, not of several", "recompute_num_layers")
    elif kind == "selective" or more:
        modules = [*(reading.words("recompute_modules") or (["core_attn"] if kind else [])), *more]
        known = [one for one in modules if one in RECOMPUTE_MODULES]
        if known != modules:
            left = ", ".join(sorted(set(modules) - set(known)))
            reading.assume(f"recomputation of {left} is not modelled", "recompute_modules")
        reading.option("recompute", f"selective:{'+'.join(known)}" if known else "none", *of)
    else:
        reading.option("recompute", "none", *of)


def _read_kernels(reading: Reading) -> None:
    names = ("cross_entropy_loss_fusion", "cross_entropy_fusion_impl")
    fused = "linear" if reading.text(names[1]) == "linear" else "fused"
    reading.option("loss", fused if reading.flag(names[0]) else "standard", *names)
    impl = (reading.text("cuda_graph_impl") or "none").lower()
    scope = " ".join(reading.words("cuda_graph_modules", "cuda_graph_scope"))
    on = impl not in {"none", "false"} or reading.flag("enable_cuda_graph", "external_cuda_graph")
    whole = impl == "full_iteration" or "full_iteration" in scope
    of = ("cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope", "enable_cuda_graph", "external_cuda_graph")
    reading.option("cuda_graphs", "full" if on and whole else "partial" if on else "none", *of)
    reading.means("as the framework's profile has it", "transformer_impl", "use_flash_attn", "use_mcore_models")
    read_attention(reading, "attention_backend")
    off = tuple(reading.text(name) == "0" for name in ENGINE)
    unfused = load_framework(reading.options["framework"]).runtime.attention == "unfused"
    flash = any(map(reading.flag, FLASH))
    if "attention" in reading.options:
        pass
    elif any(off):
        reading.option("attention", "eager" if all(off) else "fa2" if off[0] else "cudnn", *ENGINE)
    elif flash and unfused:
        reading.option("attention", "fa2", *FLASH)
    elif not flash and reading.text("transformer_impl") == "local":
        reading.option("attention", "eager", "transformer_impl")
    if reading.number("attention_dropout"):
        reading.assume("dropout is predicted only where the framework's profile has it", "attention_dropout")


ENGINE = ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")
"""Variables by which Transformer Engine leaves out kernels of cuDNN, and FlashAttention."""

FLASH = ("use_flash_attn", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attention")
"""Switches of FlashAttention in generations that do without: of Megatron-LM, of its fork of DeepSpeed, of NeMo."""


def _read_experts(reading: Reading) -> None:
    named = reading.options.get("model") or reading.given.get("model")
    if not reading.integer("num_experts", "num_moe_experts") and not (named and load_model(str(named)).is_moe):
        return
    tp, etp = reading.layout.get("tp", 1), reading.integer("expert_tensor_parallel_size")
    if reading.flag("moe_tp_extend_ep"):  # MindSpeed: ranks of TP hold whole experts
        reading.option("ep", reading.layout.get("ep", 1) * tp, "expert_model_parallel_size", "moe_tp_extend_ep")
        etp = 1
    reading.option("etp", tp if etp is None else etp, "expert_tensor_parallel_size")
    if etp is None and tp > 1:
        reading.assume(f"experts are split by TP {tp} as the dense layers are, Megatron-LM's default")
    kind = (reading.text("moe_token_dispatcher_type") or "allgather").lower()
    backend = (reading.text("moe_flex_dispatcher_backend") or "deepep").lower()
    of = ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep")
    dispatcher = backend if kind == "flex" and backend in {"deepep", "hybridep"} else "alltoall"
    reading.option("dispatcher", dispatcher, *of)
    if kind == "allgather" or (kind == "flex" and backend != dispatcher):
        said = backend if kind == "flex" else kind
        reading.assume(f"the dispatcher {said} is predicted as {dispatcher}", *of)
    factor = reading.number("moe_expert_capacity_factor")
    drops = factor is not None and factor > 0
    reading.option("routing", "dropping" if drops else "dropless", "moe_expert_capacity_factor")
    reading.means("experts take as many tokens as fit", "moe_pad_expert_input_to_capacity")
    if factor and factor != 1:
        reading.assume("experts are predicted with a capacity factor of 1", "moe_expert_capacity_factor")
    reading.means("as the framework's profile has it", "moe_grouped_gemm", "moe_permute_fusion")


def _read_offload(reading: Reading) -> None:
    hybrid = (reading.text("optimizer") or "").lower() == "hybridadam"  # Pai-Megatron-Patch's
    fraction = reading.number("optimizer_offload_fraction")
    parts = ["optimizer"] if hybrid or (reading.flag("optimizer_cpu_offload") and fraction != 0) else []
    if parts and fraction not in {None, 1}:
        reading.assume("all of the optimizer's state is predicted in host memory", "optimizer_offload_fraction")
    layers, of = reading.shape.get("layers", 0), ("optimizer_cpu_offload", "optimizer_offload_fraction")
    on = reading.flag("cpu_offloading", default=True)  # Megatron-LM itself has the number of layers alone
    whole = (reading.integer("cpu_offloading_num_layers") or 0) if on else 0
    if whole and layers:
        parts.append(f"activations:{min(1.0, whole / layers)!r}")
    if parts:
        reading.option("offload", "+".join(parts), *of, "cpu_offloading_num_layers", "cpu_offloading")
    if reading.flag("fine_grained_activation_offloading"):
        reading.assume("offloading by modules is not modelled", "fine_grained_activation_offloading", "offload_modules")


CP_ALGORITHMS = {
    "megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "hybrid_cp_algo": "", "adaptive_cp_algo": "",
    "hybrid_adaptive_cp_algo": "", "kvallgather_cp_algo": "all_gather",
}  # fmt: skip
"""`--context-parallel-algo` of MindSpeed (features_manager/context_parallel) -> how ranks exchange, if it is one way
that we have."""


def _read_context(reading: Reading) -> None:
    if reading.layout.get("cp", 1) == 1:
        reading.means("nothing to exchange: CP is 1", "cp_comm_type", "hierarchical_context_parallel_sizes",
                      "context_parallel_algo", "ulysses_degree_in_cp")  # fmt: skip
        return
    if "cp_comm" in reading.options:  # Ulysses of DeepSpeed
        return
    algorithm = reading.text("context_parallel_algo", known=CP_ALGORITHMS)  # MindSpeed's name for it
    if algorithm:
        kind = "" if reading.flag("kv_head_repeat_before_uly_alltoall") else CP_ALGORITHMS[algorithm]
        reading.option("cp_comm", kind or "p2p", "context_parallel_algo", "ulysses_degree_in_cp")
        if not kind:
            reading.assume(f"{algorithm} is predicted as a ring of all context ranks", "context_parallel_algo")
        return
    kinds = reading.words("cp_comm_type") or ["p2p"]
    kind = kinds[0].replace("allgather", "all_gather")
    if kind not in {"p2p", "all_gather", "a2a", "a2a+p2p"} or len(set(kinds)) > 1:
        reading.refuse(reading.get("cp_comm_type"), f"unknown exchange {' '.join(kinds)[:40]!r}", settles="cp_comm")
    reading.option("cp_comm", kind, "cp_comm_type", "hierarchical_context_parallel_sizes")
