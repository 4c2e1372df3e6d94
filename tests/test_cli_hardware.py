"""`gpuscale hardware` and `gpuscale clusters`: exit code, stdout and stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscale import cli


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["gpuscale", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    code = 0
    try:
        cli.main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, monkeypatch, *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


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
def test_tables_fit_100_columns_and_come_out_the_same_twice(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.split("\n")) <= 100
    assert "\x1b" not in out
    assert run(capsys, monkeypatch, *arguments)[1] == out


def test_clusters_show_prints_the_level_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = run(capsys, monkeypatch, "clusters", "show", "dgx-h100-superpod-2to1")
    rows = [line.split() for line in out.split("\n")]
    assert out.startswith("dgx-h100-superpod-2to1: 1,024 x h100-sxm-80gb")
    assert ["node", "nvlink", "8", "4", "3.6", "450", "450", "1", "yes", "0.824"] in rows
    assert ["leaf", "infiniband", "256", "8", "12.8", "50", "400", "5", "yes", "0.96"] in rows
    assert ["spine", "infiniband", "1,024", "16", "25.6", "25", "400", "5.5", "yes", "0.96"] in rows
    assert "*" not in out
    _, out, _ = run(capsys, monkeypatch, "clusters", "show", "aws-p4d")
    assert "171.4*" in out
    assert "no switch of the level adds up payloads" in out


def test_clusters_show_says_how_it_widened(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "clusters", "show", "superpod", "--gpus", "1500")
    assert code == 0
    assert "note: dgx-h100-superpod is specified for 1,024 GPUs; its spine level is widened to 1,536" in out
    document = run_json(capsys, monkeypatch, "clusters", "show", "superpod", "--gpus", "1500")
    assert document["clusters"][0]["gpus"] == 1536
    assert "widened" in document["clusters"][0]["note"]
    assert run_json(capsys, monkeypatch, "clusters", "show", "superpod")["clusters"][0]["note"] is None


def test_hardware_show_prints_what_follows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = run(capsys, monkeypatch, "hardware", "show", "h100")
    assert out.startswith("h100-sxm-80gb: 989.4 dense TFLOP/s in bf16")
    for text in ("132 x 128 = 16,896", "26.9 / 33.5 TFLOP/s", "295", "450 GB/s per direction", "33 MiB", "Sources"):
        assert text in out


def test_json_of_hardware(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_json(capsys, monkeypatch, "hardware", "list")
    assert document["schema"] == "gpuscale.hardware/1"
    names = [gpu["name"] for gpu in document["gpus"]]
    assert names == sorted(names)
    gpu = run_json(capsys, monkeypatch, "hardware", "show", "h100")["gpus"][0]
    assert gpu["fp32_cores"] == 16896
    assert gpu["link_egress_gb_per_s_per_direction"] == 450
    assert gpu["peak_dense_tflops"]["bf16"] == pytest.approx(989.4)
    assert gpu["sources"]["peak_bf16_tflops"]


def test_json_of_clusters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_json(capsys, monkeypatch, "clusters", "list")
    assert document["schema"] == "gpuscale.clusters/1"
    levels = run_json(capsys, monkeypatch, "clusters", "show", "superpod")["clusters"][0]["levels"]
    assert [level["allreduce_gb_per_s"] for level in levels] == pytest.approx([450, 400, 400])
    assert [level["gpu_to_gpu_gb_per_s"] for level in levels] == pytest.approx([450, 50, 50])
    lone = run_json(capsys, monkeypatch, "clusters", "show", "gh200")["clusters"][0]["levels"][0]
    assert lone["allreduce_gb_per_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hardware", "show", "h100-smx"), "did you mean h100-sxm"),
        (("clusters", "show", "nvl73"), "did you mean nvl72"),
        (("clusters", "show", "superpod", "--gpus", "0"), "give 1 to"),
        (("clusters", "show", "superpod", "--gpus", "-8"), "give 1 to"),
        (("clusters", "show", "superpod", "--gpus", "99999999999999999999"), "give 1 to"),
        (("clusters", "show", "box-l40s-pcie", "--gpus", "9"), "cannot be extended"),
        (("hardware", "show", "/none.toml"), "no such file"),
        (("hardware", "show", "x" * 5000), "unknown GPU"),
        (("hardware", "show", "../../none"), "no such file"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert len(err) < 700


def test_a_file_works_as_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text('title = "x"\ngpu = "h100"\nextendable = true\nlevel = []\n', encoding="utf-8")
    code, _, err = run(capsys, monkeypatch, "clusters", "show", str(path))
    assert code == 2
    assert f"{path}:4: unknown key 'level'" in err
    assert "did you mean levels?" in err
