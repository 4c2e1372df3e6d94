"""Settings for all tests."""

import pytest
from hypothesis import settings

settings.register_profile("gpuscale", deadline=None, derandomize=True)
settings.load_profile("gpuscale")


@pytest.fixture(autouse=True)
def _no_presets_of_the_user(monkeypatch, tmp_path_factory):
    """Presets of whoever runs the tests stay out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
    monkeypatch.delenv("GPUSCALE_PRESETS", raising=False)
