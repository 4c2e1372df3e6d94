"""Drawing of launch files: what was made of those that were read, what `check` found, and those that are written."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from gpuscale.explain.explanation import explain_subject
from gpuscale.files import printable, printable_lines
from gpuscale.launch.check import CheckResult, Finding
from gpuscale.launch.diagnosis import ERRORS, Diagnosis, FoundError, MemoryOfError
from gpuscale.launch.export import Export
from gpuscale.launch.improve import Improvement
from gpuscale.launch.remarks import SEVERITIES
from gpuscale.launch.settings import LaunchJob, Said
from gpuscale.launch.subject import LaunchEstimate, Subject
from gpuscale.launch.unread import UNKNOWN
from gpuscale.ratios import TIME, in_words, signed
from gpuscale.render.console import draw
from gpuscale.render.document import Document, Facts, Part, Spell, note_lines, plain, table
from gpuscale.render.explain import explanation_document
from gpuscale.render.plan import estimate_document
from gpuscale.render.plan_texts import FIT, change_text, size_text, verdict
from gpuscale.results import Estimate
from gpuscale.units import format_seconds, plural
from gpuscale.version import __version__


def diagnosis_document(found: Diagnosis, spell: Spell = str) -> Document:
    """Lay out the likeliest cause, and what to do, then the other errors of the text."""
    if not found.errors:
        return plain("An error text", "no error that is known", [("closest", one) for one in closest_lines(found)])
    first, *others = found.errors
    verdict = f"{first.framework}: {spell(first.message)}" + (f" ({first.rule})" if first.rule else "")
    remedies = [
        {
            "change": " ".join(f"{name} {value}" for name, value in one.change.items()),
            "GiB": f"{one.memory_gib:.1f}",
            "": FIT[one.fit],
            "time": signed(one.slower),
        }
        for one in (found.memory.remedies if found.memory and first.kind == "memory" else ())
    ]
    rest = [(one.kind, f"{one.framework}: {spell(one.message)} (line {one.line:,})") for one in others]
    return plain(
        "An error text", verdict, list(_facts(first, found, spell)), table(remedies, left=1),
        *([rest] if rest else []), note_lines(found.notes),
        *([f"next: {printable(first.command)}"] if first.command else []),
    )  # fmt: skip


def _facts(one: FoundError, found: Diagnosis, spell: Spell) -> Iterator[tuple[str, str]]:
    memory = found.memory
    yield "says so", f"{one.source}, line {one.line:,} of the text"
    if one.numbers:
        yield "in the text", ", ".join(f"{name} {value}" for name, value in one.numbers.items())
    if memory is not None and one.kind == "memory":
        yield from _memory_facts(memory)
    elif one.here is not None:
        kept = "the job that was given keeps this rule: is it the one that failed?"
        yield "in this job", "; ".join(map(spell, one.here)) or kept
    for name, near in one.legal.items():
        values = " or ".join("left out" if value is None else str(value) for value in near)
        if values and not one.here:
            yield "nearest legal", f"{name} {values}"
    for advice in one.advice:
        yield "to do", spell(advice)
    if one.here is None and one.kind in {"job", "memory"} and found.checked is None:
        options = "give its files or options too, as `check` alone takes them: then its own numbers are said"
        yield "with the job", options


def _memory_facts(memory: MemoryOfError) -> Facts:
    said = {"asked for": memory.asked_gib, "free": memory.free_gib, "of the GPU": memory.total_gib,
            "in use": memory.in_use_gib, "idle": memory.idle_gib}  # fmt: skip
    known = [f"{value:.2f} GiB {name}" for name, value in said.items() if value is not None]
    rows = [("memory", ", ".join(known))] if known else []
    if memory.predicted_gib is not None and memory.limit_gib is not None and memory.fit is not None:
        fit = f"{memory.predicted_gib:.1f} of {memory.limit_gib:.1f} GiB at stage {memory.stage}: {FIT[memory.fit]}"
        rows.append(("predicted", fit))
    return rows


def closest_lines(found: Diagnosis) -> list[str]:
    """Say what comes closest to a text that is not known."""
    return [f"{one.code} ({one.framework}): {', '.join(one.keys[:1])}" for one in ERRORS if one.code in found.closest]


def check_document(result: CheckResult) -> Document:
    """Lay out what is predicted, and the findings, the gravest first."""
    return plain(
        "Check of a launch", partial(_verdict, result), [(one.severity, _line(one)) for one in result.findings]
    )


def _verdict(result: CheckResult, width: int) -> str:
    lines, found = [check_verdict(result)], result.estimate
    if found is not None:
        fit = f"{FIT[found.plan.fit]}: {size_text(found.plan)}"
        lines += [verdict(found, found.plan, width), f"{fit} at stage {found.plan.peak_stage}"]
    return "\n".join(lines)


def check_verdict(result: CheckResult) -> str:
    """Say in a line whether the job may launch, and how much was found."""
    counts = Counter(one.severity for one in result.findings)
    found = ", ".join(plural(counts[severity], severity) for severity in SEVERITIES if counts[severity])
    return f"{'OK' if result.ok else 'FAILS'}: {found or 'no problems found'}"


def _line(one: Finding) -> str:
    cost = f" [costs {format_seconds(one.cost_s)} per step]" if one.cost_s else ""
    return f"{one.rule}: {one.message}{cost}{f' ({place(one)})' if one.file else ''}"


def place(one: Finding) -> str:
    """Return where a finding stands: `run.sh:12`."""
    return f"{one.file}:{one.line}" if one.line else one.file or ""


def github(result: CheckResult) -> str:
    """Return the findings as workflow commands of GitHub Actions.

    Source: GitHub documentation, workflow commands; actions/toolkit, packages/core/src/command.ts (what is escaped).
    """
    lines = []
    for one in result.findings:
        where = {"file": one.file, "line": one.line, "title": f"gpuscale {one.rule}"}
        properties = ",".join(f"{name}={_property(str(value))}" for name, value in where.items() if value)
        command = {"note": "notice"}.get(one.severity, one.severity)
        lines.append(f"::{command} {properties}::{_data(one.message)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit(result: CheckResult) -> str:
    """Return the findings as JUnit XML: an error is a failed test, a warning or note a passed one that says something.

    Source: the schema of Jenkins' xUnit plugin (junit-10.xsd), which CI systems read.
    """
    cases = [_case(one) for one in result.findings]
    if result.ok:
        cases.insert(0, '    <testcase classname="gpuscale" name="check"/>\n')
    failures = sum(one.severity == "error" for one in result.findings)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0"'
    suite = f'  <testsuite name="gpuscale check" {counts}>\n{"".join(cases)}  </testsuite>\n'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n{suite}</testsuites>\n'


def _case(one: Finding) -> str:
    said = f"{place(one)}: {one.message}" if one.file else one.message
    inside = f"<system-out>{escape(f'{one.severity}: {said}')}</system-out>"
    if one.severity == "error":
        inside = f"<failure message={quoteattr(one.message)} type={quoteattr(one.rule)}>{escape(said)}</failure>"
    return f'    <testcase classname="gpuscale" name={quoteattr(one.rule)}>{inside}</testcase>\n'


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(result: CheckResult) -> str:
    """Return the findings as SARIF (OASIS, Static Analysis Results Interchange Format 2.1.0)."""
    rules = list(dict.fromkeys(one.rule for one in result.findings))
    driver = {
        "name": "gpuscale",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": rule.replace("_", " ")}} for rule in rules],
    }
    results = [_sarif_result(one, rules) for one in result.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_result(one: Finding, rules: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {
        "ruleId": one.rule,
        "ruleIndex": rules.index(one.rule),
        "level": one.severity,
        "message": {"text": one.message},
    }
    if one.file:
        region = {"region": {"startLine": one.line}} if one.line else {}
        found["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": _uri(one.file)}, **region}}]
    if one.cost_s is not None:
        found["properties"] = {"cost_s": one.cost_s}
    return found


def _uri(file: str) -> str:
    """Return a path as a URI: relative ones stay so, as SARIF's readers want them."""
    path = PurePath(file)
    return Path(file).as_uri() if path.is_absolute() else quote(path.as_posix())


FORMATS: dict[str, Callable[[CheckResult], str]] = {"github": github, "junit": junit, "sarif": sarif}


FEW = 12

MAX_NAME = 40


def _launch_blocks(job: LaunchJob, *, verbose: bool = False) -> tuple[Part, ...]:
    """Return what was understood, assumed and ignored; `verbose`: every setting."""
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
    unknown = [one for one in ignored if one.meaning == UNKNOWN]
    named = [f"{one.text[:MAX_NAME]} (line {one.line})" for one in unknown[:FEW]]
    named += [f"{len(unknown) - FEW} more"] * (len(unknown) > FEW)
    known = len(ignored) - len(unknown)
    said = [f"Not known, and taken to change nothing: {', '.join(named)}."] * bool(unknown)
    said += [f"{plural(known, 'setting')} {'has' if known == 1 else 'have'} no effect on the prediction."] * bool(known)
    return " ".join([*said, "`-v` lists all."])


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


def launch_estimate_document(found: LaunchEstimate, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out a plan, and what was understood of its files."""
    more = _launch_blocks(found.job, verbose=verbose)
    return estimate_document(found.estimate, verbose=verbose, spell=spell, more=more)


def subject_document(found: Subject, *, whole: bool = False, spell: Spell = str) -> Document:
    """Lay out a plan; the `whole` explains it, with all that a page shows."""
    if whole:
        return explanation_document(explain_subject(found), subject=found, spell=spell)
    return estimate_document(found.estimate, spell=spell)


def launch_job_document(job: LaunchJob) -> Document:
    """Lay out what launch files state."""
    options = {**job.layout, **job.options}
    options["model"] = options.pop("model", "")  # last: it may be a long one
    stated = ", ".join(f"{name}={value}" for name, value in options.items() if value != "")
    return plain(job.target, f"{job.target}: {stated}", *_launch_blocks(job))


def draw_improvements(found: Sequence[Improvement], now: Estimate, *, spell: Spell = str) -> None:
    """Print faster plans nearby, each with its change of the files."""
    if not found:
        draw("\nNo change of up to three values in these files is predicted to be faster by 1%.")
    for one in found:
        changed = change_text(one.changes, spell)
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
    """Print every file under its name, or say where they are; on stderr what to see to."""
    for text in made.warnings:
        sys.stderr.write(f"note: {printable(text)}\n")
    if folder is None:
        sys.stdout.write("\n".join(f"# ==> {one.path} <==\n{one.text}" for one in made.files))
        return
    draw(
        f"{made.target}: {len(made.files)} files in {printable(str(folder))}; `run.sh` starts the job on each node",
        [(one.path, plural(len(one.text.splitlines()), "line")) for one in made.files],
    )
