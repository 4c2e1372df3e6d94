"""Jobs and layouts for the tests of the core."""

from dataclasses import replace
from functools import cache

import numpy as np

from gpuscale.layouts.arrays import concatenate
from gpuscale.layouts.space import recomputed
from gpuscale.planning.jobs import build_job
from gpuscale.planning.layouts import fixed_layout, make_pins
from gpuscale.planning.variants import make_variants
from gpuscale.presets.models import all_models
from gpuscale.request import JobOptions, Question, declared, read
from gpuscale.rules.check import RECOMPUTE_RULES, broken_rules, mark
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import legal_rows
from gpuscale.steptime.components import COMPONENTS

MODELS = all_models()


def variants_of(model, gpus, options, pins=None):
    """The jobs of a question, and what is asked of them."""
    question = read(Question, {name: value for name, value in options.items() if name in declared(Question)})
    own = {name: value for name, value in options.items() if name not in declared(Question)}
    return make_variants({"model": model, "gpus": gpus, **own}, pins or {}, question), question


def built(model, gpus, **options):
    """A job with its defaults and the account of how it was made."""
    return build_job(read(JobOptions, {"model": model, "gpus": gpus, **options}))


@cache
def job(model, gpus, **options):
    """A job with its defaults."""
    return built(model, gpus, **options).spec


def layout(job_spec, **values):
    """One legal layout, completed with the defaults of `estimate`."""
    rows = fixed_layout(job_spec, values)
    assert [rule.code for rule in broken_rules(rows, job_spec)] == []
    return rows


def legal_candidates(spec, pins, rejected):
    """The legal candidates one after the other, some at a time: what a search goes through."""
    for rows in legal_rows(spec, pins, rejected):
        yield mark(RECOMPUTE_RULES, recomputed(spec, pins, rows), spec, rejected).listed()


@cache
def _legal(job_spec_key, pins):
    model, gpus, options = job_spec_key
    spec = job(model, gpus, **dict(options))
    return concatenate(list(legal_candidates(spec, make_pins(dict(pins)), {})))


def legal(model, gpus, pins=None, **options):
    """All legal candidates of a job, within pins."""
    return _legal((model, gpus, tuple(options.items())), tuple((pins or {}).items()))


def sample(rows, count, seed=0):
    """At most `count` rows, in order, chosen by a fixed seed."""
    chosen = np.random.default_rng(seed).choice(len(rows), size=min(count, len(rows)), replace=False)
    return rows.take(np.sort(chosen))


def seconds(job_spec, **values):
    """Component -> seconds of one layout, and `total`, `dp_total` (before overlap)."""
    evaluation = evaluate(layout(job_spec, **values), job_spec)
    parts = dict(zip(COMPONENTS, evaluation.step.components[:, 0].tolist(), strict=True))
    return {**parts, "total": float(evaluation.step.step_time_s[0]), "dp_total": float(evaluation.step.dp_total_s[0])}


def with_gpu(job_spec, kernels=None, **changes):
    """The same job on a changed GPU."""
    gpu = replace(job_spec.cluster.gpu, **changes)
    gpu = replace(gpu, kernels=replace(gpu.kernels, **(kernels or {})))
    return replace(job_spec, cluster=replace(job_spec.cluster, gpu=gpu))


def with_level(job_spec, index, **factors):
    """The same job with fields of one network level multiplied."""
    levels = list(job_spec.cluster.levels)
    changed = {name: getattr(levels[index], name) * factor for name, factor in factors.items()}
    levels[index] = replace(levels[index], **changed)
    return replace(job_spec, cluster=replace(job_spec.cluster, levels=tuple(levels)))
