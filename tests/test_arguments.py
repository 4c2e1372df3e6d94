"""Arguments of the Python functions: NumPy's numbers, paths of either kind, and what is refused by its name."""

import ast
import pydoc
import re
import subprocess
import sys
from dataclasses import replace
from inspect import isfunction, signature
from pathlib import Path

import numpy as np
import pytest
from test_cli_general import WALKED
from update_stub import STUB, stub

import gpuscale
from gpuscale import InputError
from gpuscale.arguments import ALIASES
from gpuscale.cli.main import flags
from gpuscale.request import OPTIONS, PINS, JobOptions, Layout, declared

H100 = gpuscale.load_cluster("h100")
PRESETS = Path(__file__).parents[1] / "presets"


def test_all_names_are_there():
    assert all(getattr(gpuscale, name) is not None for name in gpuscale.__all__)
    assert dir(gpuscale) == gpuscale.__all__ == sorted(gpuscale.__all__)
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        _ = gpuscale.plans


def test_numbers_of_numpy_and_paths_of_either_kind(tmp_path):
    whole = gpuscale.plan("llama3-8b", 8, pins={"tp": 2}, seq=2048, gbs=64, top=2)
    same = gpuscale.plan(
        "llama3-8b", np.int64(8), pins={"tp": np.int32(2)}, seq=np.int32(2048), gbs=np.int64(64), top=np.int64(2)
    )
    assert (same.plans, same.job) == (whole.plans, whole.job)
    assert len(gpuscale.plan("llama3-8b", np.array([8, 16])).compared.variants) == 2
    cluster = PRESETS / "clusters" / "gh200.toml"
    assert gpuscale.load_cluster(cluster) == gpuscale.load_cluster(str(cluster))
    assert gpuscale.plan("llama3-8b", 8, cluster=cluster).cluster == "gh200"
    assert gpuscale.load_gpu(PRESETS / "gpus" / "h100-sxm-80gb.toml").name == "h100-sxm-80gb"
    assert gpuscale.price_collective(H100, "allreduce", np.float64(1e6), gpus=np.int64(16)).gpus == 16
    assert gpuscale.estimate("llama3-8b", np.int64(8), {"tp": np.int8(2)}).plan.tp == 2
    assert gpuscale.place_ranks(np.int64(16), {"tp": np.int64(2)}) == gpuscale.place_ranks(16, {"tp": 2})
    assert gpuscale.roofline(gpuscale.load_model("llama3-8b"), [H100]).clusters[0].cluster == H100.name


@pytest.mark.parametrize(
    ("call", "field", "message"),
    [
        (lambda: gpuscale.plan(3, 8), "model", "3 is not text"),
        (lambda: gpuscale.plan("llama3-8b", 8.0), "gpus", "8.0 is not a whole number"),
        (lambda: gpuscale.plan("llama3-8b", 8, pins="tp=2"), "pins", "'tp=2' is not a mapping"),
        (lambda: gpuscale.estimate("llama3-8b", "8"), "gpus", "'8' is not a whole number"),
        (lambda: gpuscale.estimate("llama3-8b", True), "gpus", "True is not a whole number"),
        (lambda: gpuscale.estimate("llama3-8b", float("inf")), "gpus", "inf is not a whole number"),
        (lambda: gpuscale.estimate_file(3), "path", "3 is not text"),
        (lambda: gpuscale.validate(5), "path", "5 is not text"),
        (lambda: gpuscale.validate("x.csv", by=3), "by", "3 is not text"),
        (lambda: gpuscale.load_cluster(None), "name_or_path", "None is not text"),
        (lambda: gpuscale.load_model(["llama3-8b"]), "name_or_path", "is not text"),
        (lambda: gpuscale.place_ranks(16, 3), "layout", "3 is not a mapping"),
        (lambda: gpuscale.price_collective(3, "allreduce", 1e6), "cluster", "3 is not a ClusterSpec"),
        (lambda: gpuscale.price_collective(H100, 3, 1e6), "operation", "3 is not text"),
        (lambda: gpuscale.price_collective(H100, "allreduce", "1MB"), "bytes", "'1MB' is not a whole number"),
        (lambda: gpuscale.price_collective(H100, "allreduce", 1e6, gpus="16"), "gpus", "'16' is not a whole number"),
        (lambda: gpuscale.import_cluster("topo.xml"), "paths", "'topo.xml' is not a list"),
        (lambda: gpuscale.calibrate(H100, [3]), "paths", "[3] is not a path"),
        (lambda: gpuscale.roofline(3, [H100]), "model", "3 is not a ModelSpec"),
        (lambda: gpuscale.roofline("llama3-8b", [H100, 3]), "clusters", "is not a ClusterSpec"),
        (lambda: gpuscale.bench(runs="3"), "runs", "'3' is not a whole number"),
    ],
)
def test_a_wrong_type_is_named(call, field, message):
    with pytest.raises(InputError) as caught:
        call()
    assert (caught.value.field, message in caught.value.message) == (field, True), caught.value


# -- names, paths and objects of presets --


def test_a_preset_goes_by_its_name_its_file_or_itself(tmp_path):
    model, path = gpuscale.load_model("llama3-8b"), PRESETS / "clusters" / "dgx-h100-superpod.toml"
    for cluster in ("h100", path, str(path), H100):
        assert gpuscale.price_collective(cluster, "allreduce", 1e6) == gpuscale.price_collective(H100, "allreduce", 1e6)
        assert gpuscale.load_cluster(cluster) == H100
        assert gpuscale.estimate(model, 8, cluster=cluster).plan == gpuscale.estimate("llama3-8b", 8).plan
        assert gpuscale.place_ranks(16, {"tp": 2}, cluster=cluster).cluster == H100
        assert gpuscale.roofline(model, [cluster]) == gpuscale.roofline("llama3-8b", ["h100"])
    found = gpuscale.plan(model, 8, cluster=[H100, "b200-hgx"], top=2)
    assert len(found.compared.variants) == 2
    gpu = gpuscale.load_gpu("h100")
    topology = [Path(__file__).parent / "data" / "topo_matrix.txt"]
    assert gpuscale.import_cluster(topology, gpu=gpu).text == gpuscale.import_cluster(topology, gpu=gpu.name).text


def test_an_object_is_named_as_it_was_loaded(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((PRESETS / "clusters" / "gh200.toml").read_text())
    cluster = gpuscale.load_cluster(path)
    assert gpuscale.estimate("llama3-8b", 8, cluster=cluster).job["cluster"] == str(path)
    assert gpuscale.estimate(gpuscale.load_model("llama8b"), 8).job["model"] == "llama3.1-8b"


def test_an_object_that_no_name_means_is_refused():
    other = replace(H100, name="mine")
    for call, field in (
        (lambda: gpuscale.plan("llama3-8b", 8, cluster=other), "cluster"),
        (lambda: gpuscale.plan("llama3-8b", 8, cluster=replace(H100, sharp=True)), "cluster"),
        (lambda: gpuscale.estimate(replace(gpuscale.load_model("llama3-8b"), max_sequence=99), 8), "model"),
    ):
        with pytest.raises(InputError, match="go by names") as caught:
            call()
        assert caught.value.field == field
    assert gpuscale.price_collective(other, "allreduce", 1e6).cluster == "mine", "which is of no job"


# -- options by name --

FUNCTIONS = {name: one for name in gpuscale.__all__ if isfunction(one := getattr(gpuscale, name))}
COMMANDS = {
    "plan": "plan", "estimate": "estimate", "train_time": "train-time", "batch_size": "size batch", "size": "size",
    "fleet": "fleet", "goodput": "reliability", "stragglers": "reliability stragglers",
    "explain_plan": "explain", "check": "check", "place_ranks": "placement", "calibrate_run": "calibrate run",
}  # fmt: skip
"""Function of options -> its command."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_name_is_refused_everywhere(name):
    known = signature(FUNCTIONS[name]).parameters
    wrong = f"{list(known)[-1]}x" if known else "x"
    with pytest.raises(InputError, match=f"unknown option '{wrong}'") as caught:
        FUNCTIONS[name](**{wrong: 1})
    assert not known or list(known)[-1] in caught.value.hint
    assert f"help(gpuscale.{name})" in caught.value.hint


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_says_every_option_with_its_default(name):
    said = signature(FUNCTIONS[name])
    assert all(one.kind is not one.VAR_KEYWORD for one in said.parameters.values())
    for one in (said.return_annotation, *(one.annotation for one in said.parameters.values())):
        assert re.fullmatch(r"[\w |,.\[\]()]+", repr(one)), "a type is shown as one"


def test_help_says_every_option_of_a_plan():
    text = pydoc.plain(pydoc.render_doc(gpuscale.plan))
    assert "cluster: str | Path | ClusterSpec | Sequence[str | Path | ClusterSpec] = 'dgx-h100-superpod'" in text
    assert all(f"        {name}: {said.help[:20]}" in text for name, said in OPTIONS.items() if name in WALKED_PLAN)


WALKED_PLAN = {one.name for one in WALKED["plan"].params} & set(OPTIONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_takes_the_options_of_its_command_and_no_others(name):
    known = set(signature(FUNCTIONS[name]).parameters) & set(OPTIONS)
    of_plan = {"goodput": {"days", "rate"}, "stragglers": {"restart_time"}}.get(name, set())
    wanted = {one.name for one in WALKED[COMMANDS[name]].params} & set(OPTIONS)
    if name in {"goodput", "stragglers"}:  # of a plan that is read already; both have names of their own for the rest
        wanted -= set(declared(JobOptions)) | set(declared(Layout)) | of_plan
        known -= of_plan
    if name == "place_ranks":  # whose command is without what `best` alone reads
        wanted |= known
    assert known == wanted


def test_degrees_are_options_like_others():
    pins = {"tp": 2, "pp": "1,2", "micro_batch_size": 1}
    job = {"model": "llama3-8b", "gpus": 16, "top": 3}
    assert gpuscale.plan(**job, **pins).plans == gpuscale.plan(**job, pins=pins).plans
    assert gpuscale.plan(**job, tp=[1, 2]).plans == gpuscale.plan(**job, tp="1,2").plans
    job, layout = {"model": "llama3-8b", "gpus": 16, "framework": "generic"}, {"tp": 2, "pp": 2, "schedule": "gpipe"}
    found = gpuscale.estimate(**job, **layout)
    assert found == gpuscale.estimate(**job, layout=layout)
    assert gpuscale.read_subject(**job, **layout).estimate == gpuscale.read_subject(None, job, layout).estimate
    assert gpuscale.place_ranks(16, tp=2, pp=2) == gpuscale.place_ranks(16, {"tp": 2, "pp": 2})
    long = gpuscale.train_time(**job, tokens="1T", as_given=True, **layout)
    assert long == gpuscale.train_time(**job, tokens="1T", as_given=True, layout=layout)
    assert long.phases[0].step_time_s == found.plan.step_time_s, "with its schedule"
    for call in (
        lambda: gpuscale.plan("llama3-8b", 16, tp=2, pins={"tp": 2}),
        lambda: gpuscale.estimate("llama3-8b", 16, {"tp": 2}, tp=2),
        lambda: gpuscale.train_time("llama3-8b", 16, "1T", train_tokens="1T"),
    ):
        with pytest.raises(InputError, match="is given twice"):
            call()


@pytest.mark.parametrize("option", sorted(WALKED_PLAN))
def test_the_name_of_a_flag_leads_to_the_option(option):
    flag = flags()[option].removeprefix("--").replace("-", "_")
    if flag != option:
        with pytest.raises(InputError) as caught:
            gpuscale.plan("llama3-8b", 8, **{flag: 1})
        assert option in caught.value.hint
    if option in PINS and flag != option:
        with pytest.raises(InputError, match=f"it is `{option}` here"):
            gpuscale.plan("llama3-8b", 8, pins={flag: 1})


@pytest.mark.parametrize("wrong", ["mbs", "global_batch_size", "sequence"])
def test_names_from_results_and_frameworks_lead_to_the_option(wrong):
    with pytest.raises(InputError, match=r"it is `(micro_batch_size|gbs|seq)` here"):
        gpuscale.estimate("llama3-8b", 8, **{wrong: 1})


def test_mappings_are_taken_where_the_command_line_takes_pairs():
    said = {"train_tokens": "1T", "top": 1}
    paid = gpuscale.plan("llama3-8b", 8, gpu_hour_price={"dgx-h100-superpod": 2.5}, rate={"pue": 1.3}, **said)
    same = gpuscale.plan("llama3-8b", 8, gpu_hour_price="dgx-h100-superpod=2.5", rate="pue=1.3", **said)
    assert (paid.plans, paid.compared) == (same.plans, same.compared)
    why = gpuscale.plan("llama3-8b", 8, why={"tp": 2}, top=1).why
    assert why == gpuscale.plan("llama3-8b", 8, why="tp=2", top=1).why


def test_what_says_nothing_is_refused():
    job = {"model": "llama3-8b", "gpus": 8}
    for call in (
        lambda: gpuscale.read_subject(**job, variables={"NODES": "2"}),
        lambda: gpuscale.explain_plan(**job, variables={"NODES": "2"}),
        lambda: gpuscale.check(**job, variables={"NODES": "2"}),
        lambda: gpuscale.train_time(**job, tokens="1T", variables={"NODES": "2"}),
    ):
        with pytest.raises(InputError, match="has no effect without launch files"):
            call()
    for function in (gpuscale.batch_size, gpuscale.size, gpuscale.train_time):
        with pytest.raises(InputError, match="unknown option 'top'"):
            function(top=3)
    for function in (gpuscale.batch_size, gpuscale.size):
        with pytest.raises(InputError, match="unknown option 'risk'"):
            function(risk=0.9)


# -- what type checkers and editors see --


def test_the_stub_is_as_the_declarations_have_it():
    assert STUB.read_text(encoding="utf-8") == stub(), "python tests/update_stub.py"


def test_the_stub_says_what_functions_say():
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    made = {one.name: one.args for one in tree.body if isinstance(one, ast.FunctionDef)}
    assert {"plan", "estimate", "train_time"} <= set(made)
    for name, args in made.items():
        assert [one.arg for one in (*args.args, *args.kwonlyargs)] == list(signature(FUNCTIONS[name]).parameters)
    names = {alias.asname for one in tree.body if isinstance(one, ast.ImportFrom) for alias in one.names}
    assert (names | set(made)) - {None} == {*gpuscale.__all__, "__version__"}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, gpuscale; print(*{'numpy', 'pydantic', 'rich', 'typer'}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# -- files --


def test_no_files_at_all():
    for call in (gpuscale.import_cluster, lambda none: gpuscale.calibrate(H100, none)):
        with pytest.raises(InputError, match="give 1 to"):
            call([])


def test_files_that_are_not_there(tmp_path):
    for kind in (str, Path):
        missing = kind(tmp_path / "x.xml")
        for call, arguments in (
            (gpuscale.import_cluster, ([missing],)),
            (gpuscale.calibrate, (H100, [missing])),
            (gpuscale.validate, (missing,)),
            (gpuscale.load_model, (missing,)),
            (gpuscale.estimate_file, (missing,)),
        ):
            with pytest.raises(InputError, match=r"[Nn]o such file"):
                call(*arguments)
        with pytest.raises(InputError, match=": cannot be read: "):
            gpuscale.place_ranks(16, hosts=missing)


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_what_other_names_mean_is_an_option(name):
    assert ALIASES[name] in OPTIONS
    assert name not in OPTIONS


@pytest.mark.parametrize(
    ("name", "option"),
    [("tensor_parallel", "tp"), ("pipeline_model_parallel_size", "pp"), ("context_parallel_degree", "cp"),
     ("expert_parallelism", "ep"), ("data_parallel_size", "dp"), ("tp_size", "tp"), ("zero_stage", "zero"),
     ("world_size", "gpus"), ("seq_length", "seq")],
)  # fmt: skip
def test_names_of_frameworks_are_known(name, option):
    with pytest.raises(InputError) as caught:
        gpuscale.plan("llama3-8b", 8, **{name: 2})
    assert caught.value.hint == f"it is `{option}` here"
