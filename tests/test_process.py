"""The process of the `gpuscale` command: what it puts off."""

import importlib
import subprocess
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


def test_a_plan_does_not_load_what_is_put_off():
    command = [sys.executable, "-X", "importtime", "-m", "gpuscale", "plan", "--model", "llama3-8b", "--gpus", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "numpy" in loaded
    assert not loaded & {"ctypes._endian", "email.message", "hmac"}
