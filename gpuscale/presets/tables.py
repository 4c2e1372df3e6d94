"""The tables that cluster files are made of: levels, hosts, guards, and the sources of their numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpuscale.presets.fields import RARE, Bounds
from gpuscale.presets.files import Document
from gpuscale.presets.guards import NETWORKS, SCALE_UP, Slip, host_slips, level_slips
from gpuscale.presets.wiring import (
    DEFAULTED,
    LINK,
    WAYS,
    behind_switches,
    cards_per_gpu,
    default_numbers,
    wiring_slips,
)
from gpuscale.specs.cluster import MAX_GPUS, HostSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=600)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=400)]
AxisLength = Annotated[int, Bounds(ge=2, le=65536)]

CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

Place = tuple[str | int, ...]


class GuardsTable(BaseModel):
    """`[guards]`: keys whose numbers are right although they look like a slip, and why."""

    model_config = CONFIG | RARE

    accept: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=32)]
    reason: Reason


class LevelTable(BaseModel):
    """One `[[levels]]` of a cluster file, with its own `[levels.sources]`."""

    model_config = CONFIG

    name: Name
    fabric: Literal[
        "nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa", "eni", "slingshot", "ethernet"
    ]  # fmt: skip
    gpus: Annotated[int, Bounds(ge=1, le=MAX_GPUS)]
    path: Literal["nvlink-p2p", "pcie-p2p", "pcie-p2p-host", "shm", "gdr", "net", "sockets"] | None = None
    topology: Literal["switched", "mesh", "torus", "dragonfly"] | None = None
    torus_shape: Annotated[tuple[AxisLength, ...], Field(strict=False, min_length=1, max_length=6)] | None = None
    global_gb_per_s_per_group_per_direction: Annotated[float | None, Bounds(gt=0, le=1e7)] = None
    minimal_share: Annotated[float | None, Bounds(ge=0, le=1)] = None
    rails: Literal["none", "optimised", "only"] | None = None
    pxn: bool | None = None
    nics_per_gpu: Annotated[float | None, Bounds(gt=0, le=16)] = None
    nic_gbit_per_s: Annotated[float | None, Bounds(ge=1, le=10000)] = None
    gpus_per_pcie_switch: Annotated[int | None, Bounds(ge=1, le=64)] = None
    nics_per_pcie_switch: Annotated[int | None, Bounds(ge=1, le=64)] = None
    link_gb_per_s_per_gpu_per_direction: Annotated[float | None, Bounds(gt=0, le=1e5)] = None
    switches: Annotated[int, Bounds(ge=0, le=MAX_GPUS)] = 0
    switch_gb_per_s_per_direction: Annotated[float, Bounds(ge=0, le=1e6)] = 0.0
    hop_latency_us: Annotated[float | None, Bounds(ge=0.05, le=1000)] = None
    in_network_reduction: bool
    link_efficiency: Annotated[float | None, Bounds(ge=0.05, le=1)] = None
    sources: dict[str, Source]

    def to_spec(self, numbers: Mapping[str, float], levels: Sequence[LevelSpec]) -> LevelSpec:
        """Return the level in SI units.

        Args:
            numbers: the numbers of `DEFAULTED`, stated or by `path`.
            levels: those below it, innermost first.
        """
        inside = [level for level in levels if level.fabric not in NETWORKS]
        linked = bool(inside) and inside[-1].fabric in SCALE_UP
        rails = self.rails or "none"
        return LevelSpec(
            name=self.name,
            fabric=self.fabric,
            gpus=self.gpus,
            link_bytes_per_s=numbers[LINK] * 1e9,
            switches=self.switches,
            switch_bytes_per_s=self.switch_gb_per_s_per_direction * 1e9,
            hop_latency_s=numbers["hop_latency_us"] * 1e-6,
            in_network_reduction=self.in_network_reduction,
            link_efficiency=numbers["link_efficiency"],
            nics_per_gpu=cards_per_gpu(self) or 1.0,
            rails=rails,
            pxn=rails != "none" and (linked if self.pxn is None else self.pxn),
            topology=self.topology or "",
            torus_shape=tuple(self.torus_shape or ()),
            global_bytes_per_s=(self.global_gb_per_s_per_group_per_direction or 0.0)
            * 1e9
            / (levels[-1].gpus if levels else 1),
            minimal_share=self.minimal_share,
            path=self.path or "",
            gpus_per_pcie_switch=self.gpus_per_pcie_switch or 0,
            nics_per_pcie_switch=self.nics_per_pcie_switch or 0,
        )


class HostTable(BaseModel):
    """`[host]` of a cluster file: what the GPUs of one host share, with its own `[host.sources]`."""

    model_config = CONFIG

    gpus: Annotated[int, Bounds(ge=1, le=1024)]
    gpus_per_uplink: Annotated[int | None, Bounds(ge=1, le=64)] = None
    memory_gib: Annotated[float, Bounds(ge=1, le=1e6)]
    memory_gb_per_s: Annotated[float, Bounds(ge=5, le=1e5)]
    sources: dict[str, Source]

    def to_spec(self, gpus_per_switch: int) -> HostSpec:
        """Return the host in SI units; GPUs behind one PCIe switch share an uplink where the file does not say it."""
        shared = self.gpus_per_uplink or gpus_per_switch
        return HostSpec(self.gpus, shared, self.memory_gib * 2**30, self.memory_gb_per_s * 1e9)


def add_level(
    document: Document,
    place: Place,
    table: LevelTable,
    levels: list[LevelSpec],
    gpu: GpuSpec,
    guards: GuardsTable | None,
    *,
    joins: bool = False,
) -> dict[str, str]:
    """Append what one `[[levels]]` means to the levels below it, and return the sources of its numbers.

    Args:
        joins: the level joins pools, so that it may carry more than the slowest of them sends.

    Raises:
        InputError: a number missing or without a source, or one that looks like a slip.
    """
    defaults = default_numbers(table, gpu)
    numbers = {key: getattr(table, key) for key in DEFAULTED} | {key: value for key, (value, _) in defaults.items()}
    missing = next((key for key in DEFAULTED if numbers[key] is None), None)
    if missing is not None:
        hint = f"see docs/hardware.md; `path` stands for usual numbers: {', '.join(WAYS)}"
        raise document.error(place, f"key {missing!r} of the level {table.name} is missing", hint)
    found = expand_sources(document, place, table.sources, _level_numbers(table))
    level = table.to_spec(numbers, levels)
    below = levels[-1] if levels else None
    if joins and below is not None:
        below = replace(below, link_bytes_per_s=max(below.link_bytes_per_s, level.egress_bytes_per_s))
    slips = [*wiring_slips(table, level, levels, gpu), *level_slips(table, level, below, gpu)]
    refuse(document, place, slips, guards, prefix=f"{table.name}.")
    for one in behind_switches(table, level, levels[-1] if levels else None):
        if one.name in (known.name for known in levels):
            raise document.error((*place, "name"), f"a second level called {one.name!r}", "give each its own name")
        levels.append(one)
    return {**found, **{key: source for key, (_, source) in defaults.items()}}


def read_host(
    document: Document, place: Place, table: HostTable, levels: Sequence[LevelSpec], guards: GuardsTable | None
) -> tuple[HostSpec, dict[str, str]]:
    """Return the host of a cluster and the sources of its numbers.

    Raises:
        InputError: a number without a source, or one that looks like a slip.
    """
    refuse(document, place, host_slips(table, levels), guards, prefix="host.")
    numbers = [key for key, value in table if isinstance(value, int | float)]
    sources = expand_sources(document, place, table.sources, numbers)
    shared = next((level.gpus_per_pcie_switch for level in levels if level.gpus_per_pcie_switch), 1)
    return table.to_spec(shared if table.gpus % shared == 0 else 1), sources


def _level_numbers(table: LevelTable) -> list[str]:
    """Return the keys of a level that need a source; a level without switches has no numbers of them to source."""
    without = {"sources", "name", "fabric"} | (
        set() if table.switches else {"switches", "switch_gb_per_s_per_direction"}
    )
    return [key for key, value in table if key not in without and value is not None]


def expand_sources(
    document: Document, place: Place, given: Mapping[str, str], numbers: Iterable[str]
) -> dict[str, str]:
    """Return number -> source from a `sources` table, whose keys are names, lists `a, b` or patterns `peak_*`.

    The exact name goes before a pattern, a longer pattern before a shorter one.

    Raises:
        InputError: a number without a source, or a source of nothing.
    """
    names = list(numbers)
    patterns = [(part.strip(), text, entry) for entry, text in given.items() for part in entry.split(",")]
    for part, _, entry in patterns:
        if part not in names and not any(fnmatchcase(name, part) for name in names):
            hint = f"the keys with numbers are {', '.join(names)}"
            raise document.error((*place, "sources", entry), f"{part[:80]!r} in sources matches no key", hint)
    exact = {part: text for part, text, _ in reversed(patterns)}
    wild = [pattern for pattern in patterns if pattern[0] not in names]
    ranked = sorted(wild, key=lambda pattern: ("*" in pattern[0], -len(pattern[0])))
    found: dict[str, str] = {}
    for name in names:
        text = exact.get(name) or next((text for part, text, _ in ranked if fnmatchcase(name, part)), None)
        if text is None:
            raise document.error(
                (*place, name),
                f"{name} has no source",
                f'add {name} = "..." to the sources table: document and year, or "guesstimate: why"',
            )
        found[name] = text
    return found


def refuse(
    document: Document,
    place: Place,
    slips: Iterable[Slip],
    guards: GuardsTable | None,
    prefix: str = "",
) -> None:
    """Raise for the first slip that `[guards] accept` does not let through."""
    accepted = guards.accept if guards else ()
    for slip in slips:
        key = prefix + slip.key
        if key not in accepted:
            escape = f'if it is right: [guards] accept = ["{key}"] with a reason'
            raise document.error((*place, slip.key), f"{key}: {slip.message}", f"{slip.hint}; {escape}")
