"""Published differences between configurations beside what gpuscale predicts of them: is the sign right?

    python benchmarks/published_differences.py runs.csv [--wrong]

A pair is two comparable runs of one source that differ in one or two settings: same family, publication, date,
framework, GPU, fabric, model and layers, and all columns of `SETTINGS` the same but one or two (DP and shard follow
from the others and do not count). Runs measured several times count once, with their mean. What is compared is tokens
per second and GPU. Pairs that measured less apart than a threshold are left out: they are within the noise.

Printed: how many pairs there are above 2, 5 and 10 %, and of how many the sign is right: of all, by what differs, by
family, and of those that the model can tell apart (`gpuscale.search.ties`); every group of runs of one model on one GPU
counting alike too, because a sweep has hundreds of times more pairs than a table of four lines. Then the differences of
`REFERENCE`, which no table of runs has. With `--wrong` the wrong ones.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gpuscale.planning.plans import estimate
from gpuscale.search import ties
from gpuscale.uncertainty import family_of
from gpuscale.validation.measurements import read_measurements
from gpuscale.validation.runs import Prediction, predict_runs
from gpuscale.validation.scores import comparable

SETTINGS = (
    "gpus", "precision", "tp", "pp", "vp", "cp", "ep", "etp", "sp", "zero", "mbs", "gbs", "seq", "recompute",
    "schedule", "offload", "cuda_graphs", "overlap_tp", "overlap_dp", "overlap_ep", "dispatcher", "routing", "mtp",
    "moment_dtype", "state_dtype", "compile", "gpu_power_w", "transport",
)  # fmt: skip
"""Columns that may differ: what a run was set to."""

SAME = ("framework", "gpu", "gpus_per_node", "fabric", "model", "params_b", "layers", "hidden", "experts", "spec")
"""Columns that must not differ, beside the source."""

MOST_DIFFERENCES = 2
Asked = tuple[dict[str, Any], dict[str, Any]]
"""Options of a job and of a layout."""

NOISE = (0.02, 0.05, 0.10)
"""Measured differences from which on a pair counts."""


_OFFLOADED = {
    "model": "llama3-8b",
    "gpus": 4,
    "framework": "deepspeed",
    "offload": "optimizer+parameters",
    "seq": 2048,
    "gbs": 16,
}
_ZERO3 = {"zero": 3, "recompute": "full"}


def _on(cluster: str, per_node: int) -> Asked:
    return _OFFLOADED | {"cluster": cluster, "gpus_per_node": per_node}, _ZERO3


def _tp8(model: str, *, sp: bool) -> Asked:
    job = {"model": model, "gpus": 64, "cluster": "dgx-a100-superpod", "seq": 2048, "gbs": 64}
    return job, {"tp": 8, "pp": 8, "sp": sp}


MINUTES = {"g6e": 35.8, "p4d": 16.35, "p4d-efa": 39.53, "p4d-eni": 80.48, "p5": 20.1, "p5-efa": 66.15}
REFERENCE: tuple[tuple[str, float, Asked, Asked], ...] = (
    (
        "p4d, 4 GPUs of a node -> 4 nodes, EFA",
        MINUTES["p4d"] / MINUTES["p4d-efa"],
        _on("aws-p4d", 4),
        _on("aws-p4d", 1),
    ),
    ("p4d, 4 nodes, EFA -> sockets", MINUTES["p4d-efa"] / MINUTES["p4d-eni"], _on("aws-p4d", 1), _on("aws-p4d-eni", 1)),
    ("p4d, a node -> 4 nodes, sockets", MINUTES["p4d"] / MINUTES["p4d-eni"], _on("aws-p4d", 4), _on("aws-p4d-eni", 1)),
    ("p5, 4 GPUs of a node -> 4 nodes, EFA", MINUTES["p5"] / MINUTES["p5-efa"], _on("aws-p5", 4), _on("aws-p5", 1)),
    ("4 GPUs of a node, g6e -> p4d", MINUTES["g6e"] / MINUTES["p4d"], _on("aws-g6e", 4), _on("aws-p4d", 4)),
    ("Llama-3-8B TP 8, SP off -> on", 1.075, _tp8("llama3-8b", sp=False), _tp8("llama3-8b", sp=True)),
    ("Llama-3-70B TP 8, SP off -> on", 1.325, _tp8("llama3-70b", sp=False), _tp8("llama3-70b", sp=True)),
    ("GPT-3 175B TP 8, SP off -> on", 1.5, _tp8("gpt3-175b", sp=False), _tp8("gpt3-175b", sp=True)),
)
"""What differs, how many times faster the second was, and both, as `estimate` takes them: a Llama-3-8B under ZeRO-3
with offloading on AWS (minutes for 50 steps; the sequence is not stated), and what is quoted of sequence parallelism
(the middle of 5-10 % for 7-13B, 25-40 % for 70B, 1.5 times for 175B)."""


@dataclass(frozen=True)
class Measured:
    """One configuration: the mean of its measurements, and what is predicted."""

    name: str
    settings: tuple[str, ...]
    measured: float
    predicted: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """Two configurations; differences are of log(tokens per second and GPU), the second less the first."""

    group: tuple[str, ...]
    one: Measured
    other: Measured
    differ: tuple[str, ...]

    @property
    def measured(self) -> float:
        """By measurement."""
        return math.log(self.other.measured / self.one.measured)

    @property
    def predicted(self) -> float:
        """By prediction."""
        return math.log(self.other.predicted / self.one.predicted)

    @property
    def right(self) -> bool:
        """Whether the sign is right."""
        return self.measured * self.predicted > 0

    @property
    def told_apart(self) -> bool:
        """Whether the model says that it can tell them apart."""
        unlike = ties.unlike(np.array(self.one.shares)[:, None], np.array(self.other.shares)[:, None])
        return abs(self.predicted) > float(ties.tie_window(unlike)[0])


def sources(path: Path) -> dict[str, str]:
    """Id of each run -> its publication, without the line or row of this run."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["id"]: re.sub(r"\b(lines?|rows?|job|case) ?[\w.-]+", "", row["source"]) for row in csv.DictReader(file)
        }


def read_pairs(path: Path, *, sample: int = 1) -> list[Pair]:
    """All pairs of a file of runs, or those among one of so many of its runs, chosen by their names."""
    _, every = read_measurements(path)
    rows = [row for row in every if zlib.crc32(row.raw("id").encode()) % sample == 0]
    published = sources(path)
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for row, prediction in zip(rows, predict_runs(rows), strict=True):
        step_s, gpus, gbs, seq = (row.number(name) for name in ("step_s", "gpus", "gbs", "seq"))
        if not (comparable(row) and step_s and gpus and gbs and seq) or not isinstance(prediction, Prediction):
            continue
        tokens = gbs * seq / gpus
        key = (
            family_of(row.raw("id")),
            published[row.raw("id")],
            row.text("source_date"),
            *(row.text(name) for name in SAME),
        )
        settings = tuple(row.text(name) for name in SETTINGS)
        seconds = np.array(prediction.seconds)
        shares = tuple((seconds / seconds.sum()).tolist())
        one = Measured(row.raw("id"), settings, tokens / step_s, tokens / prediction.step_s, shares)
        groups[key][settings].append(one)
    return [pair for key, members in groups.items() for pair in _pairs(key, members.values())]


def _pairs(key: tuple[str, ...], members: Iterable[Sequence[Measured]]) -> Iterable[Pair]:
    means = [
        Measured(
            same[0].name,
            same[0].settings,
            statistics.geometric_mean(one.measured for one in same),
            statistics.geometric_mean(one.predicted for one in same),
            same[0].shares,
        )
        for same in members
    ]
    for one, other in combinations(means, 2):
        both = zip(SETTINGS, one.settings, other.settings, strict=True)
        differ = tuple(name for name, mine, theirs in both if mine != theirs)
        if len(differ) <= MOST_DIFFERENCES:
            yield Pair(key, one, other, differ)


def share_right(pairs: Sequence[Pair]) -> str:
    """How many pairs, and of how many the sign is right."""
    return (
        f"{sum(pair.right for pair in pairs):6,} of {len(pairs):6,} = {100 * np.mean([p.right for p in pairs]):5.1f} %"
    )


def balanced(pairs: Sequence[Pair]) -> float:
    """Share right with every group counting alike."""
    groups: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair.right)
    return statistics.fmean(statistics.fmean(map(float, members)) for members in groups.values())


def by(pairs: Sequence[Pair], name: Callable[[Pair], Iterable[str]]) -> dict[str, list[Pair]]:
    """Sort pairs; one may be of several kinds."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        for kind in name(pair):
            found[kind].append(pair)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def reference() -> list[tuple[str, float, float]]:
    """Of each difference of `REFERENCE` how many times faster the second was, and is predicted to be."""
    found = []
    for what, measured, *asked in REFERENCE:
        one, other = (
            estimate(job["model"], job["gpus"], layout, **{k: v for k, v in job.items() if k not in {"model", "gpus"}})
            for job, layout in asked
        )
        found.append((what, measured, one.plan.step_time_s / other.plan.step_time_s))
    return found


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("--wrong", action="store_true")
    asked = parser.parse_args()
    pairs = read_pairs(asked.runs)
    print(f"{len(pairs):,} pairs of {len({pair.group for pair in pairs})} groups")
    _print_shares(pairs)
    kept = [pair for pair in pairs if abs(pair.measured) > math.log1p(NOISE[0])]
    _print_kinds(kept)
    print("\nof the reference")
    for what, measured, predicted in reference():
        right = "right" if (measured > 1) == (predicted > 1) else "WRONG"
        print(f"  {right} {what}: {measured:.2f} x, predicted {predicted:.2f} x")
    if asked.wrong:
        _print_wrong(kept)


def _print_shares(pairs: Sequence[Pair]) -> None:
    for noise in NOISE:
        kept = [pair for pair in pairs if abs(pair.measured) > math.log1p(noise)]
        apart = [pair for pair in kept if pair.told_apart]
        print(f"\nabove {100 * noise:.0f} %: {share_right(kept)}; groups alike {100 * balanced(kept):.1f} %")
        print(f"    told apart: {share_right(apart)}; groups alike {100 * balanced(apart):.1f} %")
        for count in (1, 2):
            some = [pair for pair in kept if len(pair.differ) == count]
            what = f"{count} setting{'s' * (count > 1)}"
            print(f"    {what}: {share_right(some)}; groups alike {100 * balanced(some):.1f} %")


def _print_kinds(kept: Sequence[Pair]) -> None:
    for title, name in (
        ("setting, alone", lambda pair: pair.differ if len(pair.differ) == 1 else ()),
        ("settings", lambda pair: ["+".join(pair.differ)]),
        ("family", lambda pair: [pair.group[0]]),
    ):
        print(f"\nby {title}, above {100 * NOISE[0]:.0f} %")
        for kind, some in by(kept, name).items():
            print(f"  {kind:28} {share_right(some)}")


def _print_wrong(kept: Sequence[Pair]) -> None:
    print()
    for pair in sorted((pair for pair in kept if not pair.right), key=lambda pair: -abs(pair.measured)):
        both = zip(SETTINGS, pair.one.settings, pair.other.settings, strict=True)
        differ = ", ".join(f"{name} {mine or '-'} -> {theirs or '-'}" for name, mine, theirs in both if mine != theirs)
        numbers = f"{math.expm1(pair.measured):+.1%}, predicted {math.expm1(pair.predicted):+.1%}"
        print(f"{pair.one.name} / {pair.other.name}: {differ}: {numbers}")


if __name__ == "__main__":
    main()
