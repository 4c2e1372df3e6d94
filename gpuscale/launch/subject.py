"""The plan that is asked about: where it is read from, and what is known of it before any question is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.arguments import public, taking
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch, with_given
from gpuscale.launch.settings import LaunchJob
from gpuscale.layouts.arrays import Candidates
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import Job
from gpuscale.planning.planfile import with_plan_file
from gpuscale.planning.plans import estimate_layout, job_of, legal_layout
from gpuscale.request import JobOptions, Layout, taken, with_layout
from gpuscale.results import Estimate
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.specs.job import JobSpec

_OF_A_GPU = re.compile(r"Blackwell|Hopper|does not run|has no \w+ arithmetic")
"""What errors say that another GPU would not raise."""


class StatedPlan(NamedTuple):
    """A plan as a plan file, launch files or arguments state it."""

    options: Mapping[str, Any]  #: of the job, by name.
    layout: Mapping[str, Any]  #: of the layout, by name.
    launch: LaunchJob | None = None  #: what launch files say, where they state it.
    layout_file: Path | None = None  #: the plan file that states all of the layout, if one does.

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the plan file in an error about its layout; say where the GPU in an error is nobody's choice."""
        try:
            yield
        except InputError as error:
            if self.layout_file and error.place == "layout":
                error.place = f"{self.layout_file}: layout"
            if self.launch and "cluster" not in self.options and _OF_A_GPU.search(error.message):
                ours = "no file names the GPU, and the usual one was taken: `cluster=NAME` names yours"
                error.hint = f"{error.hint}; {ours}" if error.hint else ours
            raise

    def estimate(self, *, despite_rules: bool = False) -> Estimate:
        """Evaluate it; see `gpuscale.estimate`."""
        with self.naming():
            return estimate_layout(job_of(self.options, self.layout), self.layout, despite_rules=despite_rules)


def stated_plan(
    plan_file: Path | None,
    options: Mapping[str, Any],
    layout: Mapping[str, Any],
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    texts: Mapping[str, str] | None = None,
) -> StatedPlan:
    """Return the plan of a plan file, of launch files or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        launch_files, variables, texts: as `gpuscale.read_launch` takes them.

    Raises:
        InputError: two files, neither a file nor a model with its GPUs, or unusable input.
    """
    refuse_variables(variables, launch_files)
    if launch_files and plan_file:
        raise InputError("a plan file and launch files are two jobs", hint="give one of them")
    if launch_files:
        job = with_given(read_launch(launch_files, variables, {**options, **layout}, texts=texts), options, layout)
        return StatedPlan(job.options, job.layout, job)
    if plan_file is not None:
        return StatedPlan(*with_plan_file(plan_file, options, layout), layout_file=None if layout else plan_file)
    missing = next((name for name in ("model", "gpus") if name not in options), None)
    if missing:
        raise InputError(f"`{missing}` is missing", hint="give `model` and `gpus`, a plan file, or `launch_files=PATH`")
    return StatedPlan(options, layout)


def refuse_variables(variables: object, launch_files: object) -> None:
    """Refuse values of variables without the files that leave them open."""
    if variables and not launch_files:
        raise InputError("has no effect without launch files", field="variables", hint="add `launch_files=PATH`")


@public
def estimate_file(path: str | Path) -> Estimate:
    """Evaluate the layout of a plan file, as `gpuscale plan -o` writes it."""
    return stated_plan(Path(path), {}, {}).estimate()


@displayed
@dataclass(frozen=True)
class LaunchEstimate:
    """What launch files are predicted to take."""

    estimate: Estimate  #: as of any layout
    job: LaunchJob = field(repr=False)  #: what the files state, and what was made of it

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.estimate/1`."""
        said = {name: [vars(one) for one in getattr(self.job, name)] for name in ("understood", "ignored", "assumed")}
        return {**self.estimate.to_dict(), **said}


@taking(taken(JobOptions, Layout, beside_files=True))
def estimate_launch(
    launch_files: Sequence[str | Path],
    options: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    despite_rules: bool = False,
    texts: Mapping[str, str] | None = None,
    **more: Any,
) -> LaunchEstimate:
    """Evaluate the job that launch files state.

    Args:
        launch_files, variables, texts: as in `read_launch`.
        options, layout: options of the job, and of the layout, in one piece each, by name; they and `more` replace
            what the files say.
        despite_rules: also a layout that the framework's rules refuse.

    Raises:
        InputError: as `read_launch` and `estimate` raise it; degrees that contradict the GPUs.
    """
    stated = stated_plan(None, *with_layout({**(options or {}), **more}, layout), launch_files, variables, texts=texts)
    assert stated.launch is not None
    return LaunchEstimate(stated.estimate(despite_rules=despite_rules), stated.launch)


@displayed
@dataclass(frozen=True)
class Subject:
    """One plan and its evaluation."""

    job: Job  #: the job with the options that it was made from.
    layout: Mapping[str, Any]  #: values of `gpuscale.request.Layout` by name, as they were given.
    rows: Candidates  #: the plan as the only candidate.
    evaluation: Evaluation  #: its memory and step time as arrays.
    estimate: Estimate  #: the same as a result, without `remedies`, which take longer than all else.

    @property
    def spec(self) -> JobSpec:
        """The job in SI units."""
        return self.job.spec


def subject_of(job: Job, layout: Mapping[str, Any], *, despite_rules: bool = False) -> Subject:
    """Return a layout of a job with its evaluation.

    Raises:
        InputError: degrees that do not multiply to the GPUs, or a layout that breaks a rule.
    """
    said, rows, _ = legal_layout(job, layout, despite_rules=despite_rules)
    evaluation = evaluate(rows, job.spec)
    return Subject(job, layout, rows, evaluation, describe(said, rows, evaluation))


@taking(taken(JobOptions, Layout, beside_files=True))
def read_subject(
    plan_file: Path | None = None,
    options: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    despite_rules: bool = False,
    **more: Any,
) -> Subject:
    """Return the plan of a file, of launch files or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        options, layout: options of the job, and of the layout, in one piece each, by name.
        launch_files, variables: as in `gpuscale.estimate_launch`.
        despite_rules: also a layout that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: two sources, none, or unusable input.
    """
    options, layout = with_layout({**(options or {}), **more}, layout)
    stated = stated_plan(plan_file, options, layout, launch_files, variables)
    with stated.naming():
        return subject_of(job_of(stated.options, stated.layout), stated.layout, despite_rules=despite_rules)
