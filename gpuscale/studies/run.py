"""A study is run: what is stored already is skipped, the rest is answered, here or by others, and stored."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from gpuscale.arguments import public
from gpuscale.errors import InputError
from gpuscale.studies.answers import Answered, answer, columns
from gpuscale.studies.cases import Case, Row
from gpuscale.studies.dask_cluster import check_address, on_cluster
from gpuscale.studies.processes import MAX_JOBS, in_processes
from gpuscale.studies.result_files import check_output, in_columns, refuse_foreign, write_results
from gpuscale.studies.store import opened
from gpuscale.studies.study import Study, read_study

Progress = Callable[[int, int, str], None]
"""Told how many questions are answered, of how many, and the newest."""


@public
def sweep(
    study: str | Path | Mapping[str, Any] | Study,
    output: str | Path | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    *,
    force: bool = False,
) -> Generator[Answered]:
    """Answer the questions of a study; yield the answers as they come, first those that are stored already.

    With `output`, each answer is stored in `OUTPUT.sqlite` before it is yielded, and the next run continues from there.
    The file itself is written at the end, with rows in the order of the study, also of a run stopped after an answer.

    Args:
        study: its file, what such a file holds, or a study that was read.
        output: the file of results, in the format that its name ends with: `.parquet`, `.csv` or `.jsonl`.
        jobs: processes of this machine that answer.
        scheduler: the address of a Dask cluster that answers instead.
        progress: told of each answer that is not stored yet.
        note: told what is worth knowing before the first question.
        force: also replace a file that holds something else than results.

    Raises:
        InputError: unusable input.
    """
    asked = study if isinstance(study, Study) else read_study(study)
    path = None if output is None else Path(output)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"{jobs} is out of range", field="jobs", hint=f"give 1 to {MAX_JOBS}")
    executor: Callable[[Iterator[Case]], Iterator[Answered]] = partial(map, answer)
    if jobs > 1:
        executor = partial(in_processes, jobs=jobs)
    if scheduler is not None:
        if jobs > 1:
            raise InputError("`jobs` and `scheduler` are mutually exclusive", hint="give one of them")
        check_address(scheduler)
        executor = partial(on_cluster, address=scheduler)
    if path is not None:
        check_output(path)
        if not force:
            refuse_foreign(path)
    return _swept(asked, path, executor, progress, note)


def store_of(output: Path) -> Path:
    """Return where the answers behind a file of results are stored."""
    return output.with_name(f"{output.name}.sqlite")


def stored_rows(study: Study, output: Path) -> Iterator[Row]:
    """Yield the rows of a study that are stored, in its order, as its results have them.

    Raises:
        InputError: unusable input.
    """
    with opened(store_of(output)) as store:
        for case in study.cases():
            store.ask(case)
        yield from in_columns(columns(study), store.rows())


def _swept(
    study: Study,
    output: Path | None,
    executor: Callable[[Iterator[Case]], Iterator[Answered]],
    progress: Progress | None,
    note: Callable[[str], None] | None,
) -> Generator[Answered]:
    with opened(None if output is None else store_of(output)) as store:
        missing, others, stored = array("b"), 0, 0
        for case in study.cases():
            rows, other = store.ask(case)
            missing.append(not rows)
            others += other
            stored += bool(rows)
            if rows:
                yield Answered(case, rows, resumed=True)
        if others and note:
            note(f"{others:,} stored answers are of another version or other presets: their questions are asked again")
        try:
            answers, total = executor(compress(study.cases(), missing)), sum(missing)
            for done, answered in enumerate(answers, 1):
                store.add(answered)
                stored += 1
                if progress:
                    progress(done, total, "")
                yield answered
        finally:
            if output is not None and stored:
                write_results(output, columns(study), store.rows())
