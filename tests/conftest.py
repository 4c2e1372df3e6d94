"""Settings for all tests."""

from copy import deepcopy

import pytest
from hypothesis import settings

import gpuscale.api

settings.register_profile("gpuscale", deadline=None, derandomize=True)
settings.load_profile("gpuscale")


@pytest.fixture(autouse=True)
def _no_presets_of_the_user(monkeypatch, tmp_path_factory):
    """Presets of whoever runs the tests stay out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.delenv("GPUSCALE_PRESETS", raising=False)


_PLANS = {}


@pytest.fixture
def plan_once(monkeypatch):
    """What the command line asks `plan` in several tests is computed once; every test has a copy of its own.

    For tests of what is said and drawn, with questions that name no file.
    """
    compute = gpuscale.api.plan

    def plan(*arguments, **options):
        key = repr((arguments, sorted(options.items())))
        if key not in _PLANS:
            _PLANS[key] = compute(*arguments, **options)
        return deepcopy(_PLANS[key])

    monkeypatch.setattr(gpuscale.api, "plan", plan)
