"""What a refusal's hint names does not run into the same refusal: each way out is taken."""

import re
import shlex

import pytest
from command import gpuscale

from gpuscale.planning.why import TODAY

DENSE, EXPERTS = "--model llama3-8b --gpus 8", "--model mixtral-8x7b --gpus 64"
A100 = f"{DENSE} --cluster dgx-a100-superpod"
REFUSED = [
    f"estimate {EXPERTS} --ep 8 --overlap tp+dp+ep --framework torchtitan",
    f"estimate {EXPERTS} --ep 8 --overlap ep --framework deepspeed",
    f"estimate {EXPERTS} --ep 8 --pp 2 --overlap ep",
    f"estimate {EXPERTS} --tp 8 --overlap ep",
    f"estimate {EXPERTS} --ep 8 --recompute full --overlap tp+dp+ep",
    f"plan {EXPERTS} --ep 8 --recompute full --overlap ep",
    f"plan {EXPERTS} --overlap ep --framework nanotron",
    f"plan {EXPERTS} --ep 1 --overlap ep",
    "estimate --model deepseek-v3 --gpus 64 --ep 8 --framework nanotron",
    f"plan {DENSE} --precision fp8 --framework nanotron",
    f"plan {DENSE} --precision fp8-blockwise --framework torchtitan",
    f"plan {DENSE} --offload optimizer --framework llm-foundry",
    f"estimate {DENSE} --offload optimizer --zero 0",
    f"plan {DENSE} --offload parameters --framework deepspeed --zero 2",
    f"estimate {DENSE} --zero 3 --pp 2",
    f"plan {DENSE} --zero 2 --framework nanotron",
    f"plan {DENSE} --schedule dualpipe",
    f"estimate {DENSE} --pp 2 --schedule gpipe",
    "plan --model mistral-7b --gpus 8 --cp 2 --cp-comm p2p --seq 32768",
    "plan --model llama3-8b --gpus 64 --cp 16 --cp-comm a2a",
]


def run(command, changes=(), without=()):
    """Run a command with options replaced, or left out."""
    words = shlex.split(command)
    for name in (*dict(changes), *without):
        if name in words:
            at = words.index(name)
            del words[at : at + 2]
    return gpuscale(*words, *(word for change in changes for word in change))


@pytest.mark.parametrize("command", REFUSED)
def test_each_way_out_of_a_rule_is_one(command):
    refused = run(command)
    assert refused.code == 2, refused.out
    hint = refused.err.split("hint: ")[1]
    ways = 0
    for names in re.findall(r"with --framework ([a-z0-9, -]+?)(?: it can run| some are|;|$)", hint, re.MULTILINE):
        named = re.split(r", | or ", names)
        assert set(named) <= set(TODAY)
        for name in named:
            done = run(command, [("--framework", name)])
            assert done.code < 2, (name, done.err)
            ways += 1
    for flag in re.findall(r"without (--[a-z-]+)", hint):
        assert run(command, without=[flag]).code < 2
        ways += 1
    for name, values in re.findall(r"(--[a-z]+) may be ([0-9, or]+)", hint):
        for value in re.findall(r"[0-9]+", values)[:3]:
            assert run(command, [(name, value)]).code < 2, (name, value)
            ways += 1
    if "loosen the pinned values" in hint:
        pinned = [word for word in shlex.split(command) if word in {"--ep", "--recompute", "--zero", "--cp", "--pp"}]
        assert run(command, without=pinned).code < 2
        ways += 1
    assert ways


@pytest.mark.parametrize(
    "command",
    [
        f"plan {A100} --precision fp8",
        f"plan {A100} --precision mxfp8",
        f"plan {DENSE} --precision mxfp8 --framework torchtitan",
        f"plan {DENSE} --precision nvfp4",
    ],
)
def test_each_precision_that_is_named_runs(command):
    refused = run(command)
    names = re.search(r"hint: choose (.*)", refused.err)[1].split(", ")
    assert "--precision:" in refused.err
    assert len(names) > 1
    for name in names:
        assert run(command, [("--precision", name)]).code == 0, name


def test_an_overlap_without_experts_is_refused():
    refused = gpuscale(*shlex.split(f"plan {DENSE} --overlap tp+ep"))
    assert (refused.code, "llama3-8b has no experts" in refused.err, "--overlap tp\n" in refused.err) == (2, True, True)
    assert gpuscale(*shlex.split(f"plan {DENSE} --overlap tp")).code == 0


def test_an_overlap_without_graphs_says_what_it_costs():
    command = f"estimate {EXPERTS} --ep 8 --overlap tp+dp+ep"
    assert "without CUDA graphs --overlap ep makes the GPU wait" in " ".join(run(command).out.split())
    assert "makes the GPU wait" not in run(command, [("--cuda-graphs", "partial")]).out


def test_what_a_default_would_break_is_not_the_reason():
    """DP 64, where nothing is pinned, does not divide the batch; that is not why DualPipe cannot run."""
    refused = gpuscale(*shlex.split("plan --model mixtral-8x7b --gpus 64 --gbs 96 --schedule dualpipe"))
    assert refused.code == 2
    assert "no such pipeline schedule" in refused.err.split(";")[0]


def test_a_torn_rack_names_what_fills_hosts():
    command = "estimate --model llama3-8b --gpus 72 --cluster gb200-nvl72 --gpus-per-node 9"
    assert "give a divisor of 72 up to 4, or a multiple of 4" in run(command).err
    for part in ("3", "4", "36"):
        assert run(command, [("--gpus-per-node", part)]).code == 0
