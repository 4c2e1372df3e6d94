"""Pipeline schedules slot by slot: in which order each rank works, and when each of its slots runs.

The search takes closed forms (`gpuscale.steptime.step.idle_s`, `exposed_hops_s`); this simulation holds for uneven
stages and few microbatches too.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, IntArray
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import DUALPIPE, GPIPE, ONE_F_ONE_B, ZB_2P, ZB_H1, ZB_V

FORWARD, BACKWARD, WEIGHT = range(3)
KINDS = "FBW"
"""Forward pass, backward pass, and weight gradients where a schedule has them in slots of their own."""

Slot = tuple[int, int, int]
"""Kind, model chunk, microbatch."""

Block = tuple[Slot, ...]
"""Slots of a rank that start together when all their inputs are there, and whose results leave together."""

MAX_SLOTS = 400_000
"""Slots that are simulated at most: 64 ranks, 2 chunks, 1,000 microbatches and more."""


class _Tape:
    """What one rank does, in order; each kind of slot takes the microbatches of its chunk one after the other, those
    that there are."""

    def __init__(self, microbatches: int, first: Sequence[int] = (0, 0)) -> None:
        self.blocks: list[Block] = []
        self.owed: deque[Slot] = deque()  # weight gradients put off, the oldest first
        self._count, self._first, self._done = microbatches, first, Counter[tuple[int, int]]()

    def _next(self, kind: int, chunk: int) -> Slot | None:
        number = self._done[kind, chunk]
        self._done[kind, chunk] += 1
        start = self._first[chunk] if chunk < len(self._first) else 0
        return (kind, chunk, start + number) if number < self._count else None

    def add(self, *slots: Slot | None) -> None:
        """Add slots that run as one block."""
        there = tuple(slot for slot in slots if slot is not None)
        if there:
            self.blocks.append(there)

    def forward(self, chunk: int = 0) -> None:
        self.add(self._next(FORWARD, chunk))

    def backward(self, chunk: int = 0) -> None:
        """Add a backward pass that computes both gradients."""
        self.add(self._next(BACKWARD, chunk))

    def back(self, chunk: int) -> None:
        self.split(chunk)
        self.weight(chunk)

    def split(self, chunk: int = 0) -> None:
        """Add a backward pass that puts its weight gradients off."""
        slot = self._next(BACKWARD, chunk)
        if slot is not None:
            self.add(slot)
            self.owed.append((WEIGHT, *slot[1:]))

    def whole(self, chunk: int) -> tuple[Slot | None, Slot | None]:
        """Return a backward pass and its weight gradients, to run as one block."""
        slot = self._next(BACKWARD, chunk)
        return slot, slot and (WEIGHT, *slot[1:])

    def weight(self, chunk: int | None = None) -> None:
        """Add the weight gradients that are owed longest, of one chunk or of all."""
        slot = next((one for one in self.owed if chunk in {None, one[1]}), None)
        if slot is not None:
            self.owed.remove(slot)
            self.add(slot)

    def both(self, ahead: int, back: int) -> None:
        self.add(self._next(FORWARD, ahead), *self.whole(back))

    def rest(self) -> None:
        while self.owed:
            self.add(self.owed.popleft())


def _gpipe(tape: _Tape, _rank: int, _pp: int, _vpp: int, count: int) -> None:
    """All forward passes, then the backward passes in reverse (Huang et al. 2019, arXiv 1811.06965, figure 2c)."""
    for _ in range(count):
        tape.forward()
    tape.blocks.extend(((BACKWARD, 0, number),) for number in reversed(range(count)))


def _one_f_one_b(tape: _Tape, rank: int, pp: int, vpp: int, count: int) -> None:
    """Enough forward passes to fill the stages behind, then one each (Narayanan et al. 2021, arXiv 2104.04473)."""
    if vpp > 1:
        _interleaved(tape, rank, pp, vpp, count)
        return
    ahead = min(pp - rank - 1, count)
    for _ in range(ahead):
        tape.forward()
    for _ in range(count - ahead):
        tape.forward()
        tape.backward()
    for _ in range(ahead):
        tape.backward()


def _interleaved(tape: _Tape, rank: int, pp: int, vpp: int, count: int) -> None:
    """Groups of `pp` microbatches through one chunk after the other (Narayanan et al. 2021, section 2.2.2; Megatron-LM,
    core/pipeline_parallel/schedules.py, get_pp_rank_microbatches)."""
    chunks = [(index // pp) % vpp for index in range(count * vpp)]
    ahead = min(2 * (pp - rank - 1) + (vpp - 1) * pp, len(chunks))
    for chunk in chunks[:ahead]:
        tape.forward(chunk)
    for chunk, back in zip(chunks[ahead:], chunks, strict=False):
        tape.forward(chunk)
        tape.backward(vpp - 1 - back)
    for back in chunks[len(chunks) - ahead :]:
        tape.backward(vpp - 1 - back)


def _zero_bubble(tape: _Tape, count: int, ahead: int, owed: int) -> None:
    """1F1B with `ahead` forward passes before the first backward pass, and weight gradients that are `owed` late."""
    ahead = min(ahead, count)
    for _ in range(ahead - 1):
        tape.forward()
    for _ in range(count):
        tape.forward()  # none is left at the end
        tape.split()
        if len(tape.owed) > owed:
            tape.weight()
    tape.rest()


def _zb_h1(tape: _Tape, rank: int, pp: int, _vpp: int, count: int) -> None:
    """As 1F1B, stage r puts r weight gradients off (Qi et al. 2024, arXiv 2401.10241, section 2.3 and figure 3)."""
    _zero_bubble(tape, count, pp - rank, rank)


def _zb_2p(tape: _Tape, rank: int, pp: int, _vpp: int, count: int) -> None:
    """ZB-H2: twice as many forward passes first, twice as many weight gradients put off (Qi et al. 2024, figure 3)."""
    _zero_bubble(tape, count, 2 * (pp - rank) - 1, 2 * rank)


def _zb_v(tape: _Tape, rank: int, pp: int, _vpp: int, count: int) -> None:
    """Two chunks, down the ranks and up again, for equal F, B and W (Qi et al. 2024, section 6 and figure 8; PyTorch's
    ScheduleZBVZeroBubble). With fewer than 2 pp - 1 microbatches it runs with gaps."""
    for _ in range(2 * (pp - rank) - 1):
        tape.forward(0)
    for _ in range(rank):
        tape.forward(1)
        tape.forward(0)
    for _ in range(pp - rank):
        tape.forward(1)
        tape.back(1)
    for _ in range(max(2 * pp - 1, count) - pp):
        for chunk in (0, 1):
            tape.forward(chunk)
            tape.back(chunk)
    for _ in range(rank):
        tape.split(0)
        tape.split(1)
    for _ in range(pp - rank):
        tape.back(0)
    while any(chunk == 1 for _, chunk, _ in tape.owed):
        tape.weight(1)
    tape.rest()


def _dualpipe(tape: _Tape, rank: int, pp: int, _vpp: int, count: int) -> None:
    """Microbatches from both ends, a forward pass beside a backward pass of the other direction.

    DeepSeek-V3, arXiv 2412.19437, section 3.2.1; the eight steps of deepseek-ai/DualPipe, dualpipe/dualpipe.py. Ranks
    of the second half do what their mirror images do, with the directions exchanged.
    """
    mirror, flipped = min(rank, pp - 1 - rank), int(rank >= pp // 2)
    near, far = flipped, 1 - flipped  # the direction that enters at this half, and the other
    inside = pp // 2 - mirror - 1
    for _ in range(2 * inside):
        tape.forward(near)
    for _ in range(mirror + 1):
        tape.forward(near)
        tape.forward(far)
    for _ in range(inside):
        tape.split(far)
        tape.weight()
        tape.forward(far)
    for number in range(count // 2 - pp + mirror + 1):
        if number == 0 and inside == 0:  # the ranks in the middle do not overlap these two
            tape.forward(near)
            tape.add(*tape.whole(far))
        else:
            tape.both(near, far)
        tape.both(far, near)
    for _ in range(inside):
        tape.add(*tape.whole(far))
        tape.both(far, near)
    for number in range(2 * (mirror + 1)):  # the second half of them puts weight gradients off
        direction = far if number % 2 == 0 else near
        if number < mirror + 1:
            tape.add(*tape.whole(direction))
        else:
            tape.split(direction)
    for _ in range(inside):
        tape.weight()
        tape.split(near)
    tape.rest()


ORDERS: dict[int, Callable[[_Tape, int, int, int, int], None]] = {
    ONE_F_ONE_B: _one_f_one_b,
    GPIPE: _gpipe,
    ZB_H1: _zb_h1,
    ZB_2P: _zb_2p,
    ZB_V: _zb_v,
    DUALPIPE: _dualpipe,
}


class Pipeline(NamedTuple):
    """A schedule on ranks."""

    schedule: int  #: code of the schedule, one of `gpuscale.layouts.arrays.SCHEDULES`.
    pp: int  #: ranks.
    vpp: int  #: model chunks of a rank; 2 in ZB-V; 1 in DualPipe, whose second chunk is the other direction.
    microbatches: int  #: of a step, of both directions together.

    @property
    def chunks(self) -> int:
        """Chunks of a rank in its slots: model chunks, or the directions of DualPipe."""
        return 2 if self.schedule == DUALPIPE else self.vpp

    @property
    def splits(self) -> bool:
        """Whether weight gradients have slots of their own."""
        return self.schedule not in {ONE_F_ONE_B, GPIPE}

    @property
    def slots(self) -> int:
        """Slots of a step."""
        through = 1 if self.schedule == DUALPIPE else self.vpp
        return self.pp * through * self.microbatches * (3 if self.splits else 2)

    def checked(self) -> Pipeline:
        """Return this pipeline.

        Raises:
            InputError: a schedule that does not take these numbers, or more slots than are simulated.
        """
        if self.slots > MAX_SLOTS:
            these = f"{self.slots:,} slots ({self.pp} ranks, {self.microbatches:,} microbatches)"
            hint = f"at most {MAX_SLOTS:,} slots: the steady state repeats, so fewer show the same"
            raise InputError(f"{these} are too many to simulate", hint=hint)
        vpp = 2 if self.schedule == ZB_V else 1
        if self.schedule != ONE_F_ONE_B and self.vpp != vpp:
            raise InputError(f"this schedule has {vpp} chunk{'s' * (vpp > 1)} per rank, not {self.vpp}", field="vpp")
        if self.schedule == ONE_F_ONE_B and self.vpp > 1 and (self.pp == 1 or self.microbatches % self.pp):
            hint = "give more stages than one, and microbatches that they divide"
            raise InputError("interleaving takes microbatches in groups of one per stage", field="vpp", hint=hint)
        if self.schedule == DUALPIPE and (self.pp % 2 or self.microbatches % 2 or self.microbatches < 2 * self.pp):
            hint = "give an even number of stages, and an even number of microbatches, two per stage at least"
            raise InputError("dualpipe feeds half of the microbatches from each end", field="schedule", hint=hint)
        return self

    def paths(self) -> list[list[tuple[int, int]]]:
        """Return the way of a microbatch through (rank, chunk); in DualPipe there are two."""
        up = range(self.pp)
        if self.schedule == DUALPIPE:
            return [[(rank, 0) for rank in up], [(rank, 1) for rank in reversed(up)]]
        if self.schedule == ZB_V:
            return [[*((rank, 0) for rank in up), *((rank, 1) for rank in reversed(up))]]
        return [[(rank, chunk) for chunk in range(self.vpp) for rank in up]]

    def blocks(self, rank: int) -> list[Block]:
        """Return what a rank does, in order."""
        half = self.microbatches // 2
        tape = _Tape(half, (0, half)) if self.schedule == DUALPIPE else _Tape(self.microbatches)
        ORDERS[self.schedule](tape, rank, self.pp, self.vpp, self.microbatches)
        return tape.blocks


class Durations(NamedTuple):
    """What one microbatch takes on each chunk of each rank, each of shape (chunks, ranks) [s]."""

    forward: FloatArray
    backward: FloatArray  #: backward pass, with both gradients.
    weight: FloatArray  #: weight gradients, a part of the backward pass.
    transfer_s: float = 0.0  #: from one rank to the next.
    blocking_s: float = 0.0  #: part of it during which the sender computes nothing.


class Timeline(NamedTuple):
    """Slots of a step, those of a rank one after the other; each of shape (slots,)."""

    rank: IntArray
    kind: IntArray  #: FORWARD, BACKWARD or WEIGHT.
    chunk: IntArray
    microbatch: IntArray
    start_s: FloatArray  #: when it begins, from the first slot of the step on [s].
    end_s: FloatArray  #: when it ends [s].
    sending_s: FloatArray  #: for how long the rank then waits for what it sends.

    def by_rank(self, values: FloatArray, ranks: int) -> FloatArray:
        """Add values of slots up by rank, shape (ranks,)."""
        return np.array([math.fsum(values[self.rank == rank].tolist()) for rank in range(ranks)])

    def spans(self, ranks: int) -> tuple[FloatArray, FloatArray]:
        """Return when each rank starts and has done and sent all, each (ranks,) [s]."""
        start, end = np.full(ranks, np.inf), np.zeros(ranks)
        np.minimum.at(start, self.rank, self.start_s)
        np.maximum.at(end, self.rank, self.end_s + self.sending_s)
        return start, end


class _Run:
    """A step under way: how far each rank is in its order, and what has arrived where."""

    def __init__(self, pipeline: Pipeline, durations: Durations) -> None:
        pp, self.pp = pipeline.pp, pipeline.pp
        self.orders = [pipeline.blocks(rank) for rank in range(pp)]
        self.done: list[list[tuple[Slot, float, float, float]]] = [[] for _ in range(pp)]
        self._at, self._clock = [0] * pp, [0.0] * pp
        places = pipeline.chunks * pp  # a place is chunk x ranks + rank
        self._arrived = [[[math.inf] * pipeline.microbatches for _ in range(places)] for _ in (FORWARD, BACKWARD)]
        self._onward: dict[tuple[int, int], tuple[int, int, float]] = {}
        self._blocking_s = durations.blocking_s
        for path in pipeline.paths():
            way = [chunk * pp + rank for rank, chunk in path]
            self._arrived[FORWARD][way[0]] = [0.0] * pipeline.microbatches
            self._onward[FORWARD, way[-1]] = (BACKWARD, way[-1], 0.0)
            for place, behind in pairwise(way):
                hop_s = durations.transfer_s if place % pp != behind % pp else 0.0
                self._onward[FORWARD, place] = (FORWARD, behind, hop_s)
                self._onward[BACKWARD, behind] = (BACKWARD, place, hop_s)

    def advance(self, rank: int, took_s: Callable[[Slot, int], float]) -> bool:
        """Let a rank work until its input is missing; whether it has done anything."""
        order, start = self.orders[rank], self._at[rank]
        while self._at[rank] < len(order):
            block = order[self._at[rank]]
            begin = max(self._clock[rank], *(self._input_s(slot, rank) for slot in block))
            if begin == math.inf:
                break
            self._clock[rank] = self._work(block, rank, begin, took_s)
            self._at[rank] += 1
        return self._at[rank] > start

    def _input_s(self, slot: Slot, rank: int) -> float:
        kind, chunk, number = slot
        return 0.0 if kind == WEIGHT else self._arrived[kind][chunk * self.pp + rank][number]

    def _work(self, block: Block, rank: int, begin: float, took_s: Callable[[Slot, int], float]) -> float:
        """Run a block, deliver its results, and return when the rank is free again."""
        done, now, sends = self.done[rank], begin, False
        for slot in block:
            end = now + took_s(slot, rank)
            done.append((slot, now, end, 0.0))
            now = end
        for kind, chunk, number in block:
            onward = self._onward.get((kind, chunk * self.pp + rank))
            if onward is not None:
                other, place, hop_s = onward
                self._arrived[other][place][number] = now + hop_s
                sends |= place % self.pp != rank
        if sends and self._blocking_s:
            done[-1] = (*done[-1][:3], self._blocking_s)
            now += self._blocking_s
        return now


def simulate(pipeline: Pipeline, durations: Durations, jitter: float = 0.0, seed: int = 0) -> Timeline:
    """Run every rank through its slots: each starts when the rank is free and its input has arrived.

    Args:
        jitter: each slot takes up to this share longer, evenly spread.
        seed: of the jitter.

    Raises:
        InputError: as `Pipeline.checked`.
    """
    pp = pipeline.checked().pp
    inputs = durations.backward - durations.weight if pipeline.splits else durations.backward
    lasts = [table.tolist() for table in (durations.forward, inputs, durations.weight)]
    noise = [random.Random(f"{seed} {rank}") for rank in range(pp)]

    def took_s(slot: Slot, rank: int) -> float:
        usual = lasts[slot[0]][slot[1]][rank]
        return usual * (1.0 + jitter * noise[rank].random()) if jitter else usual

    run = _Run(pipeline, durations)
    while sum(run.advance(rank, took_s) for rank in range(pp)):
        pass
    if any(len(done) != sum(map(len, order)) for done, order in zip(run.done, run.orders, strict=True)):
        raise AssertionError(f"{pipeline} waits for itself")
    return _timeline(run.done)


def _timeline(done: list[list[tuple[Slot, float, float, float]]]) -> Timeline:
    rank = np.repeat(np.arange(len(done)), [len(one) for one in done])
    slots = np.array([slot for one in done for slot, *_ in one], dtype=np.int64).reshape(-1, 3)
    times = np.array([time for one in done for _, *time in one], dtype=np.float64).reshape(-1, 3)
    return Timeline(rank, *slots.T, *times.T)


def held_by_rank(timeline: Timeline, pipeline: Pipeline) -> list[tuple[FloatArray, FloatArray]]:
    """Return when the microbatches that each rank holds activations of change, and how many they then are.

    In whole-stage units, from the start of a forward pass to the end of the backward pass, or of the weight gradients
    where these have slots of their own. Each (events,), by time.
    """
    last = WEIGHT if pipeline.splits else BACKWARD
    out = []
    for rank in range(pipeline.pp):
        mine = timeline.rank == rank
        taken = timeline.start_s[mine & (timeline.kind == FORWARD)]
        freed = timeline.end_s[mine & (timeline.kind == last)]
        times = np.concatenate([freed, taken])
        change = np.concatenate([-np.ones(len(freed)), np.ones(len(taken))])
        order = np.argsort(times, kind="stable")  # what is freed comes first
        out.append((times[order], np.cumsum(change[order]) / pipeline.vpp))
    return out


def active_share(timeline: Timeline, ranks: int, edges: FloatArray) -> FloatArray:
    """Return the share of the ranks that compute, on average between one edge and the next, shape (edges - 1,)."""
    busy = _since(timeline.start_s, edges) - _since(timeline.end_s, edges)
    return np.diff(busy) / np.diff(edges) / ranks


def _since(times: FloatArray, edges: FloatArray) -> FloatArray:
    ordered = np.sort(times)
    before = np.searchsorted(ordered, edges)
    return edges * before - np.concatenate([[0.0], np.cumsum(ordered)])[before]
