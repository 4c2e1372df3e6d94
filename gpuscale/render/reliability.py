"""Drawing of `gpuscale goodput` and `gpuscale stragglers`."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from gpuscale.ratios import TIME, in_words, share_text, signed
from gpuscale.render.console import draw, note_rows, output_width, scatter, table
from gpuscale.render.plan import fit_text
from gpuscale.render.rates import rate_blocks
from gpuscale.results import PlanRow
from gpuscale.training.goodput import Goodput
from gpuscale.training.stragglers import Straggler, Stragglers
from gpuscale.units import DAY_S, HOUR_S, format_bytes, format_count, format_duration, format_seconds, plural

LOST = {
    "checkpoints": "writing checkpoints",
    "lost_work": "work done again",
    "detection": "noticing failures",
    "restart": "restarts",
    "waiting": "waiting for nodes",
}
ELASTIC = {"waiting": "replicas missing"}


def names_of(result: Goodput) -> dict[str, str]:
    """Return what the time is lost to, by key."""
    return LOST | (ELASTIC if result.elastic else {})


def draw_goodput(
    result: Goodput, plan: PlanRow | None = None, *, verbose: bool = False, spell: Callable[[str], str] = str
) -> None:
    """Print the share that counts, where the rest goes, and its curve over the checkpoint interval.

    Args:
        plan: what it is about.
        verbose: say sources in full.
        spell: from options in backticks to how they are given.
    """
    draw(
        f"{goodput_verdict(result)}{fit_text(plan)}",
        _losses(result),
        facts(result),
        _curve(result),
        *rate_blocks(result.assumptions, verbose=verbose),
        note_rows(result.notes, spell),
    )


def goodput_verdict(result: Goodput) -> str:
    """Say which share counts, how often to write a checkpoint, and of which plan."""
    low, high = result.effective_ratio_low, result.effective_ratio_high
    spares = f"with {plural(result.spares, 'spare node')}" if result.spares else "without spare nodes"
    return (
        f"{result.model} on {plural(result.gpus, 'GPU')} {spares}: {ratio_text(result.effective_ratio)} of the time "
        f"counts ({ratio_text(low)} to {ratio_text(high)} in 8 of 10 runs), with a checkpoint every "
        f"{format_duration(result.checkpoint_interval_s)}\n"
        f"{result.layout}: {format_seconds(result.step_time_s)} per step, "
        f"{plural(result.checkpoint_interval_steps, 'step')} between checkpoints"
    )


def ratio_text(share: float) -> str:
    """Say a share so that it is not taken for all."""
    return f"{share:.1%}" if share < 0.99 else f"{share:.2%}"


def _losses(result: Goodput) -> Table:
    names, days = names_of(result), result.run_s / DAY_S
    shares = {names[name]: share for name, share in result.lost.items()} | {"in all": 1 - result.effective_ratio}
    rows = []
    for name, share in shares.items():
        hours = share * result.run_s / HOUR_S
        gpu_hours = format_count(hours * result.gpus)
        row = {"lost to": name, "share": f"{share:.2%}", f"hours of {days:.4g} days": f"{hours:.1f}"}
        rows.append(row | {"GPU-hours": gpu_hours})
    return table(rows)


def facts(result: Goodput) -> list[tuple[str, str]]:
    """Say how often the job fails, what a checkpoint takes, and how many nodes stand by."""
    size, each = format_bytes(result.checkpoint_bytes), format_bytes(result.checkpoint_bytes_per_gpu)
    wait = format_duration(result.checkpoint_blocking_s)
    nodes = result.gpus / result.node_gpus
    young = format_duration(result.young_interval_s)
    return [
        ("failures", f"one in {format_duration(result.mtbf_s)}, {result.interruptions_per_day:.3g} a day"),
        (
            f"checkpoint, {result.checkpoint}",
            f"{size}, {each} of the fullest GPU; the job waits {wait}; in storage after "
            f"{format_duration(result.checkpoint_write_s)}; first-order optimum (Young) {young}",
        ),
        (
            "spare nodes",
            f"{result.spares:,} of {plural(result.node_gpus, 'GPU')}, {share_text(result.spares / nodes)} of the job's"
            if result.spares
            else "none",
        ),
    ]


def _curve(result: Goodput) -> str:
    """Plot the effective ratio over the interval, with `*` at the one that is taken."""
    across = [point.interval_s for point in result.curve]
    if len(across) < 3:
        return ""
    marks = ["*" if abs(one / result.checkpoint_interval_s - 1) < 1e-6 else "o" for one in across]
    axes = (
        ("minutes between checkpoints", [one / 60 for one in across]),
        ("% of the time counts", [100 * point.effective_ratio for point in result.curve]),
    )
    return scatter(*axes, marks, output_width())


def draw_stragglers(
    result: Stragglers, plan: PlanRow | None = None, *, verbose: bool = False, spell: Callable[[str], str] = str
) -> None:
    """Print what slow parts cost, and what other spreads of like parts would.

    Args:
        plan: what it is about.
        verbose: say sources in full.
        spell: from options in backticks to how they are given.
    """
    first = result.parts[0]
    draw(
        f"{_verdict(result, first)}\n{_alternatives(result, first)}{fit_text(plan)}",
        _parts(result),
        _variation(result),
        spell(_explained(result)),
        *rate_blocks(result.assumptions, verbose=verbose),
        note_rows(result.notes, spell),
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
        said = f"without {replicas} of data parallelism the training takes {longer}: {first.advice} what is slow"
    if first.pays_after_s is None:
        return f"{said}; nothing to win by a spare"
    return f"{said}; a spare has paid for the restart after {format_duration(first.pays_after_s)}"


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
        f"Every step waits for the slowest of all GPUs: {waiting:.1%} of the predicted step. A slow one costs what it "
        "takes beyond that; it is taken to be on the slowest stage."
        if waiting
        else ""
    )
    below = result.worth_leaving_out_below
    return text if below is None else f"{text} Without spares, leave a node out below {below:.2f} x the usual speed."
