"""Runs the commands of README.md and other pages and writes their outputs anew: python tests/update_readme.py.

In a block marked `console`, or `text` that begins with a command, a line `$ gpuscale ...` is a command and what follows
is its output; `# exit N` after a command is its exit code, and a line `...` says that some of the output is left out.
Commands of other programs are shown without output, and not run.
"""

import contextlib
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from command import gpuscale

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
NAMES = ("tour", "planning", "hardware", "fleet", "tasks/fill-memory", "tasks/fine-tune")
PAGES = (README, *(DOCS / f"{name}.md" for name in NAMES))
"""Pages whose examples are run."""

FILES = {"tests": README.parent / "tests", "fleet.toml": README.parent / "tests" / "data" / "fleet.toml"}
"""Files that the examples read."""

PICTURE = DOCS / "plan.svg"
PICTURED = "plan --model llama3-70b --gpus 640"
"""What the picture in the README shows."""

LEFT_OUT = "..."
BLOCK = re.compile(r"(?:(?<=^```console\n)|(?<=^```text\n)(?=\$ )).*?(?=^```$)", re.MULTILINE | re.DOTALL)
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
    def program(self):
        return Path(self.command.split()[0]).name


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
    if shown.program != "gpuscale":
        assert shown.lines == (), f"what {shown.command} prints is not known"
        return shown.code, ()
    done = gpuscale(*shlex.split(shown.command, comments=True)[1:])
    rest, lines, before = (done.out + done.err).splitlines(), [], ""
    if shown.lines == (LEFT_OUT,):
        return done.code, (*rest[:KEPT_LINES], LEFT_OUT)
    for line in shown.lines:
        if before == LEFT_OUT:  # the output goes on at the next line that looks like this one
            at = next((at for at, one in enumerate(rest) if digitless(one) == digitless(line)), len(rest))
            rest = rest[at:]
        lines += [LEFT_OUT] if line == LEFT_OUT else rest[:1]
        rest, before = rest[line != LEFT_OUT :], line
    return done.code, (*lines, *(rest if before != LEFT_OUT else ()))


def digitless(line):
    """A line without its numbers."""
    return re.sub(r"[0-9][0-9.,]*[kM]?=?", "#", line)


def shape(lines):
    """What stays when a constant of the model is refitted: the verdict without digits, headers, how lines begin."""
    text = [*map(digitless, lines)]
    headers = {index - 1 for index, line in enumerate(lines) if line.startswith("───")}
    kept = (line if index in {0, *headers} else line[:1].strip() and line.split()[0] for index, line in enumerate(text))
    return [" ".join(line.split()) if set(line) != {"─"} else "─" for line in kept]


@contextlib.contextmanager
def empty_folder():
    """Work in a folder of its own, with what examples read."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, path in FILES.items():
            Path(folder, name).symlink_to(path)
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


def picture():
    """The first chart of a plan's page as a picture of its own: step time over memory."""
    with empty_folder():
        gpuscale(*shlex.split(PICTURED), "--html", "plan.html")
        page = Path("plan.html").read_text(encoding="utf-8")
    depth, start = 0, page.index("<svg")
    for tag in re.finditer(r"<svg|</svg>", page[start:]):
        depth += 1 if tag[0] == "<svg" else -1
        if not depth:
            break
    chart = page[start : start + tag.end()]
    style = resources.files("gpuscale.render.html").joinpath("charts.css").read_text(encoding="utf-8")
    width, height, left, right = 800, 376, 40, 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n<style>\n{style}'
        f"svg {{ overflow: visible; }} .back {{ fill: var(--back); }}\n</style>\n<title>{PICTURED}</title>\n"
        f'<rect class="back" width="{width}" height="{height}"/>\n'
        f'<svg x="{left}" y="4" width="{width - left - right}" height="{height}">{chart}</svg>\n</svg>\n'
    )


def main():
    PICTURE.write_text(picture(), encoding="utf-8")
    for page in PAGES:
        before = page.read_text()
        with empty_folder():
            after = BLOCK.sub(rewrite, before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"{page.name} has new outputs\n")


if __name__ == "__main__":
    main()
