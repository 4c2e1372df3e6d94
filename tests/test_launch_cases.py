"""Small launch files beside a checkout that were once misread: what each means."""

from pathlib import Path

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.read import read_launch
from gpuscale.launch.subject import estimate_launch
from gpuscale.presets.models import load_model

CASES = Path(__file__).parents[2] / "shared" / "cases"

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the collection of cases is not here")

READ = {
    "02-axolotl-bf16-auto-tf32-false": ({"gpus": 8}, {"precision": "bf16", "zero": 3, "master_dtype": None}),
    "05-swift-deepspeed-zero1": ({}, {"zero": 1, "framework": "deepspeed"}),
    "07-swift-deepspeed-zero3": ({}, {"zero": 3, "offload": None}),
    "08-swift-deepspeed-zero3_offload": ({}, {"zero": 3, "offload": "optimizer+parameters"}),
    "10-lf-pure-bf16": ({"gpus": 1}, {"precision": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}),
    "12-lf-use-apollo": ({"gpus": 8}, {"optimizer": "apollo"}),
    "14-lf-use-muon": ({"gpus": 8}, {"optimizer": "muon"}),
    "18-foundry-mb-dmoe-as-dense": ({"gpus": 8}, {"routing": "dropless"}),
    "21-bridge-yaml-override-fp32": ({"gpus": 8, "model": "llama3.2-1b"}, {"precision": "bf16", "zero": None}),
    "24-one-gpu-zero2-offload": ({}, {"gpus": 1, "zero": 2, "offload": "optimizer"}),
    "25-one-gpu-zero3-offload": ({}, {"gpus": 1, "zero": 3, "offload": "optimizer+parameters"}),
    "39-moe-dispatcher-default-swift": ({}, {"dispatcher": "alltoall"}),
    "40-axolotl-activation-offloading-legacy": ({"gpus": 8}, {"offload": "activations"}),
    "41-lf-v1-yaml": ({"gpus": 8}, {"zero": 3, "gbs": 16, "seq": 2048}),
    "42-openrlhf-sft": ({"gpus": 8}, {"zero": 2, "gbs": 256, "seq": 2048, "micro_batch_size": 2}),
    "43-verl-actor": ({}, {"gpus": 64, "tp": 4, "pp": 16, "ep": 4, "seq": 4096}),
    "44-slime-ray-args": ({}, {"gpus": 16, "tp": 4, "ep": 8, "gbs": 256}),
}


def path_of(case: str) -> Path:
    """The file that a case starts from."""
    return next(
        path
        for name in ("run.sh", "train.sh", "a.yml", "a.yaml", "conf.yaml")
        if (path := CASES / case / name).is_file()
    )


@pytest.mark.parametrize("case", READ)
def test_a_case_is_read(case):
    given, expected = READ[case]
    job = read_launch([path_of(case)], {}, given)
    found = {**job.options, **job.layout}
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("case", "message"), [("15-lf-use-adam-mini", "Adam-mini"), ("19-nemo-mamba-as-transformer", "Mamba layers")]
)
def test_a_case_is_refused(case, message):
    with pytest.raises(InputError, match=message):
        read_launch([path_of(case)], {}, {"gpus": 8})


def test_no_positions_are_learned_where_there_are_none():
    job = read_launch([path_of("20-position-none-learned")])
    assert not load_model(job.options["model"]).learned_positions


def test_weights_in_bf16_alone_take_eight_bytes_a_parameter():
    memory = estimate_launch([path_of("10-lf-pure-bf16")], {"gpus": 1}).estimate.plan.memory_gib
    assert memory == pytest.approx(66, abs=4)
