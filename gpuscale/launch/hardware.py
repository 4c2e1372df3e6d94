"""The GPUs that launch files name, and the cluster that is predicted for them where nobody says which.

Sources of names: Slurm's gres.conf; labels of NVIDIA's GPU feature discovery; SkyPilot's accelerator names; the folders
of Primus (examples/megatron/configs/MI325X); those of clouds stand in `presets/known/machines.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuscale.errors import InputError, shown
from gpuscale.files import printable
from gpuscale.importers.smi import product_preset
from gpuscale.launch.launchers import gpus_per_node
from gpuscale.launch.settings import LackingError, Reading, Setting, Settings, Source, digits
from gpuscale.planning.jobs import precision_runs
from gpuscale.presets.files import known_table, settled
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.request import JobOptions, declared

_SHORT = re.compile(
    r"(?<![a-z0-9])(gb10|gb200|gb300|gh200|a100|a800|h100|h200|h800|h20|b200|b300|v100|l40s|mi250x?|mi300x|mi325x|mi350x|mi355x)"
    r"(?![0-9a-z]|_v\d)",
    re.IGNORECASE,
)
_SPECIAL = (("a100", r"40\s?gb|_40", "a100-sxm-40gb"), ("a100", "pcie", "a100-pcie-80gb"),
            ("h100", "pcie", "h100-pcie-80gb"), ("v100", r"16\s?gb", "v100-sxm-16gb"))  # fmt: skip
"""GPU, what its name holds then, and the preset."""
_OTHERS = re.compile(
    r"\b(rtx[ _-]?(?:pro[ _-])?\w+(?:[ -]ada)?|t4|l4|l40|a10g?|a30|a40|a6000|p100|mi100|mi210|gaudi\d?|ascend\w*|910b"
    r"|tpu-?v\d\w*)\b",
    re.IGNORECASE,
)

_STATING = (
    "hardware", "gres", "gpus_per_node", "gpus_per_task", "gpus", "constraint", "instance", "instance_type",
    "device_type", "tpu_type", "accelerators",
)  # fmt: skip
"""Options of launchers that may name GPUs; `hardware` is what a job file of a cluster or cloud says."""
_SUGGESTING = ("partition", "p", "queue", "q", "qos")
_LABELS = re.compile(
    r"(?:cloud\.google\.com/gke-accelerator|nvidia\.com/gpu\.product|amd\.com/gpu\.product-name|gpu\.product"
    r"|(?:node|beta)\.kubernetes\.io/instance-type|node\.kubernetes\.io/instance|karpenter\.k8s\.aws/instance-gpu-name"
    r"|karpenter\.k8s\.aws/instance-family|cloud\.google\.com/gke-tpu-accelerator|gpu\.nvidia\.com/(?:class|model))$"
)
_KEYS = re.compile(
    r"^(?:resources\.)?(?:any_of\.\d+\.)?(?:accelerators|instance_type|gpu|gpu\.name)(?:\.[A-Za-z][\w-]*)?$"
    r"|^compute\.(?:gpu_type|instance_type)$"
)
"""Settings of a job file that name GPUs."""
_OF_DOCUMENT = re.compile(
    r"(\w+\.)*((\w+_)?gpu(_type|_name|_model)?|instance(_type)?|(accelerator|machine|node)_type|accelerators?"
    r"|vm_size|hardware)"
)
"""Settings of a document of one's own that may name GPUs."""


class Named(NamedTuple):
    """GPUs that a setting names; the cluster is empty where there is no preset of them."""

    setting: Setting
    what: str
    cluster: str


def stated_hardware(settings: Settings) -> Setting | None:
    """Return the setting of a job file that names GPUs: a node selector, an affinity, an accelerator, an instance."""
    for name, one in settings.items():
        if isinstance(one.value, str) and _LABELS.search(name):
            return one
        key = one.value if isinstance(one.value, str) and name.endswith(".key") else ""
        values = settings.get(f"{name.removesuffix('.key')}.values") if key and _LABELS.search(key) else None
        if values is not None:
            return values
    found = ((name, one) for name, one in settings.items() if _KEYS.fullmatch(name))
    for name, one in found:
        last = name.rpartition(".")[2]
        text = f"{last}:{one.value}" if last not in {"accelerators", "gpu", "name", "gpu_type"} else str(one.value)
        if gpus_in(text):
            return Setting(one.name, text, one.file, one.line, one.text)
    return None


def gpus_in(text: str) -> list[tuple[str, str]]:
    """Return the GPUs that a text names, each with the usual cluster of it (empty: there is no preset)."""
    text, clusters = text[:200].lower(), known_table("machines")
    instance = next((own for pattern, own in clusters["instances"].items() if re.search(pattern, text)), "")
    if instance:
        return [(load_cluster(instance).gpu.name, instance)]
    product = product_preset(text.replace("nvidia-", "").replace("-", " ")) if "hbm" in text or "pcie" in text else None
    presets = [product] if product else [_preset(one[1], text) for one in _SHORT.finditer(text)]
    found = [(preset, clusters["usual"].get(preset) or _box(preset)) for preset in dict.fromkeys(presets)]
    other = _OTHERS.search(text)
    return found or ([(other[1], _box(other[1]))] if other else [])


def _box(name: str) -> str:
    """Return the box that a card's own name means; empty where there is no preset of it."""
    with suppress(InputError):
        return load_cluster(f"box-{settled('gpus', name.replace('_', '-'))[0]}").name
    return ""


def _preset(short: str, text: str) -> str:
    special = (preset for gpu, pattern, preset in _SPECIAL if gpu == short and re.search(pattern, text))
    return str(next(special, known_table("devices")["short"].get(short, short)))


_EACH = re.compile(r"(n(um)?_)?(gpu|device|accelerator|process)(s|es)?_(count|num|per_(node|machine|host|instance))")
NODES = re.compile(r"(n(um)?_?)?(nodes|machines|hosts|instances)|(node|machine|host|instance)_count")


USUAL_NODE = 8
"""GPUs of a node where nobody says (DGX, HGX, p5.48xlarge, a3-highgpu-8g, ND96: all have 8)."""


def machines_of(reading: Reading) -> tuple[int, str] | None:
    """Return the GPUs of the machines that settings name or count, and what says so; None where none does.

    They suggest a number, since no launcher is told it.
    """
    stated = [one for group in (reading.launcher, reading.settings) for one in group.values()]
    count = {name: next((one for one in stated if digits(one.value) and pattern.fullmatch(one.last)), None)
             for name, pattern in (("each", _EACH), ("nodes", NODES))}  # fmt: skip
    each, nodes = (digits(one.value) if one else None for one in count.values())
    said = [one for one in count.values() if one]
    for one in stated if not each else ():
        text = str(one.value).lower()[:100]
        of = one.last in _STATING or _OF_DOCUMENT.fullmatch(one.name.lower()) or _KEYS.fullmatch(one.name)
        listed = re.search(r"(?:^|:)(\d{1,2})(?:$|x\b)|\b(\d{1,2}) ?x ", text) if of and gpus_in(text) else None
        each = int(next(filter(None, listed.groups()))) if listed else instance_gpus(text) if of else 0
        if each:
            said.append(one)
            break
    if not each and (nodes or 1) > 1:
        return USUAL_NODE * (nodes or 1), printable(f"{said[0].name[:60]} {nodes}, {USUAL_NODE} GPUs each")
    if not each:
        return None
    return each * (nodes or 1), " and ".join(printable(f"{one.name[:60]} {one.value}"[:120]) for one in said[::-1])


def instance_gpus(text: str) -> int:
    """Return the GPUs of an instance by its name; 0 where it is not known."""
    for pattern, gpus in known_table("machines")["counted"]:
        found = re.search(pattern, text)
        if found:
            return int(gpus or next(filter(None, found.groups())))
    return 0


def take_hardware(reading: Reading, files: Sequence[Path]) -> None:
    """Set the cluster by the GPUs that the files name, where neither they nor the user say which.

    Raises:
        LackingError: nobody names a GPU, and the usual one does not run the precision that is stated.
    """
    if reading.given.get("cluster") is not None or "cluster" in reading.options:
        return
    _refuse_no_gpu(reading)
    found = next(_named(reading.launcher, reading.sources), None)
    if found is not None and found.cluster:
        reading.options["cluster"] = found.cluster
        gpu = load_cluster(found.cluster).gpu.title
        said = f"it names {found.what}: cluster = {found.cluster} ({gpu})"
        reading.say(found.setting, said)
        reading.assume(f"{said}; `cluster` names another{_other_nodes(reading, found.cluster)}", found.setting)
        reading.state("cluster", (found.setting,))
        return
    if found is not None:
        reading.assume(f"it names {found.what}, of which there is no preset: the usual GPU is predicted", found.setting)
    else:
        _suggest(reading, files)
    _need_units(reading)


_NO_GPU = ("cpu", "mps")
_SWITCHES = ("use_cpu", "no_cuda", "use_mps_device")


def _refuse_no_gpu(reading: Reading) -> None:
    """Refuse a job on processors or on Apple's chips as long as nobody names a GPU.

    Raises:
        LackingError: a setting says so.
    """
    tpu = reading.get("PJRT_DEVICE", "hardware")  # PyTorch/XLA's, MaxText's
    if tpu is not None and str(tpu.value).upper() == "TPU":
        reading.refuse(tpu, "it runs on TPUs, which is predicted on GPUs", settles="cluster")
    for name in ("device", "trainer.accelerator", *_SWITCHES):
        found = reading.get(name)
        if found is None or found.undecided:
            continue
        off = reading.flag(name) if name in _SWITCHES else str(found.value).partition(":")[0].lower() in _NO_GPU
        if off:
            reading.refuse(found, f"it runs without a GPU: {shown(found.value)}", settles="cluster")


def _named(launcher: Settings, sources: Sequence[Source]) -> Iterator[Named]:
    for name in _STATING:
        one = launcher.get(name)
        found = gpus_in(str(one.value)) if one is not None else []
        if one is not None and len({gpu for gpu, _ in found}) == 1:
            yield Named(one, *found[0])
    for source in sources:
        for name, one in source.settings.items() if source.kind in {"yaml", "toml", "json"} else ():
            listed = gpus_in(f"{one.value}") if _OF_DOCUMENT.fullmatch(name.lower()) else []
            if len(listed) == 1:
                yield Named(one, *listed[0])
        path = Path(source.file)
        folder = next((part for part in reversed(path.parts[:-1]) if re.fullmatch(r"MI\d{3}X", part)), "")
        if folder and source.kind == "yaml":  # Primus keeps its configurations by GPU
            yield Named(Setting("folder", folder, source.file, 0, folder), *gpus_in(folder)[0])


def _other_nodes(reading: Reading, cluster: str) -> str:
    each, own = gpus_per_node(reading), load_cluster(cluster).levels[0].gpus
    return f"; its nodes have {own} GPUs, these {each}" if each and each not in {own, 1} and own < 64 else ""


def _suggest(reading: Reading, files: Sequence[Path]) -> None:
    """Say what a partition's or a file's name suggests; it is not used."""
    texts: list[tuple[Setting | None, str]] = [
        (one, str(one.value)) for name in _SUGGESTING if (one := reading.launcher.get(name)) is not None
    ]
    texts += [(None, part) for path in files for part in (path.name, path.parent.name)]
    for one, text in texts:
        found = gpus_in(re.sub(r"[_.]", " ", text))
        if len(found) == 1 and found[0][1] not in {"", declared(JobOptions)["cluster"].default}:
            name = f"{printable(text)[:60]} suggests {found[0][0]}"
            said = f"{name}, which no file states: `cluster={found[0][1]}` predicts it"
            reading.assume(said, *([one] if one is not None else []))
            return


def _need_units(reading: Reading) -> None:
    """Ask for the GPU where the usual one does not run the precision that the files state."""
    precision, usual = reading.options.get("precision"), declared(JobOptions)["cluster"].default
    framework = str(reading.given.get("framework") or reading.options.get("framework", ""))
    if precision is None or reading.given.get("precision") is not None or not framework:
        return
    recipe = load_framework(framework).runtime.fp8_recipe
    if precision_runs(precision, load_cluster(usual).gpu, recipe):
        return
    able = [name for name in ("b200-hgx", "b300-hgx", "gb200-nvl72", "mi355x", "dgx-a100-superpod")
            if precision_runs(precision, load_cluster(name).gpu, recipe)]  # fmt: skip
    stated = reading.stated_by("precision")
    gpu = load_cluster(able[0]).gpu.title if able else ""
    message = f"no file names the GPU, and the usual one has no units for {precision}: it means a GPU like {gpu}"
    hint = f"add `cluster={able[0]}`, or {', '.join(able[1:3])}" if able else "give `cluster` or another `precision`"
    place = f"{stated.place}: {printable(stated.name)}" if stated else None
    error = LackingError(message, "cluster", place=place, hint=hint, likely=able[:1])
    error.setting = stated
    raise error
