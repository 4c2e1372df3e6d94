"""Recipes: the layout of experts beside our own first choice of the same job, both by our own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpuscale.errors import GpuscaleError, InputError
from gpuscale.planning.describe import choose
from gpuscale.planning.plans import ranked_recipe
from gpuscale.planning.recipes import Recipe, recipe_text
from gpuscale.planning.variants import Variant, make_variants
from gpuscale.request import JobOptions, Layout, Question, part
from gpuscale.results import Estimate, RecipeAnswer
from gpuscale.search.loop import search
from gpuscale.validation.measurements import RECIPES, Cells, Library, Row, reason_text, row_cluster
from gpuscale.validation.runs import Run, read_run, row_model

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class RecipeScore:
    """One recipe as `gpuscale validate` answers it."""

    id: str  #: name of the row.
    #: `ok`, also where `reason` says that it is tight or breaks a rule; `unfit`, when that says what it lacks;
    #: `no-start`, when its layout cannot be; `unsupported`, when its model or cluster is not known.
    status: str
    reason: str  #: what memory it lacks, which rule it breaks, or why there is no prediction; with file and line.
    layout: str = ""  #: that of the experts, in a few words.
    predicted_step_s: float | None = None  #: seconds per step with it [s].
    predicted_device_gib: float | None = None  #: memory of a GPU at the fullest stage with it [GiB].
    predicted_fits: bool | None = None  #: whether that is within the limit.
    first_choice: str = ""  #: the layout that `plan` puts first for the same job.
    first_choice_step_s: float | None = None  #: seconds per step with that [s].
    behind: float | None = None  #: step time of the experts' layout over that of the first choice, less 1.
    differs: str = ""  #: in what the experts' layout differs from the first choice: its value -> that of the choice.
    measured_step_s: float | None = None  #: measured seconds per step, where the row has them [s].
    step_error: float | None = None  #: error of the predicted step time of the experts' layout.
    command: tuple[str, ...] = ()  #: arguments of the call of gpuscale that evaluates the experts' layout.


class Choice(NamedTuple):
    """The search of one job."""

    variant: Variant
    plans: tuple[Estimate, ...]  #: its first choice; none where nothing fits.


class Compared(NamedTuple):
    """A recipe beside the first choice."""

    score: RecipeScore
    moe: bool = False
    gpu: str = ""


def predict_recipes(
    rows: Sequence[Row], spelled: Callable[[Mapping[str, Any]], tuple[str, ...]], progress: Progress
) -> list[Compared]:
    """Evaluate the layout of every row, and search its job, the same job once."""
    library, searched = Library(), dict[tuple[Any, ...], Choice]()
    found = []
    for index, row in enumerate(rows):
        progress(index, len(rows), row.raw("recipe"))
        found.append(_compared(row, library, searched, spelled))
    return found


def as_run(row: Row, library: Library) -> Row:
    """Return a recipe's row as that of a run, in whose columns it says the same."""
    cells = {name: row.raw(name) for name in row.cells}
    layers = row.whole("offloaded_layers")
    if layers:
        model = library.presets.model(row_model(row, library)[0])
        cells["offload"] = f"activations:{min(1.0, layers / model.layers):.4g}"
    cells |= {"id": cells.get("recipe", ""), "vp": cells.get("vpp", "")}
    cells |= {"zero": "fsdp"} if row.switch("fsdp") else {}
    return Row(Cells(dict(zip(cells, range(len(cells)), strict=True)), tuple(cells.values())), row.place)


def _compared(
    row: Row,
    library: Library,
    searched: dict[tuple[Any, ...], Choice],
    spelled: Callable[[Mapping[str, Any]], tuple[str, ...]],
) -> Compared:
    name = row.raw("recipe")
    try:
        row.check(RECIPES)
        row_cluster(row, row.whole("gpus") or 0, library)
        run_row = as_run(row, library)
        row_model(run_row, library)
    except InputError as error:
        return Compared(RecipeScore(name, "unsupported", reason_text(error)))
    try:
        run = read_run(run_row, library)
        choice = _choice(run, library, searched)
    except InputError as error:
        return Compared(RecipeScore(name, "no-start", reason_text(error)))
    recipe = Recipe(name, "", "", row.raw("source"), "", "", part(run.options, JobOptions), part(run.options, Layout))
    answer = ranked_recipe(recipe, choice.variant, choice.plans, "step_time")
    job = choice.variant.job.spec
    return Compared(_score(recipe, answer, choice, spelled(run.options)), job.model.is_moe, job.cluster.gpu.name)


def _choice(run: Run, library: Library, searched: dict[tuple[Any, ...], Choice]) -> Choice:
    job = part(run.options, JobOptions)
    key = tuple(sorted(job.items()))
    if key not in searched:
        question = Question(top=1)
        variant = make_variants(job, {}, question, library.presets).tried[0]
        try:
            found = search(variant.job.spec, variant.pins, "step_time")
            feasible = bool(found.feasible)
        except GpuscaleError:
            feasible = False
        plans = choose(variant.job, found, "step_time", question).estimates if feasible else ()
        searched[key] = Choice(variant, plans)
    return searched[key]


def _score(recipe: Recipe, answer: RecipeAnswer, choice: Choice, command: tuple[str, ...]) -> RecipeScore:
    if answer.step_time_s is None:
        return RecipeScore(recipe.name, "no-start", answer.reason, answer.layout)
    found = RecipeScore(
        recipe.name,
        "ok" if answer.fits else "unfit",
        answer.reason,
        answer.layout,
        predicted_step_s=answer.step_time_s,
        predicted_device_gib=answer.memory_gib,
        predicted_fits=answer.fits,
        behind=answer.behind,
        differs=answer.differs,
        command=command,
    )
    if not choice.plans:
        return replace(found, reason="; ".join(filter(None, (answer.reason, "no layout of the job fits"))))
    first = choice.plans[0].plan
    layout = {name: getattr(first, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size")}
    layout |= {"recompute": first.recompute, **({"zero": first.zero} if first.zero > 1 else {})}
    return replace(found, first_choice=recipe_text(layout), first_choice_step_s=first.step_time_s)
