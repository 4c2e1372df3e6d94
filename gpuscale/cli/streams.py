"""Standard output of the process, on which an answer is written whole or not silently."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from gpuscale.files import refuse_output, write_all, write_text


class OutputError(OSError):
    """A standard stream took less than all that was to be written."""


class WholeFile(io.RawIOBase):
    """A descriptor (None of a closed stream) that is written whole: Python's own drops the rest of a short write, and
    gives up where a pipe that does not block is full. After the first failure, which is raised, it writes nothing."""

    def __init__(self, descriptor: int | None) -> None:
        super().__init__()
        self._descriptor, self._failed = descriptor, False

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        try:
            if not self._failed:
                write_all(self.fileno(), data)
        except OSError as error:
            self._failed = True
            raise OutputError(error.errno, error.strerror) from None
        return len(data)


def keep_whole() -> None:
    """Replace stdout by a stream that writes everything or raises; a closed stderr takes messages in silence."""
    stream: TextIO | None = sys.stdout  # None where it was closed before the process began
    file = io.BufferedWriter(WholeFile(None if stream is None else stream.fileno()))
    encoding, errors = (stream.encoding, stream.errors) if stream is not None else ("utf-8", "strict")
    sys.stdout = io.TextIOWrapper(file, encoding, errors, line_buffering=file.isatty())
    if sys.stderr is None:
        sys.stderr = io.StringIO()


@contextlib.contextmanager
def printed_to(path: Path | None) -> Iterator[None]:
    """Write what is printed meanwhile to a file, whole or not at all; to stdout where none is given.

    Raises:
        InputError: the file cannot be written, or was read.
    """
    if path is None:
        yield
        return
    refuse_output(path)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield
    write_text(path, text.getvalue())
