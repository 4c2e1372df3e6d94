"""Racks of 72: how many GPUs of each a job takes, and that every command says and uses it."""

import pytest
from command import gpuscale
from jobs import job

from gpuscale import estimate, place_ranks, plan
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster

RACKS = load_cluster("gb200-nvl72")


@pytest.mark.parametrize(
    ("gpus", "groups", "taken"),
    [
        (4, (), 72), (64, (16,), 72), (68, (), 72), (72, (), 72),  # one rack holds the job
        (96, (), 64), (128, (), 64), (256, (), 64), (512, (), 64), (2048, (), 64), (1000, (), 64),
        (144, (), 72), (576, (), 72), (9216, (), 72), (576, (8, 72), 72),  # whole racks
        (576, (16, 1), 64), (9216, (8, 64), 64), (576, (1, 128), 72),
        (96, (12,), 72), (144, (5,), 72), (256, (9, 16), 64),  # neither holds 5, nor 9 and 16
    ],
)  # fmt: skip
def test_a_job_over_several_racks_takes_64_of_72_gpus_unless_it_fills_them(gpus, groups, taken):
    assert RACKS.usual_gpus_per_node(gpus, groups) == taken


@pytest.mark.parametrize("cluster", ["dgx-h100-superpod", "dgx2-v100", "gh200-quad", "tpu-v5p-pod", "gb200-nvl576"])
def test_other_nodes_are_taken_whole(cluster):
    whole = load_cluster(cluster)
    assert whole.usual_gpus_per_node(1000, (3, 16)) == whole.levels[whole.domain_index].gpus


def test_a_part_of_a_rack_keeps_links_and_cards():
    part = RACKS.with_gpus_per_node(64)
    assert [level.gpus for level in part.levels] == [64, 512, 8192]
    rates = [[level.egress_bytes_per_s for level in one.levels] for one in (RACKS, part)]
    assert rates[0] == rates[1]
    assert part.with_gpus_per_node(64) is part
    assert part.usual_gpus_per_node(256) == 64
    with pytest.raises(InputError, match="70 GPUs per node") as refused:
        RACKS.with_gpus_per_node(70)
    assert refused.value.hint == "give a divisor of 72 up to 4, or a multiple of 4"


def test_tp16_on_64_gpus_of_one_rack_is_planned_and_overlaps():
    found = plan("llama3.1-405b", 64, cluster="gb200-nvl72", pins={"tp": 16}, top=1)
    assert found.plans[0].tp == 16
    assert "gpus_per_node" not in found.assumptions


def test_the_answer_says_what_is_spare_and_an_option_decides_otherwise():
    said = "64 of the 72 GPUs of each rack, 8 spare (default)"
    spread = {"cluster": "gb200-nvl72", "gbs": 256}
    assert plan("llama3-8b", 128, top=1, **spread).assumptions["gpus_per_node"] == said
    assert estimate("llama3-8b", 576, {"tp": 16}, cluster="gb200-nvl72").assumptions["gpus_per_node"] == said
    assert said in place_ranks(256, {"tp": 8}, cluster="gb200-nvl72").notes
    whole = plan("llama3-8b", 128, top=1, gpus_per_node=72, **spread)
    assert whole.assumptions["gpus_per_node"] == "72 of the 72 GPUs of each rack"
    assert "gpus_per_node" not in plan("llama3-8b", 144, top=1, gbs=144, cluster="gb200-nvl72").assumptions


@pytest.mark.parametrize(("layout", "code"), [(("--tp", "16"), "tp_straddles"), (("--ep", "64"), "ep_straddles")])
def test_what_straddles_racks_is_refused_with_the_option_that_helps(layout, code):
    run = ("estimate", "--model", "deepseek-v3", "--gpus", "576", "--cluster", "gb200-nvl72", *layout)
    refused = gpuscale(*run, "--gpus-per-node", "72")
    assert (refused.code, refused.out) == (2, "")
    assert f"({code}_level)" in refused.err
    assert "--gpus-per-node" in refused.err
    assert "with --framework" not in refused.err  # none of them runs it on whole racks either
    assert gpuscale(*run).code == 0


def test_a_plan_is_estimated_on_the_same_part_of_the_racks(tmp_path):
    found = plan("deepseek-v3", 576, cluster="gb200-nvl72", pins={"ep": 64}, top=1)
    best = found.plans[0]
    names = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "zero", "micro_batch_size", "recompute")
    layout = {name: getattr(best, name) for name in names} | {"shard": best.shard_size}
    settings = {name: found.job[name] for name in ("cuda_graphs", "overlap", "dispatcher") if name in found.job}
    again = estimate("deepseek-v3", 576, layout, cluster="gb200-nvl72", **settings)
    assert again.plan.step_time_s == best.step_time_s
    assert job("deepseek-v3", 576, cluster="gb200-nvl72").cluster.node_gpus == 72
