"""What the answers of a study rest on, as digests: a change of version, preset or file is noticed where it matters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuscale.planning.jobs import Presets
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_gpu
from gpuscale.presets.rates import load_rates, prices_of
from gpuscale.request import JobOptions, declared
from gpuscale.training.failures import USUAL, failure_rate
from gpuscale.version import __version__


class Digests:
    """Digests by what users call presets and files; each is read once."""

    def __init__(self, presets: Presets) -> None:
        self._presets = presets
        self._part = cache(self._digest)
        self._whole = cache(lambda parts: _short([__version__, *(self._part(*part) for part in parts)]))

    def of(self, task: str, options: Mapping[str, Any]) -> str:
        """Return the digest of all that a question with these options rests on."""
        return self._whole(tuple(_rests_on(task, options)))

    def _digest(self, kind: str, name: str) -> str:
        """Return the digest of one preset or file, by what it means rather than how it is written."""
        if kind == "model":
            stated = asdict(self._presets.model(name))
            del stated["numerics"]  # which change no answer
            return _short(stated)
        if kind in {"cluster", "prices"}:
            cluster = self._presets.cluster(name)
            return _short(asdict(cluster) if kind == "cluster" else _plain(prices_of(cluster.name, cluster.gpu.name)))
        if kind == "calibration":
            return sha256(Path(name).read_bytes()).hexdigest()
        if kind == "rates":
            return _short(_plain(load_rates()))
        read: dict[str, Callable[[str], Any]] = {"gpu": load_gpu, "framework": load_framework, "failures": failure_rate}
        return _short(asdict(read[kind](name)))


def _rests_on(task: str, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every preset and file that a question rests on."""
    for kind in ("model", "cluster", "calibration"):
        if kind in options:
            yield kind, options[kind]
    for item in str(options.get("set", "")).split(","):
        name, _, value = item.partition("=")
        if name.strip() == "gpu":
            yield "gpu", value.strip()
    if task == "collective":
        return
    yield "framework", options.get("framework", declared(JobOptions)["framework"].default)
    if task == "train-time":
        yield "failures", options.get("failure_rate", USUAL)
    if task == "train-time" or "price_term" in options:
        yield "prices", options["cluster"]
    if task == "train-time" or {options.get("objective"), *str(options.get("pareto", "")).split(",")} & _OF_RATES:
        yield "rates", ""


_OF_RATES = {"energy", "carbon"}
"""Objectives that rest on rates."""


def _plain(rates: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(rate) for name, rate in rates.items()}


def _short(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:24]
