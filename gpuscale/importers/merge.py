"""The facts of several files of one cluster, put together; files that contradict each other are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers import (
    ibnetdiscover,
    ibstat,
    nccl_xml,
    nvlink_status,
    slurm_conf,
    slurm_yaml,
    topo_matrix,
)
from gpuscale.importers.facts import Device, Facts, Stated

_NODE_FIRST = (nccl_xml.KIND, topo_matrix.KIND, nvlink_status.KIND, ibnetdiscover.KIND, ibstat.KIND,
               slurm_conf.KIND, slurm_yaml.KIND)  # fmt: skip
_PORTS_FIRST = (ibstat.KIND, ibnetdiscover.KIND, nccl_xml.KIND, topo_matrix.KIND)
_ORDER = {"nic_gbit_per_s": _PORTS_FIRST, "nic_fabric": _PORTS_FIRST,
          "tiers": (ibnetdiscover.KIND, slurm_conf.KIND, slurm_yaml.KIND)}  # fmt: skip
"""Whose word goes first. A node's files know which cards are near GPUs; the cards themselves know their rates."""

_AGREE = {
    "gpus": "GPUs per node",
    "host_gpus": "GPUs per host",
    "links": "links per GPU",
    "island": "linked GPUs",
    "link_fabric": "as the way between GPUs",
}
"""Facts on which all files have to agree, and what they are called."""

_CHOSEN = ("link_gb_per_s", "switched", "switches", "gpus_per_uplink", "pcie_gb_per_s",
           "nic_gbit_per_s", "nic_fabric", "tiers", "way", "nic_way", "pcie_switch")  # fmt: skip
_TOGETHER = "give files of one cluster and of whole, healthy nodes"


def merge(parts: Sequence[Facts]) -> Facts:
    """Return the facts of all files as one.

    Raises:
        InputError: two files of one kind, or two that contradict each other.
    """
    kinds: dict[str, Facts] = {}
    for facts in parts:
        if facts.kind in kinds:
            message = f"a second file of one kind: {facts.kind}, as {kinds[facts.kind].file}"
            raise InputError(message, place=facts.file, hint="give one file of each kind")
        kinds[facts.kind] = facts
    notes = [note for facts in parts for note in facts.notes]
    values: dict[str, Any] = {name: _agreed(name, what, parts) for name, what in _AGREE.items()}
    for name in _CHOSEN:
        values[name] = next(iter(_stated(name, kinds)), None)
    values["device"] = _device(parts)
    values["nics"] = _nics(kinds, notes)
    tiers = _stated("tiers", kinds)
    notes += [f"{other.source}: left out, another file counts the switches" for other in tiers[1:]]
    return replace(Facts(", ".join(facts.file for facts in parts), "all files"), notes=tuple(notes), **values)


def _stated(name: str, kinds: dict[str, Facts]) -> list[Stated[Any]]:
    """Return what the files state under `name`, the most trusted first."""
    order = _ORDER.get(name, _NODE_FIRST)
    values = [getattr(kinds[kind], name) for kind in order if kind in kinds]
    return [value for value in values if value is not None]


def _agreed(name: str, what: str, parts: Sequence[Facts]) -> Stated[Any] | None:
    found = [value for value in (getattr(facts, name) for facts in parts) if value is not None]
    for other in found[1:]:
        if other.value != found[0].value:
            message = f"{found[0].value} {what} ({found[0].source}), but {other.value} ({other.source})"
            raise InputError(message, hint=_TOGETHER)
    return found[0] if found else None


def _device(parts: Sequence[Facts]) -> Stated[Device] | None:
    found = sorted((facts.device for facts in parts if facts.device), key=lambda stated: not stated.value.exact)
    for other in found[1:]:
        if other.value.exact and other.value.preset != found[0].value.preset:
            message = f"{found[0].value.label} ({found[0].source}), but {other.value.label} ({other.source})"
            raise InputError(message, hint=_TOGETHER)
    return found[0] if found else None


def _nics(kinds: dict[str, Facts], notes: list[str]) -> Stated[int] | None:
    found = _stated("nics", kinds)
    some = [stated for stated in found if stated.value]
    notes.extend(
        f"{other.source}: but {some[0].value} are counted for GPUs ({some[0].source})"
        for other in some[1:]
        if other.value != some[0].value
    )
    return some[0] if some else found[0] if found else None
