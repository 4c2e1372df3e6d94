"""What the results of a study say: their summary, and questions answered by DuckDB on a table in memory.

Results and conditions come from outside: once the table is loaded the engine can reach no file and change no setting,
a condition is made of comparisons and arithmetic on the table's columns and nothing else, and memory and time end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

from gpuscale.arguments import public
from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.files import expecting, reading, refuse_irregular
from gpuscale.request import Layout, declared
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.studies.answers import ANSWERED, COMMON, LAYOUT, needs
from gpuscale.studies.study import TASKS, Row, options_of

MEMORY, MAX_QUERY_S = "2GiB", 60.0
"""Memory of the engine, and time of one query, at most."""

MAX_COLUMNS, MAX_CONDITION, MAX_DEPTH, MAX_NAMED = 1000, 1000, 100, 20
"""Columns of a file, characters of a condition (its parser's time grows with their cube), parts within each other,
columns that an option names."""

READERS = {
    ".parquet": "read_parquet(?)",
    ".csv": "read_csv(?, header = true, delim = ',', quote = '\"', escape = '\"', sample_size = -1, "
    "types = {'key': 'VARCHAR', 'task': 'VARCHAR', 'status': 'VARCHAR', 'reason': 'VARCHAR'}, "
    "auto_type_candidates = ['BOOLEAN', 'BIGINT', 'DOUBLE', 'VARCHAR'])",
    ".jsonl": "read_json(?, format = 'newline_delimited', maximum_depth = 1, sample_size = -1, "
    "maximum_object_size = 1048576)",
}
"""Ending of a file -> what DuckDB reads it with; values of JSON stay as written there."""

KINDS: Mapping[str, type] = {"BOOLEAN": bool, "BIGINT": int, "DOUBLE": float, "VARCHAR": str}
ORDER = "#"
"""Column that holds the place of a row in the study."""

RISING = {
    "tokens_per_s_per_gpu", "tflops_per_gpu", "effective_ratio", "algbw_bytes_per_s", "busbw_bytes_per_s",
    *(one.key for one in OBJECTIVES.values() if one.rising),
}  # fmt: skip
"""Columns of which more is better; of others less is."""

USUAL = (
    "usd_to_train", "cost_usd", "usd_per_1e9_tokens", "tokens_per_s_per_gpu", "gpu_hours", "busbw_bytes_per_s",
    "step_time_s", "time_s",
)  # fmt: skip
"""What rows are best by where nothing is said: the first that all answers have, or any."""

OF_QUESTIONS = {
    *COMMON,
    "what_if",
    LAYOUT,
    *(name for task in TASKS for name in options_of(task) if name not in declared(Layout)),
}

ALLOWED = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CASE", "CAST", "FUNCTION"}
FUNCTIONS = {
    "+", "-", "*", "/", "//", "%", "abs", "round", "floor", "ceil", "least", "greatest", "coalesce",
    "~~", "!~~", "~~*", "!~~*", "lower", "upper", "contains", "starts_with", "prefix", "suffix", "ends_with",
}  # fmt: skip
"""What a condition may be made of, as DuckDB's parser names it (`~~` is LIKE)."""


@dataclass(frozen=True)
class Asked:
    """What is asked of results; columns by name, with `-` before one of which the most comes first."""

    where: str | None = None  #: a condition on columns, as in SQL; None for all rows.
    columns: Sequence[str] = ()  #: those wanted; all where none is named.
    best_by: Sequence[str] = ()  #: of all rows that agree in these, the best is taken.
    #: the column, or objective of `plan`, that decides which row is best; None for the usual one.
    by: str | None = None
    sort: Sequence[str] = ()
    top: int | None = None
    #: columns of a heat map: of its rows, of its columns, and of its values; the best row of each pair is taken.
    heat: Sequence[str] = ()
    frontier: Sequence[str] = ()  #: two columns: the rows are taken than which none is better by both.
    answered: bool = False


@dataclass(frozen=True)
class Goal:
    """A column by which rows are better or worse."""

    column: str
    rising: bool  #: more is better.

    @property
    def score(self) -> str:
        """SQL of a number that is the less the better."""
        number = f"CAST({quoted(self.column)} AS DOUBLE)"  # a column without values is one of texts in CSV and JSON
        return f"-{number}" if self.rising else number

    @property
    def order(self) -> str:
        """SQL of the order with the best first."""
        return f"{quoted(self.column)} {'DESC' if self.rising else 'ASC'} NULLS LAST"


class Results:
    """The results of a study, loaded."""

    path: Path
    columns: dict[str, type]  #: in the file's order: what was asked, then `status`, then what was found.

    def __init__(self, path: Path) -> None:
        needs("duckdb", "questions about results")
        import duckdb  # noqa: PLC0415 - an extra

        reader = READERS.get(path.suffix.lower())
        if reader is None:
            hint = f"its name ends in {', '.join(READERS)}"
            with expecting(path, "results"):
                raise InputError("not a file of results", place=str(path)[:300], hint=hint)
        refuse_irregular(path, "a file of results")
        if _is_no_text(str(path.resolve())):
            raise InputError("its name is not UTF-8", place=str(path)[:300], hint="rename it")
        settings: dict[str, Any] = {"threads": 1, "memory_limit": MEMORY, "temp_directory": ""}
        settings |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        self.path, self._db = path, duckdb.connect(":memory:", config=settings)
        with expecting(path, "results"), reading(path), self._bounded(place=str(path)[:300]):
            self._load(reader, re.sub(r"([\[*?])", r"[\1]", str(path.resolve())))
        self._db.execute(f"SET max_expression_depth = {MAX_DEPTH}")
        self._db.execute("SET enable_external_access = false")
        self._db.execute("SET lock_configuration = true")

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _load(self, reader: str, name: str) -> None:
        """Make the table, with types of its own alone and no number that JSON has not."""
        described = self._db.execute(f"DESCRIBE SELECT * FROM {reader}", [name]).fetchall()
        types = {str(column): str(kind) for column, kind, *_ in described}
        if not types.keys() >= COMMON.keys() or {*map(str.lower, types)} & {ORDER, "rowid"} or len(types) > MAX_COLUMNS:
            hint = "it is what `gpuscale sweep STUDY.toml -o FILE` wrote"
            raise InputError("not the results of a study", place=str(self.path)[:300], hint=hint)
        values = {column: quoted(column) for column in types}
        if path_is_json := self.path.suffix.lower() == ".jsonl":
            lists = ", ".join(f"list(DISTINCT json_type({value}))" for value in values.values())
            found = self._db.execute(f"SELECT {lists} FROM {reader}", [name]).fetchone() or ()
            types = {column: _of_json(kinds or ()) for column, kinds in zip(types, found, strict=True)}
            values = {column: f"({value} ->> '$')" for column, value in values.items()}
        kinds = {column: kind if path_is_json else _of_duckdb(kind) for column, kind in types.items()}
        kinds |= dict.fromkeys(COMMON, "VARCHAR")
        made = []
        for column, value in values.items():
            cast = f"CAST({value} AS {kinds[column]})"
            finite = f"CASE WHEN isfinite({cast}) THEN {cast} END" if kinds[column] == "DOUBLE" else cast
            made.append(f"{finite} AS {quoted(column)}")
        self._db.execute(f"CREATE TABLE results AS SELECT {', '.join(made)} FROM {reader}", [name])
        self.columns = {column: KINDS[kind] for column, kind in kinds.items()}

    @contextmanager
    def _bounded(self, field: str | None = None, place: str | None = None, engine: Any = None) -> Iterator[None]:
        """Say what the engine refuses, and end what takes long.

        Raises:
            InputError: it refuses, or takes more than `MAX_QUERY_S` or `MEMORY`.
            KeyboardInterrupt: a signal came.
        """
        import duckdb  # noqa: PLC0415 - an extra

        timer = Timer(MAX_QUERY_S, (engine or self._db).interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.InterruptException:
            raise InputError(f"takes more than {MAX_QUERY_S:.0f} s", field=field, place=place) from None
        except duckdb.OutOfMemoryException:
            raise InputError(f"takes more than {MEMORY} of memory", field=field, place=place) from None
        except duckdb.Error as error:
            said = str(error).partition("\n")[0][:200]
            raise InputError(f"cannot be read: {said}", field=field, place=place) from None
        except RuntimeError as error:
            if type(error) is not RuntimeError or "interrupt" not in str(error).lower():
                raise
            raise KeyboardInterrupt from None  # what the signal raised is lost
        finally:
            timer.cancel()
            timer.join()  # else its thread may be the last to let go of the engine, while the process ends

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, which names its columns by `quoted`."""
        with self._bounded("where"):
            found: list[tuple[Any, ...]] = self._db.execute(query).fetchall()
            return found

    def column(self, name: str, field: str) -> str:
        """Return the name of a column as the table has it.

        Raises:
            InputError: it has none of that name.
        """
        name = name.strip()
        if name not in self.columns:
            hint = did_you_mean(name, self.columns, count=3) + "the first line of `csv` has all"
            hint += "; text takes single quotes" if field == "where" else ""
            raise InputError(f"the results have no column {shown(name)}", field=field, hint=hint)
        return name

    def asked_columns(self) -> list[str]:
        """Return the columns of what was asked, the first ones."""
        return [name for name in takewhile(OF_QUESTIONS.__contains__, self.columns) if name not in COMMON]

    def goal(self, name: str, field: str) -> Goal:
        """Return a column or objective as what rows are better by; `-`: more is better."""
        plain = name.strip().removeprefix("-")
        if plain not in self.columns and plain in OBJECTIVES:
            plain = OBJECTIVES[plain].key
        column = self.column(plain, field)
        if self.columns[column] not in {int, float} and self.all(f"SELECT count({quoted(column)}) FROM results")[0][0]:
            raise InputError(f"{shown(column)} is not a column of numbers", field=field)
        return Goal(column, name.strip().startswith("-") or column in RISING)

    def best_by(self, asked: Asked) -> Goal | None:
        """Return what rows are best by: as asked, the study's objective, or the first of `USUAL` that fits."""
        if asked.by is not None:
            return self.goal(asked.by, "by")
        known = [name for name in USUAL if self.columns.get(name) in {int, float}]
        if "objective" in self.columns:
            one, *others = self.all("SELECT DISTINCT objective FROM results LIMIT 2") or [(None,)]
            key = OBJECTIVES[one[0]].key if not others and one[0] in OBJECTIVES else ""
            known = [key, *known] if key in self.columns else known
        counts = ", ".join([f"count_if(status = '{ANSWERED}')", *(f"count({quoted(name)})" for name in known)])
        answered, *found = self.all(f"SELECT {counts} FROM results")[0]
        valued = [(name, count) for name, count in zip(known, found, strict=True) if count]
        first = next((name for name, count in valued if count >= answered), valued[0][0] if valued else None)
        return None if first is None else Goal(first, first in RISING)

    def condition(self, where: str | None) -> str:
        """Return a condition as SQL that is empty but comparisons and arithmetic on columns.

        Raises:
            InputError: it holds anything else, or cannot be read.
        """
        if where is None:
            return "true"
        if len(where) > MAX_CONDITION:
            raise InputError(f"longer than {MAX_CONDITION:,} characters", field="where")
        if _is_no_text(where):
            raise InputError("is not text", field="where", hint=CONDITIONS)
        with self._bounded("where"):
            (read,) = self._db.execute("SELECT json_serialize_sql(?)", [f"SELECT (\n{where}\n)"]).fetchone() or ("{}",)
        tree = json.loads(read)
        if tree["error"]:
            message = f"is not a condition: {tree.get('error_message', '')[:200]}"
            raise InputError(message, field="where", hint=CONDITIONS)
        node, *others = (one["node"] for one in tree["statements"])
        single = not others and node["type"] == "SELECT_NODE" and len(node["select_list"]) == 1
        single = single and node["from_table"]["type"] == "EMPTY" and not node.get("cte_map", {}).get("map")
        more = ("where_clause", "having", "qualify", "sample", "modifiers", "group_sets")
        if not single or any(node.get(name) for name in more):
            raise InputError("is not one condition", field="where", hint=CONDITIONS)
        self._check(node["select_list"])
        return f"(\n{where}\n)"

    def _check(self, tree: Any) -> None:
        known = {name.lower(): name for name in self.columns}
        parts = [tree]
        for part in parts:
            if isinstance(part, list):
                parts += part
            if not isinstance(part, dict):
                continue
            kind = part.get("class", "CONSTANT")
            if kind not in ALLOWED:
                raise InputError(f"a condition holds no {str(kind).lower()}", field="where", hint=CONDITIONS)
            if kind == "FUNCTION" and part["function_name"] not in FUNCTIONS:
                raise InputError(f"unknown function {shown(part['function_name'])}", field="where", hint=CONDITIONS)
            if kind == "COLUMN_REF":
                name = ".".join(part["column_names"])
                self.column(known.get(name.lower(), name), "where")
            parts += [one for name, one in part.items() if name not in {"value", "literal"}]

    def _named(self, names: Sequence[str], field: str) -> list[str]:
        if len(names) > MAX_NAMED and field != "columns":
            raise InputError(f"names {len(names)} columns, at most {MAX_NAMED}", field=field)
        return list(dict.fromkeys(self.column(name, field) for name in names))

    def matching(self, asked: Asked) -> str:
        """Return the rows that are asked for as SQL, in no order."""
        found = f'SELECT *, rowid AS "{ORDER}" FROM results WHERE {self.condition(asked.where)}'
        found += f" AND status = '{ANSWERED}'" if asked.answered else ""
        alike = [*self._named(asked.best_by, "best_by"), *self._named(() if asked.frontier else asked.heat[:2], "heat")]
        if alike:
            goal = self.best_by(asked)
            order = f'{goal.order}, "{ORDER}"' if goal else f'"{ORDER}"'
            same = ", ".join(map(quoted, alike))
            found = f"SELECT * FROM ({found}) QUALIFY row_number() OVER (PARTITION BY {same} ORDER BY {order}) = 1"
        if asked.frontier:
            one, other = self.frontier_goals(asked)
            before = f'ORDER BY {one.score}, {other.score}, "{ORDER}" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING'
            best = f"min({other.score}) OVER ({before})"
            known = f"{quoted(one.column)} IS NOT NULL AND {quoted(other.column)} IS NOT NULL"
            found = f"SELECT * FROM ({found}) WHERE {known} QUALIFY {best} IS NULL OR {other.score} < {best}"
        return found

    def frontier_goals(self, asked: Asked) -> tuple[Goal, Goal]:
        """Return the two columns of a frontier."""
        if len(asked.frontier) != 2:
            hint = "give `frontier=step_time_s,memory_gib`"
            raise InputError("a frontier has two columns", field="frontier", hint=hint)
        one, other = (self.goal(name, "frontier") for name in asked.frontier)
        return one, other

    def _ordered(self, asked: Asked) -> str:
        if asked.sort:
            plain = [(self.column(name.strip().removeprefix("-"), "sort"), name) for name in asked.sort]
            parts = [f"{quoted(one)} {'DESC' if name.strip()[0] == '-' else 'ASC'} NULLS LAST" for one, name in plain]
        elif asked.frontier:
            parts = [self.frontier_goals(asked)[0].order]
        else:
            best = asked.by or asked.top or asked.best_by or asked.heat
            goal = self.best_by(asked) if best else None
            parts = [goal.order] if goal else []
        return ", ".join([*parts, f'"{ORDER}"'])

    def wanted(self, asked: Asked) -> list[str]:
        """Return the columns of the rows that are asked for."""
        return self._named(asked.columns, "columns") or [*self.columns]

    def rows(self, asked: Asked) -> Iterator[Row]:
        """Yield the rows that are asked for; ties are in the order of the study.

        Raises:
            InputError: an unknown column, or a condition that is none.
        """
        columns = self.wanted(asked)
        top = "" if asked.top is None else f"LIMIT {asked.top:d}"
        wanted = ", ".join(map(quoted, columns))
        query = f"SELECT {wanted} FROM ({self.matching(asked)}) ORDER BY {self._ordered(asked)} {top}"
        found = self._db.cursor()

        def fetched() -> list[tuple[Any, ...]]:
            with self._bounded("where", engine=found):
                group: list[tuple[Any, ...]] = found.fetchmany(1000)
                return group

        with self._bounded("where", engine=found):
            found.execute(query)
        for group in iter(fetched, []):
            yield from (dict(zip(columns, row, strict=True)) for row in group)


CONDITIONS = "compare columns, as in gpus <= 1024 and model like 'llama3%'"


@public
def read_results(
    results: str | Path,
    *,
    where: str | None = None,
    columns: Sequence[str] = (),
    best_by: Sequence[str] = (),
    by: str | None = None,
    sort: Sequence[str] = (),
    top: int | None = None,
    frontier: Sequence[str] = (),
) -> list[Row]:
    """Return rows of the results of a study, as `gpuscale sweep show --json` has them.

    Args:
        results: a file that `sweep` wrote: Parquet, CSV or JSON lines.
        where, columns, best_by, by, sort, top, frontier: as in `Asked`.

    Raises:
        InputError: DuckDB is not installed (`pip install 'gpuscale[sweep]'`), the file holds no results, an unknown
            column, or a condition that is none.
    """
    with Results(Path(results)) as table:
        asked = Asked(where, columns, best_by, by, sort, top, (), frontier)
        return [*table.rows(asked)]


def quoted(name: str) -> str:
    """Return a name as SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _is_no_text(text: str) -> bool:
    """Whether a text holds bytes that are no UTF-8, as arguments and names of files may."""
    return text.encode(errors="ignore").decode() != text


def _of_duckdb(kind: str) -> str:
    if re.fullmatch(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?", kind):
        return "BIGINT"
    if kind in {"FLOAT", "DOUBLE"} or kind.startswith("DECIMAL"):
        return "DOUBLE"
    return kind if kind == "BOOLEAN" else "VARCHAR"


def _of_json(kinds: Sequence[str | None]) -> str:
    found = {kind for kind in kinds if kind not in {None, "NULL"}}
    if found and found <= {"BIGINT", "UBIGINT"}:
        return "BIGINT"
    if found and found <= {"BIGINT", "UBIGINT", "DOUBLE"}:
        return "DOUBLE"
    return "BOOLEAN" if found == {"BOOLEAN"} else "VARCHAR"


SHOWN, MAX_SHADES, MAX_POINTS, MAX_COUNTS = 15, 40, 1000, 8
"""Rows if nothing is said; at most: values of a heat map's axis, points behind a frontier, reasons without an
answer."""


@dataclass(frozen=True)
class Unanswered:
    """Questions without an answer for one reason; numbers in it may differ."""

    status: str
    reason: str
    questions: int


@dataclass(frozen=True)
class Heat:
    """Values over two columns."""

    row: str
    column: str
    value: str
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    #: those of the best row of each pair, one tuple per row; None where there is none.
    values: tuple[tuple[float | None, ...], ...]


class Frontier(NamedTuple):
    """Rows than which none is better by both of two columns."""

    across: Goal
    up: Goal
    #: values of both of all rows, those on the frontier first and only there; at most `MAX_POINTS` behind it.
    points: tuple[tuple[float, float], ...]
    size: int  #: how many are on the frontier.


@dataclass(frozen=True)
class Summary:
    """What the results of a study say."""

    source: str
    columns: Mapping[str, type]
    wanted: tuple[str, ...]  #: columns that were named; empty for the usual ones.
    rows: tuple[Row, ...]  #: the best, or those that were asked for.
    matched: int  #: rows that meet the condition.
    #: how many of them are asked for, of which `rows` may be the first; with an answer if nothing else is said.
    of: int
    questions: int
    answered: int
    goal: Goal | None  #: what rows are best by; None where no row has a number.
    best: Row | None
    varying: tuple[str, ...]  #: columns of questions with several values.
    #: column of questions -> its value, where all have the same; without the settings of a named cluster.
    fixed: Mapping[str, Any]
    unanswered: tuple[Unanswered, ...]
    heat: Heat | None = None
    frontier: Frontier | None = None


def summarise(results: Results, asked: Asked) -> Summary:
    """Say what results show.

    Raises:
        InputError: an unknown column, a condition that is none, or too many values for a heat map.
    """
    condition = results.condition(asked.where)
    names = [name for name in results.asked_columns() if name != "set" or "what_if" not in results.columns]
    counts = [f"count(DISTINCT {name}) + CAST(count(*) > count({name}) AS INTEGER)" for name in map(quoted, names)]
    answered = f"count(DISTINCT key) FILTER (status = '{ANSWERED}')"
    matched, questions, answers, *found = results.all(
        f"SELECT {', '.join(['count(*)', 'count(DISTINCT key)', answered, *counts])} FROM results WHERE {condition}"
    )[0]
    values = dict(zip(names, found, strict=True))
    fixed = [name for name in names if values[name] == 1]
    first = f"SELECT {', '.join(f'any_value({quoted(name)})' for name in fixed)} FROM results WHERE {condition}"
    if not (asked.best_by or asked.sort or asked.columns):
        asked = replace(asked, answered=True)
    every = replace(asked, top=asked.top or SHOWN, columns=())
    goal = results.best_by(asked)
    best = next(results.rows(Asked(asked.where, by=asked.by, top=1)), None)
    if goal is None or best is None or best[goal.column] is None:
        goal = best = None
    ((of,),) = results.all(f"SELECT count(*) FROM ({results.matching(asked)})")
    unanswered = results.all(
        "SELECT status, arg_min(reason, rowid), count(DISTINCT key) AS questions FROM results "
        f"WHERE {condition} AND status <> '{ANSWERED}' "
        "GROUP BY status, regexp_replace(reason, '[0-9][0-9.,]*', '', 'g') ORDER BY questions DESC, min(rowid)"
    )
    return Summary(
        source=results.path.name,
        columns=results.columns,
        wanted=tuple(results.wanted(asked)) if asked.columns else (),
        rows=tuple(results.rows(every)),
        matched=matched,
        of=of,
        questions=questions,
        answered=answers,
        goal=goal,
        best=best,
        varying=tuple(name for name in names if values[name] > 1),
        fixed=dict(zip(fixed, results.all(first)[0], strict=True)) if fixed else {},
        unanswered=tuple(Unanswered(status, reason or "", count) for status, reason, count in unanswered),
        heat=_heat(results, asked) if asked.heat else None,
        frontier=_frontier(results, asked) if asked.frontier else None,
    )


def _heat(results: Results, asked: Asked) -> Heat:
    if len(asked.heat) != 3:
        raise InputError("a heat map has three columns", field="heat", hint="give `heat=model,gpus,mfu`")
    row, column = (results.column(name, "heat") for name in asked.heat[:2])
    value = results.goal(asked.heat[2], "heat").column
    axes, condition = [], results.condition(asked.where)
    for name in (row, column):
        order = "min(rowid)" if results.columns[name] is str else quoted(name)
        every = f"SELECT {quoted(name)} FROM results WHERE {condition} GROUP BY 1 ORDER BY {order}"
        axes.append([one for (one,) in results.all(every)])
        if len(axes[-1]) > MAX_SHADES:
            message = f"{name} has {len(axes[-1]):,} values, a heat map has {MAX_SHADES} at most"
            raise InputError(message, field="heat", hint="say which by `where`")
    wanted, best = ", ".join(map(quoted, (row, column, value))), replace(asked, best_by=(), frontier=())
    found = {
        (one, other): number for one, other, number in results.all(f"SELECT {wanted} FROM ({results.matching(best)})")
    }
    rows, columns = axes
    values = tuple(tuple(found.get((one, other)) for other in columns) for one in rows)
    return Heat(row, column, value, tuple(rows), tuple(columns), values)


def _frontier(results: Results, asked: Asked) -> Frontier:
    across, up = results.frontier_goals(asked)
    wanted = f"{quoted(across.column)}, {quoted(up.column)}"
    known = f"{quoted(across.column)} IS NOT NULL AND {quoted(up.column)} IS NOT NULL"
    on = results.all(f"SELECT {wanted} FROM ({results.matching(asked)}) ORDER BY {across.order}")
    every = results.matching(replace(asked, frontier=(), heat=()))
    behind = results.all(f'SELECT {wanted} FROM ({every}) WHERE {known} ORDER BY "{ORDER}" LIMIT {MAX_POINTS}')
    first = set(on)
    return Frontier(across, up, (*on, *(one for one in behind if one not in first)), len(on))
