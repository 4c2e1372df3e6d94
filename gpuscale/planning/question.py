"""What a user asks of the search beside the job: objective, constraints, money, and what to compare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from gpuscale.errors import InputError, nearest
from gpuscale.planning.jobs import choice
from gpuscale.search.objectives import OBJECTIVES, TOTAL_COST, Constraint, Economics, Objective
from gpuscale.units import GIB, parse_bytes, parse_count

Numbers = int | str | Sequence[int]
Names = str | Sequence[str]

DAY_S = 86400.0
MAX_AXES = 3
"""Objectives of a Pareto frontier, at most."""

LEAST, MAX_PRICE, MAX_USD = 1e-9, 1e6, 1e15
"""Bounds of prices and constraints: by how much a plan misses one stays a number."""

SPACES = ("default", "full")
PLAIN_OBJECTIVES = ("step_time", "tokens_per_s", "mfu", "memory")
"""Objectives that need no more than what every plan says."""

ALL_CLUSTERS = ""
"""Key of a price that holds for every cluster."""


class PlanOptions(TypedDict, total=False):
    """Options of `plan`.

    Of the options of a job (`JobOptions`) those that may have several values take a list (`"bf16,fp8"`, `[256, 512]`)
    or, if they are numbers, a range (`"256..1024"`); all combinations are searched. `schedule`: pipeline schedules;
    `space`: one of `SPACES`, `full` also tries what the framework can run otherwise.

    `pins`: field of a candidate -> values it may take (`8`, `"4..8"`, `"!16"`), and `recompute`;
    `objective`: one of `OBJECTIVES`; `pareto`: two or three of them, the frontier of which is returned; `top`: plans to
    return; `unfold`: rank variants of a layout one by one; `why`: a layout such as `tp=4,pp=8` to account for;
    `robust`: rank by the worst decile under other conditions.

    `gpu_hour_price`: USD, or `"cluster=USD"` for each cluster; `train_tokens`: tokens of the whole training (`"15T"`);
    `max_memory`: GiB or a size (`"70GiB"`); `min_mfu`: percent; `max_step_time`: seconds; `max_days`, `max_cost`: days
    and USD that the whole training may take.
    """

    cluster: Names
    seq: Numbers
    gbs: Numbers
    framework: Names
    precision: Names
    optimizer: str
    grad_dtype: str
    master_dtype: str
    moment_dtype: str
    vocab_multiple: int
    memory_limit_gib: float
    moe_imbalance: float
    gpus_per_node: int
    offload: Names
    cp_comm: Names
    schedule: Names
    axis_order: Names
    pipeline_split: Names
    overlap: Names
    space: str
    pins: Mapping[str, str | int]
    objective: str
    pareto: Names
    top: int
    unfold: bool
    why: str
    robust: bool
    gpu_hour_price: float | str | Sequence[str]
    train_tokens: float | str
    max_memory: float | str
    min_mfu: float
    max_step_time: float
    max_days: float
    max_cost: float


@dataclass(frozen=True)
class Question:
    """What plans are ranked and cut by.

    Attributes:
        objective: one of `OBJECTIVES`; None when nothing was said.
        pareto: objectives of a frontier; empty for a ranking.
        prices: cluster, as the user calls it, or `ALL_CLUSTERS` -> USD per GPU-hour.
        full: all that the framework can run is tried.
    """

    objective: str | None
    pareto: tuple[str, ...]
    bounds: tuple[Constraint, ...]
    prices: Mapping[str, float]
    train_tokens: float | None
    full: bool = False

    @property
    def plain(self) -> bool:
        """Nothing is asked that takes more than step time and memory of one job."""
        usual = self.objective is None or self.objective in PLAIN_OBJECTIVES
        return usual and not (self.pareto or self.bounds or self.prices or self.train_tokens)

    @property
    def goals(self) -> tuple[tuple[str, Objective], ...]:
        """What values are needed for, with the option that asks for it."""
        ranked = [("--objective", OBJECTIVES[self.objective])] if self.objective else []
        axes = [("--pareto", OBJECTIVES[name]) for name in self.pareto]
        return (*ranked, *axes, *((bound.flag, bound.objective) for bound in self.bounds))

    def terms(self, *clusters: str) -> Economics:
        """Return the terms that hold on a cluster, which goes by any of these names.

        Raises:
            InputError: something asked needs a price or the number of tokens, and there is none.
        """
        price = next((self.prices[name] for name in (*clusters, ALL_CLUSTERS) if name in self.prices), None)
        terms = Economics(price, self.train_tokens)
        for flag, goal in self.goals:
            for name in goal.missing(terms):
                option, example = _NEEDED[name]
                where = f" on {clusters[0]}" if name == "usd_per_gpu_hour" and self.prices else ""
                what = f"{goal.name} of {clusters[0]}" if where else goal.name
                raise InputError(f"{what} needs {option}", place=flag, hint=f"add {option} {example}")
        return terms


_NEEDED = {"usd_per_gpu_hour": ("--gpu-hour-price", "2.5"), "train_tokens": ("--train-tokens", "15T")}


def make_question(options: PlanOptions) -> Question:
    """Parse what is asked beside the job.

    Raises:
        InputError: an unknown objective or space, or a number that is none or out of range.
    """
    objective = choice("--objective", options["objective"], tuple(OBJECTIVES)) if "objective" in options else None
    pareto = _pareto(options["pareto"]) if "pareto" in options else ()
    if pareto and objective:
        raise InputError("--pareto and --objective exclude each other", hint="a frontier is in the order of its first")
    if pareto and "why" in options:
        raise InputError("--pareto and --why exclude each other", hint="ask --why of a ranking: --objective NAME")
    tokens = options.get("train_tokens")
    return Question(
        objective=objective,
        pareto=pareto,
        bounds=_bounds(options),
        prices=_prices(options["gpu_hour_price"]) if "gpu_hour_price" in options else {},
        train_tokens=None if tokens is None else parse_count(_plain_text(tokens), "--train-tokens"),
        full=choice("--space", options.get("space", "default"), SPACES) == "full",
    )


def _pareto(value: Names) -> tuple[str, ...]:
    parts = value.split(",", MAX_AXES + 1) if isinstance(value, str) else list(value)
    names = [choice("--pareto", str(part).strip(), tuple(OBJECTIVES)) for part in parts]
    if not 2 <= len(names) <= MAX_AXES or len(set(names)) < len(names):
        raise InputError(
            f"{len(set(names))} different objectives make no frontier", place="--pareto", hint="give two or three"
        )
    return tuple(names)


def _bounds(options: PlanOptions) -> tuple[Constraint, ...]:
    """Constraints in the order in which they are checked."""
    found: list[Constraint] = []
    if "max_memory" in options:
        found.append(Constraint("max_memory", OBJECTIVES["memory"], _gib(options["max_memory"])))
    if "min_mfu" in options:
        found.append(Constraint("min_mfu", OBJECTIVES["mfu"], _positive("--min-mfu", options["min_mfu"], 100.0) / 100))
    if "max_step_time" in options:
        found.append(
            Constraint("max_step_time", OBJECTIVES["step_time"], _positive("--max-step-time", options["max_step_time"]))
        )
    if "max_days" in options:
        limit_s = _positive("--max-days", options["max_days"]) * DAY_S
        found.append(Constraint("max_days", OBJECTIVES["time_to_train"], limit_s))
    if "max_cost" in options:
        found.append(Constraint("max_cost", TOTAL_COST, _positive("--max-cost", options["max_cost"], MAX_USD)))
    return tuple(found)


def _positive(place: str, value: float, most: float = 1e9) -> float:
    if not (math.isfinite(value) and LEAST <= value <= most):
        raise InputError(f"{value:g} is out of range", place=place, hint=f"give {LEAST:g} to {most:g}")
    return float(value)


def _gib(value: float | str) -> float:
    """Read a size: a plain number is GiB, as `--memory-limit` takes it."""
    text = _plain_text(value).strip()
    try:
        return _positive("--max-memory", float(text), 10_000.0)
    except ValueError:
        return parse_bytes(text, "--max-memory") / GIB


def _plain_text(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value)


def _prices(value: float | str | Sequence[str]) -> dict[str, float]:
    """Parse `2.5`, or `cluster=2.5` for each cluster."""
    place, found = "--gpu-hour-price", dict[str, float]()
    given = [value] if isinstance(value, str | float | int) else list(value)
    for item in given:
        name, equals, amount = _plain_text(item).rpartition("=")
        cluster = name.strip() if equals else ALL_CLUSTERS
        try:
            if equals and not cluster:
                raise ValueError
            price = float(amount)
        except ValueError:
            raise InputError(
                f"{str(item)[:60]!r} is not a price", place=place, hint="write 2.5, or CLUSTER=2.5 for each cluster"
            ) from None
        if cluster in found:
            what = f"of {cluster[:60]}" if cluster else "of all clusters"
            raise InputError(f"the price {what} is given twice", place=place, hint="give each once")
        found[cluster] = _positive(place, price, MAX_PRICE)
    return found


def check_prices(question: Question, clusters: Sequence[str]) -> None:
    """Refuse a price of a cluster that is not compared.

    Args:
        clusters: every name that one of them goes by.
    """
    for name in question.prices:
        if name != ALL_CLUSTERS and name not in clusters:
            close = nearest(name[:60], clusters, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(
                f"{name[:60]!r} is none of the clusters",
                place="--gpu-hour-price",
                hint=f"{hint}clusters are {', '.join(dict.fromkeys(clusters))}",
            )


__all__ = ["SPACES", "PlanOptions", "Question", "check_prices", "make_question"]
