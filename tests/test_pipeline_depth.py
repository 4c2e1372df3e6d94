"""Pipelines deeper than any that was run with a framework go after what was run."""

from __future__ import annotations

import numpy as np
import pytest
from jobs import job

from gpuscale import plan
from gpuscale.steptime.components import COMPONENTS as ALL
from gpuscale.uncertainty import DEEPEST, evidence, features, new_kinds

SECONDS = {"gemm": 1.0, "launch": 0.0, "bubble": 0.0}
OTHERS = {"vpp": 1, "cp": 1, "ep": 1, "zero": 1, "recompute_modules": 0, "recompute_layers": 0}


def deeper(framework: str, stages: int) -> bool:
    """Whether so many stages are a kind of their own for a framework."""
    spec = job("llama3-70b", 128, framework=framework)
    return bool(new_kinds(spec, np.array([1]), np.array([stages]))[0])


@pytest.mark.parametrize(("framework", "deepest"), [*DEEPEST.items(), ("megatron-lm@2022-05", DEEPEST["megatron-lm"])])
def test_a_kind_ends_at_the_deepest_pipeline_of_the_framework(framework: str, deepest: int) -> None:
    """What was run with any generation of the framework counts."""
    assert not deeper(framework, deepest)
    assert deeper(framework, deepest + 1)


def test_without_a_pipeline_of_its_own_a_framework_is_judged_by_all() -> None:
    """No run of llm-foundry in the table has stages; Korthikanti et al. ran 35 with Megatron-LM."""
    assert not deeper("llm-foundry", 35)
    assert deeper("llm-foundry", 36)


def test_evidence_says_that_nobody_ran_it() -> None:
    """The stages that were run, and with which framework."""
    spec = job("llama3-70b", 128, framework="torchtitan")
    seconds = {name: SECONDS.get(name, 0.0) for name in ALL}
    shallow, deep = (evidence([features(spec, {"tp": 2, "pp": pp, **OTHERS}, seconds)])[0] for pp in (16, 64))
    said = "a pipeline of more than 16 stages under torchtitan"
    assert said in deep.unmeasured and said not in shallow.unmeasured
    assert deep.high > shallow.high


def test_405b_on_128_gpus_under_torchtitan_is_no_pipeline_of_64_stages() -> None:
    """Meta runs TP 8 under FSDP (llama3_405b.toml); 64 stages are faster on paper, and nobody ran them."""
    found = plan("llama3.1-405b", 128, cluster="dgx-h100-superpod", framework="torchtitan", top=3)
    first, second = found.plans[:2]
    assert (first.tp, first.pp, first.zero) == (8, 1, 3)
    assert second.pp == 64 and second.step_time_s < first.step_time_s
    assert found.choice is not None and "16 stages under torchtitan" in found.choice.reason
