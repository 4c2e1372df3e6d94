"""How a study of trials stands: what to try next, and what the trials so far measured."""

from __future__ import annotations

import shlex

from gpuscale.files import printable
from gpuscale.render.compared import three_digits
from gpuscale.render.document import Document, Section, table
from gpuscale.render.plan_texts import layout_text, on_cluster, step_range
from gpuscale.trials import TrialRow, Tuning
from gpuscale.units import format_seconds, plural


def tuning_document(state: Tuning) -> Document:
    """Lay out how a study of trials stands."""
    parts = [table([_cells(one, state) for one in state.trials], left=3)]
    facts = [("to do", _to_do(state))] if state.next is not None else []
    facts += [("rule", state.rule)]
    if state.calibration:
        facts.append(("calibration", f"{state.calibration}: give it to `plan` and others as `calibration`"))
    return Document(
        f"Trials of {on_cluster(state)}",
        "\n".join(_verdict(state)),
        [],
        [Section("Trials", parts), Section("Next", [facts])],
    )


def trial_line(state: Tuning) -> str:
    """What is tried next, in a line."""
    assert state.plan is not None
    chance = "" if state.chance is None else f", {state.chance:.0%} likely to be faster than the best"
    return f"trial {state.next}: {layout_text(state.plan)}, predicted {_predicted(state)}{chance}"


def _verdict(state: Tuning) -> list[str]:
    lines = []
    best = next((one for one in state.trials if one.number == state.best), None)
    if state.stopped and best is None:
        lines.append(f"no layout ran: {state.stopped}")
    elif state.stopped:
        lines.append(f"fastest: {_measured(best)}; {state.stopped}")
    else:
        lines.append(f"try {trial_line(state)}")
        if best is not None:
            lines.append(f"fastest so far: {_measured(best)}")
    done = sum(one.outcome != "waiting" for one in state.trials)
    lines.append(f"{plural(done, 'trial')} so far, {plural(state.candidates, 'layout')} left to try")
    return [printable(line) for line in lines]


def _measured(row: TrialRow | None) -> str:
    assert row is not None and row.step_time_s is not None
    return f"trial {row.number}, {layout_text(row.plan)}: {format_seconds(row.step_time_s)}/step"


def _predicted(state: Tuning) -> str:
    plan = state.plan
    assert plan is not None
    return f"{format_seconds(plan.step_time_s)} ({step_range(plan)})"


def _to_do(state: Tuning) -> str:
    command = shlex.join(state.arguments) if state.arguments else f"launch {state.plan_file}"
    return f"{command}; its log goes to {state.log}; then `gpuscale tune {shlex.quote(state.study)}` again"


def _cells(row: TrialRow, state: Tuning) -> dict[str, str]:
    outcome = "fastest" if row.number == state.best else row.reason or row.outcome
    return {
        "#": str(row.number),
        "layout": layout_text(row.plan),
        "": printable(outcome)[:40],
        "s/step": three_digits(row.step_time_s) if row.step_time_s else "-",
        "predicted now": three_digits(row.plan.step_time_s),
        "GiB": "-" if row.memory_gib is None else f"{row.memory_gib:.1f}",
        "predicted": f"{row.plan.memory_gib:.1f}",
    }
