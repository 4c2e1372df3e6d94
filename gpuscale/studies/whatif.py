"""What-if clusters: a preset with changed numbers, as `[[clusters]]` of a study has them.

    [[clusters]]
    name = "domain"
    base = "gb200-nvl72"
    nvlink_domain = [8, 72, 576]
    usd_per_gpu_hour = 5.0

Each value of a list makes a cluster of its own, `domain-8`, `domain-72`, `domain-576`. All become the option `set`, so
that `gpuscale plan` with this cluster and this `set` answers the same question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.planning.jobs import Presets
from gpuscale.planning.planfile import from_folder
from gpuscale.presets.files import Document, KeyPath, find_preset, preset_aliases
from gpuscale.presets.settings import with_settings
from gpuscale.request import LEAST, MAX_PRICE

CHANGES = {
    "gpu": "gpu={}", "nvlink_domain": "domain={}", "network": "network=x{}", "nics": "nics={}",
    "oversubscription": "oversubscription={}", "memory": "gpu.memory_gib=x{}",
    "memory_bandwidth": "gpu.memory_gb_per_s=x{}", "flops": "gpu.flops=x{}", "power_w": "gpu.power_w={}", "set": "{}",
}  # fmt: skip
"""Key of `[[clusters]]` -> the setting that it stands for, in the order in which they are made."""

TEXTS = ("gpu", "set")
KEYS = ("name", "base", *CHANGES, "usd_per_gpu_hour")
MAX_CLUSTERS = 10_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Machine(NamedTuple):
    """A cluster that a study asks about."""

    cluster: str  #: the option `cluster`.
    set: str = ""  #: the option `set`; empty for a cluster as it is.
    name: str = ""  #: of a what-if cluster; empty for one that is none.
    usd_per_gpu_hour: float | None = None  #: its price, if it states one.

    @property
    def label(self) -> str:
        """By what a study calls it."""
        return self.name or self.cluster


def read_machines(document: Document, presets: Presets) -> dict[str, tuple[Machine, ...]]:
    """Read `[[clusters]]`: name -> the clusters that it stands for, and each of several by its own name.

    Raises:
        InputError: unknown or unusable entries, or a machine that cannot be; the message names file and line.
    """
    tables = document.data.get("clusters", [])
    if not isinstance(tables, list | tuple) or not all(isinstance(one, Mapping) for one in tables):
        raise document.error(("clusters",), "clusters is not a list of tables", "write [[clusters]] above each")
    found: dict[str, tuple[Machine, ...]] = {}
    for index, table in enumerate(tables):
        place = ("clusters", index)
        for key in table:
            if key not in KEYS:
                hint = did_you_mean(str(key), KEYS, "keys are", 3)
                raise document.error((*place, key), f"unknown key {shown(key)}", hint)
        for key in ("name", "base"):
            if not isinstance(table.get(key), str) or not table[key]:
                what = "is missing" if table.get(key) is None else "is not a name"
                raise document.error((*place, key), f"{key} {what}")
        machines = _machines(document, place, table, presets)
        several = {one.name: (one,) for one in machines} if len(machines) > 1 else {}
        for name, own in {str(table["name"]): machines, **several}.items():
            if name in found:
                raise document.error((*place, "name"), f"a second cluster called {name!r}", "give each its own name")
            if find_preset("clusters", name) or name.lower() in preset_aliases("clusters"):
                raise document.error((*place, "name"), f"{name!r} is the name of a preset", "give it another")
            found[name] = own
    return found


def _machines(document: Document, place: KeyPath, table: Mapping[str, Any], presets: Presets) -> tuple[Machine, ...]:
    """Read one table: a cluster for each combination of its values."""
    name, base = table["name"], table["base"]
    if not _NAME.fullmatch(name):
        raise document.error((*place, "name"), f"{shown(name)} is not a name", "letters, digits, dots and dashes")
    base = presets.named("clusters", from_folder({"cluster": base}, document.path.parent)["cluster"])[0]
    price = table.get("usd_per_gpu_hour")
    if price is not None:
        price = _number(document, (*place, "usd_per_gpu_hour"), price)
        if not LEAST <= price <= MAX_PRICE:
            hint = f"give {LEAST:g} to {MAX_PRICE:g}"
            raise document.error((*place, "usd_per_gpu_hour"), f"{price:g} is out of range", hint)
    values = {key: _values(document, (*place, key), table[key]) for key in CHANGES if key in table}
    if not values:
        raise document.error(place, f"{name} changes nothing of {base}", f"change any of {', '.join(CHANGES)}")
    if math.prod(map(len, values.values())) > MAX_CLUSTERS:
        raise document.error(place, f"{name} is more than {MAX_CLUSTERS:,} clusters", "give fewer values")
    several = [key for key in values if len(values[key]) > 1]
    machines = []
    for chosen in product(*values.values()):
        own = dict(zip(values, chosen, strict=True))
        spelled = (re.sub(r"[^A-Za-z0-9._-]+", "-", str(own[key])).strip("-") for key in several)
        full = "-".join([name, *spelled])
        cluster, changes = presets.cluster(base), []
        for key, value in own.items():
            changes.append(CHANGES[key].format(value))
            try:
                cluster = with_settings(cluster, changes[-1])
            except InputError as error:
                raise document.error((*place, key), f"{full}: {error.message}", error.hint) from None
        machines.append(Machine(base, ",".join(changes), full, price))
    return tuple(machines)


def _number(document: Document, place: KeyPath, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise document.error(place, f"{place[-1]} = {shown(value)} is not a number above 0 and below 1e15")
    return value


def _values(document: Document, place: KeyPath, given: Any) -> tuple[str | float, ...]:
    key = str(place[-1])
    values = given if isinstance(given, list | tuple) else [given]
    if not values:
        raise document.error(place, f"{key} has no values", "give one at least, or leave it out")
    if key not in TEXTS:
        return tuple(dict.fromkeys(_number(document, place, value) for value in values))
    for value in values:
        if not isinstance(value, str) or not value or (key == "gpu" and "," in value):
            raise document.error(place, f"{key} = {shown(value)} is not text", "write it as the option `set` takes it")
    folder = document.path.parent
    moved = [from_folder({"cluster": value}, folder)["cluster"] if key == "gpu" else value for value in values]
    return tuple(dict.fromkeys(moved))
