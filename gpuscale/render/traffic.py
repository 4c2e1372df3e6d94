"""Drawing of what `gpuscale explain` says of traffic: strategy -> traffic pattern -> what the network must give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate

from gpuscale.collectives.ideal import TITLES
from gpuscale.explain.traffic import (
    ENDS,
    FILLING,
    LEAST_FACTOR,
    REPLICAS,
    AxisTraffic,
    NetworkFault,
    NetworkNeed,
    TrafficReport,
    TrafficTotals,
    level_side,
)
from gpuscale.launch.subject import Subject
from gpuscale.planning.layouts import layout_text
from gpuscale.ratios import share_text, signed
from gpuscale.render.document import (
    Chart,
    Document,
    Part,
    Section,
    Spell,
    Table,
    cell,
    note_facts,
    on_page,
    page,
    plain,
    table,
    terminal,
)
from gpuscale.render.html.charts import Bar, Line, curves, stacked
from gpuscale.render.plan_texts import on_cluster
from gpuscale.render.plots import Axis
from gpuscale.specs.cluster import FABRIC_NAMES
from gpuscale.units import GB, TB, format_bytes, format_rate, format_seconds, plural

STRATEGIES = {
    "tp": "TP", "cp": "CP", "ep": "EP", "etp": "ETP", "pp": "PP", "dp": "DP", "edp": "DP of experts",
    "embedding": "tied embedding", "norm": "gradient norm",
}  # fmt: skip
SHORT = {"synchronisation": "sync"}


def traffic_document(report: TrafficReport, *, subject: Subject | None = None, spell: Spell = str) -> Document:
    """Lay out what a plan sends, and what the network must give (with the `subject`, where it is at hand)."""
    notes = note_facts(subject.estimate.notes, spell) if subject else []
    title = f"Traffic of {subject.estimate.model} on {plural(subject.estimate.gpus, 'GPU')}" if subject else "Traffic"
    if not report.traffic:
        return plain(title, NOTHING, notes)
    return Document(
        title,
        f"{verdict(report)}\n{_about(subject, report)}" if subject else verdict(report),
        sections=[
            Section("Over the step", [on_page(partial(_charts, report))]),
            Section("Strategies", [_chain(subject, report) if subject else ""]),
            Section("Collectives", [terminal(_collectives(report.traffic)), page(_calls(report))]),
            Section("Levels", [_levels(report)]),
            Section("Needs and faults", [
                [*_needs_text(report.network_needs), *_faults_text(report.network_faults), *notes] if subject else "",
            ]),
            Section("How to read it", [LEGEND]),
        ],
    )  # fmt: skip


def traffic_parts(report: TrafficReport) -> list[Part]:
    """The same for the page of a plan."""
    if not report.traffic:
        return [NOTHING]
    said = [*_needs_text(report.network_needs), *_faults_text(report.network_faults)]
    return [verdict(report), *_charts(report), _levels(report), said, _calls(report)]


def _charts(report: TrafficReport) -> list[Part]:
    return [_over_time(report), _by_phase(report), _by_collective(report)]


NOTHING = "No communication: every group of the plan has one GPU."
LEGEND = (
    "message: size as counted by nccl-tests; sent: bytes that one GPU sends per step;\n"
    "exposed: what the step waits for; link: share of the busiest link's wire rate while it runs;\n"
    "needed: bandwidth at which at most 1% of the step waits for it, beyond latency"
)


def verdict(report: TrafficReport) -> str:
    """Say in one line what a GPU sends in a step, and how much of it shows."""
    totals = report.traffic_totals
    inside = FABRIC_NAMES[totals.levels[0].fabric]
    parts = [f"{_gb(totals.node_bytes)} GB over {inside}"] if totals.node_bytes else []
    parts += [f"{_gb(totals.network_bytes)} GB over the network"] if totals.network_bytes else []
    exposed = f"{share_text(totals.exposed_share)} of the step is exposed communication"
    return f"Every GPU sends {' and '.join(parts)} per step; {exposed}."


def _about(subject: Subject, report: TrafficReport) -> str:
    totals, found = report.traffic_totals, subject.estimate
    where = f"stage {totals.stage + 1} of {totals.stages}, the slowest" if totals.stages > 1 else "of each GPU"
    layout = layout_text(subject.rows.row(0))
    step = format_seconds(totals.step_time_s)
    return f"{on_cluster(found)}: {layout}; {step} per step; {where}"


def _gb(size: float) -> str:
    value = size / GB
    if value < 0.001:
        return "0"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def _chain(subject: Subject, report: TrafficReport) -> Table:
    needs = {(one.component, one.where): one for one in report.network_needs}
    where = {level.name: level_side(level.fabric) for level in subject.spec.cluster.levels}
    strategies: dict[str, list[AxisTraffic]] = {}
    for one in report.traffic:
        strategies.setdefault(_strategy(one, subject.rows.row(0)), []).append(one)
    rows = []
    for name, own in strategies.items():
        main = max(own, key=lambda one: (one.time_s, one.bytes_per_call))
        need = needs.get((main.component, where[main.level]))
        rows.append(
            {
                "strategy": name,
                "traffic pattern": f"{_titles(own)}, {_rhythm(own, main, report.traffic_totals)}",
                "group": _group(main),
                "level": main.level,
                "has": format_rate(need.bytes_per_s) if need else "-",
                "needed\nGB/s per GPU": _needed(need) if need else "-",
            }
        )
    return table(rows, left=4)


def _strategy(one: AxisTraffic, layout: Mapping[str, int]) -> str:
    if one.purpose == REPLICAS:
        return f"replicas of {STRATEGIES[one.axis]}"
    shared = f" x CP{layout['cp']}" if layout["cp"] > 1 else ""
    more = {"tp": "+SP" * bool(layout["sp"]), "dp": f"{shared} ZeRO-{layout['zero']}"}.get(one.axis, "")
    return f"{STRATEGIES[one.axis]}{layout.get(one.axis, '')}{more}"


def _titles(rows: Iterable[AxisTraffic]) -> str:
    return " + ".join(TITLES[name] for name in dict.fromkeys(one.collective for one in rows))


def _rhythm(rows: Sequence[AxisTraffic], main: AxisTraffic, totals: TrafficTotals) -> str:
    """Say how often an axis calls in a layer, a microbatch or a step; an exchange in two parts counts once."""
    axis, group = main.axis, (main.group_size, main.stride)
    counted = [one for one in rows if axis != "ep" or (one.group_size, one.stride) == group]
    calls = math.fsum(one.calls_per_step for one in counted if one.purpose not in ENDS)
    if axis in {"tp", "cp", "ep", "etp"}:
        return f"{calls / (totals.microbatches * totals.layers):.3g} in each layer and microbatch"
    if axis == "pp":
        return f"{calls / totals.microbatches:.3g} for each microbatch"
    return f"{calls:,.0f} a step"


def _group(one: AxisTraffic) -> str:
    if one.nodes == 1:
        return f"{one.group_size:,} in a node"
    return f"{one.nodes:,} nodes x {one.ranks_per_node}"


def _needed(need: NetworkNeed) -> str:
    if need.needed_bytes_per_s is None:
        return "no rate is enough"
    least = need.needed_bytes_per_s <= LEAST_FACTOR * need.bytes_per_s
    return f"{'<= ' * least}{format_rate(need.needed_bytes_per_s)}"


def _collectives(rows: Sequence[AxisTraffic]) -> Table:
    """Every collective by axis and phase; what differs in purpose or size alone is added up."""
    alike: dict[tuple[str, ...], list[AxisTraffic]] = {}
    for one in rows:
        phase = "filling" if one.purpose == FILLING else SHORT.get(one.phase, one.phase)
        alike.setdefault((one.axis, one.collective, phase, one.level), []).append(one)
    lines = []
    for (axis, collective, phase, level), own in alike.items():
        time_s, shown_s = (math.fsum(getattr(one, name) for one in own) for name in ("time_s", "exposed_s"))
        used = math.fsum(one.busiest_link_utilisation * one.time_s for one in own) / (time_s or 1.0)
        largest = max(own, key=lambda one: one.bytes_per_call)
        lines.append(
            {
                "axis": {"edp": "DP exp", "embedding": "tied", "norm": "norm"}.get(axis, axis.upper()),
                "collective": TITLES[collective],
                "phase": phase,
                "level": level,
                "GPUs": f"{largest.group_size:,}",
                "message": ("" if len({one.bytes_per_call for one in own}) == 1 else "<= ")
                + format_bytes(largest.bytes_per_call),
                "calls": f"{math.fsum(one.calls_per_step for one in own):,.0f}" if phase != "filling" else "-",
                "sent GB": _gb(math.fsum(one.sent_bytes_per_step for one in own)) if phase != "filling" else "-",
                "time": format_seconds(time_s),
                "exposed": format_seconds(shown_s) if shown_s else "-",
                "link": f"{used:.0%}",
            }
        )
    return table(lines, left=4, optional=("GPUs",))


def _levels(report: TrafficReport) -> Table:
    phases = [one for one in report.network_activity if one.bytes]
    rows = []
    for level in report.traffic_totals.levels:
        rates = {
            f"{SHORT.get(one.phase, one.phase)}\nGB/s": format_rate(one.bytes_per_s.get(level.level, 0.0))
            if one.bytes_per_s.get(level.level, 0.0) >= 1e6
            else "-"
            for one in phases
        }
        rows.append(
            {
                "level": level.level,
                "fabric": level.fabric,
                "GPUs": f"{level.gpus:,}",
                "GB a GPU": _gb(level.passing_bytes),
                "TB at its\nswitches": f"{level.switch_bytes / TB:,.4g}",
                "can\nGB/s": format_rate(level.egress_bytes_per_s),
                **rates,
                "used": f"{level.utilisation:.1%}",
            }
        )
    return table(rows, left=2, optional=("fabric", "GPUs"))


def _needs_text(needs: Sequence[NetworkNeed]) -> list[tuple[str, str]]:
    out = []
    for one in needs:
        now, limit = f"{format_rate(one.bytes_per_s)} GB/s per GPU", f"{one.tolerance:.0%} of the step"
        if one.needed_bytes_per_s is None:
            text = f"16 times the {now} of the {one.level} still leave more than {limit} beyond latency"
        elif one.needed_bytes_per_s > one.bytes_per_s:
            rate = format_rate(one.needed_bytes_per_s)
            text = f"the {one.level} would need {rate} instead of {now} to cost at most {limit}"
        else:
            continue
        out.append((f"{one.component.removesuffix('_comm').upper()} needs", text))
    return out


def _faults_text(faults: Sequence[NetworkFault]) -> list[tuple[str, str]]:
    return [(one.name.replace("_", " "), f"{signed(one.factor - 1)} time: {one.meaning}") for one in faults]


def _gb_text(size_gb: float) -> str:
    """Write a size [GB]; what is less than a megabyte only as such."""
    return f"{size_gb:.3g}" if size_gb >= 0.001 or not size_gb else "<0.001"


SENT = Axis("GB that a GPU sends in a step", _gb_text)
SHOWN_COLLECTIVES = 20
PHASES = {
    "forward": "in the forward pass", "backward": "in the backward pass", "update": "in the update",
    "synchronisation": "while gradients are synchronised", "waiting": "while GPUs wait",
}  # fmt: skip


def _used(report: TrafficReport) -> list[str]:
    sent = {name for phase in report.network_activity for name, size in phase.bytes.items() if size}
    return [level.level for level in report.traffic_totals.levels if level.level in sent]


def _phases(report: TrafficReport) -> Table:
    levels = _used(report)
    header = ("phase", "time", *(f"{name}, GB" for name in levels), *(f"{name}, GB/s" for name in levels))
    rows = [
        [
            one.phase,
            cell(one.seconds, format_seconds),
            *((_gb_text(one.bytes.get(name, 0.0) / GB), one.bytes.get(name, 0.0)) for name in levels),
            *(cell(one.bytes_per_s.get(name, 0.0), format_rate) for name in levels),
        ]
        for one in report.network_activity
    ]
    return Table("Phases of a step, and what one GPU sends in each", header, rows)


def _over_time(report: TrafficReport) -> Chart:
    phases, levels = report.network_activity, _used(report)
    ends = list(accumulate((one.seconds for one in phases), initial=0.0))
    times = [at for index in range(len(phases)) for at in ends[index : index + 2]]
    lines = [
        Line(name, index, times, [one.bytes_per_s.get(name, 0.0) / GB for one in phases for _ in (0, 1)])
        for index, name in enumerate(levels)
    ]
    rate, level, phase = max((one.bytes_per_s.get(name, 0.0), name, one.phase) for one in phases for name in levels)
    gives = next(one for one in report.traffic_totals.levels if one.level == level).egress_bytes_per_s
    said = f"Most is sent over the {level} {PHASES[phase]}: {format_rate(rate)} of {format_rate(gives)} GB/s."
    axes = Axis("time into the step, phase by phase", format_seconds), Axis("GB/s per GPU", "{:.4g}".format)
    spans = [(one.phase, ends[index], ends[index + 1]) for index, one in enumerate(phases)]
    chart = curves("Network activity over a step", said, lines, *axes, marked=False, spans=spans)
    return chart._replace(numbers=_phases(report))


def _by_phase(report: TrafficReport) -> Chart:
    levels, phases = _used(report), [one for one in report.network_activity if any(one.bytes.values())]
    bars = [Bar(name, index, [one.bytes.get(name, 0.0) / GB for one in phases]) for index, name in enumerate(levels)]
    most = max(phases, key=lambda one: math.fsum(one.bytes.values()))
    share = sum(most.bytes.values()) / math.fsum(math.fsum(one.bytes.values()) for one in phases)
    said = f"{share:.0%} of the bytes travel {PHASES[most.phase]}."
    chart = stacked("What a GPU sends by phase", said, [one.phase for one in phases], bars, SENT)
    return chart._replace(numbers=_phases(report))


def _by_collective(report: TrafficReport) -> Chart:
    alike: dict[str, list[AxisTraffic]] = {}
    for one in report.traffic:
        alike.setdefault(f"{STRATEGIES[one.axis]} {TITLES[one.collective]}, {one.phase}", []).append(one)
    sums = {
        name: (math.fsum(one.exposed_s for one in own), math.fsum(one.hidden_s for one in own))
        for name, own in alike.items()
    }
    shown = sorted(sums, key=lambda name: -math.fsum(sums[name]))[:SHOWN_COLLECTIVES]
    bars = [
        Bar("exposed", 3, [sums[name][0] for name in shown]),
        Bar("hidden under compute", 9, [sums[name][1] for name in shown], idle=True),
    ]
    totals = report.traffic_totals
    said = (
        f"Of {format_seconds(totals.time_s)} of communication {format_seconds(totals.exposed_s)} are exposed: "
        f"{share_text(totals.exposed_share)} of the step."
    )
    return stacked("Communication by axis", said, shown, bars, Axis("seconds per step", format_seconds))


def _calls(report: TrafficReport) -> Table:
    rows = [
        {
            "axis": STRATEGIES[one.axis],
            "collective": TITLES[one.collective],
            "phase": one.phase,
            "what": one.purpose,
            "level": one.level,
            "GPUs": cell(one.group_size),
            "message": cell(one.bytes_per_call, format_bytes),
            "calls per step": cell(one.calls_per_step, "{:,.0f}"),
            "GB sent": (_gb_text(one.sent_bytes_per_step / GB), one.sent_bytes_per_step),
            "time": cell(one.time_s, format_seconds),
            "exposed": cell(one.exposed_s, format_seconds),
            "busiest link": cell(one.busiest_link_utilisation, "{:.0%}"),
        }
        for one in report.traffic
    ]
    said = "Every collective of a GPU on the slowest stage in a step; a column's header sorts by it"
    return table(rows, caption=said, sortable=True)
