"""Which kind of file it is, by its content."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuscale.importers import (
    ibnetdiscover,
    ibstat,
    nccl_xml,
    nvlink_status,
    slurm_conf,
    slurm_yaml,
    topo_matrix,
)
from gpuscale.importers.facts import Facts
from gpuscale.importers.source import SourceFile, shown

_READERS: dict[str, Callable[[SourceFile], Facts]] = {
    topo_matrix.KIND: topo_matrix.parse,
    nvlink_status.KIND: nvlink_status.parse,
    slurm_conf.KIND: slurm_conf.parse,
    slurm_yaml.KIND: slurm_yaml.parse,
    ibstat.KIND: ibstat.parse,
    ibnetdiscover.KIND: ibnetdiscover.parse,
}
_FOREIGN = (
    (re.compile(r"\s*VM_hostname\s"), "SuperBench's list of hosts and port GUIDs: it has neither rates nor switches"),
    (re.compile(r"\| NVIDIA-SMI "), "the overview of `nvidia-smi`: it says nothing of links"),
    (re.compile(r"\s*Machine \(.*total\)|\s*NUMANode L#"), "hwloc's lstopo, which lists no GPU links"),
    (re.compile(r"=+ ROCm System Management Interface"), "rocm-smi's tables: give RCCL's topology XML instead"),
    (re.compile(r"\s*NodeName=\S"), "Slurm's nodes (slurm.conf, scontrol): give its topology.conf"),
)
_HINT = (
    "it reads NCCL's topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, Slurm's topology.conf and "
    "topology.yaml, `ibstat`, `ibnetdiscover`"
)


def read_facts(source: SourceFile) -> Facts:
    """Return what a file states.

    Raises:
        InputError: of no kind that is known, of two at once, or wrong within its kind.
    """
    start = source.text.lstrip()
    if start.startswith("<"):
        return nccl_xml.parse(source)
    if start.startswith(".TH "):
        raise source.error(1, "a manual page, not a file of the kind that it describes", _HINT)
    kinds = _kinds(source)
    if not kinds:
        line = next((number for number, text in enumerate(source.lines, 1) if text.strip()), 1)
        for pattern, what in _FOREIGN:
            found = next((number for number, text in enumerate(source.lines[:200], 1) if pattern.match(text)), None)
            if found:
                raise source.error(found, what, _HINT)
        raise source.error(line, f"not a file of a known kind; it begins {shown(start.split(chr(10))[0], 40)!r}", _HINT)
    if len(kinds) > 1:
        (first, line), (second, other) = list(kinds.items())[:2]
        message = f"holds {first} (line {line}) and {second} (line {other})"
        raise source.error(other, message, "give each a file of its own, both in one command")
    return _READERS[next(iter(kinds))](source)


def _kinds(source: SourceFile) -> dict[str, int]:
    """Return every kind of which the file has a telling line, and the number of the first such line."""
    tests: tuple[tuple[str, Callable[[str], object]], ...] = (
        (topo_matrix.KIND, topo_matrix.is_header),
        (nvlink_status.KIND, nvlink_status.GPU.match),
        (slurm_conf.KIND, slurm_conf.LINE.match),
        (slurm_yaml.KIND, slurm_yaml.LINE.match),
        (ibstat.KIND, ibstat.START.match),
        (ibnetdiscover.KIND, ibnetdiscover.HEADER.match),
    )
    found: dict[str, int] = {}
    for number, line in enumerate(source.lines, 1):
        for kind, test in tests:
            if kind not in found and test(line):
                found[kind] = number
    return found
