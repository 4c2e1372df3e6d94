"""What users call presets: spelled otherwise, shortened, ambiguous."""

import json
from functools import cache

import pytest
from command import assert_one_message, gpuscale
from jobs import built

from gpuscale.errors import InputError
from gpuscale.presets import files
from gpuscale.presets.files import KINDS, named_preset, preset_aliases, preset_names, settled
from gpuscale.presets.frameworks import framework_file
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.presets.models import load_model


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_presets_are_spelled_alike(kind):
    found = {files.spelled(stem): stem for stem in preset_names(kind)}
    assert len(found) == len(preset_names(kind))
    for alias, path in preset_aliases(kind).items():
        for spelling in {alias, alias.rpartition("/")[2]}:
            assert found.setdefault(files.spelled(spelling), path.stem) == path.stem


@pytest.mark.parametrize("kind", KINDS)
def test_exact_names_and_aliases_are_taken_without_a_note(kind, monkeypatch):
    monkeypatch.setattr(files, "preset_aliases", cache(preset_aliases))
    for stem in preset_names(kind):
        for spelling in (stem, stem.upper(), stem.replace("-", " ")):
            assert (named_preset(kind, spelling).stem, settled(kind, spelling)[1]) == (stem, "")
    for alias, path in preset_aliases(kind).items():
        assert named_preset(kind, alias) == path


@pytest.mark.parametrize(
    ("kind", "name", "stem"),
    [
        ("models", "llama3 70b", "llama3-70b"), ("models", "Llama-3-70B-Instruct", "llama3-70b"),
        ("models", "deepseekv3", "deepseek-v3"), ("models", "gpt3", "gpt3-175b"), ("models", "GPT-3", "gpt3-175b"),
        ("models", "llama 3.3 70b", "llama3.1-70b"), ("models", "llama7b", "llama-7b"),
        ("gpus", "h100", "h100-sxm-80gb"), ("gpus", "NVIDIA H100", "h100-sxm-80gb"), ("gpus", "B200 SXM", "b200"),
        ("clusters", "h100", "dgx-h100-superpod"), ("clusters", "AWS P5", "aws-p5"),
        ("frameworks", "Megatron LM", "megatron-lm"), ("frameworks", "torch titan", "torchtitan"),
    ],
)  # fmt: skip
def test_names_spelled_otherwise(kind, name, stem):
    assert (named_preset(kind, name).stem, settled(kind, name)) == (stem, (stem, ""))


@pytest.mark.parametrize(
    ("kind", "name", "stem", "others"),
    [
        ("models", "llama70b", "llama3.1-70b", "; also: llama3-70b, llama2-70b"),
        ("models", "llama 8b", "llama3.1-8b", "; also: llama3-8b"),
        ("models", "gemma-27b", "gemma3-27b", "; also: gemma2-27b"), ("models", "llama405b", "llama3.1-405b", ""),
        ("models", "qwen3-235b", "qwen3-235b-a22b", "; also: qwen3-235b-a22b-2507, qwen3-vl-235b-a22b"),
        ("models", "nemotron 340b", "nemotron-4-340b", ""),
        ("gpus", "h100-sxm5", "h100-sxm-80gb", ""), ("clusters", "rtx pro", "box-rtx-pro-6000", ""),
    ],
)  # fmt: skip
def test_short_names_are_taken_with_a_note(kind, name, stem, others):
    assert named_preset(kind, name).stem == stem
    assert settled(kind, name) == (stem, f"{name} is taken as {stem}{others}")


@pytest.mark.parametrize(
    ("kind", "name", "some"),
    [
        ("models", "mixtral", ("mixtral-8x22b", "mixtral-8x7b")), ("models", "llama3", ("llama3-8b", "llama3-70b")),
        ("models", "gpt 20b", ("gpt-neox-20b", "gpt-oss-20b", "gpt3-20b")), ("models", "phi3", ("phi3-mini",)),
        ("models", "deepseek", ("deepseek-v2", "deepseek-v3")), ("models", "gemma2", ("gemma2-27b", "gemma2-9b")),
        ("clusters", "dgx v100", ("dgx1-v100", "dgx2-v100")), ("clusters", "azure-ndv", ("azure-ndv4", "azure-ndv5")),
    ],
)  # fmt: skip
def test_between_sizes_and_machines_nothing_is_guessed(kind, name, some):
    with pytest.raises(InputError, match="may be any") as caught:
        named_preset(kind, name)
    for one in some:
        assert one in (caught.value.hint or "")
    assert settled(kind, name) == (name, "")


@pytest.mark.parametrize("name", ["70b", "qwen-17b", "qwen34b", "llama31 70b", "base", "-", " ", "h", "llama-" * 30])
def test_no_number_is_cut_in_two_and_no_size_stands_alone(name):
    with pytest.raises(InputError, match="unknown model"):
        named_preset("models", name)


def test_of_what_a_user_names_the_own_preset_goes_first(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama70b.toml").write_text(named_preset("models", "llama2-70b").read_text())
    assert settled("models", "llama70b")[0] == "llama3.1-70b"
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    assert settled("models", "llama70b") == ("llama70b", "")


def test_a_folder_is_a_model_only_with_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama70b").mkdir()
    assert settled("models", "llama70b")[0] == "llama3.1-70b"
    (tmp_path / "llama70b" / "config.json").write_text("{}")
    assert settled("models", "llama70b") == ("llama70b", "")


def test_answers_say_what_a_short_name_is_taken_as():
    note = "llama70b is taken as llama3.1-70b; also: llama3-70b, llama2-70b"
    job = built("llama70b", 64, cluster="Azure NDv5")
    assert job.notes == (note,)
    assert (job.request["model"], job.request["cluster"]) == ("llama3.1-70b", "Azure NDv5")
    done = gpuscale("estimate", "-m", "llama70b", "-n", 64, "--tp", 8, "--pp", 2, "--json")
    assert json.loads(done.out)["notes"] == [note]
    done = gpuscale("placement", "-n", 8, "--tp", 8, "-c", "rtx pro", "--json")
    assert json.loads(done.out)["notes"] == ["rtx pro is taken as box-rtx-pro-6000"]
    for arguments in (("models", "show", "llama70b"), ("roofline", "-m", "llama70b")):
        done = gpuscale(*arguments)
        assert (done.code, done.err) == (0, f"note: {note}\n")
    assert_one_message(gpuscale("plan", "-m", "mixtral", "-n", 8), "'mixtral' may be any model", "mixtral-8x7b")


# -- files to start from --


@pytest.mark.parametrize("kind", ["models", "hardware", "clusters"])
def test_the_file_of_a_preset_given_back_is_the_same_thing(kind, tmp_path):
    folder = "gpus" if kind == "hardware" else kind
    for name in preset_names(folder):
        done = gpuscale(kind, "show", name, "--toml")
        assert (done.code, done.err) == (0, "")
        path = tmp_path / f"{name}.toml"
        path.write_text(done.out)
        load = {"models": load_model, "gpus": load_gpu, "clusters": load_cluster}[folder]
        assert load(str(path)) == load(name)


@pytest.mark.parametrize("name", preset_names("frameworks"))
def test_the_file_of_a_framework_in_a_users_folder_is_the_same_profile(name, tmp_path, monkeypatch):
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks" / "mine.toml").write_text(gpuscale("frameworks", "show", name, "--toml").out)
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    own, theirs = ({**framework_file(one), "name": "", "generations": ()} for one in ("mine", name))
    assert own == theirs


def test_a_file_is_printed_as_it_is():
    assert_one_message(gpuscale("clusters", "show", "h100", "--toml", "-n", 8), "--toml prints the file", "one of them")
    assert_one_message(gpuscale("hardware", "show", "h100", "--toml", "--json"), "without --json", "one of them")
