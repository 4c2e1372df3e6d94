"""Drawing and JSON of what presets hold: models, GPUs, clusters and framework profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuscale.architecture.flops import CONVENTIONS, Convention, FlopsPerToken, checked_sequence, forward_flops
from gpuscale.architecture.parameters import LayerParameters, ModelParameters, model_parameters
from gpuscale.collectives.ideal import allreduce_rates
from gpuscale.planning.recipes import FACTS, Recipe, gpu_of, precision_of
from gpuscale.presets.hardware import WAYS
from gpuscale.ratios import signed
from gpuscale.render.document import Cell, Document, Spell, Table, plain, table
from gpuscale.render.output import known, picked
from gpuscale.rules.check import cited, rules_of
from gpuscale.rules.rule import FRAMEWORKS
from gpuscale.specs.cluster import ClusterSpec, LevelSpec
from gpuscale.specs.gpu import PRECISIONS, GpuSpec
from gpuscale.specs.model import STATE_SPACES, AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, StateSpaceSpec
from gpuscale.units import GB, GIB, KIB, MIB, TB, format_count, format_rate, plural


def _sources(sources: Mapping[str, str]) -> str:
    keys: dict[str, list[str]] = {}
    for key, text in sources.items():
        keys.setdefault(text, []).append(key)
    return "\n".join(["Sources", *(f"  {', '.join(names)}\n    {text}" for text, names in keys.items())])


def _names(title: str, aliases: Sequence[str]) -> str:
    return f"{title} (also called {', '.join(aliases)})" if aliases else title


ITEM_TEXT = {
    "attention": "attention projections",
    "indexer": "sparse-attention indexer",
    "qk_norm": "query/key norms",
    "mlp": "dense MLP",
    "expert_latent": "latent of experts",
    "beside": "beside the blocks",
    "at_ends": "beside embedding and LM head",
    "norms": "layer norms",
    "biases": "biases, sinks",
    "lm_head": "LM head",
    "qkv": "query, key, value",
    "mtp": "multi-token prediction",
}
"""Item of parameters or FLOPs -> its name in tables, where that is not its name here."""

NO_ITEMS = {"joint", "routed_experts_per_token", "tp_replicated"}
"""Parameters of a layer that are part of other items, or of multi-token prediction."""

Counted = Sequence[tuple[ModelSpec, ModelParameters]]
Flops = Mapping[Convention, FlopsPerToken]


def models_document(counted: Counted) -> Document:
    """Lay out one row per model."""
    totals = [params.total for _, params in counted]
    rows = [
        {
            "name": model.name,
            "params": format_count(params.total),
            "active": format_count(params.active) if moe else "",
            "layers": str(model.layers),
            "hidden": str(model.hidden),
            "heads/kv": f"{attention.heads}/{'mla' if attention.latent else attention.kv_heads}" if attention else "",
            "ffn": f"{moe.top_k}/{moe.experts}x{moe.ffn}" if moe else str(mlp.ffn) if mlp else "",
            "vocab": str(model.vocab),
            "seq": _thousands(model.max_sequence),
        }
        for model, params in counted
        for attention, mlp, moe in [_first(model)]
    ]
    return plain(
        "Models",
        f"{len(counted)} models, {format_count(min(totals))} to {format_count(max(totals))} parameters",
        table(rows, optional=("vocab", "hidden", "seq")),
        "params: all trained parameters; active: those one token uses; ffn: MLP width, or experts\n"
        "visited/routed x width; seq: longest sequence. `gpuscale show models NAME` itemises.",
    )


def _first(model: ModelSpec) -> tuple[AttentionSpec | None, MlpSpec | None, MoeSpec | None]:
    mlp = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    return next(iter(model.attentions), None), mlp, next((kind.moe for kind in model.kinds if kind.moe), None)


def _thousands(tokens: int) -> str:
    """Format a length as people say it: 8k is 8192, 131072 is 128k, 10M is 10 x 2^20."""
    for unit, name in ((2**20, "M"), (1000, "k") if tokens % 1000 == 0 else (2**10, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{name}"
    return str(tokens)


def model_json(model: ModelSpec, params: ModelParameters) -> dict[str, Any]:
    """Return one model of the list, the shape by its first attention, MLP and experts."""
    attention, mlp, moe = _first(model)
    kinds = [model.kinds[index] for index in model.pattern]
    return {
        **picked(model, "name title family aliases"),
        "params": params.total,
        "active_params": params.active,
        "non_embedding_params": params.non_embedding,
        "layers": model.layers,
        "moe_layers": sum(kind.moe is not None for kind in kinds),
        "hidden": model.hidden,
        **{name: getattr(attention, name, None) for name in ("heads", "kv_heads", "head_dim")},
        "latent_attention": attention is not None and attention.latent is not None,
        "state_space_layers": sum(kind.state_space is not None for kind in kinds),
        "mtp_layers": model.mtp_layers,
        "ffn": getattr(mlp, "ffn", None),
        **{name: getattr(moe, name, None) for name in ("experts", "top_k")},
        "expert_ffn": getattr(moe, "ffn", None),
        "shared_ffn": getattr(moe, "shared_ffn", None),
        "vocab": model.vocab,
        "sequence": model.max_sequence,
        **picked(model, "tied_embeddings published_params published_active_params source notes"),
        "towers": {tower.kind: tower.parameters for tower in model.towers},
        "caveats": model.caveats,
    }


def itemised_json(model: ModelSpec, sequence: int) -> dict[str, Any]:
    """Return one model with its kinds of layers, its parameters and its FLOPs per token by item."""
    params = model_parameters(model)
    kinds = zip(model.kinds, params.kinds, params.counts, strict=True)
    passes = {"forward_total": 1, "backward_total": 2, "training_total": 3}
    per_token = {
        str(name): {
            "forward": {item: float(value) for item, value in each._asdict().items()},
            **{total: times * float(each.total) for total, times in passes.items()},
        }
        for name, each in _flops(model, sequence).items()
    }
    return {
        "model": model_json(model, params),
        "layer_kinds": [
            {"layers": count, "spec": kind, "parameters": {**each._asdict(), **picked(each, "total active")}}
            for kind, each, count in kinds
        ],
        "pattern": model.pattern,
        "numerics": {name: value for name, value in asdict(model.numerics).items() if value is not None},
        "parameters": {**_parameter_items(params), "total": params.total, "mtp_apart": params.mtp},
        "flops_per_token": {"sequence": sequence, **per_token},
        "rule_6n_flops_per_token": 6 * params.active,
    }


def _parameter_items(params: ModelParameters) -> dict[str, int]:
    """Parameters of the whole model by item; they sum to the total."""
    layers = [(kind._asdict(), count) for kind, count in zip(params.kinds, params.counts, strict=True)]
    names = [name for name in LayerParameters._fields if name not in NO_ITEMS]
    items = {name: sum(count * kind[name] for kind, count in layers) for name in names}
    ends = picked(params, "at_ends final_norm lm_head")
    return {**picked(params, "embedding positions"), **items, **ends}


def _flops(model: ModelSpec, sequence: int) -> Flops:
    return {convention: forward_flops(model, sequence, convention) for convention in CONVENTIONS}


def model_document(model: ModelSpec, *, sequence: int | None = None) -> Document:
    """Lay out one model, with sequences of its usual length if none is given."""
    params, sequence = model_parameters(model), checked_sequence(model, sequence)
    flops = _flops(model, sequence)
    active = f", {format_count(params.active)} active per token" if model.is_moe else ""
    tied = "tied to" if model.tied_embeddings else "apart from"
    learned = ", learned positions" if model.learned_positions else ""
    shape = (
        f"hidden {model.hidden}, vocabulary {model.vocab:,}, LM head {tied} the embedding{learned}, "
        f"sequences to {model.max_sequence:,}"
    )
    mixer = "token mixer" if any(kind.state_space for kind in model.kinds) else "attention"
    layers = [
        {
            mixer: _mixer_text(kind),
            "block": _block_text(kind) + "".join(f", not in {name}" for name in kind.wide_under),
            "layers": str(count),
            "params each": f"{each.total:,}",
            "active each": f"{each.active:,}",
        }
        for kind, each, count in zip(model.kinds, params.kinds, params.counts, strict=True)
    ]
    rule = 6.0 * params.active
    ratios = ", ".join(f"{3 * float(each.total) / rule:.3f} ({name})" for name, each in flops.items())
    notes = [
        f"6N rule, N = {format_count(params.active)} active: {rule / 1e9:,.4f} GFLOPs; counted / rule: {ratios}",
        "causal counts the keys that a causal mask leaves, full counts all; one multiply-add is 2 FLOPs;",
        "norms, activations, the embedding lookup and recomputation are not counted (docs/models.md)",
        *(f"note: {note}" for note in (*model.caveats, *model.notes)),
        f"source: {model.source}",
    ]
    return plain(
        model.title,
        f"{model.title}: {format_count(params.total)} parameters{active}, {model.layers} layers",
        table(layers, left=2),
        shape,
        _parameter_table(model, params),
        "\n".join(_published_lines(model, params)),
        _flop_table(sequence, flops),
        "\n".join(notes),
    )


def _mixer_text(kind: LayerSpec) -> str:
    texts = [
        kind.attention and _attention_text(kind.attention),
        kind.state_space and _state_space_text(kind.state_space),
    ]
    again = ", weights of an earlier layer" if kind.reused else ""
    return (" beside ".join(text for text in texts if text) or "none") + again


def _state_space_text(spec: StateSpaceSpec) -> str:
    heads = f"{spec.heads} channels" if spec.head_dim == 1 else f"{spec.heads} heads of {spec.head_dim}"
    return f"{STATE_SPACES[spec.kind]}, {heads}, state {spec.state}"


def _attention_text(attention: AttentionSpec) -> str:
    heads = f"{attention.heads} heads of {attention.head_dim}"
    if attention.latent:
        rank = attention.latent.query_rank
        ranks = f"ranks q {rank}, kv {attention.latent.kv_rank}" if rank else f"rank kv {attention.latent.kv_rank}"
        keys = f", {attention.indexer.top_k} keys" if attention.indexer else ""
        return f"{heads}, latent, {ranks}{keys}"
    reach = "chunk" if attention.chunked else "window"
    window = f", {reach} {attention.window}" if attention.window else ""
    compressed = f", keys of {attention.compression} tokens" if attention.compression else ""
    shared = ", keys of an earlier layer" if attention.keys == "shared" else ""
    return f"{heads}, {attention.kv_heads} kv{window}{compressed}{shared}"


def _block_text(kind: LayerSpec) -> str:
    dense = f"MLP {kind.mlp.ffn}{' gated' if kind.mlp.gated else ''}" if kind.mlp else ""
    if kind.moe is None:
        return dense or "none"
    dense = f"{dense} beside " if dense else ""
    shared = f" + {kind.moe.shared_ffn}" if kind.moe.shared_ffn else ""
    shared += f" in {kind.moe.latent}" if kind.moe.latent else ""
    return f"{dense}{kind.moe.experts} experts of {kind.moe.ffn}{shared}, top {kind.moe.top_k}"


def _parameter_table(model: ModelSpec, params: ModelParameters) -> Table:
    def row(name: str, count: int, *, share: bool = True) -> dict[str, str]:
        return {"parameters": name, "count": f"{count:,}", "share": f"{count / params.total:.2%}" if share else ""}

    items = {name: count for name, count in _parameter_items(params).items() if count or name == "lm_head"}
    rows = [row(_item_text(name), count) for name, count in items.items()]
    if model.tied_embeddings:
        rows[-1]["parameters"] = "LM head (tied: 0)"
    rows.append(row("total", params.total))
    if model.is_moe:
        rows.append(row("active per token", params.active))
    rows.append(row("without embedding and LM head", params.non_embedding, share=False))
    if params.mtp:
        rows.append(row("multi-token prediction, apart", params.mtp, share=False))
    return table(rows)


def _published_lines(model: ModelSpec, params: ModelParameters) -> Iterator[str]:
    if model.published_params:
        gap = params.total - model.published_params
        counted = f"counted {gap:+,} ({signed(gap / model.published_params, 3, 'below 0.001%')})" if gap else "the same"
        yield f"published: {model.published_params:,} parameters; {counted}"
    if model.published_active_params:
        without = params.active - params.embedding
        yield (
            f"published active: {format_count(model.published_active_params)} (rounded); counted "
            f"{format_count(params.active)}, {format_count(without)} without the input embedding"
        )


def _item_text(name: str) -> str:
    return ITEM_TEXT.get(name, name.replace("_", " "))


def _flop_table(sequence: int, flops: Flops) -> Table:
    items = [each._asdict() for each in flops.values()]
    lines = {_item_text(name): [each[name] for each in items] for name in items[0] if any(each[name] for each in items)}
    for text, factor in (("forward", 1.0), ("backward", 2.0), ("forward + backward (model FLOPs)", 3.0)):
        lines[text] = [factor * each.total for each in flops.values()]
    first, headers = f"GFLOPs per token, sequence {sequence:,}", [f"{name} attention" for name in flops]
    cells = {text: [f"{float(value) / 1e9:,.4f}" for value in values] for text, values in lines.items()}
    return table([{first: text, **dict(zip(headers, values, strict=True))} for text, values in cells.items()])


def gpus_document(gpus: Sequence[GpuSpec]) -> Document:
    """Lay out one row per GPU."""
    rows = []
    for gpu in gpus:
        peaks = {name: f"{peak / TB:.4g}" for name, peak in gpu.peak_flops_per_s.items()}
        row = {
            "name": gpu.name,
            "SMs": str(gpu.sm_count),
            "bf16": peaks["bf16"] if "bf16" in peaks else f"{peaks['fp16']}*" if "fp16" in peaks else "-",
            "fp8": peaks.get("fp8", "-"),
            "fp4": peaks.get("fp4", "-"),
            "memory GiB": f"{gpu.memory_bytes / GIB:.1f}",
            "memory GB/s": format_rate(gpu.memory_bandwidth_bytes_per_s),
            "links": format_rate(gpu.link_egress_bytes_per_s) if gpu.links else "-",
            "host": format_rate(gpu.host_link_bytes_per_s),
            "W": f"{gpu.power_w:.4g}",
        }
        rows.append(row)
    return plain(
        "GPUs",
        f"{len(gpus)} GPUs. Dense TFLOP/s; links and memory in GB/s, links per direction and GPU.",
        table(rows, optional=("W", "host", "SMs", "fp4")),
        "* fp16; the GPU has no bf16" if any("bf16" not in gpu.peak_flops_per_s for gpu in gpus) else "",
    )


def gpu_document(gpu: GpuSpec) -> Document:
    """Lay out everything about one GPU."""
    peaks = gpu.peak_flops_per_s
    best = next((name for name in ("bf16", "fp16", "fp32") if name in peaks), None)
    rate = f"{peaks[best] / TB:.4g} dense TFLOP/s in {best}, " if best else ""
    memory = f"{gpu.memory_bytes / GIB:.1f} GiB at {format_rate(gpu.memory_bandwidth_bytes_per_s)} GB/s"
    rate_out = format_rate(gpu.link_egress_bytes_per_s)
    links = f"links of {rate_out} GB/s per direction" if gpu.links else "no links between GPUs"
    rows = [
        {
            "precision": name,
            "dense TFLOP/s": f"{peaks[name] / TB:.5g}",
            "critical FLOP/byte": f"{gpu.critical_intensity(name):.0f}",
        }
        for name in PRECISIONS
        if name in peaks
    ]
    kernels = gpu.kernels
    gemm = [f"{name} {kernels.gemm_fraction[name]:g}" for name in PRECISIONS if name in gpu.peak_flops_per_s]
    attention = f"{kernels.attention_forward_fraction:g} forward, {kernels.attention_backward_fraction:g} backward"
    constants = [
        ("GEMM, share of peak", ", ".join(gemm)),
        ("clock in a long run", f"{kernels.sustained_clock_fraction:g} of that in a short one"),
        ("GEMM tile", f"{kernels.tile_m} x {kernels.tile_n}, {kernels.tile_overhead_s * 1e6:g} us overhead"),
        ("attention, share of peak", attention),
        ("memory, share of bandwidth", f"{kernels.hbm_fraction:g}"),
        ("launch gap", f"{kernels.launch_s * 1e6:g} us"),
    ]
    announced = f"\nnote: {gpu.announced}" if gpu.announced else ""
    return plain(
        gpu.title,
        f"{gpu.name}: {rate}{memory}, {links}\n{_names(gpu.title, gpu.aliases)}{announced}",
        _gpu_facts(gpu),
        table(rows),
        constants,
        _sources(gpu.sources),
    )


def _gpu_facts(gpu: GpuSpec) -> list[tuple[str, str]]:
    links = (
        f"{gpu.links} {gpu.link_name} {gpu.link_generation} x {gpu.link_bytes_per_s / GB:g} GB/s = "
        f"{gpu.link_egress_bytes_per_s / GB:g} GB/s per direction"
        if gpu.links
        else "none"
    )
    in_sms = [
        f"{size / KIB:g} KiB per SM, {size * gpu.sm_count / MIB:.4g} MiB in total"
        for size in (gpu.smem_per_sm_bytes, gpu.registers_per_sm_bytes, gpu.tmem_per_sm_bytes)
    ]
    l2_rate = f" at {gpu.l2_bytes_per_s / GB:,.5g} GB/s" if gpu.l2_bytes_per_s else ""
    clocks = [f"{hertz / 1e6:g}" for hertz in (gpu.clock_base_hz, gpu.clock_boost_hz, gpu.clock_max_hz)]
    vector = [f"{vector_flops_per_s(gpu, hertz) / TB:.1f}" for hertz in (gpu.clock_base_hz, gpu.clock_max_hz)]
    bridged = f"; a bridge joins {gpu.bridged_gpus} cards" if gpu.bridged_gpus else ""
    no_peers = "" if gpu.pcie_peers else "; no peer-to-peer: data between cards takes the memory of the host"
    half = [("tensor cores", f"{gpu.fp32_accumulate_rate:g} of their rate where products are added up in fp32")]
    return [
        ("vendor, architecture", f"{gpu.vendor}, {gpu.architecture}"),
        ("SMs x cores", f"{gpu.sm_count} x {gpu.cores_per_sm} = {gpu.sm_count * gpu.cores_per_sm:,} fp32 cores"),
        ("clock base / boost / max", f"{' / '.join(clocks)} MHz"),
        ("fp32 vector, no FMA", f"{' / '.join(vector)} TFLOP/s at base / max clock, twice that with FMA"),
        *(half if gpu.fp32_accumulate_rate < 1 else []),
        ("SMEM", in_sms[0]),
        ("registers", in_sms[1]),
        *([("tensor memory", in_sms[2])] if gpu.tmem_per_sm_bytes else []),
        ("L2", f"{gpu.l2_bytes / MIB:g} MiB{l2_rate}"),
        ("memory", f"{gpu.memory_type or 'type not stated'}, {gpu.memory_datasheet_bytes / GB:g} GB by the datasheet"),
        ("memory the driver reports", f"{gpu.memory_bytes / MIB:,.0f} MiB = {gpu.memory_bytes / GIB:.1f} GiB"),
        ("memory bandwidth", f"{gpu.memory_bandwidth_bytes_per_s / GB:,.5g} GB/s"),
        ("links", f"{links}{bridged}"),
        ("host link", f"{gpu.host_link_bytes_per_s / GB:g} GB/s per direction{no_peers}"),
        ("power", f"{gpu.power_w:g} W"),
    ]


def vector_flops_per_s(gpu: GpuSpec, clock_hz: float) -> float:
    """Return fp32 operations per second of cores, one per cycle (no fused multiply-add)."""
    return gpu.sm_count * gpu.cores_per_sm * clock_hz


def gpu_json(gpu: GpuSpec) -> dict[str, Any]:
    """Return one GPU; units stand in the keys."""
    has = [name for name in PRECISIONS if name in gpu.peak_flops_per_s]
    return {
        **picked(gpu, "name title vendor architecture aliases sm_count cores_per_sm"),
        "fp32_cores": gpu.sm_count * gpu.cores_per_sm,
        **picked(gpu, "clock_base_mhz clock_boost_mhz clock_max_mhz smem_per_sm_bytes registers_per_sm_bytes"),
        **picked(gpu, "l2_bytes memory_type memory_datasheet_gb memory_gib"),
        **known(gpu, "l2_gb_per_s tmem_per_sm_bytes announced bridged_gpus"),
        **picked(gpu, "memory_bandwidth_gb_per_s"),
        "peak_dense_tflops": {name: gpu.peak_flops_per_s[name] / TB for name in has},
        "critical_intensity_flops_per_byte": {name: gpu.critical_intensity(name) for name in has},
        **picked(gpu, "link_name link_generation links link_gb_per_s_per_direction"),
        **picked(gpu, "link_egress_gb_per_s_per_direction host_link_gb_per_s_per_direction power_w"),
        **picked(gpu, "fp32_accumulate_rate pcie_peers"),
    }


def clusters_document(clusters: Sequence[ClusterSpec]) -> Document:
    """Lay out one row per cluster."""
    return plain(
        "Clusters",
        f"{len(clusters)} clusters. Levels innermost first, name(GPUs); GB/s per GPU, one direction, all sending.",
        table([_cluster_row("name", one.name, one, more="+" * one.extendable) for one in clusters], left=2),
        "+ for more GPUs than these, the top level widens at the same bandwidth per GPU",
    )


def _cluster_row(header: str, name: str, cluster: ClusterSpec, more: str = "") -> dict[str, str]:
    return {
        header: name,
        "GPU": cluster.gpu.name,
        "GPUs": f"{cluster.gpus:,}{more}",
        "levels": " ".join(f"{level.name}({level.gpus})" for level in cluster.levels),
        "GB/s": " / ".join(format_rate(level.egress_bytes_per_s) for level in cluster.levels),
    }


def cluster_document(cluster: ClusterSpec, *, note: str | None = None) -> Document:
    """Lay out one cluster, already sized; the `note` says how it was extended."""
    rates = ", ".join(f"{level.name} {format_rate(level.egress_bytes_per_s)}" for level in cluster.levels)
    pools = [_cluster_row("pool", pool.name, pool.cluster) for pool in cluster.pools]
    parts = [f"{pool.cluster.gpus:,} x {pool.cluster.gpu.name}" for pool in cluster.pools]
    gpus = " and ".join(parts) or f"{cluster.gpus:,} x {cluster.gpu.name}"
    head = f"{cluster.name}: {gpus}; GB/s per GPU and direction: {rates}\n{_names(cluster.title, cluster.aliases)}"
    rows = [level_row(level, rate) for level, rate in zip(cluster.levels, allreduce_rates(cluster), strict=True)]
    notes = [
        "Per direction, wire rate, all GPUs at once. AllReduce: bytes / time over all GPUs under the level, ideal and "
        "without latency, bound by the slowest level up to this one.",
        *_wiring_lines(cluster),
    ]
    if not any(level.torus_shape or level.global_bytes_per_s for level in cluster.levels):
        notes.insert(1, "The bisection bandwidth, both directions added as vendors do, is the total.")
    if cluster.switches:
        counts = " + ".join(f"{count:,} {name}" for name, count in cluster.switches.items())
        notes.append(f"Switches of all units: {counts} = {sum(cluster.switches.values()):,}.")
    if any(not level.in_network_reduction for level in cluster.levels):
        notes.append("* ReduceScatter then AllGather, 2 (M-1)/M bytes: no switch of the level reduces in-network")
    return plain(
        cluster.title,
        f"{head}\nnote: {note}" if note else head,
        table(pools, left=2) if pools else "",
        table(rows, left=2, optional=("fabric", "switches", "total\nTB/s")),
        "\n".join(notes),
        _sources(cluster.sources),
    )


def level_row(level: LevelSpec, allreduce_bytes_per_s: float = 0.0) -> dict[str, str]:
    """Return the cells of a level; the rate is 0 where there is nothing to reduce."""
    rate = format_rate(allreduce_bytes_per_s) if allreduce_bytes_per_s else "-"
    return {
        "level": level.name,
        "fabric": level.fabric,
        "GPUs": f"{level.gpus:,}",
        "switches": str(level.switches) if level.switches else "-",
        "total\nTB/s": f"{level.total_bytes_per_s / TB:.4g}",
        "GPU to GPU\nGB/s": format_rate(level.egress_bytes_per_s),
        "AllReduce\nGB/s": rate if level.in_network_reduction or rate == "-" else f"{rate}*",
        "hop\nus": f"{level.hop_latency_s * 1e6:g}",
        "adds\nup": "yes" if level.in_network_reduction else "no",
        "link\nefficiency": f"{level.link_efficiency:g}",
    }


def _wiring_lines(cluster: ClusterSpec) -> Iterator[str]:
    if host := cluster.host:
        shared = f", {host.gpus_per_uplink} GPUs on each link to it" if host.gpus_per_uplink > 1 else ""
        if host.uplink_bytes_per_s:
            shared += f", {host.uplink_bytes_per_s / GB:g} GB/s on each link"
        if host.threads_per_gpu:
            shared += f", {plural(host.threads_per_gpu, 'CPU thread')} per GPU"
        memory = f"{host.memory_bytes / GIB:,.0f} GiB of host memory at {host.memory_bytes_per_s / GB:g} GB/s"
        yield f"Host: {plural(host.gpus, 'GPU')} with {memory}{shared}."
    for index, level in enumerate(cluster.levels):
        parts = [*_shape(cluster, index, level), *_rails_and_path(level)]
        if parts:
            yield f"{level.name}: {'; '.join(parts)}"


def _shape(cluster: ClusterSpec, index: int, level: LevelSpec) -> Iterator[str]:
    if level.torus_shape:
        shape = " x ".join(str(length) for length in level.torus_shape)
        axis = level.egress_bytes_per_s / len(level.torus_shape) / GB
        yield f"torus of {shape}, the first axis first; around one axis {axis:.4g} GB/s, along a part of it half"
    elif level.global_bytes_per_s:
        links = level.global_bytes_per_s * cluster.levels[index - 1].gpus / GB
        share = level.minimal_share
        route = "adaptive routing" if share is None else f"{share:.0%} of the traffic takes the direct route"
        yield f"dragonfly of {cluster.children(index)} groups, each with {links:,.5g} GB/s of global links; {route}"
    elif level.topology == "mesh":
        yield "a link from each GPU to every other"


RAILS = {
    "optimised": ("rail-optimised", "over the level above"),
    "only": ("rails only, no spine joins them", "passed on inside a node"),
}
"""How a level has rails -> in words, and the way from one rail to another without PXN."""


def _rails_and_path(level: LevelSpec) -> Iterator[str]:
    if level.rails in RAILS:
        kind, around = RAILS[level.rails]
        yield f"{kind}: one hop on a rail, to other rails {'over NVLink first (PXN)' if level.pxn else around}"
    if level.path:
        yield f"path {level.path}, {WAYS[level.path].title}"
    if level.gpus_per_pcie_switch:
        cards = level.nics_per_pcie_switch
        beside = f" and {plural(cards, 'card')}" if cards else ""
        yield f"{plural(level.gpus_per_pcie_switch, 'GPU')}{beside} behind each PCIe switch"


def cluster_json(cluster: ClusterSpec) -> dict[str, Any]:
    """Return one cluster; units stand in the keys, an AllReduce rate of null has nothing to reduce."""
    may_be = (
        "topology torus_shape global_gb_per_s_per_gpu path gpus_per_pcie_switch nics_per_pcie_switch wan_gbit_per_s "
        "round_trip_ms"
    )
    return {
        **picked(cluster, "name title"),
        "gpu": cluster.gpu.name,
        **picked(cluster, "gpus extendable aliases switches"),
        "levels": [
            {
                **picked(level, "name fabric gpus switches total_tb_per_s"),
                "gpu_to_gpu_gb_per_s": level.egress_bytes_per_s / GB,
                **picked(level, "link_gb_per_s_per_gpu_per_direction"),
                "allreduce_gb_per_s": rate / GB or None,
                **picked(level, "hop_latency_us in_network_reduction link_efficiency minimal_share rails pxn"),
                **known(level, may_be),
            }
            for level, rate in zip(cluster.levels, allreduce_rates(cluster), strict=True)
        ],
        "host": cluster.host
        and picked(cluster.host, "gpus gpus_per_uplink uplink_gb_per_s memory_gib memory_gb_per_s threads_per_gpu"),
        "pools": [
            {
                "name": pool.name,
                "cluster": pool.cluster.name,
                "gpu": pool.cluster.gpu.name,
                "gpus": pool.cluster.gpus,
                "levels": [
                    {**picked(level, "name fabric gpus"), "gpu_to_gpu_gb_per_s": level.egress_bytes_per_s / GB}
                    for level in pool.cluster.levels
                ],
            }
            for pool in cluster.pools
        ],
    }


def frameworks_document(files: Mapping[str, Mapping[str, Any]]) -> Document:
    """Lay out one line per profile."""
    rows = [
        {
            "name": name,
            "framework": file["title"],
            "earlier, until": ", ".join(one.partition("@")[2] for one in file["generations"][1:]),
            "rules": file["rule_set"],
        }
        for name, file in files.items()
    ]
    head = f"{len(files)} frameworks; plans use megatron-lm unless `framework` says otherwise, as NAME or NAME@YYYY-MM"
    return plain("Framework profiles", head, table(rows, left=4))


def framework_document(file: Mapping[str, Any]) -> Document:
    """Lay out a profile, and the rules by which its framework runs."""
    apart = {"name", "title", "sources", "memory", "space", "launch", "generations", "aliases"}
    settings = {key: value for key, value in file.items() if key not in apart}
    settings |= {f"space.{key}": value for key, value in file["space"].items() if value}
    settings |= {f"memory.{key}": value for key, value in file["memory"].items()}
    rule_set = FRAMEWORKS[file["rule_set"]]
    rules = [
        f"  {rule['code']}: {rule['text']}\n      {rule['where']}"
        + (f"\n      not caught by its own check: {rule['missed']}" if rule["missed"] else "")
        for rule in rules_json(file["rule_set"])
    ]
    launch = ["launched by", *(f"  {option}" for option in file["launch"])] if file["launch"] else []
    return plain(
        "Framework profile",
        f"{file['name']}: {file['title']}",
        table([{"setting": key, "value": _value_text(value)} for key, value in settings.items()], left=2),
        "\n".join(launch),
        "\n".join(f"  {keys}: {source}" for keys, source in file["sources"].items()),
        f"rules of {file['rule_set']} ({rule_set.title}; {rule_set.basis})",
        *rules,
    )


def recipes_document(recipes: Sequence[Recipe]) -> Document:
    """Lay out one line per recipe."""
    rows: list[dict[str, Cell]] = [
        {
            "name": one.name,
            "GPUs": (f"{one.job['gpus']:,} x {gpu_of(one)}", one.job["gpus"]),
            "layout": one.text,
            "precision": precision_of(one),
            "by": one.by,
        }
        for one in recipes
    ]
    head = f"{plural(len(recipes), 'recipe')}; `gpuscale show recipes NAME` shows one with its source"
    return plain("Published recipes", head, table(rows, left=5, optional=("by", "precision", "GPUs")))


def recipe_document(recipe: Recipe, *, spell: Spell = str) -> Document:
    """Lay out a recipe, and how to evaluate it."""
    facts = [(key, value) for key in ("title", *FACTS) if (value := getattr(recipe, key))]
    facts += [(command, spell(f"gpuscale {command} `recipe={recipe.name}`")) for command in ("estimate", "plan")]
    stated = {**recipe.job, **recipe.layout}
    rows = [{"option": name, "value": _value_text(value)} for name, value in stated.items()]
    return plain("Published recipe", f"{recipe.name}: {recipe.text}", table(rows, left=2), facts)


def recipe_json(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as JSON has it."""
    return {**recipe.to_dict(), "gpu": gpu_of(recipe), "text": recipe.text}


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def rules_json(rule_set: str) -> list[dict[str, str]]:
    """Return the rules of a rule set, in the order they are checked."""
    found = ((rule, cited(rule, rule_set)) for rule in rules_of(rule_set))
    return [{"code": rule.code, "text": rule.text, "where": cite.where, "missed": cite.missed} for rule, cite in found]
