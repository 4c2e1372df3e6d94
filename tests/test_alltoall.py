"""AllToAll with uneven messages, in two phases, and token by token."""

import json
from dataclasses import replace

import numpy as np
import pytest
from clusters import superpod_2to1
from command import assert_one_message, gpuscale
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import job, seconds

from gpuscale.collectives.alltoall import Routing, deduplicated_s, distinct_targets, hierarchical_s
from gpuscale.collectives.estimate import Siblings, price_collective
from gpuscale.collectives.nccl_constants import Tuning
from gpuscale.collectives.times import collective_time_s
from gpuscale.planning.plans import estimate
from gpuscale.presets.hardware import load_cluster
from gpuscale.steptime import blocks

CLUSTER = superpod_2to1()
groups = st.sampled_from([(8, 1), (16, 1), (64, 1), (4, 8), (32, 8), (256, 1), (512, 1), (1024, 1)])
sizes = st.integers(0, 34).map(lambda power: 2.0**power)


# -- uneven messages --


@given(groups, sizes, st.floats(1, 4), st.floats(1, 4), st.booleans())
@settings(deadline=None)
def test_more_imbalance_is_never_faster(group, size, one, other, ideal):
    times = [
        collective_time_s(CLUSTER, "alltoall", size, *group, ideal=ideal, tuning=Tuning(imbalance=factor)).item()
        for factor in sorted((one, other))
    ]
    assert times[0] <= times[1] * (1 + 1e-12)


def test_the_busiest_gpu_has_its_own_links_to_itself():
    even, busy = (
        collective_time_s(CLUSTER, "alltoall", 2**30, 64, ideal=True, tuning=Tuning(imbalance=factor)).item()
        for factor in (1.0, 1.5)
    )
    assert busy / even == pytest.approx(1.5)
    assert even == collective_time_s(CLUSTER, "alltoall", 2**30, 64, ideal=True).item()


def test_switches_are_shared_with_the_others():
    """Half of the leaf's 50 GB/s per GPU enter the spine: it takes 257/256 as long, and the leaf's links bind."""
    one = superpod_2to1(spine={"switch_bytes_per_s": 400e9})  # 6.25 GB/s per GPU: far narrower than the links
    even, busy = (
        collective_time_s(one, "alltoall", 2**30, 1024, ideal=True, tuning=Tuning(imbalance=factor)).item()
        for factor in (1.0, 2.0)
    )
    assert busy / even == pytest.approx(257 / 256)


def test_a_card_is_shared_with_its_other_gpus():
    cluster = load_cluster("polaris")  # two GPUs to a card
    even, busy = (
        collective_time_s(cluster, "alltoall", 2**30, 16, ideal=True, tuning=Tuning(imbalance=factor)).item()
        for factor in (1.0, 3.0)
    )
    assert busy / even == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("alltoall", "--imbalance", "0.5"), "--imbalance: 0.5 is out of range", "1 where all are even"),
        (("alltoall", "--imbalance", "nan"), "'nan' is not a number", "lists what it takes"),
        (("alltoall", "--gpus", "4", "--imbalance", "5"), "one of 4 GPUs cannot have 5 times the mean", "give 1 to 4"),
        (("allgather", "--imbalance", "2"), "allgather moves the same from every GPU", "it is for alltoall"),
        (("alltoall", "--topk", "8"), "only an exchange token by token knows of experts", "add --algo deepep"),
        (("alltoall", "--algo", "deepep", "--topk", "0"), "--topk: 0 is out of range", "give 1 to 1,024"),
        (
            ("alltoall", "--algo", "deepep", "--nodes-per-token", "2000"),
            "--nodes-per-token: 2000 is out of range",
            "give 1 to 1,024",
        ),
        (
            ("alltoall", "--gpus", "8", "--algo", "hierarchical"),
            "hierarchical cannot run alltoall over 8 GPUs in one node",
            "across nodes",
        ),
        (("allgather", "--algo", "deepep"), "deepep cannot run allgather over 1,024 GPUs", "across nodes"),
        (("alltoall", "--algo", "deepep", "--proto", "ll"), "deepep with LL cannot run", "no protocol of NCCL"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, hint):
    assert_one_message(gpuscale("collective", *arguments, "--bytes", "1MB"), message, hint)


def test_the_verdict_tells_of_the_busiest():
    done = gpuscale("collective", "alltoall", "--bytes", "1GB", "--gpus", "64", "--imbalance", "1.5", columns=200)
    assert "over 64 GPUs, the busiest with 1.5 times the mean (leaf of" in done.lines[0]
    assert "x (1 - 8/64) x 1.5 / 50 GB/s" in done.out


# -- two phases --


@given(groups, sizes)
@settings(deadline=None)
def test_two_phases_are_the_two_exchanges_and_sorting(group, size):
    gpus, stride = group
    inside = min(max(8 // stride, 1), gpus)
    found = hierarchical_s(CLUSTER, np.array([size]), gpus, stride)
    sort_s = 4 * size / CLUSTER.gpu.memory_bandwidth_bytes_per_s if gpus > inside else 0.0
    within = collective_time_s(CLUSTER, "alltoall", size, inside, stride).item()
    across = collective_time_s(CLUSTER, "alltoall", size, gpus // inside, inside * stride).item()
    assert found.inside_s.item() == pytest.approx(within + sort_s)
    assert found.across_s.item() == pytest.approx(across)


def test_two_phases_win_where_messages_are_many_and_small():
    small, large = (
        [price_collective(CLUSTER, "alltoall", size, gpus=512, algorithm=how).time_s for how in ways]
        for size, ways in ((2**20, ("hierarchical", "pairwise")), (2**32, ("hierarchical", "pairwise")))
    )
    assert small[0] < small[1] / 5
    assert large[0] > large[1]


@given(st.sampled_from([(16, 1), (64, 1), (1024, 1), (32, 4)]), st.integers(0, 34))
@settings(deadline=None)
def test_two_phases_are_never_faster_than_the_wire(group, power):
    found = price_collective(CLUSTER, "alltoall", 2**power, gpus=group[0], siblings=None, algorithm="hierarchical")
    assert found.time_s >= found.ideal_time_s
    assert (found.next_best, found.model) == ("point-to-point Simple", "nccl")


# -- token by token --


@pytest.mark.parametrize("dispatch", ["deepep", "alltoall"])
def test_the_step_time_model_uses_the_same_function(dispatch, monkeypatch):
    asked = []

    def spy(*given, **how):
        asked.append(given)
        return deduplicated_s(*given, **how)

    monkeypatch.setattr(blocks, "deduplicated_s", spy)
    spec = job("deepseek-v3", 256)
    spec = replace(spec, runtime=replace(spec.runtime, dispatcher=dispatch))
    seconds(spec, ep=64, pp=4, micro_batch_size=1)
    routings = {given[4] for given in asked}
    assert routings == ({Routing(8, 8, 4, 256)} if dispatch == "deepep" else set())


@given(groups, sizes)
@settings(deadline=None)
def test_one_expert_per_token_leaves_nothing_to_save(group, size):
    """Every token goes to one GPU of one node: over the network it is the exchange of nodes, inside that of a node."""
    gpus, stride = group
    inside = min(max(8 // stride, 1), gpus)
    found, ideal = (deduplicated_s(CLUSTER, np.array([size]), gpus, stride, Routing(1), ideal=one) for one in (0, 1))
    within = collective_time_s(CLUSTER, "alltoall", size, inside, stride, ideal=True).item()
    across = collective_time_s(CLUSTER, "alltoall", size, gpus // inside, inside * stride).item()
    assert (ideal.inside_s.item(), found.across_s.item()) == pytest.approx((within, across))


@given(st.sampled_from([16, 64, 256]), st.integers(20, 34), st.integers(1, 16), st.integers(1, 8), st.integers(1, 8))
@settings(deadline=None)
def test_fewer_nodes_per_token_are_never_slower(gpus, power, topk, one, other):
    times = [
        price_collective(
            CLUSTER, "alltoall", 2**power, gpus=gpus, algorithm="deepep", experts_per_token=topk, nodes_per_token=nodes
        ).time_s
        for nodes in sorted((one, other))
    ]
    assert times[0] <= times[1] * (1 + 1e-12)


@given(st.sampled_from([8, 16, 64, 256]), st.integers(0, 34), st.integers(1, 16), st.floats(1, 4))
@settings(deadline=None)
def test_tokens_never_beat_the_wire_and_busier_gpus_never_help(gpus, power, topk, factor):
    even, busy = (
        price_collective(
            CLUSTER, "alltoall", 2**power, gpus=gpus, algorithm="deepep", experts_per_token=topk,
            tuning=Tuning(imbalance=one),
        )
        for one in (1.0, factor)
    )  # fmt: skip
    assert even.time_s >= even.ideal_time_s
    assert busy.time_s >= even.time_s * (1 - 1e-12)


@pytest.mark.parametrize("algorithm", ["deepep", "hierarchical"])
@pytest.mark.parametrize("bytes_", [1, 5, 8])
def test_a_few_bytes_take_their_latency_and_a_little(algorithm, bytes_):
    found = price_collective(CLUSTER, "alltoall", bytes_, algorithm=algorithm)
    assert 0 < found.latency_s <= found.time_s
    assert found.ideal_time_s > 0
    crossed = [level for level in found.levels if level.members > 1]
    assert all(level.time_s >= 0 for level in crossed)
    assert max(level.time_s for level in crossed) > 0


def test_a_gpu_alone_in_its_node_holds_up_two_phases():
    cluster = load_cluster("b200-hgx")
    for tuning in (Tuning(), Tuning(imbalance=1.5)):
        found = price_collective(
            cluster, "alltoall", 2**33, gpus=7, siblings=Siblings(3, 2), algorithm="hierarchical", tuning=tuning
        )
        assert found.time_s >= found.ideal_time_s


def test_fewer_sms_never_copy_faster():
    times = [
        price_collective(CLUSTER, "alltoall", 2**30, gpus=8, algorithm="deepep", tuning=Tuning(channels=sms)).time_s
        for sms in (64, 24, 20, 4)
    ]
    free = price_collective(CLUSTER, "alltoall", 2**30, gpus=8, algorithm="deepep").time_s
    assert [free, *times] == sorted([free, *times])


OWN = "deepseek-ai/DeepEP, docs/legacy.md and README.md"
AIC = "NVIDIA AIConfigurator's kernel database: DeepEP normal kernels with 20 SMs"
FP8, BF16 = 7168 * 1.03, 7168 * 2  # bytes of a token; one scale in 32 bits for 128 values of fp8


@pytest.mark.parametrize(
    ("source", "cluster", "gpus", "tokens", "copy", "nodes_per_token", "sms", "measured_us"),
    [  # DeepEP's bandwidths are those of all copies, the own node's and GPU's too: time = copies / bandwidth
        (OWN, "h800-deepseek", 8, 4096, FP8, None, None, 4096 * FP8 * 5.251 / 153e3),
        (OWN, "h800-deepseek", 8, 4096, BF16, None, None, 4096 * BF16 * 5.251 / 158e3),
        (OWN, "h800-deepseek", 16, 4096, FP8, 4, None, 4096 * FP8 * 1.992 / 43e3),
        (OWN, "h800-deepseek", 32, 4096, FP8, 4, None, 4096 * FP8 * 3.6 / 58e3),
        (OWN, "h800-deepseek", 64, 4096, BF16, 4, None, 4096 * BF16 * 3.6 / 50e3),
        (OWN, "azure-ndv5", 32, 8192, FP8, None, None, 8192 * FP8 * 3.6 / 61e3),
        (OWN, "b200-hgx", 16, 8192, BF16, None, None, 8192 * BF16 * 1.992 / 91e3),
        (OWN, "b200-hgx", 8, 8192, BF16, None, None, 8192 * BF16 * 5.251 / 740e3),
        (AIC, "azure-ndv5", 8, 4096, FP8, None, 20, 491.2),
        (AIC, "azure-ndv5", 8, 16384, BF16, None, 20, 3513.3),
        (AIC, "azure-ndv5", 32, 8192, FP8, None, 20, 3518.0),
        (AIC, "azure-ndv5", 32, 16384, BF16, None, 20, 13578.0),
        (AIC, "b200-hgx", 8, 8192, FP8, None, 20, 977.1),
        (AIC, "b300-hgx", 8, 16384, BF16, None, 20, 3016.3),
    ],
)
def test_deepep_within_a_fifth_of_published_kernels(
    source, cluster, gpus, tokens, copy, nodes_per_token, sms, measured_us
):
    found = price_collective(
        load_cluster(cluster), "alltoall", round(tokens * copy * 8), gpus=gpus, algorithm="deepep",
        experts_per_token=8, nodes_per_token=nodes_per_token, tuning=Tuning(channels=sms),
    )  # fmt: skip
    assert found.time_s == pytest.approx(measured_us * 1e-6, rel=0.22), source


def test_deepep_at_the_terminal():
    body = json.loads(
        gpuscale(
            "collective", "alltoall", "--bytes", "64MB", "--gpus", "64", "--algo", "deepep", "--nodes-per-token", "4",
            "--channels", "20", "--json",
        ).out
    )  # fmt: skip
    assert (body["algorithm"], body["model"], body["channels"], body["nccl"]) == ("DeepEP", "deepep", 20, "")
    assert body["formula"].startswith("bytes / topk x targets x (1 - 1/k) / egress = 64,000,000 B / 8 x 3.6 x")
    assert body["time_s"] < body["next_best_time_s"]
    table = gpuscale("collective", "alltoall", "--sweep", "1MB..1GB", "--gpus", "64", "--algo", "hierarchical", "--csv")
    assert "hierarchical" in table.out


def test_who_posts_the_tokens_decides_over_networks_that_the_gpu_cannot_post_to():
    """Over EFA NCCL's AllToAll is the fastest with few tokens and the slowest with many, UCCL the fastest with many."""
    cluster = load_cluster("aws-p5en")

    def exchange_s(tokens, transport, where=cluster):
        copies = np.array([tokens * 7168 * 2.0])
        found = deduplicated_s(where, copies, 32, 1, Routing(8), transport=transport)
        return float(np.maximum(*found)[0])

    def nccl_s(tokens):
        return collective_time_s(cluster, "alltoall", tokens * 8 * 7168 * 2.0, 32).item()

    assert nccl_s(128) < exchange_s(128, "nvshmem") < exchange_s(128, "uccl")
    assert exchange_s(4096, "uccl") < exchange_s(4096, "nvshmem") < nccl_s(4096)
    verbs = load_cluster("dgx-h100-superpod")
    assert exchange_s(512, "uccl", verbs) == exchange_s(512, "nvshmem", verbs)


def test_deepep_over_other_networks_reaches_no_more_than_its_share_of_the_wire():
    for name, transport, share in (
        ("aws-p5en", "uccl", 1.0),
        ("aws-p5en", "nvshmem", 0.4),
        ("polaris", "nvshmem", 0.4),
    ):
        cluster, copies = load_cluster(name), np.array([1e9])
        found = deduplicated_s(cluster, copies, 64, 1, Routing(8), transport=transport).across_s
        wire_s = deduplicated_s(cluster, copies, 64, 1, Routing(8), ideal=True).across_s
        assert wire_s / found == pytest.approx(share * cluster.levels[1].link_efficiency)


@pytest.mark.parametrize(("cluster", "gpus", "measured"), [("b200-hgx", 8, 383), ("dgx-h100-superpod", 8, 290)])
def test_deepep_s_sms_bound_its_rate_over_nvlink(cluster, gpus, measured):
    """GB/s of all copies, dispatch and combine: on B200 between 325 with 16 SMs and 457 with 24 (deepseek-ai/DeepEP,
    Hybrid-EP_Implementation.md), on H100 280 to 300 with 20 (AIConfigurator); HybridEP reaches NVLink's."""
    spec = job("deepseek-v3", gpus, cluster=cluster)
    copies = np.array([4096 * 7168 * 2.0])
    routing, targets = Routing(8), gpus * (1 - (1 - 1 / gpus) ** 8)
    inside_s = deduplicated_s(spec.cluster, copies, gpus, 1, routing, sms=blocks.DEEPEP_SMS).inside_s
    assert (copies * targets / inside_s).item() / 1e9 == pytest.approx(measured, rel=0.1)
    deepep, hybridep = (replace(spec, runtime=replace(spec.runtime, dispatcher=one)) for one in ("deepep", "hybridep"))
    assert seconds(deepep, ep=8)["ep_comm"] > 1.1 * seconds(hybridep, ep=8)["ep_comm"]


HYBRIDEP = {8: (750, 764, 737), 16: (662, 707, 666), 24: (638, 666, 640), 32: (630, 642, 605), 36: (613, 632, 597)}
"""GPUs of a GB200 rack -> GB/s of all copies over kernel time: tokens to experts with 16 and with 32 SMs, and back
with 32 (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md). The former carry a probability of 4 bytes
for each of 8 experts of every GPU."""


@pytest.mark.parametrize("gpus", HYBRIDEP)
def test_hybridep_in_a_rack_within_an_eighth_of_published_kernels(gpus):
    tokens, routing = np.array([4096.0]), Routing(8, experts=8 * gpus)
    for gb_per_s, probability_bytes in zip(HYBRIDEP[gpus], (4, 4, 0), strict=True):
        measured_s = tokens * 7168 * 2 * distinct_targets(np.array([gpus]), routing) / gb_per_s / 1e9
        copies = tokens * (7168 * 2 + 8 * gpus * probability_bytes)
        found = deduplicated_s(load_cluster("gb200-nvl72"), copies, gpus, 1, routing)
        assert found.inside_s == pytest.approx(measured_s, rel=0.12)


def test_kernels_that_write_tokens_themselves_keep_their_rate_on_more_gpus():
    """NCCL's AllToAll, which sends a message to each, does not."""
    cluster, copies, gpus = load_cluster("gb200-nvl72"), np.array([2.0**26]), np.array([8, 64])
    sent = copies * distinct_targets(gpus, Routing(8)) * (1 - 1 / gpus)
    kernels = sent / deduplicated_s(cluster, copies, gpus, 1, Routing(8)).inside_s
    nccl = sent / collective_time_s(cluster, "alltoall", copies * distinct_targets(gpus, Routing(8)), gpus, 1)
    assert kernels[1] == pytest.approx(kernels[0], rel=0.02)
    assert nccl[1] < 0.9 * nccl[0]


def test_racks_of_nvlink_take_hybridep_by_themselves():
    assert job("qwen3-30b-a3b", 64, cluster="gb200-nvl72").runtime.dispatcher == "hybridep"
    assert job("qwen3-30b-a3b", 64, cluster="b200-hgx").runtime.dispatcher == "deepep"
    assert job("qwen3-30b-a3b", 64, cluster="gb200-nvl72", dispatcher="alltoall").runtime.dispatcher == "alltoall"


def test_over_tcp_nothing_writes_into_the_memory_of_other_nodes():
    asked = ("collective", "alltoall", "--bytes", "1GB", "--algo", "deepep", "--cluster", "gcp-a3-mega", "--gpus")
    refused = gpuscale(*asked, "64")
    assert_one_message(refused, "deepep writes into the memory of other nodes", "stay in one node")
    assert gpuscale(*asked, "8").code == 0
    options = {"cluster": "gcp-a3-mega", "framework": "megatron-lm"}
    plain, deepep = (
        estimate("qwen3-30b-a3b", 64, {"ep": 64}, dispatcher=one, **options) for one in ("alltoall", "deepep")
    )
    assert plain.plan.step_time_s == deepep.plan.step_time_s
    assert any("by NCCL's AllToAll" in note for note in deepep.notes)
    assert not any("by NCCL's AllToAll" in note for note in plain.notes)


def test_transport_is_an_option_of_jobs():
    times = []
    for one in ("nvshmem", "uccl"):
        options = {"cluster": "aws-p5en", "dispatcher": "deepep", "transport": one}
        found = estimate("qwen3-30b-a3b", 64, {"ep": 32}, framework="megatron-bridge", **options)
        times.append(found.plan.step_time_s)
        assert found.assumptions["transport"] == one
    assert times[0] != times[1]
