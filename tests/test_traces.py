"""Traces of PyTorch's profiler, written here: intervals whose computation, communication and idle time are known."""

import gzip
import json

import pytest
from command import assert_one_message, gpuscale

from gpuscale.calibration import traces
from gpuscale.calibration.traces import is_trace, read_run_log, read_trace


def kernel(name, start_us, length_us, device=0, stream=7):
    where = {"device": device, "stream": stream}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start_us,
        "dur": length_us,
        "args": where,
    }


def step(number, start_us, length_us, category="user_annotation"):
    return {"ph": "X", "cat": category, "name": f"ProfilerStep#{number}", "ts": start_us, "dur": length_us}


def events(steps=4, device=0):
    """Steps of 1,000 us: 600 of computation, of which 100 beside NCCL, 200 of NCCL alone, 200 idle."""
    found = []
    for number in range(steps):
        at = 1000 * number
        found += [
            step(number + 10, at, 1000),
            kernel("sm90_xmma_gemm_bf16", at, 400, device),
            kernel("void at::native::vectorized_elementwise_kernel", at + 300, 300, device, stream=8),
            kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", at + 500, 300, device, stream=20),
        ]
    return found


def saved(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    document = content if isinstance(content, dict) else {"schemaVersion": 1, "traceEvents": content, "end": 1}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_computation_exposed_communication_and_idle_time_are_told_apart(name, tmp_path):
    found = read_run_log(saved(tmp_path, [{"ph": "M", "name": "process_name"}, *events()], name))
    assert (found.framework, found.iterations) == ("PyTorch profiler", 4)
    assert found.step_time_s == pytest.approx(1e-3)
    assert found.timers_s == {
        "computation": pytest.approx(600e-6), "exposed communication": pytest.approx(200e-6),
        "idle": pytest.approx(200e-6),
    }  # fmt: skip


def test_marks_on_the_gpu_go_before_those_of_the_cpu(tmp_path):
    early = [step(number, 1000 * number - 400, 500) for number in range(10, 14)]
    late = [step(number, 1000 * (number - 10), 1000, "gpu_user_annotation") for number in range(10, 14)]
    found = read_trace(saved(tmp_path, [*early, *late, *(one for one in events() if one["cat"] == "kernel")]))
    assert found.timers_s["computation"] == pytest.approx(600e-6)


def test_of_several_gpus_one_is_taken(tmp_path):
    found = read_trace(saved(tmp_path, [*events(), *events(device=1)[1::4]]))
    assert found.timers_s["idle"] == pytest.approx(200e-6)
    assert "2 GPUs" in found.notes[0]


def test_a_missing_step_leaves_a_gap(tmp_path):
    found = read_trace(saved(tmp_path, [one for one in events() if one["name"] != "ProfilerStep#11"]))
    assert found.iterations == 2


def test_events_across_blocks_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MIB", 97)
    monkeypatch.setattr(traces, "_HEAD", 40)
    assert read_trace(saved(tmp_path, events())).timers_s["computation"] == pytest.approx(600e-6)


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        ([step(1, 0, 10)], "no kernels", "ProfilerActivity"),
        ([kernel("gemm", 0, 10)], "0 steps", "prof.step()"),
        ({"schemaVersion": 1, "deviceProperties": []}, "no traceEvents", "torch.profiler"),
    ],
)
def test_what_a_trace_lacks_is_said(content, message, hint, tmp_path):
    assert_one_message(gpuscale("calibrate", "run", saved(tmp_path, content), "--measure"), message, hint)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_that_is_cut_off_is_refused(name, tmp_path):
    path = saved(tmp_path, events(40), name)
    path.write_bytes(path.read_bytes()[:-200] if name.endswith("gz") else path.read_bytes()[:2000])
    assert_one_message(gpuscale("calibrate", "run", path, "--measure"), name, "")


@pytest.mark.parametrize("event", [b"[" * 100_000, b'{"ph": "X", "ts": 1e999, "dur": NaN}', b'"' + b"x" * 3_000_000])
def test_odd_events_are_one_message(event, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"schemaVersion": 1, "traceEvents": [' + event + b"]}")
    assert_one_message(gpuscale("calibrate", "run", path, "--measure"), "trace.json", "")


def test_kernels_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MAX_KERNELS", 5)
    assert_one_message(
        gpuscale("calibrate", "run", saved(tmp_path, events()), "--measure"), "more than 5 kernels", "fewer"
    )


def test_a_log_is_no_trace(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("{'loss': 1.2}\n")
    assert not is_trace(path)
