"""The answer to one question of a study as rows (what was asked, how it ended, and the columns of its result), and
all as a file: Parquet, CSV or JSON lines, by its ending, written while they come.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, get_args, get_origin, get_type_hints

from gpuscale.collectives.estimate import CollectiveEstimate, Siblings, price_collective
from gpuscale.collectives.nccl_constants import NEWEST, Tuning, parse_version
from gpuscale.display import displayed
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError, shown
from gpuscale.files import csv_cell, is_file, is_stdout, refuse_output, writing
from gpuscale.planning.comparing import WORTH
from gpuscale.planning.describe import describe
from gpuscale.planning.jobs import Presets
from gpuscale.planning.plans import job_of, legal_layout, plan
from gpuscale.presets.settings import with_settings
from gpuscale.request import Layout, choice_text, declared, without
from gpuscale.results import PlanRow
from gpuscale.search.evaluation import evaluate
from gpuscale.studies.study import Case, Row, Study, is_pin, options_of
from gpuscale.training.totals import TrainTime, train_time
from gpuscale.version import __version__

ANSWERED, NO_ANSWER, REFUSED, FAILED = "answered", "no_answer", "refused", "failed"
"""How a question ends (`status`), without an answer in one row with its `reason`; what failed is asked again."""

LAYOUT = "layout"
"""Column of what was asked of the layout: results have columns of the same names."""

COMMON = {
    "key": "name of the question: the same in every run of the same version on the same presets",
    "task": "the command that answers it",
    "status": f"`{ANSWERED}`, `{NO_ANSWER}` (nothing fits), `{REFUSED}` (it cannot be) or `{FAILED}`",
    "reason": "why there is no answer",
}
"""Columns that every row begins with, and what they say."""

RISK = {
    "p10_s": "with `risk`: seconds per step that one case in ten stays within",
    "median_s": "that half of the cases stay within",
    "p90_s": "that nine in ten stay within",
    "at_risk_s": "that the share asked for stays within; plans are ranked by it",
}
"""Columns of what may become of a plan."""

ASKED = {
    "what_if": "name of the changed cluster; null of a preset as it is",
    LAYOUT: "what was asked of the layout, as options",
}
"""Columns of what was asked that are no options."""


@displayed
@dataclass(frozen=True)
class Answered:
    """One question of a study with its rows."""

    case: Case
    rows: tuple[Row, ...]
    resumed: bool = False  #: it was answered by an earlier run.


def answer(case: Case) -> Answered:
    """Answer a question; a defect of gpuscale ends that question, not the study."""
    try:
        return Answered(case, tuple(rows_of(case)))
    except Exception as error:  # noqa: BLE001 - one of thousands
        return failed(case, f"{type(error).__name__}: {error}"[:300])


def failed(case: Case, reason: str) -> Answered:
    """Return what is recorded of a question that could not be answered."""
    return Answered(case, (_asked(case, FAILED, reason),))


def rows_of(case: Case) -> list[Row]:
    """Answer a question; whatever comes of it is at least one row."""
    try:
        found = list(_ANSWERS[case.task](case, dict(case.options)))
    except NoAnswerError as error:
        return [_asked(case, NO_ANSWER, error.message)]
    except GpuscaleError as error:
        field = f"{error.field}: " if error.field else ""
        return [_asked(case, REFUSED, f"{field}{error.message}")]
    asked = _asked(case, ANSWERED, None)
    return [{**asked, **row} for row in found]


def _asked(case: Case, status: str, reason: str | None) -> Row:
    options = without(case.options, Layout)
    layout = "; ".join(f"{name}={value}" for name, value in case.options.items() if name in declared(Layout))
    said = {LAYOUT: layout} if layout else {}
    return {"key": case.key, "task": case.task, "status": status, "reason": reason, **case.labels, **options, **said}


@lru_cache(maxsize=256)
def _presets(digest: str) -> Presets:  # noqa: ARG001 - other presets have another digest
    return Presets()


def _plans(case: Case, options: dict[str, Any]) -> Iterator[Row]:
    pins = _without(options, lambda name: is_pin(case.task, name))
    if "pareto" not in options:
        options.setdefault("top", 1)
    result = plan(options.pop("model"), options.pop("gpus"), pins=pins, presets=_presets(case.digest), **options)
    compared, risk = result.compared, result.risk
    for index, row in enumerate(result.plans):
        found = _flat(row) | {"notes": "; ".join(result.estimates[index].notes)}
        if compared:
            found |= compared.values[index]
        if compared and "space" in options:
            found["choice"] = choice_text(compared.variants[compared.of_plan[index]].choice)
        if risk:
            found |= {name: getattr(risk.plans[index], name) for name in RISK}
        yield found


def _estimate(case: Case, options: dict[str, Any]) -> Iterator[Row]:
    despite_rules = options.pop("despite_rules", False)
    layout = _without(options, lambda name: name in declared(Layout))
    job = job_of(options, layout, _presets(case.digest))
    said, rows, _ = legal_layout(job, layout, despite_rules=despite_rules)
    result = describe(said, rows, evaluate(rows, job.spec))
    yield _flat(result.plan) | {"notes": "; ".join(result.notes)}


def _train_time(case: Case, options: dict[str, Any]) -> Iterator[Row]:
    pins = _without(options, lambda name: is_pin(case.task, name))
    asked = [options.pop(name, None) for name in ("model", "gpus", "train_tokens")]
    result = train_time(*asked, days=options.pop("days", None), layout=pins, presets=_presets(case.digest), **options)
    yield {**_flat(result), **_flat(result.plan)}


def _collective(case: Case, options: dict[str, Any]) -> Iterator[Row]:
    name, settings = options.pop("cluster"), options.pop("set", "")
    cluster = with_settings(_presets(case.digest).cluster(name), settings)
    sharp, nvls = options.pop("sharp", None), options.pop("nvls", "on")
    cluster = cluster.adding_up(sharp=None if sharp is None else sharp == "on", nvls=nvls == "on")
    gpus, siblings = options.get("gpus"), Siblings(options.pop("stride", None), options.pop("concurrent", None))
    reach = 0 if gpus is None else siblings.reach(gpus)
    if reach > cluster.gpus and options.get("level") in {None, cluster.levels[-1].name}:
        cluster, _ = cluster.sized_for(reach)
    nccl = options.pop("nccl", None)
    tuning = Tuning(
        options.pop("channels", None), NEWEST if nccl is None else parse_version(nccl),
        options.pop("launch", "processes"), options.pop("imbalance", 1.0),
    )  # fmt: skip
    operation, size = options.pop("operation"), options.pop("bytes")
    yield _flat(price_collective(cluster, operation, size, siblings=siblings, tuning=tuning, **options))


_ANSWERS: dict[str, Callable[[Case, dict[str, Any]], Iterator[Row]]] = {
    "plan": _plans, "estimate": _estimate, "train-time": _train_time, "collective": _collective,
}  # fmt: skip


def _without(options: dict[str, Any], taken: Callable[[str], bool]) -> dict[str, Any]:
    return {name: options.pop(name) for name in tuple(options) if taken(name)}


RESULTS: dict[str, tuple[type, ...]] = {
    "plan": (PlanRow,), "estimate": (PlanRow,), "train-time": (TrainTime, PlanRow), "collective": (CollectiveEstimate,)
}  # fmt: skip
"""Task -> the results whose fields are its columns: texts, numbers, switches."""

OF_ASKED = ("model", "cluster", "op")


def _columns_of(result: type[Any]) -> dict[str, type]:
    """Return the fields of a result that are columns, with their types."""
    hints = get_type_hints(result)
    found: dict[str, type] = {}
    for name in (field.name for field in fields(result) if field.name not in OF_ASKED):
        hint, parts = hints[name], get_args(hints[name])
        if get_origin(hint) in {tuple, Mapping}:
            kind: type | None = str if get_origin(hint) is tuple and parts[0] is str else None
        else:
            kind = next((kind for kind in (bool, int, float, str) if kind in {hint, *parts}), None)
        if kind is not None:
            found[name] = kind
    return found


_COLUMNS = {result: _columns_of(result) for results in RESULTS.values() for result in results}


def _flat(result: Any) -> Row:
    values = {name: getattr(result, name) for name in _COLUMNS[type(result)]}
    return {name: "; ".join(value) if isinstance(value, tuple) else value for name, value in values.items()}


def columns(study: Study) -> dict[str, type]:
    """Return every column of the results of a study with its type: what was asked, then what was found.

    A result of the same name as an option stands in its column.
    """
    known = options_of(study.task)
    asked = without(study.values, Layout)
    found: dict[str, type] = dict.fromkeys(COMMON, str)
    for name, values in asked.items():
        kinds = declared(known[name])[name].kinds
        found[name] = next((kind for kind in (bool, int, float) if kind in kinds), str)
        if name == "gpu_hour_price":
            found[name] = float
        elif any(isinstance(value, str) for value in values):
            found[name] = str
        if name == "cluster":
            found |= {"what_if": str} if any(one.name for one in study.machines) else {}
            found |= {"set": str} if any(one.set for one in study.machines) else {}
    if any(one.usd_per_gpu_hour for one in study.machines) and "gpu_hour_price" in known:
        found["gpu_hour_price"] = float
    found |= {LAYOUT: str} if len(asked) < len(study.values) else {}
    for result in RESULTS[study.task]:
        found |= _COLUMNS[result]
    found |= {} if study.task == "collective" else {"notes": str}
    if study.task == "plan":
        found |= {goal.key: float for goal in WORTH} if set(found) & _WORTH_SAID else {}
        found |= {"choice": str} if "space" in asked else {}
        found |= dict.fromkeys(RISK, float) if "risk" in asked else {}
    return found


_WORTH_SAID = {
    "space", "gpu_hour_price", "price_term", "train_tokens", "objective", "pareto", "max_memory", "min_mfu",
    "max_step_time", "max_days", "max_cost",
}  # fmt: skip
"""Options beside which `plan` says what a plan is worth."""


SCHEMA = "gpuscale.sweep/1"
"""Name and version of the form of the rows, in the metadata of Parquet and in JSON."""

ROWS_AT_ONCE = 5000
"""Rows of a row group of Parquet, which are in memory together."""

Columns = Mapping[str, type]
"""Column -> type of its values, `bool`, `int`, `float` or `str`; each may also be None."""


def check_output(path: Path) -> None:
    """Refuse a file that results cannot be written to, before the study that fills it.

    Raises:
        InputError: an unknown ending, a library that is not installed, or a file that cannot be written.
    """
    if path.suffix.lower() not in _WRITERS or is_stdout(path):
        hint = f"end its name in {', '.join(_WRITERS)}"
        raise InputError(f"{shown(str(path))} is not a file of results", field="output", hint=hint)
    if path.suffix.lower() == ".parquet":
        needs("pyarrow", "Parquet files")
    refuse_output(path)


def refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that holds something else than results of a study.

    Raises:
        InputError: there is such a file.
    """
    if is_file(path) and path.stat().st_size and not _holds_results(path):
        hint = "write to another file, or say that it may go: `force`"
        raise InputError("holds something else than results of a study", place=repr(str(path)[:300]), hint=hint)


def _holds_results(path: Path) -> bool:
    if path.suffix.lower() == ".parquet":
        import pyarrow  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415

        try:
            return (parquet.read_schema(path).metadata or {}).get(b"schema") == SCHEMA.encode()
        except (OSError, pyarrow.ArrowException):
            return False
    with path.open("rb") as file:  # which does not make it an input that may not be replaced
        return file.read(64).startswith((b"key,task,status,reason", b'{"key":'))


def write_results(path: Path, columns: Columns, rows: Iterator[Row]) -> int:
    """Write the results of a study, whole or not at all, and return how many rows they are.

    At most `ROWS_AT_ONCE` rows are in memory; the same rows give the same bytes.

    Args:
        columns: in their order; a row without one has None there.

    Raises:
        InputError: as `check_output`.
    """
    check_output(path)
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for count, row in enumerate(in_columns(columns, rows), 1):  # noqa: B007 - it is what is returned
            yield row

    with writing(path) as file:
        _WRITERS[path.suffix.lower()](file, columns, counted())
    return count


def in_columns(columns: Columns, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows with a value or None in each column, of its type."""
    for row in rows:
        yield {name: _fitted(row.get(name), kind) for name, kind in columns.items()}


def needs(library: str, what: str) -> None:
    """Refuse `what` (in the plural) where the library of an extra is not installed."""
    try:
        __import__(library)
    except ImportError:
        hint = "pip install 'gpuscale[sweep]'"
        raise InputError(f"{what} need {library}, which is not installed", hint=hint) from None


def _fitted(value: Any, kind: type) -> Any:
    if value is None or kind in {bool, int}:
        return value
    if kind is float:
        return float(value)
    if isinstance(value, list | tuple):
        return "; ".join(_fitted(one, str) for one in value)
    return str(value).encode("utf-8", "replace").decode()


def _parquet(file: IO[bytes], columns: Columns, rows: Iterator[Row]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    about = {"schema": SCHEMA, "gpuscale": __version__}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata=about)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in iter(lambda: list(islice(rows, ROWS_AT_ONCE)), []):
            arrays = [pa.array([row[one.name] for row in group], one.type) for one in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _csv(file: IO[bytes], columns: Columns, rows: Iterator[Row]) -> None:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(chain([map(csv_cell, columns)], (map(csv_cell, row.values()) for row in rows)))
    text.detach()


_WRITERS: Mapping[str, Callable[[IO[bytes], Columns, Iterator[Row]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": lambda file, _, rows: file.writelines(
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode() + b"\n" for row in rows
    ),
}
