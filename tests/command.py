"""Runs the command line inside the test process: exit code, stdout, stderr."""

import contextlib
import io
import os
from dataclasses import dataclass
from unittest import mock

from gpuscale.cli import run


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()


def gpuscale(*arguments, columns=100, presets=""):
    """Run `gpuscale ARGUMENTS` with output that is not a terminal, `columns` wide, and a folder of presets."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["gpuscale", *(str(argument) for argument in arguments)]
    environment = {"COLUMNS": str(columns), "GPUSCALE_PRESETS": presets, "XDG_CONFIG_HOME": os.devnull}
    with (
        mock.patch("sys.argv", argv),
        mock.patch.dict("os.environ", environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run()
    return Done(code, out.getvalue(), err.getvalue())


def assert_one_message(done, message, hint, code=2):
    """A failed command says one thing on stderr, in the common form, and nothing on stdout."""
    assert (done.code, done.out) == (code, "")
    head, blank, tail = done.err.partition("\n\nhint: ")
    assert head.startswith("error: ")
    assert message in head
    assert bool(blank) or not hint
    assert hint in tail
    assert "Traceback" not in done.err
    assert len(done.err) < 2000
