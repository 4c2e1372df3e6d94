"""Measured training runs: each row becomes a model, options of a job and a layout, with every default named; these are
read as those of `estimate`, and evaluated.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import SCHEDULES, Candidates, concatenate
from gpuscale.memory.model import BASES, half_width
from gpuscale.planning.layouts import fixed_layout, fully_sharded, usual_etp, usual_zero
from gpuscale.planning.plans import job_of
from gpuscale.presets.files import preset_aliases, preset_names
from gpuscale.presets.frameworks import MEGATRON_BRIDGE, MEGATRON_BRIDGE_PERFORMANCE, load_framework
from gpuscale.request import OF_EXPERTS, OVERLAPS, JobOptions, offload_name, overlap_name, overlap_of, read
from gpuscale.rules.check import FATAL, broken_rules
from gpuscale.search.evaluation import evaluate, memory_of
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import WIDE, GpuSpec
from gpuscale.specs.job import OWN_LOOPS, JobSpec, RuntimeSpec
from gpuscale.specs.model import ModelSpec
from gpuscale.steptime.components import COMPONENTS
from gpuscale.uncertainty import Features, features
from gpuscale.units import GIB
from gpuscale.validation.measurements import RUNS, ZERO_STAGES, Library, Row, batched, reason_text, row_cluster

COLUMNS = (
    "framework", "model", "params_b", "layers", "dense_layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab",
    "experts", "topk", "moe_ffn", "mtp", "tp",
)  # fmt: skip
"""Columns that the architecture depends on (TP only where the number of heads is not stated)."""

MTP_FRAMEWORKS = ("megatron", "nemo", "primus", "other")
"""Beginnings of the frameworks that train multi-token-prediction modules where the row does not say."""

PLAIN_GPT = ("gpt", "bloom", "mpt", "opt", "mt-nlg", "megatron")
"""Beginnings of the names of models with a plain MLP, biases and tied embeddings, where no preset is nearer."""

NEAR, APART = 0.03, 0.1
"""Shares of the stated parameters that what is counted may be off by where they decide how a model is built, and that
it is off by at least where it is built otherwise (a choice: an MLP of three matrices rather than two is a quarter more
parameters)."""

GPT2_VOCABULARY = 50257
HEAD_DIM = 128
"""Width of a head where the row does not state the heads, as nearly as it divides."""

LEARNED_POSITIONS = 2048

_VARIANT = re.compile(r"[-_](?:\d+layers?|proxy|sft|lora|llm)$")
"""Endings of a model's name that do not change the architecture but for its depth."""


def row_model(row: Row, library: Library) -> tuple[str, tuple[str, ...]]:
    """Return the architecture of a row as the option `model` takes it, and what had to be assumed.

    Raises:
        InputError: neither a known name nor enough columns.
    """

    def describe() -> tuple[str, tuple[str, ...]]:
        assumed: list[str] = []
        name = row.text("model")
        named: ModelSpec | None = library.find("models", name) or library.find("models", _VARIANT.sub("", name))
        changed = None if named is None else _changed(named, row)
        if named is not None and changed is not None:
            stem, stated = named.name, changed | _resized(named, row, assumed)
        else:
            stem, stated = "", _from_columns(row, named, library, assumed)
        return ",".join(filter(None, (stem, _line(stated)))), tuple(assumed)

    return library.once(("model", *(row.text(name) for name in COLUMNS)), describe)


def _changed(model: ModelSpec, row: Row) -> dict[str, Any] | None:
    """What the row's own columns, but for those of `_resized`, change of a preset; None where it is another model but
    for its name."""
    expected = {"hidden": model.hidden}
    free: dict[str, int] = {}
    for kind in model.kinds:  # what a later one has counts
        if kind.attention is not None:
            expected["heads"] = kind.attention.heads
        if kind.attention is not None and kind.attention.latent is None:
            free["kv_heads"] = kind.attention.kv_heads
        if kind.mlp is not None:
            free["ffn"] = kind.mlp.ffn
        if kind.moe is not None:
            expected |= {"experts": kind.moe.experts, "topk": kind.moe.top_k, "moe_ffn": kind.moe.ffn}
    if any(row.whole(name) not in {None, value} for name, value in expected.items()):
        return None
    changed = {name: row.whole(name) for name, value in free.items() if row.whole(name) not in {None, value}}
    block = next((block for kind in model.kinds for block in (kind.mlp, kind.moe) if block), None)
    gated = row.switch("gated")
    return changed if block is None or gated in {None, block.gated} else {**changed, "gated": gated}


def _resized(model: ModelSpec, row: Row, assumed: list[str]) -> dict[str, Any]:
    """Depth, vocabulary and multi-token prediction; a shorter model keeps its first layers, dense ones as many as
    stated."""
    layers, dense, vocab = row.whole("layers") or model.layers, row.whole("dense_layers"), row.whole("vocab")
    out: dict[str, Any] = {} if layers == model.layers else {"layers": layers}
    if dense is not None and not (dense == 0 and model.kinds[model.pattern[0]].moe is not None):
        if model.kinds[model.pattern[0]].moe is not None or not model.is_moe or dense > layers:
            raise row.error("dense_layers", f"are not what {model.name} starts with")
        out["dense_layers"] = dense
    if vocab and vocab != model.vocab:
        out["vocab"] = vocab
    mtp, trained = model.mtp, row.whole("mtp")
    if mtp and trained is None and layers == model.layers and row.text("framework").startswith(MTP_FRAMEWORKS):
        depth = mtp.depth if mtp.trained else 0
        assumed.append(f"{depth or 'no'} multi-token-prediction module{'s' * (depth != 1)}")
    elif mtp or trained:
        out["mtp_layers"] = trained or 0
    return out


def _from_columns(row: Row, named: ModelSpec | None, library: Library, assumed: list[str]) -> dict[str, Any]:
    """A model of the row's own sizes; what they leave open is that of its family, or what its parameters say. `named`:
    the preset that has its name, and other sizes."""
    name, hidden = row.text("model"), row.whole("hidden")
    if not hidden:
        raise InputError(f"the model {name[:60]!r} is not known and the row has no layers, hidden and heads")
    family = _family(name, [named] if named else _kin(name, library))
    sizes = _sizes(row, hidden, family, assumed)
    family = _settled(row, sizes, family, library, assumed)
    if not row.whole("layers"):
        assumed.append(f"{sizes['layers']} layers, from {row.raw('params_b')} B parameters")
    return sizes | _written(family, sizes)


def _sizes(row: Row, hidden: int, family: Mapping[str, Any], assumed: list[str]) -> dict[str, Any]:
    def stated(column: str, otherwise: Callable[[], int], text: str) -> int:
        value = row.whole(column)
        if not value:
            value = otherwise()
            assumed.append(text.format(value, hidden // value))
        return value

    vocab = stated("vocab", lambda: int(family.get("vocab", GPT2_VOCABULARY)), "vocabulary {0}")
    ffn = stated("ffn", lambda: 4 * hidden, "ffn = 4 x hidden")
    heads = stated("heads", lambda: _heads(row, hidden), "{0} heads of {1}")
    if hidden < heads:
        raise InputError(f"hidden {hidden} is less than its {heads} heads", place=row.place)
    kv_heads = row.whole("kv_heads")
    if not kv_heads and not family.get("multi_head"):
        assumed.append(f"{heads} KV heads, as many as heads")
    out = {"hidden": hidden, "vocab": vocab, "heads": heads, "kv_heads": kv_heads or heads}
    if hidden % heads:
        out["head_dim"] = hidden // heads
        assumed.append(f"heads of {hidden // heads}")
    experts, dense = row.whole("experts") or 0, row.whole("dense_layers") or 0
    if experts > 1:
        out |= {"experts": experts, "top_k": row.whole("topk") or 1, "moe_ffn": row.whole("moe_ffn") or ffn}
        out |= {"dense_layers": dense, "ffn": ffn} if dense else {}
    else:
        out["ffn"] = ffn
    layers = row.whole("layers") or _layers(row, out, family)
    if experts > 1 and dense > layers:
        raise row.error("dense_layers", f"are more than its {layers} layers")
    return {"layers": layers, **out} | ({"mtp_layers": row.whole("mtp")} if row.whole("mtp") else {})


def _settled(
    row: Row, sizes: Mapping[str, Any], family: Mapping[str, Any], library: Library, assumed: list[str]
) -> dict[str, Any]:
    """Return a family with what it does not say of gate and tied embeddings: the row's own column goes first, then its
    parameters where they decide clearly, the family, and the width."""
    own = row.switch("gated")
    found = {**family, **({} if own is None else {"gated": own})}
    counted = _counted(row, sizes, found, library) if row.whole("layers") else {}
    said = {key: (value, f"from {row.raw('params_b')} B parameters") for key, value in counted.items()}
    if "gated" not in {**found, **counted}:
        column = "moe_ffn" if "moe_ffn" in sizes else "ffn"
        if sizes[column] == 4 * sizes["hidden"]:
            name = row.text("model")[:60]
            raise InputError(f"is the MLP of {name!r} gated? Say so in the column 'gated', or give its 'params_b'")
        said["gated"] = True, "as it is not 4 x as wide as the model"
    if "tied_embeddings" not in {**found, **counted}:
        said["tied_embeddings"] = False, "as most have it"
    words = {"gated": ("plain MLP", "gated MLP"), "tied_embeddings": ("embeddings apart", "tied embeddings")}
    assumed += [f"{words[key][value]}, {why}" for key, (value, why) in said.items()]
    return {**found, **{key: value for key, (value, _) in said.items()}}


def _counted(row: Row, sizes: Mapping[str, Any], family: Mapping[str, Any], library: Library) -> dict[str, bool]:
    """What the row's parameters say of gate and tied embeddings, where they decide it clearly, but against its own
    column or its family."""
    billions = row.number("params_b")
    if billions is None:
        return {}
    gates = (False, True) if row.switch("gated") is None else (bool(family["gated"]),)
    ties = (False, True) if "tied_embeddings" not in family else (bool(family["tied_embeddings"]),)
    off: dict[tuple[bool, bool], float] = {}
    for gated, tied in itertools.product(gates, ties):
        keys = {**sizes, **_written({**family, "gated": gated, "tied_embeddings": tied}, sizes)}
        total = model_parameters(library.presets.model(_line(keys))).total
        off[gated, tied] = abs(total / (billions * 1e9) - 1)
    found = {}
    for at, key in enumerate(("gated", "tied_embeddings")):
        best = {value: min(off[one] for one in off if one[at] == value) for value in {one[at] for one in off}}
        chosen = min(best, key=lambda value: best[value])
        if len(best) > 1 and best[chosen] <= NEAR and max(best.values()) >= APART and family.get(key) != chosen:
            found[key] = chosen
    return found


def _line(keys: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={str(value).lower()}" for key, value in keys.items())


def _written(family: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """What of a family a model in a line states: gate, tied embeddings and positions always."""
    left = {"vocab", "multi_head", *(() if "ffn" in sizes else ("mlp_bias",))}
    always = {key: family.get(key, 0) for key in ("gated", "tied_embeddings", "learned_positions")}
    usual = {"norms_per_layer": 2, "qk_norm": "none"}
    said = {key: value for key, value in family.items() if value and value != usual.get(key)}
    return {key: value for key, value in (said | always).items() if key not in left}


_SIZE = re.compile(r"[-_]?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[bm](?![a-z])")
"""The size in a model's name, before which its family stands."""

_LAST = re.compile(r"[-_.][^-_.]*$|\d+$")
"""The last part of a family's name: what follows a hyphen, or a digit."""


def _kin(name: str, library: Library) -> list[ModelSpec]:
    """The presets of a name's family: of `qwen-7b` all generations of Qwen, as none is called so."""

    def families() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        named = {alias.lower(): path.stem for alias, path in preset_aliases("models").items()}
        for own, stem in sorted((named | {stem: stem for stem in preset_names("models")}).items()):
            found.setdefault(_SIZE.split(own)[0], []).append(stem)
        return found

    words = library.once("families", families)
    word, shorter = "", _SIZE.split(name)[0]
    while word != shorter:
        word, shorter = shorter, _LAST.sub("", shorter)
        found = words.get(word, [])
        if not found and not word.startswith(PLAIN_GPT):
            series = re.compile(rf"{re.escape(word)}[-_]?[\d.]+")
            found = [stem for one in words if series.fullmatch(one) for stem in words[one]]
        if found:
            return [library.presets.model(stem) for stem in dict.fromkeys(found)]
    return []


def _family(name: str, kin: Sequence[ModelSpec]) -> dict[str, Any]:
    """What all models of a family have in common, as keys of a model file; and `multi_head`, whether each head has keys
    of its own."""
    usual: dict[str, Any] = {}
    if name.startswith(PLAIN_GPT):  # apart from a Llama: a plain MLP, biases, tied embeddings, learned positions
        usual = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "norm_bias"), True)
        usual |= {"gated": False, "tied_embeddings": True, "multi_head": True, "learned_positions": LEARNED_POSITIONS}
    every = [_traits(model) for model in kin if not any(kind.state_space for kind in model.kinds)]
    every = [one for one in every if one]
    if kin and not every:
        message = f"{kin[0].name} has attention that heads and widths alone do not describe"
        raise InputError(message, hint="name a model whose preset has these sizes")
    shared = every[0].items() if every else ()
    return usual | {key: value for key, value in shared if all(one[key] == value for one in every)}


def _traits(model: ModelSpec) -> dict[str, Any]:
    """How the first layer is built, as keys of a model file; nothing of latent attention."""
    kind = model.kinds[model.pattern[0]]
    attention, block = kind.attention, kind.mlp or kind.moe
    if attention is None or attention.latent or block is None:
        return {}
    return {
        "gated": block.gated, "vocab": model.vocab, "tied_embeddings": model.tied_embeddings,
        "multi_head": attention.kv_heads == attention.heads, "qkv_bias": attention.qkv_bias,
        "output_bias": attention.output_bias, "mlp_bias": bool(kind.mlp and kind.mlp.bias),
        "norm_bias": kind.norm_bias, "norms_per_layer": kind.norms, "parallel_blocks": kind.parallel_blocks,
        "qk_norm": attention.qk_norm, "learned_positions": model.learned_positions,
    }  # fmt: skip


def _heads(row: Row, hidden: int) -> int:
    """Heads of about `HEAD_DIM` elements that divide the hidden size and are divided by TP."""
    tp = row.whole("tp") or 1
    fitting = [heads for heads in range(tp, hidden // 16 + 1, tp) if hidden % heads == 0]
    if not fitting:
        raise InputError("the row states no heads, and none divide its hidden size", place=row.place)
    return min(fitting, key=lambda heads: abs(hidden / heads - HEAD_DIM))


def _layers(row: Row, sizes: Mapping[str, int], family: Mapping[str, Any]) -> int:
    billions = row.number("params_b")
    if billions is None or "ffn" not in sizes:
        raise InputError(f"the model {row.text('model')[:60]!r} is not known and the row has no layers")
    hidden, grouped, own = sizes["hidden"], sizes["kv_heads"] / sizes["heads"], row.switch("gated")
    gated = family.get("gated", sizes["ffn"] != 4 * hidden) if own is None else own
    embeddings = (1 if family.get("tied_embeddings") else 2) * sizes["vocab"] * hidden
    per_layer = hidden * (2 * hidden * (1 + grouped) + (2 + gated) * sizes["ffn"])
    return max(1, round((min(billions, 1e5) * 1e9 - embeddings) / per_layer))


HUGGING_FACE_ON_DEEPSPEED = "2023-08"
"""From this month on runs of DeepSpeed ZeRO-2 and 3 are taken for Hugging Face models rather than Megatron's."""

NVIDIA_RECIPES = frozenset({"nemo", MEGATRON_BRIDGE_PERFORMANCE})
"""Frameworks whose published figures come from performance recipes, since Megatron-LM of 2023."""

RECOMPUTES = frozenset({"torchtune", "litgpt"})
"""Profiles whose recipes recompute all layers where nothing is said: torchtune's `enable_activation_checkpointing`,
LitGPT's `activation_checkpointing_policy` of FSDP."""

LOOPS = {
    "primeintellect-ai/prime-rl": "prime-rl", "foundation-model-stack/fms-acceleration": "fms-acceleration",
    "pytorch/torchtune": "torchtune", "halo trainer": "halo", "lightning-ai/litgpt": "litgpt",
}  # fmt: skip
"""Part of a source -> the profile of its training loop, which rows call `pytorch` or `accelerate`."""


QUANTISED_LOOPS = {"QwenLM/Qwen": "qwen"}
"""The same for runs beside quantised weights alone."""


def framework_name(row: Row, library: Library) -> str:
    """Name the framework of a row as it was when its source was published; `generic` if it has no profile."""
    name, month = row.text("framework"), row.text("source_date")[:7]
    if name == "deepspeed" and (row.text("zero") not in {"2", "3"} or "" < month < HUGGING_FACE_ON_DEEPSPEED):
        name = "megatron-deepspeed"
    if name == MEGATRON_BRIDGE and row.text("source").startswith("nvidia"):
        name = MEGATRON_BRIDGE_PERFORMANCE
    if name in {"pytorch", "accelerate"}:
        loops = (LOOPS | QUANTISED_LOOPS) if stored(row) else LOOPS
        name = next((own for part, own in loops.items() if part.lower() in row.text("source")), name)
    known = library.once("frameworks", lambda: {*preset_names("frameworks"), *preset_aliases("frameworks")})
    if name not in known:
        name = "generic"
    return load_framework(f"{name}@{month}" if month else name).name


class Run(NamedTuple):
    """A run ready to be evaluated."""

    job: JobSpec
    layout: Candidates
    #: what the row says, as options of a job and of a layout, of which `estimate` answers the same.
    options: dict[str, Any]
    assumed: tuple[str, ...]  #: what the row does not state and was taken by default.


USABLE_MEMORY = 0.95
"""Share of the GPU's memory up to which a run that offloads activations is assumed to fill it."""


def read_run(row: Row, library: Library | None = None) -> Run:
    """Turn a row into a job and a layout.

    Args:
        library: presets that were read for earlier rows of the same file.

    Raises:
        InputError: a cell is wrong, the row lacks something that has no default, or its layout cannot be.
    """
    library = library or Library()
    row.check(RUNS)
    missing = [name for name in ("gpus", "seq", "gbs") if not row.whole(name)]
    if missing:
        raise InputError(f"the row does not state {', '.join(missing)}")
    machine, of_cluster = row_cluster(row, row.whole("gpus") or 0, library)
    model, of_model = row_model(row, library)
    assumed = [*of_cluster, *of_model]
    options = {"model": model, "gpus": row.whole("gpus"), **machine, "framework": framework_name(row, library)}
    cluster = library.presets.cluster_of(read(JobOptions, options))
    runtime = load_framework(options["framework"]).runtime
    said, spec = _options(row, cluster, assumed), library.presets.model(model)
    stray = () if spec.is_moe else OF_EXPERTS
    options |= {"tower": "none"} if spec.counted_tower else {}  # published runs of such models are of text
    options |= {name: value for name, value in said.items() if name not in stray}
    options |= _precision(row, cluster.gpu, runtime, assumed) | _overlap(row, runtime)
    asked = _layout(row, _job(options, library, {}), assumed)
    job = _job(options, library, asked)
    layout = fixed_layout(job, asked)
    broken = broken_rules(layout, job)
    fatal = [rule.text for rule in broken if rule.code in FATAL]
    if fatal:
        raise InputError("; ".join(fatal))
    hooks = job.runtime.rule_set in OWN_LOOPS  # of PyTorch, which offload all; recipes keep on the GPU what fits
    if job.offload.activations and ":" not in row.text("offload") and not hooks:
        held = memory_of(layout, replace(job, offload=replace(job.offload, activations=0.0)))
        stage = int(held.by_stage[:, 0].argmax())
        beyond = held.by_stage[stage, 0] - USABLE_MEMORY * job.cluster.gpu.memory_bytes
        share = float(min(max(beyond / max(held.activations[stage, 0], 1.0), 0.0), 1.0))
        assumed.append(f"{share:.0%} of the activations offloaded, as memory asks for")
        options["offload"] = offload_name(replace(job.offload, activations=round(share, 6)))
        job = _job(options, library, asked)
        broken = broken_rules(layout, job)
    if not row.text("recompute"):
        how, text = _usual_recomputation(job, asked)
        assumed.append(text)
        if how:
            asked["recompute"] = how
            layout = fixed_layout(job, asked)
            broken = broken_rules(layout, job)
    if job.runtime.rule_set in OWN_LOOPS and not _fits(layout, job):  # a run that ran had a loss that fits
        freed = _job(options | {"loss": "linear"}, library, asked)
        if _fits(layout, freed):
            job, options = freed, options | {"loss": "linear"}
            assumed.append("LM head and loss in one kernel, as memory asks for")
    options |= asked | ({"despite_rules": True} if broken else {})
    return Run(job, layout, options, tuple(assumed))


def _fits(layout: Candidates, job: JobSpec) -> bool:
    return bool(memory_of(layout, job).peak_bytes[0] <= job.memory_limit_bytes)


def _usual_recomputation(job: JobSpec, asked: Mapping[str, Any]) -> tuple[str, str]:
    """What a run that says nothing of it recomputes, empty where nothing, and that in words."""
    if job.runtime.name.partition("@")[0] in RECOMPUTES:
        return "full", "all layers recomputed, as its recipes do"
    layers = _layers_to_recompute(job, asked)
    if not layers:
        return "", "no recomputation"
    return f"full:{layers}", f"{layers} layers per stage recomputed, as memory asks for"


def _layers_to_recompute(job: JobSpec, asked: Mapping[str, Any]) -> int:
    """Fewest layers per stage whose recomputation makes the run fit; 0 if all do not suffice."""

    def fits(layers: int) -> bool:
        layout = fixed_layout(job, {**asked, "recompute": f"full:{layers}" if layers else "none"})
        return _fits(layout, job)

    most = -(-len(job.model.trained_pattern) // asked.get("pp", 1))
    if fits(0) or not fits(most):
        return 0
    return bisect.bisect_left(range(most), True, key=fits)


def _job(options: Mapping[str, Any], library: Library, layout: Mapping[str, Any]) -> JobSpec:
    return job_of(options, layout, library.presets).spec


def _options(row: Row, cluster: ClusterSpec, assumed: list[str]) -> dict[str, Any]:
    states, offload = row.text("state_dtype"), row.text("offload")
    if offload not in {"", "none"} and cluster.host is None:
        assumed.append(f"offload of {row.raw('offload')[:40]} left out: {cluster.name} has no [host]")
        offload = ""
    said = {
        "seq": row.whole("seq"), "gbs": row.whole("gbs"), "offload": "" if offload == "none" else offload,
        "grad_dtype": states, "master_dtype": states and "none", "moment_dtype": states or row.text("moment_dtype"),
        "cuda_graphs": row.text("cuda_graphs"), "dispatcher": row.text("dispatcher"),
        "transport": "" if row.text("transport") == "nccl" else row.text("transport"),
        "attention": row.text("attention"), "routing": "dropping" if row.text("routing") == "dropping" else "",
    }  # fmt: skip
    return {name: value for name, value in (said | _tuning(row)).items() if value}


STORED = {"nf4": "nf4", "int4": "int4", "gptq": "int4", "int8": "int8", "fp8": "fp8"}
"""Word in the storage of frozen weights -> data type of a job."""


def stored(row: Row) -> str:
    """Return how the row says that frozen weights are quantised; empty where they are not."""
    return next((name for word, name in STORED.items() if word in row.text("base_quantization")), "")


def _tuning(row: Row) -> dict[str, Any]:
    if not any(row.text(name) for name in ("lora_rank", "lora_targets", "base_quantization")):
        return {}
    base, (targets, _, whole) = stored(row), row.text("lora_targets").partition(" + ")
    words = [word for word in re.split(r"[+,\s]+", targets.partition("(")[0]) if word]
    every = not words or any(word in ("all", "default", "*_proj") for word in words)
    experts = "experts" in words
    names = ["mlp" if word == "experts" else word for word in words]
    return {
        "tune": "qlora" if base else "lora", "lora_rank": row.whole("lora_rank"), "base_dtype": base,
        "lora_targets": "all" if every else ",".join(names), "lora_experts": experts,
        "train": "embeddings,head" if "trained" in whole else "",
    }  # fmt: skip


def _overlap(row: Row, runtime: RuntimeSpec) -> dict[str, str]:
    own = overlap_of(runtime)
    said = {name: row.switch(f"overlap_{name}") for name in OVERLAPS}
    stated = [name for name in OVERLAPS if (name in own if said[name] is None else said[name])]
    out = {} if tuple(stated) == own else {"overlap": overlap_name(stated)}
    if row.text("compile") and runtime.compile is not None:
        out["compile"] = row.text("compile")
    return out


TRAINS_IN_FP16 = frozenset({"megatron-deepspeed"})
"""Profiles whose 16-bit training is in fp16 when nothing is said: Megatron-DeepSpeed's GPT scripts pass --fp16."""

RECIPES = {
    "mxfp8": "mxfp8", "mx": "mxfp8", "cs": "fp8-current", "current": "fp8-current", "tensorwise": "fp8-current",
    "rowwise": "fp8-current", "dynamic": "fp8-current", "ds": "fp8-delayed", "delayed": "fp8-delayed",
    "hybrid": "fp8-delayed", "sc": "fp8-blockwise", "subchannel": "fp8-blockwise", "block": "fp8-blockwise",
    "blockwise": "fp8-blockwise",
}  # fmt: skip
"""Word in a precision's name -> precision of a job; `cs`, `ds` and `sc` (sub-channel) are NeMo's and
Megatron-Bridge's."""


def _precision(row: Row, gpu: GpuSpec, runtime: RuntimeSpec, assumed: list[str]) -> dict[str, str]:
    """The option `precision`; nothing where it is what a job has without it."""
    text, own = row.text("precision"), "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16"
    if not text:
        sixteen = "fp16" if runtime.name.partition("@")[0] in TRAINS_IN_FP16 else own
        assumed.append(f"{sixteen} mixed precision")
    elif text in WIDE:
        return {"precision": text}
    elif "fp4" in text:
        return {"precision": "nvfp4"}
    elif "fp8" in text:
        words = re.split(r"[^a-z0-9]+", text)
        return {"precision": next((RECIPES[word] for word in words if word in RECIPES), "fp8")}
    else:
        sixteen = "fp16" if "fp16" in text else own
    return {} if sixteen == own else {"precision": sixteen}


OF_RECIPES = ("nemo", MEGATRON_BRIDGE, MEGATRON_BRIDGE_PERFORMANCE)
"""Frameworks whose runs are of recipes."""

OTHER_SCHEDULES = {"zb (zbv)": "zb-v", "zbv": "zb-v", "afab": "gpipe", "dualpipev": "dualpipe"}
"""How forks and other frameworks call a schedule; `zb (zbv)` is a zero-bubble fork of Megatron-LM."""


def _layout(row: Row, job: JobSpec, assumed: list[str]) -> dict[str, Any]:
    """The layout as `fixed_layout` reads it."""
    runtime, moe, node = job.runtime, job.model.is_moe, job.cluster.node_gpus
    out: dict[str, Any] = {name: row.whole(name) or 1 for name in ("tp", "pp", "cp", "ep")}
    ranks = max(1, job.gpus // (out["tp"] * out["pp"]))  # DP x CP
    dp, zero, sp = max(1, ranks // out["cp"]), row.text("zero"), row.switch("sp")
    out["micro_batch_size"] = row.whole("mbs") or _usual_microbatch(row, job, out, dp)
    out["vpp"] = row.whole("vp") or _recipe_chunks(row, job, out, dp)
    etp = usual_etp(job, out["tp"], out["ep"])
    set_to_1 = out["ep"] > 1 and (row.text("framework") in OF_RECIPES or job.gpus // out["pp"] % (out["ep"] * etp))
    out["etp"] = row.whole("etp") or (1 if set_to_1 else etp)
    out["sp"] = out["tp"] > 1 and (runtime.sequence_parallel if sp is None else sp)
    usual = usual_zero(job, out["pp"], ranks)
    stages = ZERO_STAGES | dict.fromkeys(("fsdp", "hsdp"), fully_sharded(job, out["pp"]))
    out["zero"] = stages.get(zero, usual) if ranks > 1 else usual
    if out["zero"]:
        out["shard"] = row.whole("shard")
    if zero == "hsdp" and not row.whole("shard"):  # the ranks of a node, as far as these divide all
        out["shard"] = max(size for size in range(1, max(1, node // out["tp"]) + 1) if ranks % size == 0)
    out["recompute"] = _recompute(row)
    asked = OTHER_SCHEDULES.get(row.text("schedule"), row.text("schedule"))
    known = asked in SCHEDULES and not (asked == "dualpipe" and out["pp"] % 2)
    out["schedule"] = asked if known else "1f1b"
    if out["pp"] > 1 and asked and asked not in SCHEDULES:
        assumed.append(f"1F1B in place of schedule {row.raw('schedule')[:20]}")
    if row.whole("dp") not in {None, 0, dp}:
        assumed.append(f"DP {dp} from the GPUs, the row says {row.whole('dp')}")
    if not row.whole("mbs"):
        assumed.append(f"microbatch {out['micro_batch_size']}")
    if job.gpus > 1 and row.text("framework") != "llm-foundry":  # which has data parallelism only
        names = ["tp", "pp", "cp", *(["ep"] if moe else []), *(["vp"] if out["pp"] > 1 else [])]
        assumed += [f"{name.upper()} {out['vpp' if name == 'vp' else name]}" for name in names if not row.whole(name)]
    if out["tp"] > 1 and sp is None:
        assumed.append(f"sequence parallelism {'on' if out['sp'] else 'off'}")
    if ranks > 1 and not zero:
        assumed.append(f"ZeRO stage {out['zero']}")
    by_itself = {"sp": out["tp"] > 1 and runtime.sequence_parallel, "zero": usual,
                 "shard": None, "recompute": "none", "schedule": "1f1b"}  # fmt: skip
    by_itself |= dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch_size"), 1)
    by_itself["etp"] = etp
    by_itself |= {"vpp": 1} if out["schedule"] == "1f1b" else {}  # the V of ZB-V is two chunks
    return {name: value for name, value in out.items() if name not in by_itself or value != by_itself[name]}


def _recipe_chunks(row: Row, job: JobSpec, layout: dict[str, Any], dp: int) -> int:
    """Where the row states none: one layer each in NVIDIA's recipes of dense models (NVIDIA-NeMo/Megatron-Bridge,
    scripts/performance; NeMo-Framework-Launcher); two where torchtitan interleaves (distributed/pipeline_parallel.py);
    else 1."""
    pp, layers = layout["pp"], job.model.layers
    if row.text("framework") == "torchtitan" and pp > 1 and row.text("schedule").startswith("interleaved"):
        return 2
    microbatches = job.global_batch_size // dp // layout["micro_batch_size"]
    recipe = job.runtime.name.partition("@")[0] in NVIDIA_RECIPES and not job.model.is_moe
    return layers // pp if recipe and pp > 1 and layers % pp == 0 and microbatches % pp == 0 else 1


BATCHES_BY_STAGES = "2025-05"
"""Until this month torchtitan cut the batch of a rank into as many microbatches as the pipeline has stages
(pipeline_parallel_microbatches), since then into single sequences (pipeline_parallel_microbatch_size)."""


def _usual_microbatch(row: Row, job: JobSpec, layout: dict[str, Any], dp: int) -> int:
    if row.text("framework") != "torchtitan" or not "" < row.text("source_date")[:7] < BATCHES_BY_STAGES:
        return 1
    chunks = row.whole("vp") or _recipe_chunks(row, job, layout | {"micro_batch_size": 1}, dp)
    return max(1, job.global_batch_size // (dp * layout["pp"] * chunks))


MODULE_NAMES = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts", "up_proj": "mla_up_proj"}
"""How recipes of other frameworks call the modules of Megatron-LM's --recompute-modules."""


def _recompute(row: Row) -> str:
    kind, _, modules = row.text("recompute").replace(" ", "").partition(":")
    if kind == "selective" and modules:
        return "selective:" + "+".join(MODULE_NAMES.get(name, name) for name in modules.split(","))
    return (f"{kind}:{modules}" if modules else kind) or "none"


class Prediction(NamedTuple):
    """What the model says of one run."""

    run: Run  #: job, layout and what had to be assumed.
    step_s: float
    #: which of `gpuscale.memory.model.BASES` the row counts; where it is not stated, what the framework's log calls
    #: memory.
    mem_basis: str
    memory_gib: float  #: memory as that counts it.
    device_gib: float  #: all of the device's use at the fullest stage.
    memory_half_width: float  #: half the width of its 80 % interval, in log of measured over predicted.
    fits: bool  #: whether a step finds the memory it needs.
    seconds: tuple[float, ...]  #: component -> seconds, in the order of `COMPONENTS`.

    @property
    def features(self) -> Features:
        """What the run is like, for its interval."""
        return features(self.run.job, self.run.layout.row(0), dict(zip(COMPONENTS, self.seconds, strict=True)))


NOT_EVALUATED = frozenset({"gpus", "global_batch_size", "memory_limit_bytes"})
"""Fields of a job that a layout's memory and step time do not depend on; with offloading the GPUs matter: a host may
have fewer of the job's than it could."""


MEMORY_COLUMN = {"allocated": "allocated", "reserved": "reserved", "device": "nvidia-smi"}
"""What a framework's log calls memory -> as `mem_basis` says it."""


def predict_runs(rows: Sequence[Row]) -> list[Prediction | str]:
    """Predict every row, rows of the same job together; where that cannot be done, say why in one line."""
    library = Library()

    def read(row: Row) -> tuple[tuple[object, ...], tuple[Row, Run]]:
        run = read_run(row, library)
        ignored = NOT_EVALUATED - {"gpus"} if run.job.offload.any else NOT_EVALUATED
        values = {item.name: getattr(run.job, item.name) for item in fields(run.job) if item.name not in ignored}
        shared = {name: id(values[name]) for name in ("model", "cluster")}  # by identity, as presets are shared
        return tuple((values | shared).items()), (row, run)

    batches, refused = batched(rows, read)
    found: dict[int, Prediction | str] = {**refused}
    for members in batches.values():
        found |= zip((index for index, _ in members), _predict([pair for _, pair in members]), strict=True)
    return [found[index] for index in range(len(rows))]


def _predict(pairs: Sequence[tuple[Row, Run]]) -> list[Prediction | str]:
    """Evaluate rows of one job; when the batch is refused, each on its own."""
    job = pairs[0][1].job
    try:
        with np.errstate(all="ignore"):  # what is not finite is reported below
            result = evaluate(concatenate([run.layout for _, run in pairs]), job)
            components, parts = result.step.components, result.memory.at_peaks()
    except InputError as error:
        if len(pairs) == 1:
            return [reason_text(error)]
        return [value for pair in pairs for value in _predict([pair])]
    found: list[Prediction | str] = []
    for index, (row, run) in enumerate(pairs):
        step_s, device_gib = float(result.step.step_time_s[index]), float(result.memory.peak_bytes[index]) / GIB
        what = row.text("mem_basis").partition(" ")[0]
        unsaid = "nvidia-smi" if job.runtime.rule_set in OWN_LOOPS else MEMORY_COLUMN[job.runtime.memory.reported]
        basis = what if what in BASES else unsaid
        basis += " rank 0" if "rank 0" in row.text("mem_basis") else ""
        memory_gib = float(result.memory.logged(basis, job)[index]) / GIB
        if math.isfinite(step_s) and step_s > 0 and math.isfinite(device_gib):
            half = float(half_width(parts, job, basis, said=what in BASES)[index])
            fits, seconds = device_gib <= job.cluster.gpu.memory_bytes / GIB, tuple(components[:, index].tolist())
            found.append(Prediction(run, step_s, basis, memory_gib, device_gib, half, fits, seconds))
        else:
            found.append("the prediction is not finite")
    return found
