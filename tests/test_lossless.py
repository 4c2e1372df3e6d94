"""Nothing is lost: on 200 random small jobs the search finds what a list of all layouts, priced and sorted, has."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import job
from spaces import plain_loops, stacked, tuples

from gpuscale.errors import InputError
from gpuscale.planning.layouts import make_pins
from gpuscale.presets.files import preset_names
from gpuscale.rules.check import ALL_RULES
from gpuscale.search import loop
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, search
from gpuscale.search.ordering import FAMILY, SAVES_MEMORY, TIE_ORDER
from gpuscale.search.ties import NEAR

MODELS = (
    "llama3.2-1b",  # tied embeddings
    "gpt3-125m",  # learned positions
    "gemma3-1b",  # windows
    "mixtral-8x7b",
    "deepseek-v2-lite",  # latent attention, dense layers first, shared experts
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",  # state spaces, multi-token prediction
    "nemotron-h-8b",
)
CLUSTERS = ("dgx-h100-superpod", "dgx-a100-superpod", "gb200-nvl72", "aws-g6e-eni")
SPACES = 200
MOST_LAYOUTS = 3000
"""Larger spaces are passed over: the loops are slow."""


def random_job(rng):
    """A few layers of a model of the registry, on a few GPUs, under any framework."""
    gpus = int(rng.choice([1, 2, 3, 4, 6, 8]))
    options = {"framework": str(rng.choice(sorted(preset_names("frameworks")))), "seq": int(rng.choice([256, 1024]))}
    options |= {"gbs": gpus * int(rng.choice([1, 2, 6])), "cluster": str(rng.choice(CLUSTERS))}
    if rng.random() < 0.2:
        options["offload"] = str(rng.choice(["optimizer", "activations:0.5", "optimizer+activations:0.3"]))
    if rng.random() < 0.2 and options["cluster"] in {"dgx-h100-superpod", "gb200-nvl72"}:
        options["precision"] = "fp8"
    spec = job(str(rng.choice(MODELS)), gpus, **options)
    layers = rng.choice(len(spec.model.pattern), size=int(rng.integers(1, 5)), replace=False)
    pattern = tuple(spec.model.pattern[index] for index in sorted(layers))
    return replace(spec, model=replace(spec.model, pattern=pattern))


def lawful_layouts(spec):
    """All layouts of a job that break no rule."""
    every = stacked(list(plain_loops(spec)))
    bad = np.zeros(len(every), dtype=bool)
    for rule in ALL_RULES:
        bad |= rule.breaks(every, spec)
    return every.take(~bad)


def spaces(count):
    """Jobs with their lawful layouts, as many as `count`, from one seed."""
    rng = np.random.default_rng(7)
    found = 0
    while found < count:
        try:
            spec = random_job(rng)
        except InputError:  # offloading or fp8 that the framework or the host does not have
            continue
        experts = max(kind.moe.experts if kind.moe else 1 for kind in spec.model.kinds)
        if spec.gpus * len(spec.model.pattern) * experts > 300:
            continue
        rows = lawful_layouts(spec)
        if 0 < len(rows) <= MOST_LAYOUTS:
            found += 1
            yield spec, rows, str(rng.choice(["step_time", "memory"])), rng


@pytest.mark.parametrize("count", [SPACES // 10, pytest.param(SPACES, marks=pytest.mark.full)])
def test_the_search_is_lossless(monkeypatch, count):
    feasible = 0
    for spec, rows, objective, rng in spaces(count):
        evaluation = evaluate(rows, spec)
        size = evaluation.memory.peak_bytes
        limit = float(np.quantile(size, np.clip(rng.uniform(-0.1, 1.1), 0.0, 1.0)))
        spec = replace(spec, memory_limit_bytes=limit)  # noqa: PLW2901
        monkeypatch.setattr(loop, "BLOCK_ROWS", int(rng.choice([200, 1 << 17])))
        monkeypatch.setattr(loop, "CHUNK_CANDIDATES", int(rng.choice([100, 1 << 17])))
        every = bool(rng.random() < 0.5)
        found = search(spec, make_pins({}), objective, every=every)
        feasible += compare(found, spec, rows, evaluation, objective, every=every)
    assert feasible > 20 * count


def compare(found, spec, rows, evaluation, objective, *, every=False):
    """Hold a search to the sorted list of all layouts; returns how many are feasible."""
    time_s, size = evaluation.step.step_time_s, evaluation.memory.peak_bytes
    on_gpu, on_host = size <= spec.plans_limit_bytes, evaluation.memory.host_bytes <= spec.host_limit_bytes
    fits = on_gpu & on_host
    score = size if objective == "memory" else time_s
    ties = [getattr(rows, name) for name in TIE_ORDER]
    order = sorted(np.flatnonzero(fits), key=lambda row: (score[row], time_s[row], size[row], *(x[row] for x in ties)))
    best, members = {}, {}
    for row in order:
        family = tuple(int(getattr(rows, name)[row]) for name in FAMILY)
        best.setdefault(family, row)
        members[family] = members.get(family, 0) + 1
    leading, stands_for = folded(best, members)

    assert found.evaluated == len(rows)
    assert found.feasible == len(order)
    assert found.rejected.get(OUT_OF_MEMORY, 0) == np.count_nonzero(~on_gpu)
    assert found.rejected.get(OUT_OF_HOST_MEMORY, 0) == np.count_nonzero(on_gpu & ~on_host)
    assert (found.scores == np.sort(score[fits] if every else [])).all()
    leaders = order[:2000] if every else [row for row in order if score[row] <= score[order[0]] * (1 + NEAR)]
    for group, expected in ((found.leaders, leaders), (found.families, leading)):
        assert tuples(group.rows) == tuples(rows.take(np.array(expected, dtype=np.intp)))
        assert (group.step_time_s == time_s[expected]).all()
        assert (group.memory_bytes == size[expected]).all()
    assert found.family_variants.tolist() == stands_for
    if not fits.any():
        near = min(np.flatnonzero(~fits), key=lambda row: (size[row], time_s[row], *(x[row] for x in ties)))
        assert tuples(found.nearest_miss.rows) == tuples(rows.take(np.array([near])))
    return len(order)


def folded(best, members):
    """Families that have no more of anything than another, better one has: their best rows, and how many they are."""
    listed = {}
    for family in best:
        values = dict(zip(FAMILY, family, strict=True))
        for one in listed:
            other = dict(zip(FAMILY, one, strict=True))
            if all(
                other[name] <= values[name] if name in SAVES_MEMORY else other[name] == values[name] for name in FAMILY
            ):
                listed[one] += members[family]
                break
        else:
            listed[family] = members[family]
    return [best[family] for family in listed], list(listed.values())


@pytest.mark.parametrize("model", ["llama3.2-1b", "deepseek-v2-lite"])
def test_the_reference_itself_can_fail(model):
    """A search that is not asked for everything differs from the list of everything."""
    spec = job(model, 4, gbs=8)
    spec = replace(spec, model=replace(spec.model, pattern=spec.model.pattern[:3]))
    rows = lawful_layouts(spec)
    found = search(spec, make_pins({"pp": 1}))
    with pytest.raises(AssertionError):
        compare(found, spec, rows, evaluate(rows, spec), "step_time")
