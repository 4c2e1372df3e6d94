"""A file that is given where another kind is read: what it is, and what reads it; every kind in every place."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.calibration.gpu_protocol import read_protocol
from gpuscale.calibration.logs import read_log
from gpuscale.calibration.site_file import read_site
from gpuscale.calibration.traces import read_run_log
from gpuscale.errors import InputError
from gpuscale.files import KINDS, kind_of
from gpuscale.importers.assemble import import_cluster
from gpuscale.launch.read import read_launch
from gpuscale.planning.planfile import read_plan_file
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.presets.models import load_model
from gpuscale.studies.query import Results
from gpuscale.studies.study import read_study
from gpuscale.training.failures import load_study
from gpuscale.training.phases import is_training
from gpuscale.trials import read_study as read_trial_study
from gpuscale.validation.measurements import read_measurements

DATA = Path(__file__).parent / "data"
PRESETS = Path(__file__).parents[1] / "presets"
SMALL = ("--model", "llama3-8b", "--gpus", "16")
FILES = {
    "training": DATA / "example_phases.toml", "study": DATA / "example_study.toml",
    "trials": DATA / "example_trials.toml",
    "results": DATA / "studies" / "results.csv", "cluster": DATA / "fleet.toml",
    "gpu": PRESETS / "gpus" / "h100-sxm-80gb.toml", "model": PRESETS / "models" / "llama3-8b.toml",
    "framework": PRESETS / "frameworks" / "generic.toml", "rates": PRESETS / "rates" / "power.toml",
    "calibration": DATA / "example_site.toml", "failures": PRESETS / "failures" / "llama3.toml",
    "topology": DATA / "topo_matrix.txt", "collectives": DATA / "example_all_reduce.log",
    "run": DATA / "example_training.log", "trace": DATA / "example_trace.json",
    "protocol": DATA / "made_gpu_protocol.jsonl", "measured": DATA / "compared_collectives.csv",
}  # fmt: skip
"""Kind -> an example; the others are made below."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    found = {kind: Path(shutil.copy(path, folder)) for kind, path in FILES.items()}
    made = {name: folder / name for name in ("plan.toml", "answer.json", "config.json", "run.sh")}
    gpuscale("plan", *SMALL, "-o", made["plan.toml"])
    made["answer.json"].write_text(gpuscale("plan", *SMALL, "--json").out)
    made["config.json"].write_text(json.dumps({"model_type": "bert", "hidden_size": 64}))
    made["run.sh"].write_text("#!/bin/bash\ntorchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4\n")
    found |= dict(zip(("plan", "answer", "config", "launch"), made.values(), strict=True))
    assert set(found) == set(KINDS)
    return found


READERS = {
    "plan": (read_plan_file, "plan"),
    "training": (is_training, "training plan"),
    "study": (read_study, "study"),
    "trials": (read_trial_study, "trials"),
    "results": (Results, "results"),
    "cluster": (lambda path: load_cluster(str(path)), "cluster"),
    "gpu": (lambda path: load_gpu(str(path)), "gpu"),
    "model": (lambda path: load_model(str(path)), "model config"),
    "framework": (lambda path: load_framework(str(path)), "framework"),
    "calibration": (read_site, "calibration"),
    "failures": (lambda path: load_study(str(path)), "failures"),
    "launch": (lambda path: read_launch([path]), "launch run"),
    "topology": (lambda path: import_cluster([path], gpu="h100-sxm-80gb"), "topology"),
    "collectives": (read_log, "collectives protocol"),
    "run": (read_run_log, "run trace"),
    "protocol": (read_protocol, "protocol"),
    "measured": (read_measurements, "measured"),
}
"""Place -> its reader, and the kinds that it reads."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", READERS)
def test_every_kind_in_every_place(place, kind, files):
    path, (reader, own) = files[kind], READERS[place]
    if kind in own.split():
        with contextlib.suppress(InputError):  # an example may lack what its reader needs
            reader(path)
        return
    if place == "training" and path.suffix == ".toml":
        assert is_training(path) is False  # the reader of plans says what it is
        return
    with pytest.raises(InputError) as caught:
        reader(path)
    assert caught.value.message.startswith(f"this is {KINDS[kind].what}, not ")
    assert caught.value.place == str(path)
    assert not caught.value.hint or "FILE" not in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_told_apart(kind, files):
    assert kind_of(files[kind]) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('title = "x"\n[[pools]]\nname = "a"\n', "cluster"),
        ('title = "x"\n[[levels]]\nname = "node"\n', "cluster"),
        ('<system version="1">\n  <cpu numaid="0"/>\n</system>\n', "topology"),
        ('<?xml version="1.0"?>\n<system/>\n', "topology"),
        ('{"architectures": ["X"]}', "config"),
        ("[[questions]]\nmodel = 1\n", "study"),
        ("trainer:\n  devices: 8\n", "launch"),
        ("#SBATCH --nodes=2\n", "launch"),
    ],
)
def test_a_kind_is_told_by_each_of_its_beginnings(text, kind, tmp_path):
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    assert kind_of(path) == kind


@pytest.mark.parametrize("folder", ["clusters", "gpus", "models", "frameworks", "failures", "rates"])
def test_every_preset_is_of_its_kind(folder):
    own = folder if folder in KINDS else folder.removesuffix("s")
    assert {kind_of(path) for path in (PRESETS / folder).glob("*.toml")} == {own}


@pytest.mark.parametrize(
    ("arguments", "kind", "message", "hint"),
    [
        (("estimate", "FILE"), "study", "this is a study, not a plan file", "`gpuscale sweep FILE -o results.parquet`"),
        (("estimate", *SMALL, "--cluster", "FILE"), "plan", "not a cluster file", "`gpuscale estimate FILE` reads it"),
        (("plan", *SMALL, "--cluster", "FILE"), "config", "a model's config.json, not", "give it as --model FILE"),
        (("plan", "--gpus", 8, "--model", "FILE"), "cluster", "not a model file", "give it as --cluster FILE"),
        (("plan", "--gpus", 8, "--model", "FILE"), "topology", "not a model file", "calibrate topology FILE`"),
        (("estimate", "--from", "FILE"), "plan", "a plan file, not a launch file", "`gpuscale estimate FILE`"),
        (("plan", "FILE"), "plan", "is an argument too many", "`gpuscale estimate FILE` reads it"),
        (("plan", "FILE"), "results", "is an argument too many", "`gpuscale sweep show FILE` shows them"),
        (("estimate", "FILE"), "launch", "a launch file, not a plan file", "give it as --from FILE"),
        (("check", *SMALL, "--baseline", "FILE"), "answer", "not a plan file", "`gpuscale plan -o plan.toml`"),
        (("train-time", "FILE", "--tokens", "1T"), "study", "this is a study", "`gpuscale sweep"),
        (("goodput", *SMALL, "--failure-rate", "FILE"), "plan", "not a study of failures", "`gpuscale estimate"),
        (("sweep", "FILE", "-o", "x.csv"), "plan", "this is a plan file, not a study", "`gpuscale estimate"),
        (("compare", "FILE", "FILE"), "cluster", "a cluster file, not a plan file", "give it as --cluster FILE"),
        (("validate", "FILE"), "plan", "a plan file, not a table of measurements", "`gpuscale estimate FILE`"),
        (("validate", "FILE"), "answer", "not a table of measurements", "`gpuscale plan -o plan.toml`"),
        (("calibrate", "gpu", "FILE"), "plan", "is an argument too many", "`gpuscale estimate FILE`"),
        (("show", "skill", "FILE"), "gpu", "is an argument too many", "give it as --set gpu=FILE"),
    ],
)  # fmt: skip
def test_commands_say_what_a_file_is_and_what_reads_it(arguments, kind, message, hint, files):
    path = files[kind]
    done = gpuscale(*(path if one == "FILE" else one for one in arguments))
    assert_one_message(done, message, hint.replace("FILE", str(path)))


def test_a_name_that_no_shell_takes_as_it_is_stays_out_of_the_hint(files, tmp_path):
    odd = Path(shutil.copy(files["study"], tmp_path / "my $(study) `x`.toml"))
    done = gpuscale("estimate", odd)
    assert_one_message(done, "this is a study", "`gpuscale sweep FILE -o results.parquet`")


@given(st.binary(max_size=300))
def test_anything_has_a_kind_or_none(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(content)
    assert kind_of(path) in {None, *KINDS}


def test_what_is_no_file_has_no_kind(tmp_path):
    assert kind_of(tmp_path) is kind_of(tmp_path / "none") is kind_of(Path("a" * 5000)) is kind_of(Path("\0")) is None
