"""`ibstat` and `ibstatus`, the ports of one host's cards, and `ibnetdiscover`, all of an InfiniBand subnet.

`ibnetdiscover` lists every switch and channel adapter (CA) and the cables between them. Switches get a rank by their
distance from the hosts: leaf switches are 0. What the switches of a rank join without help from above is one instance
of that level; a rail-optimised pod with eight leaf switches for the same nodes is one leaf instance of eight switches.
Cycles do no harm: ranks are distances. Cables among the topmost switches (two switches side by side, rings,
dragonflies) make a last level, if they join more hosts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from gpuscale.importers.facts import IBNETDISCOVER, IBSTAT, MAX_NAME, Facts, SourceFile, Tier, root, shown
from gpuscale.importers.slurm import MAX_TIERS, TIER_NAMES, usual_size
from gpuscale.units import plural

MAX_PORTS = 1024
MAX_DEVICES = 100_000

IBSTAT_CARD = re.compile(r"\s*(?:CA '|Infiniband device ')([^']{1,200})'(?:.*port (\d{1,3}))?")
SUBNET_DEVICE = re.compile(
    r"(Switch|Ca|Rt)\s+([0-9]{1,4})\s+\"([SHR]-[0-9a-fA-F]{1,20})\"(?:\s*#\s*\"([^\"]{0,200})\")?"
)
_PORT = re.compile(r"\s*Port ([0-9]{1,3}):\s*$")
_FIELD = re.compile(r"\s*(State|state|Rate|rate|Link layer|link_layer):\s+(.{1,100}?)\s*$")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?)(?: Gb/sec.*)?")
_CABLE = re.compile(
    r"\[([0-9]{1,4})\](?:\([0-9a-fA-F]{1,20}\))?(?:\[ext [0-9]{1,4}\])?\s+"
    r"\"([SHR]-[0-9a-fA-F]{1,20})\"\[([0-9]{1,4})\]"
)
_SPEED = re.compile(r"\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_LANE_GBIT = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
"""Gbit/s of one lane, as the rates are named (4x EDR is 100)."""

_WHOLE_IBSTAT = "save the whole output of one host: ibstat > ibstat.txt"
_WHOLE_SUBNET = "save the whole output: ibnetdiscover > fabric.txt"


def parse_ibstat(source: SourceFile) -> Facts:
    """Return how many active ports have the highest rate, that rate, and their network.

    Raises:
        InputError: no port is active, or a rate is missing.
    """
    ports = _ports(source)
    active = [port for port in ports if "active" in port.get("state", "").lower()]
    if not active:
        message = f"none of {len(ports)} ports is active, so no rate can be read"
        raise source.error(int(ports[0]["line"]) if ports else 1, message, _WHOLE_IBSTAT)
    rates = [float(port.get("rate", 0)) for port in active]
    best = max(rates)
    if not min(rates):
        mute = active[rates.index(0.0)]
        message = f"{mute['card']} is active without a rate: the file is cut"
        raise source.error(int(mute["line"]), message, _WHOLE_IBSTAT)
    fast = [port for port, rate in zip(active, rates, strict=True) if rate == best]
    line, left = int(fast[0]["line"]), len(ports) - len(fast)
    ethernet = all(port.get("link layer", "").lower() == "ethernet" for port in fast)
    fabric, layer = ("roce", "Ethernet") if ethernet else ("infiniband", "InfiniBand")
    note = f"{source.name}: {left} of {len(ports)} ports are down or slower and left out"
    return Facts(
        file=source.name,
        kind=IBSTAT,
        nics=source.stated(line, len(fast), f"{len(fast)} active ports of {best:g} Gbit/s"),
        nic_gbit_per_s=source.stated(line, best, f"Rate: {best:g} ({fast[0]['card']})"),
        nic_fabric=source.stated(line, fabric, f"Link layer: {layer}"),
        notes=(note,) if left else (),
    )


def _ports(source: SourceFile) -> list[dict[str, str]]:
    """Return `card`, `line`, `state`, `rate` [Gbit/s] and `link layer` of each port, as listed."""
    ports: list[dict[str, str]] = []
    card = ""
    for number, line in enumerate(source.lines, 1):
        start = IBSTAT_CARD.match(line)
        card = shown(start[1], MAX_NAME) if start else card
        if _PORT.match(line) or (start and start[2]):
            if len(ports) >= MAX_PORTS:
                raise source.error(number, f"more than {MAX_PORTS} ports, the limit for one host")
            ports.append({"card": card, "line": str(number)})
        elif ports and (found := _FIELD.match(line)):
            key, text = found[1].lower().replace("_", " "), found[2]
            rate = _RATE.fullmatch(text)
            if key == "rate" and rate is None:
                raise source.error(number, f"Rate {shown(text, 30)!r} is not a number of Gbit/s")
            ports[-1][key] = rate[1] if rate else text
    return ports


@dataclass
class _Device:
    """A switch (`Switch`), channel adapter (`Ca`) or router of a subnet; `cables`: port -> (far end, Gbit/s)."""

    kind: str
    line: int
    name: str
    cables: dict[int, tuple[str, float]] = field(default_factory=dict)


Devices = dict[str, _Device]


def parse_subnet(source: SourceFile) -> Facts:
    """Return the levels, their switches and what these forward, and the ports of a host.

    Raises:
        InputError: a cable without a rate, no switches or hosts, or hosts that carry no names.
    """
    devices = _devices(source)
    notes: list[str] = []
    every = _hosts(source, devices, notes)
    ends = {guid: {peer for peer, _ in device.cables.values()} for guid, device in devices.items()}
    for guid, device in devices.items():  # every cable is known at both ends, also when one of them was not listed
        for peer, rate in list(device.cables.values()):
            if peer in devices and guid not in ends[peer]:
                other = devices[peer].cables
                other[-len(other) - 1] = (guid, rate)
    rates = [(guid, rate) for guid in every for _, rate in devices[guid].cables.values()]
    best = max(rate for _, rate in rates)
    per_host = Counter(every[guid] for guid, rate in rates if rate == best)
    ports = usual_size(list(per_host.values()))
    hosts = {guid: host for guid, host in every.items() if per_host[host] == ports}
    others = len(set(every.values())) - len(set(hosts.values()))
    if others:
        said = f"{plural(others, 'host')} without {ports} ports of {best:g} Gbit/s left out: no GPU nodes"
        notes.append(f"{source.name}: {said}")
    ranks = _ranks(source, devices, hosts)
    tiers, joined = _tiers(source, devices, hosts, ranks, notes)
    if not tiers:
        message = f"hosts: {len(set(hosts.values()))}, none joined to another: there is no network"
        raise source.error(None, message, _WHOLE_SUBNET)
    text = f"{len(set(hosts.values()))} hosts with {ports} ports of {best:g} Gbit/s"
    return Facts(
        file=source.name,
        kind=IBNETDISCOVER,
        nics=source.stated(None, ports, text),
        nic_gbit_per_s=source.stated(None, best, text),
        nic_fabric=source.stated(None, "infiniband", "an InfiniBand subnet"),
        tiers=source.stated(None, tuple(tiers), f"{len(ranks)} switches, {joined} hosts"),
        notes=tuple(notes),
    )


def _devices(source: SourceFile) -> Devices:
    devices: Devices = {}
    current: _Device | None = None
    for number, line in enumerate(source.lines, 1):
        header = SUBNET_DEVICE.match(line)
        if header:
            if len(devices) >= MAX_DEVICES:
                raise source.error(number, f"more than {MAX_DEVICES:,} devices, the limit")
            if header[3] in devices:
                raise source.error(number, f"{header[3]} is listed twice (first on line {devices[header[3]].line})")
            current = devices[header[3]] = _Device(header[1], number, header[4] or "")
        elif line.startswith("["):
            cable = _CABLE.match(line)
            if cable is None or current is None:
                raise source.error(number, f"{shown(line, 50)!r} is not a cable of ibnetdiscover", _WHOLE_SUBNET)
            speed = _SPEED.search(line, cable.end())
            if speed is None:
                message = "a cable without a rate such as 4xNDR: the line is cut off"
                raise source.error(number, message, _WHOLE_SUBNET)
            current.cables[int(cable[1])] = (cable[2], int(speed[1]) * _LANE_GBIT[speed[2]])
    if not any(device.kind == "Switch" for device in devices.values()):
        raise source.error(None, "no switches: there is no network", _WHOLE_SUBNET)
    return devices


def _hosts(source: SourceFile, devices: Devices, notes: list[str]) -> dict[str, str]:
    """Return each CA's host, the first word of its description; aggregation nodes (SHARP) are none."""
    hosts: dict[str, str] = {}
    aggregators = 0
    for guid, device in devices.items():
        if device.kind == "Ca" and "Aggregation Node" in device.name:
            aggregators += 1
        elif device.kind == "Ca" and device.cables:
            words = device.name.replace("'", " ").split()
            if not words or re.search(r"MT[0-9]{4,6}\b|ConnectX|Mellanox", words[0]):
                message = f"the channel adapter {guid} is called {shown(device.name, 40)!r}, which names no host"
                hint = "let the hosts set their node descriptions (rdma-ndd), or give ibnetdiscover a node name map"
                raise source.error(device.line, message, hint)
            hosts[guid] = words[0][:MAX_NAME]
    if not hosts:
        raise source.error(None, "no hosts: it lists no channel adapters with cables", _WHOLE_SUBNET)
    if aggregators:
        notes.append(f"{source.name}: {aggregators} aggregation nodes: its switches could reduce in-network (SHARP)")
    return hosts


def _ranks(source: SourceFile, devices: Devices, hosts: dict[str, str]) -> dict[str, int]:
    """Return the rank of each switch: its distance from the nearest host."""
    ranks: dict[str, int] = {}
    edge, rank = [name for guid in hosts for name, _ in devices[guid].cables.values()], 0
    while edge:
        reached = dict.fromkeys(name for name in edge if name in devices and devices[name].kind == "Switch")
        new = [name for name in reached if name not in ranks]
        ranks |= dict.fromkeys(new, rank)
        edge = [peer for name in new for peer, _ in devices[name].cables.values() if peer not in hosts]
        rank += bool(new)
        if rank > MAX_TIERS:
            raise source.error(devices[new[0]].line, f"more than {MAX_TIERS} levels of switches above the hosts")
    if not ranks:
        raise source.error(None, "no host has a cable to a switch of this listing", _WHOLE_SUBNET)
    return ranks


def _tiers(
    source: SourceFile, devices: Devices, hosts: dict[str, str], ranks: dict[str, int], notes: list[str]
) -> tuple[list[Tier], int]:
    """Return the levels, and the hosts that the last joins; above the last rank, cables among its switches count."""
    owner: dict[str, str] = {}
    tiers: list[Tier] = []
    unit, joined, last = 1, 0, max(ranks.values())
    names = sorted(set(hosts.values()))
    for rank in range(last + 2):
        down: dict[str, float] = {}  # what the ports of each switch that face down carry [GB/s]
        for name in (name for name, value in ranks.items() if value == min(rank, last)):
            down[name] = 0.0
            for peer, rate in devices[name].cables.values():
                if peer in hosts if rank == 0 else ranks.get(peer) == rank - 1:
                    down[name] += rate / 8
                    owner[root(owner, hosts.get(peer, peer))] = root(owner, name)
        sizes = Counter(root(owner, host) for host in names)
        members: dict[str, list[str]] = defaultdict(list)
        for name in down:
            members[root(owner, name)].append(name)
        counts = [sizes[key] for key in members if key in sizes]
        usual = usual_size(counts or [0])
        fitting = usual // unit * unit
        if fitting < 2 * unit:
            continue
        if len(set(counts)) > 1:
            text = f"switches of rank {rank} join {min(counts)} to {max(counts)} hosts"
            notes.append(f"{source.name}: {text}; a level has one size, so {fitting} is taken")
        chosen = members[min(key for key in members if sizes[key] == usual)]
        gb_per_s = math.fsum(down[name] for name in chosen) / len(chosen) * fitting / usual
        text = f"{source.name}: {len(chosen)} switches of rank {rank} join {usual} hosts, {gb_per_s:g} GB/s down each"
        tiers.append(Tier(TIER_NAMES[len(tiers)], fitting, len(chosen), gb_per_s, text))
        unit, joined = fitting, usual
    if tiers and joined < len(names) // unit * unit:
        notes.append(f"{source.name}: its cables join {joined} of {len(names)} hosts at most; the rest is separate")
    return tiers, joined
