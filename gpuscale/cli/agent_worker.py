"""What answers a call of a tool: a process of its own, started ahead, confined to a folder, ended where it takes long.

The process runs one command of gpuscale as the command line would. It reads files below a folder alone
(`files.confine`); an audit hook of Python refuses what no answer needs: sockets, programs, any change of a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.cli.agent_tools import Asked, page_of, part_of, read_call
from gpuscale.errors import InputError
from gpuscale.files import printable

PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from gpuscale.__main__ import main; "
PROGRAM += "from gpuscale.cli.agent_worker import receive; receive(); main()"
LOADED = "planning.plans launch.subject explain.explanation launch.check render.answers render.plan render.output"
"""Modules that an answer takes most time to load."""

REFUSED = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "shutil.",
)  # fmt: skip
"""Beginnings of audit events (docs.python.org/3/library/audit_events.html) that no answer needs."""

KEPT = 8
"""Answers that are kept for their next pages."""


class Said(NamedTuple):
    """What a tool says."""

    text: str
    failed: bool  #: the input was unusable, or it took too long.


class Desk:
    """Answers calls within `limit_s`, each in a process of its own, one always ready; files lie below `root`."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self.root, self.limit_s = root.resolve(), limit_s
        self._lock, self._kept = threading.Lock(), OrderedDict[Asked, str]()
        self._spare: subprocess.Popen[str] | None = None
        self._busy: set[subprocess.Popen[str]] = set()
        self.get_ready()

    def get_ready(self) -> None:
        """Start the process that answers next, if none is ready."""
        with self._lock:
            if self._spare is None:
                self._spare = self._started()

    def _started(self) -> subprocess.Popen[str]:
        set_here = {"COLUMNS": "100", "NO_COLOR": "1", "GPUSCALE_DEBUG": "", "PYTHONIOENCODING": "utf-8"}
        pipe = subprocess.PIPE
        arguments = [sys.executable, "-P", "-c", PROGRAM, *sys.path]
        return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8",
                                errors="replace", env=os.environ | set_here, process_group=0)  # fmt: skip

    def call(self, tool: str, arguments: Mapping[str, Any], started: list[subprocess.Popen[str]] | None = None) -> Said:
        """Answer a call as the command line would; `started` gets its process, for who may end it."""
        try:
            asked = read_call(tool, arguments)
            whole = asked._replace(offset=0)
            text = self._kept.get(whole) if asked.offset else None
            if text is None:
                code, out, err = self._run(asked, [] if started is None else started)
                if code not in {0, 1}:
                    return Said(page_of(_in_tools(err) or f"error: the answer ended with code {code}", 0), True)
                text = self._text(asked, out, err, code)
                self._kept[whole] = text
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return Said(page_of(text, asked.offset), False)
        except InputError as error:
            hint = f"\n\nhint: {printable(error.hint)}" if error.hint else ""
            return Said(f"error: {': '.join(map(printable, filter(None, (error.field, error.message))))}{hint}", True)

    @staticmethod
    def _text(asked: Asked, out: str, err: str, code: int) -> str:
        if asked.key is None or not out:
            return "\n\n".join(filter(None, map(_in_tools, (out, err))))
        return part_of(json.loads(out), "$" if code else asked.key)

    def _run(self, asked: Asked, started: list[subprocess.Popen[str]]) -> tuple[int, str, str]:
        with self._lock:
            ready, self._spare = self._spare, None
            process = ready if ready is not None and ready.poll() is None else self._started()
            self._busy.add(process)
        started.append(process)
        question = {"arguments": asked.arguments, "root": str(self.root)}
        try:
            out, err = process.communicate(f"{json.dumps(question)}\n{asked.stdin}", self.limit_s)
        except subprocess.TimeoutExpired:
            hint = "ask for less at a time: one GPU count, one cluster, what is settled pinned (`tp`: 8)"
            raise InputError(f"no answer within {self.limit_s:g} s, the limit of a call", hint=hint) from None
        finally:
            _end(process)
            with self._lock:
                self._busy.discard(process)
            self.get_ready()
        return process.returncode, out, err

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for process in self._busy:  # who waits for it cleans up
                process.kill()
            if self._spare is not None:
                _end(self._spare)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()


def _in_tools(text: str) -> str:
    """Name the tool `list` where a text names the command line's help or `show`."""
    text = re.sub(r"`gpuscale (?:show )?(\w+)[^`]* --help`", r"the tool list (what=options, name=\1)", text)
    text = re.sub(r"`gpuscale show (\w+)`", r"the tool list (what=\1)", text)
    return re.sub(r"`gpuscale show (\w+) NAME`", r"the tool list (what=\1, name=NAME)", text).strip("\n")


def receive() -> None:
    """Be the process: load what answers need, and set a question from stdin as the command line."""
    from importlib import import_module

    from gpuscale.files import confine
    from gpuscale.presets.files import preset_folders

    for name in LOADED.split():
        import_module(f"gpuscale.{name}")
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit()
    question = json.loads(line)
    root = Path(question["root"])
    os.chdir(root)
    confine(root, *preset_folders(""))
    sys.dont_write_bytecode = True
    sys.argv = ["gpuscale", *question["arguments"]]
    sys.addaudithook(_refuse)


def _refuse(event: str, about: tuple[Any, ...]) -> None:
    changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    writes = event == "open" and (set(str(about[1])) & set("wax+") or about[2] & changing)
    if writes or event.startswith(REFUSED):
        raise PermissionError(f"{event} is refused here")
