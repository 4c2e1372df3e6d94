"""A job on a calibrated site: which factors hold for it, what measured runs add, and how narrow its interval is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuscale.arrays import FloatArray, log
from gpuscale.calibration.factors import LEVEL, factor_of, names_for, with_factors
from gpuscale.calibration.site import (
    HELD_80,
    Known,
    layout_key,
    likeness,
    sensitivities,
    site_spec,
    variance,
    variances,
)
from gpuscale.calibration.site_file import Site
from gpuscale.layouts.arrays import Candidates
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.job import JobSpec
from gpuscale.units import plural

HOLDS_FOR = {"gpu": "gpu", "cluster": "cluster", "framework": "software"}
"""What a factor holds for -> the text of `likeness` that must be that of a measured run."""

SHOWN_FILES = 3


def factors_for(job: JobSpec, site: Site) -> dict[str, float]:
    """Return the factors of a site that hold for a job: those of its GPU, cluster or framework."""
    like = likeness(job)
    known = {text: site.seen(text) for text in HOLDS_FOR.values()}
    found = {}
    for name, factor in site.factors.items():
        declared = factor_of(name)
        text = HOLDS_FOR[declared.holds_for] if declared else ""
        level = name.removeprefix(LEVEL)
        there = not name.startswith(LEVEL) or any(one.name == level for one in job.cluster.levels)
        if text and there and like[text] in known[text]:
            found[name] = factor.value
    return found


def calibrated(job: JobSpec, site: Site) -> tuple[JobSpec, str, list[str]]:
    """Return a job on a calibrated site, what the answer says of it, and notes."""
    factors, runs = factors_for(job, site), site.runs
    known, like = [run.known for run in runs], likeness(job)
    spec = replace(with_factors(job, factors), site=site_spec(known, [run.weight for run in runs], like))
    files = list(dict.fromkeys(run.file for run in runs))
    named = ", ".join(files[:SHOWN_FILES]) + (", ..." if len(files) > SHOWN_FILES else "")
    said = ", ".join(f"{name} x {value:.3g}" for name, value in factors.items())
    text = f"{site.path}: {plural(len(runs), 'run')} ({named}); {said or 'no factor holds here'}"
    left = [name for name in site.factors if name not in factors]
    notes = []
    if left:
        kinds = dict.fromkeys(one.holds_for for name in left if (one := factor_of(name)))
        where = "; ".join(f"{kind} {', '.join(sorted(site.seen(HOLDS_FOR[kind])))}" for kind in kinds)
        notes.append(f"calibration: {', '.join(left)} not taken: measured on {where}")
    return spec, text, notes


def half_widths(job: JobSpec, site: Site, rows: Candidates) -> FloatArray:
    """Half the width of the 80 % interval of log(measured / predicted step time) of layouts of a job on the calibrated
    site, shape (N,)."""
    plain, like = replace(job, site=None), likeness(job)
    names = tuple(dict.fromkeys([*names_for(job), *(name for run in site.runs for name in run.sensitivity)]))

    def predict(factors: Mapping[str, float]) -> FloatArray:
        return log(evaluate(rows, with_factors(plain, factors)).step.step_time_s)

    own = set(names_for(job))
    mine = [name for name in names if name in own]
    theirs = np.zeros((len(rows), len(names)))
    theirs[:, [names.index(name) for name in mine]] = sensitivities(predict, mine, {}, predict({}))
    runs = site.runs
    sensitivity = np.array([[run.sensitivity.get(name, 0.0) for name in names] for run in runs])
    wanted = [Known(like, layout_key(rows.row(row))) for row in range(len(rows))]
    noise = np.array([run.noise for run in runs])
    spread = variance([run.known for run in runs], noise, sensitivity, variances(names), wanted, theirs)
    return np.asarray(HELD_80 * np.sqrt(spread), dtype=np.float64)
