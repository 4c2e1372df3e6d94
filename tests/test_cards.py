"""Cards of workstations and small servers: their figures by a second route, and the boxes that their names mean."""

import json

import pytest
from command import assert_one_message, gpuscale

from gpuscale import estimate, plan
from gpuscale.importers.facts import PCI_GPUS
from gpuscale.importers.smi import product_preset
from gpuscale.launch.hardware import gpus_in
from gpuscale.presets.hardware import all_gpus, is_card, load_cluster, load_gpu
from gpuscale.units import GB, MHZ, TFLOPS

# SMs, boost clock [MHz] and FLOPs of one SM per cycle: fp32 lanes x 2; 16-bit products of the tensor cores as the
# architecture whitepapers count them, halved where GeForce cards (and A10G, L40) add up in fp32; then 8 and 4 bits.
ROUTES = {
    "rtx-3090": (82, 1695, 256, 512, None, None), "rtx-4090": (128, 2520, 256, 512, 1024, None),
    "rtx-5090": (170, 2407, 256, 512, 1024, 4096), "rtx-6000-ada": (142, 2505, 256, 1024, 2048, None),
    "rtx-a6000": (84, 1800, 256, 1024, None, None), "a10": (72, 1695, 256, 1024, None, None),
    "a10g": (80, 1710, 256, 512, None, None), "l4": (58, 2040, 256, 1024, 2048, None),
    "t4": (40, 1590, 128, 1024, None, None), "l40": (142, 2490, 256, 512, 1024, None),
    "a40": (84, 1740, 256, 1024, None, None), "a30": (56, 1440, 128, 2048, None, None),
    "gb10": (48, 2523, 256, 1024, 2048, 4096), "rtx-pro-6000": (188, 2490, 256, 1024, 2048, 4096),
}  # fmt: skip
CARDS = [name for name in ROUTES if name != "gb10"]

# bus width [bits] and rate of a pin [Gbit/s] of the memory, by the same datasheets.
MEMORIES = {
    "rtx-3090": (384, 19.5), "rtx-4090": (384, 21), "rtx-5090": (512, 28), "rtx-6000-ada": (384, 20),
    "rtx-a6000": (384, 16), "a10": (384, 12.5), "l4": (192, 12.5), "t4": (256, 10), "l40": (384, 18),
    "a40": (384, 14.5), "a30": (3072, 2.43), "gb10": (256, 8.533),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTES)
def test_peaks_are_sms_times_rate_times_clock(name):
    gpu, (sms, boost, vector, half, fp8, fp4) = load_gpu(name), ROUTES[name]
    assert (gpu.sm_count, gpu.clock_boost_hz) == (sms, boost * MHZ)
    rates = {"fp32": vector, "tf32": half / 2, "bf16": half, "fp16": half, "fp8": fp8, "fp4": fp4}
    for precision, peak in gpu.peak_flops_per_s.items():
        assert peak == pytest.approx(sms * boost * MHZ * rates[precision], rel=0.02), precision
    assert {"bf16", "tf32"} <= set(gpu.peak_flops_per_s) or name == "t4"
    assert ("fp8" in gpu.peak_flops_per_s, "fp4" in gpu.peak_flops_per_s) == (fp8 is not None, fp4 is not None)


@pytest.mark.parametrize("name", MEMORIES)
def test_memory_bandwidth_is_width_times_rate_of_a_pin(name):
    width, gbit_per_s = MEMORIES[name]
    assert load_gpu(name).memory_bandwidth_bytes_per_s / GB == pytest.approx(width / 8 * gbit_per_s, rel=0.02)


def test_geforce_cards_add_up_in_fp32_at_half_the_rate_of_their_sisters_of_one_chip():
    for card, sister in (("rtx-3090", "rtx-a6000"), ("rtx-4090", "rtx-6000-ada"), ("rtx-5090", "rtx-pro-6000")):
        one, other = load_gpu(card), load_gpu(sister)
        per_cycle = [gpu.peak("bf16") / gpu.sm_count / gpu.clock_boost_hz for gpu in (one, other)]
        assert per_cycle[0] / per_cycle[1] == pytest.approx(0.5, rel=0.01)
        assert (one.fp32_accumulate_rate, other.fp32_accumulate_rate) == (0.5, 1.0)
        assert (one.pcie_peers, other.pcie_peers) == (False, True)
    assert load_gpu("rtx-5090").peak("fp4") == 8 * load_gpu("rtx-5090").peak("bf16")


def test_a_rate_added_up_in_fp16_is_taken_for_sparsity(tmp_path):
    text = gpuscale("show", "hardware", "rtx-4090", "--toml").out
    (tmp_path / "mine.toml").write_text(text.replace("peak_bf16_tflops = 165.2", "peak_bf16_tflops = 330.3"))
    done = gpuscale("show", "hardware", tmp_path / "mine.toml")
    assert_one_message(done, "peak_bf16_tflops: 330.3 TFLOP/s is 1.62 times what 128 ada SMs do", "sparsity")


@pytest.mark.parametrize("name", ROUTES)
def test_one_card_is_asked_about_in_every_way(name):
    cluster = "dgx-spark" if name == "gb10" else f"box-{name}"
    job = {"model": "llama3.2-1b", "gpus": 1, "cluster": cluster, "gbs": 16, "seq": 1024}
    found = plan(**job, optimizer="sgd", grad_dtype="fp16" if name == "t4" else "bf16")
    assert found.plans[0].fits
    assert (found.cluster, found.gpus, found.plans[0].dp) == (cluster, 1, 1)
    assert estimate(**job).plan.step_time_s > 0
    memory = gpuscale("memory", "--model", "llama3.2-1b", "--gpus", 1, "--cluster", cluster, "--json")
    assert json.loads(memory.out)["plan"]["memory_gib"] > 20  # weights, gradients and states of Adam alone


def test_faster_cards_take_less_time():
    seconds = [
        estimate("gpt3-125m", 1, cluster=name, gbs=16, precision="fp16").plan.step_time_s
        for name in ("t4", "l4", "a10", "rtx-3090", "rtx-4090", "rtx-5090")
    ]
    assert seconds == sorted(seconds, reverse=True)


# --- boxes


@pytest.mark.parametrize("name", ["rtx-4090", "rtx4090", "RTX-4090", "4090", "box-rtx-4090", "geforce-rtx-4090"])
def test_the_name_of_a_card_means_a_box_of_eight(name):
    box = load_cluster(name)
    assert (box.name, box.gpu.name, box.gpus, box.extendable) == ("box-rtx-4090", "rtx-4090", 8, False)
    assert load_cluster(box.name) == box


def test_cards_without_peers_take_the_memory_of_the_host():
    four, pro = load_cluster("rtx-4090").levels[0], load_cluster("l40").levels[0]
    assert (four.path, pro.path) == ("shm", "pcie-p2p-host")
    assert four.link_bytes_per_s == pro.link_bytes_per_s == 31.5 * GB
    assert four.link_efficiency < pro.link_efficiency
    assert "peer-to-peer" in load_cluster("rtx-4090").sources["node.path"]


@pytest.mark.parametrize(
    ("name", "each_way"), [("rtx-3090", 56.25), ("rtx-a6000", 56.25), ("a40", 56.25), ("a30", 100)]
)
def test_bridges_join_pairs_where_asked(name, each_way):
    pair, node = load_cluster(f"{name}-pairs").levels
    assert (pair.gpus, pair.fabric, pair.egress_bytes_per_s / GB) == (2, "nvlink", each_way)
    assert (node.gpus, node.fabric) == (8, "pcie")
    assert load_cluster(name).levels == (node,)
    plain, bridged = (estimate("gpt3-125m", 2, {"tp": 2}, cluster=f"{name}{end}", gbs=16) for end in ("", "-pairs"))
    assert bridged.plan.step_time_s < plain.plan.step_time_s


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("gb10", "gb10 is no card for a PCIe slot", "name the machine: dgx-spark"),
        ("h100-sxm-80gb", "no card for a PCIe slot", "dgx-h100-superpod"), ("b100", "no card", "write a cluster file"),
        ("rtx-4090-pairs", "no NVLink bridge joins", "leave out"), ("rtx-4080", "unknown cluster", "rtx-4090"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_refused(name, message, hint):
    done = gpuscale("plan", "--model", "gpt3-125m", "--gpus", 1, "--gpu", name)
    assert_one_message(done, message, hint)


def test_every_card_has_a_box_and_its_file_is_a_cluster_file(tmp_path):
    cards = [gpu for gpu in all_gpus() if is_card(gpu)]
    assert {*CARDS, "l40s", "h100-pcie-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "h100-nvl-94gb"} == {
        gpu.name for gpu in cards
    }
    for gpu in cards:
        path = tmp_path / f"box-{gpu.name}.toml"
        path.write_text(gpuscale("show", "clusters", f"box-{gpu.name}", "--toml").out, encoding="utf-8")
        assert load_cluster(str(path)) == load_cluster(f"box-{gpu.name}")


def test_a_gpu_file_of_ones_own_is_a_box_too(tmp_path):
    text = gpuscale("show", "hardware", "rtx-3090", "--toml").out.replace("power_w = 350", "power_w = 280")
    (tmp_path / "quiet.toml").write_text(text, encoding="utf-8")
    box = load_cluster(tmp_path / "quiet.toml")
    assert (box.gpu.power_w, box.name, box.gpus) == (280, "box-quiet", 8)


def test_a_box_is_all_there_is():
    done = gpuscale("plan", "--model", "gpt3-125m", "--gpus", 16, "--gpu", "rtx-4090")
    assert_one_message(done, "box-rtx-4090 has 8 GPUs and cannot be extended to 16", "at most 8")


def test_the_first_line_of_a_small_job_names_its_machine():
    few = gpuscale("plan", "--model", "gpt3-125m", "--gpus", 1, "--gbs", 16)
    assert few.lines[0].startswith("gpt3-125m on 1 GPU of dgx-h100-superpod: ")
    done = gpuscale("estimate", "--model", "gpt3-125m", "--gpus", 1, "--gbs", 16, "--gpu", "l4")
    assert done.lines[0].startswith("gpt3-125m on 1 GPU of box-l4: ")


def test_t4_has_no_bf16_and_no_flash_attention_2():
    found = estimate("gpt3-125m", 1, cluster="t4", gbs=16)
    assert found.plan.tflops_per_gpu * TFLOPS < load_gpu("t4").peak("fp16")
    done = gpuscale("plan", "--model", "gpt3-125m", "--gpus", 1, "--gpu", "t4", "--json")
    assert json.loads(done.out)["plans"]
    for extra, message, hint in (("--precision=bf16", "bf16", ""), ("--attention=fa2", "run on NVIDIA T4", "sdpa")):
        assert_one_message(gpuscale("plan", "--model", "gpt3-125m", "--gpus", 1, "--gpu", "t4", extra), message, hint)


# --- names in other tools


@pytest.mark.parametrize(
    ("product", "preset"),
    [
        ("NVIDIA GeForce RTX 3090", "rtx-3090"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("Tesla T4", "t4"),
        ("NVIDIA RTX A6000", "rtx-a6000"), ("NVIDIA A10", "a10"), ("NVIDIA L4", "l4"), ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"), ("NVIDIA A40", "a40"), ("NVIDIA A30", "a30"), ("NVIDIA GB10", "gb10"),
        ("NVIDIA GeForce RTX 3090 Ti", None), ("NVIDIA GeForce RTX 4090 D", None),
    ],
)  # fmt: skip
def test_product_names_mean_cards(product, preset):
    assert product_preset(product) == preset


def test_pci_ids_mean_presets_that_there_are():
    for _, preset in PCI_GPUS.values():
        assert preset is None or load_gpu(preset).name == preset


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("gpu:rtx3090:8", "box-rtx-3090"), ("rtx_4090", "box-rtx-4090"), ("A10G:1", "box-a10g"), ("T4:1", "box-t4"),
        ("nvidia-tesla-t4", "box-t4"), ("nvidia-l4", "box-l4"), ("g5.12xlarge", "box-a10g"), ("g6.xlarge", "box-l4"),
        ("g6e.48xlarge", "aws-g6e"), ("a6000", "box-rtx-a6000"), ("rtx_2080", ""),
        ("NVIDIA RTX 6000 Ada", "box-rtx-6000-ada"),
    ],
)  # fmt: skip
def test_launch_files_name_cards(text, cluster):
    assert [found for _, found in gpus_in(text)] == [cluster]


def test_doctor_says_of_which_box_a_card_is(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = topo ] || echo "0, NVIDIA GeForce RTX 4090, 24564, 550.54, 450.00, [N/A]"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = gpuscale("doctor", tmp_path)
    assert done.lines[0] == "1 x NVIDIA GeForce RTX 4090: the GPU rtx-4090, as in box-rtx-4090"
    assert "gpuscale plan --model llama3-8b --gpus 1 --cluster box-rtx-4090" in done.out
