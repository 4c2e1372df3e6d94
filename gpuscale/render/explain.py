"""Drawing of `gpuscale explain` (what binds, trees, what would help, what flips it) and of `gpuscale advise`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import indent

from gpuscale.explain.advice import Advice, Decisions, Pressure, Situation
from gpuscale.explain.changes import Suggestion
from gpuscale.explain.checklist import Benchmark
from gpuscale.explain.explanation import Explanation
from gpuscale.explain.steps import Node
from gpuscale.files import printable
from gpuscale.launch.quoting import comment, shell_word
from gpuscale.launch.subject import Subject
from gpuscale.planning.placement import axis_name
from gpuscale.ratios import share_text, signed
from gpuscale.render.document import (
    Checklist,
    Code,
    Document,
    Part,
    Section,
    Spell,
    Table,
    cell,
    later,
    note_facts,
    on_page,
    page,
    table,
    terminal,
)
from gpuscale.render.plan_texts import (
    FIT,
    assumption_parts,
    evidence_text,
    fit_text,
    layout_text,
    most_first,
    on_cluster,
    on_gpus,
    plan_sections,
    plan_tiles,
    verdict,
)
from gpuscale.units import GIB, format_bytes, format_number, format_seconds, plural

FLIPS = 4


def _sentences_block(found: Explanation) -> Part:
    return "\n".join(f"  {text}" for text in found.sentences)


def _reason_blocks(found: Explanation, *, verbose: bool = False) -> tuple[Part, ...]:
    return _suggestions(found), _rejected(found), _thresholds(found), _flips(found, verbose=verbose)


def _rejected(found: Explanation) -> Part:
    lines = [f"  {one.change}: {one.why}" for one in found.rejected]
    return "\n".join(["Alternatives that do not pay off:", *lines]) if lines else ""


def _suggestions(found: Explanation) -> Part:
    if not found.suggestions:
        return "No single change is predicted to gain 1%."
    return "\n".join(["What would help, each evaluated by itself:", *map(_suggestion, found.suggestions)])


def _suggestion(one: Suggestion) -> str:
    tight = ", tight" if one.fit == "tight" else ""
    lines = [f"  {one.change}; {format_seconds(one.step_time_s)}/step, {one.memory_gib:.1f} GiB{tight}"]
    lines += [f"    {one.caution}"] if one.caution else []
    lines += [f"    gpuscale {' '.join(map(shell_word, one.command))}"] if one.command else []
    return "\n".join(lines)


def _thresholds(found: Explanation) -> Part:
    rows = [
        {
            "threshold": one.name,
            "now": format_number(one.now),
            "needed": f"{'at most' if one.at_most else 'from'} {format_number(one.needed)}",
            "holds": "yes" if one.holds else "NO",
        }
        for one in found.thresholds
    ]
    return table(rows)


def _flips(found: Explanation, *, verbose: bool) -> Part:
    shown = found.flips if verbose else found.flips[:FLIPS]
    if not shown:
        return "No single parameter, within the factors tried, would change the choice."
    rows = [{"would flip the choice": one.quantity, "to": one.value, "the choice then": one.plan} for one in shown]
    return table(rows, left=3)


def _change_tables(said: Explanation) -> list[Part]:
    tables = [
        Table(
            "The most effective changes, each evaluated by itself",
            ("change", "step time", "gain", "GiB", "fit", "to check"),
            [
                [
                    one.change,
                    cell(one.step_time_s, format_seconds),
                    cell(one.gain, signed),
                    cell(one.memory_gib, "{:.1f}"),
                    FIT[one.fit],
                    one.caution,
                ]
                for one in said.suggestions
            ],
        ),
        Table("Changes that do not pay off", ("change", "why not"), [[one.change, one.why] for one in said.rejected]),
        Table(
            "Thresholds at which something else becomes the bottleneck",
            ("quantity", "now", "needed", "holds", "meaning"),
            [
                [
                    one.name,
                    cell(one.now, _number),
                    (f"{'at most' if one.at_most else 'at least'} {_number(one.needed)}", one.needed),
                    "yes" if one.holds else "no",
                    one.meaning,
                ]
                for one in said.thresholds
            ],
        ),
        Table(
            "Single parameters that would change the choice",
            ("quantity", "value", "factor", "then"),
            [[one.quantity, one.value, cell(one.factor, "{:.3g}"), one.plan] for one in said.flips],
        ),
    ]
    return [table for table in tables if table.rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


DEPTH = 4

FOLDED = 0.01
"""Share of the root below which a part is folded."""

EVERYTHING = 99

BOUNDS = {"compute": "compute", "memory": "HBM", "network": "comm", "host": "offload"} | {
    "launch": "launches", "waiting": "waiting", "bubble": "bubble", "": "",
}  # fmt: skip


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
        f"{layout_text(found.plan)}: {on_gpus(found)}",
        lambda width: f"{verdict(found, found.plan, width)}{fit_text(found.plan)}",
        plan_tiles(estimate) if estimate else (),
        [
            Section("Why", [_sentences_block(found)]),
            Section("Changes", [on_page(lambda: _change_tables(found))]),
            Section("Step time", [
                later("plan_page.waterfall_parts", estimate) if of else "",
                later("plan_page.step_parts", of) if of else "",
                terminal(_table(found.step, levels, least, _time_cells), *trees),
            ]),
            *(plan_sections(of) if of else ()),
            Section("Notes", [[*_note(found), *note_facts(found.notes, spell)]]),
            Section("What would help", [terminal(*_reason_blocks(found, verbose=verbose))]),
            Section("Evidence", [page([("evidence", evidence_text(found.plan))])]),
            Section("Assumptions", [page(assumption_parts(estimate, spell)) if estimate else ""]),
        ],
    )  # fmt: skip


def _note(found: Explanation) -> list[tuple[str, str]]:
    seconds: dict[str, list[float]] = {}
    for leaf in found.step.leaves():
        seconds.setdefault(leaf.source or "", []).append(leaf.value)
    sums = {name: math.fsum(values) / found.step.value for name, values in seconds.items()}
    ordered = most_first(sums)
    rows = [("rests on", ", ".join(f"{name} {share_text(share)}" for name, share in ordered)), ("reading", READING)]
    if len(found.memory) > 1:
        stages = ", ".join(f"{stage.value / GIB:.1f} at {stage.name}" for stage in found.memory)
        rows.append(("memory", f"{stages} [GiB]"))
    return rows


def _table(root: Node, depth: int, least: float, cells: Callable[[Node], Mapping[str, str]]) -> Table:
    rows = [{root.name: "  " * level + node.name, **cells(node)} for node, level in _rows(root, depth, least)]
    return table(rows, optional=("x", "source", "hidden"))


def _rows(node: Node, depth: int, least: float, level: int = 0) -> Iterator[tuple[Node, int]]:
    """Yield a node and what is shown below it; the small are folded into one row."""
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
    """What binds a node; of a branch the second too where that counts."""
    if not node.children:
        name = BOUNDS.get(node.bound or "", "")
        return f"{name}, {node.level}" if node.level else name
    ordered = [(name, seconds / node.value) for name, seconds in _bound_seconds(node)]
    (first, _), *others = ordered
    second = [f" {share:.0%}" for share in [ordered[0][1]] if others and others[0][1] >= SECOND]
    return ", ".join([first + "".join(second), *(f"{name} {share:.0%}" for name, share in others[:1] if second)])


def _bound_seconds(root: Node) -> list[tuple[str, float]]:
    seconds: dict[str, list[float]] = {}
    for leaf in root.leaves():
        seconds.setdefault(BOUNDS[leaf.bound or ""], []).append(leaf.value)
    sums = {name: math.fsum(values) for name, values in seconds.items()}
    return most_first(sums)


def _achieved(node: Node) -> str:
    if node.rate and node.limit:
        unit, scale = ("TFLOP/s", 1e12) if node.bound == "compute" or node.children else ("GB/s", 1e9)
        return f"{node.rate / scale:,.0f} {unit} {node.rate / node.limit:4.0%}"
    return ""


def _memory_cells(node: Node) -> dict[str, str]:
    count = "" if node.count is None else f"{node.count:,.4g}"
    return {"x": count, "GiB": f"{node.value / GIB:.2f}", "share": share_text(node.share), "source": node.source or ""}


TITLES = {
    "pressures": "Pressures and remedies",
    "strategies": "Network demand by parallel axis",
    "situations": "Strategies by situation",
    "placement": "Placement",
    "checklist": "Before the launch",
    "benchmarks": "Collectives to measure (nccl-tests or rccl-tests, built with MPI=1)",
    "settings": "Environment",
    "signs": "Signs of trouble: the predicted step time is {}. If it takes",
}


def advice_document(advice: Advice, *, spell: Spell = str) -> Document:
    """Lay out the checklist of a plan."""
    pressures = [(f"{one.name}, {one.state}", f"{one.now}{_remedy(one, spell)}") for one in advice.pressures]
    checks = [
        (f"{one.name}: {one.now}", [("check", spell(one.check)), ("expect", one.expect)]) for one in advice.checklist
    ]
    commands = "\n".join(f"  {_expected(one)}\n{indent(_broken(one.command), '    ')}" for one in advice.benchmarks)
    measured = [part for one in advice.benchmarks for part in (f"{_expected(one)}:", Code(_broken(one.command)))]
    settings = [(f"{one.variable}={shell_word(one.value)}", one.reason) for one in advice.settings]
    exports = [f"export {one.variable}={shell_word(one.value)}  {comment(one.reason)}" for one in advice.settings]
    signs = [(took, f"{what}: {check}") for took, what, check in _signs(advice)]
    placed = [(axis_name(one.axis), f"{'' if one.kept else 'NOT '}{one.rule}: {one.plan}") for one in advice.placement]
    parts: dict[str, list[Part]] = {
        "pressures": [pressures],
        "strategies": [table(_strategies(advice), left=2, optional=("GB sent",))],
        "situations": [_situations([one for one in advice.situations if one.holds], spell)],
        "placement": [placed],
        "checklist": [Checklist(checks)],
        "benchmarks": [terminal(commands), page(*measured)],
        "settings": [terminal(settings), page(Code("\n".join(exports)))],
        "signs": [signs],
    }
    step = format_seconds(advice.plan.step_time_s)
    return Document(
        _head(advice),
        f"{advice.verdict}\n{_head(advice)}",
        sections=[
            *(Section(TITLES[name].format(step), own, titled=True) for name, own in parts.items()),
            Section("Notes", [note_facts(advice.notes, spell)]),
        ],
    )


def decisions_document(found: Decisions, *, spell: Spell = str) -> Document:
    """Lay out the tables by which one decides before there is a plan."""
    job = ", ".join(filter(None, (found.model, plural(found.gpus, "GPU") if found.gpus else "")))
    of = " on ".join(filter(None, (job, found.cluster)))
    of += ": " if of else ""
    holding = [one for one in found.situations if one.holds]
    said = f"{len(holding)} of {len(found.situations)} situations hold" if of else "which strategy for what"
    next_step = "give `model` and `gpus` for the numbers of a job, or find a plan: `gpuscale plan`"
    pressures = [(one.pressure, f"{one.shows}. Answers: {spell(one.answers)}") for one in found.pressures]
    demands = [
        {
            "strategy": "ZeRO" if one.strategy == "zero" else axis_name(one.strategy),
            "splits": one.splits,
            "sends": one.pattern,
            "stresses": one.stresses,
        }
        for one in found.strategies
    ]
    return Document(
        printable(f"{of}{said}"),
        f"{printable(of)}{said}\n{spell(next_step)}",
        sections=[
            Section("Pressures and what answers them", [pressures], titled=True),
            Section(TITLES["situations"], [_situations(found.situations, spell)], titled=True),
            Section("What each strategy asks of the network", [table(demands, left=4)], titled=True),
            Section("Notes", [note_facts(found.notes, spell)]),
        ],
    )


HOLDS = {True: "YES", False: "no", None: ""}


def _situations(situations: Sequence[Situation], spell: Spell) -> list[tuple[str, str]]:
    return [
        (
            one.situation,
            f"{spell(one.strategy)}. Network: {one.network}" + (f" [{HOLDS[one.holds]}, {one.now}]" if one.now else ""),
        )
        for one in situations
    ]


def _remedy(one: Pressure, spell: Spell) -> str:
    if one.strategy:
        return f". Remedy: {spell(one.strategy)}"
    return f". Usual answers: {spell(one.usual)}" if one.state == "high" else ""


def _head(advice: Advice) -> str:
    return printable(f"{on_cluster(advice)}: {layout_text(advice.plan)}")


def _strategies(advice: Advice) -> list[dict[str, str]]:
    return [
        {
            "axis": axis_name(one.axis),
            "splits, sends and stresses": f"{one.splits}: {one.pattern}; {one.stresses}",
            "level": one.level,
            "GB sent": f"{one.bytes_per_step / 1e9:.1f}",
            "exposed": format_seconds(one.exposed_s) if one.exposed_s else "-",
            "of step": share_text(one.exposed_share),
        }
        for one in advice.strategies
    ]


def _expected(one: Benchmark) -> str:
    groups = f", {one.groups} groups at once" if one.groups > 1 else ""
    apart = f", {one.stride} apart" if one.stride > 1 else ""
    return (
        f"{axis_name(one.axis)} {one.collective} of {format_bytes(one.bytes)} over {one.group_size} GPUs{apart}{groups}"
        f": busbw {one.busbw_gb_per_s:.3g} GB/s, suspect below {one.busbw_low_gb_per_s:.3g} "
        f"({format_seconds(one.time_s)}, {one.algorithm})"
    )


def _broken(command: str) -> str:
    return command.replace(" ./build/", " \\\n  ./build/")


def _signs(advice: Advice) -> list[tuple[str, str, str]]:
    usual = advice.plan.memory_gib
    found = []
    for one in advice.signs:
        memory = "" if one.memory_gib == usual else f"memory is {one.memory_gib:.1f} rather than {usual:.1f} GiB; "
        found.append((f"{format_seconds(one.step_time_s)} ({signed(one.slower)})", one.suspect, f"{memory}{one.check}"))
    return found
