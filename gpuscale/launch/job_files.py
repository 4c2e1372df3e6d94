"""Jobs of clusters and clouds that are YAML around a command: Kubernetes manifests, SkyPilot, dstack, Azure ML,
Determined, MosaicML.

Sources: Kubernetes batch/v1 (Job), JobSet v1alpha2, LeaderWorkerSet v1, Kubeflow PyTorchJob and MPIJob
(training-operator 1.8) and TrainJob (trainer 2.0), Volcano batch v1alpha1, KubeRay v1 (RayJob); SkyPilot 0.10 task
YAML; dstack 0.19 task configuration; Azure ML commandJob schema; Determined 0.38 experiment configuration; mcli's run
configuration (`gpu_num`, later `compute.gpus`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from gpuscale.launch.hardware import stated_hardware
from gpuscale.launch.settings import Setting, Settings, Source
from gpuscale.launch.traced import OpenFile, OpenFiles, Traced, joined, untraced

MAX_COUNT = 1_000_000
_CONTAINER = re.compile(r"(.*[cC]ontainers\.\d+|.*\.trainer)\.(?:command|args)")
_GPU = re.compile(r"(.*)\.(?:limits|requests)\.(?:nvidia\.com|amd\.com|habana\.ai)/gpu(?:-[\w.]+)?")
_COUNTS = ("replicas", "parallelism", "numNodes")
"""Keys of a manifest that multiply what is below them."""


class Started(NamedTuple):
    """What a job starts: words of a command, variables that it sees, and options as its launcher would have them."""

    words: list[Traced]
    environment: dict[str, Traced]
    launcher: dict[str, Setting]


@dataclass(frozen=True)
class JobFile:
    """A kind of file that holds a job's command in one text."""

    marks: tuple[str, ...]  #: how names of its settings begin, each at least once.
    text: str  #: the setting that has the command, or a list of commands.
    nodes: str = ""  #: the setting that has the nodes; without one it is one node.
    gpus: tuple[str, ...] = ()  #: settings that may have the GPUs of a node: `8`, `H100:8`, `{H100: 8}`.
    world: str = ""  #: the setting that has all GPUs.
    environment: str = ""  #: what the names of its variables begin with.
    #: variable that the command sees -> `nodes`, `gpus` (of a node) or `world`.
    variables: Mapping[str, str] = field(default_factory=dict)
    itself: str = ""  #: how settings of a job begin that are in the file itself, whatever its command.


JOB_FILES = (
    JobFile(
        ("run", "resources."), "run", "num_nodes", ("resources.accelerators",), environment="envs.",
        variables={"SKYPILOT_NUM_NODES": "nodes", "SKYPILOT_NUM_GPUS_PER_NODE": "gpus"},
    ),
    JobFile(
        ("type", "commands"), "commands", "nodes", ("resources.gpu.count", "resources.gpu"), environment="env.",
        variables={"DSTACK_NODES_NUM": "nodes", "DSTACK_GPUS_PER_NODE": "gpus", "DSTACK_GPUS_NUM": "world"},
    ),
    JobFile(
        ("command", "distribution."), "command", "resources.instance_count",
        ("distribution.process_count_per_instance",), environment="environment_variables.",
    ),
    JobFile(
        ("entrypoint", "resources.slots_per_trial"), "entrypoint", world="resources.slots_per_trial",
        environment="environment.environment_variables.",
    ),
    JobFile(("command", "image", "gpu_num"), "command", world="gpu_num", environment="env_variables.",
            itself="parameters."),
    JobFile(("command", "image", "compute.gpus"), "command", world="compute.gpus", environment="env_variables.",
            itself="parameters."),
)  # fmt: skip


def jobs_in(source: Source, files: OpenFiles, file: OpenFile) -> Iterator[Started]:
    """Yield what a document starts that is no framework's own; nothing of others."""
    if "apiVersion" in source.settings:
        yield from _manifest(source.settings, files, file)
        return
    for kind in JOB_FILES:
        found = source.settings.get(kind.text)
        there = all(any(name.startswith(mark) for name in source.settings) for mark in kind.marks)
        whole = kind.itself and any(name.startswith(kind.itself) for name in source.settings)
        if there and not whole and found is not None and isinstance(found.value, str | list):
            yield _job(kind, source.settings, found, files, file)
            return


def _job(kind: JobFile, settings: Settings, found: Setting, files: OpenFiles, file: OpenFile) -> Started:
    nodes = settings.get(kind.nodes)
    each = next((one for name in kind.gpus for one in _stating(settings, name) if _gpus(one)), None)
    world = settings.get(kind.world)
    launcher = {} if each is None else {"gpus_per_node": replace(each, value=str(_gpus(each)))}
    if nodes is not None or each is not None:
        launcher["nodes"] = nodes or replace(launcher["gpus_per_node"], value="1")
    if world is not None:
        launcher["world_size"] = world
    launcher |= _hardware(settings)
    count = {"nodes": _number(launcher.get("nodes")), "gpus": _number(launcher.get("gpus_per_node"))}
    count["world"] = prod(count.values())
    environment = _environment(settings, kind.environment)
    environment |= {name: untraced(str(count[what])) for name, what in kind.variables.items() if count[what]}
    text = "\n".join(map(str, found.value)) if isinstance(found.value, list) else str(found.value)
    words = [untraced("bash"), untraced("-c"), _block(text, found, files, file)]
    return Started(words, environment, launcher)


def _stating(settings: Settings, name: str) -> Iterator[Setting]:
    """Yield a setting, or those below it with their key as the value's name: `accelerators: {H100: 8}`."""
    if name in settings:
        yield settings[name]
    below = ((key.removeprefix(f"{name}."), one) for key, one in settings.items() if key.startswith(f"{name}."))
    yield from (replace(one, value=f"{key}:{one.value}") for key, one in below if not key.startswith(("count", "mem")))


def _gpus(found: Setting) -> int:
    """Return the GPUs that `8`, `H100:8`, `H100:80GB:8` or `1..8` mean; a GPU's name alone is one; 0 where none is."""
    value = found.value[0] if isinstance(found.value, list) and found.value else found.value
    parts = str(value)[:100].split(":")
    counts = [int(one[1]) for part in parts if (one := re.fullmatch(r"\s*(\d{1,6})(?:\.\.\d*)?\s*", part))]
    return counts[-1] if counts else int(bool(re.fullmatch(r"[A-Za-z][\w-]*", parts[0])))


def _hardware(settings: Settings) -> dict[str, Setting]:
    found = stated_hardware(settings)
    return {"hardware": found} if found is not None else {}


def _number(found: Setting | None) -> int:
    text = "" if found is None else str(found.value)
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0


def _environment(settings: Settings, prefix: str) -> dict[str, Traced]:
    """Return the variables of a job: a mapping, or a list of `NAME=VALUE`."""
    found: dict[str, Traced] = {}
    for name, one in settings.items():
        key = name.removeprefix(prefix)
        if name.startswith(prefix) and re.fullmatch(r"[A-Za-z_]\w*", key) and one.value is not None:
            found[key] = untraced(str(one.value))
    listed = settings.get(prefix.rstrip("."))
    for text in listed.value if listed is not None and isinstance(listed.value, list) else ():
        name, equals, value = str(text).partition("=")
        found |= {name: untraced(value)} if equals else {}
    return found


# --- Kubernetes


def _manifest(settings: Settings, files: OpenFiles, file: OpenFile) -> Iterator[Started]:
    """Yield what the containers of a manifest start, with the pods and GPUs of the whole job."""
    launcher = _pods(settings) | _hardware(settings)
    pods, gpus = (_number(launcher.get(name)) for name in ("nodes", "gpus_per_node"))
    own: dict[str, Traced] = {}
    if any(".pytorchReplicaSpecs." in name or name.startswith("spec.trainer.") for name in settings):
        each = settings.get("spec.nprocPerNode") or settings.get("spec.trainer.numProcPerNode")
        processes = _number(each) or gpus
        own = {"PET_NNODES": untraced(str(pods)), "PET_NPROC_PER_NODE": untraced(str(processes))} if pods else {}
    parts = filter(None, map(_CONTAINER.fullmatch, settings))
    for prefix in dict.fromkeys(part[1] for part in parts):
        stated = [one for name in ("command", "args") if (one := settings.get(f"{prefix}.{name}")) is not None]
        environment = own | _listed_environment(settings, prefix)
        words = [word for one in stated for word in _words(one, environment, files, file)]
        written = _mounted(settings, prefix) if words else ""
        if written:
            shell = len(words) > 2 and re.fullmatch(r"-\w*c", words[-2].text)
            command = words[-1] if shell else joined([_quoted(word) for word in words], " ")
            words = [untraced("bash"), untraced("-c"), joined([untraced(written), command])]
        yield Started(words, environment, launcher)
    entry = settings.get("spec.entrypoint")
    if entry is not None and isinstance(entry.value, str):  # RayJob
        yield Started([untraced("bash"), untraced("-c"), _block(entry.value, entry, files, file)], own, launcher)


_END = "END_OF_CONFIG_MAP"


def _mounted(settings: Settings, prefix: str) -> str:
    """Return what writes the files of a ConfigMap that stands beside a manifest, where a container has them."""
    pod = re.sub(r"\.(initC|c)ontainers\.\d+$", "", prefix)
    maps = {_text(settings, f"{name.removesuffix('.configMap.name')}.name") for name in settings
            if name.startswith(f"{pod}.volumes.") and name.endswith(".configMap.name")}  # fmt: skip
    mounts = [str(one.value) for name, one in settings.items()
              if name.startswith(f"{prefix}.volumeMounts.") and name.endswith(".mountPath")
              and _text(settings, f"{name.removesuffix('.mountPath')}.name") in maps]  # fmt: skip
    texts = {name.removeprefix("data."): str(one.value) for name, one in settings.items() if name.startswith("data.")}
    files = {f"{mount}/{key}": text for mount in mounts[:10] for key, text in texts.items()
             if "\n" in text and _END not in text}  # fmt: skip
    return "".join(f"cat > {shlex.quote(name)} <<'{_END}'\n{text}\n{_END}\n" for name, text in files.items())


def _text(settings: Settings, name: str) -> str:
    return str(settings[name].value) if name in settings else ""


def _quoted(word: Traced) -> Traced:
    return word if shlex.quote(word.text) == word.text else untraced(shlex.quote(word.text))


def _pods(settings: Settings) -> dict[str, Setting]:
    """Return the pods with GPUs and the GPUs of each, as settings of a launcher."""
    found: dict[str, tuple[int, Setting]] = {}
    for name, one in settings.items():
        part = _GPU.fullmatch(name)
        if part and _number(one):
            found[part[1]] = (_number(one), one)
    if not found:
        return {}
    counts = {prefix: _copies(settings, prefix) for prefix in found}
    pods = sum(number for number, _ in counts.values())
    stated = next((one for _, one in counts.values() if one is not None), None)
    each, said = next(iter(found.values()))
    if pods > MAX_COUNT or len({number for number, _ in found.values()}) > 1:
        return {}
    nodes = replace(stated or said, name="nodes", value=str(pods), span=None)
    return {"nodes": nodes, "gpus_per_node": replace(said, name="gpus_per_node", value=str(each))}


def _copies(settings: Settings, prefix: str) -> tuple[int, Setting | None]:
    """Return of how many pods a container is, by the counts above it, and the first setting that says so."""
    levels = prefix.split(".")
    above = [".".join(levels[:depth]) for depth in range(1, len(levels) + 1)]
    stated = [one for level in above for key in _COUNTS if (one := settings.get(f"{level}.{key}")) is not None]
    number = prod(_number(one) for one in stated)
    group = next((level for level in above if level.endswith("leaderWorkerTemplate")), "")
    size = settings.get(f"{group}.size") if group else None
    if size is not None:
        leader = any(name.startswith(f"{group}.leaderTemplate.") for name in settings)
        number *= 1 if ".leaderTemplate." in prefix else _number(size) - leader
        stated.append(size)
    return number, next((one for one in stated if _number(one) > 1), None)


def _listed_environment(settings: Settings, prefix: str) -> dict[str, Traced]:
    """Return a container's `env`: entries with a name and a value."""
    found: dict[str, Traced] = {}
    for name, one in settings.items():
        value = settings.get(f"{name.removesuffix('.name')}.value")
        if name.startswith(f"{prefix}.env.") and name.endswith(".name") and value is not None:
            texts = _texts(value.value)
            found |= {str(one.value): untraced(texts[0])} if texts else {}
    return found


def _substituted(text: str, environment: Mapping[str, Traced]) -> str:
    """Replace `$(NAME)`, as Kubernetes does before anything starts."""
    return re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]].text if name[1] in environment else name[0], text)


def _texts(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]


def _words(stated: Setting, environment: Mapping[str, Traced], files: OpenFiles, file: OpenFile) -> Iterator[Traced]:
    """Yield the words of a command that a manifest lists, with their places."""
    start = file.starts[max(0, stated.line - 1)] if stated.line <= len(file.starts) else 0
    for text in _texts(stated.value):
        if _substituted(text, environment) != text:
            yield untraced(_substituted(text, environment))
            continue
        word = _block(text, stated, files, file) if "\n" in text.rstrip() else _plain(text, start, files, file)
        place = files.place(word.at[-1]) if word.at else None
        start = file.starts[place[1] - 1] + place[2] if place else start
        yield word


def _plain(text: str, start: int, files: OpenFiles, file: OpenFile) -> Traced:
    """Return a text of one line with its place, which is the first behind an offset."""
    at = file.text.find(text, start)
    return files.traced(file, at, at + len(text)) if text and at >= 0 else untraced(text)


def _block(text: str, stated: Setting, files: OpenFiles, file: OpenFile) -> Traced:
    """Return a text of several lines with its places, where it stands as a block of the file: `run: |`."""
    lines = text.rstrip("\n").split("\n")
    if len(lines) == 1:
        return _plain(lines[0], file.starts[max(0, stated.line - 1)], files, file)
    raw = file.text.split("\n")
    for start in range(max(0, stated.line - 1), len(raw)):
        indent = raw[start].find(lines[0].strip()) if lines[0].strip() else -1
        own = [one[indent:] if indent >= 0 else one for one in raw[start : start + len(lines)]]
        if indent >= 0 and [one.rstrip() for one in own] == [one.rstrip() for one in lines]:
            ends = [file.starts[start + at] + len(raw[start + at]) + 1 for at in range(len(lines))]
            starts = [end - 1 - len(one) for end, one in zip(ends, own, strict=True)]
            return joined(files.traced(file, one, end) for one, end in zip(starts, ends, strict=True))
    return untraced(text)
