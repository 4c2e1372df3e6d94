"""Where the constants of `gpuscale/search/ties.py` and `conditions.py` come from, and whether the order of plans holds.

    python benchmarks/fit_ties.py runs.csv [--collectives collectives.csv] [--kernels kernels.csv]

Printed, from measured layouts of one job (same model, GPUs, batch, sequence, precision, framework and date):

- the error of a comparison, hypot(floor, per_share * unlike), by maximum likelihood of which of two layouts was faster,
  over all pairs that are both predicted within `LEAD` of the fastest; of all groups and of either half of them;
- how often the order was right among pairs that are ties and among those that are not, by the fit to the other half;
- measured time of the first choice over the best, with and without the rule of the order;
- the spread of measured over predicted times of collectives and GEMMs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpuscale.arrays import FloatArray
from gpuscale.search import ties
from gpuscale.search.evaluation import evaluate
from gpuscale.units import KIB, MIB
from gpuscale.validation.kernels import located, predict_collectives, predict_kernels
from gpuscale.validation.measurements import read_measurements
from gpuscale.validation.runs import Prediction, predict_runs
from gpuscale.validation.scores import LEAST_OF_SWEEP, alternatives, comparable, quantile

LEAD = 1.25
"""Predicted time over the group's fastest up to which a layout takes part: a planner shows no others."""

FLOORS, PER_SHARES = np.arange(0.005, 0.12, 0.005), np.arange(0.0, 1.25, 0.05)
"""Values tried."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One measured layout, the mean over repeated measurements of it."""

    name: str
    predicted: Prediction
    measured_s: float

    @property
    def shares(self) -> FloatArray:
        """Shares of the predicted step by component."""
        return np.array(self.predicted.seconds) / sum(self.predicted.seconds)


Groups = dict[tuple[str, ...], list[Layout]]


def read_groups(path: Path) -> Groups:
    """Measured layouts by job; the first element of a key is the family of the rows."""
    _, rows = read_measurements(path)
    found: Groups = defaultdict(list)
    for row, prediction in zip(rows, predict_runs(rows), strict=True):
        measured_s = row.number("step_s")
        if comparable(row) and measured_s and isinstance(prediction, Prediction):
            found[alternatives(row)].append(Layout(row.raw("id"), prediction, measured_s))
    return found


def of_one_software(groups: Groups, dates: dict[str, str]) -> list[list[Layout]]:
    """Groups of distinct layouts measured with software of one date."""
    found = []
    for members in groups.values():
        by_date: dict[str, dict[tuple[object, ...], list[Layout]]] = defaultdict(lambda: defaultdict(list))
        for one in members:
            key = (*one.predicted.run.layout.row(0).values(), round(one.predicted.step_s, 9))
            by_date[dates[one.name]][key].append(one)
        for layouts in by_date.values():
            means = [
                Layout(same[0].name, same[0].predicted, statistics.geometric_mean(one.measured_s for one in same))
                for same in layouts.values()
            ]
            if len(means) > 1:
                found.append(means)
    return found


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of layouts of one job, the one predicted faster first; arrays of shape (N,)."""

    gap: FloatArray
    unlike: FloatArray
    right: NDArray[np.bool_]
    weight: FloatArray
    even: NDArray[np.bool_]

    def take(self, mask: NDArray[np.bool_]) -> Pairs:
        """The pairs of a mask."""
        return Pairs(self.gap[mask], self.unlike[mask], self.right[mask], self.weight[mask], self.even[mask])

    def share_right(self, mask: NDArray[np.bool_]) -> float:
        """Share of the pairs of a mask whose order was right, every group counting alike."""
        return float(np.average(self.right[mask], weights=self.weight[mask]))


def pairs_of(groups: Sequence[Sequence[Layout]]) -> Pairs:
    """All pairs of leaders of every group; a group counts alike whatever its number of pairs."""
    found: list[tuple[float, float, bool, float, bool]] = []
    for members in groups:
        limit = min(one.predicted.step_s for one in members) * LEAD
        leaders = sorted(
            (one for one in members if one.predicted.step_s <= limit), key=lambda one: one.predicted.step_s
        )
        even = hashlib.md5("".join(sorted(one.name for one in members)).encode()).digest()[0] % 2 == 0
        mine = [
            (
                math.log(slow.predicted.step_s / fast.predicted.step_s),
                float(ties.unlike(slow.shares[:, None], fast.shares[:, None])[0]),
                slow.measured_s > fast.measured_s,
            )
            for index, fast in enumerate(leaders)
            for slow in leaders[index + 1 :]
            if slow.predicted.step_s > fast.predicted.step_s
        ]
        found += [(*one, 1 / len(mine), even) for one in mine]
    gap, unlike, right, weight, is_even = (np.array(column) for column in zip(*found, strict=True))
    return Pairs(gap, unlike, right, weight, is_even)


def fit(pairs: Pairs) -> tuple[float, float]:
    """Floor and slope of the error that make the observed orders most likely."""
    erf = np.vectorize(math.erf)

    def likelihood(floor: float, per_share: float) -> float:
        deviations = pairs.gap / np.hypot(floor, per_share * pairs.unlike)
        chance = np.clip((1 + erf(deviations / math.sqrt(2))) / 2, 1e-3, 1 - 1e-3)
        return float((pairs.weight * np.log(np.where(pairs.right, chance, 1 - chance))).sum())

    return max(((f, s) for f in FLOORS.tolist() for s in PER_SHARES.tolist()), key=lambda one: likelihood(*one))


def print_comparisons(groups: Sequence[Sequence[Layout]]) -> None:
    """Print the error of comparisons, and how the order does within and beyond it."""
    pairs = pairs_of(groups)
    print(f"{len(pairs.gap):,} pairs of {len(groups)} groups with two layouts or more")
    print("error of a comparison, hypot(floor, per share x unlike):")
    halves = {"all": np.ones(len(pairs.gap), dtype=bool), "even": pairs.even, "odd": ~pairs.even}
    fits = {name: fit(pairs.take(mask)) for name, mask in halves.items()}
    for name, (floor, per_share) in fits.items():
        print(f"  {name:5} floor {floor:.3f}, per share {per_share:.2f}")
    z = NormalDist().inv_cdf(ties.TIE_ODDS / (1 + ties.TIE_ODDS))
    for tested, fitted in (("even", "odd"), ("odd", "even")):
        floor, per_share = fits[fitted]
        tie = pairs.gap <= z * np.hypot(floor, per_share * pairs.unlike)
        inside, outside = (halves[tested] & mask for mask in (tie, ~tie))
        shares = (pairs.share_right(mask) for mask in (inside, outside))
        ties_right, others_right = (f"right in {share:.0%}" for share in shares)
        print(
            f"  {tested} half, fitted on the other: {inside.sum()} ties, order {ties_right}; {outside.sum()} others, "
            f"{others_right}"
        )


def print_choices(groups: Groups) -> None:
    """Print measured time of the first choice over the best by family, by step time and by the rule."""
    losses: dict[str, list[tuple[float, float]]] = defaultdict(list)
    moved = 0
    for key, unordered in groups.items():
        members = sorted(unordered, key=lambda one: (one.predicted.step_s, one.name))
        if len(members) > 1:
            times = np.array([one.predicted.step_s for one in members])
            by_time, by_rule = (
                members[index] for index in (int(times.argmin()), int(ties.arranged(times, traits_of(members))[0]))
            )
            best_s = min(one.measured_s for one in members)
            losses[key[0]].append((by_time.measured_s / best_s, by_rule.measured_s / best_s))
            moved += by_time is not by_rule
    total = [pair for values in losses.values() for pair in values]
    print(f"\nfirst choice over the best measured: {moved} of {len(total)} choices moved by the rule")
    print(f"{'family':18} {'choices':>7}  {'by step time: median, p90':26} by the rule: median, p90")
    for family, values in [*sorted(losses.items()), ("all", total)]:
        if len(values) >= LEAST_OF_SWEEP:
            plain, ruled = ([one[index] for one in values] for index in (0, 1))
            shown = [f"{statistics.median(one):.3f} {quantile(one, 0.9):.3f}" for one in (plain, ruled)]
            print(f"{family:18} {len(values):7}  {shown[0]:26} {shown[1]}")


def traits_of(members: Sequence[Layout]) -> ties.Traits:
    """What the rule of the order asks of measured layouts."""
    runs = [one.predicted.run for one in members]
    each = [ties.traits(run.layout, evaluate(run.layout, run.job), run.job) for run in runs]
    return ties.Traits(*(np.concatenate(column) for column in zip(*each, strict=True)))


def print_spread(name: str, ratios: Sequence[float]) -> None:
    """Print how far measured times are from predicted ones."""
    low, middle, high = (math.expm1(float(np.quantile(np.log(ratios), share))) for share in (0.1, 0.5, 0.9))
    print(f"  {name:42} {len(ratios):6,} rows: {low:+.0%}, {middle:+.0%}, {high:+.0%}")


def print_collectives(path: Path) -> None:
    """Print measured over predicted time of collectives, by size and place."""
    _, rows = read_measurements(path)
    ratios: dict[str, list[float]] = defaultdict(list)
    for row, pair in zip(rows, predict_collectives(rows), strict=True):
        if isinstance(pair, str):
            continue
        cluster, _, gpus, size, _ = located(row)
        where = "several nodes" if gpus > cluster.node_gpus else "one node"
        kind = "64 MiB and more" if size >= 64 * MIB else "below 64 KiB" if size < 64 * KIB else "between"
        ratios[f"collectives of {kind}, {where}"].append(pair[0] / pair[1])
    for name, values in sorted(ratios.items()):
        print_spread(name, values)


def print_kernels(path: Path) -> None:
    """Print measured over predicted time of kernels, by kind."""
    _, rows = read_measurements(path)
    ratios: dict[str, list[float]] = defaultdict(list)
    for row, pair in zip(rows, predict_kernels(rows), strict=True):
        if not isinstance(pair, str):
            ratios[row.text("kind")].append(pair[0] / pair[1])
    for name, values in sorted(ratios.items()):
        print_spread(name, values)


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--collectives", type=Path)
    parser.add_argument("--kernels", type=Path)
    options = parser.parse_args()
    groups = read_groups(options.runs)
    dates = {row.raw("id"): row.text("source_date") for row in read_measurements(options.runs)[1]}
    print_comparisons(of_one_software(groups, dates))
    print_choices(groups)
    if options.collectives or options.kernels:
        print("\nmeasured / predicted time, tenth percentile, median, ninetieth:")
    if options.collectives:
        print_collectives(options.collectives)
    if options.kernels:
        print_kernels(options.kernels)


if __name__ == "__main__":
    main()
