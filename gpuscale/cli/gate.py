"""`gpuscale check`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuscale.cli.options import OUTPUT, Json, LaunchFiles, PlanFile, Variables, option, takes, variables, with_flags
from gpuscale.cli.streams import printed_to
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.request import JobOptions, Layout, one_of

LIMITS = "Limits"
FORMATS = ("text", "json", "github", "junit", "sarif")


@takes(JobOptions, Layout, optional=True)
def check(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    max_memory: Annotated[
        str | None, option("Most memory of a GPU: 70GiB, or 90% of what it has.", "SIZE|PERCENT", panel=LIMITS)
    ] = None,
    min_mfu: Annotated[str | None, option("Least MFU.", "PERCENT", panel=LIMITS)] = None,
    max_step_time: Annotated[str | None, option("Longest step, such as 12s.", "TIME", panel=LIMITS)] = None,
    baseline: Annotated[
        Path | None, option("A plan file: what it predicted is what this must keep.", "PLAN.toml", panel=LIMITS)
    ] = None,
    max_regression: Annotated[
        str | None, option("Most time per token and memory over the baseline's.", "PERCENT", "5%", panel=LIMITS)
    ] = None,
    format: Annotated[
        str | None, option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", "NAME", "text", panel=OUTPUT)
    ] = None,
    json: Json = False,
    output: Annotated[
        Path | None, option("Write what is printed to a file.", "FILE", flags="--output -o", panel=OUTPUT)
    ] = None,
) -> None:
    """Say whether a job may launch: the framework's rules, memory, your limits, and what costs more than it has to.

    Examples: gpuscale check --from run.sh --max-memory 90%; gpuscale check --baseline plan.toml --max-regression 5%

    Exit codes: 0 nothing stands against it, 1 an error or a broken limit, 2 unusable input.
    """
    from gpuscale.launch.check import check as look
    from gpuscale.render.answers import show
    from gpuscale.render.check import FORMATS as WRITERS
    from gpuscale.render.check import check_verdict, for_terminal
    from gpuscale.render.output import print_json

    form = one_of("format", format, FORMATS) if format else "json" if json else "text"
    if json and form != "json":
        raise InputError(f"`json` and `format={form}` are two formats of the same findings", hint="give one of them")
    result = look(
        plan_file,
        launch_files=launch_files or (),
        variables=variables(var, launch_files),
        baseline=baseline,
        max_memory=max_memory,
        min_mfu=min_mfu,
        max_step_time=max_step_time,
        max_regression=max_regression,
        **given,
    )
    spelled = tuple(replace(one, message=with_flags(one.message)) for one in result.findings)
    result = replace(result, findings=spelled)
    with printed_to(output):
        if form == "json":
            print_json("check", result)
        elif form == "text":
            show(result)
        else:
            sys.stdout.write(for_terminal(WRITERS[form](result)))
    if not result.ok:
        worst = ", ".join(dict.fromkeys(one.rule for one in result.findings if one.severity == "error"))
        raise NoAnswerError(f"the job fails the check: {worst}")
    if form not in {"text", "json"}:
        typer.echo(check_verdict(result), err=True)
