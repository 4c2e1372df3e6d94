"""Rooflines as text and as a JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpuscale.render.console import console, print_wrapped, table
from gpuscale.rooflines import ClusterRoofline, LevelRoofline, Roofline

SCHEMA = "gpuscale.roofline/1"


def roofline_body(result: Roofline) -> dict[str, Any]:
    """Return the JSON object, without the schema key; units are in the keys, tokens are per GPU and step."""
    return asdict(result)


def verdict(result: Roofline) -> str:
    """Return the answer for the first cluster in one sentence."""
    first = result.clusters[0]
    top = first.levels[-1]
    tokens = top.moe_fsdp_tokens or top.fsdp_tokens
    return (
        f"{result.model} on {first.cluster} in {first.precision}: compute-bound from {tokens:,.0f} tokens per GPU "
        f"with FSDP over {top.gpus:,} GPUs, and with TP up to {_degree(first)}"
    )


def draw_roofline(result: Roofline) -> None:
    """Print the verdict, the thresholds per level and the TP bounds to stdout."""
    out = console()
    print_wrapped(out, verdict(result))
    out.print()
    out.print(_levels(result))
    out.print()
    out.print(_domains(result))
    out.print()
    for line in _legend(result):
        print_wrapped(out, line)


def _levels(result: Roofline) -> Any:
    headers = ["cluster", "level", "GPUs", "AR GB/s", "DP SHARP", "DP, FSDP", "outside"]
    moe = result.experts is not None
    headers += ["MoE DP", "MoE FSDP"] if moe else []
    rows = []
    for cluster in result.clusters:
        for index, level in enumerate(cluster.levels):
            rows.append([cluster.cluster if index == 0 else "", *_level(level, moe)])
    return table(headers, rows, left=2, title="Tokens per GPU and step from which the level is bound by compute")


def _level(level: LevelRoofline, moe: bool) -> list[str]:
    adds = f"{level.dp_tokens:,.0f}" if level.adds else f"({level.dp_tokens:,.0f})"
    cells = [
        level.level,
        f"{level.gpus:,}",
        f"{level.allreduce_bytes_per_s / 1e9:,.4g}",
        adds,
        f"{level.fsdp_tokens:,.0f}",
        _tokens(level.outer_dp_tokens),
    ]
    return [*cells, _tokens(level.moe_dp_tokens), _tokens(level.moe_fsdp_tokens)] if moe else cells


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _domains(result: Roofline) -> Any:
    headers = ["cluster", "GPU", "TFLOP/s", "domain", "GB/s", "TP bound", f"F = {result.ffn:,}"]
    rows = [
        [
            one.cluster,
            one.gpu,
            f"{one.peak_flops_per_s / 1e12:,.0f}",
            str(one.node_gpus),
            f"{one.node_egress_bytes_per_s / 1e9:,.4g}",
            f"Y < F / {one.tp_divisor:,.0f}",
            _degree(one),
        ]
        for one in result.clusters
    ]
    return table(headers, rows, left=2, title="Tensor parallelism in the innermost domain")


def _degree(one: ClusterRoofline) -> str:
    if one.max_tp > one.node_gpus:
        return f"{one.node_gpus}-way (F allows {one.max_tp:.1f})"
    return f"{one.max_tp:.1f}-way"


def _legend(result: Roofline) -> list[str]:
    lines = [
        "DP SHARP: C / 2W, reduction in switches (in brackets: a level without). DP without it, FSDP: C / W.",
        "outside: DP SHARP across this level alone, all below it filled by model parallelism.",
        "W: AllReduce bandwidth (AR) of the level that binds. C: dense peak. No latency, full wire rate.",
    ]
    first = result.clusters[0]
    if result.experts is not None:
        spans = ", ".join(f"{one.ep_units} on {one.cluster}" for one in result.clusters)
        lines.append(
            f"MoE: E C / (2 k W), W of an array split EP ways; E = {result.experts}, k = {result.top_k}. "
            f"EP = {first.ep} spans this many domains: {spans}."
        )
    return lines
