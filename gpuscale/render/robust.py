"""Drawing of `gpuscale plan --robust`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from gpuscale.render.console import table
from gpuscale.results import Condition, PlanRow, RobustAnswer, Turn

SHORT_NAMES = {
    "network": "network", "node_links": "links", "latency": "latency", "kernels": "kernels", "host": "host",
    "imbalance": "experts", "slow_gpu": "slow GPU",
}  # fmt: skip
"""Condition -> header of its column."""


def robust_table(answer: RobustAnswer, ranks: Sequence[str], step_text: Callable[[float], str]) -> Table:
    """Spread of the step time of each plan, and what each condition costs it at its worst decile."""
    names = [condition.name for condition in answer.conditions]
    headers = ["#", "p10 s", "median", "p90", "fits%", *(SHORT_NAMES[name] for name in names), "hurt most by"]
    rows = [
        [
            rank,
            *(step_text(seconds) for seconds in (plan.p10_s, plan.median_s, plan.p90_s)),
            f"{100 * plan.fits:.0f}",
            *(f"{100 * plan.losses[name]:+.1f}" for name in names),
            SHORT_NAMES[plan.most_hurt_by],
        ]
        for rank, plan in zip(ranks, answer.plans, strict=True)
    ]
    return table(headers, rows, gap=1)


def robust_rows(answer: RobustAnswer, name: Callable[[PlanRow], str]) -> list[tuple[str, str]]:
    """What the cases are, what tells the plans apart, and where another would be chosen."""
    cases = (
        f"{answer.scored} plans priced in {answer.samples} cases, in which every condition is other than predicted; a "
        "column says by how many % one condition alone, at its worst decile, lengthens the step"
    )
    conditions = [
        (SHORT_NAMES[one.name], f"{one.meaning} x {one.worst:.2f} ({one.source})") for one in answer.conditions
    ]
    return [("robust", cases), *conditions, ("apart", _apart(answer)), ("holds for", _holds_text(answer, name))]


def _apart(answer: RobustAnswer) -> str:
    """The condition whose cost differs most between the plans shown."""
    costs = {one.name: [plan.losses[one.name] for plan in answer.plans] for one in answer.conditions}
    widest = max(answer.conditions, key=lambda one: max(costs[one.name]) - min(costs[one.name]))
    losses = costs[widest.name]
    hurt = max(range(len(losses)), key=losses.__getitem__)
    return f"where {_less(widest)}, #{hurt + 1} loses {losses[hurt]:.1%}" + (f", #1 {losses[0]:.1%}" if hurt else "")


WORST_TEXT = {
    "network": "the network gives {less:.0%} less",
    "node_links": "the links of a node give {less:.0%} less",
    "latency": "latencies are {more:.0%} higher",
    "kernels": "kernels take {more:.0%} longer",
    "host": "the CPU takes {more:.0%} longer",
    "imbalance": "the busiest expert rank has {more:.0%} more tokens",
    "slow_gpu": "one GPU takes {more:.0%} longer",
}
"""Condition -> what its factor means."""


def _less(condition: Condition) -> str:
    return WORST_TEXT[condition.name].format(less=1 - 1 / condition.worst, more=condition.worst - 1)


def _holds_text(answer: RobustAnswer, name: Callable[[PlanRow], str]) -> str:
    """How far conditions may change before the first choice does, and to which plan."""
    first = answer.predicted
    parts = []
    for condition in dict.fromkeys(turn.condition for turn in answer.turns):
        turns = {_rate(turn): turn for turn in answer.turns if turn.condition == condition}
        changes = [
            f"{'below' if rate < 1 else 'above'} {name(turn.plan)}{f' (#{turn.plan.rank})' if turn.plan.rank else ''}"
            for rate, turn in sorted(turns.items())
            if turn.plan is not None
        ]
        band = f"{min(turns):.2g} to {max(turns):.2g}" if len(turns) > 1 else f"up to {max(turns):.2g}"
        parts.append("; ".join([f"{band} x the {CHANGED.get(condition, condition)}", *changes]))
    who = "" if first.rank == 1 else f"{f'#{first.rank}' if first.rank else name(first)}, best as predicted: "
    return who + ". ".join(parts)


def _rate(turn: Turn) -> float:
    """The factor as people think of it: on a rate, where the condition is the time that it takes."""
    return turn.factor if turn.condition == "imbalance" else 1 / turn.factor


CHANGED = {
    "network": "bandwidth of the network",
    "kernels": "speed of kernels",
    "imbalance": "tokens of the busiest expert rank",
}
"""Condition -> what its turning points are factors of."""
