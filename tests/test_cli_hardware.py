"""`gpuscale hardware` and `gpuscale clusters`: exit code, stdout and stderr."""

import json

import pytest
from command import assert_one_message, gpuscale


def body(*arguments):
    done = gpuscale(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("hardware", "list"),
        ("hardware", "show", "h100"),
        ("hardware", "show", "tpu-v5p"),
        ("clusters", "list"),
        ("clusters", "show", "superpod"),
        ("clusters", "show", "gh200"),
    ],
)
def test_tables_fit_100_columns_and_come_out_the_same_twice(arguments):
    done = gpuscale(*arguments)
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.lines)) <= 100
    assert "\x1b" not in done.out
    assert gpuscale(*arguments).out == done.out


def test_clusters_show_prints_the_level_table():
    out = gpuscale("clusters", "show", "dgx-h100-superpod-2to1").out
    rows = [line.split() for line in out.split("\n")]
    assert out.startswith("dgx-h100-superpod-2to1: 1,024 x h100-sxm-80gb")
    assert ["node", "nvlink", "8", "4", "3.6", "450", "450", "1", "yes", "0.824"] in rows
    assert ["leaf", "infiniband", "256", "8", "12.8", "50", "400", "5", "yes", "0.96"] in rows
    assert ["spine", "infiniband", "1,024", "16", "25.6", "25", "400", "5.5", "yes", "0.96"] in rows
    assert "*" not in out
    assert "Switches of all units: 512 node + 32 leaf + 16 spine = 560." in out
    out = gpuscale("clusters", "show", "aws-p4d").out
    assert "171.4*" in out
    assert "no switch of the level reduces in-network" in out


def test_switches_are_counted_over_all_units():
    (wide,) = body("clusters", "show", "superpod-2to1", "--gpus", "2048")["clusters"]
    assert wide["switches"] == {"node": 1024, "leaf": 64, "spine": 32}
    assert body("clusters", "show", "tpu-v5p-pod")["clusters"][0]["switches"] == {}


def test_clusters_show_says_how_it_widened():
    out = gpuscale("clusters", "show", "superpod", "--gpus", "1500").out
    assert "note: dgx-h100-superpod has 1,024 GPUs: spine widened to 1,536 at the same 50 GB/s" in out
    document = body("clusters", "show", "superpod", "--gpus", "1500")
    assert document["clusters"][0]["gpus"] == 1536
    assert "widened" in document["clusters"][0]["note"]
    assert body("clusters", "show", "superpod")["clusters"][0]["note"] is None


def test_hardware_show_prints_what_follows():
    out = gpuscale("hardware", "show", "h100").out
    assert out.startswith("h100-sxm-80gb: 989.4 dense TFLOP/s in bf16")
    for text in ("132 x 128 = 16,896", "26.9 / 33.5 TFLOP/s", "295", "450 GB/s per direction", "33 MiB", "Sources"):
        assert text in out


def test_json_of_hardware():
    document = body("hardware", "list")
    assert document["schema"] == "gpuscale.hardware/1"
    names = [gpu["name"] for gpu in document["gpus"]]
    assert names == sorted(names)
    gpu = body("hardware", "show", "h100")["gpus"][0]
    assert gpu["fp32_cores"] == 16896
    assert gpu["link_egress_gb_per_s_per_direction"] == 450
    assert gpu["peak_dense_tflops"]["bf16"] == pytest.approx(989.4)
    assert gpu["sources"]["peak_bf16_tflops"]


def test_json_of_clusters():
    document = body("clusters", "list")
    assert document["schema"] == "gpuscale.clusters/1"
    levels = body("clusters", "show", "superpod")["clusters"][0]["levels"]
    assert [level["allreduce_gb_per_s"] for level in levels] == pytest.approx([450, 400, 400])
    assert [level["gpu_to_gpu_gb_per_s"] for level in levels] == pytest.approx([450, 50, 50])
    lone = body("clusters", "show", "gh200")["clusters"][0]["levels"][0]
    assert lone["allreduce_gb_per_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hardware", "show", "h100-smx"), "did you mean h100-sxm"),
        (("clusters", "show", "nvl73"), "did you mean nvl72"),
        (("clusters", "show", "superpod", "--gpus", "0"), "give 1 to"),
        (("clusters", "show", "superpod", "--gpus", "-8"), "give 1 to"),
        (("clusters", "show", "superpod", "--gpus", "99999999999999999999"), "is out of range"),
        (("clusters", "show", "box-l40s", "--gpus", "9"), "cannot be extended"),
        (("hardware", "show", "/none.toml"), "no such file"),
        (("hardware", "show", "x" * 5000), "unknown GPU"),
        (("hardware", "show", "../../none"), "no such file"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(arguments, message):
    done = gpuscale(*arguments)
    assert_one_message(done, "", "")
    assert message in done.err
    assert len(done.err) < 700


def test_a_file_works_as_a_name(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text('title = "x"\ngpu = "h100"\nextendable = true\nlevel = []\n', encoding="utf-8")
    assert_one_message(gpuscale("clusters", "show", path), f"{path}:4: unknown key 'level'", "did you mean levels?")
