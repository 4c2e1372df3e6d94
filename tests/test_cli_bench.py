"""`gpuscale bench`: what it measures adds up; how long it takes is not tested."""

import json

import pytest
from command import assert_one_message, gpuscale
from jobs import job

from gpuscale.planning.layouts import make_pins
from gpuscale.planning.plans import MAX_RUNS, bench
from gpuscale.search.evaluation import SEARCH_STAGES, STAGES, Stopwatch, watched
from gpuscale.search.loop import search

SMALL = ("bench", "--model", "llama3.2-1b", "--gpus", "8", "--runs", "2")


class Clock:
    """Tells the times that it is given, one after the other."""

    def __init__(self, *times):
        self.times = iter(times)

    def __call__(self):
        return next(self.times)


def test_laps_of_one_stage_add_up():
    watch = Stopwatch(Clock(1.0, 1.5, 2.5, 6.0))
    for stage in ("rules", "memory", "rules"):
        watch.lap(stage)
    assert watch.seconds == {"rules": 0.5 + 3.5, "memory": 1.0}


def test_a_search_times_every_stage_and_none_that_nobody_watches():
    spec = job("llama3.2-1b", 8)
    with watched() as outer:
        with watched() as inner:
            search(spec, make_pins({}))
        assert outer.seconds == {}
        assert set(inner.seconds) == {"presets", *SEARCH_STAGES}
        before = dict(inner.seconds)
        search(spec, make_pins({}))
        assert inner.seconds == before
        assert set(outer.seconds) == {"presets", *SEARCH_STAGES}


def test_the_numbers_add_up():
    drawn = []
    found = bench("llama3.2-1b", 8, runs=3, draw=drawn.append)
    assert [one.stage for one in found.stages] == list(STAGES)
    assert len(drawn) == 3
    assert found.first_s == pytest.approx(sum(one.first_s for one in found.stages))
    assert found.best_s == pytest.approx(sum(one.best_s for one in found.stages))
    assert 0 < found.best_s <= found.first_s
    searching = sum(one.best_s for one in found.stages if one.stage in SEARCH_STAGES)
    assert found.candidates_per_s == pytest.approx(found.candidates / searching)
    summary = drawn[0].search
    assert (found.generated, found.candidates, found.feasible) == (
        summary.generated,
        summary.candidates,
        summary.feasible,
    )
    assert found.startup_s is None
    assert found.peak_mib is None or found.peak_mib > 10


def test_the_table_names_every_stage_and_json_has_the_same_keys():
    done = gpuscale(*SMALL)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("llama3.2-1b on 8 GPUs: ")
    assert "per second of CPU time" in done.lines[0]
    for stage in STAGES:
        assert any(line.startswith(stage) for line in done.lines), stage
    assert all(len(line) <= 100 for line in done.lines)
    body = json.loads(gpuscale(*SMALL, "--json").out)
    assert (body["schema"], body["runs"], body["gpus"]) == ("gpuscale.bench/1", 2, 8)
    assert [one["stage"] for one in body["stages"]] == list(STAGES)
    assert body["startup_s"] > 0


@pytest.mark.parametrize("runs", [0, -1, MAX_RUNS + 1])
def test_runs_are_bounded(runs):
    done = gpuscale("bench", "--runs", str(runs))
    assert_one_message(done, f"--runs: {runs} is out of range", f"give 1 to {MAX_RUNS}")


def test_what_cannot_be_planned_cannot_be_timed():
    assert_one_message(gpuscale("bench", "--model", "lama3-70b"), "unknown model 'lama3-70b'", "did you mean")
    assert gpuscale("bench", "--model", "llama3.1-405b", "--gpus", "8", "--runs", "1").code == 1
