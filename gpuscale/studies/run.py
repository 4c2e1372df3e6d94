"""A study is run: what is stored already is skipped, the rest is answered, here or by others, and stored.

Stored is in an SQLite file each answer as soon as there is one. Each process of this machine that answers is a Python
of its own. It imports gpuscale alone, so that notebooks and scripts may ask for workers as they are, and it ends with
the process that started it, however that ends.
"""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import compress, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from gpuscale.arguments import public
from gpuscale.errors import InputError
from gpuscale.files import is_there, refuse_irregular
from gpuscale.studies.answers import (
    FAILED,
    Answered,
    answer,
    check_output,
    columns,
    failed,
    in_columns,
    refuse_foreign,
    write_results,
)
from gpuscale.studies.dask_cluster import check_address, on_cluster
from gpuscale.studies.study import Case, Row, Study, read_study

APPLICATION, LAYOUT = 0x67707363, 1
"""What marks the SQLite file as ours ("gpsc"), and the version of its tables."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE answers (question TEXT PRIMARY KEY, digest TEXT NOT NULL, failed INTEGER NOT NULL, rows TEXT NOT NULL);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""
_ASKED = "CREATE TEMP TABLE asked (position INTEGER PRIMARY KEY, question TEXT UNIQUE, digest TEXT)"


class Store:
    """Answers by their questions, and which a study asks for. An answer of another version or presets counts as none.
    One process at a time has a store open; what it stored survives its end by any signal."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def ask(self, case: Case) -> tuple[tuple[Row, ...], bool]:
        """Note a question; return its rows, none if it is to be asked, and whether an answer is of another version or
        presets."""
        question = _question(case)
        self._db.execute("INSERT OR IGNORE INTO asked (question, digest) VALUES (?, ?)", (question, case.digest))
        found = self._db.execute("SELECT digest, failed, rows FROM answers WHERE question = ?", (question,)).fetchone()
        if found is None or found[0] != case.digest:
            return (), found is not None
        return () if found[1] else _read(found[2]), False

    def add(self, answered: Answered) -> None:
        """Store the answer to a question."""
        failed = any(row["status"] == FAILED for row in answered.rows)
        answer = (_question(answered.case), answered.case.digest, failed, json.dumps(answered.rows))
        with _refusing():
            self._db.execute("REPLACE INTO answers VALUES (?, ?, ?, ?)", answer)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the noted questions, in their order."""
        every = "SELECT rows FROM asked JOIN answers USING (question, digest) ORDER BY position"
        for (rows,) in self._db.execute(every):
            yield from _read(rows)


def _read(text: str) -> tuple[Row, ...]:
    try:
        rows = json.loads(text)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) and "key" in row for row in rows):
            return tuple(rows)
    except (ValueError, TypeError, RecursionError):
        pass
    raise InputError("the store of answers is damaged", hint="move it away, or write the results elsewhere")


def _question(case: Case) -> str:
    return replace(case, digest="").key


@contextmanager
def opened(path: Path | None) -> Iterator[Store]:
    """Open a store, made anew where there is none and kept if anything is stored; without a path, gone afterwards.

    Raises:
        InputError: the file is something else, another process has it open, or it cannot be written.
    """
    made = path is not None and not is_there(path)
    if path is not None and not made:
        refuse_irregular(path, "a store of answers")
    place = None if path is None else repr(str(path)[:300])
    with _refusing(place):
        # without a name: a temporary file of SQLite's own
        db = sqlite3.connect(path or "", timeout=0, isolation_level=None, check_same_thread=False)
    try:
        with _refusing(place):
            _prepare(db, place)
        yield Store(db)
    finally:
        empty = False  # where that cannot be read there may be an answer
        with suppress(sqlite3.Error):
            tables, answers = "SELECT 1 FROM sqlite_master WHERE name = 'answers'", "SELECT 1 FROM answers LIMIT 1"
            empty = not (db.execute(tables).fetchone() and db.execute(answers).fetchone())
        db.close()
        if path is not None and made and empty:
            path.unlink(missing_ok=True)


def _prepare(db: sqlite3.Connection, place: str | None) -> None:
    """Lock the database, see to it that it is a store, and set how it is written."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the first access on, until this process ends
    ((marked,), (layout,), (tables,)) = (
        db.execute(query).fetchone()
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if tables and (marked, layout) != (APPLICATION, LAYOUT):
        what = "holds no answers of a study" if marked != APPLICATION else f"has layout {layout}, not {LAYOUT}"
        raise InputError(what, place=place, hint="move it away, or write the results elsewhere")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut at most the last answers
    if not tables:
        db.executescript(_TABLES)
    db.execute(_ASKED)


@contextmanager
def _refusing(place: str | None = None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            message, hint = "another run has it open", "wait for it, or write the results elsewhere"
        elif code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            message, hint = "is not a store of answers, or is damaged", "move it away, or write the results elsewhere"
        else:
            message, hint = f"cannot be written: {error}", "give a file in a folder that exists and can be written to"
        raise InputError(message, place=place, hint=hint) from None


MAX_JOBS = 1024
QUEUED = 2
"""Questions with each worker: none waits for the next, and few are lost with a kill."""

_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}
"""Variables of workers, as of the `gpuscale` command: one thread, no plugins."""

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from gpuscale.studies.run import work; work()"


def _in_processes(cases: Iterator[Case], jobs: int) -> Iterator[Answered]:
    """Answer questions in `jobs` processes; yield the answers as they come.

    A question whose process dies, as for lack of memory, is asked once more, then recorded as failed.

    Raises:
        InputError: the processes do not start.
    """
    with _Workers() as workers, ThreadPoolExecutor(jobs) as threads:
        try:
            waiting = {threads.submit(workers.ask, case) for case in islice(cases, QUEUED * jobs)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {threads.submit(workers.ask, case) for case in islice(cases, len(done))}
                for one in done:
                    yield one.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            workers.end()


class _Workers:
    """The processes: each thread that asks has one of its own."""

    def __init__(self) -> None:
        self._own, self._lock = threading.local(), threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def ask(self, case: Case) -> Answered:
        for _ in range(2):
            process = getattr(self._own, "process", None) or self._start()
            try:
                return Answered(case, _told(process, case))
            except (EOFError, OSError, pickle.UnpicklingError):
                self._own.process = None
                process.kill()
                ended = process.wait()
            if self._ended:
                break
        return failed(case, f"its process ended twice, {f'by signal {-ended}' if ended < 0 else f'with code {ended}'}")

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", _PROGRAM, *sys.path]
        with self._lock:  # none starts once they are ended
            if self._ended:
                raise InputError("the workers are ended")
            # in a group of its own: Ctrl-C is for the process that asks, which ends the workers
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1,
                                       env={**_SETTINGS, **os.environ}, process_group=0)  # fmt: skip
            self._all.append(process)
        try:
            _told(process, None)
        except (EOFError, OSError, pickle.UnpicklingError):
            hint = f"see whether {sys.executable} can import gpuscale"
            raise InputError("the worker processes do not start", field="jobs", hint=hint) from None
        self._own.process = process
        return process

    def end(self) -> None:
        with self._lock:
            self._ended = True
        for process in self._all:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            with suppress(OSError):  # a question that was not sent
                process.__exit__(None, None, None)


def _told(process: subprocess.Popen[bytes], case: Case | None) -> tuple[Row, ...]:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(case, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def work() -> None:
    """Be a worker: read questions from stdin, write their rows to what was stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed
    questions: SimpleQueue[Case | None] = SimpleQueue()

    def read() -> None:
        """Pass on what stdin says; end the process with it."""
        while True:
            try:
                questions.put(pickle.load(sys.stdin.buffer))
            except (EOFError, pickle.UnpicklingError):
                os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        case = questions.get()
        pickle.dump(() if case is None else answer(case).rows, answers)
        answers.flush()


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
        executor = partial(_in_processes, jobs=jobs)
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


def _store_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.sqlite")


def stored_rows(study: Study, output: Path) -> Iterator[Row]:
    """Yield the rows of a study that are stored, in its order, as its results have them.

    Raises:
        InputError: unusable input.
    """
    with opened(_store_of(output)) as store:
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
    with opened(None if output is None else _store_of(output)) as store:
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
