"""Drawing of ties and of the reason for the first choice."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from gpuscale.results import Choice, PlanResult, PlanRow

TIE_MARK = "="
"""After the rank of a plan that cannot be told from the fastest."""

TIE_TEXT = (
    f"{TIE_MARK} cannot be told from the fastest: of measured pairs as close and as alike the order was right in less "
    "than two of three"
)


def rank_texts(result: PlanResult) -> list[str]:
    """The rank of each plan, marked where it is a tie with the fastest and there is more than one such."""
    ties = [standing.tied for standing in result.choice.standings] if result.choice else []
    marked = sum(ties) > 1
    return [f"{plan.rank}{TIE_MARK if marked and ties[plan.rank - 1] else ''}" for plan in result.plans]


def choice_rows(choice: Choice | None) -> list[tuple[str, str]]:
    """What the marks mean, where there are any, and the rule of the order, where it moved a plan."""
    if choice is None:
        return []
    rows = [("ties", TIE_TEXT)] if sum(standing.tied for standing in choice.standings) > 1 else []
    return [*rows, ("order", choice.rule)] if choice.reason else rows


def behind_text(choice: Choice, name: Callable[[PlanRow], str], width: int) -> str:
    """Why the first plan is first although another is faster on paper.

    Args:
        name: how a plan is named that is not shown.
    """
    first, fastest = choice.standings[0], choice.fastest
    other = f"#{fastest.rank}" if fastest.rank else name(fastest)
    tie = f", a tie (the model tells {first.tie_window:.1%} apart)" if first.tied else ""
    text = f"{first.behind:.1%} behind {other} on paper{tie}; first because {choice.reason}"
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False))


def ahead_text(choice: Choice | None, gap: float) -> str:
    """How far the first plan is ahead of the second, or behind where plans are not ranked by time."""
    if gap < 0:
        return f"{-gap:.1%} slower than #2, which has "
    second = choice.standings[1] if choice else None
    tie = f", a tie (the model tells {second.tie_window:.1%} apart)" if second and second.tied else ""
    return f"{gap:.1%} ahead of #2{tie}, which has "
