"""How many GPUs a job has, by what starts its program: torchrun, srun, mpirun, deepspeed, accelerate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from gpuscale.errors import InputError, shown
from gpuscale.launch.settings import LackingError, Reading, Setting, Settings
from gpuscale.presets.tools import words

MISSING = {
    "model": "no file states which model is trained",
    "gpus": "no file states on how many GPUs it runs",
    "seq": "no file states how long sequences are",
    "gbs": "no file states how large the global batch is",
}
"""What no default can stand for -> how it is said that it is missing."""


class Launched(NamedTuple):
    """GPUs of a job, the settings that say so, and what else they say, if anything."""

    gpus: int
    stated: tuple[Setting, ...]
    beside: str = ""


def _said(gpus: int | None, *stated: Setting | None, beside: str = "") -> Launched | None:
    """Return so many GPUs, with those settings that there are; None where they are none."""
    return Launched(gpus, tuple(one for one in stated if one is not None), beside) if gpus else None


def gpus_of(reading: Reading, needed: str = "") -> int | None:
    """Return the GPUs of the job: as given beside the files, or nodes times processes of the launcher's options.

    Args:
        reading: the settings of the job.
        needed: for what the number must be known; then it is asked for where nobody says it.

    Raises:
        InputError: nobody says it, and it is needed.
    """
    if reading.given.get("gpus") is not None:
        return int(reading.given["gpus"])
    found = counted(reading)
    if found is None and needed:
        message = f"{needed} follows from the number of GPUs, which no file states"
        raise LackingError(message, "gpus")
    return found.gpus if found else None


def gpus_of_replica(layout: Mapping[str, Any]) -> int:
    """Return how many GPUs hold one copy of the model together, by the degrees that are stated."""
    return prod(int(layout.get(name) or 1) for name in ("tp", "pp", "cp"))


def take_gpus(reading: Reading) -> None:
    """Set the GPUs where the launcher's options say them, and no other setting has."""
    given = reading.given.get("gpus") is not None
    try:
        found = counted(reading) if "gpus" not in reading.options else None
    except InputError:
        if not given:
            raise
        return  # what is given beside the files stands for what they leave open
    if found is not None:
        reading.options["gpus"] = found.gpus
        for one in found.stated:
            reading.say(one, f"gpus = {found.gpus}")
        reading.state("gpus", found.stated)
        if found.beside and not given:
            reading.assume(found.beside, found.stated[0])


def counted(reading: Reading) -> Launched | None:
    """Return the GPUs that the options of the launcher mean; None where they do not say.

    Raises:
        InputError: they hang on a variable without a value, or are no numbers.
    """
    for count in (
        _dumped, _torchrun, _accelerate, _deepspeed, _resource_sets, _tasks, _world, _slots, _visible, _allocated,
        _variables,
    ):  # fmt: skip
        found = count(reading)
        if found is not None:
            return found
    return None


def _count(reading: Reading, found: Setting | None) -> int | None:
    """Return a number of processes, nodes or GPUs; None for `gpu` and `auto`, and where nothing is said."""
    if found is None or found.value is True or str(found.value).lower() in {"gpu", "auto", "cpu", "-1", "", "none"}:
        return None
    typed = re.fullmatch(r"(?:gpu:)?(?:[a-z][\w-]*:)?(\d{1,9})", str(found.value))
    if typed:
        return int(typed[1])
    try:
        return int(reading.number_of(found))
    except LackingError:
        raise
    except InputError as error:
        if found.why:  # what a command counts, where it runs
            raise LackingError(error.message, "gpus", place=error.place, hint="add `gpus=N`") from None
        raise InputError(error.message, place=error.place, hint=error.hint or "add `gpus=N`") from None


def gpus_per_node(reading: Reading) -> int:
    """Return how many GPUs of a node the launcher asks for; 0 where it does not say."""
    names = ("gpus_per_node", "gres", "nproc_per_node", "ntasks_per_node", "num_gpus")
    texts = [str(one.value) for name in names if (one := reading.launcher.get(name)) is not None]
    found = (re.search(r"(?:^|:)(\d{1,3})$", text) for text in texts)
    return max((int(one[1]) for one in found if one), default=0)


def _first(reading: Reading, *names: str) -> Setting | None:
    return next((found for name in names if (found := reading.launcher.get(name)) is not None), None)


def _dumped(reading: Reading) -> Launched | None:
    """The world size of a program that printed its arguments, or of its launcher (composer)."""
    printed = any(source.kind == "arguments" for source in reading.sources)
    found = (reading.settings.get("world_size") if printed else None) or reading.launcher.get("world_size")
    return _said(_count(reading, found), found)


def _torchrun(reading: Reading) -> Launched | None:
    """Nodes times processes per node; torchrun takes one where one of them is not given."""
    each = _first(reading, "nproc_per_node") or reading.settings.get("nproc_per_node")
    each = each or reading.environment.get("PET_NPROC_PER_NODE")  # what torchrun takes for its options
    nodes = _first(reading, "nnodes") or (reading.settings.get("nnodes") if each is not None else None)
    nodes = nodes or reading.environment.get("PET_NNODES")
    if each is None and nodes is None:
        return None
    allocated = reading.launcher.get("nodes")
    if nodes is None and "standalone" not in reading.launcher:
        nodes = allocated
    count = 1 if nodes is None else _nodes(reading, nodes)
    processes = _count(reading, each)
    if processes is None and each is not None:  # `gpu`: as many as the node has
        each = _first(reading, "gpus_per_node", "ntasks_per_node")
        processes = _count(reading, each)
        if processes is None:
            return None
    held = "" if allocated is None or allocated is nodes else str(allocated.value)
    beside = f"{held} nodes are allocated, {count} launched" if held.isdecimal() and held != str(count) else ""
    return _said(count * (processes or 1), nodes, each, beside=beside)


def _nodes(reading: Reading, found: Setting) -> int:
    """Return the nodes of torchrun; `4:4` is 4, `1:4` any number of them."""
    least, colon, most = str(found.value).partition(":")
    if colon and least.isdecimal() and least == most:
        return int(least[:9])
    if colon:
        reading.refuse(found, f"{shown(found.value)} nodes are any number of them", settles="gpus")
    return _count(reading, found) or 1


def _accelerate(reading: Reading) -> Launched | None:
    """Processes in all; an option of the launcher replaces that of its file."""
    found = reading.launcher.get("num_processes") or reading.settings.get("num_processes")
    processes, copies = _count(reading, found), reading.launcher.get("replicas")
    return _said(processes and processes * (_count(reading, copies) or 1), found, copies)


def _deepspeed(reading: Reading) -> Launched | None:
    listed = _first(reading, "include", "i")
    parts = str(listed.value).split("@") if listed is not None else []
    if listed is not None and all(":" in part for part in parts):
        return _said(sum(len(part.partition(":")[2].split(",")) for part in parts), listed)
    each, nodes = reading.launcher.get("num_gpus"), reading.launcher.get("num_nodes")
    gpus = _count(reading, each)
    return _said(gpus and gpus * (_count(reading, nodes) or 1), nodes, each)


_OWN_PROCESSES = ("deepspeed", "accelerate", "torchrun")
"""Launchers that start the processes of a node themselves."""


def _resource_sets(reading: Reading) -> Launched | None:
    """Resource sets of jsrun, in all or per host, times the tasks or GPUs of each."""
    sets, nodes = _first(reading, "resource_sets"), None
    count = _count(reading, sets) if sets is not None and str(sets.value).isdecimal() else None
    if count is None:  # ALL_HOSTS, or not stated: so many per host
        sets, nodes = _first(reading, "rs_per_host"), _first(reading, "nodes")
        count = (_count(reading, sets) or 0) * (_count(reading, nodes) or 0)
    each = [one for name in ("tasks_per_rs", "gpu_per_rs") if (one := reading.launcher.get(name)) is not None]
    if not count or not each:
        return None
    most, found = max(((_count(reading, one) or 0, one) for one in each), key=lambda pair: pair[0])
    return _said(count * most, nodes, sets, found)


def _tasks(reading: Reading) -> Launched | None:
    """Tasks of srun or mpirun, one for each GPU, or with so many GPUs each."""
    if any(source.program[:1] and source.program[0] in _OWN_PROCESSES for source in reading.sources):
        return None
    whole, per_task = _first(reading, "n", "np", "ntasks"), _first(reading, "gpus_per_task")
    tasks, gpus = _count(reading, whole), _count(reading, per_task) or 1
    if tasks is not None and tasks * gpus > 1:
        return _said(tasks * gpus, whole, per_task if gpus > 1 else None)
    nodes = _first(reading, "nodes", "N", "num_nodes")
    each = [one for name in ("ntasks_per_node", "gpus_per_node") if (one := reading.launcher.get(name)) is not None]
    counts = [(_count(reading, one) or 0, one) for one in each]
    if nodes is None or not counts:
        return None
    most, found = max(counts, key=lambda pair: pair[0])
    return _said((_count(reading, nodes) or 0) * most, nodes, found)


def _slots(reading: Reading) -> Launched | None:
    """Slots of a hostfile, one for each GPU."""
    found = reading.launcher.get("slots")
    return _said(_count(reading, found), found)


def _world(reading: Reading) -> Launched | None:
    """Variables that the program sees: the world size, or nodes and processes of each."""
    world, found = _known(reading.environment, "WORLD_SIZE")
    if world > 1:
        return _said(world, found)
    each, per_node = _known(reading.environment, "NPROC_PER_NODE")
    nodes, count = _known(reading.environment, "NNODES")
    return _said(each * (nodes or 1), count, per_node)


_ALL_DEVICES = ("deepspeed", "accelerate", "torchrun", "llamafactory-cli", "axolotl")
"""Launchers that start one process for each device that they see, unless told how many."""


def _visible(reading: Reading) -> Launched | None:
    """The devices that a launcher of all devices is left."""
    found, nodes = reading.environment.get("CUDA_VISIBLE_DEVICES"), _first(reading, "num_nodes", "nodes", "nnodes")
    if found is None:
        return None
    devices = [one for one in str(found.value).split(",") if one.strip().isdecimal()]
    every = any(source.program[:1] and source.program[0] in _ALL_DEVICES for source in reading.sources)
    if len(devices) != 1 and not every:  # whatever is left one device alone runs on that one
        if any(source.program[:1] == ("swift",) for source in reading.sources):
            message = f"one process spreads the layers of its model over {len(devices)} GPUs, which is not modelled"
            hint = "set NPROC_PER_NODE for a process on each, or add `gpus=1` for batches and time as on one"
            raise LackingError(message, "gpus", likely=("1",), place=found.place, hint=hint)
        return None
    return _said(len(devices) * (_count(reading, nodes) or 1), nodes, found)


def _allocated(reading: Reading) -> Launched | None:
    """The GPUs of a scheduler's job on one node: one, or all where the launcher takes all that it sees."""
    nodes = _count(reading, _first(reading, "num_nodes", "nodes", "nnodes")) or 1
    found = _first(reading, "gpus", "gres", "gpus_per_node")
    gpus = _count(reading, found) if nodes == 1 else None
    every = any(source.program[:1] and source.program[0] in _ALL_DEVICES for source in reading.sources)
    return _said(gpus, found) if gpus == 1 or every else None


def _variables(reading: Reading) -> Launched | None:
    """Variables of the script that nothing hands on (`NUM_GPUS=64`), or settings of a document of one's own."""
    counts = {name: one for source in reading.sources for name, one in source.variables.items()}
    documents = [source.settings for source in reading.sources if source.kind in {"yaml", "toml", "json"}]
    stated = {name.rpartition(".")[2].upper(): one for settings in documents for name, one in settings.items()
              if not any(map(words().closed.search, name.lower().split(".")[:-1]))}  # fmt: skip
    for name in ("NUM_GPUS", "N_GPUS", "NGPUS", "TOTAL_GPUS", "WORLD_SIZE"):
        gpus, found = _known(counts, name)
        if gpus:
            return _said(gpus, found, beside=f"the GPUs are those of the variable {name}, which no launcher is given")
        each, found = _known(stated, name)
        nodes, count = _known(stated, "NUM_NODES") if name.startswith("N") else (1, None)
        if each:
            return _said(
                each * (nodes or 1),
                found,
                count,
                beside=f"the GPUs are those of {name.lower()}, of which no launcher tells",
            )
    return None


def _known(settings: Settings, name: str) -> tuple[int, Setting | None]:
    found = settings.get(name)
    text = "" if found is None else str(found.value)
    return (int(text[:9]), found) if text.isdecimal() else (0, None)
