"""Sections of a page on a plan's pipeline: its slots over time, and how many ranks compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.explain.schedule import Schedule
from gpuscale.render.html.charts import Axis, Line, colour, curves, names_axis, short
from gpuscale.render.html.page import Cell, Chart, Part, Table
from gpuscale.render.schedule import schedule_verdict, time_text
from gpuscale.steptime.pipeline import KINDS

DRAWN_SLOTS, NUMBERED_SLOTS, BORDERED_SLOTS, RANK_PX = 2400, 400, 120, 22
"""Slots of a picture, up to which each has its number in it, of a rank up to which they have borders; its height."""

NAMES, COLOURS = ("forward", "backward", "weight gradients"), (0, 1, 6)
LIGHTEST = 0.45
"""Opacity of the last chunk of a rank."""


def schedule_parts(found: Schedule) -> list[Part]:
    """The pipeline's slots, from its beginning and towards its end where they are many, and its active ranks."""
    t = found.timeline
    count = t.rank.size
    order = np.argsort(t.start_s, kind="stable")
    if count <= DRAWN_SLOTS:
        pictures = [_slots(found, order, "The pipeline of a step", f"{schedule_verdict(found)}.")]
    else:
        half = DRAWN_SLOTS // 2
        said = f"{schedule_verdict(found)}. The first {half:,} of {count:,} slots."
        last = f"The last {half:,} of {count:,} slots; the steady state between is left out."
        pictures = [
            _slots(found, order[:half], "How the pipeline fills", said),
            _slots(found, order[-half:], "How the pipeline drains", last),
        ]
    return [*pictures, _active(found)]


def _slots(found: Schedule, which: IntArray, title: str, summary: str) -> Chart:
    t, ranks = found.timeline, found.pipeline.pp
    kinds = [kind for kind in range(len(KINDS)) if (t.kind[which] == kind).any()]
    data: list[dict[str, Any]] = []
    for kind in kinds:
        mine = which[t.kind[which] == kind]
        numbers = t.microbatch[mine].tolist()
        start, length = t.start_s[mine], (t.end_s - t.start_s)[mine]
        fade = (1 - LIGHTEST) * t.chunk[mine] / max(found.pipeline.vpp - 1, 1)
        data.append(
            {
                "type": "bar", "orientation": "h", "name": NAMES[kind], "y": t.rank[mine].tolist(),
                "x": [*map(short, length.tolist())], "base": [*map(short, start.tolist())], "customdata": numbers,
                "hovertemplate": "rank %{y}, microbatch %{customdata}, %{fullData.name}<extra></extra>",
                "marker": {
                    "color": colour(COLOURS[kind]), "opacity": [*map(short, (1 - fade).tolist())],
                    "line": {"color": "var(--back)", "width": 0.5 if which.size <= BORDERED_SLOTS * ranks else 0},
                },
                **({"text": numbers, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
                    "insidetextfont": {"color": "var(--back)"}}
                   if which.size <= NUMBERED_SLOTS and found.pipeline.vpp == 1 else {}),
            }
        )  # fmt: skip
    axis = names_axis([f"rank {rank}" for rank in range(ranks)])
    unit = "seconds" if found.subject else "time"
    begin, end = float(t.start_s[which].min()), float(t.end_s[which].max())
    layout = {
        "barmode": "overlay", "bargap": 0.15, "yaxis": axis,
        "xaxis": {"title": {"text": unit}, "range": [short(begin), short(end)]},
    }  # fmt: skip
    legend = [(NAMES[kind], COLOURS[kind], "fill") for kind in kinds]
    return Chart(title, summary, data, layout, RANK_PX * ranks + 70, _loads(found), legend)


def _active(found: Schedule) -> Chart:
    """The share of the ranks that compute over the step."""
    step_s, share = found.time_step_s, found.active_share
    times = [index * step_s for index in range(len(share))]
    mean = math.fsum(share) / len(share)
    said = f"On average {mean:.0%} of the {found.pipeline.pp} ranks compute, {max(share):.0%} at most."
    across = Axis("seconds" if found.subject else "time", lambda time_s: time_text(found, time_s))
    up = Axis("% of ranks that compute", "{:.0f}".format)
    return curves(
        "Active ranks",
        said,
        [Line("active", 0, times, [100 * one for one in share])],
        across,
        up,
        marked=False,
        rows=60,
    )


def _loads(found: Schedule) -> Table:
    rows: list[list[Cell]] = [
        [
            (f"{one.rank}", one.rank),
            *((time_text(found, value), value) for value in (one.busy_s, one.sending_s, one.idle_s)),
            (f"{one.idle_s / found.step_s:.1%}", one.idle_s),
            (f"{one.in_flight:.4g}", one.in_flight),
        ]
        for one in found.ranks
    ]
    header = ("rank", "computes", "sends", "waits", "of the pipeline's time", "microbatches in flight")
    return Table("What each pipeline rank does in a step", header, rows)
