"""What a user pins or excludes: `tp=8`, `pp=4..8`, `cp=1,2`, `ep=!1`, `recompute=none,full`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from gpuscale.arrays import BoolArray, IntArray
from gpuscale.choices import MAX_DEGREE
from gpuscale.errors import InputError, did_you_mean
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, ONE_F_ONE_B, RECOMPUTE_MODULES, Candidates
from gpuscale.units import refuse_grouped

MAX_ITEMS = 64
DEGREES = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "micro_batch_size")
"""Fields of `Candidates` that can be pinned by number."""

_ITEM = re.compile(r"(!?)(?:([0-9]{1,9})|(?=.*[0-9])([0-9]{1,9})?\.\.([0-9]{1,9})?)", re.ASCII)


class Pin(NamedTuple):
    """Allowed values of one dimension: inside any of `ranges` (all when empty) and in none of `excluded`."""

    ranges: tuple[tuple[int, int], ...] = ()
    excluded: tuple[tuple[int, int], ...] = ()

    def allows(self, values: IntArray) -> BoolArray:
        """Return a mask of the allowed values."""
        allowed = np.zeros(values.shape, dtype=bool) if self.ranges else np.ones(values.shape, dtype=bool)
        for low, high in self.ranges:
            allowed |= (values >= low) & (values <= high)
        for low, high in self.excluded:
            allowed &= (values < low) | (values > high)
        return allowed

    def narrowed(self, other: Pin) -> Pin:
        """Return the pin that allows what both do."""
        both = tuple(
            (max(low, first), min(high, last)) for low, high in self.ranges for first, last in other.ranges
        )  # those that run backwards allow nothing
        return Pin(both or self.ranges or other.ranges, (*self.excluded, *other.excluded))

    def single(self) -> int | None:
        """Return the one value that is pinned, or None when several are allowed."""
        if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]:
            return self.ranges[0][0]
        return None


def parse_pin(text: str, field: str, hint: str = "") -> Pin:
    """Parse `8`, `4..8`, `..8`, `4..`, `1,2,4` and, with a leading `!`, the same as exclusions.

    Raises:
        InputError: not of this form, or a range that is empty or beyond `MAX_DEGREE`; `hint` is added.
    """
    refuse_grouped(text, field)
    ranges: list[tuple[int, int]] = []
    excluded: list[tuple[int, int]] = []
    for item in text.split(",", MAX_ITEMS):  # what is beyond stays together and is refused
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            hint = hint or "write 8, 4..8, 1,2,4 or !16 (all but 16)"
            raise InputError(f"{text[:40]!r} is not a set of values", field=field, hint=hint)
        low, high = int(match[2] or match[3] or 0), int(match[2] or match[4] or MAX_DEGREE)
        if low > high or high > MAX_DEGREE:
            hint = hint or f"values go from 0 to {MAX_DEGREE}"
            raise InputError(f"{item.strip()!r} allows nothing", field=field, hint=hint)
        (excluded if match[1] else ranges).append((low, high))
    return Pin(tuple(ranges), tuple(excluded))


Size = TypeVar("Size", int, IntArray)


class Recompute(NamedTuple):
    """One choice of activation recomputation."""

    modules: int = 0  #: bit mask of `RECOMPUTE_MODULES`, recomputed in every layer.
    layers: int = 0  #: layers of each stage recomputed whole.
    quarters: int = 0  #: the same as a share of the stage's layers, in quarters; 4 recomputes all of them.

    def layers_of(self, per_stage: Size) -> Size | int:
        """Return how many of the layers of a stage are recomputed whole."""
        return -(-per_stage * self.quarters // 4) if self.quarters else self.layers


SHORT_MODULES = {"layernorm": "norm", "core_attn": "attn", "mla_up_proj": "mla", "moe_act": "act"}
"""Module -> its name in tables."""


def parse_recompute(text: str) -> Recompute:
    """Parse `none`, `selective`, `selective:layernorm+mlp`, `full` or `full:10` (layers per stage); `norm+act` and
    `full 10`, as tables print them, too. Plain `selective` is Megatron-LM's default, `core_attn`; plain `full` is every
    layer."""
    long = {short: name for name, short in SHORT_MODULES.items()}
    kind, _, detail = text[:200].strip().lower().replace("full ", "full:").partition(":")
    names = [long.get(name, name) for name in (detail or kind).replace(",", "+").split("+")]
    if not detail and all(name in RECOMPUTE_MODULES for name in names):
        kind, detail = "selective", kind
    if kind == "none" and not detail:
        return Recompute()
    if kind == "full":
        if detail and not (detail.isascii() and detail.isdigit() and 1 <= int(detail[:9]) <= 10_000):
            raise InputError(f"{detail!r} is not a number of layers", field="recompute", hint="write full or full:10")
        return Recompute(layers=int(detail)) if detail else Recompute(quarters=4)
    if kind == "selective":
        modules = 0
        for name in filter(None, names if detail else ["core_attn"]):
            if name not in RECOMPUTE_MODULES:
                hint = did_you_mean(name, RECOMPUTE_MODULES, "modules are", 3)
                raise InputError(f"unknown module {name!r}", field="recompute", hint=hint)
            modules |= RECOMPUTE_MODULES[name]
        return Recompute(modules=modules)
    hint = "write none, selective, selective:layernorm+mlp, full or full:10 (layers per stage)"
    raise InputError(f"{text[:40]!r} is not a way to recompute", field="recompute", hint=hint)


def recompute_text(modules: int, layers: int) -> str:
    """Name a choice of recomputation: `none`, `selective:<modules>` or `full:<layers per stage>`; `selective` alone is
    a framework's own way, which saves every other matrix product."""
    if modules & EVERY_OTHER_MATMUL:
        return "selective"
    if layers:
        return f"full:{layers}"
    names = [name for name, bit in RECOMPUTE_MODULES.items() if modules & bit]
    return f"selective:{'+'.join(names)}" if names else "none"


def short_recompute(recompute: str) -> str:
    """Shorten what `recompute_text` returns: to `norm+mlp`, `full 5`."""
    kind, _, detail = recompute.partition(":")
    if kind == "selective" and detail:
        return "+".join(SHORT_MODULES.get(name, name) for name in detail.split("+"))
    return f"{kind} {detail}".strip()


@dataclass(frozen=True)
class Pins:
    """All that a user fixed of the search space."""

    degrees: Mapping[str, Pin] = field(default_factory=dict)  #: field of `Candidates` -> allowed values.
    recompute: tuple[Recompute, ...] | None = None  #: the choices to try; None tries the default ones.
    #: code of the pipeline schedule of all candidates; others than 1F1B leave none without a pipeline.
    schedule: int = ONE_F_ONE_B
    #: kinds of context parallelism that are searched by themselves: layouts that one of them splits in the same way are
    #: left out here.
    cp_elsewhere: tuple[str, ...] = ()

    def allows(self, name: str, values: IntArray) -> BoolArray:
        """Return a mask of the values that the pin on `name`, if any, allows."""
        pin = self.degrees.get(name)
        return np.ones(values.shape, dtype=bool) if pin is None else pin.allows(values)

    def allowed(self, rows: Candidates, layers: int) -> dict[str, BoolArray]:
        """Return for each pin a mask of the candidates that it allows, (N,); `layers`: of the model."""
        found = {name: self.allows(name, getattr(rows, name)) for name in self.degrees}
        per_stage = -(-layers // rows.pp)
        ways = [
            (rows.recompute_modules == way.modules) & (rows.recompute_layers == way.layers_of(per_stage))
            for way in self.recompute or ()
        ]
        found |= {"recompute": np.any(ways, axis=0)} if ways else {}
        return found | {"schedule": rows.schedule == self.schedule}

    def matches(self, rows: Candidates, layers: int) -> BoolArray:
        """Return a mask of the candidates that all pins allow, (N,)."""
        found: BoolArray = np.all(list(self.allowed(rows, layers).values()), axis=0)
        return found

    def narrowed(self, other: Pins) -> Pins:
        """Return the pins that allow what both do, all else as in these."""
        degrees = {**other.degrees, **self.degrees}
        for name in set(self.degrees) & set(other.degrees):
            degrees[name] = self.degrees[name].narrowed(other.degrees[name])
        ways = self.recompute if other.recompute is None else other.recompute
        if self.recompute is not None and other.recompute is not None:
            ways = tuple(way for way in other.recompute if way in self.recompute)
        return replace(self, degrees=degrees, recompute=ways)
