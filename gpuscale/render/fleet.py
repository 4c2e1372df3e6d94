"""Drawing of `gpuscale fleet`."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscale.fleets.ways import FleetPlan, FleetResult, PoolPlan, SitesAnswer
from gpuscale.ratios import SPEED, in_words
from gpuscale.render.compared import three_digits
from gpuscale.render.document import Document, Spell, Table, plain, table
from gpuscale.render.plan_texts import similar_text, step_range
from gpuscale.render.training import rate_parts
from gpuscale.units import format_count, format_seconds


def fleet_document(result: FleetResult, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out the ways by rank, what each pool does in the best (if `verbose`, in all), and what they stand on."""
    best = result.ways[0]
    left_out = [(f"not {name}", spell(text)) for name, text in result.left_out.items()]
    lines: tuple[Table, list[tuple[str, str]]] | tuple[()] = ()
    if result.sites is not None:
        lines = _lines(result.sites), _said_of_lines(result.sites)
    return plain(
        f"Ways to use {result.cluster}",
        _verdict(result),
        _ways(result),
        _parts(result.ways if verbose else [best]),
        *lines,
        [("evidence", _evidence(best)), ("runs with", best.runs_with)],
        *rate_parts(result.assumptions, verbose=verbose),
        [*left_out, *(("note", spell(text)) for text in (*best.notes, *result.notes))],
    )


def _verdict(result: FleetResult) -> str:
    best = result.ways[0]
    against = [way for way in result.ways[1:] if way.kind in {"alike", "alone", "synchronous"}]
    foremost = {way.kind: way for way in reversed(against)}
    said = [in_words(best.tokens_per_s / way.tokens_per_s, SPEED, _short(way)) for way in foremost.values()]
    count = f"all {result.gpus:,}" if best.gpus == result.gpus else f"{best.gpus:,} of {result.gpus:,}"
    return (
        f"{result.model} on {result.cluster}: use {count} GPUs, {best.text}: {format_seconds(best.step_time_s)}/step, "
        f"{format_count(best.tokens_per_s)} tokens/s" + "".join(f", {text}" for text in said)
    )


def _short(way: FleetPlan) -> str:
    return "with all paced by the slowest" if way.kind == "alike" else way.name


def _ways(result: FleetResult) -> Table:
    rows = []
    for way in result.ways:
        cells = {"#": f"{way.rank}", "way": way.name, "GPUs": f"{way.gpus:,}", "s/step": three_digits(way.step_time_s)}
        cells |= {"tok/s": format_count(way.tokens_per_s), "x alone": f"{way.speedup:.2f}"}
        cells["sync s"] = three_digits(way.sync_s) if way.sync_s else "-"
        for head, value in (("USD/1e9", way.usd_per_1e9_tokens), ("USD kept", way.usd_per_1e9_tokens_kept)):
            cells[head] = "-" if value is None else three_digits(value)
        cells["kWh/1e9"] = three_digits(way.kwh_per_1e9_tokens)
        rows.append(cells)
    return table(rows, left=2, optional=("sync s", "kWh/1e9"))


def _parts(ways: Sequence[FleetPlan]) -> Table:
    ranks = [{"#": f"{way.rank}"} if len(ways) > 1 else {} for way in ways]
    dealt = any(part.layers for way in ways for part in way.parts)
    rows = [rank | _cells(part, way, dealt) for way, rank in zip(ways, ranks, strict=True) for part in way.parts]
    return table(rows, left=2 + dealt + (len(ways) > 1), optional=("GPUs",))


def _lines(sites: SitesAnswer) -> Table:
    """Which share of the time sites wait, by rate of the lines and steps between exchanges."""
    rows: dict[float, dict[str, str]] = {}
    for one in sites.lines:
        cells = rows.setdefault(one.wan_gbit_per_s, {"lines Gbit/s": three_digits(one.wan_gbit_per_s)})
        cells["synchronous"] = f"{one.synchronous_waits:.0%}"
        cells[f"H={one.inner_steps}"] = f"{one.diloco_waits:.1%} / {one.streaming_waits:.1%}"
    last = {"lines Gbit/s": "for 1 %", "synchronous": "-"}
    for need in sites.needed:
        rates = (need.diloco_gbit_per_s, need.streaming_gbit_per_s)
        last[f"H={need.inner_steps}"] = " / ".join("-" if one is None else f"{one:,.0f}" for one in rates)
    return table([*rows.values(), last], left=1)


def _said_of_lines(sites: SitesAnswer) -> list[tuple[str, str]]:
    rate = sites.synchronous_gbit_per_s
    even = "none are fast enough" if rate is None else f"from {rate:,.0f} Gbit/s on"
    at_once, streaming = (
        "never" if least is None else f"from H = {least:,} on"
        for least in (sites.least_inner_steps, sites.least_inner_steps_streaming)
    )
    return [
        ("lines", f"{sites.wan_gbit_per_s:,g} Gbit/s each way for all GPUs of a site, {sites.efficiency:.0%} of it "
         f"reached, {sites.round_trip_ms:g} ms there and back"),
        ("table", "share of the time that sites wait for links of that rate; DiLoCo with H steps between exchanges of "
         f"{sites.outer_bits} bits per parameter: all at once / in fragments under later steps; last, Gbit/s for 1 %"),
        ("break-even", f"synchronous within 5 % of DiLoCo {even}; waiting below 1 %: all at once {at_once}, in "
         f"fragments {streaming}"),
        ("outer states", f"{sites.outer_gib_per_gpu:.3g} GiB per GPU: weights of the last exchange and momentum, fp32"),
    ]  # fmt: skip


def _cells(part: PoolPlan, way: FleetPlan, dealt: bool) -> dict[str, str]:
    busy = f"{part.busy_s / way.step_time_s:.0%}" if part.gpus else "-"
    return {
        "pool": part.pool,
        "layout": part.layout or "idle",
        **({"layers": _runs(part.layers)} if dealt else {}),
        "GPUs": f"{part.gpus:,}",
        "sequences": f"{part.sequences:,}",
        "microbatches": f"{part.num_microbatches:,}",
        "busy": busy,
        "GiB": f"{part.memory_gib:.1f}" if part.gpus else "-",
    }


def _runs(layers: tuple[int, ...]) -> str:
    """Say layers per stage: `20 x2, 19`."""
    runs: list[list[int]] = []
    for count in layers:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ", ".join(f"{count} x{times}" if times > 1 else f"{count}" for count, times in runs)


def _evidence(way: FleetPlan) -> str:
    new = f"; NO measured run has {' or '.join(way.unmeasured)}" if way.unmeasured else ""
    return f"80 % within {step_range(way)}, {similar_text(way.similar_runs)}{new}"
