"""How NCCL is run: its version, its channels, its launches, and what is asked of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpuscale.errors import InputError

NEWEST, OLDEST = (2, 30), (2, 12)
"""NCCL whose tables the model has, and the oldest that it stands for."""

NVLS_SINCE, NVLS_TREE_SINCE, PAT_SINCE = (2, 17), (2, 18), (2, 23)
"""NCCL user guide, environment variables, NCCL_ALGO: the version that brought each algorithm.

guesstimate: AllGather and ReduceScatter through NVLS came with NVLS itself."""

NVLS_MODEL_SINCE = (2, 28)
"""tuning.cc: from here on NVLS is planned as search.cc's graphs have it, before with 5/6 of them."""

NET_CHANNELS_SINCE = (2, 29)
"""paths.cc: from here on a peer across the network gets as many channels as its card needs, before two at most."""

MOST_CHANNELS = 64
"""NCCL's MAXCHANNELS."""

LAUNCHES = ("processes", "one-process", "graph")
"""One process per GPU; one process that launches on all GPUs of its node in turn; replayed from a graph."""


@dataclass(frozen=True)
class Tuning:
    """How NCCL runs a collective.

    Attributes:
        channels: CTAs of every collective, as NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS set it; None for NCCL's own.
        nccl: version.
        launch: one of `LAUNCHES`.
        imbalance: bytes of the busiest GPU of an AllToAll over the mean.
    """

    channels: int | None = None
    nccl: tuple[int, int] = NEWEST
    launch: str = "processes"
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no NCCL does.

        Raises:
            InputError: a number of channels or a kind of launch that there is not, or an imbalance below 1 or not
                finite.
        """
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise InputError(
                f"{self.channels} channels is out of range", field="channels", hint=f"give 1 to {MOST_CHANNELS}"
            )
        if self.launch not in LAUNCHES:
            raise InputError(
                f"unknown launch {self.launch[:40]!r}", field="launch", hint=f"there are {', '.join(LAUNCHES)}"
            )
        if not 1.0 <= self.imbalance < math.inf:
            raise InputError(
                f"{self.imbalance:g} is out of range",
                field="imbalance",
                hint="it is the busiest GPU's bytes over the mean: 1 where all are even",
            )


AUTOMATIC = Tuning()
"""What the newest NCCL does of its own accord."""


def parse_version(text: str) -> tuple[int, int]:
    """Return the version that `2.20` or `2.20.5` names; one newer than `NEWEST` counts as that.

    Raises:
        InputError: no version, or one before `OLDEST`.
    """
    found = re.fullmatch(r"(\d)\.(\d{1,2})(\.\d{1,2}){0,2}", text.strip()[:20])
    if not found:
        raise InputError(f"{text[:40]!r} is not a version of NCCL", field="nccl", hint="write 2.20 or 2.20.5")
    version = int(found[1]), int(found[2])
    if version < OLDEST:
        raise InputError(
            f"NCCL {text[:20]} is older than what the model stands for",
            field="nccl",
            hint=f"give {version_text(OLDEST)} to {version_text(NEWEST)}",
        )
    return min(version, NEWEST)


def version_text(version: tuple[int, int]) -> str:
    """Write a version: `2.20`."""
    return f"{version[0]}.{version[1]}"
