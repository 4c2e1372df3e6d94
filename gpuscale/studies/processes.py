"""Questions answered by several processes of this machine.

Each worker is a Python of its own that reads questions and writes answers. It imports gpuscale alone, so that notebooks
and scripts may ask for workers as they are, and it ends with the process that started it, however that ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Self

from gpuscale.errors import InputError
from gpuscale.studies.answers import Answered, answer, failed
from gpuscale.studies.cases import Case, Row

MAX_JOBS = 1024
QUEUED = 2
"""Questions in work or waiting for each worker: none waits for the next, and few are lost with a kill."""

_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}
"""Variables of workers, as of the `gpuscale` command: one thread each, and no plugins looked for."""

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from gpuscale.studies.processes import work; work()"


def in_processes(cases: Iterator[Case], jobs: int) -> Iterator[Answered]:
    """Answer questions in `jobs` processes; yield the answers as they come.

    A question whose process dies, as for lack of memory, is asked once more, then recorded as failed.

    Raises:
        InputError: the processes do not start.
    """
    with _Workers() as workers, ThreadPoolExecutor(jobs) as threads:
        try:
            waiting = {threads.submit(workers.ask, case) for case in islice(cases, QUEUED * jobs)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {threads.submit(workers.ask, case) for case in islice(cases, len(done))}
                for one in done:
                    yield one.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            workers.end()


class _Workers:
    """The processes: each thread that asks has one of its own."""

    def __init__(self) -> None:
        self._own, self._lock = threading.local(), threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def ask(self, case: Case) -> Answered:
        """Answer a question in the process of this thread."""
        for _ in range(2):
            process = getattr(self._own, "process", None) or self._start()
            try:
                return Answered(case, _told(process, case))
            except (EOFError, OSError, pickle.UnpicklingError):
                self._own.process = None
                process.kill()
                ended = process.wait()
            if self._ended:
                break
        return failed(case, f"its process ended twice, {f'by signal {-ended}' if ended < 0 else f'with code {ended}'}")

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", _PROGRAM, *sys.path]
        with self._lock:  # none starts once they are ended
            if self._ended:
                raise InputError("the workers are ended")
            # in a group of its own: Ctrl-C is for the process that asks, which ends the workers
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1,
                                       env={**_SETTINGS, **os.environ}, process_group=0)  # fmt: skip
            self._all.append(process)
        try:
            _told(process, None)
        except (EOFError, OSError, pickle.UnpicklingError):
            hint = f"see whether {sys.executable} can import gpuscale"
            raise InputError("the worker processes do not start", field="jobs", hint=hint) from None
        self._own.process = process
        return process

    def end(self) -> None:
        """End all processes at once."""
        with self._lock:
            self._ended = True
        for process in self._all:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            with suppress(OSError):  # a question that was not sent
                process.__exit__(None, None, None)


def _told(process: subprocess.Popen[bytes], case: Case | None) -> tuple[Row, ...]:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(case, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def work() -> None:
    """Be a worker: read questions from stdin, write their rows to what was stdout, until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed
    questions: SimpleQueue[Case | None] = SimpleQueue()

    def read() -> None:
        """Pass on what stdin says; end the process with it, also in the midst of a question."""
        while True:
            try:
                questions.put(pickle.load(sys.stdin.buffer))
            except (EOFError, pickle.UnpicklingError):
                os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        case = questions.get()
        pickle.dump(() if case is None else answer(case).rows, answers)
        answers.flush()
