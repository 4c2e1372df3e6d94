"""What `check` found, for people and in the formats of CI systems."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from gpuscale.launch.check import CheckResult, Finding
from gpuscale.launch.remarks import SEVERITIES
from gpuscale.render.document import Document, plain
from gpuscale.render.plan_texts import FIT, verdict
from gpuscale.units import format_seconds, plural
from gpuscale.version import __version__


def check_document(result: CheckResult) -> Document:
    """Lay out the verdict, what is predicted, and the findings, the gravest first."""
    return plain(
        "Check of a launch", partial(_verdict, result), [(one.severity, _line(one)) for one in result.findings]
    )


def _verdict(result: CheckResult, width: int) -> str:
    lines, found = [check_verdict(result)], result.estimate
    if found is not None:
        fit = f"{FIT[found.plan.fit]}: {found.plan.memory_gib:.1f} of {found.plan.memory_limit_gib:.1f} GiB"
        lines += [
            verdict(found.model, found.gpus, found.cluster, found.plan, width),
            f"{fit} at stage {found.plan.peak_stage}",
        ]
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
"""Formats of other tools -> what writes them."""
