"""GPU and cluster files: their schemas, and `load_gpu` / `load_cluster` that turn them into specs.

Every number of a file carries its unit in its key and has an entry in a `sources` table. The keys are described in
docs/hardware.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpuscale.presets.calibration import MAX_TABLES, CalibrationTable, check_calibration
from gpuscale.presets.files import Document, parse_toml, preset_names, read_toml, resolve_preset, validate
from gpuscale.presets.guards import Slip, gpu_slips, host_slips, level_slips
from gpuscale.presets.kernels import KernelTable
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec, HostSpec, LevelSpec
from gpuscale.specs.gpu import PRECISIONS, GpuSpec, KernelSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
Source = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=600)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=400)]
Aliases = Annotated[tuple[Name, ...], Field(strict=False, max_length=16)]
Tflops = Annotated[float, Field(gt=0.01, lt=1e6)]
Mhz = Annotated[float, Field(ge=200, le=5000)]

_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
_GUIDE = "see docs/hardware.md"


class GuardsTable(BaseModel):
    """`[guards]`: keys whose numbers are right although they look like a slip, and why."""

    model_config = _CONFIG

    accept: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=32)]
    reason: Reason


class GpuFile(BaseModel):
    """One file of `presets/gpus`."""

    model_config = _CONFIG

    title: Text
    vendor: Text
    architecture: Name
    aliases: Aliases = ()

    sm_count: Annotated[int, Field(ge=1, le=4096)]
    cores_per_sm: Annotated[int, Field(ge=1, le=65536)]
    clock_base_mhz: Mhz
    clock_boost_mhz: Mhz
    clock_max_mhz: Mhz
    smem_per_sm_kib: Annotated[float, Field(gt=0, le=2**20)]
    registers_per_sm_kib: Annotated[float, Field(gt=0, le=2**20)]
    l2_mib: Annotated[float, Field(ge=0, le=4096)]

    memory_type: Name
    memory_datasheet_gb: Annotated[float, Field(ge=1, le=8192)]
    memory_driver_mib: Annotated[float, Field(ge=512, le=2**23)]
    memory_bandwidth_gb_per_s: Annotated[float, Field(gt=0, le=1e6)]

    peak_fp32_tflops: Tflops | None = None
    peak_tf32_tflops: Tflops | None = None
    peak_bf16_tflops: Tflops | None = None
    peak_fp16_tflops: Tflops | None = None
    peak_fp8_tflops: Tflops | None = None
    peak_fp4_tflops: Tflops | None = None

    link_name: Literal["nvlink", "xgmi", "ici", "none"]
    link_generation: Annotated[int, Field(ge=0, le=16)]
    links: Annotated[int, Field(ge=0, le=64)]
    link_gb_per_s_per_direction: Annotated[float, Field(ge=0, le=1e5)]
    host_link_name: Literal["pcie3", "pcie4", "pcie5", "pcie6", "c2c", "xgmi"]
    host_link_gb_per_s_per_direction: Annotated[float, Field(gt=0, le=1e5)]
    power_w: Annotated[float, Field(ge=10, le=10000)]

    sources: dict[str, Source]
    guards: GuardsTable | None = None
    kernels: KernelTable | None = None
    kernels_like: Text | None = None

    def peaks_tflops(self) -> dict[str, float]:
        """Return the dense TFLOP/s of each precision that the file gives."""
        peaks = {precision: getattr(self, f"peak_{precision}_tflops") for precision in PRECISIONS}
        return {precision: value for precision, value in peaks.items() if value is not None}


class LevelTable(BaseModel):
    """One `[[levels]]` of a cluster file, with its own `[levels.sources]`."""

    model_config = _CONFIG

    name: Name
    fabric: Literal[
        "nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa", "eni", "slingshot", "ethernet"
    ]  # fmt: skip
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)]
    nics_per_gpu: Annotated[float, Field(gt=0, le=16)] | None = None
    nic_gbit_per_s: Annotated[float, Field(ge=1, le=10000)] | None = None
    link_gb_per_s_per_gpu_per_direction: Annotated[float, Field(gt=0, le=1e5)]
    switches: Annotated[int, Field(ge=0, le=MAX_GPUS)] = 0
    switch_gb_per_s_per_direction: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    hop_latency_us: Annotated[float, Field(ge=0.05, le=1000)]
    in_network_reduction: bool
    link_efficiency: Annotated[float, Field(ge=0.05, le=1)]
    sources: dict[str, Source]

    def to_spec(self) -> LevelSpec:
        """Return the level in SI units."""
        return LevelSpec(
            name=self.name,
            fabric=self.fabric,
            gpus=self.gpus,
            link_bytes_per_s=self.link_gb_per_s_per_gpu_per_direction * 1e9,
            switches=self.switches,
            switch_bytes_per_s=self.switch_gb_per_s_per_direction * 1e9,
            hop_latency_s=self.hop_latency_us * 1e-6,
            in_network_reduction=self.in_network_reduction,
            link_efficiency=self.link_efficiency,
            nics_per_gpu=self.nics_per_gpu or 1.0,
        )


class HostTable(BaseModel):
    """`[host]` of a cluster file: what the GPUs of one host share, with its own `[host.sources]`."""

    model_config = _CONFIG

    gpus: Annotated[int, Field(ge=1, le=1024)]
    gpus_per_uplink: Annotated[int, Field(ge=1, le=64)] = 1
    memory_gib: Annotated[float, Field(ge=1, le=1e6)]
    memory_gb_per_s: Annotated[float, Field(ge=5, le=1e5)]
    sources: dict[str, Source]

    def to_spec(self) -> HostSpec:
        """Return the host in SI units."""
        return HostSpec(self.gpus, self.gpus_per_uplink, self.memory_gib * 2**30, self.memory_gb_per_s * 1e9)


class ClusterFile(BaseModel):
    """One file of `presets/clusters`."""

    model_config = _CONFIG

    title: Text
    gpu: Text
    aliases: Aliases = ()
    extendable: bool
    levels: Annotated[tuple[LevelTable, ...], Field(strict=False, min_length=1, max_length=8)]
    host: HostTable | None = None
    guards: GuardsTable | None = None
    calibration: Annotated[tuple[CalibrationTable, ...], Field(strict=False, max_length=MAX_TABLES)] = ()


def load_gpu(name_or_path: str) -> GpuSpec:
    """Return the GPU that a preset's name, an alias or the path of a TOML file means.

    Raises:
        InputError: unknown name, unreadable file, unknown key, missing source, or a number that looks like a slip.
    """
    return _load_gpu_file(resolve_preset("gpus", "GPU", name_or_path, "gpuscale hardware list"))


def load_cluster(name_or_path: str) -> ClusterSpec:
    """Return the cluster that a preset's name, an alias or the path of a TOML file means.

    Raises:
        InputError: as `load_gpu`, for the cluster's file or for that of its GPU.
    """
    return _cluster(read_toml(cluster_file(name_or_path)))


def cluster_file(name_or_path: str) -> Path:
    """Return the file of the cluster that a preset's name, an alias or a path means.

    Raises:
        InputError: unknown name.
    """
    return resolve_preset("clusters", "cluster", name_or_path, "gpuscale clusters list")


def parse_cluster(text: str, path: Path) -> ClusterSpec:
    """Return the cluster that a file at `path` means when it holds `text`: a check before it is written.

    Raises:
        InputError: as `load_cluster`.
    """
    return _cluster(parse_toml(path, text))


def all_gpus() -> list[GpuSpec]:
    """Return every GPU of the presets, by name."""
    return [load_gpu(name) for name in preset_names("gpus")]


def all_clusters() -> list[ClusterSpec]:
    """Return every cluster of the presets, by name."""
    return [load_cluster(name) for name in preset_names("clusters")]


def _load_gpu_file(path: Path) -> GpuSpec:
    document = read_toml(path)
    gpu = validate(document, GpuFile)
    numbers = [key for key, value in gpu if isinstance(value, int | float)]
    sources = expand_sources(document, (), gpu.sources, numbers)
    _refuse(document, (), gpu_slips(gpu), gpu.guards)
    kernels, kernel_sources = _kernels(document, gpu)
    return GpuSpec(
        name=path.stem,
        title=gpu.title,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        sm_count=gpu.sm_count,
        cores_per_sm=gpu.cores_per_sm,
        clock_base_hz=gpu.clock_base_mhz * 1e6,
        clock_boost_hz=gpu.clock_boost_mhz * 1e6,
        clock_max_hz=gpu.clock_max_mhz * 1e6,
        smem_per_sm_bytes=round(gpu.smem_per_sm_kib * 2**10),
        registers_per_sm_bytes=round(gpu.registers_per_sm_kib * 2**10),
        l2_bytes=round(gpu.l2_mib * 2**20),
        memory_type=gpu.memory_type,
        memory_datasheet_bytes=gpu.memory_datasheet_gb * 1e9,
        memory_bytes=gpu.memory_driver_mib * 2**20,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_gb_per_s * 1e9,
        peak_flops_per_s={precision: tflops * 1e12 for precision, tflops in gpu.peaks_tflops().items()},
        link_name=gpu.link_name,
        link_generation=gpu.link_generation,
        links=gpu.links,
        link_bytes_per_s=gpu.link_gb_per_s_per_direction * 1e9,
        host_link_bytes_per_s=gpu.host_link_gb_per_s_per_direction * 1e9,
        power_w=gpu.power_w,
        kernels=kernels,
        sources={**sources, **kernel_sources},
        aliases=gpu.aliases,
    )


def _kernels(document: Document, gpu: GpuFile) -> tuple[KernelSpec, dict[str, str]]:
    """Return the kernel constants and their sources: the file's own `[kernels]`, or those of `kernels_like`."""
    if (gpu.kernels is None) == (gpu.kernels_like is None):
        raise document.error(
            ("kernels",), "needs either a [kernels] table or kernels_like", 'such as kernels_like = "h100-sxm-80gb"'
        )
    table, note = gpu.kernels, ""
    if gpu.kernels_like is not None:
        other_path = resolve_preset("gpus", "GPU", gpu.kernels_like, "gpuscale hardware list")
        table, note = validate(read_toml(other_path), GpuFile).kernels, f"as {other_path.stem}: "
    if table is None:
        hint = "name a GPU whose file has its own [kernels]"
        raise document.error(("kernels_like",), f"{gpu.kernels_like} borrows its kernels itself", hint)
    missing = [name for name in gpu.peaks_tflops() if name not in table.gemm_fraction]
    if missing:
        place = ("kernels", "gemm_fraction") if gpu.kernels else ("kernels_like",)
        raise document.error(place, f"gemm_fraction lacks {', '.join(missing)}", "each precision with a peak needs one")
    return table.to_spec(), {key: note + source for key, source in table.source_entries().items()}


def _cluster(document: Document) -> ClusterSpec:
    cluster = validate(document, ClusterFile)
    gpu = load_gpu(_beside(document.path, cluster.gpu))
    levels: list[LevelSpec] = []
    sources: dict[str, str] = {}
    for index, table in enumerate(cluster.levels):
        place = ("levels", index)
        if table.name in (level.name for level in levels):
            raise document.error((*place, "name"), f"a second level called {table.name!r}", "give each its own name")
        found = expand_sources(document, place, table.sources, _level_numbers(table))
        sources.update({f"{table.name}.{key}": source for key, source in found.items()})
        level = table.to_spec()
        slips = level_slips(table, level, levels[-1] if levels else None, gpu)
        _refuse(document, place, slips, cluster.guards, prefix=f"{table.name}.")
        levels.append(level)
    if cluster.host is not None:
        _refuse(document, ("host",), host_slips(cluster.host, levels), cluster.guards, prefix="host.")
        numbers = [key for key, value in cluster.host if isinstance(value, int | float)]
        found = expand_sources(document, ("host",), cluster.host.sources, numbers)
        sources.update({f"host.{key}": source for key, source in found.items()})
    curves = [table.to_spec() for table in cluster.calibration]
    sources.update({f"calibration.{one.operation}-{one.gpus}-{one.stride}": one.source for one in curves})
    loaded = ClusterSpec(
        name=document.path.stem,
        title=cluster.title,
        gpu=gpu,
        levels=tuple(levels),
        extendable=cluster.extendable,
        sources=sources,
        aliases=cluster.aliases,
        host=cluster.host.to_spec() if cluster.host else None,
        calibration=tuple(curves),
    )
    check_calibration(document, loaded)
    return loaded


def _beside(path: Path, gpu: str) -> str:
    """Return a cluster file's `gpu`: a preset's name, or a path, relative to the cluster file."""
    if not gpu.lower().endswith(".toml"):
        return gpu
    return str(path.parent / gpu)


def _level_numbers(table: LevelTable) -> list[str]:
    """Return the keys of a level that need a source; a level without switches has no numbers of them to source."""
    without = {"sources", "name", "fabric"} | (
        set() if table.switches else {"switches", "switch_gb_per_s_per_direction"}
    )
    return [key for key, value in table if key not in without and value is not None]


def expand_sources(
    document: Document, place: tuple[str | int, ...], given: Mapping[str, str], numbers: Iterable[str]
) -> dict[str, str]:
    """Return number -> source from a `sources` table, whose keys are names, lists `a, b` or patterns `peak_*`.

    The exact name goes before a pattern, a longer pattern before a shorter one.

    Raises:
        InputError: a number without a source, or a source of nothing.
    """
    names = list(numbers)
    patterns = [(part.strip(), text, entry) for entry, text in given.items() for part in entry.split(",")]
    for part, _, entry in patterns:
        if not any(fnmatchcase(name, part) for name in names):
            hint = f"the keys with numbers are {', '.join(names)}"
            raise document.error((*place, "sources", entry), f"{part[:80]!r} in sources matches no key", hint)
    ranked = sorted(patterns, key=lambda pattern: ("*" in pattern[0], -len(pattern[0])))
    found: dict[str, str] = {}
    for name in names:
        text = next((text for part, text, _ in ranked if fnmatchcase(name, part)), None)
        if text is None:
            raise document.error(
                (*place, name),
                f"{name} has no source",
                f'add {name} = "..." to the sources table: document and year, or "guesstimate: why"',
            )
        found[name] = text
    return found


def _refuse(
    document: Document,
    place: tuple[str | int, ...],
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
