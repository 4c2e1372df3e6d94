"""`nvidia-smi nvlink -s` (`--status`): each GPU's links with their rates, one direction [GB/s]."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuscale.importers.devices import product_gpu
from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.source import SourceFile, shown

KIND = "the listing of `nvidia-smi nvlink -s`"
MAX_GPUS = 256
MAX_LINKS = 64
GPU = re.compile(r"\s*GPU ([0-9]{1,4}): (.{1,200}?) \(UUID: [^)]{1,80}\)\s*$")
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.{1,200})$")
_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s\s*$")
_SAVE = "save the whole output: nvidia-smi nvlink -s > nvlink.txt"


@dataclass
class _Gpu:
    index: int
    name: str
    line: int
    rates: dict[int, float] = field(default_factory=dict)
    links: list[int] = field(default_factory=list)
    inactive: int = 0


def parse(source: SourceFile) -> Facts:
    """Return links, their rate and the GPU model.

    Raises:
        InputError: no link is active, the listing is shortened, or it is another listing of `nvidia-smi nvlink`.
    """
    gpus = _read(source)
    first = gpus[0]
    names = {gpu.name for gpu in gpus}
    if len(names) > 1:
        other = next(gpu for gpu in gpus if gpu.name != first.name)
        raise source.error(
            other.line, f"GPUs of two kinds: {shown(first.name)} and {shown(other.name)}", "a cluster has one"
        )
    notes: list[str] = []
    active = [len(gpu.rates) for gpu in gpus]
    worst = min(gpus, key=lambda gpu: len(gpu.rates))
    if len(set(active)) > 1 or any(gpu.inactive for gpu in gpus):
        notes.append(
            f"{source.at(worst.line)}: GPU {worst.index} has {worst.inactive} inactive links and "
            f"{len(worst.rates)} active ones, the fewest; these are taken"
        )
    rate = min(value for gpu in gpus for value in gpu.rates.values())
    whole = [gpu.index for gpu in gpus] == list(range(len(gpus))) and len(gpus) > 1
    if not whole:
        notes.append(
            f"{source.name}: lists GPU {', '.join(str(gpu.index) for gpu in gpus[:8])} alone, not a whole node"
        )
    return Facts(
        file=source.name,
        kind=KIND,
        gpus=Stated(len(gpus), f"{source.at(first.line)}: GPU 0 to {gpus[-1].index}") if whole else None,
        device=Stated(product_gpu(first.name), f"{source.at(first.line)}: {shown(first.name)}"),
        link_fabric=Stated("nvlink", f"{source.at(first.line)}: active links"),
        links=Stated(len(worst.rates), f"{source.at(worst.line)}: {len(worst.rates)} active links"),
        link_gb_per_s=Stated(rate, f"{source.at(worst.line)}: links of {rate:g} GB/s"),
        notes=tuple(notes),
    )


def _read(source: SourceFile) -> list[_Gpu]:
    gpus: list[_Gpu] = []
    for number, line in enumerate(source.lines, 1):
        found = GPU.match(line)
        if found:
            if len(gpus) >= MAX_GPUS:
                raise source.error(number, f"more than {MAX_GPUS} GPUs, the limit for one node")
            if any(gpu.index == int(found[1]) for gpu in gpus):
                raise source.error(number, f"GPU {found[1]} is listed twice", "give the listing of one node")
            gpus.append(_Gpu(int(found[1]), found[2], number))
        elif "links are inactive" in line:
            index = gpus[-1].index if gpus else "?"
            message = f"GPU {index}: all NVLinks are inactive, so the node as it is has none to plan with"
            raise source.error(number, message, "give the listing of a healthy node")
        elif gpus:
            _take_link(source, gpus[-1], number, line)
    for gpu in gpus:
        if not gpu.rates:
            raise source.error(gpu.line, f"GPU {gpu.index} has no active link in this listing", _SAVE)
        expected = list(range(len(gpu.links)))
        if gpu.links != expected:
            missing = next(index for index in range(MAX_LINKS) if index not in gpu.links)
            message = (
                f"GPU {gpu.index}: link {missing} is missing before link {max(gpu.links)}: the listing is shortened"
            )
            raise source.error(gpu.line, message, _SAVE)
    return gpus


def _take_link(source: SourceFile, gpu: _Gpu, number: int, line: str) -> None:
    link = _LINK.match(line)
    if not link:
        return
    index, text = int(link[1]), link[2]
    rate = _RATE.match(text)
    if index >= MAX_LINKS or index in gpu.links:
        raise source.error(number, f"link {index} is listed twice or above {MAX_LINKS - 1}, the limit", _SAVE)
    if rate is None and "inactive" not in text.lower():
        message = f"link {index} has {shown(text, 40)!r} where `nvlink -s` prints a rate in GB/s"
        raise source.error(
            number, message, "other listings (-e errors, -c capabilities, -p peers) have no rates: use -s"
        )
    gpu.links.append(index)
    if rate is None:
        gpu.inactive += 1
        return
    if not 1 <= float(rate[1]) <= 400:
        raise source.error(number, f"link {index} of {rate[1]} GB/s: 1 to 400 are possible")
    gpu.rates[index] = float(rate[1])
