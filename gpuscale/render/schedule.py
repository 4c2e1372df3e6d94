"""Drawing of `gpuscale schedule`: a row for each rank, a column for each time step."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.explain.schedule import Schedule
from gpuscale.files import NO_BREAK
from gpuscale.ratios import signed
from gpuscale.render.document import (
    WIDTH,
    Cell,
    Chart,
    Document,
    Part,
    Section,
    Spell,
    Table,
    note_facts,
    on_page,
    table,
    terminal,
)
from gpuscale.render.html.charts import Line, curves, in_rows
from gpuscale.render.plots import Axis
from gpuscale.render.schedule_files import (
    ROW_PX,
    of_what,
    schedule_verdict,
    slot_legend,
    slot_marks,
    time_scale,
    time_text,
)
from gpuscale.steptime.pipeline import BACKWARD, KINDS
from gpuscale.units import format_seconds

MOST_RANKS = 24
"""Ranks that are drawn; of more the first and the last."""

LETTERS = "abcdefghij"
"""Backward passes by the last digit of their microbatch."""

NOTABLE = 0.02
"""From which difference on between closed form and simulation a sentence says so, as a share of the step."""

GAP = " ~ "
"""Where time steps are left out."""


def schedule_document(found: Schedule, *, spell: Spell = str) -> Document:
    """Lay out the picture, what each rank does, and the closed forms beside the simulation."""
    return Document(
        f"Schedule: {schedule_verdict(found).partition(':')[0]}",
        "\n".join(filter(None, (schedule_verdict(found), of_what(found)))),
        sections=[
            Section("Slots", [
                terminal(lambda width: "\n".join(picture(found, min(width, WIDTH)))),
                on_page(lambda: schedule_parts(found)),
            ]),
            Section("Ranks", [terminal(_ranks(found))]),
            Section("Closed forms", [_closed_forms(found), [*_facts(found), *note_facts(found.notes, spell)]]),
        ],
    )  # fmt: skip


def picture(found: Schedule, width: int) -> list[str]:
    """Draw the slots, with the active ranks below them."""
    pp = found.pipeline.pp
    label = max(len(f"rank {pp - 1} "), len("active "))
    parts, step_s = _columns(found, width - label)
    coarse = step_s > found.time_step_s
    rows, ranks = ["".ljust(label) + GAP.join(_scale(found, part, step_s) for part in parts)], _shown_ranks(pp)
    for rank, after in zip(ranks, [*ranks[1:], pp], strict=True):
        marks = (_marks(found, rank, _middles(part, step_s), coarse=coarse) for part in parts)
        rows.append(f"rank {rank}".ljust(label) + GAP.join(marks))
        rows += ["..."] * (after > rank + 1)
    rows.append("active".ljust(label) + GAP.join(_active(found, _middles(part, step_s)) for part in parts))
    return [*(row.rstrip() for row in rows), "", _legend(found, step_s, coarse=coarse, cut=len(parts) > 1)]


def _legend(found: Schedule, step_s: float, *, coarse: bool, cut: bool) -> str:
    kinds = {
        "F" if coarse else "0-9": "forward pass" + (" of microbatch 0-9, 10-19, ..." if not coarse else ""),
        "B" if coarse else "a-j": "its backward pass" if not coarse else "backward pass",
        "W" if coarse else "w": "weight gradients" if found.pipeline.splits else "",
        ">": "sending" if found.durations.blocking_s else "",
        ".": "waiting",
    }
    few = found.pipeline.pp < 10
    said = "; ".join(f"{mark}{NO_BREAK}{name}" for mark, name in kinds.items() if name)
    note = f"{said}; active: ranks that compute{'' if few else ', in tenths, # all'}."
    note += f" One column is {time_text(found, step_s)}" + (", sampled at its middle." if coarse else ".")
    return (note + f" {GAP.strip()} leaves out the steady state." * cut).replace(NO_BREAK, " ")


def _columns(found: Schedule, room: int) -> tuple[list[IntArray], float]:
    """Return the time steps that are shown, in one piece or two, and the length of one.

    Where there are more than fit, the beginning is shown, until the first backward pass is through or longer, and the
    end; where that takes more than two thirds of the room, time steps are longer.
    """
    end_s = float((found.timeline.end_s + found.timeline.sending_s).max())
    first = (found.timeline.kind == BACKWARD) & (found.timeline.rank == 0)
    filled_s = float(found.timeline.end_s[first].min())
    step_s, room_before = found.time_step_s, 2 * room // 3
    count = math.ceil(end_s / step_s - 1e-6)
    if count > room:
        step_s *= max(1, math.ceil(filled_s / step_s / room_before))
        count = math.ceil(end_s / step_s - 1e-6)
    if count <= room:
        return [np.arange(count)], step_s
    before = max((room - len(GAP)) // 2, min(room_before, math.ceil(filled_s / step_s)))
    return [np.arange(before), np.arange(count - (room - len(GAP) - before), count)], step_s


def _middles(part: IntArray, step_s: float) -> FloatArray:
    return np.asarray((part + 0.5) * step_s, dtype=np.float64)


def _shown_ranks(pp: int) -> list[int]:
    half = MOST_RANKS // 2
    return list(range(pp)) if pp <= MOST_RANKS else [*range(half), *range(pp - half, pp)]


def _marks(found: Schedule, rank: int, times_s: FloatArray, *, coarse: bool) -> str:
    """What a rank does at some times, one character each: of which microbatch, or (coarse) only what."""
    t = found.timeline
    mine = np.flatnonzero(t.rank == rank)
    at = np.searchsorted(t.start_s[mine], times_s, side="right") - 1
    out = []
    for index, time_s in zip(at.tolist(), times_s.tolist(), strict=True):
        slot = mine[max(index, 0)]
        if index < 0 or time_s >= t.end_s[slot] + t.sending_s[slot]:
            out.append(".")
        elif time_s >= t.end_s[slot]:
            out.append(">")
        else:
            digit, kind = int(t.microbatch[slot]) % 10, int(t.kind[slot])
            out.append(KINDS[kind] if coarse else (str(digit), LETTERS[digit], "w")[kind])
    return "".join(out)


def _active(found: Schedule, times_s: FloatArray) -> str:
    """How many ranks compute at some times, one digit each."""
    t, pp = found.timeline, found.pipeline.pp
    begun = np.searchsorted(np.sort(t.start_s), times_s, side="right")
    active = begun - np.searchsorted(np.sort(t.end_s), times_s, side="right")
    return "".join(
        str(count) if pp < 10 else "#" if count == pp else str(10 * count // pp) for count in active.tolist()
    )


def _scale(found: Schedule, part: IntArray, step_s: float) -> str:
    """The times at which columns begin, as many as fit."""
    line, every = "", 20
    for index, number in enumerate(part.tolist()):
        if index % every == 0 and len(part) - index >= every // 2:
            line = line.ljust(index) + "|" + (time_text(found, number * step_s) if number else "0")
    return line.ljust(len(part))


def _ranks(found: Schedule) -> Part:
    sending = any(load.sending_s for load in found.ranks)
    rows = [
        {
            "rank": str(load.rank),
            "computes": time_text(found, load.busy_s),
            **({"sends": time_text(found, load.sending_s)} if sending else {}),
            "waits": time_text(found, load.idle_s) if load.idle_s else "-",
            "waits%": f"{load.idle_s / found.step_s:.1%}",
            "in flight": f"{load.in_flight:.4g}",
        }
        for load in (found.ranks[index] for index in _shown_ranks(found.pipeline.pp))
    ]
    return table(rows)


def _closed_forms(found: Schedule) -> Part:
    names = {"pipeline": "all microbatches", "bubble": "bubble, without transfers", "transfers": "transfers add"}
    rows = [
        {
            "of a step": names[one.quantity],
            "simulated": time_text(found, one.simulated_s),
            "closed form": time_text(found, one.closed_form_s),
            "off by, of all": signed(
                (one.closed_form_s - one.simulated_s) / found.compared[0].simulated_s, 2, "+0.00%"
            ),
        }
        for one in found.compared
        if one.simulated_s or one.closed_form_s
    ]
    return table(rows)


def _facts(found: Schedule) -> list[tuple[str, str]]:
    """What the numbers rest on."""
    d = found.durations
    facts = [("in flight", "microbatches whose activations a rank holds at its peak, in whole-stage units")]
    if d.transfer_s:
        how = "the sender waits" if d.blocking_s == d.transfer_s else "under the sender's next chunk"
        if 0 < d.blocking_s < d.transfer_s:
            how += f", but for {time_text(found, d.blocking_s)} of latency"
        facts.append(("transfers", f"{time_text(found, d.transfer_s)} each: {how}"))
    if found.subject is not None and found.pipeline.pp > 1:
        told = found.subject.estimate.breakdown["bubble"]
        said = f"of {format_seconds(found.step_s)}, transfers that the busiest rank waits for included; without them "
        said += f"{format_seconds(told)} of the step, {told / found.subject.estimate.plan.step_time_s:.1%}"
        facts.append(("bubble", said))
    whole = found.compared[0]
    off = whole.closed_form_s / whole.simulated_s - 1
    if abs(off) > NOTABLE:
        what = f"{abs(off):.0%} too {'long' if off > 0 else 'short'} for this pipeline"
        facts.append(("closed form", f"{what}, and so is the predicted step; docs/schedule.md says when"))
    if found.jitter:
        facts.append(("jitter", f"each slot takes up to {found.jitter:.0%} longer; not in the closed forms' table"))
    return facts


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
    return [*pictures, _active_chart(found)]


def _slots(found: Schedule, which: IntArray, title: str, summary: str) -> Chart:
    t = found.timeline
    marks = [*slot_marks(found, which, numbered=which.size <= NUMBERED_SLOTS)]
    across = time_scale(found, float(t.start_s[which].min()), float((t.end_s + t.sending_s)[which].max()))
    names = [f"rank {rank}" for rank in range(found.pipeline.pp)]
    drawing = partial(in_rows, names, marks, across, "time", row_px=ROW_PX)
    return Chart(title, summary, drawing, _loads(found), [*slot_legend(found)])


def _active_chart(found: Schedule) -> Chart:
    """The share of the ranks that compute over the step."""
    step_s, share = found.time_step_s, found.active_share
    times = [index * step_s for index in range(len(share))]
    mean = math.fsum(share) / len(share)
    said = f"On average {mean:.0%} of the {found.pipeline.pp} ranks compute, {max(share):.0%} at most."
    across = Axis("time", partial(time_text, found))
    up = Axis("% of ranks that compute", "{:.0f}".format, least=0.0)
    return curves(
        "Active ranks", said, [Line("active", 0, times, [100 * one for one in share])], across, up, marked=False
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
