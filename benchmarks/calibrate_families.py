"""Calibration on a part of each family's runs, error on the rest: python benchmarks/calibrate_families.py RUNS.csv

For each family of 8 comparable rows or more the rows are split (every other one, either way round, and halves drawn by
fixed seeds), a calibration is fitted to one half, or to five rows spread over it, and the other half is predicted.
Printed are the means over the splits of the family-balanced median and 90th percentile of the error: as shipped, with
one constant per family, and calibrated; and how many of the other half's measurements lie in their 80 % intervals.
"""

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np

from gpuscale.arrays import log
from gpuscale.calibration.factors import factor_of, names_for, with_factors
from gpuscale.calibration.site import (
    HELD_80,
    STEP,
    Known,
    fit,
    layout_key,
    likeness,
    product,
    remainder_covariance,
    variance,
    variances,
)
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import concatenate
from gpuscale.search.evaluation import evaluate
from gpuscale.uncertainty import family_of
from gpuscale.validation.measurements import Library, measurements
from gpuscale.validation.runs import NOT_EVALUATED, read_run
from gpuscale.validation.scores import LEAST_OF_FAMILY, comparable, measured_step_s, quantile

SPLITS = 6


class Runs:
    """Published runs: what they measured, and what is predicted of them under factors."""

    def __init__(self, path, ran_out=None):
        """Read runs, and with them those that ran out of memory, whose step time is NaN."""
        self.measured, self.families, self.jobs, self.known, self.ids = [], [], [], [], []
        library, shared = Library(), {}
        every = [(row, False) for _, row in measurements(path)]
        every += [(row, True) for _, row in (measurements(ran_out) if ran_out else ())]
        for row, failed in every:
            try:
                step_s = np.nan if failed else measured_step_s(row)[0]
                if not step_s or not comparable(row):
                    continue
                run = read_run(row, library)
            except InputError:
                continue
            ignored = NOT_EVALUATED - {"gpus"} if run.job.offload.any else NOT_EVALUATED
            key = tuple(
                id(value) if item.name in {"model", "cluster"} else value
                for item in fields(run.job)
                if item.name not in ignored
                for value in [getattr(run.job, item.name)]
            )
            shared.setdefault(key, []).append(len(self.measured))
            self.measured.append(step_s)
            self.families.append(family_of(row.raw("id")))
            self.ids.append(row.raw("id"))
            self.jobs.append((run.job, run.layout))
            self.known.append(Known(likeness(run.job), layout_key(run.layout.row(0))))
        self.measured, self.families = np.array(self.measured), np.array(self.families)
        self.batches = list(shared.values())

    def predict(self, rows, factors):
        """Logs of the predicted step times of some rows under factors."""
        out, wanted = np.full(len(self.measured), np.nan), set(np.asarray(rows).tolist())
        for batch in self.batches:
            some = [row for row in batch if row in wanted]
            if not some:
                continue
            job = with_factors(self.jobs[some[0]][0], factors)
            with np.errstate(all="ignore"):
                found = evaluate(concatenate([self.jobs[row][1] for row in some]), job).step.step_time_s
            out[some] = log(np.where(found > 0, found, np.nan))
        return out[rows]


def sensitivity(runs, rows, base):
    """Derivatives by every factor of any of these rows."""
    names = list(dict.fromkeys(name for row in rows for name in names_for(runs.jobs[row][0])))
    columns = np.zeros((len(rows), len(names)))
    for column, name in enumerate(names):
        own = np.array([index for index, row in enumerate(rows) if name in names_for(runs.jobs[row][0])])
        step = 1 / STEP if factor_of(name).speed else STEP
        columns[own, column] = (runs.predict(rows[own], {name: step}) - base[own]) / np.log(step)
    return names, columns


def splits(rows):
    """Halves to fit, and halves to predict."""
    for number in range(SPLITS):
        if number < 2:
            half = rows[number::2]
        else:
            half = np.sort(np.random.RandomState(number).permutation(rows)[: len(rows) // 2])
        yield half, np.setdiff1d(rows, half)


def balanced(errors):
    """Means over families of median and 90th percentile [%]."""
    return 100 * np.array(
        [np.mean([np.median(one) for one in errors]), np.mean([quantile(one, 0.9) for one in errors])]
    )


def main(path, only=()):
    """Print the table."""
    runs = Runs(path)
    sizes = {name: (runs.families == name).sum() for name in dict.fromkeys(runs.families.tolist())}
    names = [name for name, size in sizes.items() if size >= LEAST_OF_FAMILY and (not only or name in only)]
    kinds = ("as shipped", "one constant", "half of the rows", "five rows")
    errors = {kind: {name: [] for name in names} for kind in kinds}
    inside, widths, sigmas = ({kind: [] for kind in kinds[2:]} for _ in range(3))
    for name in names:
        rows = np.flatnonzero(runs.families == name)
        base = runs.predict(rows, {})
        rows, base = rows[np.isfinite(base)], base[np.isfinite(base)]
        factors, jacobian = sensitivity(runs, rows, base)
        prior = variances(factors)
        where = {row: index for index, row in enumerate(rows.tolist())}
        for half, other in splits(rows):
            at, to = ([where[row] for row in some.tolist()] for some in (half, other))
            truth = log(runs.measured[other])
            constant = np.median(log(runs.measured[half]) - base[at])
            errors["as shipped"][name].append(np.abs(np.exp(base[to] - truth) - 1))
            errors["one constant"][name].append(np.abs(np.exp(base[to] + constant - truth) - 1))
            five = half[np.linspace(0, len(half) - 1, min(5, len(half))).round().astype(int)]
            for kind, some in (("half of the rows", half), ("five rows", five)):
                mine = [where[row] for row in some.tolist()]
                known, wanted = ([runs.known[row] for row in part.tolist()] for part in (some, other))
                fitted = fit(
                    lambda values, some=some: runs.predict(some, values),
                    runs.measured[some].tolist(), factors, remainder_covariance(known, known), jacobian[mine],
                )  # fmt: skip
                rest = product(remainder_covariance(wanted, known), fitted.weight[:, None])[:, 0]
                error = runs.predict(other, fitted.values) + rest - truth
                errors[kind][name].append(np.abs(np.exp(error) - 1))
                half_width = HELD_80 * np.sqrt(
                    variance(known, fitted.noise, jacobian[mine], prior, wanted, jacobian[to])
                )
                inside[kind] += [(np.abs(error) <= half_width).mean()]
                widths[kind] += [np.median(half_width)]
                sigmas[kind] += [quantile(np.abs(error) * HELD_80 / half_width, 0.8)]
        print(f"{name:18s} {len(rows):5d}", *(
            f"{np.mean([100 * np.median(one) for one in errors[kind][name]]):6.1f} "
            f"{np.mean([100 * quantile(one, 0.9) for one in errors[kind][name]]):5.1f}" for kind in kinds
        ), f"{np.mean(inside[kinds[2]][-SPLITS:]):.2f}", flush=True)  # fmt: skip
    for kind in kinds:
        median, p90 = np.mean([balanced([errors[kind][name][number] for name in names]) for number in range(SPLITS)], 0)
        print(f"{kind:18s} median {median:.2f} %, p90 {p90:.2f} %", end="")
        print(f"; {np.mean(inside[kind]):.1%} inside, half-width {np.mean(widths[kind]):.1%}, "
              f"80 % within {np.mean(sigmas[kind]):.2f} standard deviations" if kind in inside else "")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
