"""What there is on this machine to plan with: GPUs, how they are joined, presets, models, calibrations, versions.

Tools of drivers are run with a limit to their time and output; what they print is not trusted. Nothing else is run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from gpuscale.arguments import public
from gpuscale.calibration.site_file import FORMAT as CALIBRATION
from gpuscale.calibration.site_file import read_site
from gpuscale.children import end
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import printable
from gpuscale.importers import smi
from gpuscale.importers.facts import Facts, SourceFile, nic_fabric
from gpuscale.importers.smi import TOOLS, Gpu
from gpuscale.presets.files import KINDS, preset_folders, preset_names, read_toml
from gpuscale.presets.frameworks import framework_file
from gpuscale.presets.hardware import clusters_with, load_cluster, load_gpu
from gpuscale.presets.hub import cache_folder, cached_models
from gpuscale.presets.models import load_model
from gpuscale.specs.cluster import NETWORKS, ClusterSpec
from gpuscale.units import GIB, MIB, plural
from gpuscale.version import __version__

MAX_TOOL_SECONDS = 30.0
"""Time that a tool has; without persistence mode nvidia-smi takes a second or two per GPU."""

MAX_TOOL_BYTES = MIB
MAX_FILES = 500
MAX_LISTED_MODELS = 50

LIBRARIES = ("numpy", "pydantic", "rich", "typer", "tomlkit", "tomli-w")
EXTRAS = {
    "yaml": ("pyyaml",), "sweep": ("pyarrow", "duckdb"), "dask": ("distributed",), "mcp": ("mcp",), "gpu": ("torch",)
}  # fmt: skip
"""Extra of the package -> what it installs."""


@dataclass(frozen=True)
class Topology:
    """How the GPUs of this machine are joined."""

    source: str  #: what said so.
    fabric: str | None  #: `nvlink`, `xgmi` or `pcie`; null where it is not known.
    links: int | None  #: links of one GPU to others; null where it is not known.
    nics: int | None  #: network cards that serve the GPUs; null where it is not known.
    nic_fabric: str | None = None  #: `efa` where the cards are AWS's; null where their names do not tell.


@dataclass(frozen=True)
class Match:
    """A cluster preset with the GPUs of this machine."""

    name: str  #: name of the cluster.
    agrees: tuple[str, ...]  #: what it has as this machine has it.
    differs: tuple[str, ...]  #: what it has otherwise.


@dataclass(frozen=True)
class Found:
    """A file in the working directory that commands take."""

    file: str  #: its name.
    kind: str  #: `calibration`, `cluster`, `gpu`, `plan` or `protocol`.
    detail: str  #: what it says of itself, in words.


@displayed
@dataclass(frozen=True)
class Checkup:
    """What there is on this machine to plan with."""

    verdict: str  #: the result in a line.
    tool: str | None  #: what listed the GPUs; null where nothing did.
    gpus: tuple[Gpu, ...]  #: GPUs of this machine.
    topology: Topology | None  #: how they are joined; null where it is not known.
    clusters: tuple[Match, ...]  #: cluster presets with such GPUs, the likeliest first.
    presets: Mapping[str, int]  #: kind -> number of presets, the user's own included.
    own_presets: Mapping[str, tuple[str, ...]]  #: kind -> names of the user's own presets.
    hub: str  #: folder of the Hugging Face cache.
    models: tuple[str, ...]  #: ids in that cache that have a config.json, the first 50.
    unread_models: Mapping[str, str]  #: id -> why a cached model cannot be planned.
    files: tuple[Found, ...]  #: files in the working directory that commands take.
    versions: Mapping[str, str | None]  #: what is installed -> version.
    #: extra of gpuscale -> what it needs -> version, null where it is not installed.
    extras: Mapping[str, Mapping[str, str | None]]
    notes: tuple[str, ...]  #: what is wrong or worth knowing, with options in backticks.


@public
def check_up(folder: Path = Path()) -> Checkup:
    """Look at this machine; calibrations are looked for in `folder`."""
    notes: list[str] = []
    tool, gpus = list_gpus(notes)
    topology = _topology(tool, notes)
    clusters = _clusters(gpus, topology)
    own = _own_presets()
    for kind, name in ((kind, name) for kind, names in own.items() for name in names):
        if reason := _refused(LOADERS[kind], name):
            notes.append(f"of your own presets {kind}/{name}.toml cannot be used: {reason}")
    ids = cached_models()
    unread = {one: reason for one in ids[:MAX_LISTED_MODELS] if (reason := _refused(load_model, one))}
    return Checkup(
        verdict=_verdict(tool, gpus, clusters),
        tool=tool,
        gpus=tuple(gpus),
        topology=topology,
        clusters=tuple(clusters),
        presets={kind: len(preset_names(kind)) for kind in KINDS},
        own_presets=own,
        hub=str(cache_folder()),
        models=tuple(ids[:MAX_LISTED_MODELS]),
        unread_models=unread,
        files=tuple(_files(folder)),
        versions={"gpuscale": __version__, "python": platform.python_version()}
        | {one: _version(one) for one in LIBRARIES},
        extras={name: {one: _version(one) for one in needs} for name, needs in EXTRAS.items()},
        notes=tuple(notes),
    )


# --- GPUs


def _output_of(tool: str, *arguments: str) -> str:
    """Run a tool that is on the PATH and return what it prints, as text of at most `MAX_TOOL_BYTES`.

    Raises:
        InputError: it cannot be run, fails, takes too long, or prints too much.
    """
    command = shutil.which(tool)
    if command is None:
        raise InputError(f"{tool} is not on the PATH")
    try:
        process = subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "COLUMNS": "1000"},
            start_new_session=True,  # so that its children end with it
        )
    except OSError as error:
        raise InputError(f"{tool} cannot be run: {error.strerror}") from None
    printed: list[bytes] = []
    reader = threading.Thread(target=lambda: printed.append(_beginning(process)), daemon=True)
    reader.start()
    reader.join(MAX_TOOL_SECONDS)
    ended = not reader.is_alive()
    try:
        code = process.wait(MAX_TOOL_SECONDS) if ended and len(printed[0]) <= MAX_TOOL_BYTES else 0
    except subprocess.TimeoutExpired:
        ended = False
    end(process)
    reader.join(MAX_TOOL_SECONDS)
    if not ended or not printed:
        raise InputError(f"{tool} takes more than {MAX_TOOL_SECONDS:g} s")
    text = printed[0].decode("utf-8", "replace")
    if len(printed[0]) > MAX_TOOL_BYTES:
        raise InputError(f"{tool} prints more than {MAX_TOOL_BYTES // MIB} MiB")
    if code:
        first = printable(text.strip().split("\n", maxsplit=1)[0][:100])
        raise InputError(f"{tool} fails with exit code {code}" + (f": {first}" if first else ""))
    return text


def _beginning(process: subprocess.Popen[bytes]) -> bytes:
    with process.stdout or nullcontext() as stream:
        return stream.read(MAX_TOOL_BYTES + 1) if stream else b""


def list_gpus(notes: list[str]) -> tuple[str | None, list[Gpu]]:
    """Return the tool that lists GPUs, and these; `notes` get what is odd."""
    for tool, (arguments, read) in TOOLS.items():
        if shutil.which(tool):
            try:
                gpus = read(_output_of(tool, *arguments))
            except InputError as error:
                notes.append(error.message if error.message.startswith(tool) else f"{tool}: {error.message}")
                continue
            if gpus:
                notes += _gpu_notes(gpus)
                return tool, gpus
            notes.append(f"{tool} lists no GPU")
    return None, []


def _gpu_notes(gpus: list[Gpu]) -> list[str]:
    notes = []
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        notes.append(f"GPUs of several kinds, {', '.join(names)[:200]}: a cluster file with [[pools]] describes them")
    for name in names:
        one = next(gpu for gpu in gpus if gpu.name == name)
        if one.preset is None:
            known = "`gpuscale show hardware` lists those there are, and prints the file of one to start from"
            notes.append(f"gpuscale has no preset of {name}: {known}")
            continue
        try:
            preset = load_gpu(one.preset)
        except InputError:  # one of the user's own, of which there is a note
            continue
        if one.memory_bytes and not 0.95 <= one.memory_bytes / preset.memory_bytes <= 1.05:
            sizes = f"{one.memory_bytes / GIB:.1f} GiB, {one.preset} has {preset.memory_bytes / GIB:.1f}"
            notes.append(f"{name} has {sizes}: plan with `memory_limit_gib`, or with a GPU file of your own")
        if one.power_limit_w and one.power_limit_w < 0.97 * preset.power_w:
            limits = f"{one.power_limit_w:g} W of {preset.power_w:g} W"
            notes.append(f"{name} is limited to {limits}: plan with `set=gpu.power_w={one.power_limit_w:g}`")
    if any(gpu.mig for gpu in gpus):
        notes.append("MIG splits a GPU into instances: plans are of whole GPUs")
    return notes


def _topology(tool: str | None, notes: list[str]) -> Topology | None:
    if tool == "nvidia-smi":
        try:
            text = _output_of(tool, "topo", "-m")
            source = SourceFile("nvidia-smi topo -m", re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n"))
            if not any(smi.MATRIX_HEADER.match(line) for line in source.lines):
                return None
            return _joined(smi.parse_matrix(source), text)
        except InputError as error:
            notes.append(f"topology: {error.message}")
    elif tool is not None and shutil.which("rocm-smi"):
        with suppress(InputError):
            text = _output_of("rocm-smi", "--showtopotype", "--json")
            links = re.findall(r"Link type between DRM devices[^:]*:\W*(XGMI|PCIE)", text)
            if links:
                return Topology("rocm-smi --showtopotype", "xgmi" if set(links) == {"XGMI"} else "pcie", None, None)
    return None


def _joined(facts: Facts, text: str) -> Topology:
    cards = re.findall(r"^\s*NIC[0-9]+: (\S{1,40})", text, re.MULTILINE)
    fabrics = {nic_fabric("", "", name) for name in cards}
    return Topology(
        facts.file,
        facts.link_fabric.value if facts.link_fabric else None,
        facts.links.value if facts.links else None,
        facts.nics.value if facts.nics else None,
        "efa" if fabrics == {"efa"} else None,
    )


# --- what fits them


def _clusters(gpus: list[Gpu], topology: Topology | None) -> list[Match]:
    kinds = {gpu.preset for gpu in gpus}
    preset = kinds.pop() if len(kinds) == 1 else None
    if preset is None:
        return []
    matches = []
    for name in dict.fromkeys((*clusters_with(preset), f"box-{preset}")):
        with suppress(InputError):  # one of the user's own, of which there is a note; no card
            matches.append(_match(load_cluster(name), len(gpus), topology))
    return sorted(matches, key=lambda one: (len(one.differs), -len(one.agrees), one.name))


def _match(cluster: ClusterSpec, count: int, topology: Topology | None) -> Match:
    host = cluster.host_gpus
    empty = count < host and cluster.levels[-1].fabric == "pcie"  # a box of cards has empty slots
    same = {f"{count} of " * empty + plural(host, "GPU") + " per host": empty or host == count}
    network = next((level for level in cluster.levels if level.fabric in NETWORKS), None)
    if topology is not None and topology.fabric is not None:
        same[cluster.levels[0].fabric] = cluster.levels[0].fabric == topology.fabric
    if topology is not None and network is not None:
        cards = round(network.nics_per_gpu * host)
        if topology.nics:
            same[plural(cards, "network card")] = cards == topology.nics
        if topology.nic_fabric or network.fabric in {"efa", "eni"}:
            same[network.fabric] = network.fabric == topology.nic_fabric
    agrees, differs = ([what for what, is_so in same.items() if is_so == wanted] for wanted in (True, False))
    return Match(cluster.name, tuple(agrees), tuple(differs))


def _verdict(tool: str | None, gpus: list[Gpu], clusters: list[Match]) -> str:
    if not gpus:
        return "no GPU found on this machine; planning needs none"
    kinds = {(gpu.name, gpu.preset) for gpu in gpus}
    if len(kinds) > 1:
        return f"{plural(len(gpus), 'GPU')} of {len(kinds)} kinds ({tool})"
    name, preset = kinds.pop()
    if preset is None:
        return f"{len(gpus)} x {name}, of which gpuscale has no preset"
    alike = [one.name for one in clusters if not one.differs]
    like = f", as in {', '.join(alike[:2])}{', ...' if len(alike) > 2 else ''}" if alike else ""
    return f"{len(gpus)} x {name}: the GPU {preset}{like}"


# --- files and versions


def _own_presets() -> dict[str, tuple[str, ...]]:
    found = {}
    for kind in KINDS:
        *own, _ = preset_folders(kind)
        names = sorted(path.stem for folder in own for path in islice(folder.glob("*.toml"), MAX_FILES))
        if names:
            found[kind] = tuple(map(printable, names))
    return found


LOADERS: Mapping[str, Callable[[str], object]] = {
    "gpus": load_gpu,
    "clusters": load_cluster,
    "models": load_model,
    "frameworks": framework_file,
}


def _refused(load: Callable[[str], object], name: str) -> str:
    """Return why a preset or a cached model cannot be used; empty where it can."""
    try:
        load(name)
    except InputError as error:
        return printable(str(error.message)[:200])
    return ""


def _files(folder: Path) -> list[Found]:
    with suppress(OSError):
        paths = [one for one in islice(folder.iterdir(), 10 * MAX_FILES) if one.suffix in {".toml", ".jsonl"}]
        found = (_kind_of(path) for path in sorted(paths)[:MAX_FILES] if path.is_file())
        return [one for one in found if one is not None]
    return []


UNREADABLE = "cannot be read"
FORMATS = {"gpuscale.calibration": "calibration", "gpuscale.planfile": "plan", "gpuscale.gpu-protocol": "protocol"}
"""What a file's `format` begins with -> its kind."""


def _kind_of(path: Path) -> Found | None:
    name = printable(path.name[:100])
    if path.suffix == ".jsonl":
        with suppress(OSError), path.open("rb") as file:
            if b'"gpuscale.gpu-protocol/' in file.read(200):
                return Found(name, "protocol", "measurements of `gpuscale calibrate gpu`")
        return None
    try:
        data = read_toml(path).data
    except InputError:
        return None
    stated = str(data.get("format", ""))
    if stated == CALIBRATION:
        return Found(name, "calibration", _evidence(path))
    for beginning, kind in FORMATS.items():
        if stated.startswith(f"{beginning}/"):
            return Found(name, kind, printable(stated[:60]))
    title = printable(str(data.get("title", ""))[:80])
    if "levels" in data and ("gpu" in data or "pools" in data):
        curves = data.get("calibration")
        measured = f", {plural(len(curves), 'measured curve')}" if isinstance(curves, list) else ""
        return Found(name, "cluster", f"{title}{measured}")
    return Found(name, "gpu", title) if "sm_count" in data else None


def _evidence(path: Path) -> str:
    try:
        site = read_site(path)
    except InputError as error:
        return f"{UNREADABLE}: {printable(error.message[:200])}"
    return f"{plural(len(site.runs), 'measured run')}, {plural(len(site.factors), 'factor')}"


def _version(library: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(library)
    return None
