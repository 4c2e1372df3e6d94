"""Each cost term matters: ten times one of them, and a reference scenario leaves its band.

After a recalibration, `python tests/test_mutations.py` prints both tables with today's values.
"""

import importlib
import pkgutil

import numpy as np
import pytest
from jobs import job, layout, seconds

import gpuscale.memory
import gpuscale.steptime
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.components import COMPONENTS

BAND = 0.25
"""A mutated total must move by more than this."""

STALE = 0.10
"""A total that moves by more than this has a band that no longer stands around it: run this file for today's values."""

LEAST_SHARE = 0.03

STEP = {
    # component: (model, gpus, options, layout, seconds per step)
    "gemm": ("llama3-8b", 8, {}, {}, 47.5),
    "attention": ("llama3-8b", 16, {"seq": 65536, "gbs": 16}, {"cp": 8}, 14.7),
    "recompute": ("llama3-70b", 64, {}, {"tp": 8, "pp": 8, "recompute": "full"}, 85.6),
    "elementwise": ("gpt3-125m", 8, {"gbs": 1960}, {"micro_batch_size": 5}, 1.36),
    "optimizer": ("llama3-8b", 8, {"seq": 512, "gbs": 8}, {"zero": 0}, 0.292),
    "waiting": ("gpt3-175b", 131072, {"gbs": "1Mseq"}, {"tp": 8, "pp": 16}, 37.8),
    "launch": ("gpt3-125m", 8, {}, {"tp": 4}, 3.64),
    "tp_comm": ("llama3-8b", 64, {}, {"tp": 32}, 42.3),
    "cp_comm": ("llama3-8b", 64, {"gbs": 64}, {"cp": 64}, 19.8),
    "ep_comm": ("qwen3-30b-a3b", 128, {}, {"ep": 128}, 20.1),
    "pp_comm": ("llama3.2-1b", 64, {"cluster": "aws-g6e-eni", "gbs": 1024}, {"pp": 8}, 18.8),
    "dp_comm": ("llama3-8b", 32, {"cluster": "aws-g6e-eni"}, {"zero": 3}, 426.0),
    "offload": ("llama3-8b", 8, {"offload": "optimizer", "gbs": 8}, {}, 1.77),
    "bubble": ("llama3-8b", 8, {"gbs": 8}, {"pp": 8}, 0.859),
}

MEMORY = {
    # component: (model, gpus, options, layout, GiB per GPU at the fullest stage)
    "weights": ("llama3-8b", 8, {}, {"zero": 2, "recompute": "full"}, 34.7),
    "gradients": ("llama3-8b", 8, {}, {"zero": 1, "recompute": "full"}, 60.9),
    "master_weights": ("llama3-8b", 8, {}, {"tp": 2, "zero": 0}, 79.4),
    "optimizer_state": ("llama3-8b", 8, {}, {"tp": 2, "zero": 0}, 79.4),
    "activations": ("llama3-8b", 8, {}, {"pp": 8, "micro_batch_size": 4}, 101.0),
    "logits": ("gemma3-1b", 8, {"gbs": 1024}, {"micro_batch_size": 8}, 94.3),
    "workspace": (
        "llama3-8b",
        64,
        {"framework": "megatron-deepspeed"},
        {"pp": 32, "micro_batch_size": 16, "recompute": "full"},
        138.0,
    ),
    "gathered_parameters": ("mixtral-8x7b", 64, {}, {"zero": 3, "cp": 8, "recompute": "full"}, 23.2),
    "optimizer_step": ("llama3-8b", 64, {"framework": "nanotron"}, {"zero": 1, "recompute": "full"}, 85.0),
    "communication_buffers": ("llama3-8b", 64, {"framework": "deepspeed"}, {"tp": 4, "zero": 2}, 18.7),
    "fragmentation": ("llama3-8b", 64, {"framework": "nanotron"}, {"tp": 4, "zero": 1, "micro_batch_size": 16}, 137.0),
    "nccl_buffers": ("gpt3-125m", 8, {}, {"tp": 2, "pp": 2, "cp": 2, "zero": 1}, 2.46),
    "framework_reserve": ("gpt3-125m", 8, {}, {"tp": 4, "pp": 2, "zero": 0}, 1.85),
}

FUNCTIONS = {
    # function of the step-time package: scenario that must notice it
    "gemm_time_s": "gemm",
    "attention_time_s": "attention",
    "stream_time_s": "elementwise",
    "elementwise_time_s": "elementwise",
    "collective_time_s": "tp_comm",
    "slowest_of": "waiting",
    "waiting_for_cpu_s": "launch",
    "moe_issue_s": "ep_comm",
    "optimizer_time_s": "optimizer",
    "optimizer_issue_s": "optimizer",
    "idle_s": "bubble",
    "cpu_optimizer_time_s": "offload",
    "exposed_hops_s": "pp_comm",
    "unhidden_s": "dp_comm",
}

MEMORY_FUNCTIONS = {
    # function of the memory package: scenario that must notice it
    "layer_activation_bytes": "activations",
    "microbatches_in_flight": "activations",
    "loss_bytes": "logits",
    "widest_gradient_bytes": "workspace",
    "gathered_bytes": "gathered_parameters",
    "optimizer_step_bytes": "optimizer_step",
    "compute_weight_bytes": "weights",
}


def step_s(name):
    model, gpus, options, values, expected = STEP[name]
    return seconds(job(model, gpus, **options), **values), expected


def memory_gib(name):
    model, gpus, options, values, expected = MEMORY[name]
    spec = job(model, gpus, **options)
    found = evaluate(layout(spec, **values), spec).memory
    return {part: size / 2**30 for part, size in found.at_peak(0).items()}, expected


def inside(value, expected):
    return abs(value / expected - 1) <= BAND


def test_every_component_has_a_scenario():
    assert list(STEP) == list(COMPONENTS)
    assert list(MEMORY) == list(MEMORY_COMPONENTS)


@pytest.mark.parametrize("name", STEP)
def test_ten_times_a_component_of_the_step_is_noticed(name):
    found, expected = step_s(name)
    assert found["total"] == pytest.approx(expected, rel=STALE)
    assert found[name] >= LEAST_SHARE * found["total"]
    assert not inside(found["total"] + 9 * found[name], expected)


@pytest.mark.parametrize("name", MEMORY)
def test_ten_times_a_component_of_memory_is_noticed(name):
    found, expected = memory_gib(name)
    total = sum(found.values())
    assert total == pytest.approx(expected, rel=STALE)
    assert found[name] >= LEAST_SHARE * total
    assert not inside(total + 9 * found[name], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_returns_ten_times_as_much_is_noticed(monkeypatch, name):
    change(monkeypatch, gpuscale.steptime, name)
    found, expected = step_s(FUNCTIONS[name])
    assert not inside(found["total"], expected)


@pytest.mark.parametrize("name", MEMORY_FUNCTIONS)
def test_a_function_that_returns_ten_times_as_many_bytes_is_noticed(monkeypatch, name):
    change(monkeypatch, gpuscale.memory, name)
    found, expected = memory_gib(MEMORY_FUNCTIONS[name])
    assert not inside(sum(found.values()), expected)


def change(monkeypatch, package, name):
    """Let a function return ten times as much wherever a package has it."""
    having = [module for module in modules(package) if hasattr(module, name)]
    assert having
    for module in having:
        monkeypatch.setattr(module, name, ten_times(getattr(module, name)))


def modules(package):
    return [
        importlib.import_module(f"{package.__name__}.{item.name}") for item in pkgutil.iter_modules(package.__path__)
    ]


def ten_times(function):
    return lambda *arguments, **named: 10 * np.asarray(function(*arguments, **named))


def test_a_band_notices_half_and_double():
    assert inside(1.2, 1.0)
    assert not inside(0.5, 1.0)
    assert not inside(2.0, 1.0)


def main():
    """Print the scenarios with today's totals."""
    for title, table, measure in (("STEP", STEP, step_s), ("MEMORY", MEMORY, memory_gib)):
        print(f"{title} = {{")  # noqa: T201 - what the script is for
        for name, (model, gpus, options, values, _) in table.items():
            found = measure(name)[0]
            total = found.get("total") or sum(found.values())
            row = (model, gpus, options, values, float(f"{total:.3g}"))
            print(f'    "{name}": {row},  # {found[name] / total:.0%}'.replace("'", '"'))  # noqa: T201
        print("}")  # noqa: T201


if __name__ == "__main__":
    main()
