"""Which algorithm and protocol runs one collective: the fastest, as NCCL's tuner has it, or the one asked for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscale.collectives.groups import Floats
from gpuscale.collectives.realistic import Network, Route, routes
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


def title(net: Network, route: Route) -> str:
    """Name the algorithm of a route of one group; NVLS over several domains is a tree of them."""
    return "NVLS tree" if route.algorithm == "NVLS" and net.nodes[0] > 1 else route.algorithm


def name(net: Network, route: Route) -> str:
    """Name algorithm and protocol of a route of one group: `ring LL128`."""
    return f"{title(net, route)} {route.protocol}"


def possible(net: Network, operation: str, data: Floats) -> list[Route]:
    """Return the routes that can run one collective of one group, fastest first."""
    able = [route for route in routes(net, operation, data) if np.isfinite(route.time_s[0])]
    return sorted(able, key=lambda route: float(route.time_s[0]))


def choose(
    net: Network, operation: str, data: Floats, algorithm: str | None = None, protocol: str | None = None
) -> tuple[Route, Route | None]:
    """Return the route that runs, and the fastest of the others (None where there is no other).

    Args:
        algorithm: one of `ALGORITHMS`; None leaves the choice to the model.
        protocol: one of `PROTOCOLS`; None leaves the choice to the model.

    Raises:
        InputError: no such name, or none that can run this operation on these GPUs has it.
    """
    wanted = _known("--algo", algorithm, ALGORITHMS)
    spoken = _known("--proto", protocol, PROTOCOLS)
    able = possible(net, operation, data)
    fit = [
        route
        for route in able
        if (wanted is None or title(net, route) in ALGORITHMS[wanted])
        and (spoken is None or route.protocol == PROTOCOLS[spoken])
    ]
    if not fit:
        asked = " with ".join(part for part in (wanted, PROTOCOLS[spoken] if spoken else None) if part)
        raise InputError(
            f"{asked} cannot run {operation} over {int(net.groups.size[0]):,} GPUs in {_units(net)}",
            place="--algo" if wanted else "--proto",
            hint=f"possible are {', '.join(name(net, route) for route in able)}",
        )
    return fit[0], next((route for route in able if route is not fit[0]), None)


def _units(net: Network) -> str:
    nodes = int(net.nodes[0])
    return f"{nodes:,} nodes" if nodes > 1 else "one node"


def _known(option: str, text: str | None, names: Collection[str]) -> str | None:
    if text is None or text.lower() in names:
        return text.lower() if text else None
    raise InputError(f"unknown name {text[:40]!r}", place=option, hint=f"there are {', '.join(names)}")
