"""One question of a study: what it may ask by task, and what makes it the same question again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import Annotated, Any

from gpuscale.choices import MAX_GPUS
from gpuscale.collectives.estimate import ALGORITHMS
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.nccl_constants import LAUNCHES, PROTOCOLS, parse_version, version_text
from gpuscale.request import (
    COMPARED,
    PINS,
    SEVERAL_PLANS,
    SWITCH,
    JobOptions,
    Layout,
    Length,
    Option,
    Options,
    Question,
    Recovery,
    Within,
    declared,
)
from gpuscale.units import MAX_BYTES, parse_bytes

Row = dict[str, Any]
"""One row of the results: column -> text, number, switch or None."""

GPUS = Within(1, MAX_GPUS)


@dataclass(frozen=True, kw_only=True)
class Rules(Options):
    """What `estimate` takes beside job and layout."""

    despite_rules: Annotated[bool, Option("Evaluate the layout even if the framework refuses it.")] = False


@dataclass(frozen=True, kw_only=True)
class Collective(Options):
    """What `collective` takes, by the names of its command."""

    strict = True

    operation: Annotated[str, Option("The collective.", "OP", normal=operation_named)]
    bytes: Annotated[int, Within(1, MAX_BYTES), Option("The whole tensor.", "SIZE", normal=parse_bytes)]
    cluster: Annotated[str, Option("Preset name or cluster TOML.", "NAME|PATH")] = "dgx-h100-superpod"
    set: Annotated[str | None, Option("Overrides of the cluster.", "LEVEL.KEY=VALUE", repeatable=True)] = None
    level: Annotated[str | None, Option("Level of the cluster.", "NAME")] = None
    gpus: Annotated[int | None, GPUS, Option("GPUs of a group.")] = None
    stride: Annotated[int | None, GPUS, Option("Rank stride between members.")] = None
    concurrent: Annotated[int | None, GPUS, Option("Groups that run at the same time.")] = None
    sharp: Annotated[str | None, Option("In-network reduction across nodes (SHARP).", choices=SWITCH)] = None
    nvls: Annotated[str, Option("In-switch reduction within the NVLink domain (NVLS).", choices=SWITCH)] = "on"
    ideal: Annotated[bool, Option("Bandwidth bound only.")] = False
    algorithm: Annotated[str | None, Option("Algorithm of NCCL.", choices=tuple(ALGORITHMS))] = None
    protocol: Annotated[str | None, Option("Its protocol.", choices=tuple(map(str.lower, PROTOCOLS)))] = None
    channels: Annotated[int | None, Option("Channels of NCCL.")] = None
    nccl: Annotated[str | None, Option("Version.", normal=lambda text: version_text(parse_version(text)))] = None
    launch: Annotated[str, Option("How ranks are launched.", choices=LAUNCHES)] = "processes"
    imbalance: Annotated[float, Within(1, 1e6), Option("Bytes of the busiest GPU over the mean.")] = 1.0
    experts_per_token: Annotated[int | None, Option("For deepep: experts of a token.")] = None
    nodes_per_token: Annotated[int | None, Option("For deepep: nodes of a token's experts.")] = None


TASKS: dict[str, tuple[type[Options], ...]] = {
    "plan": (JobOptions, Layout, Question),
    "estimate": (JobOptions, Layout, Rules),
    "train-time": (JobOptions, Layout, Question, Recovery, Length),
    "collective": (Collective,),
}
"""What a study may ask, by the command that answers one of its questions -> the options that it takes."""

SEARCHING = ("plan", "train-time")
"""Tasks that search: options of the layout are sets of values that it may have."""

NOT_ASKED = {"plan": ("why", "recipe"), "train-time": SEVERAL_PLANS}
"""Task -> options of the classes above that it does not take."""


@cache
def options_of(task: str) -> dict[str, type[Options]]:
    """Return the options of a task, each with the class that declares it."""
    left = NOT_ASKED.get(task, ())
    return {name: kind for kind in TASKS[task] for name in declared(kind) if name not in left}


def is_pin(task: str, name: str) -> bool:
    """Whether an option is a set of values that a layout may have in one search."""
    return task in SEARCHING and name in PINS and name not in COMPARED


@dataclass(frozen=True)
class Case:
    """One question of a study."""

    task: str  #: one of `TASKS`.
    #: what the question's command takes, by the names of `gpuscale.request`, each with one value.
    options: Mapping[str, Any]
    labels: Mapping[str, str]  #: columns that say what sets it apart beside its options: the name of a what-if cluster.
    digest: str = ""  #: of the version and of the presets and files that the answer rests on.

    @cached_property
    def key(self) -> str:
        """Name of the question: the same task, options and digest give the same one, in whatever order."""
        options = {name: str(value) for name, value in self.options.items()}
        said = json.dumps([self.task, options, self.labels, self.digest], sort_keys=True)
        return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:24]
