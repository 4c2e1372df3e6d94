"""What a training takes (cost over GPUs, timeline, money, energy), its reliability, and the rates it rests on."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from itertools import pairwise

from gpuscale.presets.rates import OLD, Rate
from gpuscale.ratios import TIME, in_words, share_text, signed
from gpuscale.render.compared import three_digits
from gpuscale.render.document import (
    Chart,
    Document,
    Facts,
    Part,
    Section,
    Spell,
    Table,
    cell,
    note_facts,
    page,
    plain,
    table,
    terminal,
)
from gpuscale.render.html.charts import Bar, Line, curves, waterfall
from gpuscale.render.plan_texts import fit_text, on_cluster, on_gpus, verdict
from gpuscale.render.plots import Axis
from gpuscale.results import PlanRow
from gpuscale.training.goodput import Goodput
from gpuscale.training.stragglers import Straggler, Stragglers
from gpuscale.training.totals import TrainTime
from gpuscale.units import DAY_S, HOUR_S, format_bytes, format_count, format_duration, format_seconds, plural
from gpuscale.version import RELEASED

OLD_MARK = "*"

SHORT = 52


def rate_parts(rates: Mapping[str, Rate], *, verbose: bool = False) -> tuple[Part, ...]:
    """The rates with their sources, in a terminal in full if `verbose`."""
    if verbose:
        return (_in_full(rates),)
    old = f"{OLD_MARK} {OLD} ({RELEASED}); " if any(rate.old for rate in rates.values()) else ""
    return terminal(_table(rates), f"{old}sources in full: verbose, or JSON"), page(_in_full(rates))


def _in_full(rates: Mapping[str, Rate]) -> Facts:
    return [
        (name, f"{rate.value:.4g}: {', '.join(filter(None, (rate.source, rate.dated)))}")
        for name, rate in rates.items()
    ]


def short_source(source: str) -> str:
    """The beginning of a source, without what it says in detail."""
    text = re.split(r"[:;(]", source)[0].strip()
    return text if len(text) <= SHORT else text[: SHORT - 3].rstrip() + "..."


def _table(rates: Mapping[str, Rate]) -> Table:
    rows = [
        {
            "based on": name,
            "value": f"{rate.value:.4g}",
            "as of": f"{rate.date}{OLD_MARK if rate.old else ''}",
            "source": short_source(rate.source),
        }
        for name, rate in rates.items()
    ]
    return table(rows, left=4)


LOST = {
    "checkpoints": "writing checkpoints",
    "lost_work": "recomputed work",
    "detection": "detecting failures",
    "restart": "restarts",
    "waiting": "waiting for nodes",
}
ELASTIC = {"waiting": "replicas missing"}

LEAST = 1e-4


def goodput_document(
    result: Goodput, *, plan: PlanRow | None = None, verbose: bool = False, spell: Spell = str
) -> Document:
    """Lay out what counts, what is lost, and the checkpoint interval; `verbose`: sources in full."""
    low, high = result.effective_ratio_low, result.effective_ratio_high
    steps = plural(result.checkpoint_interval_steps, "step")
    return Document(
        f"Goodput of {on_cluster(result)}",
        f"{_goodput_verdict(result)}{fit_text(plan)}",
        [
            ("Goodput", _ratio_text(result.effective_ratio), f"{_ratio_text(low)} to {_ratio_text(high)}"),
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


def _goodput_verdict(result: Goodput) -> str:
    low, high = result.effective_ratio_low, result.effective_ratio_high
    spares = f"with {plural(result.spares, 'spare node')}" if result.spares else "without spare nodes"
    return (
        f"{on_gpus(result)} {spares}: goodput {_ratio_text(result.effective_ratio)} "
        f"({_ratio_text(low)} to {_ratio_text(high)} in 8 of 10 runs), with a checkpoint every "
        f"{format_duration(result.checkpoint_interval_s)}\n"
        f"{result.layout}: {format_seconds(result.step_time_s)} per step, "
        f"{plural(result.checkpoint_interval_steps, 'step')} between checkpoints"
    )


def _ratio_text(share: float) -> str:
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
    across = [point.interval_s / 60 for point in result.curve]
    line = Line(result.checkpoint, 0, across, [point.effective_ratio for point in result.curve])
    chosen = next((one for one in across if abs(one * 60 / result.checkpoint_interval_s - 1) < 1e-6), None)
    best = f"A checkpoint every {format_duration(result.checkpoint_interval_s)} is taken."
    title = "Goodput over the interval between checkpoints"
    axes = Axis("minutes between checkpoints", "{:.3g}".format, log=True), Axis("goodput", _ratio_text)
    return curves(title, best, [line], *axes, chosen=chosen)


def stragglers_document(
    result: Stragglers, *, plan: PlanRow | None = None, verbose: bool = False, spell: Spell = str
) -> Document:
    """Lay out what slow parts cost; `verbose`: sources in full."""
    first = result.parts[0]
    return plain(
        f"Slow parts of {on_gpus(result)}",
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
        f"{on_gpus(result)}: with {first.text} a step takes {longer} "
        f"({format_seconds(result.step_time_s)} -> {format_seconds(first.step_time_s)}), "
        f"{format_count(first.gpu_hours_per_day)} GPU-hours a day"
    )


def _alternatives(result: Stragglers, first: Straggler) -> str:
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


BILLED = {"steps": "steps", "failures": "failures, checkpoints", "spares": "spare nodes", "pauses": "pauses"}

MWH_UNITS = ((1e6, "TWh"), (1e3, "GWh"), (1.0, "MWh"))
DAYS = Axis("days", three_digits)


def train_time_document(result: TrainTime, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out time, money and energy, and what they stand on; `verbose`: sources in full."""
    said = _train_verdict(result)
    money = "not known" if result.cost_usd is None else f"{format_count(result.cost_usd)} USD"
    return Document(
        f"Training of {on_cluster(result)}",
        lambda width: f"{said}\n{verdict(result, result.plan, width)}{fit_text(result.plan)}",
        [
            ("Wall time", format_duration(result.wall_s), f"{result.effective_ratio:.1%} goodput"),
            ("GPU-hours of steps", format_count(result.gpu_hours), f"{format_count(result.billed_gpu_hours)} paid for"),
            ("Cost", money, ""),
            ("Energy", _energy_text(result.energy_mwh), f"{three_digits(result.carbon_t)} t of CO2"),
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


def _train_verdict(result: TrainTime) -> str:
    spares = f" with {plural(result.spares, 'spare node')}" if result.spares else ""
    money = "" if result.cost_usd is None else f", {format_count(result.cost_usd)} USD"
    text = (
        f"{_tokens(result.tokens)} on {plural(result.gpus, 'GPU')}{spares}: {format_duration(result.wall_s)}, "
        f"{format_count(result.billed_gpu_hours)} GPU-hours{money}, {_energy_text(result.energy_mwh)}; "
        f"{result.effective_ratio:.{0 if result.effective_ratio < 0.995 else 2}%} goodput"
    )
    return re.sub(r"\.0+(?=\D)", "", text)


def _energy_text(mwh: float) -> str:
    unit, name = next(((unit, name) for unit, name in MWH_UNITS if mwh >= unit), (1e-3, "kWh"))
    return f"{three_digits(mwh / unit)} {name}"


def _times(result: TrainTime) -> dict[str, str]:
    ratios = f"{_ratio_text(result.effective_ratio_low)} to {_ratio_text(result.effective_ratio_high)}"
    certain = result.effective_ratio_low == result.effective_ratio_high
    ratio = _ratio_text(result.effective_ratio) + ("" if certain else f" ({ratios})")
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
    rows, gpus = result.over_gpus, [float(one.gpus) for one in result.over_gpus]
    best = table(
        [
            {
                **({"cluster": one.cluster} if len({row.cluster for row in rows}) > 1 else {}),
                "layout": one.layout.partition(" recompute ")[0],
                "GPUs": (f"{one.gpus:,}{'*' if one.gpus == result.gpus else ' '}", one.gpus),
                "days": (three_digits(one.wall_s / DAY_S), one.wall_s),
                "GPU-h of steps": cell(one.gpu_hours, format_count),
                "USD": "-" if one.cost_usd is None else cell(one.cost_usd, format_count),
                "energy": cell(one.energy_mwh, _energy_text),
                "trains": cell(one.effective_ratio, "{:.1%}"),
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
    bars = []
    for index, one in enumerate(result.phases):
        if one.pause_s:
            bars.append(Bar(f"pause before {one.name}", index, (one.pause_s / DAY_S,), idle=True))
        bars.append(Bar(one.name, index, (one.wall_s / DAY_S,)))
    said = f"From {_day(result, 0.0)} to {_day(result, result.wall_s)}."
    plans = [
        {
            "phase": one.name,
            "begins": f"day {one.begins_s / DAY_S:.1f}" if one.begins is None else one.begins,
            "layout": one.layout,
            "days": (three_digits(one.wall_s / DAY_S), one.wall_s),
            "GPUs": cell(one.gpus),
            "seq": cell(one.sequence),
            "s/step": cell(one.step_time_s, "{:.3g}"),
            "tokens": cell(one.tokens, format_count),
            "GPU-h": cell(one.gpu_hours, format_count),
        }
        for one in result.phases
    ]
    events = [
        {
            "phase": one.name,
            "steps": cell(one.steps),
            "batch": cell(one.global_batch_size),
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
        *((name, _energy_text(mwh), f"{mwh / whole:.0%}") for name, mwh in result.energy.items()),
        (f"site, {result.power_mw:.3g} MW", _energy_text(result.energy_mwh), "100%"),
        ("carbon dioxide", f"{three_digits(result.carbon_t)} t", ""),
        ("power of one GPU", f"{result.gpu_power_w:.0f} W", ""),
    ]
    bars = [Bar(name, index, (mwh,)) for index, (name, mwh) in enumerate(result.energy.items())]
    said = f"The site draws {result.power_mw:.3g} MW while it trains, a GPU {result.gpu_power_w:.0f} W."
    return [
        page(waterfall("Energy", said, bars, "site", Axis("MWh", three_digits))),
        Table("Energy by use", ("energy", "", "share"), rows),
    ]
