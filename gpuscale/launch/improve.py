"""Faster plans near the one that launch files state, as changes of these very files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from gpuscale.errors import GpuscaleError
from gpuscale.launch.settings import LaunchJob, Setting, Span
from gpuscale.launch.subject import LaunchEstimate, estimate_launch
from gpuscale.launch.switches import Stated, switch_findings
from gpuscale.launch.traced import OpenFiles
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.plans import job_of, plan
from gpuscale.results import PlanRow

CHANGED = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
"""What is changed, where a file states it."""

FOLLOWING = ("dp", "shard")
"""What follows from these, and is changed with them where a file states it."""

KEPT = ("model", "gpus", "cluster", "seq", "gbs", "precision", "optimizer", "framework")
"""What makes the job: a change of a file must leave it."""

KEPT_OF_PLAN = (*CHANGED, "dp", "zero", "shard_size", "recompute", "global_batch_size", "sequence")
"""What taking out a setting must leave of the plan."""

MOST_CHANGES, SHOWN = 3, 3
LEAST_GAIN = 0.01
"""Gain below which a plan is none to change a file for; of one with more changes, over that with fewer."""


@dataclass(frozen=True)
class Improvement:
    """A faster plan near the present one, or one that fits."""

    changes: Mapping[str, int]  #: option -> its new value
    step_time_s: float  #: seconds per optimizer step with it
    memory_gib: float  #: GiB per GPU with it
    #: share of the present step time that it saves; below 0 where the present one is faster, and does not fit
    gain: float
    diff: str  #: the change of the files, as `patch` takes it

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


Read = Callable[[Mapping[str, str]], LaunchEstimate | None]
"""From texts of the files to what these mean with them; None where they mean nothing."""


def improvements(
    found: LaunchEstimate,
    launch_files: Sequence[str | Path],
    options: Mapping[str, Any],
    layout: Mapping[str, Any],
    variables: Mapping[str, str],
) -> tuple[Improvement, ...]:
    """Return faster plans that differ in few settings of the files, the one with the fewest changes first.

    What is shown was read back: the changed files mean the plan, and its prediction is theirs.

    Args:
        found: what is predicted of the files, read with the other arguments.
    """

    def read(texts: Mapping[str, str]) -> LaunchEstimate | None:
        try:
            return estimate_launch(launch_files, options, layout, variables, texts=texts)
        except GpuscaleError:
            return None

    now, best = found.estimate.plan, found.estimate.plan
    names = [name for name in CHANGED if name in found.job.stated and name not in layout]
    shown: list[Improvement] = []
    for count in range(1, min(len(names), MOST_CHANGES) + 1):
        for row in _faster(found, names, count, best):
            made = _made(found, row, read)
            if made is not None and (not best.fits or made.step_time_s < best.step_time_s * (1 - LEAST_GAIN)):
                shown.append(made)
                best = row
                break
        if len(shown) == SHOWN:
            break
    return tuple(one for one in shown if one.changes and (one.gain >= LEAST_GAIN or not now.fits))


def _faster(found: LaunchEstimate, names: Sequence[str], count: int, best: PlanRow) -> list[PlanRow]:
    """Return the plans that differ in at most `count` settings and beat the best so far, the fastest first."""
    job, now = found.job, found.estimate.plan
    fixed = {
        **{name: getattr(now, name) for name in CHANGED},
        "etp": now.etp, "zero": now.zero, "sp": now.sp, "recompute": now.recompute,
    }  # fmt: skip
    rows: dict[tuple[int, ...], PlanRow] = {}
    for free in combinations(names, count):
        pins = {name: value for name, value in fixed.items() if name not in free}
        if "tp" in free:
            pins.pop("sp")
        asked = {**job.options, "top": 4, "tight": not now.fits}
        model, gpus = asked.pop("model"), asked.pop("gpus")
        schedule = {"schedule": job.layout["schedule"]} if "schedule" in job.layout else {}
        try:
            result = plan(model, gpus, pins=pins, **asked, **schedule)
        except GpuscaleError:
            continue
        for row in result.plans:
            rows[tuple(getattr(row, name) for name in CHANGED)] = row
    faster = [row for row in rows.values() if not best.fits or row.step_time_s < best.step_time_s * (1 - LEAST_GAIN)]
    return sorted(faster, key=lambda row: row.step_time_s)[:4]


def _made(found: LaunchEstimate, row: PlanRow, read: Read) -> Improvement | None:
    """Return a plan as a change of the files; None where no change of them means it."""
    now = found.estimate.plan
    changes = {name: int(getattr(row, name)) for name in CHANGED if getattr(row, name) != getattr(now, name)}
    for edits in _edits(found.job, now, row, changes):
        before = {span.file: OpenFiles().read(Path(span.file)).text for span in edits}
        after = {name: _edited(text, name, edits) for name, text in before.items()}
        made = read(after)
        if made is None or any(made.job.options.get(name) != found.job.options.get(name) for name in KEPT):
            continue
        if _differ(made.estimate.plan, row, (*CHANGED, "global_batch_size", "dp")):
            continue
        after, legal = _without_what_it_excludes(found, made, after, read)
        if legal is not None:
            plan_read = legal.estimate.plan
            gain = 1 - plan_read.step_time_s / now.step_time_s
            diff = "".join(_diff(name, before[name], after[name]) for name in sorted(before))
            return Improvement(changes, plan_read.step_time_s, plan_read.memory_gib, gain, diff)
    return None


def _differ(one: PlanRow, other: PlanRow, names: Sequence[str]) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _without_what_it_excludes(
    found: LaunchEstimate, made: LaunchEstimate, texts: Mapping[str, str], read: Read
) -> tuple[dict[str, str], LaunchEstimate | None]:
    """Take out the settings that the changed plan excludes, such as TP's overlap where TP is 1 now.

    Returns:
        The texts of the files, and what they mean; None where the framework would still refuse them.
    """
    texts, before = dict(texts), _excluded(found)
    for _ in range(MOST_CHANGES):
        wrong = [name for code, names in _excluded(made).items() if code not in before for name in names]
        if not wrong:
            return texts, made
        for name in wrong:
            setting = made.job.settings.get(name)
            if setting is not None and setting.file in texts:
                texts[setting.file] = _without(texts[setting.file], setting)
        again = read(texts)
        if again is None or _differ(again.estimate.plan, made.estimate.plan, KEPT_OF_PLAN):
            break
        made = again
    return texts, None


def _excluded(found: LaunchEstimate) -> dict[str, tuple[str, ...]]:
    """Return rule -> settings of each rule of the framework's settings that the files break."""
    plan = found.estimate.plan
    job = job_of(found.estimate.job, layout_of(plan))
    stated = Stated(found.job, job, fixed_layout(job.spec, found.job.layout).row(0), plan.fit)
    return {one.rule: one.settings or () for one in switch_findings(stated) if one.severity == "error"}


def _without(text: str, setting: Setting) -> str:
    """Take a flag with its value out of the line where it stands, and the line too where nothing else is on it."""
    lines = text.split("\n")
    flag = re.compile(rf"--{re.escape(setting.name).replace('_', '[-_]')}(?:[= ]+[^-\s\\][^\s\\]*)?(?=[\s\\)]|$)")
    if not 1 <= setting.line <= len(lines) or not flag.search(lines[setting.line - 1]):
        return text
    left = flag.sub("", lines[setting.line - 1], count=1)
    lines[setting.line - 1 : setting.line] = [] if left.strip() in {"", "\\"} else [left.rstrip()]
    return "\n".join(lines)


def _edits(job: LaunchJob, now: PlanRow, row: PlanRow, changes: Mapping[str, int]) -> Iterator[dict[Span, str]]:
    """Yield ways to change the values where they stand: as they are, or in proportion."""
    choices: list[list[dict[Span, str]]] = []
    for name in (*changes, *(one for one in FOLLOWING if one in job.stated)):
        old, new = _degree(now, name), _degree(row, name)
        settings = [one for one in job.stated.get(name, ()) if one.span is not None]
        if name in changes and not settings:
            return
        if old != new and settings:
            choices.append([edit for edit in (_scaled(settings, new, old), _scaled(settings, old, new)) if edit])
    more: dict[Span, str] = {}
    steps = {"micro": now.micro_batch_size * now.dp, "new": row.micro_batch_size * row.dp}
    for one in job.settings.values():  # accumulation keeps the batch
        if "accumulation" in one.name and one.span is not None and steps["micro"] != steps["new"]:
            more |= _scaled([one], steps["micro"], steps["new"])
    for chosen in product(*choices):
        yield {span: text for edit in chosen for span, text in edit.items()}
        if more:
            yield {**{span: text for edit in chosen for span, text in edit.items()}, **more}


def _degree(row: PlanRow, name: str) -> int:
    return int(row.shard_size if name == "shard" else getattr(row, name))


def _scaled(settings: Sequence[Setting], up: int, down: int) -> dict[Span, str]:
    """Return the values of settings times `up / down`, where they stay whole numbers."""
    edits: dict[Span, str] = {}
    for one in settings:
        text = str(one.value).replace("_", "")
        if one.span is None or not text.isdecimal() or int(text) * up % down or not int(text):
            return {}
        edits[one.span] = str(int(text) * up // down)
    return edits


def _edited(text: str, name: str, edits: Mapping[Span, str]) -> str:
    lines = text.split("\n")
    for span in sorted((one for one in edits if one.file == name), reverse=True):
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.start] + edits[span] + line[span.end :]
    return "\n".join(lines)


def _diff(name: str, before: str, after: str) -> str:
    one, two = before.splitlines(keepends=True), after.splitlines(keepends=True)
    made = list(difflib.unified_diff(one, two, name, name, n=1))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made)
