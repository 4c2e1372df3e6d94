"""Runs the commands of README.md and docs/planning.md and writes their outputs anew: python tests/update_readme.py.

In a block marked `console` a line `$ gpuscale ...` is a command and what follows is its output; `# exit N` after a
command is its exit code, and a line `...` says that the rest of the output is left out.
"""

import contextlib
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from command import gpuscale

README = Path(__file__).parents[1] / "README.md"
PAGES = (README, README.parent / "docs" / "planning.md")
"""Pages whose examples are run."""

LEFT_OUT = "..."
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
KEPT_LINES = 24
"""Lines kept of an output that is cut, when the README has none of it yet."""


@dataclass(frozen=True)
class Shown:
    """A command of the README, with the lines of output below it."""

    command: str
    lines: tuple[str, ...]

    @property
    def code(self):
        found = re.search(r"  # exit (\d+)$", self.command)
        return int(found[1]) if found else 0

    @property
    def cut(self):
        return self.lines[-1:] == (LEFT_OUT,)


def parse(block):
    """The commands of one block."""
    shown = []
    for line in block.splitlines():
        if line.startswith("$ "):
            shown.append(Shown(line.removeprefix("$ "), ()))
        else:
            shown[-1] = Shown(shown[-1].command, (*shown[-1].lines, line))
    return shown


def blocks(page=README):
    """The commands of every console block of a page."""
    return [parse(block) for block in BLOCK.findall(page.read_text())]


def run(shown):
    """Exit code and lines of output, cut as the README has it, of a command run in the working directory."""
    program, *arguments = shlex.split(shown.command, comments=True)
    assert program == "gpuscale"
    done = gpuscale(*arguments)
    lines = tuple((done.out + done.err).splitlines())
    if shown.cut:
        kept = len(shown.lines) - 1 or KEPT_LINES
        lines = (*lines[:kept], LEFT_OUT)
    return done.code, lines


def shape(lines):
    """What stays when a constant of the model is refitted: the verdict without digits, headers, how lines begin."""
    text = [re.sub(r"[0-9][0-9.,]*[kM]?=?", "#", line) for line in lines]
    headers = {index - 1 for index, line in enumerate(lines) if line.startswith("───")}
    kept = (line if index in {0, *headers} else line[:1].strip() and line.split()[0] for index, line in enumerate(text))
    return [" ".join(line.split()) if set(line) != {"─"} else "─" for line in kept]


@contextlib.contextmanager
def empty_folder():
    """Work in a folder of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def rewrite(match):
    """One block with outputs of now."""
    lines = []
    for shown in parse(match[0]):
        code, output = run(shown)
        if code != shown.code:
            raise SystemExit(f"exit code {code}: {shown.command}")
        lines += [f"$ {shown.command}", *output]
    return "\n".join(lines) + "\n"


def main():
    for page in PAGES:
        before = page.read_text()
        with empty_folder():
            after = BLOCK.sub(rewrite, before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"{page.name} has new outputs\n")


if __name__ == "__main__":
    main()
