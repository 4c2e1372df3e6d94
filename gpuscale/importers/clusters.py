"""A cluster file made of what other tools say: `gpuscale clusters import`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.assemble import Choice, assemble
from gpuscale.importers.detect import read_facts
from gpuscale.importers.document import assumptions, cluster_data, cluster_text
from gpuscale.importers.facts import Facts
from gpuscale.importers.merge import merge
from gpuscale.importers.source import read_source, shown
from gpuscale.presets.files import read_toml, resolve_preset
from gpuscale.presets.hardware import load_cluster, load_gpu, parse_cluster
from gpuscale.presets.text import refuse_overwriting, write_text
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec

MAX_FILES = 16


@dataclass(frozen=True)
class ImportOptions:
    """What the user says beside the files.

    Attributes:
        gpu: a GPU's name, alias or file, where the files do not name it (or name it wrongly).
        base: a cluster's name or file, for everything that the files leave open.
        nics: network cards of a node that serve its GPUs.
        nic_gbit_per_s: rate of one of them.
        nodes: nodes of the network, where no file describes it.
        name: title of the cluster.
    """

    gpu: str | None = None
    base: str | None = None
    nics: int | None = None
    nic_gbit_per_s: float | None = None
    nodes: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class ImportedCluster:
    """A cluster file that was checked and not yet written.

    Attributes:
        text: the TOML file.
        data: its content.
        cluster: what it means, through the same checks as any cluster file.
        read: file -> what kind it is.
        notes: what was left out or read in a way worth knowing.
        assumed: number (`node.hop_latency_us`) -> source, of each that no file states.
    """

    text: str
    data: Mapping[str, Any] = field(repr=False)
    cluster: ClusterSpec
    read: Mapping[str, str]
    notes: tuple[str, ...]
    assumed: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            InputError: it cannot be written.
        """
        write_text(path, self.text)


def import_cluster(
    paths: Sequence[Path], options: ImportOptions | None = None, output: Path | None = None
) -> ImportedCluster:
    """Read files of one cluster and return the cluster file that they make.

    Args:
        output: where the file is going to be; a GPU file is named from its folder.

    Raises:
        InputError: a file is unreadable or of no known kind, files contradict each other, they do not say enough, or
            `output` is one of them.
    """
    options = options or ImportOptions()
    if output is not None:
        refuse_overwriting(output, paths)
    parts = _read(paths)
    facts = merge(parts)
    base = load_cluster(options.base) if options.base is not None else None
    gpu, reference, source = _gpu(facts, options, base)
    choice = Choice(gpu, source, base, options.nics, options.nic_gbit_per_s, options.nodes)
    draft = assemble(facts, choice, load_cluster)
    _note_gpu(draft.notes, facts, options, gpu, source)
    target = output or Path("cluster.toml")
    data = cluster_data(draft, _title(options, facts, gpu, draft.levels[-1].gpus), _beside(reference, target))
    text = cluster_text(data, parts, draft, source)
    return ImportedCluster(
        text=text,
        data=data,
        cluster=_checked(text, target, facts),
        read={part.file: part.kind for part in parts},
        notes=tuple(draft.notes),
        assumed=assumptions(draft),
    )


def _read(paths: Sequence[Path]) -> list[Facts]:
    if not 1 <= len(paths) <= MAX_FILES:
        raise InputError(f"{len(paths)} files", place="FILE", hint=f"give 1 to {MAX_FILES}")
    stems = [path.name for path in paths]
    names = [path.name if stems.count(path.name) == 1 else str(path) for path in paths]
    return [read_facts(read_source(path, shown(name, 80))) for path, name in zip(paths, names, strict=True)]


def _gpu(facts: Facts, options: ImportOptions, base: ClusterSpec | None) -> tuple[GpuSpec, str, str]:
    """Return the GPU, what the cluster file calls it, and where it comes from: --gpu, the files, --base."""
    if options.gpu is not None:
        gpu = load_gpu(options.gpu)
        return gpu, options.gpu if _is_path(options.gpu) else gpu.name, f"{gpu.name}, by --gpu"
    stated = facts.device
    if stated is not None and stated.value.preset is not None:
        name = stated.value.preset
        if not stated.value.exact and facts.links is not None and (name, facts.links.value) == ("h100-sxm-80gb", 8):
            name = "h800-sxm-80gb"  # the one Hopper module with 8 links
        gpu = load_gpu(name)
        if stated.value.exact:
            return gpu, name, f"{name}, by {stated.source}"
        if base is None or base.gpu.architecture != gpu.architecture:
            return gpu, name, f"{name}, assumed for {stated.value.label} ({stated.source}); --gpu NAME names another"
    if stated is not None and stated.value.preset is None:
        message = f"gpuscale has no preset of {shown(stated.value.label, 80)}"
        hint = "name the nearest GPU or your own GPU file with --gpu (`gpuscale hardware list`)"
        raise InputError(message, place=stated.place, hint=hint)
    if base is not None and options.base is not None:
        return base.gpu, _gpu_of_base(options.base, base), f"{base.gpu.name}, as --base {base.name}"
    if facts.gpus is None and facts.links is None:  # a network alone: `assemble` says what is missing
        return load_gpu("h100-sxm-80gb"), "h100-sxm-80gb", "none"
    raise _unnamed(facts)


def _unnamed(facts: Facts) -> InputError:
    count = f"{facts.gpus.value} GPUs" if facts.gpus else "GPUs"
    links = f" with {facts.links.value} links each" if facts.links else ""
    return InputError(
        f"{count}{links}, but no file names their model",
        place=facts.gpus.place if facts.gpus else facts.file,
        hint="add --gpu NAME (`gpuscale hardware list`), --base PRESET, or a file that names it (nvidia-smi nvlink -s)",
    )


def _gpu_of_base(name: str, base: ClusterSpec) -> str:
    """Return how a base names its GPU: a preset's name, or the path of a GPU file beside it."""
    path = resolve_preset("clusters", "cluster", name, "gpuscale clusters list")
    reference = str(read_toml(path).data.get("gpu", base.gpu.name))
    return str(path.parent / reference) if _is_path(reference) else base.gpu.name


def _is_path(name: str) -> bool:
    return name.lower().endswith(".toml")


def _beside(reference: str, target: Path) -> str:
    if not _is_path(reference) or Path(reference).is_absolute():
        return reference
    return Path(os.path.relpath(reference, target.parent)).as_posix()


def _note_gpu(notes: list[str], facts: Facts, options: ImportOptions, gpu: GpuSpec, source: str) -> None:
    """Say where the GPU is not the one that a file names, or where its numbers differ."""
    stated = facts.device
    if stated is None:
        return
    if options.gpu is None and not stated.value.exact:
        notes.append(f"GPU: {source}")
    if options.gpu is not None and stated.value.exact and stated.value.preset != gpu.name:
        notes.append(f"{stated.source}; --gpu names {gpu.name} instead")
    if stated.value.sm_count and stated.value.sm_count != gpu.sm_count:
        notes.append(f"{stated.source}: {stated.value.sm_count} compute units, {gpu.name} has {gpu.sm_count}")


def _title(options: ImportOptions, facts: Facts, gpu: GpuSpec, gpus: int) -> str:
    if options.name is None:
        return f"{gpus:,} x {gpu.title}, imported from {facts.file}"[:200]
    if not options.name.strip() or len(options.name) > 200 or not options.name.isprintable():
        raise InputError(f"{shown(options.name)!r} is not a title", place="--name", hint="give 1 to 200 letters")
    return options.name


def _checked(text: str, target: Path, facts: Facts) -> ClusterSpec:
    """Load the file before it is written, through the guards that every cluster file passes."""
    try:
        return parse_cluster(text, target)
    except InputError as error:
        message = f"what was read makes a cluster that cannot be: {error.message}"
        hints = [(error.hint or "").split("; if it is right")[0], "--gpu, --nics or --base may say it better"]
        raise InputError(message, place=facts.file, hint="; ".join(filter(None, hints))) from None
