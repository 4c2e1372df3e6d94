"""Drawing of `gpuscale schedule`: a row for each rank, a column for each time step."""

from __future__ import annotations

import math

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.explain.schedule import Schedule
from gpuscale.render.console import WIDTH, Block, draw, output_width, table
from gpuscale.render.plan import degrees_text
from gpuscale.steptime.pipeline import BACKWARD, FORWARD
from gpuscale.units import format_seconds, plural

MOST_RANKS = 24
"""Ranks that are drawn; of more the first and the last."""

LETTERS = "abcdefghij"
"""Backward passes by the last digit of their microbatch."""

GAP = " ~ "
"""Where time steps are left out."""

LEGEND = (
    "0-9 forward pass and a-j backward pass of microbatches 0-9, 10-19, ...; w weight gradients; > sending; . waiting"
)


def draw_schedule(found: Schedule) -> None:
    """Print verdict, picture, what each rank does, and the closed forms beside the simulation."""
    width = min(output_width(), WIDTH)
    blocks: list[Block] = [
        schedule_verdict(found),
        "\n".join(picture(found, width)),
        _ranks(found),
        _closed_forms(found),
    ]
    draw(*blocks, _facts(found))


def schedule_verdict(found: Schedule) -> str:
    """Say in one line what was simulated, and its bubble."""
    what = (
        f"{_title(found)} on {plural(found.pipeline.pp, 'rank')}, {plural(found.pipeline.microbatches, 'microbatch')}"
    )
    what = what.replace("microbatchs", "microbatches")
    if found.plan is not None and found.subject is not None:
        told = found.subject.estimate
        what = f"{told.model} on {told.gpus:,} GPUs: {degrees_text(found.plan)}: {what}"
    return f"{what}: {found.bubble_fraction:.1%} bubble, {time_text(found, found.step_s)} per step"


def _title(found: Schedule) -> str:
    names = {"1f1b": "1F1B", "gpipe": "GPipe", "dualpipe": "DualPipe", "none": "no pipeline"}
    name = names.get(found.schedule, found.schedule.upper())
    return f"interleaved 1F1B, {found.pipeline.vpp} chunks," if found.schedule == "interleaved" else name


def time_text(found: Schedule, time_s: float) -> str:
    """Write a time: with its unit where a model says it."""
    return format_seconds(time_s) if found.subject else f"{time_s:.4g}"


def picture(found: Schedule, width: int) -> list[str]:
    """Draw the slots, with the active ranks below them."""
    label = len(f"rank {found.pipeline.pp - 1} ")
    room = width - max(label, len("active "))
    parts, step_s = _columns(found, room)
    rows, ranks = [], _shown_ranks(found.pipeline.pp)
    label = max(label, len("active "))
    rows.append("".ljust(label) + GAP.join(_scale(found, part, step_s) for part in parts))
    for rank, after in zip(ranks, [*ranks[1:], None], strict=True):
        marks = GAP.join(_marks(found, rank, _middles(part, step_s)) for part in parts)
        rows.append(f"rank {rank}".ljust(label) + marks)
        if after is not None and after > rank + 1:
            rows.append("...")
    rows.append("active".ljust(label) + GAP.join(_active(found, _middles(part, step_s)) for part in parts))
    count = "ranks that compute" if found.pipeline.pp < 10 else "tenths of the ranks that compute, # all"
    note = f"{LEGEND}; active: {count}. One column is {time_text(found, step_s)}."
    if len(parts) > 1:
        note += f" Left out at {GAP.strip()}: the steady state."
    return [*(row.rstrip() for row in rows), "", note]


def _columns(found: Schedule, room: int) -> tuple[list[IntArray], float]:
    """Return the time steps that are shown, in one piece or two, and the length of one.

    Where there are more than fit, the beginning and the end are; where the pipeline does not fill in half of the room,
    time steps are longer.
    """
    end_s = float((found.timeline.end_s + found.timeline.sending_s).max())
    step_s = found.time_step_s
    if math.ceil(end_s / step_s - 1e-6) <= room:
        return [np.arange(math.ceil(end_s / step_s - 1e-6))], step_s
    half = (room - len(GAP)) // 2
    backward = found.timeline.kind == BACKWARD
    filled_s = float(found.timeline.start_s[backward & (found.timeline.rank == 0)].min())
    step_s *= max(1, math.ceil(filled_s / step_s / half))
    count = math.ceil(end_s / step_s - 1e-6)
    if count <= room:
        return [np.arange(count)], step_s
    return [np.arange(half), np.arange(count - half, count)], step_s


def _middles(part: IntArray, step_s: float) -> FloatArray:
    return np.asarray((part + 0.5) * step_s, dtype=np.float64)


def _shown_ranks(pp: int) -> list[int]:
    half = MOST_RANKS // 2
    return list(range(pp)) if pp <= MOST_RANKS else [*range(half), *range(pp - half, pp)]


def _marks(found: Schedule, rank: int, times_s: FloatArray) -> str:
    """What a rank does at some times, one character each."""
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
            digit = int(t.microbatch[slot]) % 10
            kind = int(t.kind[slot])
            out.append(str(digit) if kind == FORWARD else LETTERS[digit] if kind == BACKWARD else "w")
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
            line = line.ljust(index) + "|" + time_text(found, number * step_s)
    return line.ljust(len(part))


def _ranks(found: Schedule) -> Block:
    rows = []
    for index in _shown_ranks(found.pipeline.pp):
        load = found.ranks[index]
        row = {
            "rank": str(load.rank),
            "computes": time_text(found, load.busy_s),
            "sends": time_text(found, load.sending_s),
            "waits": time_text(found, load.idle_s),
            "waits%": f"{load.idle_s / found.step_s:.1%}",
            "in flight": f"{load.in_flight:.4g}",
        }
        rows.append(row)
    if not any(load.sending_s for load in found.ranks):
        for row in rows:
            del row["sends"]
    return table(rows)


def _closed_forms(found: Schedule) -> Block:
    names = {"pipeline": "all microbatches", "bubble": "bubble, without transfers", "transfers": "transfers add"}
    rows = [
        {
            "of a step": names[one.quantity],
            "simulated": time_text(found, one.simulated_s),
            "closed form": time_text(found, one.closed_form_s),
            "off by": f"{(one.closed_form_s - one.simulated_s) / found.compared[0].simulated_s:+.2%}",
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
    if found.jitter:
        facts.append(("jitter", f"each slot takes up to {found.jitter:.0%} longer; not in the closed forms' table"))
    return facts
