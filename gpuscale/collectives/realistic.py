"""The default model: NCCL's own cost structure, with latency, link efficiency and measured corrections.

For each algorithm (ring, tree, NVLS, tree of NVLS domains, switch reduction across the network, PAT) and protocol (LL,
LL128, Simple)

    time = latency(steps, hops) + bus bytes / bandwidth + steps * overhead * S / (S + knee)

and the least of them is taken, as NCCL's tuner does. The first two terms are NCCL's (src/graph/tuning.cc); the last is
the measured excess of Simple-protocol pipelines between 1 MiB and 1 GiB, which NCCL's selector leaves out. Every term
rises with the bytes and falls with bandwidth, so the minimum does too.
"""

from __future__ import annotations

from gpuscale.arrays import FloatArray
from gpuscale.collectives import exchange, nvls, rings
from gpuscale.collectives.groups import exchanged
from gpuscale.collectives.network import Network, positive
from gpuscale.collectives.operations import bus_factor
from gpuscale.collectives.terms import Route

_AR = "allreduce"


def routes(net: Network, operation: str) -> list[Route]:
    """Return every algorithm and protocol for `operation`; a route takes inf where it cannot run."""
    if operation == _AR:
        return rings.ring(net, passes=2) + rings.tree(net) + nvls.allreduce(net)
    if operation in {"allgather", "reducescatter"}:
        return rings.ring(net, passes=1) + nvls.gather(net) + rings.pat(net)
    if operation == "alltoall":
        return exchange.all_to_all(net)
    return exchange.send_receive(net) if operation == "sendrecv" else exchange.chain(net)


def level_times_s(net: Network, operation: str, data: FloatArray, algorithm: str) -> FloatArray:
    """Return what the bytes of `algorithm` alone take at each level [s], shape (L, N); 0 where none cross."""
    n, groups, network = net.groups.size, net.groups, slice(net.domain + 1, None)
    if operation == "alltoall":
        even: FloatArray = data * (groups.inner - groups.inner**2 / n) / net.level_bytes_per_s
        return exchanged(data, net.exchange_s_per_byte, even) * net.busiest
    if operation == "sendrecv":
        alone: FloatArray = data * groups.inner / net.level_bytes_per_s
        return alone
    times = data * bus_factor(operation, n) / net.level_bytes_per_s
    if algorithm.startswith("NVLS") and operation == _AR:
        times[: net.domain + 1] = data * bus_factor(operation, n) / positive(nvls.bus_bytes_per_s(net))
    if algorithm == "NVLS+SHARP" or (operation == _AR and algorithm != "ring" and net.nodes.max() <= 2):
        times[network] /= 2
    return times
