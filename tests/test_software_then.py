"""What newer software than that of the measured runs makes of a first choice, and what it needs on old GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscale import check, estimate, plan
from gpuscale.launch.export import exported
from gpuscale.render.plan_texts import measured_text
from gpuscale.results import PlanResult

GPT3 = {"model": "gpt3-175b", "gpus": 1024, "cluster": "dgx-a100-superpod"}
DENSE = Path(__file__).parent / "data" / "launch" / "dense.sh"


@pytest.fixture(scope="module")
def today() -> PlanResult:
    """GPT-3 as NVIDIA ran it, with the software of today."""
    return plan(**GPT3, top=1)


def test_the_first_choice_is_told_with_the_software_of_the_measured_run(today: PlanResult) -> None:
    """Korthikanti et al. (2022, table 5) reached 51.8 to 56.3 % MFU: with their software the same layout is in reach of
    that, and what is claimed beyond is the software's."""
    first, then = today.plans[0], today.measured.then if today.measured else None
    assert then is not None and then.framework == "megatron-lm@2023-12"
    own = estimate(**GPT3, framework="megatron-lm@2022-05", tp=8, pp=8, vpp=12, zero=1, micro_batch_size=4).plan
    assert then.first_step_time_s == pytest.approx(own.step_time_s)
    assert not then.first_fits and then.first_memory_gib == pytest.approx(own.memory_gib)
    assert first.mfu > 0.56 and 0.5 < first.mfu * first.step_time_s / then.first_step_time_s < 0.563
    assert f"#1 {then.first_step_time_s:.1f} s" in measured_text(today.measured)


def test_nothing_is_told_of_software_that_is_as_new() -> None:
    """A job with the software of the measured run, or of another framework, has no other to compare with."""
    found = plan(**GPT3, framework="megatron-lm@2022-05", top=1)
    assert found.measured is not None and found.measured.then is None
    assert "with its software" not in measured_text(found.measured)


def test_the_evidence_says_where_only_much_older_software_was_measured(today: PlanResult) -> None:
    """Megatron-LM was measured on Ampere until 2022's, and in four generations since on other GPUs."""
    said = "megatron-lm newer than of 2022 on GPUs of the generation ampere"
    assert said in today.plans[0].unmeasured
    assert said not in plan("gpt3-175b", 1024, cluster="dgx-h100-superpod", top=1).plans[0].unmeasured
    assert said not in plan(**GPT3, framework="megatron-lm@2022-05", top=1).plans[0].unmeasured


@pytest.mark.parametrize(("cluster", "needs"), [("dgx-a100-superpod", True), ("dgx-h100-superpod", False)])
def test_overlap_without_multicast_is_written_with_its_variable(cluster: str, needs: bool) -> None:
    """Userbuffers stop on GPUs without multicast unless `UB_SKIPMC=1` (Transformer Engine, comm_gemm_overlap)."""
    found = exported(estimate("llama3-8b", 64, cluster=cluster, tp=4, pp=2, zero=1), "megatron-lm")
    written = "".join(one.text for one in found.files)
    assert "--tp-comm-overlap" in written
    assert ("UB_SKIPMC=1" in written) == needs


@pytest.mark.parametrize(
    ("cluster", "head", "warned"),
    [
        ("dgx-a100-superpod", "", True),
        ("dgx-a100-superpod", "export UB_SKIPMC=1\n", False),
        ("dgx-h100-superpod", "", False),
    ],
)
def test_a_script_without_the_variable_is_warned_of(cluster: str, head: str, warned: bool, tmp_path: Path) -> None:
    """A script that overlaps TP on A100 and does not set it would stop at the start."""
    script = tmp_path / "run.sh"
    script.write_text(DENSE.read_text().replace("export CUDA_DEVICE", f"{head}export CUDA_DEVICE", 1))
    found = check(launch_files=[script], cluster=cluster).findings
    assert ("tp_overlap_without_multicast" in {one.rule for one in found}) == warned
