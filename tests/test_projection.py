"""GaLore and APOLLO: what they keep and how long they take, against their papers and sums by hand."""

import pytest

import gpuscale
from gpuscale.architecture.parameters import matrices_of, model_parameters
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.read import read_launch
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.plans import job_of
from gpuscale.presets.models import load_model
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.data_parallel import projection_time_s

HALF = {"master_dtype": "none", "grad_dtype": "bf16", "moment_dtype": "bf16"}
OPTIONS = {"model": "llama2-7b", "gpus": 1, "framework": "accelerate", "gbs": 8, "seq": 2048}


def done(**options):
    spec = job_of({**OPTIONS, **options}, {}).spec
    return spec, evaluate(fixed_layout(spec, {}), spec)


def test_matrices_are_apart_as_modules_of_hugging_face_are():
    model = load_model("llama3-8b")
    assert sorted(matrices_of(model)) == sorted([
        (32, 4096, 4096), (32, 4096, 1024), (32, 4096, 1024), (32, 4096, 4096), *[(32, 14336, 4096)] * 3,
    ])  # fmt: skip
    norms, ends = 65 * 4096, 2 * 128_256 * 4096
    assert sum(n * a * b for n, a, b in matrices_of(model)) == model_parameters(model).total - norms - ends


def test_galore_of_rank_1024_saves_what_its_paper_says():
    """Zhao et al. 2024: 65.5 % of the optimizer's states in 16 bits, of LLaMA-7B."""
    (_, galore), (_, adam) = (done(optimizer=name, **rank, **HALF) for name, rank in
                              (("galore", {"optimizer_rank": 1024}), ("adamw", {})))  # fmt: skip
    saved = 1 - galore.memory.optimizer_state[0, 0] / adam.memory.optimizer_state[0, 0]
    assert saved == pytest.approx(0.655, abs=0.006)


@pytest.mark.parametrize(
    ("name", "element", "own"), [("galore", 4, 1), ("galore-8bit", 1 + 4 / 256, 1), ("apollo", 4, 0)]
)
def test_states_by_hand(name, element, own):
    _, made = done(optimizer=name, grad_dtype="bf16")
    sides = 4 * (2 * 4096 * element + own * 4096 * 2) + 3 * (2 * 11008 * element + own * 4096 * 2)
    rest = (2 * 32_000 + 65) * 4096 * 2 * element
    assert made.memory.optimizer_state[0, 0] == pytest.approx(32 * 128 * sides + rest, rel=1e-9)


def test_a_decomposition_of_llama_7b_takes_ten_minutes_every_200_steps():
    """Zhang et al. 2024, Q-GaLore, section 1; on the bandwidth of an A100."""
    options = {"cluster": "dgx-a100-superpod", **HALF}
    galore, apollo = (projection_time_s(done(optimizer=name, **options)[0]) for name in ("galore", "apollo"))
    assert galore - apollo == pytest.approx(600 / 200, rel=0.15)
    assert 0 < apollo < 0.1
    assert projection_time_s(done(optimizer="adamw")[0]) == 0


def test_its_time_is_in_the_step():
    galore, adam = (done(optimizer=name)[1].step.seconds()["optimizer"] for name in ("galore", "adamw"))
    assert galore > adam + 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"optimizer": "adamw", "optimizer_rank": 8}, "optimizer_rank"),
        ({"optimizer": "galore", "tune": "lora"}, "tune"),
        ({"optimizer": "apollo", "model": "mixtral-8x7b"}, "model"),
        ({"optimizer": "apollo", "offload": "optimizer"}, "offload"),
    ],
)
def test_what_is_not_modelled_is_refused(options, field):
    with pytest.raises(InputError) as caught:
        gpuscale.estimate(**{**OPTIONS, **options})
    assert caught.value.field == field


def test_accelerate_runs_it_where_no_framework_is_named():
    assert gpuscale.plan(model="llama3.2-1b", gpus=1, optimizer="galore", seq=2048).job["framework"] == "accelerate"


def test_frameworks_without_it_are_refused():
    with pytest.raises((InputError, NoAnswerError), match="neither GaLore nor APOLLO"):
        gpuscale.estimate(model="llama2-7b", gpus=1, optimizer="galore", framework="megatron-lm")


@pytest.mark.parametrize("layout", [{"zero": 3}, {"zero": 0, "tp": 2}])
def test_gradients_must_be_whole(layout):
    with pytest.raises((InputError, NoAnswerError), match="project whole gradients"):
        gpuscale.estimate(**{**OPTIONS, "gpus": 8, "optimizer": "galore"}, **layout)


def test_plans_replicate():
    found = gpuscale.plan(**{**OPTIONS, "model": "llama3.2-1b", "gpus": 8, "optimizer": "galore"})
    assert {(plan.zero, plan.tp, plan.pp) for plan in found.plans} == {(0, 1, 1)}


@pytest.mark.parametrize(
    ("text", "optimizer", "rank"),
    [
        ("optim: galore_adamw\noptim_target_modules: all-linear\n", "galore", None),
        ("optim: galore_adamw_8bit\noptim_target_modules: [self_attn, mlp]\n", "galore-8bit", None),
        ("optim: apollo_adamw\noptim_args: rank=64,scale=1.0\n", "apollo", 64),
        ("use_galore: true\ngalore_rank: 128\nstage: sft\nfinetuning_type: full\n", "galore", 128),
        ("use_apollo: true\nstage: sft\nfinetuning_type: full\n", "apollo", 16),
    ],
)
def test_launch_files_say_so(text, optimizer, rank, tmp_path):
    (tmp_path / "a.yaml").write_text(
        f"model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 1\nbf16: true\n{text}"
    )
    made = read_launch([tmp_path / "a.yaml"], {}, {"gpus": 1, "seq": 2048})
    assert (made.options["optimizer"], made.options.get("optimizer_rank")) == (optimizer, rank)
