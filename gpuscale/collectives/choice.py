"""Which algorithm and protocol runs one collective: the fastest, as NCCL's tuner has it, or the one asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from gpuscale.collectives.channels import channels_of
from gpuscale.collectives.network import Network
from gpuscale.collectives.realistic import routes
from gpuscale.collectives.terms import Block, Route
from gpuscale.collectives.tuning import NVLS_SINCE, NVLS_TREE_SINCE, PAT_SINCE, version_text
from gpuscale.errors import InputError

ALGORITHMS = {
    "ring": ("ring",),
    "tree": ("tree",),
    "nvls": ("NVLS",),
    "nvls-tree": ("NVLS tree",),
    "collnet": ("NVLS+SHARP",),
    "pat": ("PAT",),
    "pairwise": ("point-to-point",),
    "hierarchical": ("hierarchical",),
    "deepep": ("DeepEP",),
}
"""What `NCCL_ALGO` calls it (pairwise: grouped sends and receives) -> routes of the model; collnet is SHARP.

The last two are no algorithms of NCCL and never chosen by themselves: `gpuscale.collectives.dispatch`."""

SINCE = {"nvls": NVLS_SINCE, "nvls-tree": NVLS_TREE_SINCE, "collnet": NVLS_TREE_SINCE, "pat": PAT_SINCE}
"""The version of NCCL that brought an algorithm (`collnet`: NVLS with SHARP)."""

PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
"""What `NCCL_PROTO` calls it -> protocol of a route."""


@dataclass(frozen=True)
class Option:
    """One way to run one collective.

    Attributes:
        latency_s: part of the time that does not depend on the bytes [s].
        time_s: all of it [s].
        channels: CTAs that it takes; 0 where the model does not know.
        channels_s: what these channels alone need for the bytes; 0 where they are no limit [s].
    """

    algorithm: str
    protocol: str
    latency_s: float
    time_s: float
    channels: int = 0
    channels_s: float = 0.0

    @property
    def name(self) -> str:
        """Algorithm and protocol: `ring LL128`."""
        return f"{self.algorithm} {self.protocol}".strip()


def title(net: Network, route: Route) -> str:
    """Name the algorithm of a route of one group; NVLS over several domains is a tree of them."""
    return "NVLS tree" if route.algorithm == "NVLS" and net.nodes[0] > 1 else route.algorithm


def possible(net: Network, operation: str, data: float) -> list[Option]:
    """Return the ways to run one collective of `data` bytes over one group, fastest first."""
    found = []
    block = Block(np.array([data]), slice(None))
    for route in routes(net, operation):
        time_s = float(route.seconds(block)[0])
        if np.isfinite(time_s):
            latency_s = float(block.once(route.latency)[0])
            channels_s = float(block.once(route.channels)[0]) if route.channels else 0.0
            count = channels_of(net, route.algorithm, data if operation == "sendrecv" else None)
            found.append(Option(title(net, route), route.protocol, latency_s, time_s, count, channels_s))
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
    wanted = known("--algo", algorithm, ALGORITHMS)
    spoken = known("--proto", protocol, PROTOCOLS)
    able = possible(net, operation, data)
    fit = [
        option
        for option in able
        if (wanted is None or option.algorithm in ALGORITHMS[wanted])
        and (spoken is None or option.protocol == PROTOCOLS[spoken])
    ]
    if not fit:
        raise _impossible(net, operation, able, wanted, spoken)
    return fit[0], next((option for option in able if option is not fit[0]), None)


def _impossible(net: Network, operation: str, able: list[Option], wanted: str | None, spoken: str | None) -> InputError:
    hint = f"possible are {', '.join(option.name for option in able)}"
    since = SINCE.get(wanted or "")
    if since and net.nccl < since:
        message = f"{wanted} came with NCCL {version_text(since)}, this is {version_text(net.nccl)}"
    else:
        asked = " with ".join(part for part in (wanted, PROTOCOLS[spoken] if spoken else None) if part)
        message = f"{asked} cannot run {operation} over {int(net.groups.size[0]):,} GPUs in {_units(net)}"
    return InputError(message, place="--algo" if wanted else "--proto", hint=hint)


def _units(net: Network) -> str:
    nodes = int(net.nodes[0])
    return f"{nodes:,} nodes" if nodes > 1 else "one node"


def known(option: str, text: str | None, names: Collection[str]) -> str | None:
    """Return the name that an option gives, in lower case; None where it is left out.

    Raises:
        InputError: no such name.
    """
    if text is None or text.lower() in names:
        return text.lower() if text else None
    raise InputError(f"unknown name {text[:40]!r}", place=option, hint=f"there are {', '.join(names)}")
