"""Checks that catch the usual slips in hardware numbers: bits for bytes (8x), both directions (2x), sparsity (2x). Each
number is compared with what is known of its generation; one that is right all the same is let through by `[guards]
accept` with a reason."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from gpuscale.presets.files import Document, KeyPath, known_table
from gpuscale.presets.tables import Table
from gpuscale.specs.cluster import NETWORKS, WAN, HostSpec, LevelSpec
from gpuscale.specs.fields import Source
from gpuscale.specs.gpu import PRECISIONS, GpuSpec
from gpuscale.units import GB, GBIT, GIB, MHZ, MIB, TFLOPS

Slip = tuple[str, str, str]
"""A number that cannot be right: its key, what is wrong, and what was probably meant."""

_KNOWN = known_table("hardware")["guards"]
FLOPS_PER_SM_PER_CYCLE: dict[str, dict[str, int]] = _KNOWN["flops_per_sm_per_cycle"]
NIC_GBIT_PER_S: list[int] = _KNOWN["nic_gbit_per_s"]

LINK = "link_gb_per_s_per_gpu_per_direction"


GUARDS = Table(accept=(Annotated[tuple[str, ...], Field(min_length=1, max_length=32)], ...), reason=(Source, ...))


def refuse(document: Document, place: KeyPath, slips: Iterable[Slip], prefix: str = "") -> None:
    """Raise for the first slip that the file's `[guards] accept` does not let through."""
    accepted = GUARDS.read(document, ("guards",))["accept"] if "guards" in document.data else ()
    for name, message, hint in slips:
        key = prefix + name
        if key not in accepted:
            escape = f'if it is right: [guards] accept = ["{key}"] with a reason'
            raise document.error((*place, name), f"{key}: {message}", f"{hint}; {escape}")


def gpu_slips(gpu: GpuSpec) -> Iterator[Slip]:
    """Yield what looks wrong in a GPU file, worst first."""
    yield from _peak_slips(gpu)
    yield from _memory_slips(gpu)
    yield from _link_slips(gpu)
    value, most = gpu.host_link_bytes_per_s / GB, _KNOWN["host_gb_per_s"][gpu.host_link_name]
    if not 0.1 <= value / most <= 1.03:
        message = f"{value:g} GB/s, but {gpu.host_link_name} has at most {most:g} GB/s per direction"
        yield "host_link_gb_per_s_per_direction", message, _rate_hint(value / most)
    clocks = [clock / MHZ for clock in (gpu.clock_base_hz, gpu.clock_boost_hz, gpu.clock_max_hz)]
    if clocks != sorted(clocks):
        said = "{:g}, {:g} and {:g} MHz".format(*clocks)
        yield "clock_boost_mhz", f"clocks of {said} are out of order", "base <= boost <= max"


def flops_per_sm_per_cycle(gpu: GpuSpec) -> dict[str, float] | None:
    """Return precision -> dense FLOPs of one SM per cycle, added up in fp32; None of unknown ones."""
    known = FLOPS_PER_SM_PER_CYCLE.get(gpu.architecture)
    if known is None:
        return None
    added = dict.fromkeys(("tf32", "bf16", "fp16", "fp8"), gpu.fp32_accumulate_rate)
    return {name: flops * added.get(name, 1.0) for name, flops in known.items()}


def _peak_slips(gpu: GpuSpec) -> Iterator[Slip]:
    known, (least, most) = flops_per_sm_per_cycle(gpu), _KNOWN["peak_ratio"]
    for precision, peak in gpu.peak_flops_per_s.items():
        key, tflops = f"peak_{precision}_tflops", peak / TFLOPS
        per_cycle = peak / (gpu.sm_count * gpu.clock_max_hz)
        if known is None:
            if not 8 <= per_cycle <= 2**20:
                yield key, f"{tflops:g} TFLOP/s is {per_cycle:.3g} FLOPs per SM and cycle", "8 to 2^20 are possible"
        elif precision not in known:
            has = ", ".join(name for name in PRECISIONS if name in known)
            yield key, f"{gpu.architecture} has no {precision} arithmetic", f"it has {has}"
        elif not least <= (ratio := per_cycle / known[precision]) <= most:
            sms = f"{gpu.sm_count} {gpu.architecture} SMs do at {gpu.clock_max_hz / MHZ:g} MHz"
            message = f"{tflops:g} TFLOP/s is {ratio:.3g} times what {sms} ({tflops / ratio:.0f} TFLOP/s dense)"
            hint = "write the dense rate of this precision in TFLOP/s"
            if 1.5 <= ratio <= 2.2:
                hint = "datasheets print the rate with 2:4 sparsity, twice the dense one: write the dense rate"
            elif ratio > 500:
                hint = "the key's unit is TFLOP/s (1e12), not GFLOP/s"
            yield key, message, hint
    yield from _precision_ratio_slips(gpu, known or {})


def _precision_ratio_slips(gpu: GpuSpec, known: dict[str, float]) -> Iterator[Slip]:
    """Tensor-core rates of one GPU stand in fixed ratios (fp8 = 2 x bf16), whatever its clock."""
    peaks = {name: peak / TFLOPS for name, peak in gpu.peak_flops_per_s.items()}
    base = next((name for name in ("bf16", "fp16") if name in peaks), "")
    for precision in ("tf32", "fp16", "fp8", "fp4"):
        if precision != base and precision in peaks and base in known and precision in known:
            ratio, expected = peaks[precision] / peaks[base], known[precision] / known[base]
            if not 0.88 <= ratio / expected <= 1.12:
                is_so = f"{peaks[precision]:g} is {ratio:.3g} times peak_{base}_tflops"
                hint = "write both dense, or both are suspect: one may be the rate with sparsity"
                yield f"peak_{precision}_tflops", f"{is_so}; on {gpu.architecture} it is {expected:g} times", hint


def _memory_slips(gpu: GpuSpec) -> Iterator[Slip]:
    low, high = _KNOWN["memory_gb_per_s"].get(gpu.memory_type, (30, 40000))
    bandwidth = gpu.memory_bandwidth_bytes_per_s / GB
    if not low <= bandwidth <= high:
        message = f"{bandwidth:g} GB/s is not possible with {gpu.memory_type} ({low:g} to {high:g} GB/s)"
        hint = "the unit is GB/s (1e9 bytes): 3.35 TB/s is 3350; bits are 8 times as many"
        yield "memory_bandwidth_gb_per_s", message, hint
    datasheet_gb = gpu.memory_datasheet_bytes / GB
    reported = gpu.memory_bytes / (datasheet_gb * GIB)  # what a datasheet calls GB is GiB of most memories
    if not 0.8 <= reported <= 1.03:
        message = f"{gpu.memory_bytes / MIB:g} MiB is {reported:.3g} times the datasheet's {datasheet_gb:g} GB"
        hint = "write what the driver reports (nvidia-smi, rocm-smi) in MiB; 0.8 to 1.03 of the datasheet is usual"
        yield "memory_driver_mib", message, hint


def _link_slips(gpu: GpuSpec) -> Iterator[Slip]:
    key = "link_gb_per_s_per_direction"
    value = gpu.link_bytes_per_s / GB
    if gpu.links == 0:
        if value:
            yield key, f"{value:g} GB/s without links", "write 0, or the number of links in `links`"
        return
    expected = _KNOWN["link_gb_per_s"].get(gpu.link_name, {}).get(str(gpu.link_generation))
    expected = _KNOWN["ga102_nvlink_gb_per_s"] if gpu.architecture == "ampere-rtx" else expected
    if expected is None:
        if not 1 <= value <= 400:
            yield key, f"{value:g} GB/s per link is not possible", "1 to 400 GB/s per link and direction are"
    elif not 0.9 <= value / expected <= 1.1:
        has = f"{gpu.link_name} {gpu.link_generation} has {expected:g} GB/s per link and direction"
        yield key, f"{value:g} GB/s, but {has}", _rate_hint(value / expected)
    if gpu.link_name == "nvlink" and gpu.links > 18:
        yield "links", f"{gpu.links} NVLinks, at most 18 exist", "count links, not lanes or both directions"


def _rate_hint(ratio: float) -> str:
    if 1.8 <= ratio <= 2.2:
        return "vendors add up both directions: write one direction, half of it"
    if 6.5 <= ratio <= 9.5:
        return "that looks like Gbit/s: write GB/s, an eighth of it"
    if 14 <= ratio <= 18:
        return "that looks like Gbit/s of both directions: write GB/s of one"
    return "write GB/s (1e9 bytes) of one direction"


def level_slips(level: LevelSpec, stated: Collection[str], below: LevelSpec | None, gpu: GpuSpec) -> Iterator[Slip]:
    """Yield what looks wrong in one level of a cluster, of which the file states some fields, and which joins the one
    below."""
    if below is not None and (level.gpus <= below.gpus or level.gpus % below.gpus):
        message = f"{level.gpus} GPUs at {level.name} is not a multiple of the {below.gpus} at {below.name}"
        yield "gpus", message, "levels go from the innermost out; each joins two or more whole units of the one before"
    if level.fabric == WAN:
        return
    if (level.wan_bytes_per_s, level.round_trip_s) != (0.0, 0.0):
        key = "wan_gbit_per_s" if level.wan_bytes_per_s else "round_trip_ms"
        yield key, f"{level.fabric} has no long lines", 'fabric = "wan" has'
    if level.fabric in NETWORKS:
        yield from _nic_slips(level, stated, first=below is None or below.fabric not in NETWORKS)
    else:
        has = gpu.host_link_bytes_per_s if level.fabric == "pcie" else gpu.link_egress_bytes_per_s
        ratio = level.link_bytes_per_s / has if has else float("inf")
        if ratio > 1.07:
            carry = f"the {level.fabric} links of {gpu.name} carry {has / GB:g} GB/s per direction"
            yield LINK, f"{level.link_bytes_per_s / GB:g} GB/s, but {carry}", _rate_hint(ratio)
    yield from _switch_slips(level, gpu)
    if below is not None and level.egress_bytes_per_s > 1.001 * below.egress_bytes_per_s:
        at, leave = level.egress_bytes_per_s / GB, below.egress_bytes_per_s / GB
        message = f"{at:g} GB/s per GPU at {level.name}, but only {leave:g} leave {below.name} below it"
        yield LINK, message, _rate_hint(at / leave)


def host_slips(host: HostSpec, levels: Sequence[LevelSpec]) -> Iterator[Slip]:
    """Yield what looks wrong in the host of a cluster."""
    box = next((level for level in reversed(levels) if level.fabric not in NETWORKS), levels[0])
    if box.gpus % host.gpus:
        message = f"{host.gpus} GPUs per host do not divide the {box.gpus} of {box.name}"
        yield "gpus", message, "hosts fill the last level inside the box or rack evenly"
    if host.gpus % host.gpus_per_uplink:
        message = f"{host.gpus_per_uplink} GPUs per uplink do not divide the {host.gpus} of a host"
        yield "gpus_per_uplink", message, "count the GPUs behind one PCIe switch; 1 where each has its own link"
    most = _KNOWN["most_host_gb_per_s"]
    if host.memory_bytes_per_s > most * GB * host.gpus:
        message = f"{host.memory_bytes_per_s / GB:g} GB/s for {host.gpus} GPUs"
        hint = f"give GB/s of the host's DRAM, at most {most} per GPU (Grace: 512 per CPU)"
        yield "memory_gb_per_s", message, hint


def _nic_slips(level: LevelSpec, stated: Collection[str], *, first: bool) -> Iterator[Slip]:
    value, rate, per_gpu = level.link_bytes_per_s / GB, level.nic_bytes_per_s / GBIT, level.nics_per_gpu
    if not rate or not {"nics_per_gpu", "nics_per_pcie_switch"} & set(stated):
        if first:
            message = f"{value:g} GB/s, but the level does not say of which network cards"
            hint = "add nics_per_gpu (0.5: two GPUs share a card) and nic_gbit_per_s, so that the rate can be checked"
            yield LINK, message, hint
        return
    expected = per_gpu * rate / 8
    if not any(abs(rate / known - 1) < 0.01 for known in NIC_GBIT_PER_S):
        rates = ", ".join(str(known) for known in NIC_GBIT_PER_S)
        yield "nic_gbit_per_s", f"there is no network card of {rate:g} Gbit/s", f"rates are {rates}; bits, one way"
    elif "link_bytes_per_s" in stated and not 0.97 <= value / expected <= 1.03:
        cards = f"{per_gpu:g} x {rate:g} Gbit/s carry {expected:g} GB/s per direction"
        yield LINK, f"{value:g} GB/s, but {cards}", _rate_hint(value / expected)


def _switch_slips(level: LevelSpec, gpu: GpuSpec) -> Iterator[Slip]:
    key, rate = "switch_gb_per_s_per_direction", level.switch_bytes_per_s / GB
    links = level.gpus * level.link_bytes_per_s / GB
    ratio = level.switches * rate / links
    if ratio > (1.5 if level.fabric in NETWORKS else 3):
        times = f"{ratio:.3g} times what the GPUs' links carry ({links:g} GB/s)"
        hint = "count the ports that face down, one direction, in GB/s (32 x 400 Gbit/s = 1600 GB/s)"
        yield key, f"{level.switches} switches x {rate:g} GB/s are {times}", hint
    if level.switches and not rate:
        yield key, f"{level.switches} switches that carry nothing", "or switches = 0"
    key = "in_network_reduction"
    if level.in_network_reduction and (level.fabric not in {"nvlink", "infiniband"} or not level.switches):
        message = f"{level.fabric} with {level.switches} switches does not reduce in the network"
        yield key, message, "NVSwitch (NVLS) and InfiniBand switches (SHARP) do"
    elif level.in_network_reduction and level.fabric == "nvlink" and gpu.architecture in {"volta", "ampere"}:
        yield key, f"NVSwitch of {gpu.architecture} does not reduce", "NVLS needs Hopper or later"
