"""What `calibrate gpu` runs, on the CPU: that each kind of kernel is the one that its sizes say. Needs torch."""

import pytest

torch = pytest.importorskip("torch")

from gpuscale.calibration.gpu_protocol import KINDS, STREAMS, case  # noqa: E402
from gpuscale.errors import InputError  # noqa: E402
from gpuscale.gpubench.torch_runs import Bench, runner  # noqa: E402

CPU = torch.device("cpu")


def run(kind, **sizes):
    launch, _ = runner(torch, CPU, dict(case(kind, **sizes)))
    return launch(), launch


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "tf32"])
def test_a_gemm_has_its_sizes(precision):
    out, _ = run("gemm", precision=precision, m=32, n=48, k=16, regime="short")
    assert out.shape == (32, 48)
    assert out.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_causal_and_goes_both_ways(backward):
    found, launch = run("attention", sequences=2, tokens=64, heads=3, head_dim=8, backward=backward)
    gradients = found if backward else [found]
    assert [tuple(one.shape) for one in gradients] == [(2, 3, 64, 8)] * (3 if backward else 1)
    launch()  # a second time, as when it is timed


@pytest.mark.parametrize("op", STREAMS)
def test_a_stream_runs_over_its_buffers(op):
    _, launch = run("stream", op=op, bytes=28 * 2**14, kernels=1)
    for _ in range(3):
        launch()


def test_every_kind_that_one_gpu_runs_has_its_kernel():
    assert set(KINDS) == {"gemm", "attention", "stream", "launch", "collective"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(InputError, match=r"torch .* finds no GPU"):
        Bench()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "one",
    [
        case("gemm", precision="bf16", m=1024, n=1024, k=1024, regime="short"),
        case("attention", sequences=2, tokens=1024, heads=8, head_dim=64, backward=True),
        case("stream", op="copy", bytes=2**24, kernels=1),
        case("stream", op="adam", bytes=28 * 2**20, kernels=1),
        case("launch", op="queued"),
        case("launch", op="graph"),
    ],
)
def test_a_gpu_measures_it(one):
    measured = Bench().measure(one)
    assert measured.error == ""
    assert 0 < measured.time_s < 1
