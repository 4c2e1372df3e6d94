"""The process of the `gpuscale` command: what it puts off."""

import importlib
import sys

from gpuscale.__main__ import POSTPONED, Postponing


def test_a_module_is_loaded_when_it_is_first_used(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Postponing, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "secrets", raising=False)
    module = importlib.import_module("secrets")
    assert "token_hex" not in object.__getattribute__(module, "__dict__")
    assert len(module.token_hex(4)) == 8
    assert "token_hex" in vars(module)


def test_other_modules_are_not_touched():
    assert Postponing.find_spec("math", None) is None
    assert Postponing.find_spec("gpuscale.units", sys.modules["gpuscale"].__path__) is None
    assert not any(name.startswith("gpuscale") for name in POSTPONED)
