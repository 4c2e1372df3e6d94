"""What a target is, and a plan on its way into its files: what it has to express, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuscale.launch.settings import Reading, Source
from gpuscale.planning.jobs import Job
from gpuscale.request import Layout, declared, overlap_name, overlap_of, read
from gpuscale.results import PlanRow
from gpuscale.rules.rule import Option
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import ModelSpec


@dataclass(frozen=True)
class LaunchFile:
    """A file of an export."""

    path: str  #: relative to the folder of the export
    text: str  #: what it holds


@dataclass(frozen=True)
class Program:
    """What a target runs on every node."""

    script: str  #: what torchrun (or the target's own launcher) starts: `pretrain_gpt.py`, `-m torchtitan.train`.
    arguments: tuple[tuple[str, ...], ...] = ()  #: its options, each with its values: one line of a script each.
    files: tuple[LaunchFile, ...] = ()  #: configuration files that it reads.
    #: variable -> its value and the reason for it.
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: what starts it: `torchrun`, `deepspeed` or `accelerate`; None where the target's file is all.
    launcher: str | None = "torchrun"
    installed: bool = False  #: whether its script is a command that comes with its package.

    @property
    def file(self) -> str:
        """The script where it is a file of the framework's repository, which need not be where the export is."""
        return "" if self.installed or self.script.startswith("-") else self.script.partition(" ")[0]


class Writing:
    """A plan on its way into a target's files.

    A target asks for what it needs, refuses what it cannot express and warns of what a user has to see to.

    Attributes:
        job: the job as it was built; `job.spec` has the physics, `job.request` the options in full.
        layout: every value of `Layout`, none of them None.
        plan: the plan with its predictions.
        refused: option -> why the target cannot express its value, with the rule of the target.
        warnings: what a user has to see to.
        left: what the files do not set, and is named in the script.
    """

    def __init__(self, job: Job, plan: PlanRow) -> None:
        self.job, self.plan = job, plan
        stated = {**plan.to_dict(), "shard": plan.shard_size}
        stated["schedule"] = {"none": "1f1b", "interleaved": "1f1b"}.get(plan.schedule, plan.schedule)
        self.layout = read(Layout, {name: stated[name] for name in declared(Layout)})
        self.refused: dict[str, str] = {}
        self.warnings: list[str] = []
        self.left: list[str] = []

    @property
    def spec(self) -> JobSpec:
        """The job in SI units."""
        return self.job.spec

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""
        return self.job.spec.model

    def asked(self, name: str) -> Any:
        """Return an option of the job; None where it is as the framework has it."""
        return self.job.request.get(name)

    def value(self, name: str) -> Any:
        """Return an option of the job or of the layout, or after `model.` a key of a model file, as the plan has it."""
        spec, layout, model = self.spec, self.layout, self.spec.model
        attention = model.attentions[0] if model.attentions else None
        block = model.kinds[0].mlp or model.kinds[0].moe
        own = {
            "seq": spec.sequence, "gbs": spec.global_batch_size, "precision": spec.precision,
            "vocab_multiple": spec.vocab_multiple, "axis_order": "-".join(spec.axis_order),
            "overlap": overlap_name(overlap_of(spec.runtime)), "recompute": layout.recompute.partition(":")[0],
            "model.layers": model.layers, "model.hidden": model.hidden, "model.vocab": model.vocab,
            "model.ffn": block and block.ffn, "model.sequence": model.max_sequence,
            "model.heads": attention and attention.heads, "model.kv_heads": attention and attention.kv_heads,
            "model.tied_embeddings": model.tied_embeddings,
        }  # fmt: skip
        held = next((one for one in (layout, spec.runtime) if hasattr(one, name)), None)
        return own[name] if name in own else self.asked(name) if held is None else getattr(held, name)

    def told(self, table: Iterable[Option], worked_out: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a framework's table for the plan; what cannot be told is refused.

        Args:
            worked_out: values by option, or by setting where a row has no option.
        """
        found: dict[str, Any] = {}
        for row in table:
            unasked = row.words is not None and None in row.words  # whatever it runs, nobody may have asked for it
            if (row.ours or row.name) in worked_out:
                value = worked_out[row.ours or row.name]
            else:
                value = self.asked(row.ours) if unasked else self.value(row.ours)
            if row.words is not None and value not in row.words:
                self.refuse(row.ours, row.why if row.name else f"{row.why} ({row.ours} = {value})")
            elif row.name:
                found[row.name] = value if row.words is None else row.words[value]
        return found

    def refuse(self, name: str, why: str) -> None:
        """Say that the target cannot express an option of the plan."""
        self.refused.setdefault(name, why)

    def warn(self, text: str) -> None:
        """Say what a user has to see to."""
        if text not in self.warnings:
            self.warnings.append(text)

    def leave(self, text: str) -> None:
        """Say in the script what it does not set."""
        if text not in self.left:
            self.left.append(text)


def section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a section by their names in it."""
    own = ((key.removeprefix(f"{name}."), value) for key, value in settings.items() if key.startswith(f"{name}."))
    return {key: value for key, value in own if "." not in key}


class Target(NamedTuple):
    """A framework and its launch files."""

    name: str  #: as users give it.
    title: str  #: name for people.
    basis: str  #: the release or commit whose options are written, with its date.
    frameworks: tuple[str, ...]  #: presets of frameworks whose plans it runs; the first is taken where none is given.
    write: Callable[[Writing], Program] | None  #: makes the program of a plan; None for what is only read.
    claims: Callable[[Source], bool]  #: whether a source is one of this framework's.
    read: Callable[[Reading], None]  #: reads the sources that are claimed.
    attention: Mapping[str, str] = {}  #: `attention` -> its own word; what is not there, no setting of it says.
    adapters: bool = False  #: whether its files can say that adapters are trained, and what is frozen beside them.
    #: whether each export is read again, and refused where it runs something else than the plan.
    reads_again: bool = False
