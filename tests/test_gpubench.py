"""`gpuscale calibrate gpu`: constants given back by kernels made of them, published kernels, torn and hostile files."""

import json
import math
import random
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

from gpuscale.calibration.gpu_protocol import (
    KINDS,
    Machine,
    Measurement,
    Protocol,
    begin,
    case,
    label,
    line_of,
    machine_line,
    read_protocol,
    wanted,
)
from gpuscale.errors import InputError
from gpuscale.gpubench import calibrate, torch_runs
from gpuscale.gpubench.fit import constants_of, fit_gpu, grouped, predict_s, with_constants
from gpuscale.presets.hardware import load_gpu
from gpuscale.validation.kernels import IN_TRAINING, group_kernels
from gpuscale.validation.measurements import read_measurements

MEASURED = Path(__file__).parents[2] / "shared" / "validation" / "kernels.csv"


def times_of(gpu, cases=None):
    """Seconds of each case on a GPU with known constants."""
    cases = wanted(gpu) if cases is None else cases
    blank = [Measurement(one, 1.0) for one in cases]
    found = {}
    for group in grouped(blank, gpu):
        found |= zip(group.labels, predict_s(gpu, group).tolist(), strict=True)
    launches = {"graph": 2e-6, "queued": 2e-6 + gpu.kernels.launch_s}
    found |= {label(one): launches[dict(one)["op"]] for one in cases if dict(one)["kind"] == "launch"}
    return {one: found.get(label(one), 1e-3) for one in cases}


def made(gpu, *, noise=0.0, cases=None, machine=None):
    """A protocol of a GPU with known constants."""
    rng = random.Random(7)
    each = times_of(gpu, cases).items()
    measured = tuple(Measurement(one, time_s * math.exp(rng.gauss(0, noise))) for one, time_s in each)
    return Protocol(machine or Machine(gpu.title), measured)


def saved(path, protocol):
    path.write_text(machine_line(protocol.machine) + "".join(map(line_of, protocol.measurements)))
    return path


def with_kernels_of(gpu, other):
    """A GPU with the constants of another, which know some of its precisions."""
    fractions = {name: other.kernels.gemm_fraction.get(name, 0.7) for name in gpu.peak_flops_per_s}
    return replace(gpu, kernels=replace(other.kernels, gemm_fraction=fractions))


LOOSE = {"wave_loss_fraction": 0.03, "attention_tail_tiles": 0.03, "attention_ramp_keys": 0.03}
"""Constants to which kernels are less sensitive than to the others."""


@pytest.mark.parametrize(
    ("name", "start"),
    [("h100-sxm-80gb", "a100-sxm-80gb"), ("b200", "h100-sxm-80gb"), ("a100-sxm-80gb", "h100-sxm-80gb"),
     ("mi300x", "h100-sxm-80gb"), ("v100-sxm-32gb", "l40s")],
)  # fmt: skip
def test_kernels_made_of_known_constants_give_them_back(name, start):
    truth = load_gpu(name)
    if truth.kernels.sustained("bf16") > IN_TRAINING:  # GEMMs alone then run at the clock of a burst
        truth = with_constants(truth, sustained_clock_fraction=0.8)
    fit = fit_gpu(made(truth), with_kernels_of(truth, load_gpu(start)))
    expected = constants_of(truth)
    for one in fit.constants:
        if one.kernels and one.name != "gemm_fraction.fp16":
            assert one.after == pytest.approx(expected[one.name], rel=LOOSE.get(one.name, 0.01)), one.name
    unknown = {one.name for one in fit.constants if not one.kernels}
    assert unknown <= {"gemm_fraction.fp4"}
    assert all(one.median_abs < 0.01 for one in fit.errors)


def test_noise_moves_constants_by_no_more_than_the_uncertainty_says():
    truth = load_gpu("h100-sxm-80gb")
    fit = fit_gpu(made(truth, noise=0.03), with_kernels_of(truth, load_gpu("a100-sxm-80gb")))
    expected = constants_of(truth)
    fitted = [one for one in fit.constants if one.uncertainty is not None]
    assert max(abs(one.after / expected[one.name] - 1) / one.uncertainty for one in fitted) < 3
    assert all(one.median_abs < 0.04 for one in fit.errors)


def test_each_constant_is_told_by_the_kernels_that_it_is_of():
    gpu = load_gpu("h100-sxm-80gb")
    of = {
        "stream": {"kernel_overhead_us", "hbm_fraction"},
        "launch": {"launch_us"},
        "attention": {"attention_forward_fraction", "attention_backward_fraction", "attention_ramp_keys",
                      "attention_tail_tiles", "exp_per_cycle_per_sm"},
    }  # fmt: skip
    for kind, names in of.items():
        cases = [one for one in wanted(gpu) if dict(one)["kind"] in {kind, "stream"}]
        fit = fit_gpu(made(gpu, cases=cases), gpu)
        assert {one.name for one in fit.constants if one.kernels} == names | of["stream"]
    kept = fit_gpu(made(gpu, cases=[one for one in wanted(gpu) if dict(one)["kind"] == "stream"]), gpu).gpu
    assert kept.kernels.gemm_fraction == gpu.kernels.gemm_fraction


@pytest.mark.parametrize(("factor", "name"), [(1.25, "gemm"), (1.25, "attention"), (1.25, "stream")])
def test_slower_kernels_lower_their_share_of_the_peak(factor, name):
    gpu = load_gpu("h100-sxm-80gb")
    every = [Measurement(one.case, one.time_s * factor if dict(one.case)["kind"] == name else one.time_s)
             for one in made(gpu).measurements]  # fmt: skip
    fitted = fit_gpu(Protocol(Machine("H100"), tuple(every)), gpu).gpu.kernels
    shares = {
        "gemm": (fitted.gemm_fraction["bf16"], gpu.kernels.gemm_fraction["bf16"]),
        "attention": (fitted.attention_backward_fraction, gpu.kernels.attention_backward_fraction),
        "stream": (fitted.hbm_fraction, gpu.kernels.hbm_fraction),
    }
    for kind, (after, before) in shares.items():
        assert after / before == pytest.approx(1 / factor if kind == name else 1, rel=0.04), kind


def test_a_few_wild_kernels_pull_little():
    gpu = load_gpu("h100-sxm-80gb")
    every = [Measurement(one.case, one.time_s * (5 if index % 20 == 0 else 1))
             for index, one in enumerate(made(gpu).measurements)]  # fmt: skip
    fitted = fit_gpu(Protocol(Machine("H100"), tuple(every)), gpu).gpu.kernels
    assert fitted.gemm_fraction["bf16"] == pytest.approx(gpu.kernels.gemm_fraction["bf16"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "start", "gemm_off"), [("h100-sxm-80gb", "a100-sxm-80gb", 0.026), ("b200", "h100-sxm-80gb", 0.05)]
)
def test_published_kernels_are_predicted_as_well_as_by_their_own_preset(name, start, gemm_off):
    """Fitted from the constants of another generation, to GEMMs of AIConfigurator (H100: 7.2 % off before)."""
    if not MEASURED.is_file():
        pytest.skip("published kernels are not beside this checkout")
    gpu, found = load_gpu(name), []
    for group in group_kernels(read_measurements(MEASURED)[1])[0]:
        if (group.gpu, group.kind, group.precision, group.benchmark) == (name, "gemm", "bf16", "short"):
            sizes = zip(*(group.columns[size].astype(int).tolist() for size in "mnk"), strict=True)
            for (m, n, k), time_s in zip(sizes, group.measured_s.tolist(), strict=True):
                found.append(Measurement(case("gemm", precision="bf16", m=m, n=n, k=k, regime="short"), time_s))
    assert len(found) > 400
    recorded = Protocol(Machine(gpu.title), tuple(found))
    (fresh,) = fit_gpu(recorded, with_kernels_of(gpu, load_gpu(start))).errors
    (own,) = fit_gpu(recorded, gpu).errors
    assert fresh.before_median_abs > 1.9 * fresh.median_abs
    assert fresh.median_abs < gemm_off
    assert fresh.median_abs == pytest.approx(own.median_abs, abs=0.003)
    assert fresh.median_abs < own.before_median_abs + 0.002


# --- the command


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "find_spec", lambda name: None)
    return tmp_path


def test_a_recorded_protocol_becomes_a_gpu_that_plans_use(here):
    truth = with_constants(load_gpu("h200-sxm-141gb"), hbm_fraction=0.6, attention_tail_tiles=3.0)
    saved(here / "p.jsonl", made(truth, machine=Machine("NVIDIA H200", 1, 132, 500.0, "torch 2.9.0")))
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "-o", "gpu.toml")
    assert (done.code, done.err) == (0, "wrote gpu.toml: use it with --set gpu=gpu.toml\n")
    assert done.lines[0].startswith("NVIDIA H200: ")
    assert all(len(line) <= 100 for line in done.lines)
    written = load_gpu("gpu.toml")
    assert written.kernels.hbm_fraction == pytest.approx(0.6, rel=0.01)
    assert written.power_w == 500
    assert "kernels measured on NVIDIA H200 (torch 2.9.0)" in written.sources["kernels.hbm_fraction"]
    assert "kernels as measured on NVIDIA H200" in written.title
    estimate = ("estimate", "--model", "llama3-8b", "--gpus", "8", "--cluster", "h200-hgx", "--json")
    own, preset = gpuscale(*estimate, "--set", "gpu=gpu.toml"), gpuscale(*estimate)
    assert own.code == 0
    assert json.loads(own.out)["plan"]["step_time_s"] > 1.02 * json.loads(preset.out)["plan"]["step_time_s"]
    again = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "--gpu", "gpu.toml", "-o", "-")
    assert again.code == 0
    assert again.out.count("kernels as measured") == 1


def test_the_json_holds_every_kernel(here):
    saved(here / "p.jsonl", made(load_gpu("h100-sxm-80gb"), machine=Machine("NVIDIA H100 80GB HBM3")))
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "--json", "--fit-only")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["schema"] == "gpuscale.calibrate-gpu/1"
    assert (found["base"], found["missing"]) == ("h100-sxm-80gb", 0)
    assert len(found["kernels"]) == sum(one["kernels"] for one in found["errors"]) > 150
    assert done.out == gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "--json").out


def test_what_could_not_run_and_what_is_missing_is_said(here):
    gpu = load_gpu("h100-sxm-80gb")
    every = [Measurement(one.case, None, "not supported") if dict(one.case)["kind"] == "attention" else one
             for one in made(gpu).measurements[:-20]]  # fmt: skip
    saved(here / "p.jsonl", Protocol(Machine("NVIDIA H100 80GB HBM3", 1, 114, 350.0), tuple(every)))
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl")
    assert done.code == 0
    assert done.err.startswith("note: 20 measurements are missing")
    assert "not supported" in done.out
    said = " ".join(done.out.split())
    assert "note: NVIDIA H100 80GB HBM3 has 114 SMs, h100-sxm-80gb has 132: is it the right preset?" in said
    assert "note: measured at a power limit of 350 W" in said


def test_without_torch_and_protocol_it_says_how_to_get_one(here):
    if "torch" in sys.modules:
        pytest.skip("torch is here")
    done = gpuscale("calibrate", "gpu")
    assert_one_message(done, "measuring needs torch, which is not installed", "`pip install 'gpuscale[gpu]'`")
    assert "--protocol FILE" in done.err
    assert not list(here.iterdir())


FIRST = machine_line(Machine("NVIDIA H200"))
HOSTILE = {
    "empty": "",
    "no first line": line_of(Measurement(case("launch", op="graph"), 1e-6)),
    "not JSON": FIRST + "{]\n",
    "a list": FIRST + "[]\n",
    "deep": FIRST + "[" * 100_000 + "\n",
    "kind": FIRST + '{"kind": ["gemm"], "time_us": 1}\n',
    "size": FIRST + '{"kind": "stream", "op": "add", "bytes": 0, "kernels": 1, "time_us": 1}\n',
    "huge": FIRST + '{"kind": "launch", "op": "graph", "time_us": ' + "9" * 5000 + "}\n",
    "nan": FIRST + '{"kind": "launch", "op": "graph", "time_us": NaN}\n',
    "both": FIRST + '{"kind": "launch", "op": "graph", "time_us": 1, "error": ""}\n',
    "true": FIRST + '{"kind": "launch", "op": "graph", "time_us": true}\n',
    "nothing": machine_line(Machine("NVIDIA H200")),
    "no preset": machine_line(Machine("NVIDIA T400")),
    "gpus": machine_line(Machine("NVIDIA H200", gpus=0)),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_protocol_is_one_message(here, text):
    (here / "p.jsonl").write_text(text)
    assert_one_message(gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "--fit-only"), "", "")


def test_what_a_kind_lacks_or_has_too_many_of_is_named(here):
    (here / "p.jsonl").write_text(FIRST + '{"kind": "launch", "time_us": 1}\n')
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl")
    assert_one_message(done, "p.jsonl:2: key 'op' is missing", "a launch has op and time_us or error")
    (here / "p.jsonl").write_text(FIRST + '{"kind": "launch", "o\\u001bp": 1}\n')
    assert "\x1b" not in gpuscale("calibrate", "gpu", "--protocol", "p.jsonl").err


# --- measuring


class FakeBench:
    """A GPU whose kernels take as long as known constants say."""

    def __init__(self, gpu, *, stop_after=10**9):
        self.machine = Machine("NVIDIA H100 80GB HBM3", 1, 132, 700.0)
        self.times, self.measured, self.stop_after = times_of(gpu), [], stop_after

    def measure(self, one):
        if len(self.measured) >= self.stop_after:
            raise KeyboardInterrupt
        self.measured.append(one)
        return Measurement(one, self.times[one])

    def measure_collectives(self, cases):
        assert not cases
        yield from ()


@pytest.fixture
def bench(here, monkeypatch):
    monkeypatch.setattr(calibrate, "find_spec", lambda name: name)

    def use(one):
        monkeypatch.setattr(torch_runs, "Bench", lambda device: one)
        return one

    return use


def test_a_run_that_was_stopped_goes_on_where_it_was(here, bench):
    gpu = load_gpu("h100-sxm-80gb")
    path = here / "gpu-protocol.jsonl"
    first = bench(FakeBench(gpu, stop_after=40))
    assert gpuscale("calibrate", "gpu").code == 130
    assert len(read_protocol(path).measurements) == 40
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # killed while it wrote a line
    second = bench(FakeBench(gpu))
    told = []
    found = calibrate.calibrate_gpu(path, progress=lambda *one: told.append(one))
    assert second.measured == wanted(gpu)[39:]
    assert path.read_bytes().startswith(whole)
    assert found.missing == 0
    assert (told[0][0], told[-1]) == (39, (len(wanted(gpu)), len(wanted(gpu)), "done"))
    third = bench(FakeBench(gpu))
    assert gpuscale("calibrate", "gpu").code == 0
    assert (len(first.measured), third.measured) == (40, [])


def test_what_lacked_memory_is_tried_again_and_what_cannot_run_is_not(here, bench):
    gpu = load_gpu("h100-sxm-80gb")
    errors = ["CUDA out of memory. Tried to allocate", "not supported"]
    first, second, *rest = made(gpu).measurements
    failed = [Measurement(one.case, None, error) for one, error in zip((first, second), errors, strict=True)]
    own = bench(FakeBench(gpu))
    saved(here / "gpu-protocol.jsonl", Protocol(own.machine, (*failed, *rest)))
    assert gpuscale("calibrate", "gpu").code == 0
    assert own.measured == [first.case]


def test_a_protocol_of_another_gpu_is_left_alone(here, bench):
    path = saved(here / "p.jsonl", Protocol(Machine("NVIDIA A100-SXM4-80GB"), ()))
    before = path.read_bytes()
    bench(FakeBench(load_gpu("h100-sxm-80gb")))
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl")
    message = "was measured on NVIDIA A100-SXM4-80GB, and this machine has NVIDIA H100 80GB HBM3"
    assert_one_message(done, message, "--protocol other.jsonl")
    assert path.read_bytes() == before


def test_a_gpu_without_a_preset_begins_with_the_one_named(here, bench):
    own = bench(FakeBench(load_gpu("h100-sxm-80gb")))
    own.machine = replace(own.machine, gpu="NVIDIA H100 of a kind")
    assert_one_message(gpuscale("calibrate", "gpu"), "gpuscale has no preset of NVIDIA H100 of a kind", "--gpu NAME")
    assert not list(here.iterdir())
    done = gpuscale("calibrate", "gpu", "--gpu", "h100", "-o", "gpu.toml")
    assert done.code == 0
    assert load_gpu("gpu.toml").kernels.tile_m == 128


def test_a_protocol_that_cannot_be_written_is_one_message(here, bench):
    bench(FakeBench(load_gpu("h100-sxm-80gb")))
    assert_one_message(gpuscale("calibrate", "gpu", "--protocol", "no/p.jsonl"), "cannot write", "folder that exists")


def test_several_gpus_are_measured_together():
    gpu = load_gpu("h100-sxm-80gb")
    together = [dict(one) for one in wanted(gpu, 8) if dict(one)["kind"] == "collective"]
    assert {one["gpus"] for one in together} == {2, 4, 8}
    assert wanted(gpu, 8)[: len(wanted(gpu))] == wanted(gpu)
    assert len(set(wanted(gpu, 8))) == len(wanted(gpu, 8))
    assert len(set(map(label, wanted(gpu, 8)))) == len(wanted(gpu, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_is_read_as_it_was_written(kind, tmp_path):
    gpu = load_gpu("h100-sxm-80gb")
    cases = [one for one in wanted(gpu, 2) if dict(one)["kind"] == kind]
    machine = Machine("NVIDIA H100 80GB HBM3", 2, 132, 700.0, "torch")
    protocol = Protocol(machine, tuple(Measurement(one, 1.25e-5) for one in cases))
    assert read_protocol(saved(tmp_path / "p", protocol)) == protocol
    left = begin(tmp_path / "p", machine).missing(wanted(gpu, 2))
    assert left == [one for one in wanted(gpu, 2) if one not in cases]


class FakeCuda:
    """The clock of a device: kernels add to it, and what is queued behind a wait does not show."""

    def __init__(self, tick=0.0):
        self.now = 0.0
        cuda = self

        class Event:
            def __init__(self, enable_timing):
                self.at = 0.0

            def record(self):
                self.at = cuda.now
                cuda.now += tick

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at - self.at) * 1e3

        class Graph:
            def __init__(self):
                self.duration = 0.0

            def replay(self):
                cuda.now += self.duration

        class Capture:
            def __init__(self, graph):
                self.graph, self.begun = graph, cuda.now

            def __enter__(self):
                self.begun = cuda.now

            def __exit__(self, *_):
                self.graph.duration, cuda.now = cuda.now - self.begun, self.begun

        self.Event, self.CUDAGraph, self.graph = Event, Graph, Capture
        self.synchronize = self.empty_cache = lambda: None

    def _sleep(self, cycles):
        self.now += cycles / 2e9


@pytest.mark.parametrize("kernel_s", [1e-6, 3e-4, 2.0])
def test_a_launch_is_timed_however_it_runs(kernel_s, monkeypatch):
    monkeypatch.setattr(torch_runs.time, "sleep", lambda _: None)
    bench = object.__new__(torch_runs.Bench)
    bench.torch = types.SimpleNamespace(cuda=FakeCuda())

    def run():
        bench.torch.cuda.now += kernel_s

    for timed in (bench._burst_s, bench._queued_s, bench._sustained_s):
        assert timed(run) == pytest.approx(kernel_s)


def test_what_a_machine_cannot_run_is_kept_with_the_reason(monkeypatch):
    bench = object.__new__(torch_runs.Bench)
    bench.torch, bench.device = types.SimpleNamespace(cuda=FakeCuda()), None

    def refuse(*_):
        raise RuntimeError("no such kernel\x1b[31m\nand more")

    monkeypatch.setattr(torch_runs, "runner", refuse)
    measured = bench.measure(case("gemm", precision="fp8", m=1, n=1, k=1, regime="short"))
    assert (measured.time_s, measured.error) == (None, r"no such kernel\u001b[31m")


def test_a_gpu_that_fails_ends_the_run_and_is_not_recorded(monkeypatch):
    bench = object.__new__(torch_runs.Bench)
    bench.torch, bench.device = types.SimpleNamespace(cuda=FakeCuda()), None

    def fail(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch_runs, "runner", fail)
    with pytest.raises(InputError, match="the GPU failed at gemm fp8 1 x 1 x 1, short: CUDA error"):
        bench.measure(case("gemm", precision="fp8", m=1, n=1, k=1, regime="short"))


def test_collectives_of_a_protocol_calibrate_a_cluster(here):
    """Measured at half of what the wire carries: the cluster then predicts it."""
    cases = [one for one in wanted(load_gpu("h100-sxm-80gb"), 8) if dict(one)["kind"] == "collective"]
    measured = [Measurement(one, 20e-6 + dict(one)["bytes"] / 100e9) for one in cases]
    saved(here / "p.jsonl", Protocol(Machine("NVIDIA H100 80GB HBM3", 8), tuple(measured)))
    fitted = gpuscale("calibrate", "nccl", "p.jsonl", "--cluster", "dgx-h100-superpod", "-o", "own.toml")
    assert (fitted.code, fitted.err) == (0, "wrote own.toml: use it with --cluster own.toml\n")
    asked = ("collective", "allreduce", "--bytes", "1GiB", "--gpus", "8", "--json", "--cluster")
    found = json.loads(gpuscale(*asked, "own.toml").out)["time_s"]
    assert found == pytest.approx(20e-6 + 2**30 / 100e9, rel=0.02)
    assert found > 1.5 * json.loads(gpuscale(*asked, "dgx-h100-superpod").out)["time_s"]
    saved(here / "alone.jsonl", made(load_gpu("h100"), cases=wanted(load_gpu("h100"))[:3]))
    alone = gpuscale("calibrate", "nccl", "alone.jsonl", "--cluster", "dgx-h100-superpod")
    assert_one_message(alone, "alone.jsonl: holds no collective that was measured", "calibrate gpu")


def test_nothing_to_fit_to_is_refused():
    with pytest.raises(InputError, match="no measured kernel"):
        fit_gpu(Protocol(Machine("x"), (Measurement(case("launch", op="graph"), 1e-6),)), load_gpu("h100"))


def test_a_file_that_borrows_its_kernels_gets_its_own(here):
    head, _, _ = gpuscale("hardware", "show", "h800", "--toml").out.partition("[kernels]")
    (here / "own.toml").write_text('kernels_like = "h100-sxm-80gb"\n' + head)
    saved(here / "p.jsonl", made(load_gpu("h800-sxm-80gb"), machine=Machine("NVIDIA H800")))
    done = gpuscale("calibrate", "gpu", "--protocol", "p.jsonl", "--gpu", "own.toml", "-o", "gpu.toml")
    assert done.code == 0
    assert "kernels_like" not in (here / "gpu.toml").read_text()
    assert load_gpu("gpu.toml").kernels.tile_m == 128
