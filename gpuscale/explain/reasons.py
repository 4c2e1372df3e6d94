"""Why this plan, what bounds it, what would change it: sentences with their numbers, all found by evaluating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscale.explain.changes import Rejected, Spelling, Suggestion, changes_of, rejected, suggestions, unspelled
from gpuscale.explain.choice import Flip, Position, field_of, flips, standing
from gpuscale.explain.thresholds import Threshold, thresholds
from gpuscale.launch.subject import Subject
from gpuscale.planning.describe import bound_parts
from gpuscale.planning.layouts import layout_text
from gpuscale.ratios import TIME, in_words, share_text
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS
from gpuscale.units import format_number, format_seconds

NEIGHBOURS = ("tp", "pp", "cp", "ep", "zero", "vpp", "microbatch", "recompute", "sp", "precision", "overlap", "gbs")
"""Changes that people ask about: what is not worth it is said of these."""


@dataclass(frozen=True)
class Reasons:
    """What is said of a plan."""

    sentences: tuple[str, ...]  #: what binds, how the plan stands to others, what its neighbours lack
    thresholds: tuple[Threshold, ...]  #: the distance to each point at which something else would bind
    suggestions: tuple[Suggestion, ...]  #: the most profitable changes, each as it runs
    rejected: tuple[Rejected, ...]  #: changes that are not worth making
    flips: tuple[Flip, ...]  #: single numbers that would make another plan the choice


def reasons(subject: Subject, spelled: Spelling = unspelled) -> Reasons:
    """Say of a plan what binds it, what would change it, with `spelled` options as those of a command, and how it
    stands to others."""
    changes, field, limits = changes_of(subject), field_of(subject), thresholds(subject)
    against = rejected(changes, NEIGHBOURS)
    turns = () if field is None else flips(field)
    place = ["No plan of this job fits: `gpuscale plan` shows the nearest miss."]
    if field is not None:  # how it stands to the best of its job, and that to the next family
        own = layout_text(subject.rows.row(0))
        place = _standing_text(standing(subject, field), subject.estimate.plan.fit, own)
    said = (what_binds(subject), *_communication(subject), *missed(limits), *place)
    return Reasons(said, limits, suggestions(changes, spelled), against, turns)


def what_binds(subject: Subject) -> str:
    """Say what takes the step, kind by kind, what binds it first."""
    plan = subject.estimate.plan
    parts = ", ".join(bound_parts(subject.estimate.breakdown))
    return f"The step of {format_seconds(plan.step_time_s)} is bound by {parts}."


def missed(limits: Sequence[Threshold]) -> list[str]:
    """Say by how much thresholds are missed, of each kind the first."""
    found: dict[str, str] = {}
    for one in limits:
        if not one.holds:
            needed = f"{format_number(one.needed)} {'at most' if one.at_most else 'needed'}"
            name = f"{one.name[0].upper()}{one.name[1:]}"
            found.setdefault(name.partition("]")[0], f"{name}: {format_number(one.now)} ({needed}): {one.meaning}.")
    return list(found.values())


def _communication(subject: Subject) -> tuple[str, ...]:
    """Say how much of the communication shows, and how much of that of data parallelism is hidden."""
    plan, seconds = subject.estimate.plan, subject.estimate.breakdown
    shown = [name for name in COMMUNICATION if seconds[name] > 0]
    if not shown:
        return ("Nothing is communicated.",) if subject.spec.gpus == 1 else ("All communication is hidden.",)
    shown.sort(key=lambda name: -seconds[name])
    parts = ", ".join(f"{COMPONENTS[name].text} {share_text(seconds[name] / plan.step_time_s)}" for name in shown)
    said = f"Exposed communication takes {share_text(plan.exposed_comm_fraction)} of the step"
    said += f": {parts}" if len(shown) > 1 else f", all of it {COMPONENTS[shown[0]].text}"
    whole_s, exposed_s = subject.estimate.total_dp_comm_s, seconds["dp_comm"]
    if whole_s > exposed_s > 0:
        said += f"; of data parallelism's {format_seconds(whole_s)} {100 * (1 - exposed_s / whole_s):.0f}% is hidden"
    return (f"{said}.",)


def _standing_text(one: Position, fit: str, own: str) -> list[str]:
    best = f"{one.best} ({format_seconds(one.best_step_time_s)})"
    why = f": {', '.join(one.why)}" if one.why else ""
    said = []
    if one.best == own:
        said.append("It is the first choice for its job.")
    elif one.is_best:
        said.append(f"No plan that fits is more than 1% faster; the first choice is {best}.")
    else:
        tie = ", a tie within the model's resolution" if one.tied else ""
        said.append(f"It takes {in_words(1 + one.behind, TIME, f'the first choice, {best}')}{tie}{why}.")
    if fit == "no":
        said.append("It does not fit.")
    if one.next_plan:
        much = f"takes {in_words(1 + one.next_behind, TIME)}"
        lacks = f": {', '.join(one.next_lacks)}" if one.next_lacks else ""
        tie = ", a tie within the model's resolution" if one.next_tied else ""
        said.append(f"The next best family, {one.next_plan}, {much}{tie}{lacks}.")
    return said
