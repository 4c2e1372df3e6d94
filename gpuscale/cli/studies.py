"""`gpuscale sweep`, a study of many questions, and `gpuscale sweep show`, its results."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import OUTPUT, Json, option, plain, takes, whole
from gpuscale.files import printable
from gpuscale.render.output import print_rows_csv, print_rows_json
from gpuscale.request import COMPARED, PINS, JobOptions, Layout, Question, Recovery, declared
from gpuscale.units import plural

if TYPE_CHECKING:  # fmt: skip
    from gpuscale.studies.study import Study

PANEL = "Running"
ASKED = {name: "" for kind in (JobOptions, Layout, Question, Recovery) for name in declared(kind) if name != "why"}
LISTED = [name for name in ASKED if name not in PINS or name in COMPARED]
FAILED_CODE = 3
"""Exit code where questions failed, as of a command that asks one."""


@takes(JobOptions, Layout, Question, Recovery, several=LISTED, optional=True, only=ASKED)
def sweep(
    given: dict[str, Any],
    study_file: Annotated[
        Path | None, typer.Argument(metavar="STUDY.toml", help="A study file (docs/studies.md).", show_default=False)
    ] = None,
    task: Annotated[
        str | None, option("Question: plan, estimate, train-time or collective.", "NAME", "plan", panel="Question")
    ] = None,
    output: Annotated[Path | None, option(
        "Write the rows: .parquet, .csv or .jsonl. The same command resumes where it stopped.", "FILE",
        flags="--output -o", panel=OUTPUT,
    )] = None,
    jobs: Annotated[int, whole("Worker processes on this machine.", default="1", panel=PANEL)] = 1,
    scheduler: Annotated[str | None, option("Use a Dask cluster instead.", "ADDRESS", panel=PANEL)] = None,
    force: Annotated[bool, option("Overwrite a file that is not a result file.", "", panel=OUTPUT)] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Answer a study: every combination of its values, each a search of its own.

    Examples: gpuscale sweep study.toml -o results.parquet --jobs 8;
    gpuscale sweep --model llama3-8b,llama3-70b --gpus 64,128 -o results.csv

    Options override the file, and take lists of values. Answers are cached beside the results, in FILE.sqlite.
    """
    from gpuscale.render.answers import show as draw
    from gpuscale.studies.answers import needs
    from gpuscale.studies.query import Asked, Results, summarise
    from gpuscale.studies.run import stored_rows
    from gpuscale.studies.study import read_study

    gc.enable()  # the command line is made for short processes
    study = read_study(study_file, task=task, **given)
    shown = output is None and not json
    if shown:
        needs("duckdb", "summaries of results")
    with TemporaryDirectory() as folder:
        path = output or Path(folder) / "results.jsonl"
        done, failed = _run(study, path, jobs, scheduler, kept=output is not None, force=force)
        if json:
            print_rows_json("sweep", stored_rows(study, path))
        elif shown:
            with Results(path) as results:
                draw(summarise(results, Asked()))
    if failed:
        _note(f"{plural(failed, 'question')} failed, as `reason` says; the same command asks them again")
    typer.echo(done, err=True)
    if failed:
        raise typer.Exit(FAILED_CODE)


def _run(study: Study, output: Path, jobs: int, scheduler: str | None, *, kept: bool, force: bool) -> tuple[str, int]:
    """Answer the questions of a study; return what was done, and how many questions failed. Where `kept`, results stay
    where they are written."""
    from gpuscale.render.machine import progress_bar
    from gpuscale.studies.answers import ANSWERED, FAILED
    from gpuscale.studies.run import sweep as ask

    questions = rows = resumed = failed = answered = 0
    try:
        with (
            progress_bar() as progress,
            closing(ask(study, output, jobs, scheduler, progress, _note, force=force)) as answers,
        ):
            for one in answers:
                questions, rows, resumed = questions + 1, rows + len(one.rows), resumed + one.resumed
                failed += one.rows[0]["status"] == FAILED
                answered += one.rows[0]["status"] == ANSWERED
    except KeyboardInterrupt:
        again = "; the same command resumes" if kept else ""
        _note(f"stopped: {questions:,} of {study.size:,} questions are answered{again}")
        raise
    if questions > failed and not answered:
        _note("no question has an answer; `reason` says why not")
    return f"done: {plural(questions, 'question')}, {plural(rows, 'row')}, {resumed:,} resumed", failed


def _note(text: str) -> None:
    typer.echo(f"note: {printable(text)}", err=True)


@answers("sweep", csv=True)
def show(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results of a study: .parquet, .csv or .jsonl.")],
    where: Annotated[
        str | None, option("Only rows that satisfy this SQL condition: gpus <= 1024.", "CONDITION")
    ] = None,
    best_by: Annotated[str | None, option("The best row per group: model, or model,gpus.", "COLUMN,...")] = None,
    by: Annotated[str | None, option(
        "Column that decides which row is best: the lowest; -COLUMN: the highest.", "COLUMN",
        "the study's objective, or cost, or speed",
    )] = None,
    columns: Annotated[
        str | None, option("Columns to show.", "COLUMN,...", "those that vary, and the main results")
    ] = None,
    sort: Annotated[str | None, option("Sort order; -COLUMN: highest first.", "COLUMN,...", "best first")] = None,
    top: Annotated[int | None, option("Maximum number of rows.", parser=plain(int, 1, 1_000_000))] = None,
    heat: Annotated[
        str | None, option("A heat map: columns for its rows, columns and values.", "COLUMN,COLUMN,COLUMN")
    ] = None,
    frontier: Annotated[str | None, option("Pareto frontier of two columns.", "COLUMN,COLUMN")] = None,
    json: bool = False,
    csv: bool = False,
) -> Answer:  # fmt: skip
    """Show the results of a study: the best, why questions have no answer, heat maps, frontiers.

    Example: gpuscale sweep show results.parquet --where "gpus<=1024" --best-by model
    """
    from gpuscale.studies.query import Asked, Results, summarise

    asked = Asked(where, _names(columns), _names(best_by), by, _names(sort), top, _names(heat), _names(frontier))
    with Results(results) as table:
        if json:  # rows may be many: they are printed while they are read
            print_rows_json("sweep", table.rows(asked))
        elif csv:
            print_rows_csv(table.wanted(asked), table.rows(asked))
        return Answer(summarise(table, asked), streamed=json or csv)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split(","))
