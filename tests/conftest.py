"""Settings for all tests."""

import pickle
import tomllib
from copy import deepcopy
from functools import cache, lru_cache

import pytest
from hypothesis import settings

import gpuscale.cli.jobs
import gpuscale.cli.measurements
from gpuscale.validation import machines

settings.register_profile("usual", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("full", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("usual")


def pytest_configure(config):
    if config.option.markexpr == "full":
        settings.load_profile("full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With -m full, what Hypothesis tries runs again, with more examples."""
    for item in items:
        if config.option.markexpr == "full" and item.get_closest_marker("hypothesis"):
            item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True)
def _no_presets_of_the_user(monkeypatch, tmp_path_factory):
    """Presets of whoever runs the tests stay out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.delenv("GPUSCALE_PRESETS", raising=False)


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
        patch.setattr(machines, "_spellings", cache(machines._spellings))
        yield


_ANSWERS = {}


@pytest.fixture
def computed_once(monkeypatch):
    """What commands ask `plan` and `validate` in several tests is computed once; every test has a copy of its own.

    For tests of what is said and drawn, with questions that name no file of the test's own.
    """
    for module, name in ((gpuscale.cli.jobs, "find_plans"), (gpuscale.cli.measurements, "predict")):
        monkeypatch.setattr(module, name, _remembering(name, getattr(module, name)))


def _remembering(name, compute):
    def answer(*arguments, **options):
        key = repr((name, arguments, sorted(options.items())))
        if key not in _ANSWERS:
            _ANSWERS[key] = compute(*arguments, **options)
        return deepcopy(_ANSWERS[key])

    return answer
