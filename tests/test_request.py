"""Options are declared once: what follows from a declaration; from noise follows one clear refusal, nothing else."""

import ast
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

import pytest
import typer
from command import assert_one_message
from command import gpuscale as command
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jobs import built
from test_cli_general import WALKED

from gpuscale.cli import options
from gpuscale.cli.main import flags
from gpuscale.cli.options import with_flags
from gpuscale.errors import GpuscaleError, InputError, NoAnswerError
from gpuscale.planning import plans
from gpuscale.planning.jobs import OF_TUNING, build_job
from gpuscale.planning.planfile import read_plan_file, write_plan_file
from gpuscale.request import (
    COMPARED,
    OF_EXPERTS,
    OPTIONS,
    JobOptions,
    Layout,
    Option,
    Question,
    Within,
    declared,
    read,
    read_several,
)
from gpuscale.specs.job import RuntimeSpec

KINDS = (JobOptions, Layout, Question)
FIELDS = {name: field for kind in KINDS for name, field in declared(kind).items()}
SAMPLES = {
    "model": "llama3-8b", "gpus": 16, "cluster": "b200-hgx", "seq": 8192, "gbs": 64, "framework": "generic",
    "tune": "lora", "method": "distill", "teacher": "llama3-70b", "lengths": ",".join(["512"] * 33), "packing": True,
    "lora_rank": 8, "lora_targets": "gate,up",
    "lora_experts": True, "lora_dropout": True,
    "train": "head,norms", "base_dtype": "fp8",
    "precision": "fp8-current", "optimizer": "lion", "optimizer_rank": 64, "grad_dtype": "bf16", "master_dtype": "none",
    "moment_dtype": "fp8", "swiglu_input_dtype": "fp8", "loss": "fused",
    "vocab_multiple": 64, "memory_limit_gib": 99.5, "moe_imbalance": 1.25, "gpus_per_node": 4,
    "offload": "optimizer+activations:0.5", "cp_comm": "all_gather", "axis_order": "tp-cp-ep-pp-dp",
    "pipeline_split": "cost", "overlap": "tp+dp", "cuda_graphs": "full",
    "set": "node.hop_latency_us=2.0", "dispatcher": "alltoall", "reshard": "never", "compile": "off",
    "sharp": "on", "nvls": "off", "transport": "uccl", "grad_reduce": "last", "routing": "dropping", "attention": "fa2",
    "tower": "frozen", "calibration": str(Path(__file__).parent / "data" / "example_site.toml"),
    "tp": 2, "sp": True, "pp": 2, "vpp": 2, "cp": 2, "ep": 2, "etp": 2, "dp": 4, "zero": 2, "shard": 2,
    "micro_batch_size": 2, "recompute": "selective:mlp", "schedule": "zb-h1",
    "space": "full", "objective": "cost", "pareto": "step_time,memory", "gpu_hour_price": ["2.5", "b200-hgx=4"],
    "train_tokens": "15T", "price_term": "spot", "rate": ["pue=1.3", "host_w=300"], "max_memory": "70GiB",
    "min_mfu": 40, "max_step_time": 9.5, "max_days": 30,
    "max_cost": 1e6, "top": 3, "unfold": True, "risk": 0.9, "tight": True, "why": "tp=4,pp=8",
    "recipe": "llama3-8b-8gpu-h100-bf16", "find": "seq",
}  # fmt: skip
"""A value of every option that is not its default."""


# -- what follows from a declaration --


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_is_declared_in_full(name):
    field, said = FIELDS[name], FIELDS[name].option
    assert said.help.endswith(".")
    assert len(said.help) < 120
    assert name in SAMPLES, "give a sample above"
    if name in COMPARED:
        assert "{" in said.label
        assert isinstance(read_several(name, SAMPLES[name]), tuple)
    if field.number and not said.normal:
        assert not {-math.inf, math.inf} & set(field.limits), "a number has both limits"


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_is_a_flag_with_its_help(name):
    (parameter,) = [one for one in WALKED["plan"].params if one.name == name]
    assert flags()[name] in parameter.opts
    assert FIELDS[name].option.help.rstrip(".") in parameter.help
    for choice in FIELDS[name].option.choices:
        assert choice in parameter.help


def test_no_two_commands_call_one_option_by_different_flags():
    known = flags()
    for one in WALKED.values():
        for parameter in one.params:
            if parameter.param_type_name == "option":
                assert known[parameter.name] in parameter.opts


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_once_reads_as_itself(kind):
    said = read(kind, {name: SAMPLES[name] for name in declared(kind)})
    for name in declared(kind):
        assert getattr(said, name) != declared(kind)[name].default
    if kind is not Question:
        assert read(kind, said.stated()) == said


@pytest.mark.parametrize("name", declared(JobOptions))
def test_the_echoed_job_and_its_plan_file_make_the_same_job_again(name, tmp_path):
    usual = {"model": "deepseek-v2-lite" if name in OF_EXPERTS else "llama3-8b", "gpus": 8}
    if name == "compile":
        usual["framework"] = "torchtitan"
    if name == "packing":
        usual["lengths"] = SAMPLES["lengths"]
    if name in OF_TUNING:
        usual |= {"tune": "lora", "model": "deepseek-v2-lite" if name == "lora_experts" else usual["model"]}
    if name == "optimizer_rank":
        usual |= {"optimizer": "galore", "framework": "accelerate"}
    if name in {"method", "teacher"}:
        usual |= {"method": SAMPLES["method"], "teacher": SAMPLES["teacher"]}
    if name == "tower":
        usual["model"] = "gemma3-4b"
    made = built(**{**usual, name: SAMPLES[name]})
    assert made.request[name] == SAMPLES[name]
    assert build_job(read(JobOptions, made.request)).spec == made.spec
    path = tmp_path / "plan.toml"
    write_plan_file(path, made.request, plans.estimate_layout(made, {"zero": 2} if name == "grad_reduce" else {}).plan)
    again, layout = read_plan_file(path)
    assert again == made.request
    assert build_job(read(JobOptions, again)).spec == made.spec
    assert set(layout) <= set(declared(Layout))


@pytest.mark.parametrize("name", sorted(set(declared(JobOptions)) & set(RuntimeSpec.__dataclass_fields__)))
def test_an_option_named_as_a_property_of_the_runtime_takes_effect_by_its_declaration(name):
    for choice in OPTIONS[name].choices:
        runtime = built("deepseek-v2-lite", 8, framework="generic", **{name: choice}).spec.runtime
        assert getattr(runtime, name) == {"on": True, "off": False}.get(choice, choice)


@dataclass(frozen=True, kw_only=True)
class More(JobOptions):
    """A job with an option that there is not."""

    flavour: Annotated[int | None, Within(1, 9), Option("How it tastes.", default="plain", label="flavour {}")] = None


def test_a_new_option_needs_no_more_than_its_declaration(monkeypatch):
    monkeypatch.setitem(options.PANELS, More, "Job")
    found = []

    @options.takes(More, Layout)
    def taste(given):
        found.append(given)

    own = typer.Typer()
    own.command()(taste)
    click = typer.main.get_command(own)
    (parameter,) = [one for one in click.params if one.name == "flavour"]
    assert (parameter.opts, parameter.help) == (["--flavour"], "How it tastes.  [default: plain]")
    click.main(["--model", "llama3-8b", "--gpus", "8", "--flavour", "3"], standalone_mode=False)
    assert found == [{"model": "llama3-8b", "gpus": 8, "flavour": 3}]
    assert read(More, found[0]).flavour == 3
    with pytest.raises(InputError) as caught:
        read(More, {**found[0], "flavour": 12})
    assert str(caught.value) == "flavour: 12 is out of range\nhint: give 1 to 9"


# -- messages: options by name in the library, by flag at the terminal --


@cache
def texts(path):
    """String constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    ]


LIBRARY = [path for path in sorted(Path(plans.__file__).parents[1].rglob("*.py")) if "cli" not in path.parts]


OF_OTHERS = {"doctor.py": {"--json"}, "smi.py": {"--json", "--format"}}
"""Module -> flags of other programs that it runs, which are called as some of ours."""


def test_no_text_of_the_library_names_a_flag():
    known = set(flags().values())
    for path in LIBRARY:
        if path.parent.name == "launch":  # which writes and reads the flags of frameworks
            continue
        for text in texts(path):
            named = set(re.findall(r"--[a-z][a-z-]*(?![a-z.-])", text)) - OF_OTHERS.get(path.name, set())
            assert not known & named, f"{path.name}: {text}"


def test_options_that_messages_name_are_options_of_a_command():
    known = flags()
    for path in LIBRARY:
        if path.name == "training_logs.py":  # which names the settings of frameworks
            continue
        if path.parent.name in {"planning", "search", "calibration", "collectives"} or path.name == "request.py":
            for text in texts(path):
                for name in re.findall(r"`(\w+)(?:=[^`]*)?`", text):
                    assert name in known, f"{path.name}: {text}"


@pytest.mark.parametrize("name", flags())
def test_every_option_in_a_message_is_shown_as_its_flag(name):
    known = flags()
    assert with_flags(f"give `{name}`, or `{name}=a b`; not `{name}x`", flags()) == (
        f"give {known[name]}, or {known[name]} a b; not `{name}x`"
    )


def test_the_same_refusal_in_python_and_at_the_terminal():
    with pytest.raises(InputError) as caught:
        plans.plan("llama3-8b", 8, objective="cost")
    assert str(caught.value) == "objective: cost needs `gpu_hour_price`\nhint: add `gpu_hour_price=2.5`"
    done = command("plan", "--model", "llama3-8b", "--gpus", 8, "--objective", "cost")
    assert_one_message(done, "error: --objective: cost needs --gpu-hour-price", "add --gpu-hour-price 2.5")


# -- noise --

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**5000)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=9)
)
NOISE = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)
NEAR = st.sampled_from(
    [
        "",
        ",",
        "..",
        "=",
        "1..",
        "1..2..3",
        "8,",
        "none+none",
        "tp",
        "tp=",
        "a=b=c",
        "-1",
        "1e999",
        "nan",
        "0x8",
        "\0",
        "~",
        "/",
    ]
) | st.sampled_from(list(SAMPLES.values()))


@pytest.fixture
def no_search(monkeypatch):
    """Questions are read and jobs are built; nothing is searched."""

    def stop(*_, **__):
        raise NoAnswerError("not searched")

    for name in ("_plan_one", "compare", "frontier"):
        monkeypatch.setattr(plans, name, stop)


def refused(ask):
    try:
        ask()
    except GpuscaleError as error:
        assert "\n" not in error.message
        assert len(str(error)) < 2000
        assert "pydantic" not in str(error)


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NOISE | NEAR)
@example(10**5000)
@example([[]])
def test_any_value_is_taken_or_refused_with_one_message(name, value):
    values = {"model": "llama3-8b", "gpus": 8, name: value}
    if name in declared(Layout):
        refused(lambda: plans.plan("llama3-8b", 8, pins={name: value}))
        refused(lambda: plans.estimate("llama3-8b", 8, {name: value}))
    else:
        refused(lambda: plans.plan(**values))
    if name in declared(JobOptions):
        refused(lambda: plans.estimate(**values))


@pytest.mark.usefixtures("no_search")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["plan", "estimate", "placement"]), st.sampled_from(list(FIELDS)), st.text(max_size=12) | NEAR)
def test_any_text_at_the_terminal_is_taken_or_refused_with_one_message(name, option, value):
    switch = option in {"unfold", "tight"}
    done = command(
        name, "--model", "llama3-8b", "--gpus", "8", flags()[option], *([] if switch else [str(value)]), "--json"
    )
    assert done.code in {0, 1, 2}
    if done.code:
        unanswered = done.code == 1 and name == "plan"  # which JSON says too
        assert not unanswered or json.loads(done.out)["plans"] == []
        assert_one_message(replace(done, out="") if unanswered else done, "", "", done.code)


TABLES = st.fixed_dictionaries({}, optional=dict.fromkeys(("tp", "sp", "dp", "zero", "recompute", "seq"), NOISE | NEAR))


@given(TABLES)
def test_any_table_is_taken_or_refused(values):
    for kind in (JobOptions, Layout):
        refused(lambda kind=kind: read(kind, values, strict=True))
