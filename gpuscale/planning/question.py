"""What a question says of constraints, money and the length of the training, as the search takes it."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscale.errors import InputError, nearest
from gpuscale.request import ALL_CLUSTERS, Question
from gpuscale.search.objectives import OBJECTIVES, TOTAL_COST, Constraint, Economics, Objective

DAY_S = 86400.0
PLAIN_OBJECTIVES = ("step_time", "tokens_per_s", "mfu", "memory")
"""Objectives that need no more than what every plan says."""


def check_question(question: Question) -> None:
    """Refuse what cannot be asked together."""
    if question.pareto and question.objective:
        hint = "a frontier is in the order of its first"
        raise InputError("`pareto` and `objective` exclude each other", hint=hint)
    if question.pareto and question.why:
        raise InputError("`pareto` and `why` exclude each other", hint="ask `why` of a ranking by one `objective`")


def constraints(question: Question) -> tuple[Constraint, ...]:
    """Return the constraints in the order in which they are checked, each in the unit of its goal."""
    asked = (
        ("max_memory", OBJECTIVES["memory"], question.max_memory, 1.0),
        ("min_mfu", OBJECTIVES["mfu"], question.min_mfu, 0.01),
        ("max_step_time", OBJECTIVES["step_time"], question.max_step_time, 1.0),
        ("max_days", OBJECTIVES["time_to_train"], question.max_days, DAY_S),
        ("max_cost", TOTAL_COST, question.max_cost, 1.0),
    )
    return tuple(Constraint(code, goal, limit * scale) for code, goal, limit, scale in asked if limit is not None)


def is_plain(question: Question) -> bool:
    """Whether nothing is asked that takes more than step time and memory of one job."""
    usual = question.objective is None or question.objective in PLAIN_OBJECTIVES
    beyond = question.pareto or constraints(question) or question.gpu_hour_price or question.train_tokens
    return usual and not beyond


def economics(question: Question, *clusters: str) -> Economics:
    """Return the price and the number of tokens that hold on a cluster, which goes by any of these names.

    Raises:
        InputError: something asked needs a price or the number of tokens, and there is none.
    """
    prices = question.gpu_hour_price
    price = next((prices[name] for name in (*clusters, ALL_CLUSTERS) if name in prices), None)
    found = Economics(price, question.train_tokens)
    asked: list[tuple[str, Objective]] = [("objective", OBJECTIVES[question.objective])] if question.objective else []
    asked += [("pareto", OBJECTIVES[name]) for name in question.pareto]
    asked += [(one.code, one.objective) for one in constraints(question)]
    for field, goal in asked:
        for name in goal.missing(found):
            option, example = _NEEDED[name]
            what = f"{goal.name} of {clusters[0]}" if name == "usd_per_gpu_hour" and prices else goal.name
            raise InputError(f"{what} needs `{option}`", field=field, hint=f"add `{option}={example}`")
    return found


_NEEDED = {"usd_per_gpu_hour": ("gpu_hour_price", "2.5"), "train_tokens": ("train_tokens", "15T")}


def check_prices(question: Question, clusters: Sequence[str]) -> None:
    """Refuse a price of a cluster that is not compared.

    Args:
        clusters: every name that one of them goes by.
    """
    for name in question.gpu_hour_price:
        if name != ALL_CLUSTERS and name not in clusters:
            close = nearest(name[:60], clusters, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(
                f"{name[:60]!r} is none of the clusters",
                field="gpu_hour_price",
                hint=f"{hint}clusters are {', '.join(dict.fromkeys(clusters))}",
            )
