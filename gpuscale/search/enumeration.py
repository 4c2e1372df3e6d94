"""What a search goes through: the legal rows of the search space, and which jobs share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.layouts.space import layouts, micro_batch_sizes, microbatched, shapes, sharded
from gpuscale.rules.check import LAYOUT_RULES, MICROBATCH_RULES, SHAPE_RULES, SHARDING_RULES, restrict
from gpuscale.rules.rule import Rule
from gpuscale.search.evaluation import lap
from gpuscale.search.objectives import Constraints
from gpuscale.specs.job import JobSpec, OffloadSpec

BLOCK_ROWS = 1 << 15
"""Rows of the search space whose layers are measured at once; bounds what a search keeps in memory."""

ROW_RULES = (*SHAPE_RULES, *LAYOUT_RULES, *SHARDING_RULES, *MICROBATCH_RULES)
"""Rules that rows have been checked for."""


def legal_rows(job: JobSpec, pins: Pins, rejected: dict[str, int]) -> Iterator[Candidates]:
    """Yield the legal rows with the axes (choices of ZeRO, 1, rows), at most `BLOCK_ROWS` at a time.

    How they recompute is not chosen yet. What a rule cuts is counted in `rejected`, by its code.
    """

    def checked(rules: Sequence[Rule], table: Candidates) -> Candidates:
        lap("enumerate")
        legal = restrict(rules, table, job, rejected)
        lap("rules")
        return legal

    table = checked(SHAPE_RULES, shapes(job, pins))
    table = checked(LAYOUT_RULES, layouts(job, pins, table))
    step = max(1, BLOCK_ROWS // max(1, len(micro_batch_sizes(job, pins))))
    for start in range(0, len(table), step):
        rows = checked(SHARDING_RULES, sharded(job, pins, table.take(slice(start, start + step))))
        rows = checked(MICROBATCH_RULES, microbatched(job, pins, rows))
        if len(rows):
            yield rows


def rules_beyond(job: JobSpec, group: JobSpec) -> list[Rule]:
    """Return the rules that may cut rows of a job which are legal in another that stands for it: those on what is
    offloaded, and, if it has another order of the axes, on layouts."""
    reordered = job.axis_order != group.axis_order
    return [rule for rule in ROW_RULES if not rule.applies(group) or (reordered and rule in LAYOUT_RULES)]


class Task(NamedTuple):
    """One job to search: the pins on its plans, and the constraints that these must meet."""

    job: JobSpec
    pins: Pins
    constraints: Constraints | None = None

    def allows(self, rows: Candidates) -> BoolArray:
        """Mark the rows that the pins allow, shape (N,); ZeRO and its shards are not looked at."""
        allowed = self.pins.allows("tp", rows.tp)
        for name in self.pins.degrees:
            if name not in SHARDING:
                allowed &= self.pins.allows(name, getattr(rows, name))
        return allowed


class JobGroup(NamedTuple):
    """Jobs that share layers, and legal rows: each has some of those of the group."""

    #: one of them with nothing offloaded and, where its layers do not depend on that, the stages outermost.
    job: JobSpec
    pins: Pins  #: what allows whatever any of them does.
    members: list[int]  #: their indices.


SHARDING = ("zero", "shard")
"""Fields that say how states are sharded; jobs of a group are pinned alike in them."""


def job_groups(tasks: Sequence[Task]) -> list[JobGroup]:
    """Sort jobs into groups; those with the fastest arithmetic come first, then in the order of their first jobs."""
    groups: list[tuple[tuple[object, ...], JobGroup]] = []
    for index, (job, pins, _) in enumerate(tasks):
        inside = job.axis_order[:3]  # without DP and PP, strides inside a stage do not depend on the order of these
        usual = (*inside, "dp", "pp") if {"tp", "cp", "ep"} == set(inside) else job.axis_order
        layers = replace(job, offload=OffloadSpec(), axis_order=usual)
        sharded = tuple(pins.degrees.get(name) for name in SHARDING)
        states = replace(job.states, moments=0.0, second_moment=0.0)  # no part of a layer
        alike = replace(layers, states=states, runtime=replace(job.runtime, pipeline_split=""))
        # what differs often comes first: whole jobs compare slowly
        key = (job.precision, pins.schedule, pins.recompute, pins.cp_elsewhere, sharded, alike)
        group = next((group for other, group in groups if other == key), None)
        if group is None:
            group = JobGroup(layers, pins, [])
            groups.append((key, group))
        group.members.append(index)
    found = [group._replace(pins=_all_that([tasks[index].pins for index in group.members])) for _, group in groups]
    return sorted(found, key=lambda group: -group.job.cluster.gpu.peak(group.job.precision))


def _all_that(each: Sequence[Pins]) -> Pins:
    """Pins that allow whatever one of several allows, and as little more as can be said in pins."""
    first, degrees = each[0], {}
    for name, pin in first.degrees.items():
        pins = [one.degrees.get(name, Pin()) for one in each]
        ranges = pin.ranges if all(one.ranges == pin.ranges for one in pins) else ()
        degrees[name] = Pin(ranges, tuple(one for one in pin.excluded if all(one in pin.excluded for pin in pins)))
    return replace(first, degrees=degrees)
