"""Models by their ids on the Hugging Face hub: found in its cache on this machine, and nowhere else."""

import json
import os
import socket

import pytest
from command import assert_one_message, gpuscale
from fuzz_inputs import CONFIG

from gpuscale.presets.hub import cache_folder, cached_models, is_id, model_folder
from gpuscale.presets.models import load_model

OWN = "my-org/tiny_1.5B"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network is asked"))
    return tmp_path / "hub"


def add(model_id, commit, layers, *, main=False, at=0):
    """Put a config into the cache as the hub's library does: a link to a blob, and the commit of the branch."""
    folder = model_folder(model_id)
    blob, snapshot = folder / "blobs" / f"{commit}{layers}", folder / "snapshots" / commit
    for parent in (blob.parent, snapshot, folder / "refs"):
        parent.mkdir(parents=True, exist_ok=True)
    blob.write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    (snapshot / "config.json").symlink_to(os.path.relpath(blob, snapshot))
    os.utime(snapshot, ns=(at, at))
    if main:
        (folder / "refs" / "main").write_text(commit)
    return snapshot


def test_a_cached_model_is_planned_by_its_id(cache):
    add(OWN, "a" * 40, 20, main=True)
    model = load_model(OWN)
    assert (model.name, model.layers) == (OWN, 20)
    assert model.source.endswith(f"in the Hugging Face cache at commit {'a' * 12}")
    done = gpuscale("plan", "--model", OWN, "--gpus", "8", "--tp", "8", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["model"] == OWN
    shown = gpuscale("models", "show", OWN)
    assert (shown.code, shown.err) == (0, "")
    assert shown.lines[0].startswith(f"{OWN}: ")


def test_a_saved_plan_finds_its_model_again(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add(OWN, "a" * 40, 20, main=True)
    assert gpuscale("plan", "--model", OWN, "--gpus", "8", "--tp", "8", "-o", "plan.toml").code == 0
    assert gpuscale("estimate", "plan.toml").lines[0].startswith(f"{OWN} on 8 GPUs")


def test_the_name_of_a_preset_goes_before_the_cache(cache):
    add("meta-llama/Meta-Llama-3-70B", "a" * 40, 20, main=True)
    assert load_model("meta-llama/Meta-Llama-3-70B").layers == 80


def test_of_several_snapshots_main_counts_and_without_it_the_newest(cache):
    add(OWN, "a" * 40, 10, at=3)
    add(OWN, "b" * 40, 20, at=1, main=True)
    add(OWN, "c" * 40, 30, at=2)
    assert load_model(OWN).layers == 20
    (model_folder(OWN) / "refs" / "main").unlink()
    assert load_model(OWN).layers == 10
    os.utime(model_folder(OWN) / "snapshots" / ("c" * 40), ns=(3, 3))
    assert load_model(OWN).layers == 30  # equally old: the last by name


@pytest.mark.parametrize("main", ["../../../elsewhere", "d" * 40, "x" * 5000, "\x00", "", "\xff" * 9])
def test_a_branch_that_leads_nowhere_is_passed_over(cache, main, tmp_path):
    add(OWN, "a" * 40, 10)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 99}))
    (model_folder(OWN) / "refs" / "main").write_bytes(main.encode("latin-1"))
    assert load_model(OWN).layers == 10


def test_a_snapshot_without_a_config_is_none(cache):
    add(OWN, "a" * 40, 10, main=True)
    weights = add(OWN, "b" * 40, 20, at=5)
    (weights / "config.json").unlink()
    (weights / "config.json").symlink_to("../../blobs/lost")
    (model_folder(OWN) / "snapshots" / "loose").symlink_to("nowhere")
    (model_folder(OWN) / "refs" / "main").write_text("b" * 40)
    assert load_model(OWN).layers == 10


def test_a_path_into_the_cache_is_called_by_its_id(cache):
    snapshot = add(OWN, "a" * 40, 10)
    assert {load_model(str(path)).name for path in (snapshot, snapshot / "config.json")} == {OWN}


def test_an_id_that_is_nowhere_says_where_it_was_looked_for(cache):
    done = gpuscale("plan", "--model", OWN, "--gpus", "8")
    assert_one_message(done, f"unknown model '{OWN}': no preset has that name", f"`hf download {OWN} config.json`")
    assert str(cache / "models--my-org--tiny_1.5B") in done.err
    (cache / "models--my-org--tiny_1.5B" / "snapshots").mkdir(parents=True)
    assert "no config.json below" in gpuscale("models", "show", OWN).err
    assert "did you mean qwen/qwen3-8b" in gpuscale("models", "show", "Qwen/Qwen3-8C").err


def test_what_a_cached_config_has_wrong_is_said_with_its_place(cache):
    snapshot = add(OWN, "a" * 40, 10)
    (model_folder(OWN) / "blobs" / f"{'a' * 40}10").write_text("[")
    assert_one_message(gpuscale("models", "show", OWN), f"{snapshot}/config.json:1: not valid JSON", "")


@pytest.mark.parametrize("text", ["llama3-8b", "a/b/c", "../b", "a/..", "a--b/c", "a/b\n", "/b", "a/", "a" * 97 + "/b"])
def test_what_is_no_id_is_looked_for_nowhere(text):
    assert not is_id(text)


def test_the_cache_lists_its_models(cache):
    assert cached_models() == []
    add(OWN, "a" * 40, 10)
    add("another/one", "b" * 40, 10)
    (cache / "models--empty--one").mkdir()
    (cache / "datasets--some--data").mkdir()
    (cache / "version.txt").touch()
    assert cached_models() == ["another/one", OWN]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": ""}, "/home/me/.cache/huggingface/hub"),
    ],
)
def test_the_folder_of_the_cache_is_where_the_hub_has_it(environment, folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_folder(environment)) == folder
