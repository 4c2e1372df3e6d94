"""What a user sets of a cluster beside its file (`--set`, docs/studies.md): single numbers, or what another machine
would have. A key of a level or of the host goes by its beginning, `leaf.link_gb_per_s=40`; `x2` doubles a number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

from gpuscale.choices import MAX_GPUS
from gpuscale.errors import InputError, shown
from gpuscale.presets.files import Document
from gpuscale.presets.hardware import load_gpu
from gpuscale.presets.tables import Table, stated_value
from gpuscale.specs.cluster import INSIDE, SCALE_UP, CalibrationSpec, ClusterSpec, HostSpec, LevelSpec
from gpuscale.units import GB, GIB, unit_of

SETTABLE = Table(
    LevelSpec,
    without=("name", "gpus", "switches", "rails", "pxn", "topology", "torus_shape", "path", "gpus_per_pcie_switch",
             "nics_per_pcie_switch", "wan_bytes_per_s", "round_trip_s"),
    optional=("fabric", "link_bytes_per_s", "switch_bytes_per_s", "hop_latency_s", "in_network_reduction",
              "link_efficiency"),
)  # fmt: skip
"""Keys of a level that a user may set beside the cluster's file."""

_HOST = Table(HostSpec, without=("gpus", "gpus_per_uplink"), optional=("memory_bytes", "memory_bytes_per_s"))

RANK_OVERHEAD, GPU_POWER = "rank_overhead_us", "gpu.power_w"

MOST_TIMES = 1000.0


def with_settings(cluster: ClusterSpec, settings: str) -> ClusterSpec:
    """Return a cluster with what a user sets of it, after commas: the GPU first, the rest in its order. Keys of levels
    are those of a cluster file, in its units, or their beginnings; no slips are looked for. Measured curves of levels
    that change are left out.

    Raises:
        InputError: no such level, key or GPU, a value out of range, or a machine that cannot be.
    """
    if cluster.pools:
        hint = f"write them into a copy of {cluster.name}, or name one pool"
        raise InputError("a cluster of pools takes no settings", field="set", hint=hint)
    changed = cluster
    items = filter(None, (part.strip() for part in settings.split(",")))
    for item in sorted(items, key=lambda one: not one.startswith("gpu=")):
        path, equals, text = (part.strip() for part in item.partition("="))
        if path == "gpu" and text:
            changed = replace(changed, gpu=load_gpu(text))
        elif path.startswith("host.") and text:
            changed = _with_host(changed, path, text)
        elif path in CHANGES and text:
            changed = CHANGES[path](changed, path, text)
        else:
            changed = _with_level(changed, path, text if equals else None, item)
    return replace(changed, calibration=_still_measured(cluster, changed))


def _with_level(cluster: ClusterSpec, path: str, text: str | None, item: str) -> ClusterSpec:
    name, _, key = path.rpartition(".")
    index = next((at for at, level in enumerate(cluster.levels) if level.name == name), None)
    if text is None or index is None:
        levels = ", ".join(level.name for level in cluster.levels)
        hint = (
            f"write LEVEL.KEY=VALUE; the levels of {cluster.name} are {levels}; or set host.KEY, {', '.join(CHANGES)}"
        )
        raise InputError(f"{item[:60]!r} sets nothing of a level", field="set", hint=hint)
    level = cluster.levels[index]
    if key == "gpus":
        return _resized(cluster, index, _whole(path, text, level.gpus))
    full = [one for one in SETTABLE.columns if one.startswith(key)]
    key = key if len(full) != 1 else full[0]
    value, now = stated_value(text), getattr(level, SETTABLE.columns[key][0]) if key in SETTABLE.columns else None
    if isinstance(value, str) and (isinstance(now, float) or (now is not None and _TIMES.fullmatch(text))):
        value = _number(path, text, now, unit_of(key)[1]) / unit_of(key)[1]
    stated = SETTABLE.read(Document(Path("set"), {name: {key: value}}), (name,))
    return _with_levels(cluster, index, replace(level, **stated))


def _with_host(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    if cluster.host is None:
        raise InputError(f"{cluster.name} has no [host] table, of which {path} would be one", field="set")
    key, value = path.removeprefix("host."), stated_value(text)
    name = _HOST.columns[key][0] if key in _HOST.columns else ""
    if name and isinstance(value, str):
        now = getattr(cluster.host, name)
        if not now and _TIMES.fullmatch(text):
            raise InputError(f"{path} is not stated, which leaves nothing to multiply", field="set")
        unit = unit_of(key)[1]
        value = _whole(path, text, now) if isinstance(now, int) else _number(path, text, now, unit) / unit
    stated = _HOST.read(Document(Path("set"), {"host": {key: value}}), ("host",))
    return replace(cluster, host=replace(cluster.host, **{name: stated[name]}))


_TIMES = re.compile(r"x([0-9.eE+-]{1,20})", re.ASCII)


def _number(path: str, text: str, now: object, unit: float = 1.0) -> float:
    """Return a number in SI that is given in a unit, or as a multiple (`x1.5`) of what it is now."""
    times = _TIMES.fullmatch(text)
    value = stated_value(times[1] if times else text)
    if isinstance(value, bool | str) or (times and (isinstance(now, bool) or not isinstance(now, int | float))):
        usual = now / unit if isinstance(now, int | float) and now else 2
        hint = f"write {path}={usual:g}, or {path}=x1.5 to multiply it"
        raise InputError(f"{path} = {shown(text)} is not a number", field="set", hint=hint)
    if times and not 1 / MOST_TIMES <= value <= MOST_TIMES:
        hint = f"multiply by {1 / MOST_TIMES:g} to {MOST_TIMES:g}"
        raise InputError(f"{path} = {shown(text)} is out of range", field="set", hint=hint)
    return value * now if times else value * unit  # type: ignore[operator]


def _whole(path: str, text: str, now: int) -> int:
    value = float(_number(path, text, now))
    if not value.is_integer():
        raise InputError(f"{path} = {shown(text)} is {value:g} GPUs", field="set", hint="give whole GPUs")
    if not 1 <= value <= MAX_GPUS:
        raise InputError(f"{path} = {shown(text)} is out of range", field="set", hint=f"give 1 to {MAX_GPUS:,}")
    return int(value)


def _within(path: str, value: float, low: float, high: float, unit: float = 1.0) -> float:
    if not low <= value <= high:
        hint = f"{low / unit:g} to {high / unit:g} are possible"
        raise InputError(f"{path} = {value / unit:g} is out of range", field="set", hint=hint)
    return value


def _with_levels(cluster: ClusterSpec, first: int, *levels: LevelSpec) -> ClusterSpec:
    """Return a cluster with other levels from an index on."""
    kept = cluster.levels
    return replace(cluster, levels=(*kept[:first], *levels, *kept[first + len(levels) :]))


def _waiting(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    wait_s = _within(path, _number(path, text, cluster.rank_overhead_s, 1e-6), 0, 0.1, 1e-6)
    return replace(cluster, rank_overhead_s=wait_s)


def _power(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    power_w = _within(path, _number(path, text, cluster.gpu.power_w), 10, 10000)
    if power_w > cluster.gpu.power_w:
        limit = f"the {cluster.gpu.power_w:g} W of {cluster.gpu.title}"
        raise InputError(f"{path} = {power_w:g} is above {limit}", field="set")
    return replace(cluster, gpu=cluster.gpu.capped(power_w))


def _memory(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    gpu = cluster.gpu
    size = _within(path, _number(path, text, gpu.memory_bytes, GIB), GIB, 8192 * GIB, GIB)
    datasheet = gpu.memory_datasheet_bytes * size / gpu.memory_bytes
    return replace(cluster, gpu=replace(gpu, memory_bytes=size, memory_datasheet_bytes=datasheet))


def _memory_bandwidth(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    rate = _number(path, text, cluster.gpu.memory_bandwidth_bytes_per_s, GB)
    gpu = replace(cluster.gpu, memory_bandwidth_bytes_per_s=_within(path, rate, 10 * GB, 1e6 * GB, GB))
    return replace(cluster, gpu=gpu)


def _flops(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    if not _TIMES.fullmatch(text):
        message = f"{path} = {shown(text)} does not say of which precision"
        raise InputError(message, field="set", hint=f"multiply all of them: {path}=x1.5")
    peaks = {name: _number(path, text, peak) for name, peak in cluster.gpu.peak_flops_per_s.items()}
    return replace(cluster, gpu=replace(cluster.gpu, peak_flops_per_s=peaks))


def _networks(cluster: ClusterSpec, path: str) -> range:
    """Return the indices of the levels between nodes."""
    first = cluster.domain_index + (cluster.levels[cluster.domain_index].fabric in INSIDE)
    if first == len(cluster.levels):
        hint = "take a cluster with a network (`gpuscale show clusters`)"
        raise InputError(f"{path}: {cluster.name} has no level between nodes", field="set", hint=hint)
    return range(first, len(cluster.levels))


def _network(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    levels = _networks(cluster, path)
    factor = _within(path, _number(path, text, 1.0), 0.01, 100)
    carried = ("link_bytes_per_s", "switch_bytes_per_s", "nic_bytes_per_s", "global_bytes_per_s")
    faster = (
        replace(level, **{name: getattr(level, name) * factor for name in carried})
        for level in (cluster.levels[index] for index in levels)
    )
    return _with_levels(cluster, levels[0], *faster)


def _nics(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    levels = _networks(cluster, path)
    now = cluster.levels[levels[0]].nics_per_gpu
    factor = _within(path, _number(path, text, now), 1 / 64, 16) / now
    return _with_levels(cluster, levels[0], *(_more_cards(cluster.levels[index], factor) for index in levels))


def _more_cards(level: LevelSpec, factor: float) -> LevelSpec:
    """Return a level with more cards of each GPU, and as many more switches behind them."""
    switches = ceil(level.switches * factor)
    each = level.switch_bytes_per_s * level.switches * factor / switches if switches else level.switch_bytes_per_s
    behind = level.nics_per_pcie_switch * factor
    return replace(
        level, link_bytes_per_s=level.link_bytes_per_s * factor, switches=switches, switch_bytes_per_s=each,
        nics_per_gpu=level.nics_per_gpu * factor, global_bytes_per_s=level.global_bytes_per_s * factor,
        nics_per_pcie_switch=round(behind) if behind >= 1 else 0,
    )  # fmt: skip


def _oversubscription(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    index = _networks(cluster, path)[-1]
    level = cluster.levels[index]
    if level.torus_shape or level.global_bytes_per_s or level.topology == "mesh":
        hint = f"set {level.name}.link_gb_per_s, or network=x0.5"
        raise InputError(f"{path}: no switches join the units of {level.name}", field="set", hint=hint)
    ratio = _within(path, _number(path, text, level.link_bytes_per_s / level.egress_bytes_per_s), 1, 1000)
    switches = level.switches or 1
    each = level.gpus * level.link_bytes_per_s / ratio / switches
    return _with_levels(cluster, index, replace(level, switches=switches, switch_bytes_per_s=each))


def _domain(cluster: ClusterSpec, path: str, text: str) -> ClusterSpec:
    inner = cluster.levels[0]
    if inner.fabric not in SCALE_UP or cluster.domain_index:
        what = " and ".join(level.name for level in cluster.levels[: cluster.domain_index + 1])
        message = f"{path}: the GPUs of a node of {cluster.name} are joined by {what}, not by one NVLink level"
        raise InputError(message, field="set", hint="take a cluster with one, such as gb200-nvl72")
    if not inner.switches and inner.topology != "switched":
        hint = "take a cluster with switches, such as dgx-h100-superpod"
        raise InputError(f"{path}: no switches join the GPUs of {inner.name}", field="set", hint=hint)
    return _resized(cluster, 0, _whole(path, text, inner.gpus))


def _resized(cluster: ClusterSpec, index: int, gpus: int) -> ClusterSpec:
    """Return a cluster with another size of a level, the same bandwidth per GPU, and whole levels above it: each
    rounded up to whole units of the one below; one that would join a single unit is left out, and the outermost joins
    two at least."""
    level, below = cluster.levels[index], cluster.levels[index - 1].gpus if index else 1
    if gpus == level.gpus:
        return cluster
    for one in cluster.levels[index:]:
        if one.torus_shape or one.global_bytes_per_s:
            hint = "take a cluster of switches"
            raise InputError(f"{one.name} of {cluster.name} has the size of its shape", field="set", hint=hint)
    if gpus % below or (index and gpus < 2 * below):
        hint = f"give a multiple of {below}, {2 * below} at least"
        raise InputError(f"{level.name} of {gpus:,} GPUs joins no whole units of {below}", field="set", hint=hint)
    levels = [level.resized(gpus)]
    for one in cluster.levels[index + 1 :]:
        unit, last = levels[-1].gpus, one is cluster.levels[-1]
        wide = max(ceil(one.gpus / unit), 1 + last) * unit
        if wide > MAX_GPUS:
            raise InputError(f"{one.name} would have {wide:,} GPUs", field="set", hint=f"at most {MAX_GPUS:,}")
        if wide > unit:
            levels.append(one.resized(wide))
    host = cluster.host if index or cluster.host is None else _host_of(cluster.host, level, gpus)
    return replace(cluster, levels=(*cluster.levels[:index], *levels), host=host)


def _host_of(host: HostSpec, level: LevelSpec, gpus: int) -> HostSpec:
    """Return the host of a domain: as it is where several fill one, else the part that has as many GPUs."""
    if gpus % host.gpus == 0:
        return host
    if host.gpus % gpus:
        hint = f"give a divisor of {host.gpus}, or a multiple"
        raise InputError(f"{level.name} of {gpus:,} GPUs has no whole hosts of {host.gpus}", field="set", hint=hint)
    part = gpus / host.gpus
    return replace(
        host, gpus=gpus, gpus_per_uplink=min(host.gpus_per_uplink, gpus), memory_bytes=host.memory_bytes * part,
        memory_bytes_per_s=host.memory_bytes_per_s * part,
    )  # fmt: skip


CHANGES: dict[str, Callable[[ClusterSpec, str, str], ClusterSpec]] = {
    "network": _network, "nics": _nics, "oversubscription": _oversubscription, "domain": _domain,
    "gpu.memory_gib": _memory, "gpu.memory_gb_per_s": _memory_bandwidth, "gpu.flops": _flops, GPU_POWER: _power,
    RANK_OVERHEAD: _waiting,
}  # fmt: skip
"""What may be set beside keys of levels -> how."""


def _still_measured(before: ClusterSpec, after: ClusterSpec) -> tuple[CalibrationSpec, ...]:
    """Return the measured curves of levels that are as they were, with all below them."""
    same = 0
    for one, other in zip(before.levels, after.levels, strict=False):
        if one != other:
            break
        same += 1
    names = {level.name for level in before.levels[:same]}
    return tuple(one for one in before.calibration if one.level in names)
