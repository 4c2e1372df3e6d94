"""`[[calibration]]` of a cluster file: collectives measured on the cluster, as `gpuscale calibrate` writes them."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpuscale.presets.fields import Bounds
from gpuscale.presets.files import Document
from gpuscale.specs.cluster import MAX_GPUS, CalibrationSpec, ClusterSpec
from gpuscale.units import MAX_BYTES

MAX_TABLES = 256
MAX_POINTS = 64
LEAST_TIME_US, MOST_TIME_US = 0.01, 1e9

Points = Field(strict=False, min_length=1, max_length=MAX_POINTS)


class CalibrationTable(BaseModel):
    """One measured curve: an operation over one group."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    operation: Literal["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv"]
    level: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    gpus: Annotated[int, Bounds(ge=2, le=MAX_GPUS)]
    stride: Annotated[int, Bounds(ge=1, le=MAX_GPUS)] = 1
    bytes: Annotated[tuple[Annotated[int, Bounds(ge=1, le=MAX_BYTES)], ...], Points]
    time_us: Annotated[tuple[Annotated[float, Bounds(ge=LEAST_TIME_US, le=MOST_TIME_US)], ...], Points]
    source: Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=600)]

    def to_spec(self) -> CalibrationSpec:
        """Return the curve in SI units."""
        return CalibrationSpec(
            operation=self.operation,
            level=self.level,
            gpus=self.gpus,
            stride=self.stride,
            bytes=tuple(float(size) for size in self.bytes),
            time_s=tuple(time_us * 1e-6 for time_us in self.time_us),
            source=self.source,
        )


def check_calibration(document: Document, cluster: ClusterSpec) -> None:
    """Refuse curves that are none, or that the cluster has no group for.

    Raises:
        InputError: with file and line of the first mistake.
    """
    seen: set[tuple[str, int, int]] = set()
    for index, one in enumerate(cluster.calibration):
        place = ("calibration", index)
        key = (one.operation, one.gpus, one.stride)
        if key in seen:
            raise document.error(place, f"a second curve of {one.operation} over {one.gpus} GPUs", "keep one of them")
        seen.add(key)
        if len(one.bytes) != len(one.time_s):
            raise document.error(
                (*place, "time_us"),
                f"{len(one.time_s)} times for {len(one.bytes)} sizes",
                "give one time for each size",
            )
        if any(low >= high for low, high in pairwise(one.bytes)):
            raise document.error((*place, "bytes"), "sizes must rise", "sort them, and give each once")
        if any(low > high for low, high in pairwise(one.time_s)):
            raise document.error((*place, "time_us"), "a larger size takes less time", "times must never fall")
        _check_group(document, cluster, place, one)


def _check_group(document: Document, cluster: ClusterSpec, place: tuple[str | int, ...], one: CalibrationSpec) -> None:
    names = [level.name for level in cluster.levels]
    if one.level not in names:
        raise document.error(
            (*place, "level"), f"no level is called {one.level!r}", f"the levels are {', '.join(names)}"
        )
    reach = (one.gpus - 1) * one.stride + 1
    if reach > (MAX_GPUS if cluster.extendable else cluster.gpus):
        raise document.error(
            (*place, "gpus"), f"the group reaches over {reach:,} GPUs, the cluster has {cluster.gpus:,}", "check stride"
        )
    spanned = cluster.level_of_group(one.gpus, one.stride).name
    if spanned != one.level:
        raise document.error(
            (*place, "level"),
            f"{one.gpus} GPUs {one.stride} apart span {spanned}, not {one.level}",
            "check level and stride",
        )
