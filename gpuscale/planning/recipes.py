"""Published recipes: jobs with the layouts that experts run them with, as facts with their source, without results. A
file of `presets/recipes/` holds those of one publisher; an option of a recipe goes before that of its group, and this
before that of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from gpuscale.arguments import public
from gpuscale.display import WithFields, displayed
from gpuscale.errors import InputError, did_you_mean, unknown_name
from gpuscale.layouts.pins import short_recompute
from gpuscale.planning.planfile import checked, replaced
from gpuscale.presets.files import Document, KeyPath, find_preset, preset_files, preset_folders, read_unchanged
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.presets.models import load_model
from gpuscale.presets.settings import with_settings
from gpuscale.request import JobOptions, Layout, declared, part

LISTING = "gpuscale show recipes"
FACTS = ("by", "source", "date", "note")
"""What a file, a group or a recipe says beside options: who runs it, where it is published, when, and what to know."""

STATED = ("model", "cluster", "gpus", "seq", "gbs")
"""Options that every recipe has to state: none of them is chosen for it."""

MOST_RECIPES, MOST_TEXT = 2000, 1000
"""Of one file; characters of a fact."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)


@displayed
@dataclass(frozen=True)
class Recipe(WithFields):
    """A job with the layout that experts run it with."""

    name: str  #: what `recipe` takes.
    title: str  #: of the file that it stands in.
    by: str  #: who runs it.
    source: str  #: where it is published.
    date: str  #: year and month of what is published; empty where nobody says.
    note: str  #: what to know of it.
    job: Mapping[str, Any]  #: its options of the job.
    layout: Mapping[str, Any]  #: its options of the layout.

    @property
    def text(self) -> str:
        """Its layout in a few words: `TP2 PP8 VPP4 EP32`."""
        return recipe_text(self.layout)


def recipe_text(layout: Mapping[str, Any]) -> str:
    """Write a layout as it is stated: `TP2 PP8 VPP4 EP32 mb2`; what is 1, and ETP with it, is left out."""
    parts = [f"{name.upper()}{layout[name]}" for name in ("tp", "pp", "vpp", "cp", "ep") if (layout.get(name) or 1) > 1]
    parts += [f"ETP{layout['etp']}"] if (layout.get("etp") or 1) > 1 else []
    parts += [f"ZeRO-{layout['zero']}"] if layout.get("zero") is not None else []
    parts += [f"over {layout['shard']}"] if layout.get("shard") else []
    parts += [f"mb{layout['micro_batch_size']}"] if layout.get("micro_batch_size", 1) > 1 else []
    parts += [str(layout["schedule"])] if layout.get("schedule", "1f1b") != "1f1b" else []
    recompute = layout.get("recompute", "none")
    parts += [] if recompute == "none" else [f"recompute {short_recompute(recompute)}"]
    return " ".join(parts) or "data parallel"


@public
def all_recipes() -> list[Recipe]:
    """Return every published recipe, those of the user's own files first."""
    return [_recipe(*one) for one in _stated().values()]


@public
def find_recipe(name: str) -> Recipe:
    """Return a published recipe by its name; `_` and `-` are one, as are the names of functions that make it.

    `estimate(**found.job, layout=found.layout)` evaluates it.

    Raises:
        InputError: there is none of the name, or its file cannot be used.
    """
    known = _stated()
    wanted = _plain(name[:200])
    found = name if name in known else next((one for one in known if _plain(one) == wanted), None)
    if found is None:
        raise unknown_name("recipe", name[:100], list(known), LISTING)
    return _recipe(*known[found])


def _plain(name: str) -> str:
    """Return a name as recipes are compared: `llama3_70b_pretrain_64gpu_h100_bf16_config` is one function's name."""
    return name.strip().lower().replace("_", "-").removesuffix("-config").replace("-pretrain-", "-").replace(".", "")


NEAR = 4
"""Factor in GPUs, and in the length of sequences, within which a recipe is one for a job."""


def recipe_near(model: str, gpu: str, gpus: int, sequence: int, precision: str) -> Recipe | None:
    """Return the recipe of a model on a GPU (names of presets) that is nearest in the number of GPUs, then in precision
    and the length of sequences; None without one."""
    found = [_recipe(*one) for one in _stated().values() if _of_model(*one) == model]

    def apart(one: Recipe) -> tuple[float, bool, float, str]:
        size, longer = (max(a, b) / min(a, b) for a, b in ((one.job["gpus"], gpus), (one.job["seq"], sequence)))
        return size, precision_of(one) != precision, longer, one.name

    near = (one for one in sorted(found, key=apart) if max(apart(one)[0], apart(one)[2]) <= NEAR)
    return next((one for one in near if gpu_of(one) == gpu), None)


def _of_model(document: Document, at: KeyPath) -> str:
    """The name of a recipe's model, as it stands there unchecked; of an alias or a file its own; nothing without
    one."""
    group = document.data["group"][at[1]]
    tables = (group["recipes"][at[-1]], group, document.data)
    return _own_name(next((str(table["model"]) for table in tables if "model" in table), ""))


@cache
def _own_name(name: str) -> str:
    if find_preset("models", name.partition(",")[0]):  # with settings it is a model of its own: `gpt3-175b,heads=128`
        return name
    with suppress(InputError):
        return _model(name)
    return ""


def listed_recipes(model: str | None = None, gpu: str | None = None) -> list[Recipe]:
    """Return the recipes of a model, on a GPU; all without either, in the order of model, GPU and number of GPUs.

    Raises:
        InputError: there are none, or no such model or GPU.
    """
    gpu = gpu and load_gpu(gpu).name
    own = _model(model) if model else None
    found = [one for one in all_recipes() if gpu in {None, gpu_of(one)} and own in {None, _model(one.job["model"])}]
    if not found:
        of = " ".join(filter(None, (model and f"of {model}", gpu and f"on {gpu}")))
        raise InputError(f"there is no recipe {of}", hint=f"`{LISTING}` lists all")
    return sorted(found, key=lambda one: (one.job["model"], gpu_of(one), one.job["gpus"], one.name))


def recipe_table(recipe: Recipe) -> str:
    """Write a recipe as a file of its own, as a start for others."""
    facts = {key: value for key in FACTS if (value := getattr(recipe, key))}
    group = {"recipes": {recipe.name: {**recipe.job, **recipe.layout}}}
    return tomli_w.dumps({"title": recipe.title, **facts, "group": [group]})


@cache
def _model(name: str) -> str:
    return load_model(name).name


def gpu_of(recipe: Recipe) -> str:
    """Name the GPU of a recipe."""
    return _gpu(recipe.job["cluster"], recipe.job.get("set"))


@cache
def _gpu(cluster: str, settings: str | None) -> str:
    return with_settings(load_cluster(cluster), settings or "").gpu.name


def precision_of(recipe: Recipe) -> str:
    """Name the precision of a recipe."""
    return str(recipe.job.get("precision") or "bf16")


def with_recipe(
    found: Recipe, options: Mapping[str, Any], layout: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's options and layout with some entries replaced, as `with_plan_file` does."""
    return {**found.job, **options}, replaced(found.layout, layout, gpus="gpus" in options)


Stated = tuple[Document, KeyPath]


def _stated() -> dict[str, Stated]:
    """Return where each recipe stands, by its name, none of them checked yet."""
    found: dict[str, Stated] = {}
    for path in _files():
        for name, stated in _of_file(read_unchanged(path)):
            found.setdefault(name, stated)
    return found


def _files() -> Iterator[Path]:
    own, shipped = preset_files("recipes"), preset_folders("recipes")[-1]
    yield from sorted(own.values(), key=lambda path: str(path.parent) == str(shipped))


def _of_file(document: Document) -> Iterator[tuple[str, Stated]]:
    groups = document.data.get("group", [])
    if not isinstance(groups, list) or not all(isinstance(one, dict) for one in groups):
        raise document.error(("group",), "is not a list of tables", "write [[group]] above what recipes share")
    seen: set[str] = set()
    for index, group in enumerate(groups):
        at: KeyPath = ("group", index, "recipes")
        recipes = group.get("recipes")
        if not isinstance(recipes, dict):
            hint = "write [group.recipes], and below it NAME = { gpus = 64, tp = 4 }"
            raise document.error(at[:2], "the group has no table of recipes", hint)
        for name, own in recipes.items():
            if not _NAME.fullmatch(name):
                hint = "a name is of small letters, digits, dots and hyphens, 80 at most"
                raise document.error((*at, name), f"{name[:80]!r} is not a name of a recipe", hint)
            if not isinstance(own, dict):
                raise document.error((*at, name), f"{name} is not a table", "write NAME = { gpus = 64, tp = 4 }")
            if name in seen:
                raise document.error((*at, name), f"the recipe {name} is given twice", "give each a name of its own")
            seen.add(name)
            yield name, (document, (*at, name))
    if len(seen) > MOST_RECIPES:
        raise document.error(("group",), f"{len(seen):,} recipes, at most {MOST_RECIPES:,} in a file")


def _recipe(document: Document, at: KeyPath) -> Recipe:
    """Check a recipe by the declarations of its options; values must have the type of their option."""
    group, name = document.data["group"][at[1]], str(at[-1])
    merged: dict[str, Any] = {}
    places: dict[str, KeyPath] = {}
    levels: list[tuple[KeyPath, Mapping[str, Any], set[str]]] = [
        (at, group["recipes"][name], set()), (at[:2], group, {"recipes"}), ((), document.data, {"title", "group"}),
    ]  # fmt: skip
    for place, table, beside in levels:
        for key, value in table.items():
            if key not in beside and key not in merged:
                merged[key], places[key] = value, (*place, key)
    known = (*FACTS, *declared(JobOptions), *declared(Layout))
    for key, place in places.items():
        if key not in known:
            raise document.error(place, f"unknown key {key[:80]!r}", did_you_mean(key, known, "keys are", 3))
    facts = {key: merged.get(key, "") for key in FACTS} | {"title": document.data.get("title", "")}
    stray = next((key for key, value in facts.items() if not isinstance(value, str) or len(value) > MOST_TEXT), None)
    if stray:
        raise document.error(places.get(stray, (stray,)), f"{stray} is not a text of at most {MOST_TEXT} characters")
    missing = [key for key in ("by", "source", *STATED) if not merged.get(key)]
    if missing:
        hint = "state it here, or above for all recipes of the group or the file"
        raise document.error(at, f"the recipe {name} does not state {missing[0]!r}", hint)
    job, layout = (checked(document, part(merged, kind), kind, places.get, name) for kind in (JobOptions, Layout))
    return Recipe(name, **facts, job=job, layout=layout)
