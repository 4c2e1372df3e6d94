"""GPU and cluster files: their schemas, and `load_gpu` / `load_cluster` that turn them into specs.

Every number of a file carries its unit in its key and has an entry in a `sources` table. The keys are described in
docs/hardware.md.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gpuscale.errors import InputError, nearest
from gpuscale.presets.calibration import MAX_TABLES, CalibrationTable, check_calibration
from gpuscale.presets.fields import RARE, Bounds, Rare
from gpuscale.presets.files import (
    Document,
    find_preset,
    parse_toml,
    preset_names,
    read_toml,
    resolve_preset,
    validate,
)
from gpuscale.presets.guards import gpu_slips
from gpuscale.presets.kernels import KernelTable
from gpuscale.presets.tables import (
    CONFIG,
    GuardsTable,
    HostTable,
    LevelTable,
    Name,
    Place,
    Source,
    Text,
    add_level,
    expand_sources,
    read_host,
    refuse,
)
from gpuscale.specs.cluster import MAX_GPUS, ClusterSpec, HostSpec, LevelSpec, PoolSpec
from gpuscale.specs.gpu import PRECISIONS, GpuSpec, KernelSpec
from gpuscale.specs.pools import common_levels, cut, joined, slowest_gpu

Aliases = Annotated[tuple[Name, ...], Field(strict=False, max_length=16)]
Tflops = Annotated[float, Bounds(gt=0.01, lt=1e6)]
Mhz = Annotated[float, Bounds(ge=200, le=5000)]
Guards = Annotated[GuardsTable, Rare()]
Calibration = Annotated[CalibrationTable, Rare()]
MAX_POOLS = 16

_POOL = re.compile(r"(..+):([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
"""A cluster and one of its pools; a single letter before the colon is a drive."""


class GpuFile(BaseModel):
    """One file of `presets/gpus`."""

    model_config = CONFIG

    title: Text
    vendor: Text
    architecture: Name
    aliases: Aliases = ()

    sm_count: Annotated[int, Bounds(ge=1, le=4096)]
    cores_per_sm: Annotated[int, Bounds(ge=1, le=65536)]
    clock_base_mhz: Mhz
    clock_boost_mhz: Mhz
    clock_max_mhz: Mhz
    smem_per_sm_kib: Annotated[float, Bounds(gt=0, le=2**20)]
    registers_per_sm_kib: Annotated[float, Bounds(gt=0, le=2**20)]
    l2_mib: Annotated[float, Bounds(ge=0, le=4096)]

    memory_type: Name
    memory_datasheet_gb: Annotated[float, Bounds(ge=1, le=8192)]
    memory_driver_mib: Annotated[float, Bounds(ge=512, le=2**23)]
    memory_bandwidth_gb_per_s: Annotated[float, Bounds(gt=0, le=1e6)]

    peak_fp32_tflops: Tflops | None = None
    peak_tf32_tflops: Tflops | None = None
    peak_bf16_tflops: Tflops | None = None
    peak_fp16_tflops: Tflops | None = None
    peak_fp8_tflops: Tflops | None = None
    peak_fp4_tflops: Tflops | None = None

    link_name: Literal["nvlink", "xgmi", "ici", "none"]
    link_generation: Annotated[int, Bounds(ge=0, le=16)]
    links: Annotated[int, Bounds(ge=0, le=64)]
    link_gb_per_s_per_direction: Annotated[float, Bounds(ge=0, le=1e5)]
    host_link_name: Literal["pcie3", "pcie4", "pcie5", "pcie6", "c2c", "xgmi"]
    host_link_gb_per_s_per_direction: Annotated[float, Bounds(gt=0, le=1e5)]
    power_w: Annotated[float, Bounds(ge=10, le=10000)]

    sources: dict[str, Source]
    guards: Guards | None = None
    kernels: KernelTable | None = None
    kernels_like: Text | None = None

    def peaks_tflops(self) -> dict[str, float]:
        """Return the dense TFLOP/s of each precision that the file gives."""
        peaks = {precision: getattr(self, f"peak_{precision}_tflops") for precision in PRECISIONS}
        return {precision: value for precision, value in peaks.items() if value is not None}


class PoolTable(BaseModel):
    """One `[[pools]]` of a cluster of unlike nodes: a cluster preset or file, or a GPU and levels of its own."""

    model_config = CONFIG | RARE

    name: Name
    gpus: Annotated[int, Bounds(ge=1, le=MAX_GPUS)]
    cluster: Text | None = None
    gpu: Text | None = None
    levels: Annotated[tuple[LevelTable, ...], Field(strict=False, max_length=8)] = ()
    host: HostTable | None = None
    sources: dict[str, Source]


Pool = Annotated[PoolTable, Rare()]


class ClusterFile(BaseModel):
    """One file of `presets/clusters`."""

    model_config = CONFIG

    title: Text
    gpu: Text | None = None
    aliases: Aliases = ()
    extendable: bool
    pools: Annotated[tuple[Pool, ...], Field(strict=False, max_length=MAX_POOLS)] = ()
    levels: Annotated[tuple[LevelTable, ...], Field(strict=False, min_length=1, max_length=8)]
    host: HostTable | None = None
    guards: Guards | None = None
    calibration: Annotated[tuple[Calibration, ...], Field(strict=False, max_length=MAX_TABLES)] = ()


def load_gpu(name_or_path: str) -> GpuSpec:
    """Return the GPU that a preset's name, an alias or the path of a TOML file means.

    Raises:
        InputError: unknown name, unreadable file, unknown key, missing source, or a number that looks like a slip.
    """
    return _load_gpu_file(resolve_preset("gpus", "GPU", name_or_path, "gpuscale hardware list"))


def load_cluster(name_or_path: str) -> ClusterSpec:
    """Return the cluster that a preset's name, an alias or the path of a TOML file means.

    `fleet.toml:h100` is the pool `h100` of a cluster of unlike nodes.

    Raises:
        InputError: as `load_gpu`, for the cluster's file or for that of its GPU; no such pool.
    """
    name, pool = split_pool(name_or_path)
    cluster = _cluster(read_toml(_file_named(name)))
    return cluster if pool is None else _pick(cluster, pool)


def split_pool(text: str) -> tuple[str, str | None]:
    """Split `fleet.toml:h100` into the cluster and its pool, None without; a file of that very name goes before."""
    found = _POOL.fullmatch(text)
    if found is None or Path(text).exists():
        return text, None
    return found[1], found[2].lower()


def _pick(cluster: ClusterSpec, name: str) -> ClusterSpec:
    for pool in cluster.pools:
        if pool.name == name:
            return pool.cluster
    names = [pool.name for pool in cluster.pools]
    if not names:
        raise InputError(
            f"{cluster.name} has no pools, so none called {name[:40]!r}",
            hint=f"name the whole: `cluster={cluster.name}`",
        )
    close = nearest(name[:40], names, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(f"{cluster.name} has no pool {name[:40]!r}", hint=f"{hint}its pools are {', '.join(names)}")


def cluster_file(name_or_path: str) -> Path:
    """Return the file of the cluster that a preset's name, an alias or a path means, to be read or copied.

    Raises:
        InputError: unknown name, or one pool of a file, which has no file of its own.
    """
    name, pool = split_pool(name_or_path)
    if pool is not None:
        message = f"{name_or_path[:200]} is one pool of a cluster file"
        raise InputError(message, field="cluster", hint="name the cluster file that the pool is made of")
    return _file_named(name)


def _file_named(name_or_path: str) -> Path:
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
    refuse(document, (), gpu_slips(gpu), gpu.guards)
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
    if cluster.pools:
        return _mixed_cluster(document, cluster)
    if cluster.gpu is None:
        raise document.error((), "key 'gpu' is missing", "name the GPU, or the pools of unlike nodes ([[pools]])")
    gpu = load_gpu(_beside(document.path, cluster.gpu))
    levels, host, sources = _body(document, (), cluster, gpu, cluster.guards)
    if cluster.extendable and levels[-1].torus_shape:
        raise document.error(("extendable",), f"the torus {levels[-1].name} cannot be widened", "extendable = false")
    curves = [table.to_spec() for table in cluster.calibration]
    sources.update({f"calibration.{one.operation}-{one.gpus}-{one.stride}": one.source for one in curves})
    loaded = ClusterSpec(
        name=document.path.stem,
        title=cluster.title,
        gpu=gpu,
        levels=levels,
        extendable=cluster.extendable,
        sources=sources,
        aliases=cluster.aliases,
        host=host,
        calibration=tuple(curves),
    )
    check_calibration(document, loaded)
    return loaded


def _body(
    document: Document, place: Place, table: ClusterFile | PoolTable, gpu: GpuSpec, guards: GuardsTable | None
) -> tuple[tuple[LevelSpec, ...], HostSpec | None, dict[str, str]]:
    """Return the levels and the host of a file or of a pool, and the sources of their numbers."""
    levels: list[LevelSpec] = []
    sources: dict[str, str] = {}
    for index, level in enumerate(table.levels):
        found = add_level(document, (*place, "levels", index), level, levels, gpu, guards)
        sources.update({f"{level.name}.{key}": source for key, source in found.items()})
    if table.host is None:
        return tuple(levels), None, sources
    host, found = read_host(document, (*place, "host"), table.host, levels, guards)
    return tuple(levels), host, {**sources, **{f"host.{key}": source for key, source in found.items()}}


def _mixed_cluster(document: Document, file: ClusterFile) -> ClusterSpec:
    """Return a cluster of unlike nodes, bound by the slowest of its pools."""
    _check_mixture(document, file)
    pools: list[PoolSpec] = []
    sources: dict[str, str] = {}
    for index, table in enumerate(file.pools):
        place: Place = ("pools", index)
        if table.name in (pool.name for pool in pools):
            raise document.error((*place, "name"), f"a second pool called {table.name!r}", "give each its own name")
        pools.append(_pool(document, place, table, file.guards))
        sources[f"{table.name}.gpus"] = expand_sources(document, place, table.sources, ["gpus"])["gpus"]
    total = sum(pool.cluster.gpus for pool in pools)
    top = file.levels[0]
    if top.gpus != total:
        message = f"{top.name} has {top.gpus:,} GPUs, but its pools have {total:,}"
        raise document.error(("levels", 0, "gpus"), message, f"gpus = {total}")
    below = list(common_levels([pool.cluster for pool in pools]))
    slow = slowest_gpu([pool.cluster.gpu for pool in pools])
    # the slowest pool bounds what a GPU sends into the joining level, whatever that carries
    found = add_level(document, ("levels", 0), top, below, slow, file.guards, joins=True)
    sources.update({f"{top.name}.{key}": source for key, source in found.items()})
    whole = ClusterSpec(
        name=document.path.stem,
        title=file.title,
        gpu=slow,
        levels=(below[-1],),
        extendable=False,
        sources=sources,
        aliases=file.aliases,
    )
    return joined(whole, pools)


def _check_mixture(document: Document, file: ClusterFile) -> None:
    """Refuse what a file with pools cannot have."""
    if len(file.pools) < 2:
        raise document.error(("pools",), "one pool is a cluster of alike nodes", "leave [[pools]] out, or add another")
    if len(file.levels) != 1:
        message = f"{len(file.levels)} levels join the pools, but exactly one can"
        raise document.error(("levels", 1), message, "levels inside a pool stand in it: [[pools.levels]]")
    if file.extendable:
        raise document.error(("extendable",), "pools say how many GPUs there are", "extendable = false")
    for key, where in (("gpu", "[[pools]]"), ("host", "[pools.host]"), ("calibration", "the pools' own cluster files")):
        if getattr(file, key):
            raise document.error((key,), f"{key} belongs to the pools", f"write it in {where}")


def _pool(document: Document, place: Place, table: PoolTable, guards: GuardsTable | None) -> PoolSpec:
    shipped = find_preset("clusters", document.path.stem) == document.path
    name = f"{document.path.stem if shipped else document.path.name}:{table.name}"  # by which it is loaded again
    if (table.cluster is None) == (table.gpu is None) or (table.gpu is None) != (not table.levels):
        hint = 'cluster = "dgx-h100-superpod", or gpu = "..." with [[pools.levels]]'
        raise document.error(place, f"pool {table.name} needs a cluster, or a gpu and levels of its own", hint)
    if table.cluster is not None:
        if table.host is not None:
            raise document.error((*place, "host"), "the host of a pool is that of its cluster", "leave it out")
        other = read_toml(_file_named(_beside(document.path, table.cluster)))
        if "pools" in other.data:
            raise document.error((*place, "cluster"), f"{other.path.name} has pools itself", "pools do not nest")
        inner = _cluster(other)
    else:
        gpu = load_gpu(_beside(document.path, table.gpu or ""))
        levels, host, sources = _body(document, place, table, gpu, guards)
        inner = ClusterSpec(name, f"{table.name} of {document.path.stem}", gpu, levels, False, sources, host=host)
    try:
        return PoolSpec(table.name, cut(inner, table.gpus, name))
    except InputError as error:
        raise document.error((*place, "gpus"), f"pool {table.name}: {error.message}", error.hint) from None


def _beside(path: Path, name: str) -> str:
    """Return what a cluster file names, a GPU or a cluster: a preset's name, or a path relative to the file."""
    if not name.lower().endswith(".toml"):
        return name
    return str(path.parent / name)
