"""What a training takes: cost over GPUs, the timeline, and where money and energy go."""

from __future__ import annotations

import datetime
import math
import re
from itertools import pairwise

from gpuscale.presets.rates import OLD
from gpuscale.render.compared import three_digits
from gpuscale.render.document import Cell, Document, Part, Section, Spell, Table, note_facts, page, table
from gpuscale.render.html.charts import Bar, Line, curves, waterfall
from gpuscale.render.plan_texts import fit_text, verdict
from gpuscale.render.plots import Axis
from gpuscale.render.rates import rate_parts
from gpuscale.render.reliability import ratio_text
from gpuscale.training.totals import TrainTime
from gpuscale.units import DAY_S, format_count, format_duration, plural

BILLED = {"steps": "steps", "failures": "failures, checkpoints", "spares": "spare nodes", "pauses": "pauses"}
"""Uses of GPU-hours that are paid for, in words."""

MWH_UNITS = ((1e6, "TWh"), (1e3, "GWh"), (1.0, "MWh"))
DAYS = Axis("days", three_digits)


def train_time_document(result: TrainTime, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out time, money and energy, and what they stand on with source and date; if `verbose`, sources in full."""
    said = train_verdict(result)
    money = "not known" if result.cost_usd is None else f"{format_count(result.cost_usd)} USD"
    return Document(
        f"Training of {result.model} on {plural(result.gpus, 'GPU')} of {result.cluster}",
        lambda width: (
            f"{said}\n{verdict(result.model, result.gpus, result.cluster, result.plan, width)}{fit_text(result.plan)}"
        ),
        [
            ("Wall time", format_duration(result.wall_s), f"{result.effective_ratio:.1%} goodput"),
            ("GPU-hours of steps", format_count(result.gpu_hours), f"{format_count(result.billed_gpu_hours)} paid for"),
            ("Cost", money, ""),
            ("Energy", energy_text(result.energy_mwh), f"{three_digits(result.carbon_t)} t of CO2"),
        ],
        [
            Section("Over GPUs", _over_gpus(result) if result.over_gpus else []),
            Section("Timeline", _timeline(result)),
            Section("Time", [table([{"time": name, "": text} for name, text in _times(result).items()])]),
            Section("Money", _money(result)),
            Section("Energy", _energy(result)),
            Section("Assumptions", [
                *rate_parts(result.assumptions, verbose=verbose),
                note_facts([text for text in result.notes if not text.startswith(OLD)], spell),
            ]),
        ],
    )  # fmt: skip


def train_verdict(result: TrainTime) -> str:
    """Say what a training takes in a sentence."""
    spares = f" with {plural(result.spares, 'spare node')}" if result.spares else ""
    money = "" if result.cost_usd is None else f", {format_count(result.cost_usd)} USD"
    text = (
        f"{_tokens(result.tokens)} on {plural(result.gpus, 'GPU')}{spares}: {format_duration(result.wall_s)}, "
        f"{format_count(result.billed_gpu_hours)} GPU-hours{money}, {energy_text(result.energy_mwh)}; "
        f"{result.effective_ratio:.{0 if result.effective_ratio < 0.995 else 2}%} goodput"
    )
    return re.sub(r"\.0+(?=\D)", "", text)


def energy_text(mwh: float) -> str:
    """Say an amount of energy in a unit that suits it."""
    unit, name = next(((unit, name) for unit, name in MWH_UNITS if mwh >= unit), (1e-3, "kWh"))
    return f"{three_digits(mwh / unit)} {name}"


def _times(result: TrainTime) -> dict[str, str]:
    """Say how long it takes, in how many steps, and what interrupts it."""
    ratios = f"{ratio_text(result.effective_ratio_low)} to {ratio_text(result.effective_ratio_high)}"
    certain = result.effective_ratio_low == result.effective_ratio_high
    ratio = ratio_text(result.effective_ratio) + ("" if certain else f" ({ratios})")
    rows = {
        "steps": f"{result.steps:,} of {_tokens(result.tokens / result.steps)}",
        "training": format_duration(result.wall_s * result.effective_ratio),
        "goodput": ratio,
        "wall time": format_duration(result.wall_s),
        "80 % interval, from measured runs": " to ".join(map(format_duration, (result.wall_low_s, result.wall_high_s))),
    }
    if result.checkpoint_interval_s is not None:
        rows["a checkpoint every"] = format_duration(result.checkpoint_interval_s)
        rows["expected failures"] = _few(math.fsum(one.failures or 0.0 for one in result.phases))
    return rows | ({"spare nodes": f"{result.spares:,}"} if result.spares else {})


def _over_gpus(result: TrainTime) -> list[Part]:
    """Time, money and energy by number of GPUs; `*` marks the one that the rest of the answer is about."""
    rows, gpus = result.over_gpus, [float(one.gpus) for one in result.over_gpus]
    best = table(
        [
            {
                **({"cluster": one.cluster} if len({row.cluster for row in rows}) > 1 else {}),
                "layout": one.layout.partition(" recompute ")[0],
                "GPUs": (f"{one.gpus:,}{'*' if one.gpus == result.gpus else ' '}", one.gpus),
                "days": (three_digits(one.wall_s / DAY_S), one.wall_s),
                "GPU-h of steps": (format_count(one.gpu_hours), one.gpu_hours),
                "USD": "-" if one.cost_usd is None else (format_count(one.cost_usd), one.cost_usd),
                "energy": (energy_text(one.energy_mwh), one.energy_mwh),
                "trains": (f"{one.effective_ratio:.1%}", one.effective_ratio),
                **({"tokens": format_count(one.tokens)} if len({row.tokens for row in rows}) > 1 else {}),
            }
            for one in rows
        ],
        caption="The best plan on each number of GPUs; * is the one that the rest describes",
        left=1 + (len({row.cluster for row in rows}) > 1), optional=("tokens", "layout", "trains"), sortable=True,
    )  # fmt: skip
    if len(rows) < 3:
        return [best]
    across, days = Axis("GPUs", "{:,.0f}".format, log=True), [one.wall_s / DAY_S for one in rows]
    costs = [one.cost_usd for one in rows if one.cost_usd is not None]
    parts: list[Part] = [best]
    if len(costs) == len(rows):
        at = costs.index(min(costs))
        takes = f"{format_count(costs[at])} USD in {three_digits(days[at])} days"
        said, line = f"Cheapest on {plural(rows[at].gpus, 'GPU')}: {takes}.", Line("cost", 0, gpus, costs)
        parts.append(curves("Cost over GPUs", said, [line], across, Axis("USD", format_count), chosen=result.gpus))
    said, line = f"From {three_digits(max(days))} to {three_digits(min(days))} days.", Line("days", 1, gpus, days)
    return [*parts, curves("Days over GPUs", said, [line], across, DAYS._replace(log=True), chosen=result.gpus)]


def _timeline(result: TrainTime) -> list[Part]:
    """The calendar: when each phase begins, its plan, what it takes and what to expect of it."""
    bars = []
    for index, one in enumerate(result.phases):
        if one.pause_s:
            bars.append(Bar(f"pause before {one.name}", index, (one.pause_s / DAY_S,), idle=True))
        bars.append(Bar(one.name, index, (one.wall_s / DAY_S,)))
    said = f"From {_day(result, 0.0)} to {_day(result, result.wall_s)}."
    plans: list[dict[str, Cell]] = [
        {
            "phase": one.name,
            "begins": f"day {one.begins_s / DAY_S:.1f}" if one.begins is None else one.begins,
            "layout": one.layout,
            "days": (three_digits(one.wall_s / DAY_S), one.wall_s),
            "GPUs": (f"{one.gpus:,}", one.gpus),
            "seq": (f"{one.sequence:,}", one.sequence),
            "s/step": (f"{one.step_time_s:.3g}", one.step_time_s),
            "tokens": (format_count(one.tokens), one.tokens),
            "GPU-h": (format_count(one.gpu_hours), one.gpu_hours),
        }
        for one in result.phases
    ]
    events: list[dict[str, Cell]] = [
        {
            "phase": one.name,
            "steps": (f"{one.steps:,}", one.steps),
            "batch": (f"{one.global_batch_size:,}", one.global_batch_size),
            "failures": "-" if one.failures is None else _few(one.failures),
            "checkpoints": "-" if one.checkpoints is None else format_count(one.checkpoints),
            "evaluations": format_count(one.evaluations),
        }
        for one in result.phases
    ]
    parts: list[Part] = [
        table(plans, caption="Phases", left=3, optional=("seq", "s/step")),
        waterfall("Phases", said, bars, "total", DAYS),
        table(events, caption="What to expect of each phase"),
    ]
    if any(one.global_batch_size != other.global_batch_size for one, other in pairwise(result.phases)):
        parts.append(page(_batches(result)))
    return parts if len(result.phases) > 1 else [page(*parts)]


def _batches(result: TrainTime) -> Part:
    """The batch over the days of the training, in tokens: sequences of phases differ in length."""
    ends = [(at_s / DAY_S, float(one.global_batch_size * one.sequence)) for one in result.phases
            for at_s in (one.begins_s, one.begins_s + one.wall_s)]  # fmt: skip
    days, tokens = ([point[axis] for point in ends] for axis in (0, 1))
    said = f"From {format_count(min(tokens))} to {format_count(max(tokens))} tokens of a step."
    line = Line("tokens of a step", 2, days, tokens)
    return curves("Batch over time", said, [line], DAYS, Axis("tokens of a step", format_count))


def _tokens(count: float) -> str:
    return f"{format_count(count)} {'token' if count == 1 else 'tokens'}"


def _few(count: float) -> str:
    """Write a count that is expected, which may be less than one."""
    return f"{count:.2g}" if count < 9.5 else format_count(count)


def _day(result: TrainTime, at_s: float) -> str:
    """Say a time of the training: the date where it has dates, else the day."""
    first = result.phases[0].begins
    if first is None:
        return f"day {at_s / DAY_S:.3g}"
    return str(datetime.date.fromisoformat(first) + datetime.timedelta(days=int(at_s // DAY_S)))


def _money(result: TrainTime) -> list[Part]:
    """What is paid, by use; on a page drawn in GPU-hours where no price is known."""
    used = {BILLED[use]: hours for use, hours in result.billed_by_use.items() if hours}
    rows = [(f"GPU-hours of {name}", format_count(hours)) for name, hours in used.items()]
    rows.append(("GPU-hours paid for", format_count(result.billed_gpu_hours)))
    price = result.assumptions.get("gpu_hour_price")
    if price is not None and result.cost_usd is not None:
        rows.append((f"at {price.value:g} USD", f"{format_count(result.cost_usd)} USD"))
    rows += [
        (f"{term.replace('_', '-')}, {cost / result.billed_gpu_hours:g} USD", f"{format_count(cost)} USD")
        for term, cost in result.cost_by_term_usd.items() if cost != result.cost_usd
    ]  # fmt: skip
    rows.append(("electricity, in rented GPUs' price", f"{format_count(result.energy_cost_usd)} USD"))
    each, unit = (1.0, "GPU-hours") if result.cost_usd is None else (result.cost_usd / result.billed_gpu_hours, "USD")
    uses = list(BILLED.values())
    bars = [Bar(name, uses.index(name), (each * hours,), idle=name == "pauses") for name, hours in used.items()]
    said = "No price is known." if result.cost_usd is None else f"{format_count(result.cost_usd)} USD in total."
    return [
        page(waterfall("What is paid for", said, bars, "total", Axis(unit, format_count))),
        table([{"money": name, "": text} for name, text in rows]),
    ]


def _energy(result: TrainTime) -> list[Part]:
    whole = result.energy_mwh or 1.0
    rows = [
        *((name, energy_text(mwh), f"{mwh / whole:.0%}") for name, mwh in result.energy.items()),
        (f"site, {result.power_mw:.3g} MW", energy_text(result.energy_mwh), "100%"),
        ("carbon dioxide", f"{three_digits(result.carbon_t)} t", ""),
        ("power of one GPU", f"{result.gpu_power_w:.0f} W", ""),
    ]
    bars = [Bar(name, index, (mwh,)) for index, (name, mwh) in enumerate(result.energy.items())]
    said = f"The site draws {result.power_mw:.3g} MW while it trains, a GPU {result.gpu_power_w:.0f} W."
    return [
        page(waterfall("Energy", said, bars, "site", Axis("MWh", three_digits))),
        Table("Energy by use", ("energy", "", "share"), rows),
    ]
