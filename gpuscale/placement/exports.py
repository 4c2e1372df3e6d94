"""Ranks and nodes as the text files that launchers and other tools read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuscale.arrays import IntArray
from gpuscale.errors import InputError
from gpuscale.placement.groups import AxisGroups, Degrees, axis_groups, coordinates
from gpuscale.presets.text import read_text
from gpuscale.units import MIB

MAX_HOSTS_BYTES = 64 * MIB

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?", re.ASCII)


def default_hosts(count: int) -> list[str]:
    """Name nodes node0001, node0002, ..."""
    width = max(4, len(str(count)))
    return [f"node{number:0{width}d}" for number in range(1, count + 1)]


def read_hosts(path: Path, needed: int) -> list[str]:
    """Read names of nodes, one per line; empty lines and what follows a `#` do not count.

    Raises:
        InputError: not readable, a line that is no host name, a name given twice, or too few.
    """
    found: dict[str, int] = {}
    text = read_text(path, MAX_HOSTS_BYTES, "a list of hosts", hint="give one host name per line")
    for number, line in enumerate(text.split("\n"), start=1):
        name, where = line.partition("#")[0].strip(), f"{str(path)[:300]}:{number}"
        if not name:
            continue
        if _HOST.fullmatch(name) is None:
            raise InputError(
                f"{name[:60]!r} is not a host name", place=where, hint="give one name per line: letters, digits, . _ -"
            )
        if name in found:
            raise InputError(f"{name[:60]} is given twice", place=where, hint=f"it is in line {found[name]}")
        found[name] = number
    if len(found) < needed:
        raise InputError(
            f"{len(found):,} hosts, but the job needs {needed:,}",
            place=str(path)[:300],
            hint="add hosts, or give fewer --gpus",
        )
    return list(found)[:needed]


def ranks_csv(degrees: Degrees, order: Sequence[str], hosts: Sequence[str], per_host: int, rails: IntArray) -> str:
    """One line per rank: where it runs, its coordinates, and the number of its group along each axis in use."""
    ranks = np.arange(degrees.ranks, dtype=np.int64)
    where = coordinates(degrees, order)
    names = ("tp", "cp", "ep", "dp", "pp", *(("etp", "edp") if degrees.ep * degrees.etp > 1 else ()))
    columns: dict[str, Sequence[object]] = {
        "rank": ranks.tolist(),
        "node": [hosts[index] for index in (ranks // per_host).tolist()],
        "local_gpu": (ranks % per_host).tolist(),
        "rail": rails.tolist(),
        **{name: where[name].tolist() for name in names},
        **{f"{axis}_group": one.group_ids().tolist() for axis, one in axis_groups(degrees, order).items()},
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def groups_csv(axes: Mapping[str, AxisGroups], hosts: Sequence[str], per_host: int, rails: IntArray) -> str:
    """One line per group of every axis: its ranks, and the nodes and rails that they are on."""
    lines = ["axis,group,size,nodes,rails,ranks"]
    for axis, groups in axes.items():
        for number, ranks in enumerate(groups.members().tolist()):
            nodes = [hosts[index] for index in dict.fromkeys(rank // per_host for rank in ranks)]
            used = sorted({int(rails[rank]) for rank in ranks})
            parts = (" ".join(nodes), " ".join(map(str, used)), " ".join(map(str, ranks)))
            lines.append(f"{axis},{number},{groups.size},{','.join(parts)}")
    return "\n".join(lines) + "\n"


def hostfile(hosts: Sequence[str], per_host: int, ranks: int) -> str:
    """Write Open MPI's and DeepSpeed's hostfile: a line `name slots=8` per node."""
    return "".join(f"{host} slots={min(per_host, ranks - per_host * i)}\n" for i, host in enumerate(hosts))


def rankfile(hosts: Sequence[str], per_host: int, ranks: int) -> str:
    """Write Open MPI's rankfile: a line `rank 9=node0002 slot=1` per rank."""
    return "".join(f"rank {rank}={hosts[rank // per_host]} slot={rank % per_host}\n" for rank in range(ranks))


def slurm_hostfile(hosts: Sequence[str], per_host: int, ranks: int) -> str:
    """Write the file that SLURM_HOSTFILE names for `srun --distribution=arbitrary`: the node of each task in turn."""
    return "".join(f"{hosts[rank // per_host]}\n" for rank in range(ranks))


__all__ = ["default_hosts", "groups_csv", "hostfile", "rankfile", "ranks_csv", "read_hosts", "slurm_hostfile"]
