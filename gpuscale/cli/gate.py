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
        str | None, option("Maximum memory per GPU: 70GiB, or 90% of its capacity.", "SIZE|PERCENT", panel=LIMITS)
    ] = None,
    min_mfu: Annotated[str | None, option("Least MFU.", "PERCENT", panel=LIMITS)] = None,
    max_step_time: Annotated[str | None, option("Maximum step time, such as 12s.", "TIME", panel=LIMITS)] = None,
    baseline: Annotated[
        Path | None, option("A plan file whose predictions this job must keep to.", "PLAN.toml", panel=LIMITS)
    ] = None,
    max_regression: Annotated[
        str | None,
        option("Maximum increase of time per token and of memory over the baseline.", "PERCENT", "5%", panel=LIMITS),
    ] = None,
    format: Annotated[
        str | None, option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", "NAME", "text", panel=OUTPUT)
    ] = None,
    json: Json = False,
    output: Annotated[
        Path | None, option("Write the output to a file.", "FILE", flags="--output -o", panel=OUTPUT)
    ] = None,
) -> None:
    """Check a job before launch: the framework's rules, memory, your limits, and avoidable costs.

    Examples: gpuscale check --from run.sh --max-memory 90%; gpuscale check --baseline plan.toml --max-regression 5%

    Exit codes: 0 passed, 1 an error or an exceeded limit, 2 unusable input.
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
