"""Published totals of training runs beside what `gpuscale train-time` says of them: docs/published-totals.md.

    python benchmarks/published_totals.py

Written: the tables between the markers of the page, from tests/data/published_totals.toml, which is edited by hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from published_jobs import ask
from update_validation import replaced

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "tests" / "data" / "published_totals.toml"
PAGE = ROOT / "docs" / "published-totals.md"


class Total(NamedTuple):
    """One published total beside the predicted one.

    Attributes:
        run: as in the file.
        command: that predicts it.
        answer: its JSON.
    """

    run: dict[str, Any]
    command: str
    answer: dict[str, Any]

    @property
    def hours(self) -> float:
        """GPU-hours as the source counts them: of the steps, or of all that ran."""
        return float(self.answer["gpu_hours"] if self.run.get("counts") == "steps" else self.all_hours)

    @property
    def all_hours(self) -> float:
        """GPU-hours of the job's GPUs from beginning to end; no spare nodes."""
        uses = self.answer["billed_by_use"]
        return float(uses["steps"] + uses["failures"])

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return float(self.hours / self.run["gpu_hours"] - 1)

    @property
    def energy_scale(self) -> float:
        """From the energy predicted to that of as many hours as published; 1 where no hours are."""
        return float(self.run["gpu_hours"] / self.all_hours) if "gpu_hours" in self.run else 1.0

    @property
    def energy_ratio(self) -> float:
        """Energy over the published one, of what that is of: of the GPUs, or of the site."""
        predicted = self.answer["energy_mwh"] if self.run.get("energy_of") == "site" else self.answer["energy"]["gpus"]
        return float(predicted * self.energy_scale / self.run["energy_mwh"])

    @property
    def implied_mfu(self) -> float:
        """MFU of steps that took all of the published hours."""
        return float(self.answer["plan"]["mfu"] * self.answer["gpu_hours"] / self.run["gpu_hours"])


def read_runs() -> list[dict[str, Any]]:
    """Read the file of published totals."""
    found: list[dict[str, Any]] = tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]
    return found


def command(run: dict[str, Any]) -> str:
    """The command that predicts a total."""
    layout = " --despite-rules" if run.get("layout", True) else ""
    ratio = f" --rate effective_ratio={run['effective_ratio']}" if "effective_ratio" in run else ""
    return f"train-time {run['options']}{layout}{ratio} --tokens {run['tokens']}"


def predict(run: dict[str, Any]) -> Total:
    """Ask for a total."""
    return Total(run, command(run), ask(command(run)))


def layouts(totals: Sequence[Total]) -> str:
    """Markdown: the runs whose layout is published."""
    lines = ["| run | published GPU-hours | counts | predicted | error | goodput |", "|---|---|---|---|---|---|"]
    for one in totals:
        derived = f" ({one.run['derived']})" if "derived" in one.run else ""
        ratio = "" if one.run["counts"] == "steps" else f"{one.answer['effective_ratio']:.0%}"
        said = ratio and ("published" if "effective_ratio" in one.run else "modelled")
        counts = {"steps": "steps", "all": "all"}[one.run["counts"]]
        cells = [one.run["name"], f"{one.run['gpu_hours']:,.0f}{derived}", counts, f"{one.hours:,.0f}"]
        lines.append(f"| {' | '.join([*cells, f'{100 * one.error:+.1f} %', f'{ratio} {said}'.strip()])} |")
    return "\n".join(lines)


def unknown(totals: Sequence[Total]) -> str:
    """Markdown: the runs that nobody can reconstruct."""
    lines = ["| run | published GPU-hours | implied MFU | best plan | its MFU | difference | what may explain it |"]
    lines.append("|---|---|---|---|---|---|---|")
    for one in totals:
        if "gpu_hours" in one.run:
            cells = [one.run["name"], f"{one.run['gpu_hours']:,.0f}", f"{one.implied_mfu:.0%}", f"{one.hours:,.0f}"]
            cells += [f"{one.answer['plan']['mfu']:.0%}", f"{100 * one.error:+.0f} %", one.run["why"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def energy(totals: Sequence[Total]) -> str:
    """Markdown: published energy beside the predicted one, and beside that of the published hours."""
    lines = [
        "| run | published MWh | which is | predicted: GPUs | site | in the published hours: GPUs | site | ratio |"
    ]
    lines[0] += " what may explain the rest |"
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for one in totals:
        if "energy_mwh" in one.run:
            mwh = (one.answer["energy"]["gpus"], one.answer["energy_mwh"])
            cells = [
                one.run["name"],
                f"{one.run['energy_mwh']:,.0f}",
                one.run["energy_is"],
                *(f"{x:,.0f}" for x in mwh),
            ]
            cells += [f"{x * one.energy_scale:,.0f}" if "gpu_hours" in one.run else "" for x in mwh]
            lines.append(f"| {' | '.join([*cells, f'{one.energy_ratio:.2f}', one.run['energy_why']])} |")
    return "\n".join(lines)


def sources(totals: Sequence[Total]) -> str:
    """Markdown: source and command of each run."""
    return "\n".join(f"- {one.run['name']}: {one.run['source']}.\n  `gpuscale {one.command}`" for one in totals)


def main() -> None:
    """Ask for every total and write the page."""
    totals = [predict(run) for run in read_runs()]
    known = [one for one in totals if one.run.get("layout", True)]
    others = [one for one in totals if one not in known]
    parts = {
        "layouts": layouts(known),
        "unknown": unknown(others),
        "energy": energy(totals),
        "sources": sources(totals),
    }
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
    for one in known:
        print(f"{one.run['name']}: {100 * one.error:+.1f} %")


if __name__ == "__main__":
    main()
