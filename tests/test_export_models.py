"""What a model is and computes: each field of it is in an export, or refused, or named in its script."""

from dataclasses import fields, is_dataclass, replace
from functools import cache

import pytest
import round_trips

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import run_script, written
from gpuscale.launch.shapes import LABELS, RARE, ROTARY
from gpuscale.launch.targets import targets
from gpuscale.launch.writing import Writing
from gpuscale.planning.jobs import build_job
from gpuscale.presets.models import load_model
from gpuscale.request import JobOptions, read
from gpuscale.specs.model import BesideSpec, IndexerSpec, MtpSpec, NumericsSpec, TowerSpec, mtp_module

WRITERS = [name for name, one in targets().items() if one.write]
MODELS = ("llama3-8b", "gpt3-13b", "mixtral-8x7b", "deepseek-v2-lite")
RELATIVES = [pytest.param(name, marks=pytest.mark.full) for name in ("llama2-7b", "qwen3-30b-a3b", "moonlight-16b-a3b")]

NO_SHAPE = {
    "name", "title", "family", "source", "published_params", "published_active_params", "aliases", "notes", "kinds",
    "pattern", "numerics", "joins_embedding", "state_space", "wide_under", "chunked", "shared",
    "max_sequence", "towers",
}  # fmt: skip
"""What says nothing of a model in 16 bits by itself, is made of other fields, or goes with another one."""

NEEDS = {"top_groups": "groups", "shared_gate": "shared_ffn", "output_groups": "output_rank"}
"""Field -> another without which it means nothing."""

OTHERWISE = {
    "qk_norm": {"none": "head", "head": "none", "full": "none"}, "keys": {"own": "shared", "shared": "own"},
    "mtp": None,
}  # fmt: skip
"""Other values of fields whose value is no number and no switch."""

NUMBERS = {
    "rotary_base": 12345.0, "rotary_share": 0.25, "rotary_scaling": "linear", "norm_epsilon": 0.001, "init_std": 0.5,
    "activation": "relu2", "attention_softcap": 7.0, "logit_softcap": 7.0, "router_score": None,
    "router_normalised": None, "router_scale": 3.0, "router_aux_loss": 0.5,
}  # fmt: skip
"""Numbers that no model has; None: the other of two."""


@cache
def plan_for(target, name):
    """A small plan of a model, whatever it is."""
    options = {"model": name, "gpus": 16, "gbs": 64, "framework": targets()[target].frameworks[0], "seq": 2048}
    job = build_job(read(JobOptions, options))
    layout = {"tp": 1, "pp": 1, "cp": 1, "recompute": "none"} | ({"etp": 1} if job.spec.model.is_moe else {})
    return job, round_trips.predicted(options, layout).plan


def export_of(target, name, model):
    """The files of a model beside the cluster's, or why it is refused."""
    try:
        job, plan = plan_for(target, name)
    except InputError as error:  # a rule of the framework
        return f"cannot express: {error}"
    writing = Writing(job._replace(spec=replace(job.spec, model=replace(model, aliases=()))), plan)
    try:
        program = written(targets()[target], writing)
    except NoAnswerError as error:
        return str(error)
    return "\n".join(one.text for one in (*program.files, run_script(program, writing)))


def other(name, value):
    """Another value of a field."""
    if name in OTHERWISE:
        return OTHERWISE[name][value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, BesideSpec("a product made for this test", outputs=8, inputs=8))
    if name == "kv_heads":
        return value // 2
    if isinstance(value, int):
        return 2 * value if value else 4
    return {"window": 1024, "indexer": IndexerSpec(4, 64, 512), "query_rank": 512}[name]


def changed(spec, within):
    """Yield the path of each field of a spec, and the spec with another value of it."""
    for one in fields(spec):
        value = getattr(spec, one.name)
        idle = one.name in NEEDS and getattr(spec, NEEDS[one.name]) in {0, 1}
        if one.name in NO_SHAPE or idle or (value is None and one.name not in {"window", "indexer", "query_rank"}):
            continue
        if is_dataclass(value):
            yield from (
                (path, replace(spec, **{one.name: new})) for path, new in changed(value, f"{within}{one.name}.")
            )
        else:
            yield f"{within}{one.name}", replace(spec, **{one.name: other(one.name, value)})


def shapes(model):
    """Yield models that differ from one in a field of its shape."""
    yield from changed(replace(model, mtp=None), "")
    for index, kind in enumerate(model.kinds):
        for path, new in changed(kind, ""):
            yield f"kinds.{index}.{path}", replace(model, kinds=(*model.kinds[:index], new, *model.kinds[index + 1 :]))
    yield "pattern", replace(model, pattern=model.pattern[1:])
    yield "mtp", replace(model, mtp=MtpSpec(2, mtp_module((model.kinds[-1],))))


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("name", [*MODELS, *RELATIVES])
def test_every_field_of_the_shape_is_written_or_refused(target, name):
    model = load_model(name)
    usual = export_of(target, name, model)
    for path, new in shapes(model):
        assert export_of(target, name, new) != usual or "cannot express" in usual, path


BY_ID = ("axolotl", "llama-factory", "ms-swift", "trl", "torchtune", "automodel")
"""Targets that begin with weights of the hub, by name."""


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("name", [*MODELS, *RELATIVES])
def test_every_number_beside_the_shape_is_written_or_named(target, name):
    model = load_model(name)
    usual = export_of(target, name, replace(model, numerics=NumericsSpec()))
    if "cannot express" in usual:
        return
    by_id = "--config_name config.json" not in usual and target in {"deepspeed", "accelerate", *BY_ID}
    for field, value in NUMBERS.items():
        rotary, router = field.startswith("rotary"), field.startswith("router")
        if (rotary and model.learned_positions) or (router and not model.is_moe):
            continue
        values = {"router_score": ("softmax", "sigmoid"), "router_normalised": (True, False)}.get(field, (value,))
        texts = [export_of(target, name, replace(model, numerics=NumericsSpec(**{field: one}))) for one in values]
        if field == "router_score":  # one of the two is usual, and the other is told from it
            assert len(set(texts)) > 1 or "cannot express" in texts[0]
        else:
            assert {*texts} != {usual}, field
        if not by_id and field not in {"rotary_share", "attention_softcap", "logit_softcap", "router_scale"}:
            assert f"{LABELS[field]}: the model does not say" in usual
    for field in (*RARE, *(ROTARY if model.learned_positions else ())):  # where nothing is said, or nothing turns
        assert LABELS[field] not in usual


@pytest.mark.parametrize("target", WRITERS)
def test_a_script_says_what_of_the_training_it_leaves(target):
    text = export_of(target, "llama2-7b", load_model("llama2-7b"))
    block = text.partition("# Not set by this script:\n")[2].partition("\nset -e")[0]
    for word in ("learning rate" if target != "megatron-lm" else "--lr", "weight decay", "betas", "decoupled"):
        assert word in block
    assert all(line.startswith("#   ") and len(line) <= 120 for line in block.split("\n"))


@pytest.mark.parametrize("target", WRITERS)
def test_a_script_says_what_of_the_model_is_left_out(target):
    model = replace(load_model("llama2-7b"), towers=(TowerSpec("vision"),))
    assert f"# {model.caveats[0]}\n" in export_of(target, "llama2-7b", model)


def test_models_that_share_a_shape_are_told_apart_by_what_they_compute():
    shape = "llama3-8b,numerics.rotary_base="
    for target in WRITERS:
        one, two = (export_of(target, "llama3-8b", load_model(f"{shape}{base}")) for base in (500000, 600000))
        assert one != two, target
        assert "600000" in two
