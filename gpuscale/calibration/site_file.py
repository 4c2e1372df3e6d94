"""Site files: factors with their uncertainty, and the measured runs behind them, as `gpuscale.calibration/1` TOML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuscale.calibration.factors import factor_of
from gpuscale.calibration.site import NUMBERS, TEXTS, Known
from gpuscale.errors import shown
from gpuscale.files import reads
from gpuscale.presets.files import read_toml
from gpuscale.presets.tables import what_is_wrong
from gpuscale.specs.site import AXES

FORMAT = "gpuscale.calibration/1"
MAX_RUNS = 200
"""Runs that one calibration is fitted to: with its jobs and layouts, a file stays below 1 MiB."""


class FactorValue(BaseModel):
    """A factor with its 80 % interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, Field(ge=0.1, le=10)]  #: what the site has over what is predicted.
    low: Annotated[float, Field(gt=0, le=10)]  #: lower end of the interval.
    high: Annotated[float, Field(ge=0.1, le=100)]  #: its upper end.


Log = Annotated[float, Field(ge=-20, le=20, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=300)]


class EvidenceRun(BaseModel):
    """A measured run that a calibration was fitted to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Name  #: the log.
    step_time_s: Annotated[float, Field(gt=0, le=1e7)]  #: median seconds per step [s].
    #: most memory in use, counted as `memory_basis` says; None where the log did not say [GiB].
    memory_gib: Annotated[float | None, Field(gt=0, le=1e5)] = None
    memory_basis: Name = "reserved"  #: `allocated`, `reserved` or `nvidia-smi`.
    residual: Log  #: log(measured / predicted step time), with the factors.
    noise: Annotated[float, Field(ge=1e-3, le=20)]  #: standard deviation of its noise.
    #: standard deviation of the log of what its log says, where that is above `NOISE`: of few iterations.
    spread: Annotated[float | None, Field(gt=0, le=20)] = None
    weight: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]  #: in the remainder of other runs.
    sensitivity: dict[Name, Log]  #: derivative of the log of its predicted step time by the log of each factor.
    like: dict[Name, str | float]  #: what its job is like, by `TEXTS` and `NUMBERS`.
    place: dict[Name, Annotated[int, Field(ge=0, le=2**62)]]  #: its layout, by `AXES`.
    #: timers that were compared with parts of the step: name -> seconds [s].
    parts_s: dict[Name, Annotated[float, Field(gt=0, le=1e7)]] = {}
    job: dict[Name, Any]  #: options from which, with the layout's, it is predicted again.
    layout: dict[Name, Any]

    @property
    def known(self) -> Known:
        """The run as others are compared with it."""
        return Known(self.like, tuple(self.place[axis] for axis in AXES))


@dataclass(frozen=True)
class Site:
    """A calibration."""

    path: str  #: its file, as a user named it.
    version: str  #: of gpuscale that wrote it.
    factors: Mapping[str, FactorValue]  #: name -> value.
    runs: tuple[EvidenceRun, ...] = field(repr=False)  #: what it was fitted to.

    def seen(self, text: str) -> set[str]:
        """Return what the runs have of one of `TEXTS`."""
        return {str(run.like[text]) for run in self.runs}


@reads("calibration")
def read_site(path: Path) -> Site:
    """Read a site file.

    Raises:
        InputError: missing, not TOML, or with unknown or unusable entries; the message names file and line.
    """
    document = read_toml(path)
    data = document.data
    if data.get("format") != FORMAT:
        raise document.error(("format",), f"format is not {FORMAT!r}", "`gpuscale calibrate run LOG -o FILE` writes it")
    for key in data:
        if key not in {"format", "gpuscale", "factors", "runs"}:
            raise document.error((key,), f"unknown key {shown(key)}", "keys are format, gpuscale, factors, runs")
    factors, runs = data.get("factors"), data.get("runs")
    if not isinstance(factors, dict) or not isinstance(runs, list) or not 1 <= len(runs) <= MAX_RUNS:
        message = f"needs a table of factors and 1 to {MAX_RUNS} runs"
        raise document.error(("factors",), message, "`gpuscale calibrate run LOG -o FILE` writes it")

    def parsed(kind: type[BaseModel], value: Any, *where: str | int) -> Any:
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            parts = [part for part in problem["loc"] if isinstance(part, str | int)]
            key = ".".join(map(str, [*where, *parts]))
            message = f"{key[:120]}: {what_is_wrong(problem)}"
            raise document.error((*where, *parts), message) from None

    for name in factors:
        if factor_of(name) is None:
            raise document.error(("factors", name), f"unknown factor {shown(name)}")
    values = {name: parsed(FactorValue, value, "factors", name) for name, value in factors.items()}
    found = tuple(parsed(EvidenceRun, run, "runs", index) for index, run in enumerate(runs))
    for index, run in enumerate(found):
        _check(document.error, index, run)
    return Site(str(path), str(data.get("gpuscale", ""))[:40], values, found)


def _check(error: Any, index: int, run: EvidenceRun) -> None:
    for table, wanted in (("like", {*TEXTS, *NUMBERS}), ("place", set(AXES))):
        said = set(getattr(run, table))
        if said != wanted:
            wrong = ", ".join(sorted(said ^ wanted)[:5])
            raise error(("runs", index, table), f"runs.{index}.{table}: missing or unknown: {wrong[:200]}")
    for name, value in run.like.items():
        if (name in NUMBERS) != isinstance(value, float | int) or (
            name in NUMBERS and not (math.isfinite(float(value)) and abs(float(value)) < 100)
        ):
            raise error(("runs", index, "like", name), f"runs.{index}.like.{name}: {shown(value)} cannot be")
    for name in run.sensitivity:
        if factor_of(name) is None:
            raise error(("runs", index, "sensitivity", name), f"runs.{index}.sensitivity: unknown factor {shown(name)}")


def site_text(site: Site) -> str:
    """Return a site file."""

    def plain(model: BaseModel) -> dict[str, Any]:
        return model.model_dump(exclude_none=True)

    factors = {name: plain(value) for name, value in site.factors.items()}
    runs = [plain(run) for run in site.runs]
    return tomli_w.dumps({"format": FORMAT, "gpuscale": site.version, "factors": factors, "runs": runs})
