"""`gpuscale tune` on measured sweeps: python benchmarks/replay_trials.py RUNS.csv [OOM.csv] [FAMILY ...]

A sweep is eight layouts or more that were measured for one job with one software, and those of them that ran out of
memory. Layouts are proposed as `gpuscale tune` does, and answered from the file. Printed by family: how many trials it
took to be within 2 % of the fastest measured, how many until the rule stopped, and how far the best was off then; and
beside it the first of these in the order of the predictions alone.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from calibrate_families import Runs, sensitivity

from gpuscale.calibration.site import HELD_80, fit, product, remainder_covariance, variance, variances
from gpuscale.memory.model import fit_probability
from gpuscale.search.evaluation import evaluate
from gpuscale.trials import LEAST_LIKELY, LEAST_TRIALS, MATTERS, Believed, fitting, prospects
from gpuscale.validation.measurements import read_measurements
from gpuscale.validation.scores import alternatives

LEAST = 8
"""Layouts of a sweep, distinct ones."""


class Sweep:
    """One job's measured layouts and what is predicted of them before any trial."""

    def __init__(self, runs, rows):
        self.runs, self.rows = runs, np.array(rows)
        self.measured = runs.measured[self.rows]
        self.base = runs.predict(self.rows, {})
        self.names, self.jacobian = sensitivity(runs, self.rows, self.base)
        self.fits = np.zeros(len(rows))
        for index, row in enumerate(rows):
            job, layout = runs.jobs[row]
            self.fits[index] = fit_probability(evaluate(layout, job).memory, job)[0]

    def believed(self, tried, failed):
        """What is predicted under the calibration by trials that ran, and by others that ran out of memory."""
        known, wanted = [self.runs.known[self.rows[one]] for one in tried], [self.runs.known[row] for row in self.rows]
        some = self.rows[tried]
        fitted = fit(
            lambda values: self.runs.predict(some, values), self.measured[tried].tolist(), self.names,
            remainder_covariance(known, known), self.jacobian[tried],
        )  # fmt: skip
        rest = product(remainder_covariance(wanted, known), fitted.weight[:, None])[:, 0]
        spread = variance(
            known, fitted.noise, self.jacobian[tried], variances(self.names), wanted, self.jacobian
        )  # fmt: skip
        time_s = np.exp(self.runs.predict(self.rows, fitted.values) + rest)
        fits = fitting(self.fits, self.fits[failed], self.fits[tried])
        return Believed(time_s, HELD_80 * np.sqrt(spread), fits)

    def replay(self):
        """Trials until within `MATTERS` of the best, trials until the rule stops, and the loss then."""
        out = ~np.isfinite(self.measured)
        fastest = np.nanmin(np.where(out, np.nan, self.measured))
        order = np.where(self.fits >= LEAST_LIKELY, self.base, np.inf)
        tried, reached, failed = [], None, []
        left = np.ones(len(self.rows), dtype=bool)
        stopped = None
        while left.any():
            ran = [one for one in tried if not out[one]]
            if not ran:
                likely = fitting(self.fits, self.fits[failed], self.fits[[]]) >= LEAST_LIKELY
                pick = int(np.where(left & (likely | ~(left & likely).any()), self.base, np.inf).argmin())
            else:
                seen = prospects(self.believed(ran, failed), self.measured[ran].min(), left)
                if seen.best is None and len(ran) >= LEAST_TRIALS:
                    stopped = stopped or (len(tried), self.measured[ran].min() / fastest - 1)
                pick = seen.best if seen.best is not None else int(np.where(left, seen.gain, -1.0).argmax())
            tried.append(pick)
            left[pick] = False
            if out[pick]:
                failed.append(pick)
            elif self.measured[pick] <= fastest * (1 + MATTERS) and reached is None:
                reached = len(tried)
            if reached and stopped:
                break
        plain = np.argsort(order, kind="stable")
        good = ~out & (self.measured <= fastest * (1 + MATTERS))
        alone = 1 + int(np.flatnonzero(good[plain])[0])
        return reached, alone, *(stopped or (len(tried), 0.0))


def sweeps(paths):
    """Every sweep of the files, with its family."""
    raw = {row.raw("id"): row for path in paths for row in read_measurements(path)[1]}
    runs = Runs(*paths)
    groups = defaultdict(dict)
    for index, name in enumerate(runs.ids):
        row = raw[name]
        key = *alternatives(row), row.raw("source_date")
        layout = runs.known[index].layout
        groups[key].setdefault(layout, index)
    for key, members in groups.items():
        ran = [index for index in members.values() if np.isfinite(runs.measured[index])]
        if len(ran) >= LEAST:
            yield key[0], Sweep(runs, list(members.values()))


def main(paths, only):
    """Print the table."""
    found = defaultdict(list)
    for family, sweep in sweeps(paths):
        if not only or family in only:
            found[family].append((*sweep.replay(), len(sweep.rows), int((~np.isfinite(sweep.measured)).sum())))
            print(family, found[family][-1], flush=True)
    print("family        sweeps  trials to 2 %: median, <= 4   by prediction alone   trials to stop  loss then, p90 %")
    for family, all_of in [*found.items(), ("all", [one for some in found.values() for one in some])]:
        reached, alone, stop, loss, *_ = (np.array(column) for column in zip(*all_of, strict=True))
        print(
            f"{family:14}{len(all_of):6d}{median(reached):18.1f} {np.mean(reached <= 4):7.0%}"
            f"{median(alone):16.1f} {np.mean(alone <= 4):6.0%}{median(stop):14.1f}{100 * np.quantile(loss, 0.9):14.1f}"
        )


if __name__ == "__main__":
    given = [Path(one) for one in sys.argv[1:] if one.endswith(".csv")]
    main(given, [one for one in sys.argv[1:] if not one.endswith(".csv")])
