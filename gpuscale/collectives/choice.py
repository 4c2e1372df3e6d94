"""Which algorithm and protocol runs one collective: the fastest, as NCCL's tuner has it, or the one asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from gpuscale.collectives.network import Network
from gpuscale.collectives.realistic import routes
from gpuscale.collectives.terms import Block, Route
from gpuscale.errors import InputError

ALGORITHMS = {
    "ring": ("ring",),
    "tree": ("tree",),
    "nvls": ("NVLS",),
    "nvls-tree": ("NVLS tree",),
    "collnet": ("NVLS+SHARP",),
    "pat": ("PAT",),
    "pairwise": ("point-to-point",),
}
"""What `NCCL_ALGO` calls it (pairwise: grouped sends and receives) -> routes of the model; collnet is SHARP."""

PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
"""What `NCCL_PROTO` calls it -> protocol of a route."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run one collective.

    Attributes:
        latency_s: part of the time that does not depend on the bytes [s].
        time_s: all of it [s].
    """

    algorithm: str
    protocol: str
    latency_s: float
    time_s: float

    @property
    def name(self) -> str:
        """Algorithm and protocol: `ring LL128`."""
        return f"{self.algorithm} {self.protocol}"


def title(net: Network, route: Route) -> str:
    """Name the algorithm of a route of one group; NVLS over several domains is a tree of them."""
    return "NVLS tree" if route.algorithm == "NVLS" and net.nodes[0] > 1 else route.algorithm


def possible(net: Network, operation: str, data: float) -> list[Option]:
    """Return the ways to run one collective of `data` bytes over one group, fastest first."""
    found = []
    block = Block(np.array([data]), slice(None))
    for route in routes(net, operation):
        time_s, latency_s = float(route.seconds(block)[0]), float(block.once(route.latency)[0])
        if np.isfinite(time_s):
            found.append(Option(title(net, route), route.protocol, latency_s, time_s))
    return sorted(found, key=lambda option: option.time_s)


def choose(
    net: Network, operation: str, data: float, algorithm: str | None = None, protocol: str | None = None
) -> tuple[Option, Option | None]:
    """Return what runs, and the fastest of the others (None where there is no other).

    Args:
        data: bytes of the collective.
        algorithm: one of `ALGORITHMS`; None leaves the choice to the model.
        protocol: one of `PROTOCOLS`; None leaves the choice to the model.

    Raises:
        InputError: no such name, or none that can run this operation on these GPUs has it.
    """
    wanted = _known("--algo", algorithm, ALGORITHMS)
    spoken = _known("--proto", protocol, PROTOCOLS)
    able = possible(net, operation, data)
    fit = [
        option
        for option in able
        if (wanted is None or option.algorithm in ALGORITHMS[wanted])
        and (spoken is None or option.protocol == PROTOCOLS[spoken])
    ]
    if not fit:
        asked = " with ".join(part for part in (wanted, PROTOCOLS[spoken] if spoken else None) if part)
        raise InputError(
            f"{asked} cannot run {operation} over {int(net.groups.size[0]):,} GPUs in {_units(net)}",
            place="--algo" if wanted else "--proto",
            hint=f"possible are {', '.join(option.name for option in able)}",
        )
    return fit[0], next((option for option in able if option is not fit[0]), None)


def _units(net: Network) -> str:
    nodes = int(net.nodes[0])
    return f"{nodes:,} nodes" if nodes > 1 else "one node"


def _known(option: str, text: str | None, names: Collection[str]) -> str | None:
    if text is None or text.lower() in names:
        return text.lower() if text else None
    raise InputError(f"unknown name {text[:40]!r}", place=option, hint=f"there are {', '.join(names)}")
