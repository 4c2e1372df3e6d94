"""`gpuscale check`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.options import (
    OUTPUT,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    arguments,
    option,
    takes,
    variables,
    with_flags,
)
from gpuscale.cli.streams import printed_to
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.files import printable_lines, reading, refuse_irregular
from gpuscale.request import JobOptions, Layout, one_of

if TYPE_CHECKING:
    from gpuscale.launch.diagnosis import Diagnosis, Spelled

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
    error: Annotated[
        Path | None, option("Explain the error text of a run, of this job if one is given.", "FILE|-", flags="--error")
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

    Examples: gpuscale check --from run.sh --max-memory 90%; gpuscale check --baseline plan.toml --max-regression 5%;
    gpuscale check --error train.err --from run.sh

    Exit codes: 0 passed, 1 an error or an exceeded limit, 2 unusable input. With --error: 0 explained, 1 not known.
    """
    from gpuscale.launch.check import check as look
    from gpuscale.render.answers import show
    from gpuscale.render.launch import FORMATS as WRITERS
    from gpuscale.render.launch import check_verdict
    from gpuscale.render.output import print_json

    form = one_of("format", format, FORMATS) if format else "json" if json else "text"
    if json and form != "json":
        raise InputError(f"`json` and `format={form}` are two formats of the same findings", hint="give one of them")
    files: dict[str, Any] = {"launch_files": launch_files or (), "variables": variables(var, launch_files)}
    limits: dict[str, Any] = {"max_memory": max_memory, "min_mfu": min_mfu, "max_step_time": max_step_time,
                              "baseline": baseline, "max_regression": max_regression}  # fmt: skip
    if error is not None:
        refused = next((name for name, value in limits.items() if value is not None), None)
        if refused or form not in {"text", "json"}:
            message = f"has no effect with `error={error}`"
            raise InputError(message, field=refused or "format", hint="check the job without `error`")
        files |= {"spelled": _spelled(given, plan_file, launch_files, var)}
        with printed_to(output):
            _explain(_error_text(error), form, plan_file=plan_file, **files, **given)
        return
    result = look(plan_file, **files, **limits, **given)
    spelled = tuple(replace(one, message=with_flags(one.message)) for one in result.findings)
    result = replace(result, findings=spelled)
    with printed_to(output):
        if form == "json":
            print_json("check", result)
        elif form == "text":
            show(result)
        else:
            sys.stdout.write(printable_lines(WRITERS[form](result)))
    if not result.ok:
        worst = ", ".join(dict.fromkeys(one.rule for one in result.findings if one.severity == "error"))
        raise NoAnswerError(f"the job fails the check: {worst}")
    if form not in {"text", "json"}:
        typer.echo(check_verdict(result), err=True)


def _explain(text: str, form: str, **asked: Any) -> None:
    from gpuscale.launch.diagnosis import diagnose
    from gpuscale.render.answers import show
    from gpuscale.render.launch import closest_lines
    from gpuscale.render.output import print_json

    found = diagnose(text, **asked)
    if form == "json":
        print_json("check-error", _in_flags(found))
    else:
        show(found, spell=with_flags)
    if not found.recognised:
        near = closest_lines(found)
        hint = f"closest: {near[0]}" if near else "give the whole message, as the framework printed it"
        raise NoAnswerError("the text has no error that is known", hint=hint)


def _error_text(path: Path) -> str:
    from gpuscale.launch.diagnosis import MAX_TEXT_BYTES

    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_TEXT_BYTES + 1).decode(errors="replace")
    refuse_irregular(path, "a text", hint="save the output in a file, or pipe it into `error=-`")
    with reading(path) as stream:
        return stream.read(MAX_TEXT_BYTES + 1).decode(errors="replace")


def _spelled(
    given: dict[str, Any], plan_file: Path | None, launch_files: list[str] | None, var: list[str] | None
) -> Spelled:
    """Return what writes a command for the job, with options that change."""

    def spell(command: str, change: Mapping[str, Any]) -> tuple[str, ...]:
        files = [
            *([str(plan_file)] if plan_file else []),
            *(one for path in launch_files or () for one in ("--from", path)),
        ]
        name, *flags = arguments(command, {**given, **change})
        return (name, *files, *(one for text in var or () for one in ("--var", text)), *flags)

    return spell


def _in_flags(found: Diagnosis) -> Diagnosis:
    spell: Callable[[str], str] = with_flags
    errors = []
    for one in found.errors:
        here = None if one.here is None else tuple(map(spell, one.here))
        errors.append(replace(one, message=spell(one.message), here=here, advice=tuple(map(spell, one.advice))))
    return replace(found, errors=tuple(errors))
