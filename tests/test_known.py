"""What the package knows of other software (`presets/known`): every name in it means something here."""

import re

import pytest

from gpuscale.choices import ATTENTIONS
from gpuscale.launch.olmo_core import _shape
from gpuscale.presets.files import known_table, preset_folders, preset_names
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.request import OPTIMIZERS

MACHINES, DEVICES, WORDS = (known_table(name) for name in ("machines", "devices", "words"))


def test_machines_are_clusters_that_there_are():
    named = {cluster for _, _, cluster in MACHINES["fabric"]}
    named |= {one for kind in ("gpu", "node", "usual", "instances") for one in MACHINES[kind].values()}
    assert {load_cluster(one).name for one in named} == named


def test_devices_are_presets_that_there_are():
    named = {preset for _, preset in DEVICES["pci"].values()}
    named |= {one for kind in ("products", "compute_capability", "gfx", "short") for one in DEVICES[kind].values()}
    assert named - {""} <= set(preset_names("gpus"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("attention", ATTENTIONS), ("attention_switches", ATTENTIONS), ("optimizer", OPTIMIZERS)],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_words_mean_options_and_one_each(kind, options):
    words = [word for own in WORDS[kind].values() for word in own]
    assert set(WORDS[kind]) <= set(options)
    assert sorted(words) == sorted(set(words))
    assert words == [word.lower().replace("-", "_") for word in words]


def test_shapes_are_models():
    for name, shape in known_table("shapes")["olmo-core"].items():
        line = ",".join(f"{key}={value}" for key, value in shape.items())
        assert load_model(f"{line},vocab=50304").layers == shape["layers"], name


def test_a_name_of_the_third_generation_has_its_own_shape_or_that_of_the_second():
    assert _shape("olmo3_600M") != _shape("olmo2_600M")
    assert _shape("olmo3_7B") == _shape("olmo2_7B")
    assert _shape("olmo3_2B") is None


@pytest.mark.parametrize("table", [known_table("tokenizers"), MACHINES["instances"], DEVICES["products"]])
def test_parts_of_names_are_patterns(table):
    assert all(re.compile(part) for part in table)


def test_a_folder_of_the_user_changes_nothing_of_it(tmp_path, monkeypatch):
    (tmp_path / "known").mkdir()
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    assert len(preset_folders("known")) == 2
    known_table.cache_clear()
    assert known_table("words") == WORDS
