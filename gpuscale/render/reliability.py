"""Drawing of `gpuscale reliability` and `gpuscale reliability stragglers`."""

from __future__ import annotations

from gpuscale.ratios import TIME, in_words, share_text, signed
from gpuscale.render.document import Chart, Document, Facts, Part, Section, Spell, Table, note_facts, page, plain, table
from gpuscale.render.html.charts import Bar, Line, curves, waterfall
from gpuscale.render.plan_texts import fit_text
from gpuscale.render.plots import Axis
from gpuscale.render.rates import rate_parts
from gpuscale.results import PlanRow
from gpuscale.training.goodput import Goodput
from gpuscale.training.stragglers import Straggler, Stragglers
from gpuscale.units import DAY_S, HOUR_S, format_bytes, format_count, format_duration, format_seconds, plural

LOST = {
    "checkpoints": "writing checkpoints",
    "lost_work": "recomputed work",
    "detection": "detecting failures",
    "restart": "restarts",
    "waiting": "waiting for nodes",
}
ELASTIC = {"waiting": "replicas missing"}

LEAST = 1e-4
"""Shares below which a loss is not drawn."""


def goodput_document(
    result: Goodput, *, plan: PlanRow | None = None, verbose: bool = False, spell: Spell = str
) -> Document:
    """Lay out the share that counts, where the rest goes, and its curve over the checkpoint interval; if `verbose`,
    sources in full."""
    low, high = result.effective_ratio_low, result.effective_ratio_high
    steps = plural(result.checkpoint_interval_steps, "step")
    return Document(
        f"Goodput of {result.model} on {plural(result.gpus, 'GPU')} of {result.cluster}",
        f"{goodput_verdict(result)}{fit_text(plan)}",
        [
            ("Goodput", ratio_text(result.effective_ratio), f"{ratio_text(low)} to {ratio_text(high)}"),
            ("Checkpoint every", format_duration(result.checkpoint_interval_s), steps),
            ("A failure every", format_duration(result.mtbf_s), f"{result.interruptions_per_day:.3g} a day"),
            ("Spare nodes", f"{result.spares:,}", f"of {plural(result.node_gpus, 'GPU')}"),
        ],
        [
            Section("Losses", _losses(result)),
            Section("Facts", [_facts(result)]),
            Section("Interval", [_curve(result)]),
            Section("Assumptions", [
                *rate_parts(result.assumptions, verbose=verbose), note_facts(result.notes, spell),
            ]),
        ],
    )  # fmt: skip


def goodput_verdict(result: Goodput) -> str:
    """Say which share counts, how often to write a checkpoint, and of which plan."""
    low, high = result.effective_ratio_low, result.effective_ratio_high
    spares = f"with {plural(result.spares, 'spare node')}" if result.spares else "without spare nodes"
    return (
        f"{result.model} on {plural(result.gpus, 'GPU')} {spares}: goodput {ratio_text(result.effective_ratio)} "
        f"({ratio_text(low)} to {ratio_text(high)} in 8 of 10 runs), with a checkpoint every "
        f"{format_duration(result.checkpoint_interval_s)}\n"
        f"{result.layout}: {format_seconds(result.step_time_s)} per step, "
        f"{plural(result.checkpoint_interval_steps, 'step')} between checkpoints"
    )


def ratio_text(share: float) -> str:
    """Say a share so that it is not taken for all."""
    return f"{share:.1%}" if share < 0.99 else f"{share:.2%}"


def _losses(result: Goodput) -> list[Part]:
    names, days = LOST | (ELASTIC if result.elastic else {}), result.run_s / DAY_S
    lost = {names[name]: share for name, share in result.lost.items()}
    rows = []
    for name, share in (lost | {"total": 1 - result.effective_ratio}).items():
        hours = share * result.run_s / HOUR_S
        rows.append([name, f"{share:.2%}", f"{hours:.1f}", format_count(hours * result.gpus)])
    bars = [Bar(name, index, (share * result.run_s / HOUR_S,))
            for index, (name, share) in enumerate(lost.items()) if share > LEAST]  # fmt: skip
    said = f"{1 - result.effective_ratio:.1%} of {days:.4g} days are lost."
    return [
        page(waterfall("Time lost", said, bars, "total", Axis("hours", "{:.3g}".format))),
        Table("Time lost", ("lost to", "share", f"hours of {days:.4g} days", "GPU-hours"), rows),
    ]


def _facts(result: Goodput) -> Facts:
    """Say how often the job fails, what a checkpoint takes, and how many nodes stand by."""
    size, each = format_bytes(result.checkpoint_bytes), format_bytes(result.checkpoint_bytes_per_gpu)
    wait = format_duration(result.checkpoint_blocking_s)
    nodes = result.gpus / result.node_gpus
    young = format_duration(result.young_interval_s)
    saved = f"{size}, {each} of the fullest GPU; the job waits {wait}; in storage after "
    saved += f"{format_duration(result.checkpoint_write_s)}; first-order optimum (Young) {young}"
    spare = f"{result.spares:,} of {plural(result.node_gpus, 'GPU')}, {share_text(result.spares / nodes)} of the job's"
    return [
        ("failures", f"one in {format_duration(result.mtbf_s)}, {result.interruptions_per_day:.3g} a day"),
        (f"checkpoint, {result.checkpoint}", saved),
        ("spare nodes", spare if result.spares else "none"),
    ]


def _curve(result: Goodput) -> Chart:
    """The effective ratio over the interval; `*` marks the one that is taken."""
    across = [point.interval_s / 60 for point in result.curve]
    line = Line(result.checkpoint, 0, across, [point.effective_ratio for point in result.curve])
    chosen = next((one for one in across if abs(one * 60 / result.checkpoint_interval_s - 1) < 1e-6), None)
    best = f"A checkpoint every {format_duration(result.checkpoint_interval_s)} is taken."
    title = "Goodput over the interval between checkpoints"
    axes = Axis("minutes between checkpoints", "{:.3g}".format, log=True), Axis("goodput", ratio_text)
    return curves(title, best, [line], *axes, chosen=chosen)


def stragglers_document(
    result: Stragglers, *, plan: PlanRow | None = None, verbose: bool = False, spell: Spell = str
) -> Document:
    """Lay out what slow parts cost, and what other spreads of like parts would; if `verbose`, sources in full."""
    first = result.parts[0]
    return plain(
        f"Slow parts of {result.model} on {plural(result.gpus, 'GPU')}",
        f"{_verdict(result, first)}\n{_alternatives(result, first)}{fit_text(plan)}",
        _parts(result),
        _variation(result),
        spell(_explained(result)),
        *rate_parts(result.assumptions, verbose=verbose),
        note_facts(result.notes, spell),
    )


def _verdict(result: Stragglers, first: Straggler) -> str:
    longer = in_words(1 + first.slower, TIME)
    return (
        f"{result.model} on {plural(result.gpus, 'GPU')}: with {first.text} a step takes {longer} "
        f"({format_seconds(result.step_time_s)} -> {format_seconds(first.step_time_s)}), "
        f"{format_count(first.gpu_hours_per_day)} GPU-hours a day"
    )


def _alternatives(result: Stragglers, first: Straggler) -> str:
    """Say what else could be done with the first part."""
    if result.without is None:
        said = "no replica can be left out"
    else:
        replicas, longer = plural(result.replicas_left_out, "replica"), in_words(1 + result.without, TIME)
        said = f"without {replicas} of data parallelism the training takes {longer}: {first.advice} the slow part"
    if first.pays_after_s is None:
        return f"{said}; a spare does not pay off"
    return f"{said}; a spare pays for the restart after {format_duration(first.pays_after_s)}"


def _pays_after(one: Straggler) -> str:
    if one.pays_after_s is None:
        return "never"
    return format_duration(one.pays_after_s) if one.pays_after_s < 365 * DAY_S else "over a year"


def _parts(result: Stragglers) -> Table:
    rows = [
        {
            "slow part": one.text,
            "step": format_seconds(one.step_time_s),
            "longer": signed(one.slower, 2),
            "GPU-hours/day": format_count(one.gpu_hours_per_day),
            "spare pays after": _pays_after(one),
            "without a spare": one.advice,
        }
        for one in result.parts
    ]
    return table(rows, optional=("GPU-hours/day",))


COUNTED = {"gpu": "GPU", "host": "host", "link": "link"}


def _variation(result: Stragglers) -> Table | str:
    rows = [
        {
            "all differ": f"{plural(one.count, COUNTED[one.part])} by {one.spread:.0%}",
            "slowest": f"+{one.share:.1%}",
            "step": format_seconds(one.step_time_s),
            "longer": "as predicted" if one.predicted else signed(one.slower, 2),
        }
        for one in result.variation
    ]
    return table(rows) if rows else ""


def _explained(result: Stragglers) -> str:
    waiting = result.waiting_s / result.step_time_s
    text = (
        f"Every step waits for the slowest GPU (straggler wait): {waiting:.1%} of the predicted step. A slow part "
        "costs what it adds to that; it is assumed to be on the slowest stage."
        if waiting
        else ""
    )
    below = result.worth_leaving_out_below
    return text if below is None else f"{text} Without spares, leave a node out below {below:.2f} x the usual speed."
