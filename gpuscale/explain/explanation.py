"""`explain`: where each second and each byte of a plan goes, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpuscale.arguments import taking
from gpuscale.display import displayed
from gpuscale.explain.changes import Rejected, Spelling, Suggestion, unspelled
from gpuscale.explain.choice import Flip
from gpuscale.explain.memories import memory_trees
from gpuscale.explain.nodes import Node
from gpuscale.explain.reasons import Reasons, reasons
from gpuscale.explain.steps import step_tree
from gpuscale.explain.thresholds import Threshold
from gpuscale.explain.traffic import TrafficReport, traffic_of
from gpuscale.launch.subject import Subject, read_subject
from gpuscale.request import JobOptions, Layout, taken, with_layout
from gpuscale.results import PlanRow


@displayed
@dataclass(frozen=True)
class Explanation:
    """What there is to say of one plan."""

    model: str  #: name of the model
    cluster: str  #: name of the cluster
    gpus: int  #: GPUs of the job
    plan: PlanRow  #: the layout and its numbers; `rank` and `variants` are 1
    #: seconds of a step on the slowest stage, as a tree: phases, passes, layers, blocks, operators and collectives; the
    #: root is `step_time_s` of the plan, every node the exact sum of its children
    step: Node
    memory: tuple[Node, ...]  #: bytes of one GPU of the first, the heaviest middle and the last stage, as a tree each
    #: what travels where (its fields are keys of the JSON); None where it was not asked for
    network: TrafficReport | None
    #: what binds, how much communication shows, how the plan stands to the best of its job, and that to the next family
    #: of plans
    sentences: tuple[str, ...] = ()
    thresholds: tuple[Threshold, ...] = ()  #: distance of the plan from where something else would bind it
    #: the most profitable single changes, the best of each kind, each evaluated as `estimate` does it
    suggestions: tuple[Suggestion, ...] = ()
    rejected: tuple[Rejected, ...] = ()  #: changes that are not worth making, and why
    #: single quantities that would make another plan the choice, the smallest change first
    flips: tuple[Flip, ...] = ()
    notes: tuple[str, ...] = ()  #: as in `gpuscale.plan/1`

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.explain/1`."""
        return {
            **{name: getattr(self, name) for name in ("model", "cluster", "gpus")},
            "plan": self.plan.to_dict(),
            "step": self.step.to_dict(),
            "memory": [stage.to_dict() for stage in self.memory],
            **({} if self.network is None else self.network.to_dict()),
            **{one.name: list(getattr(self, one.name)) for one in fields(Reasons)},
            "notes": list(self.notes),
        }


@taking(taken(JobOptions, Layout, beside_files=True))
def explain_plan(
    plan_file: str | Path | None = None,
    *,
    layout: Mapping[str, Any] | None = None,
    launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None,
    despite_rules: bool = False,
    **options: Any,
) -> Explanation:
    """Explain one plan: of a file, of launch files, or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        layout: `tp`, `pp` and the like in one piece, by name.
        launch_files, variables: as in `gpuscale.estimate_launch`.
        despite_rules: also a layout that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: two sources of a plan, none, unusable input, or a layout that breaks a rule.
    """
    path, (options, layout) = None if plan_file is None else Path(plan_file), with_layout(options, layout)
    return explain_subject(read_subject(path, options, layout, launch_files, variables, despite_rules=despite_rules))


def explain_subject(subject: Subject, spelled: Spelling = unspelled, *, traffic: bool = True) -> Explanation:
    """Explain a plan that is evaluated; `traffic`: say what travels where too, `spelled`: options of `estimate` as a
    command takes them."""
    found = subject.estimate
    return Explanation(
        model=found.model,
        cluster=found.cluster,
        gpus=found.gpus,
        plan=found.plan,
        step=step_tree(subject),
        memory=memory_trees(subject),
        notes=found.notes,
        network=traffic_of(subject) if traffic else None,
        **vars(reasons(subject, spelled)),
    )
