"""Drawing of `gpuscale advise`: to the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuscale.explain.advice import Advice
from gpuscale.explain.benchmarks import Benchmark
from gpuscale.files import printable
from gpuscale.launch.quoting import comment, shell_word
from gpuscale.planning.placement import axis_name
from gpuscale.ratios import share_text, signed
from gpuscale.render.console import Block, draw, note_rows, table
from gpuscale.render.plan import layout_text
from gpuscale.units import format_bytes, format_seconds, plural

Rows = Sequence[Mapping[str, str]]

TITLES = {
    "pressures": "Pressures, and what answers them",
    "strategies": "What each axis asks of the network",
    "placement": "Placement",
    "checklist": "Before the launch",
    "benchmarks": "Collectives to measure (nccl-tests or rccl-tests, built with MPI=1)",
    "settings": "Environment",
    "signs": "Signs of trouble: a step is predicted to take {}. If it takes",
}


def draw_advice(advice: Advice, spell: Callable[[str], str] = str) -> None:
    """Print all parts as tables and lists of at most 100 columns.

    Args:
        spell: from options in backticks to how they are given.
    """
    blocks: list[Block] = [f"{advice.verdict}\n{_head(advice)}"]
    pressures = [
        (f"{one.name}, {one.state}", one.now + f". Answer: {spell(one.strategy)}" * bool(one.strategy))
        for one in advice.pressures
    ]
    for name, body in (
        ("pressures", pressures),
        ("strategies", table(rows, left=2, optional=("GB sent",)) if (rows := _strategies(advice)) else ""),
        ("placement", _placed(advice)),
    ):
        if body:
            blocks += [TITLES[name], body]
    blocks += [TITLES["checklist"], "\n".join(_checks(advice, spell))]
    if advice.benchmarks:
        lines = [f"  {_expected(one)}\n{_indented(one.command)}" for one in advice.benchmarks]
        blocks += [TITLES["benchmarks"], "\n".join(lines)]
    if advice.settings:
        found = [(f"{one.variable}={shell_word(one.value)}", one.reason) for one in advice.settings]
        blocks += [TITLES["settings"], found]
    if advice.signs:
        step = format_seconds(advice.plan.step_time_s)
        blocks += [TITLES["signs"].format(step), [(took, f"{what}: {check}") for took, what, check in _signs(advice)]]
    draw(*blocks, note_rows(advice.notes, spell))


def markdown(advice: Advice, spell: Callable[[str], str] = str) -> str:
    """Return all parts as Markdown, with boxes to tick off the checklist."""
    pressures = [
        {"pressure": f"{one.name} ({one.state})", "now": one.now, "what answers it": spell(one.strategy) or "-"}
        for one in advice.pressures
    ]
    placed = [{"axis": axis, "where": text} for axis, text in _placed(advice)]
    signs = [{"step": took, "first suspect": what, "what shows it": check} for took, what, check in _signs(advice)]
    boxes = [
        f"- [ ] **{one.name}**: {one.now}. Check: {spell(one.check)}. Expect: {one.expect}." for one in advice.checklist
    ]
    measured = [f"{_expected(one)}:\n\n```sh\n{_broken(one.command)}\n```" for one in advice.benchmarks]
    exports = [f"export {one.variable}={shell_word(one.value)}  {comment(one.reason)}" for one in advice.settings]
    step = format_seconds(advice.plan.step_time_s)
    parts = {
        "pressures": _rows(pressures),
        "strategies": _rows(_strategies(advice)),
        "placement": _rows(placed),
        "checklist": "\n".join(boxes),
        "benchmarks": "\n\n".join(measured),
        "settings": "\n".join(["```sh", *exports, "```"]) if exports else "",
        "signs": _rows(signs),
    }
    sections = [f"## {TITLES[name].format(step)}\n\n{body}" for name, body in parts.items() if body]
    notes = [f"Note: {spell(note)}" for note in advice.notes]
    text = "\n\n".join([f"# {_head(advice)}", advice.verdict, *notes, *sections]) + "\n"
    return "\n".join(printable(line) for line in text.split("\n"))


def _rows(rows: Rows) -> str:
    """Write rows as a table of Markdown; nothing of none."""
    if not rows:
        return ""
    header = list(rows[0])
    lines = [header, ["---"] * len(header), *([row[name].replace("|", "\\|") for name in header] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _head(advice: Advice) -> str:
    return printable(f"{advice.model} on {plural(advice.gpus, 'GPU')} of {advice.cluster}: {layout_text(advice.plan)}")


def _strategies(advice: Advice) -> list[dict[str, str]]:
    return [
        {
            "axis": axis_name(one.axis),
            "splits, sends and stresses": f"{one.splits}: {one.pattern}; {one.stresses}",
            "level": one.level,
            "GB sent": f"{one.bytes_per_step / 1e9:.1f}",
            "shows": format_seconds(one.exposed_s) if one.exposed_s else "-",
            "of step": share_text(one.exposed_share),
        }
        for one in advice.strategies
    ]


def _placed(advice: Advice) -> list[tuple[str, str]]:
    return [(axis_name(one.axis), f"{'' if one.kept else 'NOT '}{one.rule}: {one.plan}") for one in advice.placement]


def _checks(advice: Advice, spell: Callable[[str], str]) -> list[str]:
    lines = []
    for number, one in enumerate(advice.checklist, 1):
        lines += [f"  {number:2}. {one.name}: {one.now}", f"      check   {spell(one.check)}"]
        lines += [f"      expect  {one.expect}"]
    return lines


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


def _indented(command: str) -> str:
    return "\n".join(f"    {line}" for line in _broken(command).split("\n"))


def _signs(advice: Advice) -> list[tuple[str, str, str]]:
    usual = advice.plan.memory_gib
    found = []
    for one in advice.signs:
        memory = "" if one.memory_gib == usual else f"memory is {one.memory_gib:.1f} rather than {usual:.1f} GiB; "
        found.append((f"{format_seconds(one.step_time_s)} ({signed(one.slower)})", one.suspect, f"{memory}{one.check}"))
    return found
