"""What binds well-known runs, as their sources say and as gpuscale predicts: docs/published.md.

    python benchmarks/known_bottlenecks.py

Written: the table between the markers of the page, from tests/data/known_bottlenecks.toml, which is edited by hand.
"""

from __future__ import annotations

import tomllib
from typing import Any

from published_jobs import PAGE, ROOT, estimated
from update_validation import replaced

from gpuscale.steptime.components import COMMUNICATION, COMPONENTS

RUNS = ROOT / "tests" / "data" / "known_bottlenecks.toml"

AMONG = {
    "step": list(COMPONENTS),
    "losses": [name for name in COMPONENTS if name not in {"gemm", "attention"}],
    "communication": list(COMMUNICATION),
    "growth": list(COMPONENTS),
}
"""What a bottleneck is the largest of -> the components."""


def shares(run: dict[str, Any], instead: str = "") -> dict[str, float]:
    """Shares of the step by component, with some of the run's options replaced."""
    answer = estimated({"choosing": "", "options": run["options"]}, instead)[1]
    return {name: value / answer["plan"]["step_time_s"] for name, value in answer["breakdown"].items()}


def predicted(run: dict[str, Any]) -> str:
    """What gpuscale says of a run: the largest of its kind, with its share, and the next."""
    found = shares(run)
    before = shares(run, run["than"]) if "than" in run else dict.fromkeys(found, 0.0)
    order = sorted(AMONG[run["among"]], key=lambda name: before[name] - found[name])[:2]
    start = {name: f"{100 * before[name]:.0f} -> " if "than" in run else "" for name in order}
    return ", ".join(f"{COMPONENTS[name].text} {start[name]}{100 * found[name]:.0f} %" for name in order)


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: run, what its source says, what it is the largest of, and what is predicted."""
    lines = ["| run | the source, in our words | bottleneck | predicted |", "|---|---|---|---|"]
    for run in runs:
        names = [COMPONENTS[run[key]].text for key in ("bottleneck", "or") if key in run]
        expected = f"{' or '.join(names)} ({run['among']})"
        lines.append(f"| {run['name']} | {run['says']} ({run['source']}) | {expected} | {predicted(run)} |")
    return "\n".join(lines)


def main() -> None:
    """Ask for every run and write the page."""
    runs = tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replaced(page, {"bottlenecks": table(runs)}), encoding="utf-8")


if __name__ == "__main__":
    main()
