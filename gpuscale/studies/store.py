"""Answers of studies on disk: an SQLite file, in which each question is stored as soon as it is answered."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gpuscale.errors import InputError
from gpuscale.files import is_there, refuse_irregular
from gpuscale.studies.answers import FAILED, Answered
from gpuscale.studies.cases import Case, Row

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
    """Answers by their questions, and which of them a study asks for.

    An answer of another version or of other presets than a question has now counts as none, and is replaced by the new
    one. One process at a time has a store open; what it has stored survives its end by any signal.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def ask(self, case: Case) -> tuple[tuple[Row, ...], bool]:
        """Note that a study asks a question, after those noted before it.

        Returns:
            its rows, none if it is to be asked (again); and whether there is an answer of another version or presets.
        """
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
        """Yield the rows of the questions that were noted, in their order, as far as they are answered."""
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
    """Turn what SQLite cannot do into an error of the input."""
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
