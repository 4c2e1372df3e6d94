"""Drawing of `gpuscale plan` where several jobs are compared, a frontier is asked for, or money counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscale.ratios import AMOUNT, NUMBER, PRICE, SPEED, in_words
from gpuscale.render.plan_texts import on_gpus
from gpuscale.request import OPTIONS, choice_text
from gpuscale.results import BEATEN, NOTHING_LEGAL, Comparison, PlanResult, VariantRow
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.units import DAY_S, format_count, format_seconds, plural

SHOWN = {
    "step_time": ("s/step", "", 1.0),
    "tokens_per_s": ("tokens/s", "", 1.0),
    "mfu": ("MFU %", "", 100.0),
    "memory": ("GiB", "", 1.0),
    "gpu_hours": ("GPU-hours per 1e12 tokens", "GPUh/1e12", 1.0),
    "cost": ("USD per 1e9 tokens", "USD/1e9", 1.0),
    "time_to_train": ("days of training", "days", 1 / DAY_S),
    "memory_headroom": ("GiB free", "free GiB", 1.0),
    "energy": ("kWh per 1e9 tokens", "kWh/1e9", 1.0),
    "carbon": ("kg CO2 per 1e9 tokens", "kg/1e9", 1.0),
}
"""Objective -> its unit for people, the header of a column of its own where it has one, and the factor to that unit."""

BY_SPEED = ("tokens_per_s", "step_time", "time_to_train")
"""Objectives of speed; against them stand money and GPU-hours, and speed against all others."""


def three_digits(value: float) -> str:
    """Write a number with three digits, and with commas from a thousand on."""
    if abs(value) < 0.9995:
        return f"{value:#.3g}" if value else "0"
    return f"{value:,.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f}"


def _objective_text(name: str, values: Mapping[str, float]) -> str:
    unit, _, factor = SHOWN[name]
    value = values[OBJECTIVES[name].key]
    if name == "step_time":
        return f"{format_seconds(value)}/step"
    if name == "mfu":
        return f"MFU {value:.1%}"
    if name in {"tokens_per_s", "gpu_hours"}:
        return f"{format_count(value)} {unit}"
    return f"{three_digits(value * factor)} {unit}"


def compared_verdict(result: PlanResult, compared: Comparison) -> str:
    """Answer in a sentence: which job is best and what speaks for another, or the ends of a frontier."""
    if compared.frontier_size:
        return _frontier_verdict(result, compared)
    name, rows = compared.objectives[0], compared.variants
    best = rows[compared.of_plan[0]]
    others = [row for row in rows if row.best and row is not best]
    fastest, subject = _foremost((best, *others), name), _subject(best.choice, rows[0].choice)
    faster = fastest.best["tokens_per_s"] / best.best["tokens_per_s"]
    if name in BY_SPEED and in_words(faster, SPEED) != SPEED.same:  # of a full space the fewest settings go first
        subject = "the framework's own settings" if best is rows[0] else subject
        said = f"{subject}: {_objective_text(name, best.best)}, and nearly as fast as any with fewer settings changed"
        rest = _subject(fastest.choice, rows[0].choice)
        return f"{result.model}: {said}; {rest} {_against(name, best.best, fastest)} on paper"
    head = f"{result.model}: {subject} {_claim(name, best.choice, best.best)}"
    if not others:
        return head
    rival_goal = "cost" if "usd_per_1e9_tokens" in best.best else "gpu_hours"
    rival = _foremost((best, *others), rival_goal if name in BY_SPEED else "tokens_per_s")
    if rival is best:
        rival = _foremost(others, name)
    return f"{head}; {_subject(rival.choice, rows[0].choice)} {_against(name, best.best, rival)}"


def _foremost(rows: Sequence[VariantRow], name: str) -> VariantRow:
    goal = OBJECTIVES[name]
    return (max if goal.rising else min)(rows, key=lambda row: row.best[goal.key])


def _subject(choice: Mapping[str, str | int], first: Mapping[str, str | int]) -> str:
    """Name a job by what sets it apart, of many things from the first: `640 GPUs of b200-hgx with fp8`."""
    rest = {name: value for name, value in choice.items() if name not in {"gpus", "cluster"}}
    if len(rest) > 2:
        rest = {name: value for name, value in rest.items() if value != first[name]} or rest
    where = [plural(int(choice["gpus"]), "GPU")] if "gpus" in choice else []
    where += [str(choice["cluster"])] if "cluster" in choice else []
    head = " of ".join(where)
    return f"{head} with {choice_text(rest)}" if head and rest else head or choice_text(rest)


def _claim(name: str, choice: Mapping[str, str | int], values: Mapping[str, float]) -> str:
    said, many = _objective_text(name, values), int(choice.get("gpus", 1)) > 1  # a verb in the plural
    one = "" if many else "s"
    if name == "time_to_train":
        tokens = format_count(values["time_to_train_s"] * values["tokens_per_s"])
        return f"train{one} {tokens} tokens soonest: {three_digits(values['time_to_train_s'] / DAY_S)} days"
    return {
        "cost": f"train{one} a token cheapest: {said}",
        "gpu_hours": f"take{one} the fewest GPU-hours: {said.replace(' GPU-hours', '')}",
        "tokens_per_s": f"{'are' if many else 'is'} fastest: {said}",
        "step_time": f"{'have' if many else 'has'} the shortest step: {said.removesuffix('/step')}",
        "mfu": f"reach{'' if many else 'es'} the highest MFU: {values['mfu']:.1%}",
        "memory": f"need{one} the least memory: {said}",
        "memory_headroom": f"leave{one} the most memory: {said}",
        "energy": f"train{one} a token with the least energy: {said}",
        "carbon": f"train{one} a token with the least carbon: {said}",
    }[name]


def _against(name: str, best: Mapping[str, float], row: VariantRow) -> str:
    rival, many = row.best, int(row.choice.get("gpus", 1)) > 1
    speed, hours = (rival[key] / best[key] for key in ("tokens_per_s", "gpu_hours_per_1e12_tokens"))
    verb = "are" if many else "is"
    fast = f"{verb} {in_words(speed, SPEED)}"
    if name in BY_SPEED and "usd_per_1e9_tokens" not in best and abs(speed * hours - 1) < 1e-9:
        return fast if fast != f"{verb} {SPEED.same}" else f"{fast} to 0.1%"  # on as many GPUs: nothing else to say
    if name in {"memory", "memory_headroom"}:
        return f"{fast} with {three_digits(rival['memory_gib'])} GiB"
    if name == "mfu":
        return f"{fast} at MFU {rival['mfu']:.1%}"
    if name in {"energy", "carbon"}:
        key = OBJECTIVES[name].key
        return f"{fast} and take{'' if many else 's'} {in_words(rival[key] / best[key], AMOUNT.of(f' {name}'))}"
    key = "usd_per_1e9_tokens"
    if key in best and key in rival:
        return f"{fast} and {in_words(rival[key] / best[key], PRICE)}"
    return f"{fast} and take{'' if many else 's'} {in_words(hours, NUMBER.of(' GPU-hours'))}"


def _frontier_verdict(result: PlanResult, compared: Comparison) -> str:
    size, shown, names = compared.frontier_size, len(result.plans), compared.objectives
    axes = f"{', '.join(names[:-1])} and {names[-1]}"
    jobs = len(compared.variants)
    of = on_gpus(result) if jobs == 1 else f"{jobs} jobs of {result.model}"
    head = f"{plural(size, 'plan')} of {of} {'are' if size != 1 else 'is'} on the frontier of {axes}"
    ends = [", ".join(_objective_text(name, _values(result, compared, at)) for name in names) for at in (0, shown - 1)]
    part = f"; the first {shown:,}" if shown < size else ""
    return f"{head}{part}: from {ends[0]} to {ends[1]}" if shown > 1 else f"{head}: {ends[0]}"


def _values(result: PlanResult, compared: Comparison, index: int) -> dict[str, float]:
    return {**result.plans[index].to_dict(), **compared.values[index]}


def worth_parts(result: PlanResult, compared: Comparison) -> list[str]:
    """What the first plan is worth beside what its row says."""
    values = _values(result, compared, 0)
    parts = [_objective_text("gpu_hours", values)]
    if "usd_per_1e9_tokens" in values:
        parts.append(_objective_text("cost", values))
    parts += [_objective_text(name, values) for name in ("energy", "carbon") if OBJECTIVES[name].key in values]
    if "time_to_train_s" in values:
        tokens = format_count(values["time_to_train_s"] * values["tokens_per_s"])
        money = f" for {format_count(values['usd_to_train'])} USD" if "usd_to_train" in values else ""
        parts.append(f"{tokens} tokens in {three_digits(values['time_to_train_s'] / DAY_S)} days{money}")
    return parts


def own_cells(compared: Comparison, index: int) -> dict[str, str]:
    """Cells of a plan that not every plan has: what sets its job apart, and what was asked."""
    row = compared.variants[compared.of_plan[index]]
    cells = {
        OPTIONS[name].header or name: f"{value:,}" if isinstance(value, int) else value
        for name, value in row.choice.items()
    }
    values = compared.values[index]
    for name, (_, header, factor) in SHOWN.items():
        key = OBJECTIVES[name].key
        if header and key in values and name in {*compared.objectives, "cost", "time_to_train"}:
            value = values[key] * factor
            cells[header] = format_count(value) if name == "gpu_hours" else three_digits(value)
    return cells


def jobs_rows(compared: Comparison) -> list[tuple[str, str]]:
    """How many jobs were compared, by what, and which of them have no plan."""
    rows = [("ranked by", ", ".join(compared.objectives))]
    if len(compared.variants) > 1:
        names = ", ".join((OPTIONS[name].header or name) for name in compared.variants[0].choice)
        rows.insert(0, ("compared", f"{len(compared.variants):,} jobs that differ in {names}"))
    failed = [row for row in compared.variants if row.reason not in {None, NOTHING_LEGAL, BEATEN}]
    empty = sum(row.reason == NOTHING_LEGAL for row in compared.variants)
    if empty:
        rows.append(("no plan", f"{plural(empty, 'job')}: {NOTHING_LEGAL}"))
    rows += [("no plan", f"{choice_text(row.choice)}: {row.reason}") for row in failed[:SHOWN_FAILED]]
    if len(failed) > SHOWN_FAILED:
        rows.append(("no plan", f"{len(failed) - SHOWN_FAILED:,} more"))
    return rows


SHOWN_FAILED = 8


def csv_rows(result: PlanResult) -> list[dict[str, Any]]:
    """One row per plan: what sets its job apart, the fields of `PlanRow`, and what it is worth."""
    compared, rows = result.compared, [plan.to_dict() for plan in result.plans]
    if compared is None:
        return rows
    choices = [compared.variants[index].choice for index in compared.of_plan]
    rows = [{**choice, **row, **values} for choice, row, values in zip(choices, rows, compared.values, strict=False)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]
