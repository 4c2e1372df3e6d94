"""The form of a rule, and what frameworks can run (`presets/known/rule_sets.toml`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import BoolArray
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, RECOMPUTE_MODULES, SCHEDULES, Candidates
from gpuscale.presets.files import known_table
from gpuscale.specs.gpu import WIDE
from gpuscale.specs.job import RULE_SETS, JobSpec


class Option(NamedTuple):
    """A row of the table."""

    ours: str  #: option of a job or layout; after `model.` a key of a model file; empty: what a writer works out.
    name: str = ""  #: the setting as the framework spells it; empty where it has none.
    #: our values -> its own; None: the same whole number. Without a setting, the values that it runs anyway.
    words: Mapping[Any, Any] | None = None
    #: our value where its files say nothing; None: nothing is known then.
    usual: Any = None
    assumed: str = ""  #: what is said where that is taken.
    beside: str = ""  #: the degree that must be above 1 for it to say anything.
    missing: str = ""  #: hint where its files must say it and do not; empty where they need not.
    why: str = ""  #: why no other value than those of `words` can be told.


def _options(rows: Iterable[Mapping[str, Any]]) -> Iterator[Option]:
    """Read rows of options: `only` has values that are called the same, `` for none given; `ours` may name several."""
    for row in rows:
        stated = dict(row)
        if "only" in stated:
            stated["words"] = {value: value for value in (None if one == "" else one for one in stated.pop("only"))}
        elif "words" in stated:
            stated["words"] = dict(stated["words"])
        ours = stated.pop("ours")
        for name in ours if isinstance(ours, list) else [ours]:
            yield Option(name, **stated)


EVERY = frozenset(RULE_SETS)
"""Rules of arithmetic, which hold for every framework."""

MEGATRON = frozenset(name for name in RULE_SETS if name.startswith("megatron-lm"))
FOLDED_MEGATRON = frozenset({"megatron-lm", "megatron-lm-2025", "megatron-lm-2024"})
"""Generations of Megatron-LM with separate expert grids, instances of the distributed optimizer, and FSDP."""

TORCHTITAN = frozenset({"torchtitan", "torchtitan-2024"})
FSDP2 = TORCHTITAN | {"accelerate"}
"""Frameworks that run PyTorch's fully_shard, and its tensor and context parallelism."""

DEEPSPEED = frozenset({"deepspeed", "megatron-deepspeed"})
NANOTRON = frozenset({"nanotron"})


class Rule(NamedTuple):
    """One reason why a candidate cannot run."""

    code: str  #: reason code of the JSON output.
    #: options that break it, the first to change first, and facts of the model that they break on: `heads`.
    options: tuple[str, ...]
    text: str  #: as a sentence.
    source: str  #: where it comes from; what a framework's own source says is `cited`.
    #: marks the candidates that break it, where it concerns the job; shape (N,).
    test: Callable[[Candidates, JobSpec], BoolArray]
    frameworks: frozenset[str] = EVERY  #: names of `RULE_SETS` for which it holds.
    #: whether any candidate of a job could break it; None where that is not known. What depends on offloading concerns
    #: only jobs that offload.
    concerns: Callable[[JobSpec], bool] | None = None

    def applies(self, job: JobSpec) -> bool:
        """Whether it holds for the job's framework and concerns the job."""
        return job.runtime.rule_set in self.frameworks and (self.concerns is None or self.concerns(job))

    def breaks(self, table: Candidates, job: JobSpec) -> BoolArray:
        """Mark the candidates that break it, shape (N,); none where it does not apply to the job."""
        return self.test(table, job) if self.applies(job) else np.zeros(len(table), dtype=bool)


def every(c: Candidates, _: JobSpec) -> BoolArray:
    """Mark all candidates: what breaks a rule whatever its layout, (N,)."""
    return np.ones(len(c), dtype=bool)


def rule(
    code: str,
    test: Callable[[Candidates, JobSpec], BoolArray],
    frameworks: frozenset[str] = EVERY,
    concerns: Callable[[JobSpec], bool] | None = None,
    limit: int = 0,
) -> Rule:
    """Make a rule of its row in `presets/known/rules.toml`, which may say a limit."""
    options, text, *where = known_table("rules")[code]
    source = where[0] if where else "docs/frameworks.md"
    return Rule(code, tuple(options.split()), text.format(limit), source, test, frameworks, concerns)


def any_of(c: Candidates, masks: Iterable[BoolArray]) -> BoolArray:
    """Mark the candidates that at least one mask marks, shape (N,); none where there are no masks."""
    return functools.reduce(np.logical_or, masks, np.zeros(len(c), dtype=bool))


class Cite(NamedTuple):
    """Where a framework states a rule."""

    where: str  #: file and line or option, at the commit of `Framework.basis`.
    missed: str = ""  #: what the framework's own check does not see: how such a layout fails instead.


@functools.cache
def _cites(name: str) -> Mapping[str, Cite]:
    rows = known_table("citations")[name] if name else {}
    return {code: Cite(*([row] if isinstance(row, str) else row)) for code, row in rows.items()}


class Framework(NamedTuple):
    """What one framework can run; the defaults are those of a framework that can do everything."""

    title: str
    basis: str  #: what was read: the commit, or releases and documentation of that time.
    citations: str = ""  #: its table in `presets/known/citations.toml`; empty where it has none.
    options: tuple[Option, ...] = ()  #: how it is told what it runs; empty where no files of it are read or written.
    tensor_parallel: bool = True
    sequence_parallel: str = "optional"  #: whether tensor parallelism comes with it `always`, `optional`ly or `never`.
    pipelines: bool = True
    interleaving: bool = True
    context_parallel: bool = True
    expert_parallel: bool = True
    #: which of `moe`, `gqa`, `latent` (attention) and `state_space` its models may have.
    layers: frozenset[str] = frozenset({"moe", "gqa", "latent", "state_space"})
    schedules: frozenset[int] = frozenset(SCHEDULES.values())  #: codes of `SCHEDULES`.
    precisions: frozenset[str] = frozenset({"bf16", "fp16", "fp8", "fp4"}) | WIDE
    #: ways to quantise below 16 bits, as `JobSpec.recipe`.
    recipes: frozenset[str] = frozenset({"delayed", "current", "blockwise", "mx", "nvfp4"})
    offload: frozenset[str] = frozenset({"optimizer", "parameters", "activations"})  #: what may be kept in host memory.
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)  #: ZeRO stages that it has.
    #: those whose shards may be shared by fewer than all data-parallel ranks.
    hybrid_stages: tuple[int, ...] = (1, 2, 3)
    pipelined_stages: tuple[int, ...] = (0, 1, 2, 3)  #: those that go with pipelines.
    recompute_modules: int = (1 << 16) - 1  #: bits of the modules that can be recomputed by themselves.
    #: how many layers of a stage can be recomputed whole: `any` number, the same number `per chunk`, `every n-th` or
    #: `all`.
    recompute_layers: str = "any"
    #: whether the exchange of one microbatch's experts can run beside another microbatch.
    overlaps_exchange: bool = True
    even_chunks: bool = False  #: whether layers must divide evenly over stages and chunks.

    @property
    def cited(self) -> Mapping[str, Cite]:
        """Code of a rule -> where this framework states it."""
        return _cites(self.citations)


_MODULES = {**RECOMPUTE_MODULES, "every_other_matmul": EVERY_OTHER_MATMUL}
_READ: dict[str, Callable[[Any], Any]] = {
    "options": lambda rows: tuple(_options(rows)),
    "schedules": lambda names: frozenset(SCHEDULES[name] for name in names),
    "recompute_modules": lambda names: sum(_MODULES[name] for name in names),
    **dict.fromkeys(("zero_stages", "hybrid_stages", "pipelined_stages"), tuple),
    **dict.fromkeys(("layers", "precisions", "recipes", "offload"), frozenset),
}
"""Field of `Framework` -> what makes it of the list in a file; the others are as they stand there."""

FRAMEWORKS: dict[str, Framework] = {}
"""Name of `gpuscale.specs.job.RULE_SETS` -> what that framework can run."""

for _name, _table in known_table("rule_sets").items():
    _stated = {key: _READ[key](value) if key in _READ else value for key, value in _table.items() if key != "like"}
    FRAMEWORKS[_name] = FRAMEWORKS.get(_table.get("like"), Framework("", ""))._replace(**_stated)
