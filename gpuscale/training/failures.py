"""What interrupts training, how often and why: studies of machines, as they were published.

`presets/failures/NAME.toml` hold what each counted, by part and cause; a file of your own goes by its path, or by its
name in your folder of presets.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from gpuscale.arguments import public
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import reads
from gpuscale.presets.files import find_preset, preset_names, read_unchanged
from gpuscale.presets.rates import Rate, given
from gpuscale.presets.tables import Table
from gpuscale.specs.failures import TAKES_A_NODE, Counts, Part, Study
from gpuscale.units import DAY_S

KIND = "failures"
USUAL = "llama3"
"""The study taken where none is named: the largest that tells parts apart."""

TABLE = Table(Study, without=("name", "interruptions"), interruptions=(dict[Part, Counts], ...))


@public
@reads("failures")
def load_study(name: str) -> Study:
    """Return a study by its name or the path of its file.

    Raises:
        InputError: there is none of that name, or its file is not usable.
    """
    path = Path(name) if "/" in name or name.lower().endswith(".toml") else find_preset(KIND, name)
    if path is None:
        hint = did_you_mean(name, preset_names(KIND), "give a number, the path of a TOML file, or one of")
        raise InputError(f"unknown study {name[:60]!r}", field="failure_rate", hint=hint)
    document = read_unchanged(path)
    stated = TABLE.read(document)
    study = Study(name=path.stem, **stated)
    if study.count <= 0:
        raise document.error(("interruptions",), "nothing is counted", "write counts by cause below each part")
    return study


@public
def all_studies() -> tuple[Study, ...]:
    """Return every study, the usual one first."""
    names = sorted(preset_names(KIND), key=lambda name: (name != USUAL, name))
    return tuple(map(load_study, names))


def rate_spread() -> float:
    """Return the standard deviation of the log of a failure rate, over the studies: machines differ that much."""
    logs = [math.log(study.per_gpu_day) for study in all_studies()]
    return statistics.stdev(logs) if len(logs) > 1 else 0.0


@dataclass(frozen=True)
class FailureRate:
    """How often a job is interrupted."""

    per_gpu_day: Rate  #: interruptions of one GPU in a day, with its source.
    takes_a_node: float  #: share of them that takes a node away until it is repaired.
    keeps_memory: float  #: share of them that leaves what is in host memory.
    #: standard deviation of the log of the rate: from machine to machine where nobody says which study fits, by the
    #: number of interruptions that a named one counted; 0 of a rate that the user states.
    spread: float

    def mtbf_s(self, gpus: int) -> float:
        """Return the mean time between interruptions of a job [s]."""
        return DAY_S / (self.per_gpu_day.value * gpus)


def failure_rate(asked: float | str | None = None) -> FailureRate:
    """Return the rate that a user names, or states in interruptions of 1,000 GPUs in a day."""
    study = load_study(asked if isinstance(asked, str) else USUAL)
    hardware = study.share(*TAKES_A_NODE)
    if isinstance(asked, float | int):
        return FailureRate(given(asked / 1000), hardware, 1 - hardware, 0.0)
    rate = Rate(study.per_gpu_day, f"{study.title}: {study.source}", study.date)
    return FailureRate(rate, hardware, 1 - hardware, study.count**-0.5 if asked else rate_spread())
