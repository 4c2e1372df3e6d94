"""What `nvidia-smi`, `amd-smi` and `rocm-smi` print of the GPUs of a machine. Nothing in it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuscale.errors import InputError
from gpuscale.importers.facts import PCI_GPUS, PRODUCTS, shown
from gpuscale.units import MIB

MAX_GPUS = 256


@dataclass(frozen=True)
class Gpu:
    """One GPU of a machine as its driver's tool names it."""

    index: int  #: number by which the tool counts it.
    name: str  #: product name.
    memory_bytes: float | None  #: all of its memory; None where the tool does not say [bytes].
    driver: str | None  #: version of the driver; None where the tool does not say.
    power_limit_w: float | None  #: power limit that is set; None where the tool does not say [W].
    preset: str | None  #: GPU preset that the name means; None where gpuscale has none of it.
    mig: bool = False  #: whether it is split into instances (MIG).


def product_preset(name: str) -> str | None:
    """Return the GPU preset that a product name means, None where gpuscale has none of it."""
    return next((own for part, own in PRODUCTS.items() if re.search(part, name, re.IGNORECASE)), "") or None


NVIDIA_QUERY = ("--query-gpu=index,name,memory.total,driver_version,power.limit,mig.mode.current",
                "--format=csv,noheader,nounits")  # fmt: skip
AMD_QUERY = ("static", "--asic", "--vram", "--limit", "--driver", "--json")
ROCM_QUERY = ("--showproductname", "--showmeminfo", "vram", "--showmaxpower", "--showdriverversion", "--json")


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `nvidia-smi` with `NVIDIA_QUERY`."""
    found = []
    for line in text.strip().splitlines()[:MAX_GPUS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not re.fullmatch("[0-9]{1,4}", cells[0]):
            raise InputError(f"line {shown(line)!r} is not the six values asked for")
        memory, power, name = _number(cells[2]), _number(cells[4]), shown(cells[1])
        driver = shown(cells[3], 30) if re.match("[0-9]", cells[3]) else None
        preset, mig = product_preset(name), cells[5] == "Enabled"
        found.append(Gpu(int(cells[0]), name, memory and memory * MIB, driver, power, preset, mig))
    return found


def parse_amd_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `amd-smi` with `AMD_QUERY`."""
    data = _json(text)
    data = data.get("gpu_data") if isinstance(data, dict) else data
    if not isinstance(data, list):
        raise InputError("not a list of GPUs")
    found = []
    for index, one in enumerate(data[:MAX_GPUS]):
        asic, vram, limit, driver = (_table(_table(one), key) for key in ("asic", "vram", "limit", "driver"))
        memory, power = _measure(vram.get("size")), _measure(limit.get("max_power"))
        name = shown(str(asic.get("market_name", "AMD GPU")))
        version = driver.get("version") or driver.get("driver_version")
        said = shown(version, 30) if isinstance(version, str) else None
        found.append(Gpu(index, name, memory and memory * MIB, said, power, product_preset(name)))
    return found


def parse_rocm_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `rocm-smi` with `ROCM_QUERY`."""
    data = _table(_json(text))
    version = _table(data, "system").get("Driver version")
    found = []
    for key in list(data)[: MAX_GPUS + 1]:
        number = re.fullmatch("card([0-9]{1,4})", key)
        if number is None:
            continue
        card = {name.lower(): str(value) for name, value in _table(data, key).items()}
        name = shown(card.get("card series", "AMD GPU"))
        memory = _number(card.get("vram total memory (b)", ""))
        _, preset = PCI_GPUS.get(f"1002:{card.get('card model', '').lower().removeprefix('0x')}", ("", None))
        power = _number(card.get("max graphics package power (w)", ""))
        driver = shown(version, 30) if isinstance(version, str) else None
        found.append(Gpu(int(number[1]), name, memory, driver, power, product_preset(name) or preset))
    return found


TOOLS: Mapping[str, tuple[tuple[str, ...], Callable[[str], list[Gpu]]]] = {
    "nvidia-smi": (NVIDIA_QUERY, parse_nvidia_smi),
    "amd-smi": (AMD_QUERY, parse_amd_smi),
    "rocm-smi": (ROCM_QUERY, parse_rocm_smi),
}
"""Tool -> what it is asked with, and what reads its answer; the first that lists GPUs counts."""


def _json(text: str) -> Any:
    begin = re.search(r"^\s*[\[{]", text, re.MULTILINE)  # behind warnings that the tools print first
    try:
        return json.loads(text[begin.start() if begin else 0 :])
    except (ValueError, RecursionError):
        raise InputError(f"not JSON; it begins {shown(text[:200].strip(), 40)!r}") from None


def _table(data: Any, key: str | None = None) -> Mapping[str, Any]:
    found = data.get(key) if key is not None and isinstance(data, dict) else data
    return found if isinstance(found, dict) else {}


def _measure(found: Any) -> float | None:
    """Return a number, also of `{"value": 750, "unit": "W"}`; megabytes of amd-smi are 2^20 bytes."""
    return _number(str(_table(found).get("value", found) if isinstance(found, dict) else found))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        value = float(text[:40].split(" ", maxsplit=1)[0])
        return value if 0 < value < 1e15 else None
    return None
