"""Every answer as a document, by its type, and where it goes: a terminal, a notebook, a page, Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from gpuscale.arguments import public
from gpuscale.errors import InputError
from gpuscale.files import NO_BREAK, printable, write_text
from gpuscale.render.console import console, draw, parts_of, texts
from gpuscale.render.document import (
    LONG,
    WIDTH,
    Chart,
    Checklist,
    Code,
    Document,
    Facts,
    Shown,
    Spell,
    Table,
    loaded,
    shown,
)
from gpuscale.render.html.page import text
from gpuscale.request import one_of

DOCUMENTS = {
    "Advice": "explain.advice_document",
    "Answered": "studies.answered_document",
    "BatchSize": "scaling.batch_size_document",
    "BenchResult": "measurements.bench_document",
    "Calibrated": "machine.fit_document",
    "CalibratedRun": "measurements.calibrated_run_document",
    "Calibration": "measurements.calibration_document",
    "CheckResult": "launch.check_document",
    "Checkup": "machine.checkup_document",
    "ClusterSpec": "presets.cluster_document",
    "CollectiveEstimate": "collective.collective_document",
    "CollectiveEstimates": "collective.sweep_document",
    "Decisions": "explain.decisions_document",
    "Diagnosis": "launch.diagnosis_document",
    "Estimate": "plan.estimate_document",
    "Explanation": "explain.explanation_document",
    "Export": "launch.files_document",
    "FleetResult": "fleet.fleet_document",
    "Goodput": "training.goodput_document",
    "GpuSpec": "presets.gpu_document",
    "ImportedCluster": "measurements.imported_document",
    "LaunchEstimate": "launch.launch_estimate_document",
    "LaunchJob": "launch.launch_job_document",
    "MeasuredRun": "measurements.measured_document",
    "MemoryBudget": "memory.memory_document",
    "ModelSpec": "presets.model_document",
    "Placement": "placement.placement_document",
    "PlanComparison": "comparison.comparison_document",
    "PlanResult": "plan.plan_document",
    "PlanRow": "plan.row_document",
    "Recipe": "presets.recipe_document",
    "Recipes": "presets.recipes_document",
    "Roofline": "collective.roofline_document",
    "Schedule": "schedule.schedule_document",
    "Size": "scaling.size_document",
    "Stragglers": "training.stragglers_document",
    "Subject": "launch.subject_document",
    "Summary": "studies.study_document",
    "TrafficReport": "traffic.traffic_document",
    "Tuning": "trials.tuning_document",
    "TrainTime": "training.train_time_document",
    "Validation": "validation.validation_document",
}
"""Answer, or several of one kind -> what lays it out, loaded when needed."""


def document(found: Any, **view: Any) -> Document:
    """Return what an answer shows; a document is its own. Of the `view` (`verbose`, `depth`, `spell`, ...) it gets what
    it knows.

    Raises:
        InputError: it is no answer.
    """
    if isinstance(found, Document):
        return found
    several = type(found) in {list, tuple} and found  # not records, which are tuples too
    name = f"{type(found[0]).__name__}s" if several else type(found).__name__
    if name not in DOCUMENTS:
        raise InputError(f"{name} has no document", hint="give what a question returned, such as `plan`")
    module, _, function = DOCUMENTS[name].partition(".")
    make: Callable[..., Document] = getattr(import_module(f"gpuscale.render.{module}"), function)
    taken = signature(make).parameters
    return make(found, **{name: value for name, value in view.items() if name in taken})


def show(found: Any, **view: Any) -> None:
    """Print an answer in the terminal."""
    draw(*parts_of(document(found, **view)))


def markdown(document: Document) -> str:
    """Return a document as Markdown: the same text for the same document."""
    verdict = document.verdict if isinstance(document.verdict, str) else document.verdict(LONG)
    blocks = [f"# {_line(document.title)}", *map(_line, verdict.split("\n"))]
    for section in document.sections:
        parts = [text for part in shown(section.parts, "page") for text in _blocks(part)]
        blocks += [f"## {_line(section.title)}", *parts] if section.title and parts else parts
    return "\n\n".join(blocks) + "\n"


def _line(said: str) -> str:
    """Write text so that nothing in it is taken for Markdown or HTML."""
    return re.sub(r"([\\`*_<>|\[\]#])", r"\\\1", printable(" ".join(said.split())).replace(NO_BREAK, " "))


def _blocks(part: Shown) -> Iterator[str]:
    if isinstance(part, Table):
        yield from [f"**{_line(part.caption)}**"] if part.caption else []
        yield _pipes(part.header, [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in part.rows])
    elif isinstance(part, Chart):
        yield f"**{_line(part.title)}**: {_line(part.summary)}"
    elif isinstance(part, Checklist):
        yield "\n".join(
            f"- [ ] **{_line(name)}** " + " ".join(f"{_line(key).capitalize()}: {_line(said)}." for key, said in lines)
            for name, lines in part.items
        )
    elif isinstance(part, list):
        yield "\n".join(f"- **{_line(name)}**: {_line(said)}" if name else f"- {_line(said)}" for name, said in part)
    else:
        said = part.text if isinstance(part, Code) else part if isinstance(part, str) else part(WIDTH)
        lines = [printable(line).replace(NO_BREAK, " ") for line in said.split("\n")]
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", said)), default=0))
        shell = isinstance(part, Code)
        yield "\n".join([fence + "sh" * shell, *lines, fence]) if shell or len(lines) > 1 else _line(said)


def _pipes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_line(name) for name in header], ["---"] * len(header), *([_line(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PAGE_WIDTH = 200

LONGEST = 200


def line(found: Any) -> str:
    """Return an answer in a line; it never fails, as debuggers show half an answer too."""
    name = type(found).__name__
    try:
        first = _parts(found)[0]
    except Exception:  # noqa: BLE001
        first = _scalars(found)
    if isinstance(first, list):
        said = ", ".join("=".join(pair) for pair in first)
    else:
        said = "".join(texts([first], console(WIDTH - len(name) - len("< >")))).partition("\n")[0]
    return f"<{name} {textwrap.shorten(printable(said), LONGEST, placeholder=' ...')}>"


def fragment(found: Any) -> str:
    """Return an answer as a piece of HTML without scripts: what its command draws."""
    return f'<div class="gpuscale">{"".join(map(_html, _parts(found)))}</div>'


def _parts(found: Any) -> Sequence[Shown]:
    try:
        made = document(found)
    except InputError:
        return [_scalars(found)]
    return list(parts_of(made))


def _scalars(found: Any) -> Facts:
    fields = found._asdict() if hasattr(found, "_asdict") else vars(found)
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in fields.items()
        if isinstance(value, str | int | float)
    ]


def _html(part: Shown) -> str:
    if isinstance(part, list):
        return _html_table((), [[("left", one) for one in pair] for pair in part])
    if isinstance(part, Table):
        sides = ["left" if at < part.left else "right" for at in range(len(part.header))]
        rows = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in part.rows]
        head, *body = ([*zip(sides, row, strict=True)] for row in [part.header, *rows])
        return _html_table(head, body)
    return f'<pre style="white-space:pre-wrap">{_lines("".join(texts([part], console(PAGE_WIDTH))))}</pre>'


def _html_table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _cells(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<{tag} style="text-align:{side}">{_lines(said)}</{tag}>' for side, said in cells)


def _lines(said: str) -> str:
    return "\n".join(map(text, said.split("\n")))


FORMS: dict[str, Callable[[Document], str]] = {"html": loaded("html.page.html"), "markdown": markdown}


def written(found: Any, form: str, **view: Any) -> str:
    """Return an answer in one of `FORMS`."""
    return FORMS[form](document(found, **view))


@public
def report(
    result: Any, path: str | Path | None = None, *, form: str = "html", note: str | None = None, spell: Spell = str
) -> str:
    """Return an answer as one HTML page with charts, which needs no network; the same bytes for the same answer.

    Args:
        result: what `plan`, `read_subject`, `compare`, `train_time`, `validate` or another question returned, or a
            list of what `price_collective` did.
        path: a file to write it to as well.
        form: "html" or "markdown".
        note: of a sweep: what to know of its cluster.
        spell: from options in backticks, such as `grad_dtype=bf16`, to how they are given.

    Raises:
        InputError: it is no answer, there is no such form, or the file cannot be written.
    """
    made = written(result, one_of("form", form, tuple(FORMS)), note=note, spell=spell, whole=True)
    if path is not None:
        write_text(Path(path), made)
    return made
