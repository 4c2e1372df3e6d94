"""Jobs that share what is priced: kinds that have the same layers, and in them groups that are priced in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpuscale.layouts.arrays import Candidates
from gpuscale.layouts.pins import Pin, Pins
from gpuscale.specs.job import JobSpec, OffloadSpec

SHARDING = ("zero", "shard")
"""Fields that say how states are sharded."""


@dataclass(frozen=True, eq=False)
class Member:
    """One of several jobs.

    Attributes:
        index: its place among them.
        order, split: its order of the axes and its way to deal out layers, by their numbers in the job of its group.
    """

    index: int
    pins: Pins
    order: int
    split: int

    def allows(self, rows: Candidates) -> npt.NDArray[np.bool_]:
        """Mark the rows that its pins allow, shape (N,); choices of ZeRO are the same in all jobs of a kind."""
        allowed = np.ones(len(rows), dtype=bool)
        for name, pin in self.pins.degrees.items():
            if name not in SHARDING:
                allowed &= pin.allows(getattr(rows, name))
        return allowed


@dataclass(frozen=True, eq=False)
class Group:
    """Jobs that differ only in the order of the axes and in how layers are dealt out.

    Attributes:
        job: one job whose candidates choose between these.
    """

    job: JobSpec
    members: tuple[Member, ...]


@dataclass(frozen=True, eq=False)
class Kind:
    """Jobs with the same layers and the same legal rows, or fewer where something is offloaded or stages are torn.

    Attributes:
        job: one of them with nothing offloaded and, where its layers do not depend on that, the stages outermost.
        pins: what allows whatever any of them does.
    """

    job: JobSpec
    pins: Pins
    groups: tuple[Group, ...]


def kinds(jobs: Sequence[tuple[JobSpec, Pins]]) -> list[Kind]:
    """Sort jobs into kinds; those with the fastest arithmetic come first, then in the order of their first jobs."""
    alike: dict[tuple[object, ...], list[tuple[tuple[object, ...], list[int]]]] = {}
    for index, (job, pins) in enumerate(jobs):
        key = _layers_key(job, pins)
        known = alike.setdefault((job.precision, job.runtime.cp_comm, pins.schedule), [])  # whole jobs compare slowly
        members = next((own for other, own in known if other == key), None)
        if members is None:
            known.append((key, members := []))
        members.append(index)
    found = sorted((members for known in alike.values() for _, members in known), key=min)
    return sorted(
        (_kind(jobs, members) for members in found), key=lambda kind: -kind.job.cluster.gpu.peak(kind.job.precision)
    )


def _layers_key(job: JobSpec, pins: Pins) -> tuple[object, ...]:
    """What jobs of one kind have in common."""
    sharded = tuple(pins.degrees.get(name) for name in SHARDING)
    return layers_of(job), pins.schedule, pins.recompute, pins.cp_elsewhere, sharded


def layers_of(job: JobSpec) -> JobSpec:
    """Return the job that stands for all whose layers take the same time and memory.

    These may differ in offloading, in how layers are dealt out, and in the order of the axes outside tp, cp and ep.
    """
    runtime = replace(job.runtime, pipeline_split="")
    return replace(
        job,
        offload=OffloadSpec(),
        axis_order=_usual_order(job),
        runtime=runtime,
        other_axis_orders=(),
        other_pipeline_splits=(),
    )


def _usual_order(job: JobSpec) -> tuple[str, ...]:
    """The order of a job with the stages outermost, where layers do not depend on that."""
    inside = job.axis_order[:3]
    return (*inside, "dp", "pp") if {"tp", "cp", "ep"} == set(inside) else job.axis_order


def _kind(jobs: Sequence[tuple[JobSpec, Pins]], members: Sequence[int]) -> Kind:
    first = jobs[members[0]][0]
    groups: list[tuple[OffloadSpec, list[int]]] = []
    for index in members:
        offload = jobs[index][0].offload
        found = next((own for known, own in groups if known == offload), None)
        if found is None:
            groups.append((offload, [index]))
        else:
            found.append(index)
    pins = _all_that(*(jobs[index][1] for index in members))
    usual = replace(first, offload=OffloadSpec(), axis_order=_usual_order(first))
    return Kind(usual, pins, tuple(_group(jobs, own) for _, own in groups))


def _all_that(first: Pins, *others: Pins) -> Pins:
    """Pins that allow whatever one of several allows, and as little more as can be said in pins."""
    degrees = {}
    for name, pin in first.degrees.items():
        more = [other.degrees[name] for other in others if name in other.degrees]
        if len(more) == len(others):
            same = all(other.ranges == pin.ranges for other in more)
            excluded = tuple(item for item in pin.excluded if all(item in other.excluded for other in more))
            degrees[name] = Pin(pin.ranges if same else (), excluded)
    return replace(first, degrees=degrees)


def _group(jobs: Sequence[tuple[JobSpec, Pins]], members: Sequence[int]) -> Group:
    specs = [jobs[index][0] for index in members]
    orders = list(dict.fromkeys(spec.axis_order for spec in specs))
    splits = list(dict.fromkeys(spec.runtime.pipeline_split for spec in specs))
    job = replace(specs[0], other_axis_orders=tuple(orders[1:]), other_pipeline_splits=tuple(splits[1:]))
    own = (
        Member(index, jobs[index][1], orders.index(spec.axis_order), splits.index(spec.runtime.pipeline_split))
        for index, spec in zip(members, specs, strict=True)
    )
    return Group(job, tuple(own))


__all__ = ["Group", "Kind", "Member", "kinds", "layers_of"]
