"""What users see of launch files: what was made of those that were read, and those that are written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

from gpuscale.explain.explanation import explain_subject
from gpuscale.files import printable, printable_lines
from gpuscale.launch.export import Export
from gpuscale.launch.improve import Improvement
from gpuscale.launch.settings import LaunchJob, Said
from gpuscale.launch.subject import LaunchEstimate, Subject
from gpuscale.launch.unread import UNKNOWN
from gpuscale.ratios import TIME, in_words
from gpuscale.render.console import draw
from gpuscale.render.document import Document, Part, Spell, plain, table
from gpuscale.render.estimate import estimate_document
from gpuscale.render.explain import explanation_document
from gpuscale.results import Estimate
from gpuscale.units import format_seconds, plural

FEW = 12
"""Settings that the short answer lists in full."""

MAX_NAME = 40
"""Characters of a setting that is not known in the short answer."""


def launch_blocks(job: LaunchJob, *, verbose: bool = False) -> tuple[Part, ...]:
    """Return what was understood, assumed and ignored of launch files; if `verbose`, every setting, also those that
    change nothing."""
    understood = list(job.understood)
    if not verbose and len(understood) > FEW and len(job.of_model) > 1:
        first = next(iter(job.of_model))
        parts = "; ".join(dict.fromkeys(one for keys in job.of_model.values() for one in keys))
        understood = [one for one in understood if one not in job.of_model]
        understood.insert(0, Said(first.file, first.line, f"{len(job.of_model)} settings", f"model: {parts}"))
    blocks: list[Part] = [_table(understood, "understood"), _table(job.assumed, "assumed")]
    if verbose:
        blocks.append(_table(job.ignored, "ignored"))
    elif job.ignored:
        blocks.append(_left_out(job.ignored))
    return tuple(block for block in blocks if block)


def _left_out(ignored: Sequence[Said]) -> str:
    """Say how many settings have no effect, and name the first of those that are not known."""
    unknown = [one for one in ignored if one.meaning == UNKNOWN]
    names = ", ".join(f"{one.text[:MAX_NAME]} (line {one.line})" for one in unknown[:FEW])
    more = ", ..." if len(unknown) > FEW else ""
    several = plural(len(ignored) - len(unknown), "setting")
    told = f"Not known, and taken to change nothing: {names}{more}. " if unknown else ""
    verb = "has" if len(ignored) - len(unknown) == 1 else "have"
    return f"{told}{several} {verb} no effect on the prediction: `-v` lists them."


def _table(said: Sequence[Said], title: str) -> Part:
    if not said:
        return ""
    files = {one.file for one in said if one.file}
    rows = [{title: one.text or "-", "line": _place(one, several=len(files) > 1), "means": one.meaning} for one in said]
    return table(rows, left=3)


def _place(one: Said, *, several: bool) -> str:
    name = PurePath(one.file).name if several and one.file else ""
    line = str(one.line) if one.line else ""
    return ":".join(part for part in (name, line) if part)


def launch_estimate_document(found: LaunchEstimate) -> Document:
    """Lay out what launch files are predicted to do, and what was understood of them."""
    return estimate_document(found.estimate, more=launch_blocks(found.job))


def subject_document(found: Subject, *, whole: bool = False, spell: Spell = str) -> Document:
    """Lay out what is predicted of the plan that questions are asked about; the `whole` explains it, with all that a
    page shows of a plan."""
    if whole:
        return explanation_document(explain_subject(found), subject=found, spell=spell)
    return estimate_document(found.estimate, spell=spell)


def launch_job_document(job: LaunchJob) -> Document:
    """Lay out what launch files state."""
    options = {**job.layout, **job.options}
    options["model"] = options.pop("model", "")  # last: it may be a long one
    stated = ", ".join(f"{name}={value}" for name, value in options.items() if value != "")
    return plain(job.target, f"{job.target}: {stated}", *launch_blocks(job))


def draw_improvements(found: Sequence[Improvement], now: Estimate, *, spell: Spell = str) -> None:
    """Print faster plans near the present one, each with the change of the files that makes it."""
    if not found:
        draw("\nNo change of up to three values in these files is predicted to be faster by 1%.")
    for one in found:
        changed = spell(" ".join(f"`{name}={value}`" for name, value in one.changes.items()))
        before = ", ".join(f"{name} {getattr(now.plan, name)}" for name in one.changes)
        less = in_words(1 - one.gain, TIME) + (", but it fits" if one.gain <= 0 else "")
        time = format_seconds(one.step_time_s)
        draw(f"\n{changed} (now {before}): {time}/step, {less}; {one.memory_gib:.1f} GiB")
        sys.stdout.write(printable_lines(one.diff))


def files_document(made: Export) -> Document:
    """Lay out which files an export has, and what to see to."""
    files = [(one.path, plural(len(one.text.splitlines()), "line")) for one in made.files]
    return plain(
        f"Files for {made.target}", f"{made.target}: {plural(len(files), 'file')}", files, "\n".join(made.warnings)
    )


def draw_export(made: Export, folder: Path | None) -> None:
    """Print every file under its name, or say where they were written; on stderr what to see to."""
    for text in made.warnings:
        sys.stderr.write(f"note: {printable(text)}\n")
    if folder is None:
        sys.stdout.write("\n".join(f"# ==> {one.path} <==\n{one.text}" for one in made.files))
        return
    draw(
        f"{made.target}: {len(made.files)} files in {printable(str(folder))}; `run.sh` starts the job on each node",
        [(one.path, f"{len(one.text.splitlines())} lines") for one in made.files],
    )
