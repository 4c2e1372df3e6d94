"""`gpuscale doctor` on machines that are made of recorded outputs of their tools, and on hostile ones."""

import json
import os
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import pytest
from command import gpuscale
from test_cli_general import WALKED

from gpuscale import doctor
from gpuscale.presets.hub import model_folder

H100 = "".join(f"{index}, NVIDIA H100 80GB HBM3, 81559, 535.129.03, 700.00, Disabled\n" for index in range(8))


def matrix(gpus, link, nics, near, cards):
    """A matrix as `nvidia-smi topo -m` prints it: `nics` cards, equally many beside each GPU, and their names."""
    names = [*(f"GPU{index}" for index in range(gpus)), *(f"NIC{index}" for index in range(nics))]
    lines = ["\t" + "\t".join(f"\x1b[4m{name}" if not index else name for index, name in enumerate(names))
             + "\tCPU Affinity\tNUMA Affinity"]  # fmt: skip
    for row, name in enumerate(names):
        cells = []
        for column in range(len(names)):
            gpu, nic = min(row, column), max(row, column) - gpus
            beside = near if gpu < gpus and nic * gpus // max(nics, 1) == gpu else "SYS"
            cells.append(" X " if row == column else link if max(row, column) < gpus else beside)
        lines.append(f"{name}\t" + "\t".join(cells) + "\t0-47\t0")
    lines += ["", "Legend:", "", "  X    = Self", "", "NIC Legend:", ""]
    lines += [f"  NIC{index}: {cards.format(index)}" for index in range(nics)]
    return "\n".join(lines).replace("\x1b[4mGPU0", "\x1b[4mGPU0\x1b[0m") + "\n"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose tools print what is recorded, by a word of their arguments ("" for others)."""
    folder, here = tmp_path / "bin", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(folder))

    def add(tool, answers, code=0):
        cases = ""
        for word, text in answers.items():
            file = folder / f"{tool}.{word or 'any'}"
            file.write_text(text)
            cases += f"*{word}*) /bin/cat {shlex.quote(str(file))};;\n"
        script(tool, f'case "$*" in\n{cases}esac\nexit {code}')

    def script(tool, body):
        (folder / tool).write_text(f"#!/bin/sh\n{body}\n")
        (folder / tool).chmod(0o755)

    add.script, add.here = script, here
    return add


def checkup():
    done = gpuscale("doctor", "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_without_a_gpu_it_says_so_and_what_to_do(machine):
    done = gpuscale("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "no GPU found on this machine; planning needs none"
    assert "  gpuscale plan --model llama3-8b --gpus 64" in done.lines
    found = checkup()
    assert (found["tool"], found["gpus"], found["topology"], found["clusters"]) == (None, [], None, [])
    assert found["presets"]["gpus"] >= 28
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_node_of_h100_is_known_with_its_clusters(machine):
    machine("nvidia-smi", {"topo": matrix(8, "NV18", 8, "PXB", "mlx5_{}"), "": H100})
    found = checkup()
    assert (
        found["verdict"] == "8 x NVIDIA H100 80GB HBM3: the GPU h100-sxm-80gb, as in azure-ndv5, dgx-h100-superpod, ..."
    )
    assert found["gpus"][7] == {
        "index": 7, "name": "NVIDIA H100 80GB HBM3", "memory_gib": 81559 / 1024, "driver": "535.129.03",
        "power_limit_w": 700.0, "preset": "h100-sxm-80gb", "mig": False,
    }  # fmt: skip
    assert found["topology"] == {
        "source": "nvidia-smi topo -m", "fabric": "nvlink", "links": 18, "nics": 8, "nic_fabric": None,
    }  # fmt: skip
    alike = [one["name"] for one in found["clusters"] if not one["differs"]]
    assert alike == ["azure-ndv5", "dgx-h100-superpod", "dgx-h100-superpod-2to1", "gcp-a3-mega"]
    assert "aws-p5" in [one["name"] for one in found["clusters"] if "efa" in one["differs"]]
    assert found["notes"] == []
    assert found["next"][0]["command"].endswith("calibrate topology topo.txt --gpu h100-sxm-80gb -o cluster.toml")


def test_the_cards_of_aws_tell_its_cluster(machine):
    machine("nvidia-smi", {"topo": matrix(8, "NV18", 32, "PIX", "rdmap{}s27"), "": H100})
    found = checkup()
    assert (found["topology"]["nics"], found["topology"]["nic_fabric"]) == (32, "efa")
    assert [one["name"] for one in found["clusters"] if not one["differs"]] == ["aws-p5"]


def test_what_the_machine_has_otherwise_is_said(machine):
    rows = [
        "0, NVIDIA H100 80GB HBM3, 81559, 550.54, 500.00, Enabled",
        "1, NVIDIA H100 80GB HBM3, 70000, [N/A], [N/A], [N/A]",
        "2, NVIDIA A100-SXM4-40GB, 40960, 550.54, 400.00, Disabled",
        "3, NVIDIA T400 4GB, 4096, 550.54, [Not Supported], [N/A]",
    ]
    machine("nvidia-smi", {"": "\n".join(rows)})
    found = checkup()
    assert found["verdict"] == "4 GPUs of 3 kinds (nvidia-smi)"
    kinds, limit, none, mig = found["notes"]
    assert kinds.startswith("GPUs of several kinds")
    assert limit.endswith("is limited to 500 W of 700 W: plan with --set gpu.power_w=500")
    assert none.startswith("gpuscale has no preset of NVIDIA T400 4GB")
    assert none.endswith("`gpuscale show hardware` lists those there are, and prints the file of one to start from")
    assert mig.startswith("MIG splits")
    assert (found["gpus"][1]["driver"], found["gpus"][1]["power_limit_w"]) == (None, None)
    machine("nvidia-smi", {"": rows[1]})
    assert "has 68.4 GiB, h100-sxm-80gb has 79.6: plan with --memory-limit" in checkup()["notes"][0]


AMD_SMI = [
    {
        "gpu": index,
        "asic": {"market_name": "AMD Instinct MI300X OAM", "vendor_id": "0x1002", "device_id": "0x74a1"},
        "driver": {"name": "amdgpu", "version": "6.8.5"},
        "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
        "limit": {"max_power": {"value": 750, "unit": "W"}},
    }
    for index in range(8)
]
ROCM_SMI = {
    f"card{index}": {
        "VRAM Total Memory (B)": "206141652992", "Max Graphics Package Power (W)": "750.0", "GFX Version": "gfx942",
        "Card Series": "AMD Radeon Graphics", "Card Model": "0x74a1", "Card SKU": "M3000100",
    }
    for index in range(8)
} | {"system": {"Driver version": "6.7.0"}}  # fmt: skip
XGMI = {"system": {f"(Topology) Link type between DRM devices 0 and {index}": "XGMI" for index in range(1, 8)}}


@pytest.mark.parametrize("wrapped", [AMD_SMI, {"gpu_data": AMD_SMI}])
def test_amd_smi_is_read(machine, wrapped):
    machine("amd-smi", {"static": json.dumps(wrapped)})
    found = checkup()
    assert found["verdict"] == "8 x AMD Instinct MI300X OAM: the GPU mi300x, as in mi300x"
    assert found["gpus"][3]["memory_gib"] == pytest.approx(191.98, abs=0.01)
    assert (found["gpus"][3]["driver"], found["gpus"][3]["power_limit_w"]) == ("6.8.5", 750.0)


def test_rocm_smi_is_read(machine):
    machine("rocm-smi", {"topotype": json.dumps(XGMI), "product": "WARNING: low power\n\n" + json.dumps(ROCM_SMI)})
    found = checkup()
    assert found["tool"] == "rocm-smi"
    assert {gpu["preset"] for gpu in found["gpus"]} == {"mi300x"}
    assert found["gpus"][0]["memory_gib"] == pytest.approx(191.98, abs=0.01)
    assert found["gpus"][0]["driver"] == "6.7.0"
    assert found["topology"]["fabric"] == "xgmi"


def test_a_tool_that_fails_gives_way_to_the_next(machine):
    machine("nvidia-smi", {"": "Failed to initialize NVML: Driver/library version mismatch\n"}, code=18)
    machine("rocm-smi", {"": json.dumps(ROCM_SMI)})
    found = checkup()
    assert found["tool"] == "rocm-smi"
    assert found["notes"] == [
        "nvidia-smi fails with exit code 18: Failed to initialize NVML: Driver/library version mismatch"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "a,b\n",
        "\x1b[2J" * 99,
        "0,,,,,\n" * 9,
        "9" * 5000,
        "\x00,\xff,,,,",
        "[",
        "{}",
        "[[]]",
        "null",
    ],
)
@pytest.mark.parametrize("tool", ["nvidia-smi", "amd-smi", "rocm-smi"])
def test_whatever_a_tool_prints_it_is_a_note(machine, tool, text):
    machine(tool, {"": text})
    done = gpuscale("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.replace("\n", "").isprintable()
    assert done.lines[0] == ("no GPU found on this machine; planning needs none" if text != "[[]]" or tool != "amd-smi"
                             else "1 x AMD GPU, of which gpuscale has no preset") or text.startswith("0,,")  # fmt: skip


def test_a_tool_that_never_ends_is_stopped_with_its_children(machine, monkeypatch):
    stopped, kill = [], os.killpg
    monkeypatch.setattr(os, "killpg", lambda *group: (stopped.append(group), kill(*group)))
    monkeypatch.setattr(doctor, "MAX_TOOL_SECONDS", 0.1)
    machine.script("nvidia-smi", "/bin/sleep 600 &\n/bin/sleep 600")
    assert checkup()["notes"] == ["nvidia-smi takes more than 0.1 s"]
    (group,) = stopped
    assert group[1] == signal.SIGKILL


def test_a_tool_that_never_stops_printing_is_stopped(machine):
    machine.script("nvidia-smi", "while :; do echo 0123456789012345678901234567890123456789; done")
    assert checkup()["notes"] == ["nvidia-smi prints more than 1 MiB"]


def test_a_tool_that_cannot_run_is_a_note(machine):
    machine.script("nvidia-smi", "")
    path = Path(os.environ["PATH"]) / "nvidia-smi"
    path.write_bytes(b"\x7fELF no program")
    assert checkup()["notes"] == ["nvidia-smi cannot be run: Exec format error"]


def test_files_models_and_presets_of_the_user_are_found(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, config in {"my/good": '{"model_type": "x"}', "my/bad": "["}.items():
        (model_folder(name) / "snapshots" / "0").mkdir(parents=True)
        (model_folder(name) / "snapshots" / "0" / "config.json").write_text(config)
    here = machine.here
    log = Path(__file__).parent / "data" / "example_training.log"
    job = ["--model", "llama3-8b", "--gpus", "16", "--tp", "4", "--gbs", "128", "-o", "site.toml"]
    assert gpuscale("calibrate", "run", log, *job).code == 0
    (here / "lost.toml").write_text('format = "gpuscale.calibration/1"\n')
    (here / "plan.toml").write_text('format = "gpuscale.planfile/1"\n')
    (here / "broken.toml").write_text("[")
    (here / "pyproject.toml").write_text("[project]\n")
    (here / "folder.toml").mkdir()
    (here / "kernels.jsonl").write_text('{"format":"gpuscale.gpu-protocol/1"}\n')
    (here / "data.jsonl").write_text("{}\n")
    for command in ("clusters show aws-p5", "hardware show h100"):
        kind = command.split()[0]
        (here / f"{kind}.toml").write_text(gpuscale(*command.split(), "--toml").out)
    presets = tmp_path / "presets"
    (presets / "gpus").mkdir(parents=True)
    (presets / "gpus" / "mine.toml").write_text("")
    (presets / "clusters").mkdir()
    (presets / "clusters" / "broken.toml").write_text('gpu = "h100-sxm-80gb"\nlevels = 3\n')
    machine("nvidia-smi", {"": H100})
    found = json.loads(gpuscale("doctor", "--json", presets=str(presets)).out)
    assert {one["file"]: one["kind"] for one in found["files"]} == {
        "clusters.toml": "cluster", "hardware.toml": "gpu", "kernels.jsonl": "protocol", "plan.toml": "plan",
        "site.toml": "calibration", "lost.toml": "calibration",
    }  # fmt: skip
    assert found["own_presets"] == {"gpus": ["mine"], "clusters": ["broken"]}
    gpu, cluster = found["notes"]
    assert gpu.startswith("of your own presets gpus/mine.toml cannot be used: ")
    assert cluster.startswith("of your own presets clusters/broken.toml cannot be used: ")
    assert found["models"] == ["my/bad", "my/good"]
    assert "not valid JSON" in found["unread_models"]["my/bad"]
    told = {one["file"]: one["detail"] for one in found["files"]}
    assert told["site.toml"] == "1 measured run, 6 factors"
    assert told["lost.toml"].startswith("cannot be read: ")
    own = "--cluster clusters.toml --set gpu=hardware.toml --calibration site.toml"
    assert found["next"][-1]["command"].endswith(own)


def test_what_was_measured_elsewhere_is_to_be_fitted(machine):
    (machine.here / "kernels.jsonl").write_text('{"format":"gpuscale.gpu-protocol/1"}\n')
    first = checkup()["next"][0]["command"]
    assert first == "gpuscale calibrate gpu --protocol kernels.jsonl --fit-only -o gpu.toml"


def test_what_to_do_next_are_commands_that_there_are(machine):
    machine("nvidia-smi", {"topo": matrix(8, "NV18", 8, "PXB", "mlx5_{}"), "": H100})
    parts = [part.split() for step in checkup()["next"] for part in step["command"].split(" && ")]
    commands = [words[1:] for words in parts if words[0] == "gpuscale"]
    assert len(commands) >= 4
    for words in commands:
        name = " ".join(words[:2]) if " ".join(words[:2]) in WALKED else words[0]
        own = words[len(name.split()) :]
        # Click keeps the names of the first --help that a command is asked for
        assert WALKED[name].make_context(name, own, help_option_names=["-h", "--help"]).params


def test_all_is_every_extra_that_users_need_but_torch():
    path = Path(__file__).parents[1] / "pyproject.toml"
    declared = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    (every,) = declared["all"]
    listed = set(every.partition("[")[2].rstrip("]").split(","))
    assert listed == set(doctor.EXTRAS) - {"gpu"}
    assert listed <= set(declared)


def test_the_extras_are_those_of_the_package():
    path = Path(__file__).parents[1] / "pyproject.toml"
    declared = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    for extra, libraries in doctor.EXTRAS.items():
        assert [one.partition(">")[0] for one in declared[extra]] == list(libraries)
