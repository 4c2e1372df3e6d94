"""A yardstick for planners of training: what their predictions are worth on measured runs.

    python benchmarks/yardstick --install                        # environments of the planners that need one: once
    python benchmarks/yardstick                                  # every planner that can be asked, on our table
    python benchmarks/yardstick mine.csv                         # and predictions of yours
    python benchmarks/yardstick --runs runs.csv finetune.csv     # on larger files of the same columns
    python benchmarks/yardstick --facts runs.jsonl               # what is known of each run, to predict from

docs/yardstick.md says what is counted, and has the data card. Nothing is fetched while scoring.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent))  # the other benchmarks

# ruff: noqa: E402
from facts import Facts, facts_of, read_runs
from score_runs import markdown
from scoring import CLASSES, Guess, Measured, measured, read_predictions, read_rows, table
from update_validation import TABLE, replaced
from worker import answers

from gpuscale.errors import InputError
from gpuscale.files import begin_command, write_text
from gpuscale.validation.measurements import Row
from gpuscale.validation.runs import Run
from gpuscale.validation.scores import score_runs

OWN = "gpuscale"
PAGE = HERE.parents[1] / "docs" / "yardstick.md"
ENVIRONMENTS = HERE.parents[1] / "build" / "yardstick"
ADAPTERS = sorted(path.stem for path in HERE.glob("adapters/[!_]*.py"))
LONGEST_S = 300
"""Seconds that a planner may take for all runs."""


def source(adapter: str) -> ast.Module:
    """An adapter, read without importing it: what it needs is not there."""
    return ast.parse((HERE / "adapters" / f"{adapter}.py").read_text(encoding="utf-8"))


def needs(adapter: str) -> list[list[str]]:
    """The calls of pip that a planner's environment takes; none: ours does."""
    body = source(adapter).body
    assigned = [one for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "NEEDS"]
    return [list(call) for one in assigned for call in ast.literal_eval(one.value)]


def install(adapters: Iterable[str], where: Path) -> None:
    """Make the environments; one that cannot be made is said and skipped."""
    for name in adapters:
        if not (calls := needs(name)):
            continue
        venv.create(where / name, with_pip=True, clear=True)
        for call in calls:
            command = [str(where / name / "bin" / "python"), "-m", "pip", "install", "--quiet", *call]
            if subprocess.run(command, check=False).returncode:
                (where / name / "bin" / "python").unlink()
                print(f"{name}: pip could not install {' '.join(call)}", file=sys.stderr)
                break
        else:
            print(f"{name}: ready in {where / name}")


def asked(adapter: str, cases: Sequence[Facts], where: Path) -> list[dict[str, Any]] | str:
    """What a planner answers to all cases, or why it cannot be asked."""
    if not needs(adapter):
        return list(answers(adapter, cases))
    python = where / adapter / "bin" / "python"
    if not python.exists():
        return f"no environment in {where}: --install makes it"
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(python), str(HERE / "worker.py"), adapter]
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=LONGEST_S, env=offline, check=True
        )
    except subprocess.TimeoutExpired:
        return f"took more than {LONGEST_S} s"
    except subprocess.CalledProcessError as error:
        return f"failed: {(error.stderr.strip().splitlines() or ['without a word'])[-1][:200]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def guesses_of(found: Iterable[Mapping[str, Any]]) -> dict[str, Guess]:
    """Answers of a planner by the id of the run."""
    return {
        one["id"]: Guess(**{name: one[name] for name in Guess._fields if name in one})
        for one in found
        if "reason" not in one
    }


def own_guesses(rows: Sequence[Row]) -> dict[str, Guess]:
    """What gpuscale itself says; the interval of each run is made without it."""
    fields = attrgetter("predicted_step_s", "predicted_mem_gib", "predicted_fits", "step_s_low", "step_s_high")
    return {one.id: Guess(*fields(one)) for one, _ in score_runs(rows) if one.status != "unsupported"}


def given_guesses(paths: Iterable[Path], rows: Sequence[Row]) -> dict[str, dict[str, Guess]]:
    """Predictions of files, by the files' names."""
    found: dict[str, dict[str, Guess]] = {}
    for path in paths:
        if path.stem in {OWN, *ADAPTERS, *found}:
            raise InputError(
                f"another planner is called {path.stem}", place=str(path), hint="give the file another name"
            )
        found[path.stem] = read_predictions(path, (row.raw("id") for row in rows))
    return found


def percent(share: float | None) -> str:
    """A share for a table."""
    return "-" if share is None else f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def _off_cells(one: dict[str, Any], what: str) -> list[str]:
    """Tool, rows and errors of what is predicted, and our errors on the same."""
    known, off, beside = one[what], one["off"][what] or (None, None), one["beside"][what] or (None, None)
    return [
        one["tool"], str(known["predicted"]), str(known["n"] - known["predicted"]), *map(percent, off),
        " / ".join(map(percent, beside)),
    ]  # fmt: skip


def _step_cells(one: dict[str, Any]) -> list[str]:
    return [
        str(one["rank"]), *_off_cells(one, "step"), percent(one["regret"]["median"]), percent(one["regret"]["p90"]),
        str(one["regret"]["sweeps"]), percent(one["interval"]["inside"]),
    ]  # fmt: skip


def _memory_cells(one: dict[str, Any]) -> list[str]:
    fits = one["fits"]
    calls = [percent(fits["fitting_right"] if fits["fitting"] else None)]
    said = fits["called_fitting"] or fits["called_out_of_memory"]
    calls.append(percent(fits["out_of_memory_right"] if fits["out_of_memory"] and said else None))
    return [str(one["mem_rank"]), *_off_cells(one, "mem"), *calls]


STEP = "rank | step time | predicted | lost | median | p90 | gpuscale on these | regret | p90 | sweeps | inside"
MEMORY = "rank | memory | predicted | lost | median | p90 | gpuscale on these | fits: right | out of memory: right"


def drawn(records: Sequence[dict[str, Any]]) -> str:
    """All tables, as Markdown."""
    parts = []
    for kind in (*CLASSES, "all"):
        parts.append(f"**{kind.capitalize()}**")
        for head, cells, rank in ((STEP, _step_cells, "rank"), (MEMORY, _memory_cells, "mem_rank")):
            some = sorted(
                (one for one in records if one["class"] == kind and one[rank]), key=lambda one, rank=rank: one[rank]
            )
            if some:
                parts.append(markdown(head, map(cells, some)))
    every = [one for one in records if one["class"] == "all" and one["rank"]]
    families = sorted({name for one in every for name in one["families"]})
    cells = [[name, *(percent(one["families"].get(name)) for one in every)] for name in families]
    head = " | ".join(["family", *(one["tool"] for one in every)])
    return "\n\n".join([*parts, "**Step time by family, median**", markdown(head, cells)])


def said(runs: Sequence[Measured], skipped: Mapping[str, str], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """What was scored, what could not be asked, and why rows are lost."""
    times, memories = (sum(getattr(one, name) is not None for one in runs) for name in ("step_s", "mem_gib"))
    unread = sum(isinstance(one.run, str) for one in runs)
    lines = [
        f"{len(runs):,} runs, {times:,} with a step time, {memories:,} with memory; {unread} say too little of the job."
    ]
    lines += [f"Not asked: {name} ({why})." for name, why in skipped.items()]
    for name, lost in reasons.items():
        about = " ".join((ast.get_docstring(source(name)) or "").split())
        why = ", ".join(f"{count:,} ({reason})" for reason, count in Counter(lost.values()).most_common(4))
        lines.append(f"`{name}`: {about}" + f" Not answered: {why}." * bool(why))
    return "\n".join(f"- {line}" for line in lines)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="yardstick", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("predictions", type=Path, nargs="*", help="CSV files of predictions, a planner each")
    parser.add_argument("--runs", type=Path, nargs="+", default=[TABLE], metavar="FILE", help="CSV files of runs")
    parser.add_argument("--tools", nargs="*", choices=ADAPTERS, default=ADAPTERS, help="planners to ask beside ours")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="DIR", help="of the planners")
    parser.add_argument("--install", action="store_true", help="make the environments, and score nothing")
    parser.add_argument("--facts", type=Path, metavar="FILE", help="write what is known of each run, and score nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON too")
    parser.add_argument("--write", choices=("public", "larger"), help="put the tables into docs/yardstick.md")
    return parser.parse_args()


def main() -> None:
    """Ask, score, print."""
    given = parsed()
    begin_command()  # what is read is not written over
    if given.install:
        install(given.tools, given.environments)
        return
    rows = read_rows(given.runs)
    runs = measured(rows, read_runs(rows))
    cases = [facts_of(one.row, one.run) for one in runs if isinstance(one.run, Run)]
    if given.facts:
        write_text(given.facts, "".join(json.dumps(case) + "\n" for case in cases))
        return
    read = given_guesses(given.predictions, rows)
    tools, skipped, reasons = {OWN: own_guesses(rows), **read}, {}, {}
    for name in given.tools:
        found = asked(name, cases, given.environments)
        if isinstance(found, str):
            skipped[name] = found
        else:
            tools[name] = guesses_of(found)
            reasons[name] = {one["id"]: one["reason"] for one in found if "reason" in one}
    records = table(runs, tools, OWN)
    answer = f"{said(runs, skipped, reasons)}\n\n{drawn(records)}"
    if given.json:
        write_text(given.json, json.dumps(records, indent=1) + "\n")
    if given.write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), {given.write: answer}), encoding="utf-8")
    print(answer)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
