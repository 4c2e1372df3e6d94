"""`gpuscale validate`: files in, predictions beside measurements out; bad files, bad rows, every output form."""

import csv
import io
import json
import math
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from command import assert_one_message, gpuscale

from gpuscale.errors import InputError
from gpuscale.memory.model import UNSAID
from gpuscale.planning.jobs import Presets
from gpuscale.presets.files import preset_aliases, preset_names
from gpuscale.presets.hardware import load_gpu
from gpuscale.request import JobOptions, read
from gpuscale.uncertainty import FIRST_CHOICES, family_of
from gpuscale.validation import measurements, scores
from gpuscale.validation.measurements import RUNS, Library, Row, named_cluster, read_measurements, row_cluster
from gpuscale.validation.runs import predict_runs, read_run
from gpuscale.validation.scores import (
    LEAST_OF_FAMILY,
    all_choices,
    balanced,
    choosing,
    figures,
    grouped,
    quantile,
    score_runs,
    summarise_runs,
    validate,
)

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "validation"
KEYS = [
    "id", "status", "reason", "measured_step_s", "predicted_step_s", "step_error", "measured_mem_gib",
    "predicted_mem_gib", "mem_error", "predicted_fits", "step_s_low", "step_s_high", "mem_gib_low", "mem_gib_high",
    "predicted_device_gib", "mem_basis", "command", "caveats",
]  # fmt: skip
RUN = {
    "id": "mine-1", "framework": "megatron-lm", "source_date": "2025-01", "gpu": "h100-sxm-80gb", "gpus": "64",
    "fabric": "8x400G IB", "model": "llama3-8b", "precision": "bf16", "tp": "2", "pp": "1", "vp": "1", "cp": "1",
    "sp": "on", "zero": "1", "mbs": "1", "gbs": "256", "seq": "8192", "recompute": "none", "schedule": "1f1b",
}  # fmt: skip


def row(**cells):
    merged = {**RUN, **cells}
    return Row({name: text for name, text in merged.items() if text}, "runs.csv:2")


def score(**cells):
    return score_runs([row(**cells)])[0][0]


def written(tmp_path, rows, name="runs.csv", header=None):
    path = tmp_path / name
    header = header or list(dict.fromkeys(key for one in rows for key in one))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_notes_are_for_people():
    words = (
        "CUDA graph full-iteration; EP-A2A overlap on; PCIe; recompute modules=mlp; MTP layers 2; TP overlap off; eager"
    )
    plain, noted = (read_run(row(model="deepseek-v3", ep="8", notes=notes)) for notes in ("", words))
    assert plain.job.runtime == noted.job.runtime
    assert plain.job.model == noted.job.model
    assert plain.job.cluster == noted.job.cluster
    assert plain.assumed == noted.assumed
    assert "notes" not in RUNS


@pytest.mark.parametrize("name", [name for name, column in RUNS.items() if isinstance(column.kind, tuple)])
def test_a_column_of_words_takes_only_these(name):
    found = score(step_s="2", **{name: "perhaps"})
    assert found.status == "unsupported"
    assert f"{name} 'perhaps' is none of " in found.reason


def test_a_run_that_states_everything_is_ok():
    found = score(step_s="2")
    assert (found.status, found.reason) == ("ok", "")
    assert found.step_error == pytest.approx(found.predicted_step_s / 2 - 1)
    assert found.step_s_low < found.predicted_step_s < found.step_s_high
    assert found.measured_mem_gib is None
    assert found.mem_error is None
    assert found.predicted_fits is True


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("precision", "bf16 mixed precision"),
        ("recompute", "no recomputation"),
        ("tp", "TP 1"),
        ("mbs", "microbatch 1"),
        ("sp", "sequence parallelism on"),
        ("zero", "ZeRO stage 1"),
        ("fabric", "cluster dgx-h100-superpod"),
    ],
)
def test_a_default_is_named(left_out, said):
    found = score(**{left_out: ""})
    assert found.status == "ok-defaults"
    assert said in found.reason.split("; ")


def test_a_run_that_says_nothing_of_recomputation_gets_what_it_takes_to_fit():
    found = score(model="llama3-70b", tp="4", gpus="8", gbs="8", zero="0", recompute="", seq="2048", step_s="2")
    assert "no recomputation" in found.reason  # weights alone are too large
    roomy, full = (score(recompute=text, gpus="8", gbs="64", mbs="8", step_s="2") for text in ("", "full"))
    assert roomy.predicted_fits
    assert "layers per stage recomputed, as memory asks for" in roomy.reason
    assert full.predicted_mem_gib < roomy.predicted_mem_gib
    assert full.predicted_step_s > roomy.predicted_step_s


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpus": ""}, "does not state gpus"),
        ({"seq": "", "gbs": ""}, "does not state seq, gbs"),
        ({"gpu": ""}, "the GPU is not stated"),
        ({"gpu": "abacus"}, "no cluster preset has GPUs 'abacus'"),
        ({"model": "no-such-model"}, "'no-such-model' is not known"),
        ({"model": "/etc/passwd"}, "is not known"),
        ({"cluster": "../../x.toml"}, "no cluster preset is called"),
        ({"gpus": "many"}, "runs.csv:2: gpus 'many' is not a number"),
        ({"gpus": "nan"}, "gpus 'nan' is out of range"),
        ({"tp": "1.5"}, "tp '1.5' is not a whole number"),
        ({"layers": "1e12"}, "layers '1e12' is above 4,096"),
        ({"gbs": "7"}, "global batch size"),
        ({"recompute": "perhaps"}, "'perhaps' is not a way to recompute"),
        ({"step_s": "-3"}, "step_s '-3' is not above 0"),
        ({"tp": "3"}, "64 GPUs"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(cells, reason):
    found = score(**cells)
    assert found.status == "unsupported"
    assert reason in found.reason
    assert "\n" not in found.reason
    assert found.predicted_step_s is None


def test_a_prediction_does_not_see_the_measurement():
    plain, measured = score(), score(step_s="123", mem_gib="45", tflops_gpu="678", mfu="0.9", tokens_s_gpu="1")
    assert measured.predicted_step_s == plain.predicted_step_s
    assert measured.predicted_mem_gib == plain.predicted_mem_gib
    assert (measured.step_s_low, measured.step_s_high) == (plain.step_s_low, plain.step_s_high)


def test_measured_time_comes_from_tokens_per_second():
    by_tokens = score(tokens_s_gpu="16384")
    assert by_tokens.measured_step_s == pytest.approx(256 * 8192 / (16384 * 64))
    assert "from tokens/s" in by_tokens.reason


@pytest.mark.parametrize(
    ("cells", "attention"),
    [
        ({}, 1.0), ({"source_date": "2025-06"}, 0.5), ({"flop_convention": "causal"}, 0.5),
        ({"framework": "megatron-bridge", "source_date": "2025-09"}, 0.5), ({"framework": "nemo"}, 1.0),
        ({"framework": "torchtitan"}, 1.0), ({"source_date": ""}, 0.5), ({"source_date": "2025-05"}, 1.0),
        ({"framework": "megatron-bridge", "source_date": ""}, 0.5), ({"framework": "nanotron", "source_date": ""}, 1.0),
        ({"framework": "torchtitan", "flop_convention": "causal"}, 0.5),
    ],
)  # fmt: skip
def test_measured_time_comes_from_flops_as_the_framework_counts_them(cells, attention):
    """Llama-3-8B: 32 layers of 4 x 4096 x 4096 (grouped queries: 2.5 of them), 3 x 4096 x 14336, and the LM head; both
    products of attention over all or half of the keys."""
    weights = 32 * (2.5 * 4096**2 + 3 * 4096 * 14336) + 4096 * 128256
    flops = 6 * weights * 8192 * 256 + 12 * 32 * 4096 * 8192**2 * 256 * attention
    for rate in ({"tflops_gpu": "400"}, {"mfu": f"{400 / 989.4}"}):
        found = score(**cells, **rate)
        assert found.measured_step_s == pytest.approx(flops / (400e12 * 64), rel=2e-4)
        assert ("full" if attention == 1 else "causal") in found.reason


@pytest.mark.parametrize(
    ("cells", "lacking"),
    [
        ({"framework": "deepspeed"}, "without the convention of counting"),
        ({"precision": "fp8", "mfu": "0.4", "tflops_gpu": ""}, "precision whose peak"),
        ({"tflops_gpu": "", "hfu": "0.5"}, "recomputation"),
    ],
)
def test_no_time_comes_from_flops_that_nobody_knows_how_to_count(cells, lacking):
    found = score(**{"tflops_gpu": "400", **cells})
    assert found.measured_step_s is None
    assert lacking in found.reason


def test_a_rate_counts_before_a_share_of_a_peak():
    """An MFU beside it may be of another peak."""
    assert score(tflops_gpu="400", mfu="0.1").measured_step_s == score(tflops_gpu="400").measured_step_s
    assert score(tflops_gpu="400", precision="fp8").measured_step_s is not None


def test_a_share_in_percent_is_refused():
    assert "mfu '40' is above 1" in score(mfu="40").reason


@pytest.mark.parametrize(
    ("said", "basis", "sure"),
    [
        ("reserved", "reserved", True), ("allocated rank 0", "allocated rank 0", True),
        ("nvidia-smi", "nvidia-smi", True),
        ("allocated max over ranks", "allocated", True), ("max over ranks", "nvidia-smi", False),
        ("rank 0", "nvidia-smi rank 0", False), ("", "nvidia-smi", False),
    ],
)  # fmt: skip
def test_memory_is_what_the_row_says_it_counts(said, basis, sure):
    """Where it does not say, what Megatron-LM's users read; the interval is then wider."""
    found = score(mem_basis=said, mem_gib="60")
    assert found.mem_basis == basis
    half = math.log(found.mem_gib_high / found.predicted_mem_gib)
    told = score(mem_basis=basis, mem_gib="60")
    assert told.predicted_mem_gib == found.predicted_mem_gib
    known = math.log(told.mem_gib_high / told.predicted_mem_gib)
    assert half == pytest.approx(known if sure else math.hypot(known, UNSAID))


def test_rows_alone_and_in_a_batch_agree():
    rows = [row(id=f"r{tp}", tp=str(tp), net_allreduce_busbw_gb_per_s="300") for tp in (1, 2, 4, 8)]
    rows += [row(id=f"g{gpus}", gpus=str(gpus), gbs=str(8 * gpus)) for gpus in (4, 32, 128)]
    rows += [row(id=f"o{gpus}", gpus=str(gpus), gbs="256", zero="3", offload="optimizer") for gpus in (4, 64)]
    rows.append(row(id="bad", tp="3"))
    together = predict_runs(rows)
    for one, found in zip(rows, together, strict=True):
        alone = predict_runs([one])[0]
        assert alone == found if isinstance(found, str) else alone.step_s == found.step_s
    assert isinstance(together[-1], str)


def test_the_architecture_comes_from_the_columns():
    shape = {"layers": "24", "hidden": "2048", "heads": "16", "ffn": "8192", "vocab": "50304", "gated": "on"}
    model = read_run(row(model="my-own", **shape)).job.model
    assert (model.layers, model.hidden, model.vocab, model.kinds[0].mlp.ffn) == (24, 2048, 50304, 8192)
    shorter = read_run(row(layers="4")).job.model
    assert (shorter.layers, shorter.hidden) == (4, 4096)
    assumed = []
    from_size = read_run(row(model="gpt-x", hidden="4096", params_b="6.7"))
    assumed += from_size.assumed
    assert from_size.job.model.layers == 32
    assert {"32 layers, from 6.7 B parameters", "32 heads of 128"} <= set(assumed)


def test_a_measured_bandwidth_scales_the_network():
    slow, fast = (score(net_allreduce_busbw_gb_per_s=value).predicted_step_s for value in ("5", "350"))
    assert slow > 1.2 * fast
    one_node = [score(gpus="8", net_allreduce_busbw_gb_per_s=value).predicted_step_s for value in ("5", "350")]
    assert one_node[0] == one_node[1]


def test_kinds_of_files_are_told_by_their_header(tmp_path):
    assert read_measurements(DATA / "published_runs.csv")[0] == "runs"
    assert read_measurements(DATA / "published_kernels.csv")[0] == "kernels"
    assert read_measurements(DATA / "published_collectives.csv")[0] == "collectives"
    shuffled = dict(reversed(list({**RUN, "extra column": "x", "step_s": "2"}.items())))
    assert read_measurements(written(tmp_path, [shuffled]))[0] == "runs"
    assert read_measurements(written(tmp_path, [RUN], "oom.csv"))[0] == "oom"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "x.csv", "is empty"),
        ("id,gpu\na,b\n", "x.csv:1", "not a file of runs, recipes"),
        ("id,gpu,gpus,model,gbs,seq\n1,2\n", "x.csv:2", "2 fields, but 6 columns"),
        ("id,gpu,gpus,model,gbs,seq\n,h100,8,m,8,8\n", "x.csv:2", "no id"),
        ("id,gpu,gpus,model,gbs,seq\na,b,1,c,1,1\n\na,b,1,c,1,1\n", "x.csv:4", "is given twice, first on line 2"),
        ("id,id,gpus,model,gbs,seq\n", "x.csv:1", "column 'id' is given twice"),
        ("id,gpu,gpus,model,gbs,seq\n", "x.csv", "no rows"),
        ('id,gpu,gpus,model,gbs,seq\n"a,b\n', "x.csv:2", "not valid CSV"),
        ("id,gpu,gpus,model,gbs,seq\n" + "x" * 9000 + ",b,1,c,1,1\n", "x.csv:2", "9,000 characters"),
        ("," * 300 + "id\n", "x.csv:1", "301 columns"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, place, message):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        validate(path)
    assert refused.value.place.endswith(place)
    assert message in refused.value.message


def test_a_file_is_bounded(tmp_path, monkeypatch):
    path = written(tmp_path, [{**RUN, "id": str(number)} for number in range(5)])
    monkeypatch.setattr(measurements, "MAX_ROWS", 4)
    with pytest.raises(InputError, match="more than 4 rows"):
        read_measurements(path)
    monkeypatch.setattr(measurements, "MAX_FILE_BYTES", 1 << 6)
    with pytest.raises(InputError, match="larger than"):
        read_measurements(path)


@pytest.mark.parametrize(
    ("content", "line"), [(b"id,gpu,gpus,model,gbs,seq\n\xff\xfe\x00", 2), (bytes(range(128, 256)) * 10, 1)]
)
def test_bytes_that_are_no_text_are_refused(tmp_path, content, line):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    assert_one_message(gpuscale("validate", path), f"x.csv:{line}: not UTF-8 text", "UTF-8")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_spreadsheets_end_them(tmp_path, end):
    path = tmp_path / "x.csv"
    path.write_bytes(
        end.join(["\ufeffid,gpu,gpus,model,gbs,seq", "a,h100,8,m,64,4096", '"b",h100,8,m,64,4096', ""]).encode()
    )
    _, rows = read_measurements(path)
    assert [(row.raw("id"), row.place.rpartition(":")[2]) for row in rows] == [("a", "2"), ("b", "3")]


def test_rows_are_read_one_by_one(tmp_path):
    path, size = tmp_path / "x.csv", 4000
    lines = [f"run-{number},abacus,8,m{number},64,{number},{'x' * 3000}\n" for number in range(size)]
    path.write_text("".join(["id,gpu,gpus,model,gbs,seq,notes\n", *lines]))
    tracemalloc.start()
    count = sum(1 for _ in measurements.measurements(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (count, peak < 500 * size) == (size, True)  # the file has 3,000 bytes a row


def test_a_file_is_read_to_its_end_before_a_row_is_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "AT_ONCE", 1)
    monkeypatch.setattr(scores, "predict_runs", lambda rows: pytest.fail("predicted"))
    path = written(tmp_path, [{**RUN, "step_s": "2"}, {**RUN, "id": "b"}, RUN])
    assert_one_message(gpuscale("validate", path), f"runs.csv:4: id {RUN['id']!r} is given twice, first on line 2", "")


def test_a_stream_is_read_as_it_comes(tmp_path):
    path, pipe = written(tmp_path, [{**RUN, "step_s": "2"}, {**RUN, "id": "b"}]), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    assert gpuscale("validate", pipe).out == gpuscale("validate", path).out
    writer.join()


def test_errors_at_the_terminal(tmp_path):
    done = gpuscale("validate", tmp_path / "missing.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "missing.csv': cannot be read: " in done.err
    path = written(tmp_path, [{**RUN, "step_s": "2"}])
    assert_one_message(gpuscale("validate", path, "--by", "gpus"), "cannot group by 'gpus'", "did you mean gpu?")
    assert gpuscale("validate", path, "--top", "-1").code == 2
    assert gpuscale("validate", path, "--json", "--csv").code == 2
    unknown = gpuscale("validate", written(tmp_path, [{**RUN, "gpu": "abacus", "step_s": "2"}]))
    assert unknown.code == 1
    assert "none of the 1 rows" in unknown.err


def test_json_has_the_keys_of_the_contract(tmp_path):
    path = written(tmp_path, [{**RUN, "step_s": "2", "mem_gib": "40"}, {**RUN, "id": "b", "gpu": "abacus"}])
    done = gpuscale("validate", path, "--json")
    assert (done.code, done.err) == (0, "")
    body = json.loads(done.out)
    assert list(body) == ["schema", "rows", "summary"]
    assert body["schema"] == "gpuscale.validate/1"
    assert [list(one) for one in body["rows"]] == [KEYS, KEYS]
    assert [one["status"] for one in body["rows"]] == ["ok", "unsupported"]
    assert {"n", "coverage", "median_abs", "p90_abs", "bias"} <= set(body["summary"])
    assert gpuscale("validate", path, "--json").out == done.out


def test_csv_has_one_row_per_row(tmp_path):
    done = gpuscale("validate", written(tmp_path, [{**RUN, "step_s": "2"}, {**RUN, "id": "b", "gpu": "x"}]), "--csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [list(one) for one in rows] == [KEYS, KEYS]
    assert rows[1]["predicted_step_s"] == ""


@pytest.mark.parametrize("name", ["published_runs.csv", "published_kernels.csv", "published_collectives.csv"])
@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.usefixtures("computed_once")
def test_tables_fit_the_terminal(name, columns):
    done = gpuscale("validate", DATA / name, "--top", "3", "--plot", "--by", "model", columns=columns)
    assert (done.code, done.err) == (0, "")
    assert all(len(line) <= columns for line in done.lines[1:])
    assert "off by" in done.lines[0]
    assert "largest errors" in done.out
    assert "predicted s against measured s" in done.out


def test_kernels_and_collectives_are_reported_in_their_own_terms():
    kernels = json.loads(gpuscale("validate", DATA / "published_kernels.csv", "--json").out)
    assert set(kernels["rows"][0]) >= {"id", "measured_time_s", "predicted_time_s", "time_error"}
    assert set(kernels["summary"]["groups"]) == {"kind", "gpu", "precision"}
    errors = {one["id"]: one["time_error"] for one in kernels["rows"]}
    assert errors.pop("mamf-gaudi2-bf16") is None
    assert all(abs(error) < 0.35 for error in errors.values())
    moves = json.loads(gpuscale("validate", DATA / "published_collectives.csv", "--json").out)
    assert moves["summary"]["n"] == 4
    assert set(moves["summary"]["groups"]["size"]) == {"64 KiB - 64 MiB", ">= 64 MiB"}
    reasons = {one["id"]: one["reason"] for one in moves["rows"]}
    assert "time_us" in reasons["no-time"]
    assert "custom kernel" in reasons["custom"]
    assert all(abs(one["time_error"]) < 0.35 for one in moves["rows"] if one["status"] == "ok")


def test_runs_that_ran_out_of_memory(tmp_path):
    rows = [{**RUN, "id": "small", "model": "llama3-8b"}, {**RUN, "id": "large", "model": "llama3-70b"}]
    found = validate(written(tmp_path, rows))
    assert found.kind == "oom"
    assert [one.predicted_fits for one in found.rows] == [True, False]
    assert found.summary["fits"]["out_of_memory"] == 2
    assert found.summary["fits"]["called_out_of_memory"] == 1


def test_figures_on_hand_made_errors():
    found = figures([0.1, -0.2, 0.3, None])
    assert found == {"n": 4, "predicted": 3, "coverage": 0.75, "median_abs": 0.2, "p90_abs": 0.3, "bias": 0.1}
    assert quantile(range(10), 0.9) == 9
    assert figures([])["coverage"] is None
    groups = grouped([("a", 0.1)] * 8 + [("b", -0.3)] * 8 + [("c", 9.0)] * 7)
    assert list(groups) == ["a", "b", "c"]
    assert balanced(groups) == {"families": 2, "median_abs": pytest.approx(0.2), "p90_abs": pytest.approx(0.2)}


def test_families_by_id():
    assert family_of("hf-1.34g-dp2") == "hf"
    assert family_of("nvidia-mb-2606-x") == "nvidia-mb"


def test_rows_that_are_not_comparable_do_not_count():
    rows = [
        row(id=f"x-{flag}", flags=flag, step_s="2") for flag in ("", "suspect", "slow-fabric digitized", "quantised")
    ]
    rows.append(row(id="x-partial", spec="partial", step_s="2"))
    scored = score_runs(rows)
    assert summarise_runs(scored)["n"] == 2
    assert all(one.step_error is not None for one, _ in scored)


def test_choosing_compares_the_first_choice_with_the_best():
    rows = []
    for batch in (128, 256, 512):
        rows += [row(id=f"s-{batch}-{tp}", tp=str(tp), gbs=str(batch), step_s="1") for tp in (1, 2, 8)]
    scored = score_runs(rows)
    for group in (scored[:3], scored[3:6], scored[6:]):
        assert min(group, key=lambda pair: pair[0].predicted_step_s)[0].id.endswith(("-1", "-2"))
    assert [(one["where"], one["median"]) for one in choosing(scored)] == [("all", 1.0)]
    slow = [
        row(id=f"s-{batch}-{tp}", tp=str(tp), gbs=str(batch), step_s="1" if tp == 8 else "1.5")
        for batch in (128, 256, 512)
        for tp in (1, 2, 8)
    ]
    assert choosing(score_runs(slow))[0]["median"] == 1.5


def test_the_optimism_of_first_choices_is_told_from_the_bias_of_all():
    def sweep(batch, ratios):
        """Layouts of one job, TP 1 predicted to be the fastest, which take so many times their prediction."""
        tried = [
            row(id=f"s-{batch}-{tp}", tp=str(tp), gbs=str(batch), step_s="1") for tp in (1, 2, 4, 8)[: len(ratios)]
        ]
        steps = sorted(score_runs(tried), key=lambda pair: pair[0].predicted_step_s)
        return [
            (replace(one, measured_step_s=ratio * one.predicted_step_s), cells)
            for (one, cells), ratio in zip(steps, ratios, strict=True)
        ]

    biased = [pair for batch in (128, 256, 512) for pair in sweep(batch, (1.2, 1.2, 1.2))]
    found = choosing(biased)[0]
    assert (found["first"], found["all"], found["optimism"]) == pytest.approx((1.2, 1.2, 1.0))
    optimistic = [pair for batch in (128, 256, 512) for pair in sweep(batch, (2.0, 1.1, 1.0, 1.1))]
    found = choosing(optimistic)[0]
    assert (found["first"], found["all"], found["optimism"]) == pytest.approx((2.0, 1.1, 2 / 1.1))
    assert found["inside"] == 0.0
    assert [(one["over"], one["n"], one["first"]) for one in all_choices(optimistic)] == [
        ("groups", 3, pytest.approx(2.0)),
        ("families", 1, pytest.approx(2.0)),
    ]


@pytest.mark.full
@pytest.mark.skipif(not SHARED.exists(), reason="no measured runs beside the checkout")
def test_measured_runs():
    found = validate(SHARED / "runs.csv")
    summary = found.summary
    assert len(found.rows) == summary["rows"] > 2000
    assert summary["coverage"] > 0.97
    assert summary["balanced"]["median_abs"] < 0.070
    assert summary["balanced"]["p90_abs"] < 0.185
    step = summary["groups"]["family"]
    added = {"aws", "flagperf", "fms", "internevo", "kwai", "lambda"}  # sources after which nothing was fitted
    before = balanced({name: one for name, one in step.items() if name not in added})
    assert before["families"] == 15
    assert before["median_abs"] < 0.060
    assert before["p90_abs"] < 0.169  # with four runs of a B200 whose power cap nobody states
    memory = summary["memory"]["groups"]["family"]
    off = {name for name, one in memory.items() if one["n"] >= LEAST_OF_FAMILY and one["median_abs"] > 0.05}
    assert off == {"flagperf"}  # PaddlePaddle and forks of Megatron-LM
    assert summary["memory"]["balanced"]["median_abs"] < 0.045
    assert 0.72 <= summary["interval"]["inside"] <= 0.90
    assert summary["interval"]["median_half_width"] < 0.22
    assert summary["fits"]["fitting_right"] > 0.9
    for said, measured in zip(FIRST_CHOICES, summary["first_choices"], strict=False):
        assert said == {name: pytest.approx(measured[name], abs=0.015) if name in ("first", "all") else measured[name]
                        for name in said}  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(not SHARED.exists(), reason="no measured runs beside the checkout")
def test_measured_runs_that_ran_out_of_memory():
    fits = validate(SHARED / "oom.csv").summary["fits"]
    assert fits["out_of_memory_right"] > 0.85


@pytest.mark.full
@pytest.mark.skipif(not SHARED.exists(), reason="no measured collectives beside the checkout")
def test_measured_collectives():
    summary = validate(SHARED / "collectives.csv").summary
    assert summary["n"] > 2000
    assert summary["groups"]["size"][">= 64 MiB"]["median_abs"] < 0.10
    assert summary["groups"]["size"]["< 64 KiB"]["median_abs"] < 0.20


def test_a_slow_allgather_means_that_ranks_are_waited_for_not_that_the_network_is_slow():
    """Over 64 GPUs an AllGather of 1 GiB at 53 GB/s takes 20 ms, three times what the network needs."""
    cells = {"framework": "nanotron", "gpu": "h100-sxm-80gb", "fabric": "AWS EFA", "net_allreduce_busbw_gb_per_s": "94"}
    slow = read_run(row(**cells, net_allgather_busbw_gb_per_s="53")).job.cluster
    good = read_run(row(**cells, net_allgather_busbw_gb_per_s="165")).job.cluster
    assert slow.rank_overhead_s == pytest.approx(0.31e-3, rel=0.03)
    assert good.rank_overhead_s == 0.0
    alone = {**cells, "net_allreduce_busbw_gb_per_s": "300", "net_allgather_busbw_gb_per_s": "20"}
    assert read_run(row(**alone)).job.cluster.rank_overhead_s == 0.0  # the AllReduce took less, so it was an accident
    assert slow.levels[1].link_bytes_per_s > good.levels[1].link_bytes_per_s
    one_node = read_run(row(**cells, gpus="8", net_allgather_busbw_gb_per_s="53")).job.cluster
    assert one_node.rank_overhead_s == 0.0


def test_megatron_deepspeed_trains_in_fp16_unless_told():
    assert read_run(row(framework="deepspeed", gpu="a100-sxm-80gb", precision="", zero="")).job.precision == "fp16"
    assert read_run(row(framework="deepspeed", gpu="a100-sxm-80gb", precision="bf16", zero="")).job.precision == "bf16"


def test_omni_path_is_staged_through_the_host_and_efa_has_its_own_hops():
    def network(**cells):
        return named_cluster(Row({"gpus": "64", "gpus_per_node": "8", **cells}, "row"), Library()).levels[-1]

    omni = network(gpu="a100-sxm-80gb", fabric="4x omni-path links per node")
    assert (omni.link_bytes_per_s, omni.link_efficiency, omni.hop_latency_s) == pytest.approx((6.25e9, 0.8, 9e-6))
    quads = Row({"gpus": "64", "gpu": "a100-sxm-80gb", "fabric": "4x omni-path"}, "row")
    assert [level.gpus for level in named_cluster(quads, Library()).levels] == [4, 8, 416]
    efa = network(gpu="b300-sxm-270gb", fabric="16x400g efa")
    assert (efa.fabric, efa.hop_latency_s) == ("efa", pytest.approx(12.5e-6))


def test_collectives_are_predicted_on_the_fabric_that_the_row_states(tmp_path):
    row = {"collective": "allreduce", "gpu": "gb200", "gpus": "144", "gpus_per_node": "4", "bytes": str(2**33),
           "time_us": "21493", "fabric": "2x NVL72 + 400G NDR IB per GPU"}  # fmt: skip
    slow = {"gpu": "b200-sxm-180gb", "gpus": "16", "gpus_per_node": "8"}
    rows = [
        {**row, "id": "racks"},
        {**row, "id": "fast", **slow, "fabric": "NVLink5-NVSwitch + 8x400G NDR IB"},
        {**row, "id": "slow", **slow, "fabric": "NVLink5-NVSwitch + 8x200G NDR IB"},
        {**row, "id": "verbs", **slow, "bytes": "65536", "fabric": "NVLink5-NVSwitch + 8x400G NDR IB"},
        {**row, "id": "efa", **slow, "bytes": "65536", "fabric": "NVLink5-NVSwitch + 8x400G EFA"},
    ]
    found = {one.id: one.predicted_time_s for one in validate(written(tmp_path, rows)).rows}
    assert found["racks"] == pytest.approx(21493e-6, rel=0.1)  # trays of 4 are neighbours, and nobody asked for SHARP
    assert found["slow"] > 1.5 * found["fast"]
    assert found["efa"] > 1.5 * found["verbs"]


def test_collectives_keep_to_the_algorithm_that_the_row_names(tmp_path):
    row = {"collective": "allreduce", "gpu": "h100-sxm-80gb", "gpus": "8", "gpus_per_node": "8", "time_us": "31289",
           "bytes": str(2**33), "fabric": "NVLink4-NVSwitch"}  # fmt: skip
    said = {"free": "default", "ring": "NCCL_ALGO=Ring", "off": "NVLS off", "nvls": "NCCL_ALGO=NVLS"}
    rows = [{**row, "id": name, "sharp_or_nvls": text} for name, text in said.items()]
    found = {one.id: one.predicted_time_s for one in validate(written(tmp_path, rows)).rows}
    assert found["nvls"] == found["free"] < 0.85 * found["ring"]
    assert found["off"] <= found["ring"]


def test_channels_of_a_row_count_where_the_model_knows_them(tmp_path):
    row = {"collective": "allreduce", "gpus": "32", "gpus_per_node": "8", "bytes": str(2**30), "time_us": "6000"}
    machines = {"h100-sxm-80gb": "NVLink4-NVSwitch + 8x400G NDR IB", "mi300x": "xGMI + 8x400G RoCE"}
    rows = [
        {**row, "id": f"{gpu} {channels}", "gpu": gpu, "fabric": fabric, "channels": channels}
        for gpu, fabric in machines.items()
        for channels in ("", "2")
    ]
    free, few, amd, amd_few = (one.predicted_time_s for one in validate(written(tmp_path, rows)).rows)
    assert few > 2 * free
    assert amd_few == amd


def test_every_gpu_stands_in_some_cluster():
    library = Library()
    for gpu in (*preset_names("gpus"), *sorted(preset_aliases("gpus"))):
        assert named_cluster(Row({"gpu": gpu, "gpus": "8"}, "row"), library).gpu.name == load_gpu(gpu).name


def test_gpus_per_node_choose_between_usual_nodes():
    def nodes(gpu, per_node):
        cells = {"gpu": gpu, "gpus": "32", "gpus_per_node": per_node}
        options = row_cluster(Row(cells, "row"), 32, Library())[0]
        return Presets().cluster_of(read(JobOptions, {"model": "-", "gpus": 32, **options})).node_gpus

    assert (nodes("gh200", "4"), nodes("gh200", "1")) == (4, 1)
    assert (nodes("v100", "8"), nodes("v100", "16")) == (8, 16)
    assert nodes("h100-sxm-80gb", "4") == 4
    assert nodes("gb200", "2") == nodes("gb200", "4") == 72


def held_to_their_commands(path, step):
    """Rows of a file whose command gives other numbers than the row."""
    wrong, counted = [], 0
    for one in json.loads(gpuscale("validate", path, "--json").out)["rows"][::step]:
        if one["status"] == "unsupported":
            continue
        assert one["command"][0] == "estimate"
        assert "--json" not in one["command"]
        done = gpuscale(*one["command"], "--json")
        found = json.loads(done.out) if done.code == 0 else {}
        own = one["predicted_step_s"], one["predicted_device_gib"], one["predicted_mem_gib"]
        counted += 1
        if not found or own != (
            found["plan"]["step_time_s"], found["plan"]["memory_gib"], found["logged_memory_gib"][one["mem_basis"]],
        ):  # fmt: skip
            wrong.append(f"{one['id']}: {' '.join(one['command'])} {done.err}")
    return wrong, counted


def test_the_command_of_a_row_gives_its_numbers_to_the_last_digit():
    wrong, counted = held_to_their_commands(DATA / "published_runs.csv", 12)
    assert not wrong
    assert counted > 10


@pytest.mark.full
@pytest.mark.skipif(not SHARED.exists(), reason="no measured runs beside the checkout")
@pytest.mark.parametrize("name", ["runs.csv", "oom.csv"])
def test_the_command_of_every_measured_run_gives_its_numbers_to_the_last_digit(name):
    wrong, counted = held_to_their_commands(SHARED / name, 1)
    assert not wrong
    assert counted > 1300


def test_a_run_of_a_fork_is_estimated_despite_the_rules(tmp_path):
    cells = {"model": "gpt", "layers": "22", "hidden": "2304", "heads": "24", "pp": "8", "source_date": "2023-11"}
    path = written(tmp_path, [{**RUN, **cells, "tp": "1", "gpus": "8", "gbs": "24", "sp": "", "zero": ""}])
    (one,) = json.loads(gpuscale("validate", path, "--json").out)["rows"]
    assert one["command"][-1] == "--despite-rules"
    refused = gpuscale(*one["command"][:-1])
    assert refused.code == 2
    assert "uneven_stages" in refused.err
    kept = gpuscale(*one["command"], "--json")
    assert any("uneven_stages" in note for note in json.loads(kept.out)["notes"])
    assert gpuscale(*one["command"], "--pp", "23").code == 2  # no more stages than layers, whatever the fork
