"""Sections of a page on what a plan sends: by phase of the step, by collective, by level of the cluster."""

from __future__ import annotations

import math
from itertools import accumulate

from gpuscale.collectives.ideal import TITLES
from gpuscale.explain.traffic import AxisTraffic, TrafficReport
from gpuscale.ratios import share_text
from gpuscale.render.html.charts import Axis, Bar, Line, curves, stacked
from gpuscale.render.html.page import Cell, Chart, Part, Table
from gpuscale.render.traffic import STRATEGIES, faults_text, needs_text, verdict
from gpuscale.units import GB, TB, format_bytes, format_rate, format_seconds


def gb_text(size_gb: float) -> str:
    """Write a size [GB]; what is less than a megabyte only as such."""
    return f"{size_gb:.3g}" if size_gb >= 0.001 or not size_gb else "<0.001"


SENT = Axis("GB that a GPU sends in a step", gb_text)
SHOWN_COLLECTIVES = 20
PHASES = {
    "forward": "in the forward pass", "backward": "in the backward pass", "update": "in the update",
    "synchronisation": "while gradients are synchronised", "waiting": "while GPUs wait",
}  # fmt: skip


def traffic_parts(report: TrafficReport) -> list[Part]:
    """What travels where in a step, and what the network would have to give."""
    if not report.traffic:
        return ["Nothing travels: every group of the plan has one GPU."]
    said = [*needs_text(report.network_needs), *faults_text(report.network_faults)]
    return [
        verdict(report),
        _over_time(report),
        _by_phase(report),
        _by_collective(report),
        _levels(report),
        *([said] if said else []),
        _calls(report),
    ]


def _used(report: TrafficReport) -> list[str]:
    sent = {name for phase in report.network_activity for name, size in phase.bytes.items() if size}
    return [level.level for level in report.traffic_totals.levels if level.level in sent]


def _phases(report: TrafficReport) -> Table:
    levels = _used(report)
    header = ("phase", "time", *(f"{name}, GB" for name in levels), *(f"{name}, GB/s" for name in levels))
    rows: list[list[Cell]] = [
        [
            one.phase,
            (format_seconds(one.seconds), one.seconds),
            *((gb_text(one.bytes.get(name, 0.0) / GB), one.bytes.get(name, 0.0)) for name in levels),
            *((format_rate(one.bytes_per_s.get(name, 0.0)), one.bytes_per_s.get(name, 0.0)) for name in levels),
        ]
        for one in report.network_activity
    ]
    return Table("Phases of a step, and what one GPU sends in each", header, rows)


def _over_time(report: TrafficReport) -> Chart:
    """How fast a GPU sends over each level while the step runs, phase after phase."""
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
        Bar("shows in the step", 3, [sums[name][0] for name in shown]),
        Bar("hidden beside computation", 9, [sums[name][1] for name in shown], idle=True),
    ]
    totals = report.traffic_totals
    said = (
        f"Of {format_seconds(totals.time_s)} of communication {format_seconds(totals.exposed_s)} show: "
        f"{share_text(totals.exposed_share)} of the step."
    )
    return stacked("Communication by axis", said, shown, bars, Axis("seconds per step", format_seconds))


def _levels(report: TrafficReport) -> Table:
    header = ("level", "fabric", "GPUs of the job", "GB/s per GPU", "GB a GPU sends", "TB at its switches", "used")
    rows: list[list[Cell]] = [
        [
            one.level,
            one.fabric,
            (f"{one.gpus:,}", one.gpus),
            (format_rate(one.egress_bytes_per_s), one.egress_bytes_per_s),
            (gb_text(one.passing_bytes / GB), one.passing_bytes),
            (f"{one.switch_bytes / TB:,.4g}", one.switch_bytes),
            (f"{one.utilisation:.1%}", one.utilisation),
        ]
        for one in report.traffic_totals.levels
    ]
    return Table("What passes each level of the cluster in a step", header, rows)


def _calls(report: TrafficReport) -> Table:
    header = ("axis", "collective", "phase", "what", "level", "GPUs", "message", "calls per step", "GB sent", "time",
              "shows", "busiest link")  # fmt: skip
    rows: list[list[Cell]] = [
        [
            STRATEGIES[one.axis],
            TITLES[one.collective],
            one.phase,
            one.purpose,
            one.level,
            (f"{one.group_size:,}", one.group_size),
            (format_bytes(one.bytes_per_call), one.bytes_per_call),
            (f"{one.calls_per_step:,.0f}", one.calls_per_step),
            (gb_text(one.sent_bytes_per_step / GB), one.sent_bytes_per_step),
            (format_seconds(one.time_s), one.time_s),
            (format_seconds(one.exposed_s), one.exposed_s),
            (f"{one.busiest_link_utilisation:.0%}", one.busiest_link_utilisation),
        ]
        for one in report.traffic
    ]
    said = "Every collective of a GPU on the slowest stage in a step; a column's header sorts by it"
    return Table(said, header, rows, sortable=True)
