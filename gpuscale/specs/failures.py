"""What a machine or a run counted of its interruptions, by part and cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from gpuscale.choices import MAX_GPUS
from gpuscale.display import displayed

Part = Literal["gpu", "host", "hardware", "network", "software", "unknown"]
TAKES_A_NODE = ("gpu", "host", "hardware")
"""Parts whose failure takes a node away until it is repaired; after the others a restart will do."""

Text = Annotated[str, Field(min_length=3, max_length=1000)]
Counts = dict[Annotated[str, Field(min_length=1, max_length=80)], Annotated[float, Field(ge=0, le=1e9)]]


@displayed
@dataclass(frozen=True)
class Study:
    """Interruptions of one machine or run."""

    name: str  #: of its file
    title: Text  #: what was observed
    accelerator: Text  #: its GPUs
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)]  #: how many
    days: Annotated[float, Field(gt=0, le=1e5)]  #: for how long [days]
    interruptions: Mapping[Part, Counts]  #: part -> cause -> how often
    source: Text  #: where it is published
    date: Annotated[str, Field(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")]  #: year and month of that

    @property
    def count(self) -> float:
        """Interruptions in all."""
        return math.fsum(math.fsum(causes.values()) for causes in self.interruptions.values())

    @property
    def per_gpu_day(self) -> float:
        """Interruptions of one GPU in a day."""
        return self.count / self.gpus / self.days

    @property
    def mtbf_h(self) -> float:
        """Hours between two interruptions of all that was observed."""
        return 24 * self.days / self.count

    def share(self, *parts: str) -> float:
        """Return the share of interruptions that is due to these parts."""
        counts = (count for part in parts for count in self.interruptions.get(part, {}).values())  # type: ignore[call-overload]
        return math.fsum(counts) / self.count
