"""Drawing of models: the list, and one model's shape, parameters and FLOPs per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from gpuscale.architecture.flops import Convention, FlopsPerToken
from gpuscale.architecture.parameters import LayerParameters, ModelParameters
from gpuscale.render.console import console, table
from gpuscale.render.plain import print_json
from gpuscale.specs import AttentionSpec, LayerSpec, ModelSpec
from gpuscale.units import format_count

SCHEMA = "gpuscale.models/1"

LAYER_ITEMS = {
    "attention": "attention projections",
    "indexer": "sparse-attention indexer",
    "state_space": "state space",
    "qk_norm": "query/key norms",
    "mlp": "dense MLP",
    "router": "router",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "expert_latent": "latent of experts",
    "norms": "layer norms",
    "biases": "biases, sinks",
}
FLOP_ITEMS = {
    "qkv": "query, key, value",
    "attention_core": "attention core",
    "attention_output": "attention output",
    "indexer": "sparse-attention indexer",
    "state_space": "state space",
    "mlp": "dense MLP",
    "router": "router",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "expert_latent": "latent of experts",
    "lm_head": "LM head",
    "mtp": "multi-token prediction",
}

Counted = Sequence[tuple[ModelSpec, ModelParameters]]


def print_list(counted: Counted) -> None:
    """Print one line per model, after a line that says how many there are."""
    out = console()
    totals = [params.total for _, params in counted]
    out.print(f"{len(counted)} models, {format_count(min(totals))} to {format_count(max(totals))} parameters\n")
    headers = ("name", "params", "active", "layers", "hidden", "heads/kv", "ffn", "vocab", "seq")
    out.print(table(headers, [_line(model, params) for model, params in counted]))
    out.print("\nparams: all trained parameters; active: those one token uses; ffn: MLP width, or experts")
    out.print("visited/routed x width; seq: longest sequence. `gpuscale models show NAME` itemises.")


def _line(model: ModelSpec, params: ModelParameters) -> tuple[str, ...]:
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    mlp = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    attention = next(iter(model.attentions), None)
    return (
        model.name,
        format_count(params.total),
        format_count(params.active) if moe else "",
        str(model.layers),
        str(model.hidden),
        f"{attention.heads}/{'mla' if attention.latent else attention.kv_heads}" if attention else "",
        f"{moe.top_k}/{moe.experts}x{moe.ffn}" if moe else str(mlp.ffn) if mlp else "",
        str(model.vocab),
        _thousands(model.max_sequence),
    )


def _thousands(tokens: int) -> str:
    """Format a sequence length as people say it: 8k is 8192, 131072 is 128k, 10M is 10 x 2^20."""
    for unit, name in ((2**20, "M"), (1000, "k") if tokens % 1000 == 0 else (2**10, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{name}"
    return str(tokens)


def print_list_json(counted: Counted) -> None:
    """Print the list as JSON: `models`, one object each."""
    print_json(SCHEMA, {"models": [_summary(model, params) for model, params in counted]})


def _summary(model: ModelSpec, params: ModelParameters) -> dict[str, Any]:
    attention = next(iter(model.attentions), None)
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    mlp = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    return {
        "name": model.name,
        "title": model.title,
        "family": model.family,
        "aliases": list(model.aliases),
        "params": params.total,
        "active_params": params.active,
        "non_embedding_params": params.non_embedding,
        "layers": model.layers,
        "moe_layers": sum(model.kinds[index].moe is not None for index in model.pattern),
        "hidden": model.hidden,
        "heads": attention.heads if attention else None,
        "kv_heads": attention.kv_heads if attention else None,
        "head_dim": attention.head_dim if attention else None,
        "latent_attention": attention is not None and attention.latent is not None,
        "state_space_layers": sum(model.kinds[index].state_space is not None for index in model.pattern),
        "mtp_layers": model.mtp_layers,
        "ffn": mlp.ffn if mlp else None,
        "experts": moe.experts if moe else None,
        "top_k": moe.top_k if moe else None,
        "expert_ffn": moe.ffn if moe else None,
        "shared_ffn": moe.shared_ffn if moe else None,
        "vocab": model.vocab,
        "sequence": model.max_sequence,
        "tied_embeddings": model.tied_embeddings,
        "published_params": model.published_params,
        "published_active_params": model.published_active_params,
        "source": model.source,
        "notes": list(model.notes),
    }


Flops = Mapping[Convention, FlopsPerToken]


def print_model(model: ModelSpec, params: ModelParameters, sequence: int, flops: Flops) -> None:
    """Print one model: verdict, layers, parameters, FLOPs per token, notes and source."""
    out = console()
    active = f", {format_count(params.active)} active per token" if model.is_moe else ""
    out.print(f"{model.title}: {format_count(params.total)} parameters{active}, {model.layers} layers\n")
    out.print(_layer_table(model, params))
    out.print(_shape_line(model) + "\n")
    out.print(_parameter_table(model, params))
    for line in _published_lines(model, params):
        out.print(line)
    out.print()
    out.print(_flop_table(sequence, flops))
    for line in _rule_lines(params, flops):
        out.print(line)
    for note in model.notes:
        out.print(f"note: {note}")
    out.print(f"source: {model.source}")


def _shape_line(model: ModelSpec) -> str:
    tied = "tied to" if model.tied_embeddings else "apart from"
    learned = ", learned positions" if model.learned_positions else ""
    return (
        f"hidden {model.hidden}, vocabulary {model.vocab:,}, LM head {tied} the embedding{learned}, "
        f"sequences to {model.max_sequence:,}"
    )


def _layer_table(model: ModelSpec, params: ModelParameters) -> Any:
    rows = [
        (_mixer_text(kind), _block_text(kind), str(count), f"{each.total:,}", f"{each.active:,}")
        for kind, each, count in zip(model.kinds, params.kinds, params.counts, strict=True)
    ]
    mixer = "token mixer" if any(kind.state_space for kind in model.kinds) else "attention"
    return table((mixer, "block", "layers", "params each", "active each"), rows, left=2)


STATE_SPACES = {"mamba2": "Mamba-2", "gdn": "gated delta net", "kda": "Kimi delta attention"}


def _mixer_text(kind: LayerSpec) -> str:
    if kind.state_space is not None:
        spec = kind.state_space
        return f"{STATE_SPACES[spec.kind]}, {spec.heads} heads of {spec.head_dim}, state {spec.state}"
    return "none" if kind.attention is None else _attention_text(kind.attention)


def _attention_text(attention: AttentionSpec) -> str:
    if attention.latent:
        rank = attention.latent.query_rank
        ranks = f"ranks q {rank}, kv {attention.latent.kv_rank}" if rank else f"rank kv {attention.latent.kv_rank}"
        keys = f", {attention.indexer.top_k} keys" if attention.indexer else ""
        return f"{attention.heads} heads of {attention.head_dim}, latent, {ranks}{keys}"
    reach = "chunk" if attention.chunked else "window"
    window = f", {reach} {attention.window}" if attention.window else ""
    return f"{attention.heads} heads of {attention.head_dim}, {attention.kv_heads} kv{window}"


def _block_text(kind: LayerSpec) -> str:
    if kind.mlp:
        return f"MLP {kind.mlp.ffn}{' gated' if kind.mlp.gated else ''}"
    if kind.moe is None:
        return "none"
    shared = f" + {kind.moe.shared_ffn}" if kind.moe.shared_ffn else ""
    shared += f" in {kind.moe.latent}" if kind.moe.latent else ""
    return f"{kind.moe.experts} experts of {kind.moe.ffn}{shared}, top {kind.moe.top_k}"


def parameter_items(params: ModelParameters) -> dict[str, int]:
    """Parameters of the whole model by item; they sum to the total."""
    layers = {name: _over_layers(params, name) for name in LAYER_ITEMS}
    ends = {"final_norm": params.final_norm, "lm_head": params.lm_head}
    return {"embedding": params.embedding, "positions": params.positions, **layers, **ends}


def _over_layers(params: ModelParameters, name: str) -> int:
    return sum(count * _item(kind, name) for count, kind in zip(params.counts, params.kinds, strict=True))


def _item(kind: LayerParameters, name: str) -> int:
    return int(getattr(kind, name))


def _parameter_table(model: ModelSpec, params: ModelParameters) -> Any:
    labels = {"embedding": "embedding", "positions": "positions", **LAYER_ITEMS, "final_norm": "final norm"}
    labels["lm_head"] = "LM head (tied: 0)" if model.tied_embeddings else "LM head"
    items = {name: count for name, count in parameter_items(params).items() if count or name == "lm_head"}
    rows = [(labels[name], f"{count:,}", f"{count / params.total:.2%}") for name, count in items.items()]
    rows += [("total", f"{params.total:,}", "100.00%")]
    if model.is_moe:
        rows += [("active per token", f"{params.active:,}", f"{params.active / params.total:.2%}")]
    rows += [("without embedding and LM head", f"{params.non_embedding:,}", "")]
    if params.mtp:
        rows += [("multi-token prediction, apart", f"{params.mtp:,}", "")]
    return table(("parameters", "count", "share"), rows)


def _published_lines(model: ModelSpec, params: ModelParameters) -> list[str]:
    lines = []
    if model.published_params:
        difference = params.total - model.published_params
        exact = (
            "the same" if not difference else f"counted {difference:+,} ({difference / model.published_params:+.3%})"
        )
        lines.append(f"published: {model.published_params:,} parameters; {exact}")
    if model.published_active_params:
        without = params.active - params.embedding
        lines.append(
            f"published active: {format_count(model.published_active_params)} (rounded); counted "
            f"{format_count(params.active)}, {format_count(without)} without the input embedding"
        )
    return lines


def _flop_table(sequence: int, flops: Flops) -> Any:
    rows = [
        (label, *(_giga(each.items()[name]) for each in flops.values()))
        for name, label in FLOP_ITEMS.items()
        if any(each.items()[name] for each in flops.values())
    ]
    for label, factor in (("forward", 1.0), ("backward", 2.0), ("forward + backward (model FLOPs)", 3.0)):
        rows.append((label, *(_giga(factor * each.total) for each in flops.values())))
    headers = (f"GFLOPs per token, sequence {sequence:,}", *(f"{name} attention" for name in flops))
    return table(headers, rows)


def _giga(value: Any) -> str:
    return f"{float(value) / 1e9:,.4f}"


def _rule_lines(params: ModelParameters, flops: Flops) -> list[str]:
    rule = 6.0 * params.active
    ratios = ", ".join(f"{3 * float(each.total) / rule:.3f} ({name})" for name, each in flops.items())
    return [
        f"6N rule, N = {format_count(params.active)} active: {rule / 1e9:,.4f} GFLOPs; counted / rule: {ratios}",
        "causal counts the keys a causal mask leaves, full counts all; one multiply-add is 2 FLOPs;",
        "norms, activations, the embedding lookup and recomputation are not counted (docs/models.md)",
    ]


def print_model_json(model: ModelSpec, params: ModelParameters, sequence: int, flops: Flops) -> None:
    """Print one model as JSON: `model` (as in the list), `layer_kinds`, `parameters`, `flops_per_token`."""
    kinds = [
        {"layers": count, "spec": asdict(kind), "parameters": _layer_json(each)}
        for kind, each, count in zip(model.kinds, params.kinds, params.counts, strict=True)
    ]
    counted = {str(name): _flops_json(each) for name, each in flops.items()}
    body = {
        "model": _summary(model, params),
        "layer_kinds": kinds,
        "pattern": list(model.pattern),
        "parameters": {**parameter_items(params), "total": params.total, "mtp_apart": params.mtp},
        "flops_per_token": {"sequence": sequence, **counted},
        "rule_6n_flops_per_token": 6 * params.active,
    }
    print_json(SCHEMA, body)


def _layer_json(each: LayerParameters) -> dict[str, int]:
    items = {item.name: _item(each, item.name) for item in fields(each)}
    return {**items, "total": each.total, "active": each.active}


def _flops_json(each: FlopsPerToken) -> dict[str, Any]:
    return {
        "forward": {name: float(value) for name, value in each.items().items()},
        "forward_total": float(each.total),
        "backward_total": 2 * float(each.total),
        "training_total": 3 * float(each.total),
    }
