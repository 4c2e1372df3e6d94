"""Tables and JSON of GPUs and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from rich.table import Table

from gpuscale.render.console import console, table
from gpuscale.render.plain import print_json
from gpuscale.render.wiring import pools_body, pools_table, wiring_body, wiring_lines
from gpuscale.specs.cluster import ClusterSpec, HostSpec, LevelSpec
from gpuscale.specs.gpu import PRECISIONS, GpuSpec
from gpuscale.units import GIB

GB, TB = 1e9, 1e12


def hardware_list(gpus: Sequence[GpuSpec]) -> None:
    """Print one row per GPU: dense TFLOP/s, memory and links."""
    out = console()
    out.print(f"{len(gpus)} GPUs. Dense TFLOP/s; links and memory in GB/s, links per direction and GPU.")
    headers = ("name", "SMs", "bf16", "fp8", "fp4", "memory GiB", "memory GB/s", "links", "host", "W")
    out.print(table(headers, [_hardware_row(gpu) for gpu in gpus]))
    if any("bf16" not in gpu.peak_flops_per_s for gpu in gpus):
        out.print("* fp16; the GPU has no bf16")


def _hardware_row(gpu: GpuSpec) -> tuple[str, ...]:
    peaks = gpu.peak_flops_per_s
    half = f"{_number(peaks['fp16'] / TB)}*" if "fp16" in peaks else "-"
    if "bf16" in peaks:
        half = _number(peaks["bf16"] / TB)
    return (
        gpu.name,
        str(gpu.sm_count),
        half,
        *(_number(peaks[name] / TB) if name in peaks else "-" for name in ("fp8", "fp4")),
        f"{gpu.memory_bytes / 2**30:.1f}",
        _number(gpu.memory_bandwidth_bytes_per_s / GB),
        _number(gpu.link_egress_bytes_per_s / GB) if gpu.links else "-",
        _number(gpu.host_link_bytes_per_s / GB),
        _number(gpu.power_w),
    )


def hardware_show(gpu: GpuSpec) -> None:
    """Print everything about one GPU: numbers, what follows from them, kernel constants, sources."""
    out = console()
    peaks = gpu.peak_flops_per_s
    best = next((name for name in ("bf16", "fp16", "fp32") if name in peaks), None)
    rate = f"{_number(peaks[best] / TB)} dense TFLOP/s in {best}, " if best else ""
    memory = f"{gpu.memory_bytes / 2**30:.1f} GiB at {_number(gpu.memory_bandwidth_bytes_per_s / GB)} GB/s"
    out.print(f"{gpu.name}: {rate}{memory}, links of {_number(gpu.link_egress_bytes_per_s / GB)} GB/s per direction")
    out.print(_names(gpu.title, gpu.aliases))
    out.print()
    out.print(_pairs(_gpu_facts(gpu)))
    out.print()
    has = [name for name in PRECISIONS if name in peaks]
    rows = [(name, f"{peaks[name] / TB:.5g}", f"{gpu.critical_intensity(name):.0f}") for name in has]
    out.print(table(("precision", "dense TFLOP/s", "critical FLOP/byte"), rows))
    out.print()
    out.print(_pairs(_kernel_facts(gpu)))
    _print_sources(gpu.sources)


def _gpu_facts(gpu: GpuSpec) -> list[tuple[str, str]]:
    links = (
        f"{gpu.links} {gpu.link_name} {gpu.link_generation} x {gpu.link_bytes_per_s / GB:g} GB/s = "
        f"{gpu.link_egress_bytes_per_s / GB:g} GB/s per direction"
        if gpu.links
        else "none"
    )
    mhz = [f"{hertz / 1e6:g}" for hertz in (gpu.clock_base_hz, gpu.clock_boost_hz, gpu.clock_max_hz)]
    vector = [f"{vector_flops_per_s(gpu, hertz) / TB:.1f}" for hertz in (gpu.clock_base_hz, gpu.clock_max_hz)]
    return [
        ("vendor, architecture", f"{gpu.vendor}, {gpu.architecture}"),
        ("SMs x cores", f"{gpu.sm_count} x {gpu.cores_per_sm} = {gpu.sm_count * gpu.cores_per_sm:,} fp32 cores"),
        ("clock base / boost / max", f"{' / '.join(mhz)} MHz"),
        ("fp32 vector, no FMA", f"{' / '.join(vector)} TFLOP/s at base / max clock, twice that with FMA"),
        ("SMEM", _per_sm(gpu.smem_per_sm_bytes, gpu.sm_count)),
        ("registers", _per_sm(gpu.registers_per_sm_bytes, gpu.sm_count)),
        ("L2", f"{gpu.l2_bytes / 2**20:g} MiB"),
        ("memory", f"{gpu.memory_type or 'type not stated'}, {gpu.memory_datasheet_bytes / GB:g} GB by the datasheet"),
        ("memory the driver reports", f"{gpu.memory_bytes / 2**20:,.0f} MiB = {gpu.memory_bytes / 2**30:.1f} GiB"),
        ("memory bandwidth", f"{gpu.memory_bandwidth_bytes_per_s / GB:,.5g} GB/s"),
        ("links", links),
        ("host link", f"{gpu.host_link_bytes_per_s / GB:g} GB/s per direction"),
        ("power", f"{gpu.power_w:g} W"),
    ]


def vector_flops_per_s(gpu: GpuSpec, clock_hz: float) -> float:
    """Return fp32 operations per second outside the tensor cores, one per core and cycle (no fused multiply-add)."""
    return gpu.sm_count * gpu.cores_per_sm * clock_hz


def _kernel_facts(gpu: GpuSpec) -> list[tuple[str, str]]:
    kernels = gpu.kernels
    has = [name for name in PRECISIONS if name in gpu.peak_flops_per_s]
    gemm = ", ".join(f"{name} {kernels.gemm_fraction[name]:g}" for name in has)
    attention = f"{kernels.attention_forward_fraction:g} fwd, {kernels.attention_backward_fraction:g} bwd"
    return [
        ("GEMM, share of peak", gemm),
        ("clock in a long run", f"{kernels.sustained_clock_fraction:g} of that of a short one"),
        ("GEMM tile", f"{kernels.tile_m} x {kernels.tile_n}, {kernels.tile_overhead_s * 1e6:g} us overhead"),
        ("attention, share of peak", attention),
        ("memory, share of bandwidth", f"{kernels.hbm_fraction:g}"),
        ("launch gap", f"{kernels.launch_s * 1e6:g} us"),
    ]


def clusters_list(clusters: Sequence[ClusterSpec]) -> None:
    """Print one row per cluster: GPUs, levels and bandwidth per GPU."""
    out = console()
    out.print(
        f"{len(clusters)} clusters. Levels innermost first, name(GPUs); GB/s per GPU, one direction, all sending."
    )
    rows = [
        (
            cluster.name,
            cluster.gpu.name,
            f"{cluster.gpus:,}" + ("+" if cluster.extendable else ""),
            " ".join(f"{level.name}({level.gpus})" for level in cluster.levels),
            " / ".join(_number(level.egress_bytes_per_s / GB) for level in cluster.levels),
        )
        for cluster in clusters
    ]
    out.print(table(("name", "GPU", "GPUs", "levels", "GB/s"), rows, left=2))
    out.print("+ more GPUs widen the top level at the same bandwidth per GPU (clusters show NAME --gpus N)")


def clusters_show(cluster: ClusterSpec, allreduce_bytes_per_s: Sequence[float], note: str | None) -> None:
    """Print the level table of one cluster, then its sources.

    Args:
        cluster: already sized.
        allreduce_bytes_per_s: per level, bytes of a large AllReduce over all GPUs under it, per second; 0 where there
            is nothing to reduce.
        note: how the preset was extended, if it was.
    """
    out = console()
    rates = ", ".join(f"{level.name} {_number(level.egress_bytes_per_s / GB)}" for level in cluster.levels)
    parts = [f"{pool.cluster.gpus:,} x {pool.cluster.gpu.name}" for pool in cluster.pools]
    gpus = " and ".join(parts) or f"{cluster.gpus:,} x {cluster.gpu.name}"
    out.print(f"{cluster.name}: {gpus}; GB/s per GPU and direction: {rates}")
    out.print(_names(cluster.title, cluster.aliases))
    if note:
        out.print(f"note: {note}")
    if cluster.pools:
        out.print()
        out.print(pools_table(cluster.pools))
    out.print()
    units = ("total\nTB/s", "GPU to GPU\nGB/s", "AllReduce\nGB/s", "hop\nus", "adds\nup", "link\nefficiency")
    headers = ("level", "fabric", "GPUs", "switches", *units)
    rows = [_level_row(level, rate) for level, rate in zip(cluster.levels, allreduce_bytes_per_s, strict=True)]
    out.print(table(headers, rows, left=2))
    out.print(
        "Per direction, wire rate, all GPUs at once. AllReduce: bytes / time over all GPUs under the level, ideal and "
        "without latency, the slowest level so far binding."
    )
    if cluster.host is not None:
        out.print(_host_line(cluster.host))
    for line in wiring_lines(cluster):
        out.print(line)
    if any(not level.in_network_reduction for level in cluster.levels):
        out.print("* ReduceScatter then AllGather, 2 (M-1)/M bytes: no switch of the level adds up payloads")
    _print_sources(cluster.sources)


def _host_line(host: HostSpec) -> str:
    shared = f", {host.gpus_per_uplink} GPUs on each link to it" if host.gpus_per_uplink > 1 else ""
    memory = f"{host.memory_bytes / GIB:,.0f} GiB of host memory at {host.memory_bytes_per_s / GB:g} GB/s"
    return f"Host: {host.gpus} GPU{'s' * (host.gpus > 1)} with {memory}{shared}."


def _level_row(level: LevelSpec, allreduce_bytes_per_s: float) -> tuple[str, ...]:
    rate = _number(allreduce_bytes_per_s / GB) if allreduce_bytes_per_s else "-"
    return (
        level.name,
        level.fabric,
        f"{level.gpus:,}",
        str(level.switches) if level.switches else "-",
        f"{level.total_bytes_per_s / TB:.4g}",
        _number(level.egress_bytes_per_s / GB),
        rate if level.in_network_reduction or rate == "-" else f"{rate}*",
        f"{level.hop_latency_s * 1e6:g}",
        "yes" if level.in_network_reduction else "no",
        f"{level.link_efficiency:g}",
    )


def _print_sources(sources: Mapping[str, str]) -> None:
    """Print each source once with the keys that it stands behind."""
    out = console()
    keys: dict[str, list[str]] = {}
    for key, text in sources.items():
        keys.setdefault(text, []).append(key)
    out.print()
    out.print("Sources")
    for text, names in keys.items():
        for line, indent in ((", ".join(names), " " * 2), (text, " " * 4)):
            out.print(fill(line, out.width, initial_indent=indent, subsequent_indent=indent))


def _pairs(rows: Sequence[tuple[str, str]]) -> Table:
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _per_sm(size: int, sm_count: int) -> str:
    return f"{size / 2**10:g} KiB per SM, {size * sm_count / 2**20:.4g} MiB in all"


def _names(title: str, aliases: Sequence[str]) -> str:
    return f"{title} (also called {', '.join(aliases)})" if aliases else title


def hardware_list_json(gpus: Sequence[GpuSpec]) -> None:
    """Write `gpuscale.hardware/1` with all GPUs."""
    print_json("gpuscale.hardware/1", {"gpus": [gpu_body(gpu) for gpu in gpus]})


def hardware_show_json(gpu: GpuSpec) -> None:
    """Write `gpuscale.hardware/1` with one GPU and its sources."""
    print_json("gpuscale.hardware/1", {"gpus": [{**gpu_body(gpu), "sources": dict(gpu.sources)}]})


def clusters_list_json(clusters: Sequence[ClusterSpec], allreduce_bytes_per_s: Sequence[Sequence[float]]) -> None:
    """Write `gpuscale.clusters/1` with all clusters; AllReduce rates per cluster and level."""
    pairs = zip(clusters, allreduce_bytes_per_s, strict=True)
    print_json("gpuscale.clusters/1", {"clusters": [cluster_body(cluster, rates) for cluster, rates in pairs]})


def clusters_show_json(cluster: ClusterSpec, allreduce_bytes_per_s: Sequence[float], note: str | None) -> None:
    """Write `gpuscale.clusters/1` with one cluster, its sources and the note on its extension."""
    body = cluster_body(cluster, allreduce_bytes_per_s)
    print_json("gpuscale.clusters/1", {"clusters": [{**body, "note": note, "sources": dict(cluster.sources)}]})


def gpu_body(gpu: GpuSpec) -> dict[str, Any]:
    """Return one GPU for JSON; units stand in the keys."""
    peaks = gpu.peak_flops_per_s
    return {
        "name": gpu.name,
        "title": gpu.title,
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "aliases": list(gpu.aliases),
        "sm_count": gpu.sm_count,
        "cores_per_sm": gpu.cores_per_sm,
        "fp32_cores": gpu.sm_count * gpu.cores_per_sm,
        "clock_base_mhz": gpu.clock_base_hz / 1e6,
        "clock_boost_mhz": gpu.clock_boost_hz / 1e6,
        "clock_max_mhz": gpu.clock_max_hz / 1e6,
        "smem_per_sm_bytes": gpu.smem_per_sm_bytes,
        "registers_per_sm_bytes": gpu.registers_per_sm_bytes,
        "l2_bytes": gpu.l2_bytes,
        "memory_type": gpu.memory_type,
        "memory_datasheet_gb": gpu.memory_datasheet_bytes / GB,
        "memory_gib": gpu.memory_bytes / 2**30,
        "memory_bandwidth_gb_per_s": gpu.memory_bandwidth_bytes_per_s / GB,
        "peak_dense_tflops": {name: peaks[name] / TB for name in PRECISIONS if name in peaks},
        "critical_intensity_flops_per_byte": {
            name: gpu.critical_intensity(name) for name in PRECISIONS if name in peaks
        },
        "link_name": gpu.link_name,
        "link_generation": gpu.link_generation,
        "links": gpu.links,
        "link_gb_per_s_per_direction": gpu.link_bytes_per_s / GB,
        "link_egress_gb_per_s_per_direction": gpu.link_egress_bytes_per_s / GB,
        "host_link_gb_per_s_per_direction": gpu.host_link_bytes_per_s / GB,
        "power_w": gpu.power_w,
    }


def cluster_body(cluster: ClusterSpec, allreduce_bytes_per_s: Sequence[float]) -> dict[str, Any]:
    """Return one cluster for JSON; units stand in the keys, an AllReduce rate of null has nothing to reduce."""
    pairs = zip(cluster.levels, allreduce_bytes_per_s, strict=True)
    return {
        "name": cluster.name,
        "title": cluster.title,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "extendable": cluster.extendable,
        "aliases": list(cluster.aliases),
        "levels": [
            {
                "name": level.name,
                "fabric": level.fabric,
                "gpus": level.gpus,
                "switches": level.switches,
                "total_tb_per_s": level.total_bytes_per_s / TB,
                "gpu_to_gpu_gb_per_s": level.egress_bytes_per_s / GB,
                "link_gb_per_s_per_gpu_per_direction": level.link_bytes_per_s / GB,
                "allreduce_gb_per_s": rate / GB if rate else None,
                "hop_latency_us": level.hop_latency_s * 1e6,
                "in_network_reduction": level.in_network_reduction,
                "link_efficiency": level.link_efficiency,
                **wiring_body(level),
            }
            for level, rate in pairs
        ],
        "host": cluster.host
        and {
            "gpus": cluster.host.gpus,
            "gpus_per_uplink": cluster.host.gpus_per_uplink,
            "memory_gib": cluster.host.memory_bytes / GIB,
            "memory_gb_per_s": cluster.host.memory_bytes_per_s / GB,
        },
        "pools": pools_body(cluster.pools),
    }
