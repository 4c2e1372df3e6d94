"""`cuda_graphs`: an option of a job that takes effect by its declaration alone."""

from dataclasses import replace

import pytest
from command import gpuscale
from jobs import built, job, seconds

import gpuscale as library
from gpuscale.errors import InputError

MOE = {"model": "qwen3-30b-a3b", "gpus": 64, "layout": {"ep": 8}}


def estimate(**options):
    return library.estimate(**MOE, **options)


def test_full_graphs_take_the_launches_out_of_a_step():
    racks = {"cluster": "gb200-nvl72", "gpus_per_node": 64}
    none, full = (estimate(cuda_graphs=name, **racks) for name in ("none", "full"))
    assert none.breakdown["launch"] > 10 * full.breakdown["launch"]
    none, full = (library.estimate("llama3-8b", 64, cuda_graphs=name, **racks) for name in ("none", "full"))
    assert none.breakdown["gemm"] == full.breakdown["gemm"]


def test_products_of_experts_in_a_graph_do_not_wait_to_be_issued_one_by_one():
    racks = {"cluster": "gb200-nvl72", "gpus_per_node": 64}
    modes = ("none", "partial", "full")
    none, partial, full = (estimate(cuda_graphs=name, **racks).breakdown["gemm"] for name in modes)
    assert none == partial > 1.1 * full


def test_graphs_cut_what_an_overlapped_exchange_costs_the_cpu():
    none, partial = (estimate(cuda_graphs=name, overlap="tp+dp+ep") for name in ("none", "partial"))
    assert none.breakdown["launch"] > 1.8 * partial.breakdown["launch"]


def test_the_default_is_the_framework_s():
    assert built("qwen3-30b-a3b", 64).spec.runtime.cuda_graphs == "none"
    own = built("qwen3-30b-a3b", 64, cuda_graphs="none")
    assert own.spec.runtime.cuda_graphs == own.request["cuda_graphs"] == own.assumptions["cuda_graphs"] == "none"
    assert "cuda_graphs" not in built("qwen3-30b-a3b", 64).request


def test_it_is_compared_saved_and_read_again(tmp_path):
    done = gpuscale(
        "plan", "--model", "qwen3-30b-a3b", "--gpus", 64, "--tp", 1, "--cp", 1, "--cuda-graphs", "none,partial",
        "-o", tmp_path / "plan.toml",
    )  # fmt: skip
    assert "CUDA graphs partial is fastest" in " ".join(done.out.split())
    stored = library.estimate_file(tmp_path / "plan.toml")
    assert stored.job["cuda_graphs"] == "partial"


def test_other_names_are_refused():
    with pytest.raises(InputError, match="unknown value 'half'") as caught:
        estimate(cuda_graphs="half")
    assert caught.value.field == "cuda_graphs"
    done = gpuscale("estimate", "-m", "llama3-8b", "-n", 8, "--cuda-graphs", "half")
    assert "--cuda-graphs: unknown value 'half'" in done.err


def test_graphs_of_whole_iterations_save_no_random_states():
    """What a checkpointed layer costs the CPU is replayed with the rest of it."""
    spec = job("llama3-8b", 8, gbs=8)
    for graphs, waits in (("full", False), ("none", True)):
        usual, slow = (
            replace(spec, runtime=replace(spec.runtime, cuda_graphs=graphs, host_checkpoint_s=one))
            for one in (0.0, 1.0)
        )
        more_s = seconds(slow, recompute="full")["launch"] - seconds(usual, recompute="full")["launch"]
        assert (more_s > 31) if waits else (more_s == 0), graphs
