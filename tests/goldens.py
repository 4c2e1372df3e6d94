"""What every command of `commands.toml` printed when it was last looked at."""

import json
import shlex
import tomllib
from pathlib import Path

from command import gpuscale

TESTS = Path(__file__).parent
FOLDER = TESTS / "data" / "goldens"
_LISTED = tomllib.loads((TESTS / "commands.toml").read_text(encoding="utf-8"))
ANSWERS, TEXTS = _LISTED["answers"], _LISTED["texts"]
COMMANDS = {name: tuple(shlex.split(line)) for name, line in (ANSWERS | TEXTS).items()}
"""Name -> arguments, with paths as seen from the root of the checkout."""


def text_of(name):
    """What a command shows, with its exit code."""
    done = gpuscale(*COMMANDS[name])
    return f"exit {done.code}\n{'-- stderr' if done.err else ''}\n{done.err}-- stdout\n{done.out}"


def answer_of(name):
    """What a command answers as JSON; None where it has only a message."""
    done = gpuscale(*COMMANDS[name], "--json")
    return json.loads(done.out) if done.out else None
