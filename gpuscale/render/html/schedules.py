"""Sections of a page on a plan's pipeline: its slots over time, and how many ranks compute."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.explain.schedule import Schedule
from gpuscale.render.html.charts import Axis, Line, curves, in_rows
from gpuscale.render.html.page import Cell, Chart, Part, Table
from gpuscale.render.schedule import schedule_verdict, time_text
from gpuscale.render.schedule_files import ROW_PX, slot_legend, slot_marks, time_scale

DRAWN_SLOTS, NUMBERED_SLOTS = 2400, 400
"""Slots of a picture, and up to which each has its number in it."""


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
    t = found.timeline
    marks = slot_marks(found, which, numbered=which.size <= NUMBERED_SLOTS)
    across = time_scale(found, float(t.start_s[which].min()), float((t.end_s + t.sending_s)[which].max()))
    names = [f"rank {rank}" for rank in range(found.pipeline.pp)]
    drawing = in_rows(names, marks, across, "time", row_px=ROW_PX)
    return Chart(title, summary, drawing, _loads(found), [*slot_legend(found)])


def _active(found: Schedule) -> Chart:
    """The share of the ranks that compute over the step."""
    step_s, share = found.time_step_s, found.active_share
    times = [index * step_s for index in range(len(share))]
    mean = math.fsum(share) / len(share)
    said = f"On average {mean:.0%} of the {found.pipeline.pp} ranks compute, {max(share):.0%} at most."
    across = Axis("time", partial(time_text, found))
    up = Axis("% of ranks that compute", "{:.0f}".format, least=0.0)
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
