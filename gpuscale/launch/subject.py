"""The plan that is asked about: where it is read from, and what is known of it before any question is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscale.arguments import taking
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch, with_given
from gpuscale.layouts.arrays import Candidates
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import Job
from gpuscale.planning.plans import job_from, legal_layout, naming
from gpuscale.request import JobOptions, Layout, taken, with_layout
from gpuscale.results import Estimate
from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.specs.job import JobSpec


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
    refuse_variables(variables, launch_files)
    if launch_files and plan_file:
        raise InputError("a plan file and launch files are two jobs", hint="give one of them")
    if launch_files:
        stated = with_given(read_launch(launch_files, variables, {**options, **layout}), options, layout)
        options, layout = stated.options, stated.layout
    with naming(plan_file, layout):
        return subject_of(*job_from(plan_file, options, layout), despite_rules=despite_rules)


def refuse_variables(variables: Mapping[str, str] | None, launch_files: Sequence[str | Path] | None) -> None:
    """Refuse values of variables without the files that leave them open."""
    if variables and not launch_files:
        raise InputError("says nothing without launch files", field="variables", hint="add `launch_files=PATH`")
