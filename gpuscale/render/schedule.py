"""A simulated pipeline: drawn, as a trace in Chrome's format, which Perfetto opens, and as a picture (SVG)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from html import escape
from typing import Any

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.errors import InputError
from gpuscale.explain.schedule import Schedule, beside_s, stage_bytes
from gpuscale.files import NO_BREAK
from gpuscale.ratios import signed
from gpuscale.render.document import (
    WIDTH,
    Chart,
    Document,
    Part,
    Section,
    Spell,
    Table,
    cell,
    note_facts,
    on_page,
    table,
    terminal,
)
from gpuscale.render.html.charts import Line, Mark, Scale, curves, in_rows, rows_svg, scale
from gpuscale.render.html.page import resource
from gpuscale.render.plan_texts import component_text, degrees_text, fit_text, on_gpus
from gpuscale.render.plots import Axis
from gpuscale.steptime.components import COMMUNICATION, INDEX
from gpuscale.steptime.pipeline import BACKWARD, FORWARD, KINDS, WEIGHT, held_by_rank
from gpuscale.units import GIB, format_seconds, plural

MOST_RANKS = 24
"""Ranks that are drawn; of more the first and the last."""

LETTERS = "abcdefghij"
"""Backward passes by the last digit of their microbatch."""

NOTABLE = 0.02
"""Difference of closed form and simulation that a sentence names, as a share of the step."""

GAP = " ~ "
"""Where time steps are left out."""


def schedule_document(found: Schedule, *, spell: Spell = str) -> Document:
    """Lay out the picture, what each rank does, and closed forms beside the simulation."""
    return Document(
        f"Schedule: {_schedule_verdict(found).partition(':')[0]}",
        "\n".join(filter(None, (_schedule_verdict(found), _of_what(found)))),
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
    note += f" One column is {_time_text(found, step_s)}" + (", sampled at its middle." if coarse else ".")
    return (note + f" {GAP.strip()} leaves out the steady state." * cut).replace(NO_BREAK, " ")


def _columns(found: Schedule, room: int) -> tuple[list[IntArray], float]:
    """Return the time steps that are shown, and the length of one: all, or the beginning (until the first backward pass
    is through) and the end; longer ones where the beginning takes over two thirds."""
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
    t, pp = found.timeline, found.pipeline.pp
    begun = np.searchsorted(np.sort(t.start_s), times_s, side="right")
    active = begun - np.searchsorted(np.sort(t.end_s), times_s, side="right")
    return "".join(
        str(count) if pp < 10 else "#" if count == pp else str(10 * count // pp) for count in active.tolist()
    )


def _scale(found: Schedule, part: IntArray, step_s: float) -> str:
    line, every = "", 20
    for index, number in enumerate(part.tolist()):
        if index % every == 0 and len(part) - index >= every // 2:
            line = line.ljust(index) + "|" + (_time_text(found, number * step_s) if number else "0")
    return line.ljust(len(part))


def _ranks(found: Schedule) -> Part:
    sending = any(load.sending_s for load in found.ranks)
    rows = [
        {
            "rank": str(load.rank),
            "computes": _time_text(found, load.busy_s),
            **({"sends": _time_text(found, load.sending_s)} if sending else {}),
            "waits": _time_text(found, load.idle_s) if load.idle_s else "-",
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
            "simulated": _time_text(found, one.simulated_s),
            "closed form": _time_text(found, one.closed_form_s),
            "off by, of all": signed(
                (one.closed_form_s - one.simulated_s) / found.compared[0].simulated_s, 2, "+0.00%"
            ),
        }
        for one in found.compared
        if one.simulated_s or one.closed_form_s
    ]
    return table(rows)


def _facts(found: Schedule) -> list[tuple[str, str]]:
    d = found.durations
    facts = [("in flight", "microbatches whose activations a rank holds at its peak, in whole-stage units")]
    if d.transfer_s:
        how = "the sender waits" if d.blocking_s == d.transfer_s else "under the sender's next chunk"
        if 0 < d.blocking_s < d.transfer_s:
            how += f", but for {_time_text(found, d.blocking_s)} of latency"
        facts.append(("transfers", f"{_time_text(found, d.transfer_s)} each: {how}"))
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
    """The pipeline's slots, of many the first and last, and its active ranks."""
    t = found.timeline
    count = t.rank.size
    order = np.argsort(t.start_s, kind="stable")
    if count <= DRAWN_SLOTS:
        pictures = [_slots(found, order, "The pipeline of a step", f"{_schedule_verdict(found)}.")]
    else:
        half = DRAWN_SLOTS // 2
        said = f"{_schedule_verdict(found)}. The first {half:,} of {count:,} slots."
        last = f"The last {half:,} of {count:,} slots; the steady state between is left out."
        pictures = [
            _slots(found, order[:half], "How the pipeline fills", said),
            _slots(found, order[-half:], "How the pipeline drains", last),
        ]
    return [*pictures, _active_chart(found)]


def _slots(found: Schedule, which: IntArray, title: str, summary: str) -> Chart:
    t = found.timeline
    marks = [*_slot_marks(found, which, numbered=which.size <= NUMBERED_SLOTS)]
    across = _time_scale(found, float(t.start_s[which].min()), float((t.end_s + t.sending_s)[which].max()))
    names = [f"rank {rank}" for rank in range(found.pipeline.pp)]
    drawing = partial(in_rows, names, marks, across, "time", row_px=ROW_PX)
    return Chart(title, summary, drawing, _loads(found), [*_slot_legend(found)])


def _active_chart(found: Schedule) -> Chart:
    step_s, share = found.time_step_s, found.active_share
    times = [index * step_s for index in range(len(share))]
    mean = math.fsum(share) / len(share)
    said = f"On average {mean:.0%} of the {found.pipeline.pp} ranks compute, {max(share):.0%} at most."
    across = Axis("time", partial(_time_text, found))
    up = Axis("% of ranks that compute", "{:.0f}".format, least=0.0)
    return curves(
        "Active ranks", said, [Line("active", 0, times, [100 * one for one in share])], across, up, marked=False
    )


def _loads(found: Schedule) -> Table:
    rows = [
        [
            cell(one.rank, "{}"),
            *((_time_text(found, value), value) for value in (one.busy_s, one.sending_s, one.idle_s)),
            (f"{one.idle_s / found.step_s:.1%}", one.idle_s),
            cell(one.in_flight, "{:.4g}"),
        ]
        for one in found.ranks
    ]
    header = ("rank", "computes", "sends", "waits", "of the pipeline's time", "microbatches in flight")
    return Table("What each pipeline rank does in a step", header, rows)


MAX_TRACED, MAX_WITH_PARTS, MAX_DRAWN = 100_000, 12_000, 6_000
"""Slots in a trace at most, in one that has the parts of each slot, and in a picture."""

NAMES = ("forward", "backward", "weight gradients")
COMPUTE, NETWORK = 1, 2
"""Tracks of a rank: slots and waiting, and what it waits for that is sent; together the step, gapless."""

Span = tuple[int, int, str, int, dict[str, Any]]
"""Start and end [ns], name, track, further facts."""


def _schedule_verdict(found: Schedule) -> str:
    pipeline = found.pipeline
    number = "1 microbatch" if pipeline.microbatches == 1 else f"{pipeline.microbatches:,} microbatches"
    what = f"{_title(found)} on {plural(pipeline.pp, 'rank')}, {number}: {found.bubble_fraction:.1%} bubble"
    if found.plan is None:
        return f"{what}, {_time_text(found, found.step_s)} per step"
    if found.jitter:
        return f"{what}, {format_seconds(found.step_s)}; {format_seconds(found.compared[0].simulated_s)} without jitter"
    return f"{what}, {format_seconds(found.step_s)} of a step of {format_seconds(found.plan.step_time_s)}"


def _of_what(found: Schedule) -> str:
    if found.subject is None:
        return ""
    told = found.subject.estimate
    return f"{on_gpus(told)}: {degrees_text(told.plan)}{fit_text(told.plan)}"


def _title(found: Schedule) -> str:
    names = {"1f1b": "1F1B", "gpipe": "GPipe", "dualpipe": "DualPipe", "none": "no pipeline"}
    name = names.get(found.schedule, found.schedule.upper())
    return f"interleaved 1F1B, {found.pipeline.vpp} chunks," if found.schedule == "interleaved" else name


def _time_text(found: Schedule, time_s: float) -> str:
    """Write a time: with its unit where a model says it."""
    return format_seconds(time_s) if found.subject else f"{time_s:.4g}"


def trace_text(found: Schedule) -> str:
    """Write a step as a trace: an object with `traceEvents`.

    A process for each pipeline rank, which stands for all GPUs of its stage, and one for the step as predicted. Slices
    of a rank's two tracks together last as long as the step. Where the search's closed form for the pipeline is longer
    than the simulation, the difference is a slice of its own; where it is shorter, the simulation is drawn to its
    length, which the name of the step's slice says.

    Raises:
        InputError: too many slots.
    """
    if len(found.timeline.rank) > MAX_TRACED:
        message = f"a trace of {len(found.timeline.rank):,} slots is too large"
        raise InputError(message, field="trace", hint=f"at most {MAX_TRACED:,} slots: take fewer microbatches")
    memory = stage_bytes(found.subject) if found.subject else None
    events = list(_step_events(found))
    for rank, held in enumerate(held_by_rank(found.timeline, found.pipeline)):
        events += _rank_events(found, rank)
        events += _counters(found, rank, held, memory)
    other = {"schedule": _schedule_verdict(found), "unit": "s" if found.subject else "as given, 1 drawn as 1 s"}
    if found.passes is not None and len(found.timeline.rank) > MAX_WITH_PARTS:
        other["parts"] = f"left out: more than {MAX_WITH_PARTS:,} slots"
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("},{", "},\n{") + "\n"


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _pipeline_s(found: Schedule) -> tuple[float, float]:
    """Return how long the pipeline is drawn, and by what the simulated times are multiplied."""
    closed_s = found.compared[0].closed_form_s
    if found.jitter or not found.subject:
        return found.step_s, 1.0
    return closed_s, min(1.0, closed_s / found.step_s)


def _bounds(found: Schedule) -> list[tuple[int, int, str]]:
    """Return what follows the simulated pipeline, one after the other, from its start on [ns]."""
    pipeline_s, scale = _pipeline_s(found)
    parts = {"closed form of the search over the simulation": pipeline_s - found.step_s * scale}
    parts |= beside_s(found.subject) if found.subject else {}
    out, at_s = [], found.step_s * scale
    for name, time_s in parts.items():
        if _ns(at_s + time_s) > _ns(at_s):
            out.append((_ns(at_s), _ns(at_s + time_s), name))
        at_s = at_s + time_s
    if found.subject and not found.jitter and out:  # the sum to the last digit
        out[-1] = (out[-1][0], _ns(float(found.subject.evaluation.step.step_time_s[0])), out[-1][2])
    return out


def _event(pid: int, span: Span) -> dict[str, Any]:
    start, end, name, tid, facts = span
    event = {"ph": "X", "pid": pid, "tid": tid, "ts": start / 1e3, "dur": (end - start) / 1e3, "name": name}
    return event | ({"args": facts} if facts else {})


def _named(pid: int, process: str, tracks: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    for tid, name in tracks.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def _step_events(found: Schedule) -> Iterator[dict[str, Any]]:
    yield from _named(0, "step", {COMPUTE: "as predicted"})
    after, (_, scale) = _bounds(found), _pipeline_s(found)
    end = after[-1][1] if after else _ns(found.step_s * scale)
    yield _event(0, (0, end, "step", COMPUTE, {}))
    name = "pipeline, as simulated"
    if scale < 1:
        name += f"; drawn {1 - scale:.2%} shorter, as the closed form of the search has it"
    yield _event(0, (0, after[0][0] if after else end, name, COMPUTE, {}))
    for start, until, component in after:
        yield _event(0, (start, until, component_text(component), COMPUTE, {}))


def _rank_events(found: Schedule, rank: int) -> Iterator[dict[str, Any]]:
    pid, scale = rank + 1, _pipeline_s(found)[1]
    gpus = f", {plural(found.subject.spec.gpus // found.pipeline.pp, 'GPU')}" if found.subject else ""
    yield from _named(pid, f"pipeline rank {rank}{gpus}", {COMPUTE: "compute", NETWORK: "communication"})
    t = found.timeline
    mine = np.flatnonzero(t.rank == rank)
    offset_s = max(0.0, float((t.end_s + t.sending_s)[mine].max()) - found.step_s)  # begins when its last step ends
    begin = _ns(offset_s * scale)
    end = begin + _ns(found.step_s * scale)  # where what follows the pipeline begins, to the nanosecond
    parts = len(t.rank) <= MAX_WITH_PARTS
    at = begin
    for slot in mine.tolist():
        moments = (t.start_s[slot], t.end_s[slot], t.end_s[slot] + t.sending_s[slot])
        start, stop, free = (min(_ns(float(time_s) * scale), end) for time_s in moments)
        if start > at:
            yield _event(pid, (at, start, "waits", COMPUTE, {}))
        kind, chunk, number = (int(column[slot]) for column in (t.kind, t.chunk, t.microbatch))
        facts = {"microbatch": number, "chunk": chunk}
        yield _event(pid, (start, stop, f"{KINDS[kind]} {number}", COMPUTE, facts | {"kind": NAMES[kind]}))
        if parts and found.passes is not None:
            yield from (_event(pid, span) for span in _parts(found, kind, chunk, rank, start, stop))
        if free > stop:
            yield _event(pid, (stop, free, f"sends {KINDS[kind]} {number}", NETWORK, {}))
        at = free
    if end > at:
        yield _event(pid, (at, end, "waits", COMPUTE, {}))
    for start, until, name in _bounds(found):
        track = NETWORK if name in {*COMMUNICATION, "offload"} else COMPUTE
        yield _event(pid, (start + begin, until + begin, component_text(name), track, {}))


def _counters(
    found: Schedule, rank: int, held: tuple[FloatArray, FloatArray], memory: tuple[FloatArray, FloatArray] | None
) -> Iterator[dict[str, Any]]:
    """What one rank holds: microbatches (`held_by_rank`), and a GPU's memory (`stage_bytes`)."""
    scale = _pipeline_s(found)[1]
    times, levels = (np.concatenate([[0.0], values]) for values in held)
    series = {"microbatches in flight": {"microbatches": levels}}
    if memory:
        fixed, each = (values[rank] / GIB for values in memory)
        series["memory of a GPU, GiB"] = {
            "states, buffers and peak of a pass": np.full_like(levels, fixed),
            "activations": levels * each,
        }
    for index, time_s in enumerate(times.tolist()):
        for name, values in series.items():
            said = {part: round(float(value[index]), 6) for part, value in values.items()}
            yield {"ph": "C", "pid": rank + 1, "ts": _ns(time_s * scale) / 1e3, "name": name, "args": said}


def _parts(found: Schedule, kind: int, chunk: int, rank: int, start: int, stop: int) -> Iterator[Span]:
    passes = found.passes
    assert passes is not None
    cost = passes.forward if kind == FORWARD else passes.backward
    shape = passes.weight_s.shape
    parts = {name: float(np.broadcast_to(value, shape)[chunk, rank]) for name, value in cost.items()}
    if found.pipeline.splits and kind != FORWARD:
        weight_s = float(passes.weight_s[chunk, rank])
        parts = {"gemm": weight_s} if kind == WEIGHT else {**parts, "gemm": max(parts.get("gemm", 0.0) - weight_s, 0.0)}
    ordered = sorted((name for name, value in parts.items() if value > 0), key=INDEX.__getitem__)
    whole = math.fsum(parts[name] for name in ordered)
    done = 0.0
    for name in ordered:
        begin = start + round((stop - start) * done / whole)
        done += parts[name]
        yield begin, start + round((stop - start) * min(done / whole, 1.0)), component_text(name), COMPUTE, {}


# -- the picture --

FILLS = ("c1", "c2", "c7", "c10")
"""Classes of the style sheet: of a kind of slot each, and of sending."""

PALE, PALEST = 0.55, 0.35
"""Opacity of the second chunk of a rank, and of the last."""

LABEL, TOP, PICTURE, ROW_PX = 64, 76, 1240, 22


def _slot_marks(found: Schedule, which: IntArray, *, numbered: bool) -> Iterator[Mark]:
    slots = zip(*(column[which].tolist() for column in found.timeline), strict=True)
    for rank, kind, chunk, number, start, end, sending in slots:
        opacity = PALE - (PALE - PALEST) * (chunk - 1) / max(found.pipeline.chunks - 2, 1) if chunk else 1.0
        said = f"rank {rank}, microbatch {number}{f', chunk {chunk}' if found.pipeline.chunks > 1 else ''}"
        css = f"{FILLS[kind]}{' cell' if chunk else ''}"
        yield Mark(rank, start, end, css, f"{said}: {NAMES[kind]}", str(number) if numbered else "", opacity=opacity)
        if sending:
            yield Mark(rank, end, end + sending, FILLS[-1], f"{said}: sends")


def _time_scale(found: Schedule, begin_s: float, end_s: float) -> Scale:
    return scale(Axis("", partial(_time_text, found)), [begin_s, end_s])


def _slot_legend(found: Schedule) -> Iterator[tuple[str, str]]:
    for name, css, shown in zip((*NAMES, "sending"), FILLS, (True, True, found.pipeline.splits,
                                bool(found.durations.blocking_s)), strict=True):  # fmt: skip
        if shown:
            yield name, f"fill {css}"
    if found.pipeline.chunks > 1:
        yield "paler: the other direction" if found.schedule == "dualpipe" else "paler: later chunks", "fill c1 again"


def svg_text(found: Schedule) -> str:
    """Draw the schedule as a picture of its own: light or dark as the reader has it, with title and description.

    Raises:
        InputError: too many slots.
    """
    t, pp = found.timeline, found.pipeline.pp
    if len(t.rank) > MAX_DRAWN:
        message = f"a picture of {len(t.rank):,} slots cannot be read"
        raise InputError(message, field="svg", hint=f"at most {MAX_DRAWN:,} slots; `trace` shows more")
    across = _time_scale(found, 0.0, float((t.end_s + t.sending_s).max()))
    drawn, high = rows_svg(_slot_marks(found, np.arange(len(t.rank)), numbered=True), pp, across, "time", ROW_PX)
    title, plan = escape(_schedule_verdict(found)), escape(_of_what(found))
    loads = ", ".join(f"rank {load.rank} waits {load.idle_s / found.step_s:.0%}" for load in found.ranks[:16])
    ranks = "".join(f'<text x="12" y="{TOP + rank * ROW_PX + 14}">rank {rank}</text>' for rank in range(pp))
    shares = f"active ranks on average {100 * math.fsum(found.active_share) / len(found.active_share):.0f} %"
    keys, x = [], 12
    for name, css in _slot_legend(found):
        keys.append(f'<rect class="{css}" x="{x}" y="52" width="12" height="12"/>')
        keys.append(f'<text x="{x + 17}" y="62">{name}</text>')
        x += 40 + 7 * len(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE} {TOP + high}" role="img" '
        f'aria-labelledby="title description">\n<title id="title">{"; ".join(filter(None, (title, plan)))}</title>\n'
        f'<desc id="description">One row for each pipeline rank, time to the right. {escape(loads)}.</desc>\n'
        f"<style>\n{resource('charts.css')}</style>\n"
        f'<rect width="{PICTURE}" height="{TOP + high}" style="fill:var(--back)"/>\n'
        f'<text x="12" y="24" style="font-size:14px;font-weight:600">{title}</text>\n'
        f'<text x="12" y="42">{plan}</text>\n{"".join(keys)}\n{ranks}\n'
        f'<svg x="{LABEL}" y="{TOP}" width="{PICTURE - LABEL - 16}" height="{high}" overflow="visible">\n'
        + drawn.replace("><", ">\n<")
        + f'\n</svg>\n<text x="12" y="{TOP + high - 6}">{shares}</text>\n</svg>\n'
    )


WRITERS = {"trace": trace_text, "svg": svg_text}
