"""Large training jobs with a published layout and figure, beside what gpuscale says of them: docs/published.md.

    python benchmarks/published_jobs.py

Written: the table between the markers of the page, from tests/data/published_jobs.toml, which is edited by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from update_validation import replaced

from gpuscale import cli
from gpuscale.architecture.flops import forward_flops
from gpuscale.planning.jobs import Presets

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "tests" / "data" / "published_jobs.toml"
PAGE = ROOT / "docs" / "published.md"


class Comparison(NamedTuple):
    """One published job beside what gpuscale says of it, figures in the unit of the source.

    Attributes:
        job: as in the file.
        command: that asks for the published layout.
        predicted: figure of that layout.
        low, high: over what the source does not state.
        answer: JSON of the layout's estimate.
        choice: JSON of gpuscale's own first choice.
    """

    job: dict[str, Any]
    command: str
    predicted: float
    low: float
    high: float
    answer: dict[str, Any]
    choice: dict[str, Any]

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return float(self.predicted / self.job["published"] - 1)


def read_jobs() -> list[dict[str, Any]]:
    """Read the file of published jobs."""
    found: list[dict[str, Any]] = tomllib.loads(JOBS.read_text(encoding="utf-8"))["job"]
    return found


def ask(command: str) -> dict[str, Any]:
    """Run a command of gpuscale with `--json`."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.commands().main([*shlex.split(command), "--json"], prog_name="gpuscale", standalone_mode=False)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def figure(job: dict[str, Any], answer: dict[str, Any]) -> float:
    """What an estimate says of the published figure; TFLOP/s with attention counted as the source does."""
    layout = answer["plan"]
    if job["figure"] == "step_s":
        return float(layout["step_time_s"])
    model = Presets().model(answer["model"])
    counted, causal = (forward_flops(model, layout["sequence"], how).total for how in (job["attention"], "causal"))
    return float(layout["tflops_per_gpu"] * counted / causal)


def estimated(job: dict[str, Any], instead: str = "") -> tuple[str, dict[str, Any]]:
    """The command of the published layout, options of `instead` in place of its own, and its answer."""
    words = dict(pairs(f"{job['choosing']} {job['options']}")) | dict(pairs(instead))
    command = "estimate " + " ".join(f"{name} {value}" for name, value in words.items())
    return command, ask(command)


def pairs(options: str) -> list[tuple[str, str]]:
    """Split options, each with one value."""
    words = shlex.split(options)
    return list(zip(words[::2], words[1::2], strict=True))


def compare(job: dict[str, Any]) -> Comparison:
    """Ask for the published layout, for what it might have been, and for the first choice."""
    command, answer = estimated(job)
    figures = [figure(job, answer), *(figure(job, estimated(job, other)[1]) for other in job["unstated"])]
    choice = ask(f"plan {job['choosing']} --top 1 --why {asked(answer)}")
    return Comparison(job, command, figures[0], min(figures), max(figures), answer, choice)


def asked(answer: dict[str, Any]) -> str:
    """The layout's degrees, as `plan --why` takes them."""
    layout = answer["plan"]
    return ",".join(f"{name}={layout[name]}" for name in ("tp", "pp", "cp", "ep", "zero"))


def layout_text(plan: dict[str, Any]) -> str:
    """A layout in a few words."""
    degrees = [f"{name.upper()} {plan[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp") if plan[name] > 1]
    recompute = [] if plan["recompute"] == "none" else [f"recompute {plan['recompute']}"]
    return ", ".join([*degrees, f"ZeRO-{plan['zero']}", f"microbatch {plan['micro_batch_size']}", *recompute])


WORTH_SAYING = 0.01
"""Share of the first choice's step below which a difference of components is left out."""


def difference_text(one: Comparison) -> str:
    """Why the first choice is another: what the published layout spends more, and whether it fits."""
    first, why = one.choice["plans"][0], one.choice["why"]
    published = one.answer["plan"]
    slower = published["step_time_s"] / first["step_time_s"] - 1
    best, own = why.get("best_breakdown"), one.answer["breakdown"]
    more = {name: own[name] - best[name] for name in own} if best else {}
    shown = [name for name in more if more[name] > WORTH_SAYING * first["step_time_s"]]
    said = sorted(shown, key=lambda name: -more[name])[:3]
    text = f"{100 * slower:+.0f} %" + (f": more {', '.join(said)}" if said else "")
    unfit = f"; {published['memory_gib']:.0f} of {published['memory_limit_gib']:.0f} GiB, does not fit"
    return text.replace("_", " ") + ("" if published["fits"] else unfit)


def table(compared: Sequence[Comparison]) -> str:
    """Markdown: published figure, prediction, range, first choice and difference of each job."""
    lines = [
        "| job | published | predicted | error | range | GiB | first choice | s/step | published layout against it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        unit = "s" if one.job["figure"] == "step_s" else "TFLOP/s"
        first = one.choice["plans"][0]
        cells = [
            one.job["name"],
            f"{one.job['published']:.3g} {unit}",
            f"{one.predicted:.3g}",
            f"{100 * one.error:+.1f} %",
        ]
        cells += [
            f"{one.low:.3g} - {one.high:.3g}" if one.low < one.high else "",
            f"{one.answer['plan']['memory_gib']:.0f}",
        ]
        cells += [layout_text(first), f"{first['step_time_s']:.3g}", difference_text(one)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def commands(compared: Sequence[Comparison]) -> str:
    """Markdown: source and command of each job."""
    return "\n".join(f"- {one.job['name']}: {one.job['source']}.\n  `gpuscale {one.command}`" for one in compared)


def main() -> None:
    """Ask for every job and write the page."""
    compared = [compare(job) for job in read_jobs()]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replaced(page, {"jobs": table(compared), "commands": commands(compared)}), encoding="utf-8")
    for one in compared:
        print(f"{one.job['name']}: {100 * one.error:+.1f} %")


if __name__ == "__main__":
    main()
