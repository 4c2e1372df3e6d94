"""What `check --error` found, for people."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscale.files import printable
from gpuscale.launch.diagnosis import Diagnosis, FoundError, MemoryOfError
from gpuscale.launch.error_texts import ERRORS
from gpuscale.ratios import signed
from gpuscale.render.document import Document, Facts, Spell, plain, table
from gpuscale.render.plan_texts import FIT


def diagnosis_document(found: Diagnosis, spell: Spell = str) -> Document:
    """Lay out the likeliest cause, what the job has of it and what to do, then the other errors of the text."""
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
        "An error text", verdict, list(_facts(first, found.memory, spell)), table(remedies, left=1),
        *([rest] if rest else []), "\n".join(f"note: {note}" for note in found.notes),
        *([f"next: {printable(first.command)}"] if first.command else []),
    )  # fmt: skip


def _facts(one: FoundError, memory: MemoryOfError | None, spell: Spell) -> Iterator[tuple[str, str]]:
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
    if one.here is None and one.kind in {"job", "memory"} and (memory is None or memory.predicted_gib is None):
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
