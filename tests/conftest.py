"""Settings for all tests."""

import gc
import importlib.util
import os
import pickle
import signal
import tomllib
from collections import Counter
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path

import pytest
from hypothesis import settings

from gpuscale.planning import plans
from gpuscale.validation import measurements, scores

WORKER = "PYTEST_XDIST_WORKER" in os.environ


def _interrupted(*_):
    """Fail the test that runs: an interrupt would end the worker, and with it all that is left of the run."""
    raise RuntimeError("an interrupt came to the process of the tests; it is for a child process")


# What ignores signals hands that on to its children, as a shell does to background jobs and nohup to all; handlers it
# does not, so that whatever tests start is as it is where a user starts it.
signal.signal(signal.SIGINT, _interrupted if WORKER else signal.default_int_handler)
for name in {"SIGHUP", "SIGTERM"} & set(dir(signal)):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, name), lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """A test that lets an interrupt out fails alone, too."""
    try:
        return (yield)
    except KeyboardInterrupt:
        if not WORKER:
            raise
        pytest.fail("an interrupt came out of the test")


settings.register_profile("usual", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("full", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("usual")


def pytest_configure(config):
    if config.option.markexpr == "full":
        settings.load_profile("full")


FEW = {
    "test_the_frontier_of_a_search_is_that_of_brute_force": 3,
    "test_the_plans_are_those_of_a_search_of_everything": 1,
    "test_no_step_is_shorter_than_its_lower_bounds": 10,
    "test_each_objective_ranks_jobs_by_its_value": 3,
    "test_nothing_is_left_out_where_more_than_the_fastest_is_asked_for": 2,
    "test_why_accounts_for_the_best_variant_among_the_plans": 2,
    "test_the_verdict_answers_the_question": 6,
    "test_the_best_plan_of_each_job_is_that_of_a_question_of_its_own": 1,
    "test_where_a_value_makes_no_difference_only_the_first_is_searched": 2,
    "test_a_search_keeps_what_breaks_no_rule_and_nothing_else": 6,
    "test_the_same_holds_for_every_framework_and_for_states_on_the_host": 10,
    "test_a_constraint_keeps_what_meets_it_and_nothing_else": 4,
    "test_a_search_finds_what_one_that_times_everything_finds": 5,
    "test_one_candidate_alone_is_its_row_in_the_batch": 3,
    "test_one_element_alone_equals_its_value_in_the_batch": 12,
    "test_hardware_twice_as_good_never_slows_a_step": 8,
    "test_hardware_a_little_better_never_slows_a_step": 1,
    "test_a_saved_plan_of_any_job_is_estimated_to_the_last_digit": 3,
    "test_at_a_turning_point_another_family_is_ahead_and_before_it_none_is": 1,
    "test_deciles_are_in_order_and_worse_conditions_never_help": 1,
    "test_a_log_cut_off_anywhere_gives_no_other_time": 1,
}
"""Tests of many searches -> how many of their cases always run; the others run with -m full."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the further cases of `FEW`; with -m full, what Hypothesis tries runs again, with more examples."""
    seen = Counter()
    for item in items:
        name = item.originalname if isinstance(item, pytest.Function) else ""
        if name in FEW and not item.get_closest_marker("full"):
            seen[name] += 1
            if seen[name] > FEW[name]:
                item.add_marker(pytest.mark.full)
        if config.option.markexpr == "full" and item.get_closest_marker("hypothesis"):
            item.add_marker(pytest.mark.full)


def pytest_collection_finish():
    """All that was imported and collected stays: the garbage collector need not look through it again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_presets_of_the_user(monkeypatch, tmp_path_factory):
    """Presets and cached models of whoever runs the tests stay out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.delenv("GPUSCALE_PRESETS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path_factory.getbasetemp() / "no-cache"))


@pytest.fixture(autouse=True, scope="session")
def _each_text_is_parsed_once():
    """Preset files are read anew by every test, as they are by every command, but their text is parsed once."""
    parse = tomllib.loads

    @lru_cache(maxsize=1000)
    def parsed(text):
        return pickle.dumps(parse(text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tomllib, "loads", lambda text: pickle.loads(parsed(text)))
        yield


@pytest.fixture(autouse=True, scope="session")
def _presets_of_the_package_are_spelled_once():
    """Rows of measurements name presets of the package alone: their spellings are the same in all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "_spellings", cache(measurements._spellings))
        yield


_ANSWERS = {}


@pytest.fixture(scope="session")
def generate():
    """The module that writes the reference pages of the docs."""
    path = Path(__file__).parents[1] / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def computed_once(monkeypatch):
    """What commands ask `plan` and `validate` in several tests is computed once; every test has a copy of its own.

    For tests of what is said and drawn, with questions that name no file of the test's own.
    """
    for module, name in ((plans, "plan"), (scores, "validate")):
        monkeypatch.setattr(module, name, _remembering(name, getattr(module, name)))


def _remembering(name, compute):
    def answer(*arguments, **options):
        key = repr((name, arguments, sorted(options.items())))
        if key not in _ANSWERS:
            _ANSWERS[key] = compute(*arguments, **options)
        return deepcopy(_ANSWERS[key])

    return answer
