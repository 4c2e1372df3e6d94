"""The page of `train-time`: cost over GPUs, the timeline, and where money and energy go."""

from __future__ import annotations

from itertools import pairwise

from gpuscale.render.compared import three_digits
from gpuscale.render.html.charts import Axis, Bar, Line, curves, waterfall
from gpuscale.render.html.page import Cell, Chart, Page, Part, Section, Table, sortable
from gpuscale.render.rates import rates_in_full
from gpuscale.render.training import BILLED, day_text, energy_text, expected, time_facts, train_verdict
from gpuscale.training.totals import TrainTime
from gpuscale.units import DAY_S, format_count, format_duration, plural


def training_page(result: TrainTime) -> Page:
    """Lay out what a training takes."""
    money = "not known" if result.cost_usd is None else f"{format_count(result.cost_usd)} USD"
    return Page(
        f"Training of {result.model} on {plural(result.gpus, 'GPU')} of {result.cluster}",
        train_verdict(result),
        [
            ("Wall time", format_duration(result.wall_s), f"{result.effective_ratio:.1%} of it trains"),
            ("GPU-hours of steps", format_count(result.gpu_hours), f"{format_count(result.billed_gpu_hours)} paid for"),
            ("Cost", money, ""),
            ("Energy", energy_text(result.energy_mwh), f"{three_digits(result.carbon_t)} t of CO2"),
        ],
        [
            Section("Over GPUs", _over_gpus(result)),
            Section("Timeline", _timeline(result)),
            Section("Time", [list(time_facts(result).items())]),
            Section("Money", [_money(result)]),
            Section("Energy", [_energy(result)]),
            Section("Assumptions", [rates_in_full(result.assumptions), *result.notes]),
        ],
    )


def _over_gpus(result: TrainTime) -> list[Part]:
    rows = result.over_gpus
    if not rows:
        return []
    across, gpus = Axis("GPUs", "{:,.0f}".format, log=True), [float(one.gpus) for one in rows]
    days = [one.wall_s / DAY_S for one in rows]
    costs = [one.cost_usd for one in rows if one.cost_usd is not None]
    drawn: list[Part] = []
    if len(costs) == len(rows):
        at = costs.index(min(costs))
        takes = f"{format_count(costs[at])} USD in {three_digits(days[at])} days"
        best = f"Cheapest on {plural(rows[at].gpus, 'GPU')}: {takes}."
        line = Line("cost", 0, gpus, costs)
        drawn.append(curves("Cost over GPUs", best, [line], across, Axis("USD", format_count)))
    soonest = f"From {three_digits(max(days))} to {three_digits(min(days))} days."
    drawn.append(
        curves("Days over GPUs", soonest, [Line("days", 1, gpus, days)], across, Axis("days", three_digits, log=True))
    )
    header = ("GPUs", "cluster", "layout", "days", "tokens", "GPU-hours", "USD", "MWh", "time that trains")
    cells: list[list[Cell]] = [
        [
            (f"{one.gpus:,}", one.gpus), one.cluster, one.layout, (three_digits(one.wall_s / DAY_S), one.wall_s),
            (format_count(one.tokens), one.tokens), (format_count(one.gpu_hours), one.gpu_hours),
            "-" if one.cost_usd is None else (format_count(one.cost_usd), one.cost_usd),
            (three_digits(one.energy_mwh), one.energy_mwh), (f"{one.effective_ratio:.1%}", one.effective_ratio),
        ]
        for one in rows
    ]  # fmt: skip
    return [*drawn, Table("The best plan on each number of GPUs", header, cells, sortable=True)]


def _timeline(result: TrainTime) -> list[Part]:
    """Phases and the pauses between them as a calendar, the batch over time, and what to expect."""
    bars = []
    for index, one in enumerate(result.phases):
        if one.pause_s:
            bars.append(Bar(f"pause before {one.name}", index, (one.pause_s / DAY_S,), idle=True))
        bars.append(Bar(one.name, index, (one.wall_s / DAY_S,)))
    said = f"From {day_text(result, 0.0)} to {day_text(result, result.wall_s)}."
    days = Axis("days", three_digits)
    parts: list[Part] = [waterfall("Phases", said, bars, "in all", days)]
    if any(one.global_batch_size != other.global_batch_size for one, other in pairwise(result.phases)):
        parts.append(_batches(result))
    header = ("phase", "begins", "GPUs", "layout", "sequence", "tokens", "steps", *expected(result.phases[0]))
    rows: list[list[Cell]] = [
        [
            one.name, (day_text(result, one.begins_s), one.begins_s), (f"{one.gpus:,}", one.gpus), one.layout,
            (f"{one.sequence:,}", one.sequence), (format_count(one.tokens), one.tokens), (f"{one.steps:,}", one.steps),
            *map(sortable, expected(one).values()),
        ]
        for one in result.phases
    ]  # fmt: skip
    return [*parts, Table("What to expect of each phase", header, rows)]


def _batches(result: TrainTime) -> Chart:
    """The batch over the days of the training, in tokens: sequences of phases differ in length."""
    ends = [(at_s / DAY_S, float(one.global_batch_size * one.sequence)) for one in result.phases
            for at_s in (one.begins_s, one.begins_s + one.wall_s)]  # fmt: skip
    across, up = ([point[axis] for point in ends] for axis in (0, 1))
    said = f"From {format_count(min(up))} to {format_count(max(up))} tokens of a step."
    line = Line("tokens of a step", 2, across, up)
    return curves("Batch over time", said, [line], Axis("days", three_digits), Axis("tokens of a step", format_count))


def _money(result: TrainTime) -> Chart:
    """What is paid, by use; GPU-hours where no price is known."""
    price = 1.0 if result.cost_usd is None else result.cost_usd / result.billed_gpu_hours
    bars = [Bar(BILLED[use], index, (price * hours,), idle=use == "pauses")
            for index, (use, hours) in enumerate(result.billed_by_use.items()) if hours]  # fmt: skip
    said = ", ".join(
        f"{term.replace('_', '-')} {format_count(cost)} USD" for term, cost in result.cost_by_term_usd.items()
    )
    text = f"{said[:1].upper()}{said[1:]}." if said else "No price is known."
    what = "GPU-hours" if result.cost_usd is None else "USD"
    return waterfall("What is paid for", text, bars, "in all", Axis(what, format_count))


def _energy(result: TrainTime) -> Chart:
    bars = [Bar(name, index, (mwh,)) for index, (name, mwh) in enumerate(result.energy.items())]
    said = f"The site draws {result.power_mw:.3g} MW while it trains, a GPU {result.gpu_power_w:.0f} W."
    return waterfall("Energy", said, bars, "site", Axis("MWh", three_digits))
