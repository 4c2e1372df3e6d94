"""`ibnetdiscover`: every switch and channel adapter (CA) of an InfiniBand subnet, and the cables between them.

Switches get a rank by their distance from the hosts: leaf switches are 0. What the switches of a rank join without help
from above is one instance of that level; a rail-optimised pod with eight leaf switches for the same nodes is one leaf
instance of eight switches. Cycles do no harm: ranks are distances. Cables among the topmost switches (two switches
side by side, rings, dragonflies) make a last level, if they join more hosts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gpuscale.importers.facts import Facts, Stated, Tier
from gpuscale.importers.source import MAX_NAME, SourceFile, shown
from gpuscale.importers.switch_tree import MAX_TIERS, NAMES, usual_size

KIND = "the subnet of `ibnetdiscover`"
MAX_DEVICES = 100_000
HEADER = re.compile(r"(Switch|Ca|Rt)\s+([0-9]{1,4})\s+\"([SHR]-[0-9a-fA-F]{1,20})\"(?:\s*#\s*\"([^\"]{0,200})\")?")
_CABLE = re.compile(
    r"\[([0-9]{1,4})\](?:\([0-9a-fA-F]{1,20}\))?(?:\[ext [0-9]{1,4}\])?\s+"
    r"\"([SHR]-[0-9a-fA-F]{1,20})\"\[([0-9]{1,4})\]"
)
_SPEED = re.compile(r"\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_LANE_GBIT = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
"""Gbit/s of one lane, as the rates are named (4x EDR is 100)."""

_DEFAULT_NAME = re.compile(r"MT[0-9]{4,6}\b|ConnectX|Mellanox")
_HINT = "save the whole output: ibnetdiscover > fabric.txt"


@dataclass
class _Device:
    kind: str
    line: int
    name: str
    cables: dict[int, tuple[str, float]] = field(default_factory=dict)


def parse(source: SourceFile) -> Facts:
    """Return the levels, their switches and what these forward, and the ports of a host.

    Raises:
        InputError: a cable without a rate, no switches or hosts, or hosts that carry no names.
    """
    devices = _read(source)
    notes: list[str] = []
    hosts = _hosts(source, devices, notes)
    _complete(devices)
    hosts, ports, best = _compute_hosts(source, devices, hosts, notes)
    ranks = _ranks(source, devices, hosts)
    tiers, joined = _tiers(source, devices, hosts, ranks, notes)
    if not tiers:
        raise source.error(None, f"hosts: {len(set(hosts.values()))}, none joined to another: no network", _HINT)
    text = f"{source.name}: {len(set(hosts.values()))} hosts with {ports} ports of {best:g} Gbit/s"
    return Facts(
        file=source.name,
        kind=KIND,
        nics=Stated(ports, text),
        nic_gbit_per_s=Stated(best, text),
        nic_fabric=Stated("infiniband", f"{source.name}: an InfiniBand subnet"),
        tiers=Stated(tuple(tiers), f"{source.name}: {len(ranks)} switches, {joined} hosts"),
        notes=tuple(notes),
    )


def _compute_hosts(
    source: SourceFile, devices: dict[str, _Device], hosts: dict[str, str], notes: list[str]
) -> tuple[dict[str, str], int, float]:
    """Return the hosts with the usual number of ports of the highest rate, that number and that rate."""
    rates = [(name, rate) for name in hosts for _, rate in devices[name].cables.values()]
    best = max(rate for _, rate in rates)
    per_host = Counter(hosts[name] for name, rate in rates if rate == best)
    ports = usual_size(list(per_host.values()))
    kept = {name: host for name, host in hosts.items() if per_host[host] == ports}
    others = len(set(hosts.values())) - len(set(kept.values()))
    if others:
        notes.append(f"{source.name}: {others} hosts without {ports} ports of {best:g} Gbit/s left out: no GPU nodes")
    return kept, ports, best


def _read(source: SourceFile) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, line in enumerate(source.lines, 1):
        header = HEADER.match(line)
        if header:
            if len(devices) >= MAX_DEVICES:
                raise source.error(number, f"more than {MAX_DEVICES:,} devices, the limit")
            if header[3] in devices:
                raise source.error(number, f"{header[3]} is listed twice (first on line {devices[header[3]].line})")
            current = devices[header[3]] = _Device(header[1], number, header[4] or "")
            continue
        if not line.startswith("["):
            continue
        cable = _CABLE.match(line)
        if cable is None or current is None:
            raise source.error(number, f"{shown(line, 50)!r} is not a cable of ibnetdiscover", _HINT)
        speed = _SPEED.search(line, cable.end())
        if speed is None:
            raise source.error(number, "a cable without a rate such as 4xNDR: the line is cut off", _HINT)
        current.cables[int(cable[1])] = (cable[2], int(speed[1]) * _LANE_GBIT[speed[2]])
    if not any(device.kind == "Switch" for device in devices.values()):
        raise source.error(None, "no switches: it describes no network", _HINT)
    return devices


def _hosts(source: SourceFile, devices: dict[str, _Device], notes: list[str]) -> dict[str, str]:
    """Return the host of each CA: the first word of its description; aggregation nodes (SHARP) are none."""
    hosts: dict[str, str] = {}
    aggregators = 0
    for guid, device in devices.items():
        if device.kind != "Ca":
            continue
        if "Aggregation Node" in device.name:
            aggregators += 1
            continue
        if not device.cables:
            continue
        words = device.name.replace("'", " ").split()
        if not words or _DEFAULT_NAME.search(words[0]):
            message = f"the channel adapter {guid} is called {shown(device.name, 40)!r}, which names no host"
            hint = "let the hosts set their node descriptions (rdma-ndd), or use --node-name-map"
            raise source.error(device.line, message, hint)
        hosts[guid] = words[0][:MAX_NAME]
    if not hosts:
        raise source.error(None, "no hosts: it lists no channel adapters with cables", _HINT)
    if aggregators:
        notes.append(f"{source.name}: {aggregators} aggregation nodes: its switches could add up payloads (SHARP)")
    return hosts


def _complete(devices: dict[str, _Device]) -> None:
    """Let every cable be known at both ends, also when one of them was not listed."""
    ends = {guid: {peer for peer, _ in device.cables.values()} for guid, device in devices.items()}
    for guid, device in devices.items():
        for peer, rate in list(device.cables.values()):
            if peer in devices and guid not in ends[peer]:
                other = devices[peer].cables
                other[-len(other) - 1] = (guid, rate)


def _ranks(source: SourceFile, devices: dict[str, _Device], hosts: dict[str, str]) -> dict[str, int]:
    """Return the rank of each switch that hosts reach: its distance from the nearest of them."""
    ranks: dict[str, int] = {}
    edge = [name for guid in hosts for name, _ in devices[guid].cables.values()]
    rank = 0
    while edge:
        found = [name for name in dict.fromkeys(edge) if name in devices and devices[name].kind == "Switch"]
        new = [name for name in found if name not in ranks]
        for name in new:
            ranks[name] = rank
        edge = [peer for name in new for peer, _ in devices[name].cables.values() if peer not in hosts]
        rank += bool(new)
        if rank > MAX_TIERS:
            raise source.error(devices[new[0]].line, f"more than {MAX_TIERS} levels of switches above the hosts")
    if not ranks:
        raise source.error(None, "no host has a cable to a switch of this listing", _HINT)
    return ranks


class _Union:
    """Groups of names that grow together."""

    def __init__(self) -> None:
        self.owner: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return the name that stands for the group of `name`."""
        while self.owner.setdefault(name, name) != name:
            self.owner[name] = self.owner[self.owner[name]]
            name = self.owner[name]
        return name


def _join(
    devices: dict[str, _Device], hosts: dict[str, str], ranks: dict[str, int], rank: int, union: _Union
) -> dict[str, float]:
    """Join what the switches of a rank connect; return what the ports of each that face down carry [GB/s].

    One rank above the last, the switches are those of the last, and their cables among each other count.
    """
    last = max(ranks.values())
    down: dict[str, float] = {}
    for name in (name for name, value in ranks.items() if value == min(rank, last)):
        down[name] = 0.0
        for peer, rate in devices[name].cables.values():
            if peer in hosts if rank == 0 else ranks.get(peer) == rank - 1:
                down[name] += rate / 8
                union.owner[union.root(hosts.get(peer, peer))] = union.root(name)
    return down


def _tiers(
    source: SourceFile, devices: dict[str, _Device], hosts: dict[str, str], ranks: dict[str, int], notes: list[str]
) -> tuple[list[Tier], int]:
    union = _Union()
    tiers: list[Tier] = []
    unit, joined = 1, 0
    for rank in range(max(ranks.values()) + 2):
        down = _join(devices, hosts, ranks, rank, union)
        sizes = Counter(union.root(host) for host in sorted(set(hosts.values())))
        members: dict[str, list[str]] = defaultdict(list)
        for name in down:
            members[union.root(name)].append(name)
        counts = [sizes[key] for key in members if key in sizes]
        usual = usual_size(counts or [0])
        fitting = usual // unit * unit
        if fitting < 2 * unit:
            continue
        if len(set(counts)) > 1:
            text = f"switches of rank {rank} join {min(counts)} to {max(counts)} hosts"
            notes.append(f"{source.name}: {text}; a level has one size, so {fitting} is taken")
        chosen = members[min(key for key in members if sizes[key] == usual)]
        gb_per_s = sum(down[name] for name in chosen) / len(chosen) * fitting / usual
        text = f"{source.name}: {len(chosen)} switches of rank {rank} join {usual} hosts, {gb_per_s:g} GB/s down each"
        tiers.append(Tier(NAMES[len(tiers)], fitting, len(chosen), gb_per_s, text))
        unit, joined = fitting, usual
    total = len(set(hosts.values()))
    if tiers and joined < total // unit * unit:
        notes.append(f"{source.name}: its cables join {joined} of {total} hosts at most; the rest is separate")
    return tiers, joined
