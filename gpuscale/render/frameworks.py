"""Drawing of `gpuscale frameworks`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from gpuscale.presets.frameworks import FrameworkFile
from gpuscale.render.console import console, table
from gpuscale.render.plain import print_json
from gpuscale.rules.check import cited, rules_of
from gpuscale.rules.general import FRAMEWORKS

SCHEMA = "gpuscale.frameworks/1"


def print_list(files: Mapping[str, FrameworkFile]) -> None:
    """Print one line per profile."""
    out = console()
    out.print(f"{len(files)} framework profiles; plans use megatron-core unless --framework says otherwise")
    out.print()
    rows = [[name, file.title, file.rule_set, str(len(rules_of(file.rule_set)))] for name, file in files.items()]
    out.print(table(["name", "framework", "runs by the rules of", "rules"], rows, left=3))


def print_list_json(files: Mapping[str, FrameworkFile]) -> None:
    """Print all profiles as JSON."""
    print_json(SCHEMA, {"frameworks": [_body(name, file) for name, file in files.items()]})


def print_profile(name: str, file: FrameworkFile) -> None:
    """Print every switch and number of a profile, their sources, and the rules by which its framework runs."""
    out = console()
    out.print(f"{name}: {file.title}")
    out.print()
    body = file.model_dump()
    sources = body.pop("sources")
    memory, space = body.pop("memory"), body.pop("space")
    rows = [[key, _text(value)] for key, value in body.items() if key != "title"]
    rows += [[f"space.{key}", _text(value)] for key, value in space.items() if value]
    rows += [[f"memory.{key}", _text(value)] for key, value in memory.items()]
    out.print(table(["setting", "value"], rows, left=2))
    out.print()
    for keys, source in sources.items():
        out.print(f"  {keys}: {source}")
    out.print()
    rule_set = FRAMEWORKS[file.rule_set]
    out.print(f"rules of {file.rule_set} ({rule_set.title}; {rule_set.basis})")
    for rule in _rules(file.rule_set):
        out.print()
        head = f"{rule['code']}: {rule['text']}"
        lines = [_wrapped(head, 2, out.width), _wrapped(rule["where"], 6, out.width)]
        if rule["missed"]:
            lines.append(_wrapped(f"its own check misses it: {rule['missed']}", 6, out.width))
        out.print("\n".join(lines), soft_wrap=True)


def _wrapped(text: str, indent: int, width: int) -> str:
    """Text as a paragraph whose lines begin at `indent`, further lines two columns on."""
    lines = textwrap.wrap(text, max(20, width - indent - 2), break_on_hyphens=False, break_long_words=False)
    return "\n".join(" " * (indent + 2 * (number > 0)) + line for number, line in enumerate(lines))


def _rules(rule_set: str) -> list[dict[str, str]]:
    """The rules of a rule set, in the order they are checked."""
    found = ((rule, cited(rule, rule_set)) for rule in rules_of(rule_set))
    return [{"code": rule.code, "text": rule.text, "where": cite.where, "missed": cite.missed} for rule, cite in found]


def print_profile_json(name: str, file: FrameworkFile) -> None:
    """Print one profile as JSON, in the form of the list, with its rules."""
    print_json(SCHEMA, {"frameworks": [{**_body(name, file), "rules": _rules(file.rule_set)}]})


def _body(name: str, file: FrameworkFile) -> dict[str, Any]:
    return {"name": name, **file.model_dump(mode="json")}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
