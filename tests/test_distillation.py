"""Distillation: memory, time and traffic of a teacher, against jobs of the teacher and of the student alone."""

import numpy as np
import pytest

import gpuscale
from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.read import read_launch
from gpuscale.layouts.stages import FIRST, LAST
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.plans import job_of
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.specs.tuning import METHOD_SPECS
from gpuscale.steptime.components import total_s
from gpuscale.steptime.data_parallel import teacher_gather
from gpuscale.steptime.layer import LOSS_BYTES, teacher_forward
from gpuscale.steptime.tensor_parallel import stream

STUDENT, TEACHER = "llama3.1-8b", "llama3.1-70b"
OPTIONS = {"model": STUDENT, "gpus": 8, "gbs": 64, "seq": 2048, "framework": "accelerate"}
TAUGHT = {**OPTIONS, "method": "distill", "teacher": TEACHER}


def done(layout=None, **options):
    asked = {"micro_batch_size": 1, **(layout or {})}
    spec = job_of({**OPTIONS, **options}, asked).spec
    return spec, evaluate(fixed_layout(spec, asked), spec)


@pytest.mark.parametrize(("layout", "share"), [({"zero": 0}, 1), ({"zero": 2}, 1), ({"zero": 3}, 8), ({"tp": 8}, 8)])
@pytest.mark.parametrize("tune", ["full", "lora"])
def test_a_teacher_is_held_in_16_bits_and_shared_by_zero_3(layout, share, tune):
    alone, taught = (done(layout, tune=tune, **more)[1].memory.weights[0, 0]
                     for more in ({}, {"method": "distill", "teacher": TEACHER}))  # fmt: skip
    expected = 2 * model_parameters(load_model(TEACHER)).total / share
    assert taught - alone == pytest.approx(expected, rel=2e-4 if "tp" in layout else 1e-12)  # norms are not cut


def test_the_teachers_pass_takes_as_long_as_in_a_job_of_its_own_without_its_loss():
    spec, taught = done({"tp": 2}, method="distill", teacher=TEACHER)
    own, alone = done({"tp": 2}, model=TEACHER)
    (layer,), ends = alone.step.passes.layers, alone.step.passes.ends_s
    logits = 2048 * own.vocabulary_rows(np.array([2]))
    loss_s = stream(own, logits * LOSS_BYTES[own.runtime.loss_kernels][0], 4)
    start_s = own.runtime.host_microbatch_s + 2048 * own.runtime.host_token_s
    expected = 80 * layer.forward_s + ends[FIRST][0] + ends[LAST][0] - loss_s - start_s
    assert total_s(teacher_forward(taught.step.candidates, spec)) == pytest.approx(expected, rel=1e-3)


def test_a_teacher_that_is_the_student_itself_computes_what_a_further_forward_pass_does():
    (_, once), (_, itself) = done(method="grpo"), done(method="distill", teacher=STUDENT)
    for name in ("gemm", "attention"):
        assert itself.step.seconds()[name] == pytest.approx(once.step.seconds()[name], rel=1e-12)


def test_the_loss_compares_logits_of_both():
    spec, taught = done(method="distill", teacher=STUDENT)
    loss = METHOD_SPECS["distill"]
    logits = 2048 * spec.vocabulary_rows(np.array([1]))[0]
    assert taught.memory.logits[0, 0] == loss.logit_bytes * logits
    _, linear = done(method="distill", teacher=STUDENT, loss="linear")
    _, plain = done(loss="linear")
    assert linear.memory.logits[0, 0] - plain.memory.logits[0, 0] == 2 * logits


def test_zero_3_gathers_the_teacher_once_in_a_microbatch():
    spec, taught = done({"zero": 3}, method="distill", teacher=TEACHER)
    _, alone = done({"zero": 3})
    gather = teacher_gather(taught.step.candidates, spec)
    assert gather.bytes[0] == 2 * model_parameters(load_model(TEACHER)).total
    assert taught.step.dp_total_s[0] - alone.step.dp_total_s[0] == pytest.approx(8 * gather.time_s[0], rel=1e-9)
    layer, own = ((model_parameters(one).total - (2 * one.vocab + 1) * one.hidden) / one.layers
                  for one in map(load_model, (TEACHER, STUDENT)))  # fmt: skip
    more = taught.memory.gathered_parameters - alone.memory.gathered_parameters
    assert more.max() == pytest.approx(2 * 2 * (layer - own), rel=1e-9)  # the layer in use and the next one
    assert not teacher_gather(done({"zero": 2}, method="distill", teacher=TEACHER)[1].step.candidates, spec).time_s[0]


@pytest.mark.parametrize("layout", [{"zero": 3}, {"zero": 3, "tp": 2}, {"tp": 8}])
def test_explanations_and_calls_add_up(layout):
    found = gpuscale.explain_plan(**TAUGHT, **layout, micro_batch_size=1)
    assert found.step.value == found.plan.step_time_s
    assert "teacher" in {node.name for node in _nodes(found.step)}
    subject = gpuscale.read_subject(**TAUGHT, **layout, micro_batch_size=1)
    step = subject.evaluation.step
    calls = [one for one in gpuscale.traffic_of(subject).traffic if one.axis == "tp"]
    if "tp" in layout:
        assert any("teacher" in one.purpose for one in calls)
    assert step.seconds()["tp_comm"] >= 0


def _nodes(node):
    yield node
    for child in node.children:
        yield from _nodes(child)


def test_plans_with_a_teacher_are_found_and_a_plan_file_keeps_it(tmp_path):
    found = gpuscale.plan(**TAUGHT)
    assert found.plans[0].pp == 1
    assert found.job["teacher"] == TEACHER


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"method": "distill"}, "teacher", "learns from a teacher"),
        ({"teacher": TEACHER}, "teacher", "only distillation"),
        ({"method": "distill", "teacher": "qwen2.5-7b"}, "teacher", "of 152,064, llama3.1-8b one of 128,256"),
        ({"method": "distill", "teacher": TEACHER, "offload": "parameters", "zero": 3}, "offload", "teacher"),
    ],
)
def test_what_is_not_modelled_is_refused(options, field, says):
    with pytest.raises(InputError, match=says) as caught:
        gpuscale.estimate(**{**OPTIONS, **options})
    assert caught.value.field == field


@pytest.mark.parametrize(("layout", "says"), [({"pp": 2}, "without PP"), ({"tp": 8}, "feed-forward width")])
def test_layouts_that_the_teacher_cannot_have_are_refused(layout, says):
    teacher = {"pp": "llama3.1-70b", "tp": "llama3.2-1b"}[next(iter(layout))]
    options = {**TAUGHT, "teacher": teacher}
    if teacher == "llama3.2-1b":  # 32 heads and a width of 8,192
        options, layout = {**options, "gpus": 64, "model": "llama3.1-405b", "framework": "megatron-lm"}, {"tp": 64}
    with pytest.raises((InputError, NoAnswerError), match=says):
        gpuscale.estimate(**options, **layout)


@pytest.mark.parametrize(
    "line",
    [
        "accelerate launch gkd.py --per_device_train_batch_size 2 --teacher_model_name_or_path",
        "swift rlhf --rlhf_type gkd --tuner_type full --teacher_model",
    ],
)
def test_launch_files_name_the_teacher(line, tmp_path):
    head, _, name = line.rpartition(" ")
    text = f"{head} --model_name_or_path Qwen/Qwen2.5-7B --model Qwen/Qwen2.5-7B --bf16 true {name}"
    (tmp_path / "run.sh").write_text(f"{text} Qwen/Qwen2.5-72B-Instruct\n")
    made = read_launch([tmp_path / "run.sh"], {}, {"gpus": 8, "seq": 2048})
    assert (made.options["method"], made.options["teacher"]) == ("distill", "Qwen/Qwen2.5-72B-Instruct")
    (tmp_path / "run.sh").write_text(f"{text} some/one\n")
    with pytest.raises(InputError, match="some/one is not known here"):
        read_launch([tmp_path / "run.sh"], {}, {"gpus": 8, "seq": 2048})
