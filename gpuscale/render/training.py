"""Drawing of `gpuscale train-time`."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable

from rich.table import Table

from gpuscale.files import printable
from gpuscale.presets.rates import OLD
from gpuscale.render.compared import three_digits
from gpuscale.render.console import WIDTH, draw, output_width, scatter, table
from gpuscale.render.plan import fit_text, verdict
from gpuscale.render.rates import rate_blocks
from gpuscale.render.reliability import ratio_text
from gpuscale.training.totals import Phase, TrainTime
from gpuscale.units import DAY_S, format_count, format_duration, plural

BILLED = {"steps": "steps", "failures": "failures, checkpoints", "spares": "spare nodes", "pauses": "pauses"}
"""Uses of GPU-hours that are paid for, in words."""

LONGEST_NAME, LEAST_BAR = 24, 20
"""Columns of a name and, beside other columns, of the bars of a timeline."""

MWH_UNITS = ((1e6, "TWh"), (1e3, "GWh"), (1.0, "MWh"))


def draw_train_time(result: TrainTime, *, verbose: bool = False, spell: Callable[[str], str] = str) -> None:
    """Print the verdict, then time, money and energy, and what they stand on with source and date.

    Args:
        verbose: say sources in full.
        spell: from options in backticks to how they are given.
    """
    of_plan = verdict(result.model, result.gpus, result.plan, output_width())
    draw(
        f"{train_verdict(result)}\n{of_plan}{fit_text(result.plan)}",
        _over_gpus(result) if result.over_gpus else "",
        *cost_over_gpus(result),
        _phases(result) if len(result.phases) > 1 else "",
        timeline(result, output_width()) if len(result.phases) > 1 else "",
        table([{"time": name, "": text} for name, text in time_facts(result).items()]),
        _money(result),
        _energy(result),
        *rate_blocks(result.assumptions, verbose=verbose),
        [("note", spell(text)) for text in result.notes if not text.startswith(OLD)],
    )


def train_verdict(result: TrainTime) -> str:
    """Say what a training takes in a sentence."""
    spares = f" with {plural(result.spares, 'spare node')}" if result.spares else ""
    money = "" if result.cost_usd is None else f", {format_count(result.cost_usd)} USD"
    text = (
        f"{_tokens(result.tokens)} on {plural(result.gpus, 'GPU')}{spares}: {format_duration(result.wall_s)}, "
        f"{format_count(result.billed_gpu_hours)} GPU-hours{money}, {energy_text(result.energy_mwh)}; "
        f"{result.effective_ratio:.{0 if result.effective_ratio < 0.995 else 2}%} of the time trains"
    )
    return re.sub(r"\.0+(?=\D)", "", text)


def energy_text(mwh: float) -> str:
    """Say an amount of energy in a unit that suits it."""
    unit, name = next(((unit, name) for unit, name in MWH_UNITS if mwh >= unit), (1e-3, "kWh"))
    return f"{three_digits(mwh / unit)} {name}"


def time_facts(result: TrainTime) -> dict[str, str]:
    """Say how long it takes, in how many steps, and what interrupts it."""
    ratios = f"{ratio_text(result.effective_ratio_low)} to {ratio_text(result.effective_ratio_high)}"
    certain = result.effective_ratio_low == result.effective_ratio_high
    ratio = ratio_text(result.effective_ratio) + ("" if certain else f" ({ratios})")
    interval = " to ".join(map(format_duration, (result.wall_low_s, result.wall_high_s)))
    rows = {
        "steps": f"{result.steps:,} of {_tokens(result.tokens / result.steps)}",
        "training": format_duration(result.wall_s * result.effective_ratio),
        "time that trains": ratio,
        "wall time": format_duration(result.wall_s),
        "80 % interval, as measured runs vary": interval,
    }
    if result.checkpoint_interval_s is not None:
        rows["a checkpoint every"] = format_duration(result.checkpoint_interval_s)
        rows["failures to expect"] = few(math.fsum(one.failures or 0.0 for one in result.phases))
    if result.spares:
        rows["spare nodes"] = f"{result.spares:,}"
    return rows


def _over_gpus(result: TrainTime) -> Table:
    """Time, money and energy by number of GPUs; `*` marks the one that the rest of the answer is about."""
    rows = []
    for one in result.over_gpus:
        cells = {
            "layout": one.layout.partition(" recompute ")[0],
            "GPUs": f"{one.gpus:,}{'*' if one.gpus == result.gpus else ' '}",
        }
        cells |= {"days": three_digits(one.wall_s / DAY_S), "GPU-h of steps": format_count(one.gpu_hours)}
        cells["USD"] = "-" if one.cost_usd is None else format_count(one.cost_usd)
        cells |= {"energy": energy_text(one.energy_mwh), "trains": f"{one.effective_ratio:.1%}"}
        if len({row.tokens for row in result.over_gpus}) > 1:
            cells["tokens"] = format_count(one.tokens)
        if len({row.cluster for row in result.over_gpus}) > 1:
            cells = {"cluster": one.cluster, **cells}
        rows.append(cells)
    return table(rows, left=1 + ("cluster" in rows[0]), optional=("tokens", "layout", "trains"))


def cost_over_gpus(result: TrainTime) -> list[str]:
    """Plot money and days over the number of GPUs, with `*` at the one that the rest of the answer is about."""
    rows = result.over_gpus
    if len(rows) < 3:
        return []
    across = ("GPUs", [float(one.gpus) for one in rows])
    marks = ["*" if one.gpus == result.gpus else "o" for one in rows]
    costs = [one.cost_usd for one in rows if one.cost_usd is not None]
    axes = [("M USD", [one / 1e6 for one in costs])] if len(costs) == len(rows) else []
    axes.append(("days", [one.wall_s / DAY_S for one in rows]))
    return [scatter(across, up, marks, output_width()) for up in axes]


def _phases(result: TrainTime) -> Table:
    """The calendar: when each phase begins, what it takes, and its plan."""
    rows = []
    for one in result.phases:
        begins = f"day {one.begins_s / DAY_S:.1f}" if one.begins is None else one.begins
        cells = {"phase": one.name, "begins": begins, "layout": one.layout, "days": three_digits(one.wall_s / DAY_S)}
        cells |= {"GPUs": f"{one.gpus:,}", "batch": f"{one.global_batch_size:,}", "seq": f"{one.sequence:,}"}
        cells |= {"tokens": format_count(one.tokens), "s/step": f"{one.step_time_s:.3g}"}
        cells["GPU-h"] = format_count(one.gpu_hours)
        rows.append(cells)
    return table(rows, left=3, optional=("seq", "s/step", "batch"))


def timeline(result: TrainTime, width: int) -> str:
    """Draw the calendar: a bar for each phase after dots where nothing is trained, and what to expect of the phase.

    Args:
        width: columns of the output; where it is narrow there are bars alone.
    """
    names = [printable(one.name.replace("\n", " "))[:LONGEST_NAME] for one in result.phases]
    label, told = max(map(len, ("timeline", *names))), [expected(one) for one in result.phases]
    sizes = {name: max(len(name), *(len(cells[name]) for cells in told)) for name in told[0]}
    room = min(width, WIDTH) - label - 2 - sum(size + 2 for size in sizes.values())
    if room < LEAST_BAR:
        sizes, room = {}, min(width, WIDTH) - label - 2
    first, last = (day_text(result, at_s) for at_s in (0.0, result.wall_s))
    lines = [("timeline", first + last.rjust(room - len(first)), {name: name for name in sizes})]
    for name, one, cells in zip(names, result.phases, told, strict=True):
        ends_s = (one.begins_s - one.pause_s, one.begins_s, one.begins_s + one.wall_s)
        waits, begins, ends = (round((room - 1) * at_s / result.wall_s) for at_s in ends_s)
        lines.append((name, " " * waits + "." * (begins - waits) + "#" * (ends - begins + 1), cells))
    return "\n".join(
        f"{name:{label}}  {bar:{room}}" + "".join(f"  {cells[key]:>{size}}" for key, size in sizes.items())
        for name, bar, cells in lines
    )


def expected(one: Phase) -> dict[str, str]:
    """Say what to expect of a phase."""
    return {
        "batch": f"{one.global_batch_size:,}",
        "failures": "-" if one.failures is None else few(one.failures),
        "checkpoints": "-" if one.checkpoints is None else format_count(one.checkpoints),
        "evaluations": format_count(one.evaluations),
    }


def _tokens(count: float) -> str:
    return f"{format_count(count)} {'token' if count == 1 else 'tokens'}"


def few(count: float) -> str:
    """Write a count that is expected, which may be less than one."""
    return f"{count:.2g}" if count < 9.5 else format_count(count)


def day_text(result: TrainTime, at_s: float) -> str:
    """Say a time of the training: the date where it has dates, else the day."""
    first = result.phases[0].begins
    if first is None:
        return f"day {at_s / DAY_S:.3g}"
    return str(datetime.date.fromisoformat(first) + datetime.timedelta(days=int(at_s // DAY_S)))


def _money(result: TrainTime) -> Table:
    rows = [
        {"money": f"GPU-hours of {BILLED[use]}", "": format_count(hours)}
        for use, hours in result.billed_by_use.items()
        if hours
    ]
    rows.append({"money": "GPU-hours paid for", "": format_count(result.billed_gpu_hours)})
    price = result.assumptions.get("gpu_hour_price")
    if price is not None and result.cost_usd is not None:
        rows.append({"money": f"at {price.value:g} USD", "": f"{format_count(result.cost_usd)} USD"})
    for term, cost in result.cost_by_term_usd.items():
        if cost != result.cost_usd:
            text = f"{format_count(cost)} USD"
            rows.append({"money": f"{term.replace('_', '-')}, {cost / result.billed_gpu_hours:g} USD", "": text})
    rows.append({"money": "electricity, in rented GPUs' price", "": f"{format_count(result.energy_cost_usd)} USD"})
    return table(rows)


def _energy(result: TrainTime) -> Table:
    whole = result.energy_mwh or 1.0
    rows = [
        {"energy": name, "": energy_text(mwh), "share": f"{mwh / whole:.0%}"} for name, mwh in result.energy.items()
    ]
    rows.append({"energy": f"site, {result.power_mw:.3g} MW", "": energy_text(result.energy_mwh), "share": "100%"})
    rows.append({"energy": "carbon dioxide", "": f"{three_digits(result.carbon_t)} t", "share": ""})
    rows.append({"energy": "power of one GPU", "": f"{result.gpu_power_w:.0f} W", "share": ""})
    return table(rows)
