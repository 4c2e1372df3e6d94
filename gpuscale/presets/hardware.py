"""GPU and cluster files: `load_gpu` and `load_cluster` turn them into specs.

Every number of a file carries its unit in its key and has an entry in a `sources` table. The keys are described in
docs/hardware.md.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gpuscale.arguments import public
from gpuscale.errors import InputError, did_you_mean
from gpuscale.file_kinds import reads
from gpuscale.files import is_there
from gpuscale.presets.files import Document, KeyPath, find_preset, parse_toml, preset_names, read_toml, resolve_preset
from gpuscale.presets.guards import gpu_slips, host_slips, refuse
from gpuscale.presets.levels import LEVEL, add_level
from gpuscale.presets.loaded import remembered
from gpuscale.presets.tables import Table, made, sources_of
from gpuscale.specs import cluster as specs
from gpuscale.specs.fields import Sources, Text
from gpuscale.specs.gpu import PRECISIONS, GpuSpec, KernelSpec, PeakFlops

_Tables = tuple[dict[str, Any], ...]

KERNELS = Table(KernelSpec, sources=(Sources, ...))
GPU = Table(
    GpuSpec,
    without=("name", "peak_flops_per_s"),
    unless={"kernels_like": ("kernels",)},
    inner={"kernels": KERNELS},
    guards=(dict[str, Any], None),
    kernels=(dict[str, Any], None),
    kernels_like=(Text, None),
    **{f"peak_{precision}_tflops": (PeakFlops, None) for precision in PRECISIONS},  # type: ignore[arg-type]
)
HOST = Table(specs.HostSpec, optional=("gpus_per_uplink",), sources=(Sources, ...))
CURVE = Table(specs.CalibrationSpec, optional=("stride",))
POOL = Table(
    specs.PoolSpec,
    inner={"levels": LEVEL, "host": HOST},
    gpus=(specs.Gpus, ...),
    cluster=(Text, None),
    gpu=(Text, None),
    levels=(Annotated[_Tables, Field(max_length=8)], None),
    host=(dict[str, Any], None),
    sources=(Sources, ...),
)
CLUSTER = Table(
    specs.ClusterSpec,
    without=("name", "sources", "rank_overhead_s", "mixture", "sharp", "nvls"),
    unless={"gpu": ("pools",)},
    inner={"pools": POOL, "levels": LEVEL, "host": HOST, "calibration": CURVE},
    gpu=(Text, None),
    pools=(Annotated[_Tables, Field(max_length=16)], None),
    levels=(Annotated[_Tables, Field(min_length=1, max_length=8)], ...),
    host=(dict[str, Any], None),
    guards=(dict[str, Any], None),
    calibration=(Annotated[_Tables, Field(max_length=specs.MAX_CURVES)], None),
)

_POOL = re.compile(r"(..+):([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
"""A cluster and one of its pools; a single letter before the colon is a drive."""


@public
@reads("gpu")
def load_gpu(name_or_path: str | Path | GpuSpec) -> GpuSpec:
    """Return the GPU that a preset's name, an alias or the path of a TOML file means; a GPU as it is.

    Raises:
        InputError: unknown name, unreadable file, unknown key, missing source, or a number that looks like a slip.
    """
    if isinstance(name_or_path, GpuSpec):
        return name_or_path
    name = str(name_or_path)
    return remembered(name, _gpu(read_toml(resolve_preset("gpus", name))))


def parse_gpu(text: str, path: Path) -> GpuSpec:
    """Return the GPU that a file at `path` means when it holds `text`: a check before it is written.

    Raises:
        InputError: as `load_gpu`.
    """
    return _gpu(parse_toml(path, text))


def _gpu(document: Document) -> GpuSpec:
    stated = GPU.read(document)
    peaks = {name: stated[key] for name in PRECISIONS if (key := f"peak_{name}_tflops") in stated}
    numbers = GPU.keys(name for name, value in stated.items() if isinstance(value, int | float))
    sources = sources_of(document, (), stated.pop("sources"), numbers)
    kernels, kernel_sources = _kernels(document, stated)
    sources |= kernel_sources
    gpu = made(GpuSpec, stated, name=document.path.stem, peak_flops_per_s=peaks, kernels=kernels, sources=sources)
    refuse(document, (), gpu_slips(gpu))
    missing = [name for name in peaks if name not in kernels.gemm_fraction]
    if missing:
        place = ("kernels", "gemm_fraction") if "kernels" in stated else ("kernels_like",)
        raise document.error(place, f"gemm_fraction lacks {', '.join(missing)}", "each precision with a peak needs one")
    return gpu


@public
@reads("cluster")
def load_cluster(name_or_path: str | Path | specs.ClusterSpec) -> specs.ClusterSpec:
    """Return the cluster that a preset's name, an alias or the path of a TOML file means; a cluster as it is.

    `fleet.toml:h100` is the pool `h100` of a cluster of unlike nodes.

    Raises:
        InputError: as `load_gpu`, for the cluster's file or for that of its GPU; no such pool.
    """
    if isinstance(name_or_path, specs.ClusterSpec):
        return name_or_path
    name, pool = split_pool(str(name_or_path))
    cluster = _cluster(read_toml(resolve_preset("clusters", name)))
    pools = {one.name: one.cluster for one in cluster.pools}
    if pool is None or pool in pools:
        return remembered(str(name_or_path), cluster if pool is None else pools[pool])
    hint = did_you_mean(pool, pools, "its pools are") if pools else f"name the whole: `cluster={cluster.name}`"
    raise InputError(f"{cluster.name} has no {'pool' if pools else 'pools, so none called'} {pool[:40]!r}", hint=hint)


def split_pool(text: str) -> tuple[str, str | None]:
    """Split `fleet.toml:h100` into the cluster and its pool, None without; a file of that very name goes before."""
    found = _POOL.fullmatch(text)
    if found is None or is_there(Path(text)):
        return text, None
    return found[1], found[2].lower()


def cluster_file(name_or_path: str) -> Path:
    """Return the file of the cluster that a preset's name, an alias or a path means, to be read or copied.

    Raises:
        InputError: unknown name, or one pool of a file, which has no file of its own.
    """
    name, pool = split_pool(name_or_path)
    if pool is not None:
        message = f"{name_or_path[:200]} is one pool of a cluster file"
        raise InputError(message, field="cluster", hint="name the cluster file that the pool is made of")
    return resolve_preset("clusters", name)


def parse_cluster(text: str, path: Path) -> specs.ClusterSpec:
    """Return the cluster that a file at `path` means when it holds `text`: a check before it is written.

    Raises:
        InputError: as `load_cluster`.
    """
    return _cluster(parse_toml(path, text))


@public
def all_gpus() -> list[GpuSpec]:
    """Return every GPU of the presets, by name."""
    return [load_gpu(name) for name in preset_names("gpus")]


@public
def all_clusters() -> list[specs.ClusterSpec]:
    """Return every cluster of the presets, by name."""
    return [load_cluster(name) for name in preset_names("clusters")]


def _kernels(document: Document, stated: dict[str, Any]) -> tuple[KernelSpec, dict[str, str]]:
    """Return the kernel constants and their sources: the file's own `[kernels]`, or those of `kernels_like`."""
    if ("kernels" in stated) == ("kernels_like" in stated):
        hint = 'such as kernels_like = "h100-sxm-80gb"'
        raise document.error(("kernels",), "needs either a [kernels] table or kernels_like", hint)
    table, note = document, ""
    if "kernels_like" in stated:
        like = stated["kernels_like"]
        table = read_toml(resolve_preset("gpus", like))
        note = f"as {table.path.stem}: "
        if "kernels" not in table.data:
            hint = "name a GPU whose file has its own [kernels]"
            raise document.error(("kernels_like",), f"{like} borrows its kernels itself", hint)
    found = KERNELS.read(table, ("kernels",))
    given = found.pop("sources")
    sources = sources_of(table, ("kernels",), given, KERNELS.keys(found))
    return KernelSpec(**found), {f"kernels.{key}": note + source for key, source in sources.items()}


def _cluster(document: Document) -> specs.ClusterSpec:
    stated = CLUSTER.read(document)
    if stated.get("pools"):
        return _mixed_cluster(document, stated)
    gpu = load_gpu(_beside(document.path, stated["gpu"]))
    levels, host, sources = _body(document, (), stated, gpu)
    if stated["extendable"] and levels[-1].torus_shape:
        raise document.error(("extendable",), f"the torus {levels[-1].name} cannot be widened", "extendable = false")
    curves = [
        specs.CalibrationSpec(**{"stride": 1, **CURVE.read(document, ("calibration", index))})
        for index in range(len(stated.get("calibration", ())))
    ]
    sources.update({f"calibration.{one.operation}-{one.gpus}-{one.stride}": one.source for one in curves})
    given = {"name": document.path.stem, "gpu": gpu, "levels": levels, "host": host, "sources": sources}
    loaded = made(specs.ClusterSpec, {**stated, "pools": ()}, **given, calibration=tuple(curves))
    _check_calibration(document, loaded)
    return loaded


def _body(
    document: Document, place: KeyPath, table: dict[str, Any], gpu: GpuSpec
) -> tuple[tuple[specs.LevelSpec, ...], specs.HostSpec | None, dict[str, str]]:
    """Return the levels and the host of a file or of a pool, and the sources of their numbers."""
    levels: list[specs.LevelSpec] = []
    sources: dict[str, str] = {}
    for index in range(len(table["levels"])):
        sources |= add_level(document, (*place, "levels", index), levels, gpu)
    if "host" not in table:
        return tuple(levels), None, sources
    place = (*place, "host")
    stated = HOST.read(document, place)
    given = stated.pop("sources")
    behind = next((level.gpus_per_pcie_switch for level in levels if level.gpus_per_pcie_switch), 1)
    shared = behind if stated["gpus"] % behind == 0 else 1  # GPUs behind one PCIe switch share its uplink
    host = specs.HostSpec(**{"gpus_per_uplink": shared, **stated})
    refuse(document, place, host_slips(host, levels), prefix="host.")
    found = sources_of(document, place, given, HOST.keys(stated))
    return tuple(levels), host, sources | {f"host.{key}": source for key, source in found.items()}


def _mixed_cluster(document: Document, stated: dict[str, Any]) -> specs.ClusterSpec:
    """Return a cluster of unlike nodes, bound by the slowest of its pools."""
    _check_mixture(document, stated)
    pools: list[specs.PoolSpec] = []
    sources: dict[str, str] = {}
    for index in range(len(stated["pools"])):
        place = ("pools", index)
        table = POOL.read(document, place)
        if table["name"] in (pool.name for pool in pools):
            message = f"a second pool called {table['name']!r}"
            raise document.error((*place, "name"), message, "give each its own name")
        pools.append(_pool(document, place, table))
        sources[f"{table['name']}.gpus"] = sources_of(document, place, table["sources"], ["gpus"])["gpus"]
    total, top = sum(pool.cluster.gpus for pool in pools), LEVEL.read(document, ("levels", 0))
    if top["gpus"] != total:
        message = f"{top['name']} has {top['gpus']:,} GPUs, but its pools have {total:,}"
        raise document.error(("levels", 0, "gpus"), message, f"gpus = {total}")
    levels = list(specs.common_levels([pool.cluster for pool in pools]))
    slow = specs.slowest_gpu([pool.cluster.gpu for pool in pools])
    # the slowest pool bounds what a GPU sends into the joining level, whatever that carries
    sources |= add_level(document, ("levels", 0), levels, slow, joins=len(pools))
    given = {"name": document.path.stem, "gpu": slow, "levels": tuple(levels[-1:]), "sources": sources}
    return specs.joined(made(specs.ClusterSpec, {**stated, "pools": ()}, **given), pools)


def _check_mixture(document: Document, stated: dict[str, Any]) -> None:
    """Refuse what a file with pools cannot have."""
    if len(stated["pools"]) < 2:
        raise document.error(("pools",), "one pool is a cluster of alike nodes", "leave [[pools]] out, or add another")
    if len(stated["levels"]) != 1:
        message = f"{len(stated['levels'])} levels join the pools, but exactly one can"
        raise document.error(("levels", 1), message, "levels inside a pool stand in it: [[pools.levels]]")
    if stated["extendable"]:
        raise document.error(("extendable",), "pools say how many GPUs there are", "extendable = false")
    for key, where in (("gpu", "[[pools]]"), ("host", "[pools.host]"), ("calibration", "the pools' own cluster files")):
        if key in stated:
            raise document.error((key,), f"{key} belongs to the pools", f"write it in {where}")


def _pool(document: Document, place: KeyPath, table: dict[str, Any]) -> specs.PoolSpec:
    shipped = str(find_preset("clusters", document.path.stem)) == str(document.path)
    title = table["name"]
    name = f"{document.path.stem if shipped else document.path.name}:{title}"  # by which it is loaded again
    if ("cluster" in table) == ("gpu" in table) or ("gpu" in table) != bool(table.get("levels")):
        hint = 'cluster = "dgx-h100-superpod", or gpu = "..." with [[pools.levels]]'
        raise document.error(place, f"pool {title} needs a cluster, or a gpu and levels of its own", hint)
    if "cluster" in table:
        if "host" in table:
            raise document.error((*place, "host"), "the host of a pool is that of its cluster", "leave it out")
        other = read_toml(resolve_preset("clusters", _beside(document.path, table["cluster"])))
        if "pools" in other.data:
            raise document.error((*place, "cluster"), f"{other.path.name} has pools itself", "pools do not nest")
        inner = _cluster(other)
    else:
        gpu = load_gpu(_beside(document.path, table["gpu"]))
        levels, host, sources = _body(document, place, table, gpu)
        inner = specs.ClusterSpec(name, f"{title} of {document.path.stem}", gpu, levels, False, sources, host=host)
    try:
        return specs.PoolSpec(title, specs.cut(inner, table["gpus"], name))
    except InputError as error:
        raise document.error((*place, "gpus"), f"pool {title}: {error.message}", error.hint) from None


def _beside(path: Path, name: str) -> str:
    """Return what a cluster file names, a GPU or a cluster: a preset's name, or a path relative to the file."""
    return str(path.parent / name) if name.lower().endswith(".toml") else name


def _check_calibration(document: Document, cluster: specs.ClusterSpec) -> None:
    """Refuse measured curves that cannot be, or that the cluster has no group for."""
    seen: set[tuple[str, int, int]] = set()
    for index, one in enumerate(cluster.calibration):
        place = ("calibration", index)
        key = (one.operation, one.gpus, one.stride)
        if key in seen:
            raise document.error(place, f"a second curve of {one.operation} over {one.gpus} GPUs", "keep one of them")
        seen.add(key)
        if len(one.bytes) != len(one.time_s):
            message = f"{len(one.time_s)} times for {len(one.bytes)} sizes"
            raise document.error((*place, "time_us"), message, "give one time for each size")
        if any(low >= high for low, high in pairwise(one.bytes)):
            raise document.error((*place, "bytes"), "sizes must rise", "sort them, and give each once")
        if any(low > high for low, high in pairwise(one.time_s)):
            raise document.error((*place, "time_us"), "a larger size takes less time", "times must never fall")
        _check_group(document, cluster, place, one)


def _check_group(document: Document, cluster: specs.ClusterSpec, place: KeyPath, one: specs.CalibrationSpec) -> None:
    names = [level.name for level in cluster.levels]
    if one.level not in names:
        hint = f"the levels are {', '.join(names)}"
        raise document.error((*place, "level"), f"no level is called {one.level!r}", hint)
    reach = (one.gpus - 1) * one.stride + 1
    if reach > (specs.MAX_GPUS if cluster.extendable else cluster.gpus):
        message = f"the group reaches over {reach:,} GPUs, the cluster has {cluster.gpus:,}"
        raise document.error((*place, "gpus"), message, "check stride")
    spanned = cluster.level_of_group(one.gpus, one.stride).name
    if spanned != one.level:
        message = f"{one.gpus} GPUs {one.stride} apart span {spanned}, not {one.level}"
        raise document.error((*place, "level"), message, "check level and stride")
