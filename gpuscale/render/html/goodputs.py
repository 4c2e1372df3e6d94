"""The page of `goodput`: the share that counts over the checkpoint interval, and where the rest goes."""

from __future__ import annotations

from gpuscale.render.html.charts import Axis, Bar, Line, curves, waterfall
from gpuscale.render.html.page import Page, Section
from gpuscale.render.rates import rates_in_full
from gpuscale.render.reliability import LOST, facts, goodput_verdict, names_of, ratio_text
from gpuscale.training.goodput import Goodput
from gpuscale.units import DAY_S, HOUR_S, format_duration, plural

LEAST = 1e-4
"""Shares below which a loss is not drawn."""


def goodput_page(result: Goodput) -> Page:
    """Lay out a goodput."""
    low, high = result.effective_ratio_low, result.effective_ratio_high
    names = names_of(result)
    hours = [Bar(names[name], index, (share * result.run_s / HOUR_S,)) for index, name in enumerate(LOST)
             if (share := result.lost[name]) > LEAST]  # fmt: skip
    across = [point.interval_s / 60 for point in result.curve]
    line = Line(result.checkpoint, 0, across, [point.effective_ratio for point in result.curve])
    best = f"A checkpoint every {format_duration(result.checkpoint_interval_s)} is taken."
    steps = plural(result.checkpoint_interval_steps, "step")
    across_axis = Axis("minutes between checkpoints", "{:.3g}".format, log=True)
    lost = f"{1 - result.effective_ratio:.1%} of {result.run_s / DAY_S:.4g} days are lost."
    return Page(
        f"Goodput of {result.model} on {plural(result.gpus, 'GPU')} of {result.cluster}",
        goodput_verdict(result),
        [
            ("Time that counts", ratio_text(result.effective_ratio), f"{ratio_text(low)} to {ratio_text(high)}"),
            ("Checkpoint every", format_duration(result.checkpoint_interval_s), steps),
            ("A failure every", format_duration(result.mtbf_s), f"{result.interruptions_per_day:.3g} a day"),
            ("Spare nodes", f"{result.spares:,}", f"of {plural(result.node_gpus, 'GPU')}"),
        ],
        [
            Section("Interval", [curves(
                "Time that counts over the interval between checkpoints", best, [line], across_axis,
                Axis("time that counts", ratio_text),
            )]),
            Section("Losses", [waterfall("Time lost", lost, hours, "in all", Axis("hours", "{:.3g}".format))]),
            Section("Facts", [facts(result)]),
            Section("Assumptions", [rates_in_full(result.assumptions), *result.notes]),
        ],
    )  # fmt: skip
