"""Drawing of `gpuscale explain`: what binds in words, trees of time and memory, what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from gpuscale.explain.explanation import Explanation
from gpuscale.explain.nodes import Node
from gpuscale.launch.subject import Subject
from gpuscale.ratios import share_text
from gpuscale.render.document import Document, Section, Spell, Table, later, note_facts, on_page, page, table, terminal
from gpuscale.render.plan_texts import (
    assumption_parts,
    evidence_text,
    fit_text,
    layout_text,
    plan_sections,
    plan_tiles,
    verdict,
)
from gpuscale.render.reasons import change_tables, reason_blocks, sentences_block
from gpuscale.units import GIB, format_seconds, plural

DEPTH = 4
"""Levels of a tree that are shown below its root if nothing is said."""

FOLDED = 0.01
"""Share of the root below which a part is folded."""

EVERYTHING = 99

BOUNDS = {"compute": "compute", "memory": "HBM", "network": "comm", "host": "offload"} | {
    "launch": "launches", "waiting": "waiting", "bubble": "bubble", "": "",
}  # fmt: skip
"""What binds a node -> its name for people."""


def explanation_document(
    found: Explanation,
    *,
    subject: Subject | None = None,
    depth: int | None = None,
    verbose: bool = False,
    spell: Spell = str,
) -> Document:
    """Lay out why a plan takes as long as it does, the trees of its step and memory, and what would help.

    Args:
        subject: the plan, of which a page then shows charts too.
        depth: levels of the trees below their roots, in a terminal.
        verbose: fold nothing, and show every stage.
    """
    levels = depth if depth is not None else EVERYTHING if verbose else DEPTH
    least = 0.0 if verbose else FOLDED
    fullest = max(found.memory, key=lambda stage: stage.value)
    trees = [_table(stage, levels, least, _memory_cells) for stage in (found.memory if verbose else (fullest,))]
    estimate = subject.estimate if subject else None
    of = (lambda: subject) if subject else None
    return Document(
        f"{layout_text(found.plan)}: {found.model} on {plural(found.gpus, 'GPU')}",
        lambda width: f"{verdict(found.model, found.gpus, found.cluster, found.plan, width)}{fit_text(found.plan)}",
        plan_tiles(estimate) if estimate else (),
        [
            Section("Why", [sentences_block(found)]),
            Section("Changes", [on_page(lambda: change_tables(found))]),
            Section("Step time", [
                later("subject.waterfall_parts", estimate) if of else "", later("subject.step_parts", of) if of else "",
                terminal(_table(found.step, levels, least, _time_cells), *trees),
            ]),
            *(plan_sections(of) if of else ()),
            Section("Notes", [[*_note(found), *note_facts(found.notes, spell)]]),
            Section("What would help", [terminal(*reason_blocks(found, verbose=verbose))]),
            Section("Evidence", [page([("evidence", evidence_text(found.plan))])]),
            Section("Assumptions", [page(assumption_parts(estimate, spell)) if estimate else ""]),
        ],
    )  # fmt: skip


def _note(found: Explanation) -> list[tuple[str, str]]:
    seconds: dict[str, list[float]] = {}
    for leaf in found.step.leaves():
        seconds.setdefault(leaf.source or "", []).append(leaf.value)
    sums = {name: math.fsum(values) / found.step.value for name, values in seconds.items()}
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    rows = [("rests on", ", ".join(f"{name} {share_text(share)}" for name, share in ordered)), ("reading", READING)]
    if len(found.memory) > 1:
        stages = ", ".join(f"{stage.value / GIB:.1f} at {stage.name}" for stage in found.memory)
        rows.append(("memory", f"{stages} [GiB]"))
    return rows


def _table(root: Node, depth: int, least: float, cells: Callable[[Node], Mapping[str, str]]) -> Table:
    rows = [{root.name: "  " * level + node.name, **cells(node)} for node, level in _rows(root, depth, least)]
    return table(rows, optional=("x", "source", "hidden"))


def _rows(node: Node, depth: int, least: float, level: int = 0) -> Iterator[tuple[Node, int]]:
    """Yield a node and what is shown below it; what is too small is folded into one row."""
    yield node, level
    if level == depth:
        return
    shown = [child for child in node.children if child.share >= least]
    folded = [child for child in node.children if child.share < least]
    if len(folded) == 1 and shown:
        shown, folded = list(node.children), []
    if not shown:
        return
    for child in shown:
        yield from _rows(child, depth, least, level + 1)
    if folded:
        value = math.fsum(child.value for child in folded)
        names = "1 more" if len(folded) == 1 else f"{len(folded)} more"
        yield Node(names, value, share=math.fsum(child.share for child in folded)), level + 1


def _time_cells(node: Node) -> dict[str, str]:
    return {
        "x": "" if node.count is None else f"{node.count:,.6g}",
        "time": format_seconds(node.value),
        "share": share_text(node.share),
        "hidden": format_seconds(node.hidden_s) if node.hidden_s else "",
        "achieved": _achieved(node),
        "bound by": _bound_text(node),
        "source": node.source or "",
    }


READING = (
    "seconds of one GPU on the slowest stage; achieved, and its share of the datasheet's peak; bound by: the "
    "roofline of each operator: memory-bound GEMMs count as HBM, recomputation as compute"
)

SECOND = 0.1
"""Share of a branch from which on what binds second most of it is said too."""


def _bound_text(node: Node) -> str:
    """What binds a node; of a branch, by share of its time, the second too where that counts."""
    if not node.children:
        name = BOUNDS.get(node.bound or "", "")
        return f"{name}, {node.level}" if node.level else name
    ordered = [(name, seconds / node.value) for name, seconds in bound_seconds(node)]
    (first, _), *others = ordered
    second = [f" {share:.0%}" for share in [ordered[0][1]] if others and others[0][1] >= SECOND]
    return ", ".join([first + "".join(second), *(f"{name} {share:.0%}" for name, share in others[:1] if second)])


def bound_seconds(root: Node) -> list[tuple[str, float]]:
    """Return what binds the leaves of a tree, and for how long, the longest first."""
    seconds: dict[str, list[float]] = {}
    for leaf in root.leaves():
        seconds.setdefault(BOUNDS[leaf.bound or ""], []).append(leaf.value)
    sums = {name: math.fsum(values) for name, values in seconds.items()}
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _achieved(node: Node) -> str:
    """What a node reaches, and as a share of the datasheet's peak."""
    if node.rate and node.limit:
        unit, scale = ("TFLOP/s", 1e12) if node.bound == "compute" or node.children else ("GB/s", 1e9)
        return f"{node.rate / scale:,.0f} {unit} {node.rate / node.limit:4.0%}"
    return ""


def _memory_cells(node: Node) -> dict[str, str]:
    count = "" if node.count is None else f"{node.count:,.4g}"
    return {"x": count, "GiB": f"{node.value / GIB:.2f}", "share": share_text(node.share), "source": node.source or ""}
