"""A cluster file made of what other tools say of a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.file_kinds import reads
from gpuscale.files import write_text
from gpuscale.presets.files import preset_name
from gpuscale.presets.hardware import cluster_file, load_cluster, load_gpu, parse_cluster
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec

if TYPE_CHECKING:
    from gpuscale.importers.facts import Facts, SourceFile

MAX_FILES = 16

_FOREIGN = (
    (r"\s*VM_hostname\s", "SuperBench's list of hosts and port GUIDs: it has neither rates nor switches"),
    (r"\| NVIDIA-SMI ", "the overview of `nvidia-smi`: it says nothing of links"),
    (r"\s*Machine \(.*total\)|\s*NUMANode L#", "hwloc's lstopo, which lists no GPU links"),
    (r"\s*NodeName=\S", "Slurm's nodes (slurm.conf, scontrol): give its topology.conf"),
)
_HINT = (
    "it reads NCCL's topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, `rocm-smi --showtopo`, Slurm's "
    "topology.conf, topology.yaml and `scontrol show topology`, `ibstat`, `ibnetdiscover`"
)


@displayed
@dataclass(frozen=True)
class ImportedCluster:
    """A cluster file that was checked and not yet written."""

    text: str  #: the TOML file.
    data: Mapping[str, Any] = field(repr=False)  #: its content.
    cluster: ClusterSpec  #: what it means, through the same checks as any cluster file.
    read: Mapping[str, str]  #: file -> what kind it is.
    notes: tuple[str, ...]  #: what was left out or read in a way worth knowing.
    assumed: Mapping[str, str]  #: number (`node.hop_latency_us`) -> source, of each that no file states.

    def write(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            InputError: it cannot be written.
        """
        write_text(path, self.text)


@public
@reads("topology")
def import_cluster(
    paths: Sequence[Path],
    *,
    gpu: str | Path | GpuSpec | None = None,
    base: str | Path | ClusterSpec | None = None,
    nics: int | None = None,
    nic_gbit_per_s: float | None = None,
    nodes: int | None = None,
    name: str | None = None,
    output: Path | None = None,
) -> ImportedCluster:
    """Read files of one cluster and return the cluster file that they make.

    Args:
        paths: NCCL topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, `rocm-smi --showtopo`, Slurm's
            topology.conf or topology.yaml, `scontrol show topology`, `ibstat`, `ibnetdiscover`; told apart by content,
            at most one of each kind.
        gpu: a GPU's name, alias or file, where the files do not name it (or name it wrongly).
        base: a cluster's name or file, for everything that the files leave open.
        nics: network cards of a node that serve its GPUs.
        nic_gbit_per_s: rate of one of them [Gbit/s].
        nodes: nodes of the network, where no file describes it.
        name: title of the cluster.
        output: where the file is going to be; a GPU file is named from its folder.

    Raises:
        InputError: a file is unreadable or of no known kind, files contradict each other, or they do not say enough.
    """
    from gpuscale.importers.assemble import assemble, cluster_data, cluster_text  # noqa: PLC0415 - heavy, rarely used
    from gpuscale.importers.facts import merge, read_source, shown  # noqa: PLC0415

    if not 1 <= len(paths) <= MAX_FILES:
        raise InputError(f"{len(paths)} files", place="FILE", hint=f"give 1 to {MAX_FILES}")
    stems = [path.name for path in paths]
    names = [shown(path.name if stems.count(path.name) == 1 else str(path), 80) for path in paths]
    parts = [_read_facts(read_source(path, called)) for path, called in zip(paths, names, strict=True)]
    facts = merge(parts)
    gpu, base = preset_name(gpu, load_gpu), preset_name(base, load_cluster)
    loaded = load_cluster(base) if base is not None else None
    spec, reference, source = _gpu(facts, gpu, base, loaded)
    draft = assemble(facts, spec, loaded, nics=nics, nic_gbit_per_s=nic_gbit_per_s, nodes=nodes)
    _note_gpu(draft.notes, facts, gpu, spec, source)
    if name is not None and (not name.strip() or len(name) > 200 or not name.isprintable()):
        raise InputError(f"{shown(name)!r} is not a title", field="name", hint="give 1 to 200 letters")
    title = name or f"{draft.levels[-1].gpus:,} x {spec.title}, imported from {facts.file}"[:200]
    target = output or Path("cluster.toml")
    if _is_path(reference) and not Path(reference).is_absolute():
        reference = Path(os.path.relpath(reference, target.parent)).as_posix()
    data = cluster_data(draft, title, reference)
    text = cluster_text(data, parts, draft, source)
    try:
        cluster = parse_cluster(text, target)  # through the guards that every cluster file passes
    except InputError as error:
        message = f"the files make a cluster that is not possible: {error.message}"
        hints = [(error.hint or "").split("; if it is right")[0], "`gpu`, `nics` or `base` may say it better"]
        raise InputError(message, place=facts.file, hint="; ".join(filter(None, hints))) from None
    read = {part.file: part.kind for part in parts}
    return ImportedCluster(text, data, cluster, read, tuple(draft.notes), draft.assumed)


def _read_facts(source: SourceFile) -> Facts:
    """Return what a file states; its kind shows in a telling line."""
    from gpuscale.importers import facts, infiniband, nccl_xml, nvidia_smi, rocm_smi, slurm  # noqa: PLC0415

    start = source.text.lstrip()
    if start.startswith("<"):
        return nccl_xml.parse(source)
    if start.startswith(".TH "):
        raise source.error(1, "a manual page, not a file of the kind that it describes", _HINT)
    telling = {
        facts.TOPO_MATRIX: (nvidia_smi.MATRIX_HEADER, nvidia_smi.parse_matrix),
        facts.NVLINK_STATUS: (nvidia_smi.LISTED_GPU, nvidia_smi.parse_listing),
        facts.ROCM_TOPOLOGY: (rocm_smi.TITLE, rocm_smi.parse),
        facts.SLURM_CONF: (slurm.CONF_LINE, slurm.parse_conf),
        facts.SLURM_YAML: (slurm.YAML_LINE, slurm.parse_yaml),
        facts.IBSTAT: (infiniband.IBSTAT_CARD, infiniband.parse_ibstat),
        facts.IBNETDISCOVER: (infiniband.SUBNET_DEVICE, infiniband.parse_subnet),
    }
    found: dict[str, int] = {}
    for number, line in enumerate(source.lines, 1):
        for kind, (pattern, _) in telling.items():
            if kind not in found and pattern.match(line):
                found[kind] = number
    if any(rocm_smi.TABLES.match(line) for line in source.lines):
        found.pop(facts.TOPO_MATRIX, None)  # its tables have a header like that of the matrix
    if len(found) > 1:
        (first, line_of_first), (second, line_of_second) = list(found.items())[:2]
        message = f"holds {first} (line {line_of_first}) and {second} (line {line_of_second})"
        raise source.error(line_of_second, message, "save each in a file of its own, and give both")
    if found:
        return telling[next(iter(found))][1](source)
    lines = list(enumerate(source.lines[:200], 1))
    tables = (rocm_smi.TABLES, "tables of an AMD tool without the kinds of links: give `rocm-smi --showtopo`")
    foreign = (
        (number, what) for pattern, what in (*_FOREIGN, tables) for number, line in lines if re.match(pattern, line)
    )
    begin = next((number for number, line in enumerate(source.lines, 1) if line.strip()), 1)
    what = f"not a known kind of file; it begins {facts.shown(start.split(chr(10))[0], 40)!r}"
    raise source.error(*next(foreign, (begin, what)), _HINT)


def _gpu(facts: Facts, given: str | None, base: str | None, cluster: ClusterSpec | None) -> tuple[GpuSpec, str, str]:
    """Return the GPU, what the cluster file calls it, and where it comes from: the option, the files, the base."""
    if given is not None:
        gpu = load_gpu(given)
        return gpu, given if _is_path(given) else gpu.name, f"{gpu.name}, by the option gpu"
    stated = facts.device
    if stated is not None and stated.value.preset is None:
        hint = "name the nearest GPU (`gpuscale show hardware`) or your own GPU file: `gpu=NAME`"
        raise InputError(f"gpuscale has no preset of {stated.value.label[:80]}", place=stated.place, hint=hint)
    if stated is not None:
        name = stated.value.preset or ""
        if not stated.value.exact and facts.links is not None and (name, facts.links.value) == ("h100-sxm-80gb", 8):
            name = "h800-sxm-80gb"  # the one Hopper module with 8 links
        gpu = load_gpu(name)
        if stated.value.exact:
            return gpu, name, f"{name}, by {stated.source}"
        if cluster is None or cluster.gpu.architecture != gpu.architecture:
            assumed = f"assumed for {stated.value.label} ({stated.source}); the option gpu names another"
            return gpu, name, f"{name}, {assumed}"
    if cluster is not None and base is not None:
        file = cluster_file(base)
        path, reference = file.path, str(file.data.get("gpu", cluster.gpu.name))
        called = str(path.parent / reference) if _is_path(reference) else cluster.gpu.name
        return cluster.gpu, called, f"{cluster.gpu.name}, as the base {cluster.name}"
    if facts.gpus is None and facts.links is None:  # a network alone: `assemble` says what is missing
        return load_gpu("h100-sxm-80gb"), "h100-sxm-80gb", "none"
    count = f"{facts.gpus.value} GPUs" if facts.gpus else "GPUs"
    links = f" with {facts.links.value} links each" if facts.links else ""
    hint = "add `gpu=NAME` (`gpuscale show hardware`), `base=PRESET`, or a file that names it (nvidia-smi nvlink -s)"
    place = facts.gpus.place if facts.gpus else facts.file
    raise InputError(f"{count}{links}, but no file names their model", place=place, hint=hint)


def _is_path(name: str) -> bool:
    return name.lower().endswith(".toml")


def _note_gpu(notes: list[str], facts: Facts, given: str | None, gpu: GpuSpec, source: str) -> None:
    """Say where the GPU is not the one that a file names, or where its numbers differ."""
    if facts.device is None:
        return
    stated, place = facts.device.value, facts.device.source
    if given is None and not stated.exact:
        notes.append(f"GPU: {source}")
    if given is not None and stated.exact and stated.preset != gpu.name:
        notes.append(f"{place}; the option gpu names {gpu.name} instead")
    if stated.sm_count and stated.sm_count != gpu.sm_count:
        notes.append(f"{place}: {stated.sm_count} compute units, {gpu.name} has {gpu.sm_count}")
