"""What to see to before a launch: tables to decide by, the checklist, benchmarks, settings and signs of trouble."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from gpuscale.explain.advice import Advice, Pressure
from gpuscale.explain.benchmarks import Benchmark
from gpuscale.explain.decisions import Decisions, Situation
from gpuscale.files import printable
from gpuscale.launch.quoting import comment, shell_word
from gpuscale.planning.placement import axis_name
from gpuscale.ratios import share_text, signed
from gpuscale.render.document import Checklist, Code, Document, Part, Section, Spell, note_facts, page, table, terminal
from gpuscale.render.plan_texts import layout_text
from gpuscale.units import format_bytes, format_seconds, plural

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
    """Lay out pressures, strategies, placement, the checklist, benchmarks, settings and signs of trouble."""
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
"""Whether a situation holds -> in a word."""


def _situations(situations: Sequence[Situation], spell: Spell) -> list[tuple[str, str]]:
    """Lay out the strategy for each situation, with what says that it holds."""
    return [
        (
            one.situation,
            f"{spell(one.strategy)}. Network: {one.network}" + (f" [{HOLDS[one.holds]}, {one.now}]" if one.now else ""),
        )
        for one in situations
    ]


def _remedy(one: Pressure, spell: Spell) -> str:
    """Say what helps, as evaluated; where nothing was found of a pressure that is high, what usually does."""
    if one.strategy:
        return f". Remedy: {spell(one.strategy)}"
    return f". Usual answers: {spell(one.usual)}" if one.state == "high" else ""


def _head(advice: Advice) -> str:
    return printable(f"{advice.model} on {plural(advice.gpus, 'GPU')} of {advice.cluster}: {layout_text(advice.plan)}")


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
    """Break a command before its program, as a shell takes it."""
    return command.replace(" ./build/", " \\\n  ./build/")


def _signs(advice: Advice) -> list[tuple[str, str, str]]:
    usual = advice.plan.memory_gib
    found = []
    for one in advice.signs:
        memory = "" if one.memory_gib == usual else f"memory is {one.memory_gib:.1f} rather than {usual:.1f} GiB; "
        found.append((f"{format_seconds(one.step_time_s)} ({signed(one.slower)})", one.suspect, f"{memory}{one.check}"))
    return found
