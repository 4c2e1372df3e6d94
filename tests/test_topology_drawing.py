"""`gpuscale show clusters --draw`: levels, switches, GPUs, cards and rails of every cluster."""

import re

import pytest
from command import assert_one_message, gpuscale

from gpuscale.presets.files import preset_names
from gpuscale.presets.hardware import load_cluster
from gpuscale.specs.cluster import INSIDE


def drawn(name, *more, columns=100):
    done = gpuscale("clusters", "show", name, "--draw", *more, columns=columns)
    assert (done.code, done.err) == (0, "")
    return done.lines


@pytest.mark.parametrize("name", preset_names("clusters"))
def test_every_cluster_has_its_levels_units_and_cards(name):
    cluster, lines = load_cluster(name), drawn(name)
    assert max(map(len, lines)) <= 100
    for index, level in enumerate(cluster.levels):
        line = next(line for line in lines if re.match(rf"{level.name} +\[ 1 \]", line))
        assert f"{level.gpus:,} GPU" in line
        if index + 1 < len(cluster.levels):
            units = cluster.children(index + 1)
            assert line.count("[ ") == min(units, 4)
            assert f"[ {units} ]" in line
            assert ("..." in line) == (units > 4)
        if not level.torus_shape:
            rate = f"{level.fabric}, {level.egress_bytes_per_s / 1e9:.4g} GB/s per GPU"
            assert rate in " ".join(" ".join(line.split()) for line in lines)
    if not cluster.levels[0].torus_shape:
        gpus = min(cluster.host_gpus, cluster.levels[0].gpus)
        (row,) = [line for line in lines if line.startswith("GPU ")]
        assert row.split()[1 : gpus + 1] == [str(number) for number in range(gpus)]
    networks = [level for level in cluster.levels if level.fabric not in INSIDE]
    cards = [line for line in lines if re.match(r"(card|rail) ", line)]
    assert len(cards) == bool(networks and not cluster.levels[0].torus_shape)
    for line in cards:
        assert line.startswith("rail" if networks[0].rails != "none" else "card")


def test_the_superpod_as_a_picture():
    lines = drawn("dgx-h100-superpod")
    assert lines[2].split("  1,024 GPUs")[0].rstrip() == "spine  [ 1 ]"
    at = lines.index("         +----+----+----+----+----+----+----+   nvlink, 450 GB/s per GPU, 3.6 TB/s in total")
    assert lines[at - 1].startswith("node   [ 1 ]      [ 2 ]      [ 3 ] ...  [ 32 ]")
    assert lines[at + 1].startswith("GPU      0    1    2    3    4    5    6    7   NVIDIA H100")
    assert lines[at + 3].startswith("rail     0    1    2    3    4    5    6    7   400 Gbit/s infiniband")
    assert "oversubscribed" not in "".join(lines)
    assert "2:1" in " ".join(drawn("dgx-h100-superpod-2to1"))


def test_racks_tori_dragonflies_and_shared_cards_differ():
    rack = "\n".join(drawn("gb200-nvl72"))
    assert re.search(r"^host +\[ 1 \] .* \[ 18 \] +4 GPUs each$", rack, re.MULTILINE)
    torus = "\n".join(drawn("tpu-v5p-pod"))
    assert "~o---o---o- ... -o~" in torus
    assert "torus of 16 x 20 x 28" in torus
    dragonfly = "\n".join(drawn("leonardo"))
    assert "+==========+" in dragonfly
    assert "each of the 19 joined to each" in " ".join(dragonfly.replace("|", " ").split())
    shared = "\n".join(drawn("mi250x"))
    assert re.search(r"^ +\+----\+    \+----\+    \+----\+    \+----\+$", shared, re.MULTILINE)
    assert "one for 2 GPUs" in shared


def test_a_widened_cluster_is_drawn_as_it_is_then():
    assert any("[ 16 ]" in line for line in drawn("dgx-h100-superpod", "--gpus", "4096"))


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_drawing_fits_the_terminal(columns):
    for name in ("dgx-h100-superpod", "dgx2-v100", "gb200-nvl576"):
        assert max(map(len, drawn(name, columns=columns))) <= max(columns, 80)


def test_a_drawing_is_no_json():
    done = gpuscale("clusters", "show", "dgx-h100-superpod", "--draw", "--json")
    assert_one_message(done, "a drawing is for people", "leave out")
