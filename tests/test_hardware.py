"""GPU and cluster presets against the published tables, and the guards against slips of 2x and 8x."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command import gpuscale
from hypothesis import given
from hypothesis import strategies as st

from gpuscale import estimate
from gpuscale.choices import MAX_GPUS
from gpuscale.collectives.ideal import allreduce_rates
from gpuscale.errors import InputError
from gpuscale.presets.files import find_preset, preset_names
from gpuscale.presets.guards import FLOPS_PER_SM_PER_CYCLE, GUARDS
from gpuscale.presets.hardware import (
    CLUSTER,
    CURVE,
    GPU,
    HOST,
    LEVEL,
    POOL,
    all_clusters,
    all_gpus,
    load_cluster,
    load_gpu,
)
from gpuscale.render.presets import vector_flops_per_s

GB, TB = 1e9, 1e12
GPUS = preset_names("gpus")
CLUSTERS = preset_names("clusters")

# Austin et al., How to Scale Your Model, chapter on GPUs (2025): SMs, SMEM kB per SM, L2 MB, clocks GHz, memory GB and
# TB/s, dense TFLOP/s in bf16 (V100: fp16), fp8, fp4. B200's SMs and L2 from its driver.
SCALING_BOOK = {
    "v100-sxm-32gb": (80, 96, 6, 1.25, 1.38, 32, 0.9, 125, None, None),
    "a100-sxm-80gb": (108, 192, 40, 1.10, 1.41, 80, 2.0, 312, None, None),
    "h100-sxm-80gb": (132, 256, 50, 1.59, 1.76, 80, 3.35, 990, 1979, None),
    "h200-sxm-141gb": (132, 256, 50, 1.59, 1.76, 141, 4.8, 990, 1979, None),
    "b100": (144, 256, 50, 1.67, 1.83, 192, 8, 1800, 3500, 7000),
    "b200": (148, 256, 126, None, None, 192, 8, 2250, 4500, 9000),
}


@pytest.mark.parametrize("name", SCALING_BOOK)
def test_gpus_match_the_scaling_book(name: str) -> None:
    gpu = load_gpu(name)
    sms, smem, l2, base, boost, memory, bandwidth, half, fp8, fp4 = SCALING_BOOK[name]
    assert (gpu.sm_count, gpu.smem_per_sm_bytes, gpu.l2_bytes) == (sms, smem * 2**10, l2 * 2**20)
    assert gpu.registers_per_sm_bytes == 256 * 2**10
    if base and boost:
        assert gpu.clock_base_hz == pytest.approx(base * 1e9, abs=0.006e9)
        assert gpu.clock_boost_hz == pytest.approx(boost * 1e9, abs=0.006e9)
    assert gpu.memory_datasheet_bytes == memory * 1e9
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth * TB, rel=0.02)
    assert gpu.peak("bf16" if "bf16" in gpu.peak_flops_per_s else "fp16") == pytest.approx(half * TB, rel=0.002)
    for precision, tflops in (("fp8", fp8), ("fp4", fp4)):
        if tflops is None:
            assert precision not in gpu.peak_flops_per_s
        else:
            assert gpu.peak(precision) == pytest.approx(tflops * TB, rel=0.002)


# NVLink generation, links, GB/s per link and per GPU, one direction; node size, NVSwitches.
NVLINK = {
    "dgx-a100-superpod": (3, 12, 25, 300, 8, 6),
    "dgx-h100-superpod": (4, 18, 25, 450, 8, 4),
    "b200-hgx": (5, 18, 50, 900, 8, 2),
    "gb200-nvl72": (5, 18, 50, 900, 72, 18),
}


@pytest.mark.parametrize("name", NVLINK)
def test_nvlink_domains_match_the_table(name: str) -> None:
    cluster = load_cluster(name)
    generation, links, per_link, egress, gpus, switches = NVLINK[name]
    gpu, node = cluster.gpu, cluster.levels[0]
    assert (gpu.link_generation, gpu.links, gpu.link_bytes_per_s) == (generation, links, per_link * GB)
    assert gpu.link_egress_bytes_per_s == node.egress_bytes_per_s == egress * GB
    assert (node.gpus, node.switches) == (gpus, switches)


@pytest.mark.parametrize(
    ("name", "spine_tb", "spine_gb"), [("dgx-h100-superpod-2to1", 25.6, 25), ("dgx-h100-superpod", 51.2, 50)]
)
def test_superpod_levels_match_the_table(name: str, spine_tb: float, spine_gb: float) -> None:
    cluster = load_cluster(name)
    assert [level.name for level in cluster.levels] == ["node", "leaf", "spine"]
    assert [level.gpus for level in cluster.levels] == [8, 256, 1024]
    assert [level.switches for level in cluster.levels] == [4, 8, 16]
    assert [level.total_bytes_per_s / TB for level in cluster.levels] == pytest.approx([3.6, 12.8, spine_tb])
    assert [level.egress_bytes_per_s / GB for level in cluster.levels] == pytest.approx([450, 50, spine_gb])
    assert [rate / GB for rate in allreduce_rates(cluster)] == pytest.approx([450, 400, 400])
    node = cluster.levels[0]
    assert node.switches * node.switch_bytes_per_s == pytest.approx(6.4 * TB)


def test_allreduce_without_switch_reduction_moves_twice_the_bytes() -> None:
    rates = allreduce_rates(load_cluster("aws-p4d"))
    assert rates[0] == pytest.approx(300e9 / (2 * 7 / 8))
    assert rates[1] == pytest.approx(8 * 6.25e9 / (2 * 127 / 128))
    assert allreduce_rates(load_cluster("gh200"))[0] == 0  # one GPU has nothing to reduce


def test_worked_numbers_of_the_h100() -> None:
    gpu = load_gpu("h100")
    assert gpu.sm_count * gpu.cores_per_sm == 16_896
    assert vector_flops_per_s(gpu, gpu.clock_base_hz) / TB == pytest.approx(26.9, abs=0.05)
    assert vector_flops_per_s(gpu, gpu.clock_max_hz) / TB == pytest.approx(33.5, abs=0.05)
    assert gpu.peak("bf16") == pytest.approx(989.0e12, rel=0.002)
    assert gpu.critical_intensity("bf16") == pytest.approx(295, abs=0.5)
    assert load_gpu("b200").critical_intensity("bf16") == pytest.approx(281, abs=0.5)
    assert gpu.smem_per_sm_bytes * gpu.sm_count == gpu.registers_per_sm_bytes * gpu.sm_count == 33 * 2**20


def test_other_published_numbers() -> None:
    assert load_gpu("h800").link_egress_bytes_per_s == 200 * GB
    assert load_gpu("tpu-v5p").link_egress_bytes_per_s == 540 * GB
    assert load_gpu("gh200").host_link_bytes_per_s == 450 * GB
    assert load_gpu("gb200").host_link_bytes_per_s == 225 * GB  # two GPUs share the C2C
    rack = load_cluster("nvl72").levels
    assert rack[1].egress_bytes_per_s * rack[0].gpus == pytest.approx(3.6 * TB)  # 4 x 18 x 400 Gbit/s
    assert load_cluster("h800-deepseek").gpus == 2048


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_is_consistent(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    for precision, half in (("fp8", "bf16"), ("bf16", "fp16")):
        if {precision, half} <= set(gpu.peak_flops_per_s):
            known = FLOPS_PER_SM_PER_CYCLE[gpu.architecture]
            factor, slack = known[precision] / known[half], 0.1 if gpu.announced else 0.03
            assert gpu.peak(precision) == pytest.approx(factor * gpu.peak(half), rel=slack)
    assert set(gpu.peak_flops_per_s) <= set(gpu.kernels.gemm_fraction)
    assert all(len(text) >= 8 for text in gpu.sources.values())
    assert "memory_driver_mib" in gpu.sources
    assert "kernels.hbm_fraction" in gpu.sources


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_is_consistent(name: str) -> None:
    cluster = load_cluster(name)
    egress = [level.egress_bytes_per_s for level in cluster.levels]
    assert egress == sorted(egress, reverse=True)
    assert all(
        f"{level.name}.{key}" in cluster.sources for level in cluster.levels for key in ("gpus", "hop_latency_us")
    )
    assert cluster.extendable or len(cluster.levels) == 1 or cluster.levels[-1].fabric == "pcie"  # one box
    assert all(rate > 0 for level, rate in zip(cluster.levels, allreduce_rates(cluster), strict=True) if level.gpus > 1)


def test_no_two_presets_answer_to_one_name() -> None:
    for specs in (all_gpus(), all_clusters()):
        names = [
            name for spec in specs for name in (spec.name, *(alias for alias in spec.aliases if alias != spec.name))
        ]
        assert len(names) == len(set(names))


def test_gpus_of_published_runs_are_known() -> None:
    path = Path(__file__).parents[2] / "shared" / "validation" / "runs.csv"
    if not path.exists():
        pytest.skip("the published runs are not here")
    with path.open(newline="", encoding="utf-8") as stream:
        names = {row["gpu"] for row in csv.DictReader(stream)} - {"", "tpuv4", "b200-power-limited"}
    assert len(names) > 5
    for name in sorted(names):
        load_gpu(name)


@given(name=st.sampled_from(CLUSTERS), gpus=st.integers(1, MAX_GPUS))
def test_widening_keeps_the_bandwidth_per_gpu(name: str, gpus: int) -> None:
    cluster = load_cluster(name)
    if not cluster.extendable and gpus > cluster.gpus:
        with pytest.raises(InputError, match="cannot be extended"):
            cluster.sized_for(gpus)
        return
    wider, note = cluster.sized_for(gpus)
    assert wider.gpus >= gpus
    assert (note is None) == (gpus <= cluster.gpus)
    assert wider.gpus - gpus < max(cluster.gpus, cluster.levels[-2].gpus if len(cluster.levels) > 1 else 1)
    for before, after in zip(cluster.levels, wider.levels, strict=True):
        assert after.egress_bytes_per_s == pytest.approx(before.egress_bytes_per_s, rel=1e-9)
        assert after.hop_latency_s == before.hop_latency_s


# --- files that users write, and their slips ---------------------------------------------------------------------


def edited(kind: str, name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Copy a preset with lines replaced; an edit that matches nothing fails the test."""
    source = find_preset(kind, name)
    assert source is not None
    text = source.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def line_of(path: Path, start: str) -> int:
    """Return the first line that starts with `start`."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return next(number for number, line in enumerate(lines, start=1) if line.startswith(start))


GPU_SLIPS = [
    ("peak_bf16_tflops = 989.4", "peak_bf16_tflops = 1979", "sparsity"),
    ("peak_fp8_tflops = 1978.9", "peak_fp8_tflops = 3958", "sparsity"),
    ("peak_bf16_tflops = 989.4", "peak_bf16_tflops = 494.7", "dense rate"),
    ("peak_bf16_tflops = 989.4", "peak_bf16_tflops = 989400", "TFLOP/s"),
    ("peak_fp16_tflops = 989.4", "peak_fp16_tflops = 756", "may be the rate with sparsity"),
    ("peak_fp8_tflops = 1978.9", "peak_fp8_tflops = 1978.9\npeak_fp4_tflops = 3958", "it has"),
    ("memory_bandwidth_gb_per_s = 3350", "memory_bandwidth_gb_per_s = 26800", "bits"),
    ("memory_bandwidth_gb_per_s = 3350", "memory_bandwidth_gb_per_s = 3.35", "3350"),
    ("memory_bandwidth_gb_per_s = 3350", "memory_bandwidth_gb_per_s = 6700", "GB/s"),
    ("memory_driver_mib = 81559", "memory_driver_mib = 652472", "nvidia-smi"),
    ("link_gb_per_s_per_direction = 25", "link_gb_per_s_per_direction = 50", "one direction"),
    ("link_gb_per_s_per_direction = 25", "link_gb_per_s_per_direction = 200", "Gbit/s"),
    ("links = 18", "links = 36", "both directions"),
    ("host_link_gb_per_s_per_direction = 63", "host_link_gb_per_s_per_direction = 126", "one direction"),
    ("host_link_gb_per_s_per_direction = 63", "host_link_gb_per_s_per_direction = 504", "Gbit/s"),
    ("clock_boost_mhz = 1755", "clock_boost_mhz = 1400", "base <= boost"),
]


@pytest.mark.parametrize(("old", "new", "hint"), GPU_SLIPS, ids=[new.split("\n")[-1] for _, new, _ in GPU_SLIPS])
def test_gpu_slips_are_refused_with_file_line_and_hint(tmp_path: Path, old: str, new: str, hint: str) -> None:
    path = edited("gpus", "h100-sxm-80gb", tmp_path, (old, new))
    with pytest.raises(InputError) as caught:
        load_gpu(str(path))
    key = new.rsplit("\n", maxsplit=1)[-1].split(" = ", maxsplit=1)[0]
    assert str(caught.value.place) == f"{path}:{line_of(path, key + ' =')}"
    assert hint in str(caught.value.hint)
    assert f'[guards] accept = ["{key}"]' in str(caught.value.hint)


SWITCH = "switch_gb_per_s_per_direction"
LEAVES = (
    '"switches, switch_gb_per_s_per_direction" = "8 leaf switches (NDR, 64 x 400 Gbit/s), half of the ports down: '
    '1.6 TB/s each"\n'
)
CLUSTER_SLIPS = [
    ("link_gb_per_s_per_gpu_per_direction = 450", "link_gb_per_s_per_gpu_per_direction = 900", "one direction"),
    ("link_gb_per_s_per_gpu_per_direction = 450", "link_gb_per_s_per_gpu_per_direction = 3600", "Gbit/s"),
    ("link_gb_per_s_per_gpu_per_direction = 50", "link_gb_per_s_per_gpu_per_direction = 400", "Gbit/s"),
    ("link_gb_per_s_per_gpu_per_direction = 50", "link_gb_per_s_per_gpu_per_direction = 100", "one direction"),
    ("nic_gbit_per_s = 400", "nic_gbit_per_s = 50", "one direction|Gbit/s"),
    ("nic_gbit_per_s = 400", "nic_gbit_per_s = 3200", "rates are"),
    ("switch_gb_per_s_per_direction = 1600", "switch_gb_per_s_per_direction = 12800", "one direction"),
]


@pytest.mark.parametrize(("old", "new", "hint"), CLUSTER_SLIPS, ids=[new for _, new, _ in CLUSTER_SLIPS])
def test_cluster_slips_are_refused_with_file_line_and_hint(tmp_path: Path, old: str, new: str, hint: str) -> None:
    path = edited("clusters", "dgx-h100-superpod", tmp_path, (old, new))
    with pytest.raises(InputError) as caught:
        load_cluster(str(path))
    key = "link_gb" if new == "nic_gbit_per_s = 50" else new
    line = int(str(caught.value.place).rsplit(":", 1)[1])
    assert path.read_text(encoding="utf-8").split("\n")[line - 1].startswith(key)
    assert any(part in str(caught.value.hint) for part in hint.split("|"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("gpus = 256", "gpus = 260")], "not a multiple"),
        ([("gpus = 256", "gpus = 8")], "not a multiple"),
        ([('name = "leaf"', 'name = "node"')], "second level called"),
        ([("nics_per_gpu = 1\n", ""), ('"nics_per_gpu, nic', '"nic')], "does not say of which network cards"),
        ([("in_network_reduction = true", "in_network_reduction = 1")], "should be true or false"),
        ([('gpu = "h100-sxm-80gb"', 'gpu = "a100-sxm-80gb"')], "carry 300 GB/s"),
        ([('fabric = "infiniband"', 'fabric = "roce"')], "does not reduce in the network"),
        ([("switches = 8\nswitch_gb_per_s_per_direction = 1600", "switches = 8")], "switches that carry nothing"),
        ([(f"switches = 8\n{SWITCH} = 1600", f"switches = 8\n{SWITCH} = 3200")], "2 times what the GPUs' links carry"),
        (
            [("switches = 8\nswitch_gb_per_s_per_direction = 1600", "switches = 0"), (LEAVES, "")],
            "0 switches does not reduce",
        ),
        ([("link_efficiency = 0.96", "link_efficiency = 96")], "should be at most 1"),
    ],
)
def test_impossible_levels_are_refused(tmp_path: Path, changes: list[tuple[str, str]], message: str) -> None:
    path = edited("clusters", "dgx-h100-superpod", tmp_path, *changes)
    with pytest.raises(InputError, match=message) as caught:
        load_cluster(str(path))
    assert str(caught.value.place).startswith(f"{path}:")


def test_a_level_may_not_send_more_than_the_one_below(tmp_path: Path) -> None:
    source = find_preset("clusters", "aws-g6e")
    assert source is not None
    text = source.read_text(encoding="utf-8")
    for old, new in (("nics_per_gpu = 0.5", "nics_per_gpu = 4"), ("= 6.25", "= 50")):
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"only 31\.5 leave node"):
        load_cluster(str(path))


def test_a_number_without_a_source_is_refused(tmp_path: Path) -> None:
    path = edited("gpus", "h100-sxm-80gb", tmp_path, ('\nhost_link_gb_per_s_per_direction = "PCI', '\n# = "PCI'))
    with pytest.raises(InputError, match="host_link_gb_per_s_per_direction has no source") as caught:
        load_gpu(str(path))
    assert str(caught.value.place) == f"{path}:{line_of(path, 'host_link_gb_per_s_per_direction')}"
    assert "guesstimate: why" in str(caught.value.hint)


def test_a_source_of_nothing_is_refused(tmp_path: Path) -> None:
    path = edited("gpus", "h100-sxm-80gb", tmp_path, ('"peak_*" =', '"peek_*" = "a typing error"\n"peak_*" ='))
    with pytest.raises(InputError, match=r"'peek_\*' in sources matches no key") as caught:
        load_gpu(str(path))
    assert str(caught.value.place) == f"{path}:{line_of(path, chr(34) + 'peek_')}"


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = edited("clusters", "dgx-h100-superpod", tmp_path, ("hop_latency_us = 5\n", "hop_latency_ms = 5\n"))
    with pytest.raises(InputError, match="unknown key") as caught:
        load_cluster(str(path))
    assert "hop_latency_us" in str(caught.value.hint)
    assert str(caught.value.place) == f"{path}:{line_of(path, 'hop_latency_ms')}"


def test_guards_accept_lets_a_number_through(tmp_path: Path) -> None:
    guards = (
        '[guards]\naccept = ["peak_bf16_tflops", "peak_fp16_tflops"]\nreason = "an engineering sample"\n\n[sources]'
    )
    path = edited(
        "gpus",
        "h100-sxm-80gb",
        tmp_path,
        ("[sources]", guards),
        ("peak_bf16_tflops = 989.4", "peak_bf16_tflops = 1900"),
        ("peak_fp16_tflops = 989.4", "peak_fp16_tflops = 1900"),
    )
    with pytest.raises(InputError, match="peak_tf32_tflops"):  # 494.7 beside 1900 is accepted only if named too
        load_gpu(str(path))
    accepted = path.read_text(encoding="utf-8").replace(
        '"peak_fp16_tflops"]', '"peak_fp16_tflops", "peak_tf32_tflops", "peak_fp8_tflops"]'
    )
    path.write_text(accepted, encoding="utf-8")
    assert load_gpu(str(path)).peak("bf16") == 1900e12


def test_an_architecture_of_ones_own_is_possible(tmp_path: Path) -> None:
    path = edited("gpus", "h100-sxm-80gb", tmp_path, ('architecture = "hopper"', 'architecture = "feynman"'))
    assert load_gpu(str(path)).architecture == "feynman"
    path = edited(
        "gpus", "h100-sxm-80gb", tmp_path, ('"hopper"', '"feynman"'), ("_bf16_tflops = 989.4", "_bf16_tflops = 989400")
    )
    with pytest.raises(InputError, match="FLOPs per SM and cycle"):
        load_gpu(str(path))


def test_a_cluster_may_name_a_gpu_file_beside_it(tmp_path: Path) -> None:
    path = edited("clusters", "dgx-h100-superpod", tmp_path, ('gpu = "h100-sxm-80gb"', 'gpu = "gpus/own.toml"'))
    (tmp_path / "gpus").mkdir()
    source = find_preset("gpus", "h100-sxm-80gb")
    assert source is not None
    (tmp_path / "gpus" / "own.toml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    assert load_cluster(str(path)).gpu.name == "own"


def test_own_kernels_go_before_those_of_another_gpu(tmp_path: Path) -> None:
    own = '[kernels]\nlaunch_us = 9\n[kernels.sources]\nlaunch_us = "our own traces"\n'
    path = edited("gpus", "vr200", tmp_path, ("[sources]", f"{own}[sources]"))
    mine, other = load_gpu(str(path)).kernels, load_gpu("gb300").kernels
    assert mine == replace(other, launch_s=9e-6)
    sources = load_gpu(str(path)).sources
    assert (sources["kernels.launch_us"], sources["kernels.tile_m"][:10]) == ("our own traces", "as gb300: ")


def test_kernels_are_given_and_lent_once(tmp_path: Path) -> None:
    for old, new, message in (
        ('kernels_like = "gb300"', "", "key 'kernels_like' (or kernels) is missing"),
        ("gb300", "rtx-4090", "borrows its kernels itself"),
        ("[sources]", "[kernels]\nlaunch_us = 9\n[sources]", "launch_us has no source"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=re.escape(message)):
            load_gpu(str(edited("gpus", "vr200", tmp_path, (old, new))))


@pytest.mark.parametrize("kind", ["gpus", "clusters"])
def test_a_file_cut_off_anywhere_is_refused_or_whole(tmp_path: Path, kind: str) -> None:
    load = load_gpu if kind == "gpus" else load_cluster
    source = find_preset(kind, "h100-sxm-80gb" if kind == "gpus" else "dgx-h100-superpod")
    assert source is not None
    text = source.read_text(encoding="utf-8").rstrip()
    path = tmp_path / "cut.toml"
    for end in range(0, len(text) - 1, 97):
        path.write_text(text[:end], encoding="utf-8")
        try:
            load(str(path))
        except InputError as error:
            assert str(error.place).startswith(str(path))
        else:  # a cut between two levels leaves a smaller, valid cluster
            assert kind == "clusters"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e400", "true", '"450"', "9" * 500, "{}", "[]"])
def test_no_number_but_a_number(tmp_path: Path, value: str) -> None:
    path = edited("gpus", "h100-sxm-80gb", tmp_path, ("power_w = 700", f"power_w = {value}"))
    with pytest.raises(InputError) as caught:
        load_gpu(str(path))
    assert str(caught.value.place) == f"{path}:{line_of(path, 'power_w')}"


DOCS = Path(__file__).parents[1] / "docs" / "hardware.md"


def test_the_guide_names_every_key() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for table in (GPU, CLUSTER, LEVEL, GUARDS, HOST, POOL, CURVE):
        for key in table.columns:
            assert f"`{key}`" in text or f"[{key}]" in text or f"\n  {key} =" in text or f"{key} = " in text, key


def test_the_example_of_the_guide_loads(tmp_path: Path) -> None:
    text = DOCS.read_text(encoding="utf-8")
    path = tmp_path / "example.toml"
    path.write_text(text[text.rindex("```toml") + 7 : text.rindex("```")], encoding="utf-8")
    cluster = load_cluster(str(path))
    assert cluster.levels[1].egress_bytes_per_s == 6.25e9
    assert cluster.sized_for(64)[0].gpus == 64


def test_l2_bandwidth_and_tensor_memory_are_shown_where_they_are_published():
    h100, b200, l40s = (load_gpu(name) for name in ("h100", "b200", "l40s"))
    assert (h100.l2_bytes_per_s, h100.tmem_per_sm_bytes) == (5.5e12, 0)
    assert (b200.l2_bytes_per_s, b200.tmem_per_sm_bytes) == (0.0, 256 * 1024)
    assert (l40s.l2_bytes_per_s, l40s.tmem_per_sm_bytes) == (0.0, 0)
    for name, said, absent in (("h100", "50 MiB at 5,500 GB/s", "tensor memory"), ("b200", "tensor memory", "MiB at")):
        out = gpuscale("hardware", "show", name).out
        assert said in out
        assert absent not in out
    (document,) = json.loads(gpuscale("hardware", "show", "b200", "--json").out)["gpus"]
    assert (document["tmem_per_sm_bytes"], document["l2_gb_per_s"]) == (262144, None)


def test_l2_is_faster_than_the_memory_behind_it():
    for gpu in all_gpus():
        if gpu.l2_bytes_per_s:
            assert 1.1 < gpu.l2_bytes_per_s / gpu.memory_bandwidth_bytes_per_s < 10
            assert gpu.sources["l2_gb_per_s"].startswith(("measured: ", "width: "))


ANNOUNCED = "announced, not measured"


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--model", "llama3-8b", "--gpus", 8, "--top", 1), ("estimate", "--model", "llama3-8b", "--gpus", 8),
        ("collective", "allreduce", "--bytes", "1GB", "--gpus", 8), ("roofline",), ("show", "clusters", "vr200"),
        ("size", "batch", "--model", "llama3-8b", "--gpus", 8, "--tokens", "1T"), ("placement", "--gpus", 8),
        ("explain", "checklist", "--model", "llama3-8b"),
    ],
)  # fmt: skip
def test_answers_about_an_announced_gpu_say_so(command):
    cluster = () if command[:2] == ("show", "clusters") else ("--cluster", "vr200-nvl72")
    assert ANNOUNCED in " ".join(gpuscale(*command, *cluster).out.split())
    other = ("show", "clusters", "gb300") if not cluster else (*command, "--cluster", "gb300-nvl72")
    assert ANNOUNCED not in " ".join(gpuscale(*other).out.split())


def test_rubin_is_as_announced_and_its_interval_is_wider_than_blackwells():
    rubin, rack = load_gpu("r100"), load_cluster("vrnvl72")
    assert (rubin.name, rubin.sm_count, rack.levels[0].gpus) == ("vr200", 224, 72)
    assert rack.levels[0].egress_bytes_per_s == rubin.link_egress_bytes_per_s == 1.8e12
    assert all("announced" in rubin.sources[key] for key in ("peak_bf16_tflops", "peak_fp8_tflops", "sm_count"))
    half = {}
    for name in ("vr200-nvl72", "gb300-nvl72"):
        plan = estimate("llama3-8b", 8, cluster=name, framework="megatron-bridge-perf", precision="mxfp8").plan
        half[name] = plan.step_time_high_s / plan.step_time_low_s
        assert ("GPUs of the generation rubin" in " ".join(plan.unmeasured)) == (name == "vr200-nvl72")
    assert half["vr200-nvl72"] > 1.1 * half["gb300-nvl72"]
