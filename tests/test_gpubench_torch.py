"""What `calibrate gpu` runs, on the CPU: that each kind of kernel is the one that its sizes say. Needs torch."""

import pytest

torch = pytest.importorskip("torch")

from test_gpubench import FakeCuda  # noqa: E402

from gpuscale.calibration.gpu_protocol import KINDS, STREAMS, case, label  # noqa: E402
from gpuscale.errors import InputError  # noqa: E402
from gpuscale.gpubench import torch_runs  # noqa: E402
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


@pytest.fixture
def bench(monkeypatch):
    """The CPU under the clock of a device that ticks at every event."""
    clock = FakeCuda(tick=1e-3)
    for name in ("Event", "CUDAGraph", "graph", "synchronize", "empty_cache", "_sleep"):
        monkeypatch.setattr(torch.cuda, name, getattr(clock, name))
    monkeypatch.setattr(torch_runs, "PAUSE_S", 0.0)
    monkeypatch.setattr(torch_runs, "MAX_LAUNCHES", 2)
    monkeypatch.setattr(torch_runs, "SUSTAINED_S", 5e-3)
    made = object.__new__(Bench)
    made.torch, made.device = torch, CPU
    return made


@pytest.mark.parametrize(
    "one",
    [
        case("gemm", precision="bf16", m=32, n=32, k=32, regime="short"),
        case("gemm", precision="tf32", m=32, n=32, k=32, regime="sustained"),
        case("attention", sequences=1, tokens=32, heads=2, head_dim=16, backward=False),
        case("attention", sequences=1, tokens=32, heads=2, head_dim=16, backward=True),
        *(case("stream", op=op, bytes=28 * 2**10, kernels=1) for op in STREAMS),
        case("launch", op="queued"),
        case("launch", op="graph"),
    ],
    ids=label,
)
def test_every_case_is_run_and_timed(bench, one):
    measured = bench.measure(one)
    assert (measured.error, measured.case) == ("", one)
    assert measured.time_s > 0


def test_what_the_library_does_not_have_is_an_error(bench):
    measured = bench.measure(case("gemm", precision="fp4", m=32, n=32, k=32, regime="short"))
    assert (measured.time_s, measured.error) == (None, "4-bit GEMMs are not measured")


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
