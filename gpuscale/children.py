"""Programs that a command starts."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, with what it has started, and wait for it."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
