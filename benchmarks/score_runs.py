"""What a larger file of measured runs than ours says of the model: figures for the pages, and for plans.

    python benchmarks/score_runs.py runs.csv

Written: what stands between markers in docs/validation.md and README.md, and `FIRST_CHOICES` of
gpuscale/uncertainty.py. The file has the columns of docs/validation.md; it is not part of this repository.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from update_validation import FAMILIES, PAGES, replaced

from gpuscale import uncertainty
from gpuscale.uncertainty import MANY_LAYOUTS, Features, evidence, family_of, read_residuals
from gpuscale.validation.measurements import Row, read_measurements
from gpuscale.validation.runs import Prediction, predict_runs
from gpuscale.validation.scores import (
    LEAST_OF_FAMILY,
    FirstChoice,
    balanced,
    comparable,
    first_choices,
    grouped,
    optimism,
    score_runs,
    summarise_runs,
)

NOTHING_FITTED = frozenset({
    "aws", "flagperf", "fms", "internevo", "kwai", "lambda", "llmc", "maxtext", "modelzoo", "nvidia-automodel",
    "torchao", "uci", "xtuner",
})  # fmt: skip
"""Families to whose step times no constant was fitted: the table of docs/model.md has none of their runs as data."""

PROBED = "hf"
"""The family whose runs measured their own network: nanotron's sweep."""


def without_probes(rows: Sequence[Row]) -> list[Row]:
    """Leave out what each run measured of its network, as someone who plans has it."""
    return [Row({name: cell for name, cell in row.cells.items() if "busbw" not in name}, row.place) for row in rows]


def fitted_or_not(scored: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Balanced figures of the families that constants were fitted to, and of the others."""
    errors = [
        (family_of(one.id), one.step_error)
        for one, row in scored
        if comparable(row) and one.measured_step_s is not None
    ]
    families = {name: one for name, one in grouped(errors).items() if (one["n"] or 0) >= LEAST_OF_FAMILY}
    found = {}
    for title, of_these in (("fitted", False), ("nothing fitted", True)):
        mine = {name: one for name, one in families.items() if (name in NOTHING_FITTED) == of_these}
        found[title] = {**balanced(mine), "rows": sum(one["predicted"] or 0 for one in mine.values())}
    return found


def probed(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Summaries of the nanotron sweep with and without the probes of its network."""
    mine = [row for row in rows if family_of(row.raw("id")) == PROBED]
    return {
        title: summarise_runs(score_runs(some)) for title, some in (("with", mine), ("without", without_probes(mine)))
    }


def scale(features: Features) -> str:
    """Class of the number of GPUs."""
    return str(sum(10**features.log_gpus > most + 0.5 for most in (8, 64, 512)))


KINDS: dict[str, Callable[[str, Features], str]] = {
    "their source": lambda name, _: family_of(name),
    "their GPU generation": lambda _, features: features.architecture,
    "their framework": lambda _, features: features.software,
    "their scale (up to 8, 64, 512 GPUs, more)": lambda _, features: scale(features),
}
"""What is left out of our table when the intervals of runs are made -> by what a run is told."""


def left_out(rows: Sequence[Row]) -> dict[str, tuple[dict[str, float], float]]:
    """Share of measurements inside intervals that are made without all runs of the same kind: by what is left out the
    shares of its groups, and the median half-width."""
    runs = [
        (row.raw("id"), found.features, math.log(step_s / found.step_s))
        for row, found in zip(rows, predict_runs(rows), strict=True)
        if isinstance(found, Prediction) and comparable(row) and (step_s := row.number("step_s")) is not None
    ]
    found_by: dict[str, tuple[dict[str, float], float]] = {}
    for title, kind in KINDS.items():
        shares, widths = {}, []
        for group in sorted({kind(name, features) for name, features, _ in runs}):
            others = tuple(one for one in read_residuals() if kind(one.id, one.features) != group)
            mine = [(features, log_ratio) for name, features, log_ratio in runs if kind(name, features) == group]
            ranges = evidence([features for features, _ in mine], known=others)
            widths += [(one.high - one.low) / 2 for one in ranges]
            if len(mine) >= LEAST_OF_FAMILY:
                shares[group] = statistics.fmean(
                    math.log(one.low) <= log_ratio <= math.log(one.high)
                    for one, (_, log_ratio) in zip(ranges, mine, strict=True)
                )
        found_by[title] = shares, statistics.median(widths)
    return found_by


def choice_cells(choices: Sequence[FirstChoice]) -> list[list[str]]:
    """How much longer than predicted first choices took, by the number of layouts and by source."""
    sizes = ((2, 2), (3, 5), (6, MANY_LAYOUTS - 1), (MANY_LAYOUTS, 10**9))
    groups = {
        f"{low} to {high}" if low < high < 10**9 else f"{low}" + " or more" * (high > low): [
            one for one in choices if low <= one.layouts <= high
        ]
        for low, high in sizes
    }
    large = groups[f"{MANY_LAYOUTS} or more"]
    for family, count in Counter(one.family for one in large).items():
        if count > 1:
            title = f"{MANY_LAYOUTS} or more: {FAMILIES[family]}"
            groups[title] = [one for one in large if one.family == family]
    cells = []
    for title, mine in groups.items():
        if mine:
            found, longer = optimism(mine), sum(one.first > one.usual for one in mine)
            signs = [f"{100 * (found[name] - 1):+.1f} %" for name in ("first", "all", "optimism")]
            cells.append([title, str(len(mine)), *signs, str(longer), _percent(found["inside"], 0)])
    return cells


def markdown(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    titles = head.split(" | ")
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *rows])


def _percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def _mean(shares: Sequence[float]) -> str:
    return _percent(statistics.fmean(shares) if shares else None, 0)


def parts(rows: Sequence[Row]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """What stands between the markers, and `FIRST_CHOICES`."""
    scored = score_runs(rows)
    summary, sources, nanotron = summarise_runs(scored), fitted_or_not(scored), probed(rows)
    off = {
        title: [_percent(one["median_abs"]), _percent(one["p90_abs"])] for title, one in (sources | nanotron).items()
    }
    (_, fitted), (_, new) = sources.items()
    without = left_out(rows)
    inside = {
        title: [share for name, share in without["their source"][0].items() if (name in NOTHING_FITTED) == new_ones]
        for title, new_ones in zip(sources, (False, True), strict=True)
    }
    unseen = (
        f"On a larger file of {summary['predicted']:,} runs, {fitted['families']} sources to which constants were "
        f"fitted are off by {off['fitted'][0]} (median) and {off['fitted'][1]} (90th percentile), the "
        f"{new['families']} others ({new['rows']} runs) by {' and '.join(off['nothing fitted'])}, and "
        f"{_mean(inside['nothing fitted'])} of their measurements lie inside the interval. "
        f"Nanotron's {nanotron['with']['predicted']} runs, each of which measured its own network, are off by "
        f"{' and '.join(off['with'])}; on the preset's network, all that a plan has, by "
        f"{' and '.join(off['without'])}."
    )
    made = {
        "unseen": "\n".join(textwrap.wrap(unseen, 125)),
        "sources": markdown(
            "constants | sources | rows | median | p90 | inside the interval made without their source",
            [[title, str(one["families"]), f"{one['rows']:,}", *off[title], _mean(inside[title])]
             for title, one in sources.items()],
        ),
        "probes": markdown(
            "nanotron | median | p90 | bias | inside the 80 % interval | first choice / best, p90",
            [[f"{title} probes", *off[title], f"{100 * one['bias']:+.1f} %", _percent(one["interval"]["inside"], 0),
              f"{one['choosing'][0]['p90']:.2f}"] for title, one in nanotron.items()],
        ),
        "left out": markdown(
            "left out | groups | inside, mean | least | half-width, median",
            [[title, str(len(shares)), _mean(list(shares.values())), _percent(min(shares.values()), 0),
              f"+-{_percent(half, 0)}"] for title, (shares, half) in without.items() if shares],
        ),
        "first choices": markdown(
            "layouts of a group | groups | first choices | all layouts | one over the other | above it in | inside",
            choice_cells(first_choices(scored)),
        ),
    }  # fmt: skip
    constant = [{key: one[key] for key in ("over", "n", "first", "all")} for one in summary["first_choices"]]
    return made, [one for one in constant if one["over"] != "families"]


def main() -> None:
    """Compute and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="CSV of measured runs")
    kind, rows = read_measurements(parser.parse_args().file)
    if kind != "runs":
        parser.error(f"the file holds {kind}, not runs")
    made, constant = parts(rows)
    for page in PAGES:
        page.write_text(replaced(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    source = Path(uncertainty.__file__)
    entries = "".join(f"    {_rounded(one)},\n" for one in constant)
    code, pattern = (
        source.read_text(encoding="utf-8"),
        re.compile(r"(?<=\nFIRST_CHOICES = \(\n).*?(?=^\))", re.MULTILINE | re.DOTALL),
    )
    source.write_text(pattern.sub(entries, code), encoding="utf-8")
    print("\n\n".join(made.values()))


def _rounded(one: dict[str, Any]) -> str:
    cells = {key: round(value, 3) if isinstance(value, float) else value for key, value in one.items()}
    return repr(cells).replace("'", '"')


if __name__ == "__main__":
    main()
