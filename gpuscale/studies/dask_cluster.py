"""A study on a Dask cluster that runs already: its workers answer the questions, a few in each task.

The workers need this version of gpuscale; the scheduler, which only passes bytes on, needs none. They get copies of
the files that a study names: the user's own presets, and what a question names by path or by an id in the cache of the
Hugging Face hub, with the files that these name in turn. Below a folder elsewhere they lie as they do here, so that
one finds another from where it stands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from shutil import rmtree
from tempfile import mkdtemp
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpuscale.errors import GpuscaleError, InputError, NoAnswerError, shown
from gpuscale.files import is_file, printable, reading
from gpuscale.planning.jobs import Presets
from gpuscale.presets.files import find_preset, parse_toml, preset_folders, settled
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import split_pool
from gpuscale.presets.hub import cached_config, is_id
from gpuscale.presets.models import is_path
from gpuscale.studies.answers import Answered, answer, failed
from gpuscale.studies.study import Case, Digests, Row
from gpuscale.units import MIB
from gpuscale.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

MAX_FILE_BYTES, MAX_BYTES = 4 * MIB, 64 * MIB
"""Of one file, as large as any that is read, and of all that a study takes along."""

PRESETS = ("gpus", "clusters", "models", "frameworks", "rates", "failures")

ROOT = "\0root"
"""Stands in a question for the folder below which the files lie; no path holds it."""


@dataclass(frozen=True)
class Moved:
    """A question as it is asked elsewhere."""

    case: Case
    texts: Mapping[str, str]  #: options that name files -> the same from below `ROOT`.

    def under(self, root: Path) -> Case:
        """Return the question with its files below a folder."""
        options = {name: text.replace(ROOT, str(root)) for name, text in self.texts.items()}
        return replace(self.case, options={**self.case.options, **options})

    def told(self, rows: Iterator[Row], root: Path) -> list[Row]:
        """Return the rows of that question as those of the question itself."""
        back = {text.replace(ROOT, str(root)): str(self.case.options[name]) for name, text in self.texts.items()}
        return [{**{name: _replaced(value, back) for name, value in row.items()}, "key": self.case.key} for row in rows]


def _replaced(value: Any, back: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for text, original in back.items():
            value = value.replace(text, original)
    return value


class Carried:
    """The files of a study, found as its questions come."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  #: where one lies below the folder -> what it holds.
        self._known: dict[tuple[str, str], str] = {}
        for kind in PRESETS:
            *own, _ = preset_folders(kind)
            for path in sorted(one for folder in own for one in folder.glob("*.toml")):
                self._take(path, f"presets/{kind}/{path.name}")

    def packed(self) -> bytes:
        """Return all files as `laid_out` takes them."""
        return zlib.compress(pickle.dumps(self.files), 1)

    def moved(self, case: Case) -> Moved:
        """Take along what a question names, and return it as it is asked elsewhere.

        Raises:
            InputError: files that are too large, or one that names another by its absolute path.
        """
        texts = {}
        for option in ("model", "cluster", "set", "calibration", "failure_rate"):
            text = case.options.get(option)
            if isinstance(text, str):
                if (option, text) not in self._known:
                    self._known[option, text] = self._moved(option, text)
                if self._known[option, text] != text:
                    texts[option] = self._known[option, text]
        return Moved(case, texts)

    def _moved(self, option: str, text: str) -> str:
        if option == "set":
            parts = (part.partition("=") for part in text.split(","))
            return ",".join(
                name + equals + (self._moved("gpu", value) if name.strip() == "gpu" else value)
                for name, equals, value in parts
            )
        path, pool = split_pool(text) if option == "cluster" else (text, None)
        if _is_path(option, path):
            return self._placed(Path(path.strip())) + (f":{pool}" if pool else "")
        if option == "model" and is_id(text) and settled("models", text)[0] == text:
            with suppress(GpuscaleError):  # of an unknown model, which is the answer
                return self._placed(cached_config(text))
        return text

    def _placed(self, path: Path) -> str:
        whole = Path(os.path.abspath(path))  # noqa: PTH100 - without links resolved
        place = "/".join(("files", *whole.parts[1:]))  # as it lies here below the root
        file, target = (path, place) if not path.is_dir() else (path / "config.json", f"{place}/config.json")
        if target not in self.files and is_file(file):
            text = self._take(file, target)
            if file.suffix.lower() == ".toml":
                self._follow(file, text)
        return f"{ROOT}/{place}"

    def _take(self, path: Path, place: str) -> bytes:
        with reading(path) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES or len(content) + sum(map(len, self.files.values())) > MAX_BYTES:
            limits = f"at most {MAX_FILE_BYTES // MIB} MiB each and {MAX_BYTES // MIB} MiB together"
            raise InputError(f"too large to be sent to the workers, {limits}", place=str(path)[:300])
        self.files[place] = content
        return content

    def _follow(self, path: Path, content: bytes) -> None:
        try:
            data = parse_toml(path, content.decode("utf-8-sig")).data
        except (GpuscaleError, UnicodeDecodeError):  # which is the answer
            return
        for name in _texts(data):
            if name.lower().endswith(".toml") and is_file(path.parent / name):
                if Path(name).is_absolute():
                    message = f"names {name[:200]}, which workers on other machines do not see"
                    raise InputError(message, place=str(path)[:300], hint="name it relative to this file")
                self._placed(path.parent / name)


def _is_path(option: str, text: str) -> bool:
    if option == "model":
        return find_preset("models", text) is None and is_path(text)
    return option == "calibration" or "/" in text or os.sep in text or text.lower().endswith(".toml")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def laid_out(packed: bytes, root: Path) -> None:
    """Write files below a folder, those that are not there yet."""
    (root / "presets").mkdir(parents=True, exist_ok=True)
    for place, content in pickle.loads(zlib.decompress(packed)).items():
        path = root / place
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@contextmanager
def presets_of(root: Path) -> Iterator[None]:
    """Have a folder's presets as the user's own; of one thread at a time."""
    before = os.environ.get("GPUSCALE_PRESETS")
    os.environ["GPUSCALE_PRESETS"] = str(root / "presets")
    try:
        yield
    finally:
        del os.environ["GPUSCALE_PRESETS"]
        if before is not None:
            os.environ["GPUSCALE_PRESETS"] = before


def _forget_presets() -> None:
    """Forget presets that were read by name: those of other studies may differ."""
    load_framework.cache_clear()


INSTALL = "`pip install 'gpuscale[dask]'` installs it"

CONNECT_S = 20.0

WORKERS_S = 300.0
"""Time that a cluster may be without workers: some start them when tasks wait."""

LOOK_S = 5.0

TASK_S, MAX_PER_TASK = 0.5, 32
"""Work of one task, beside which Dask's share is small, and its questions at most."""

TASKS_PER_THREAD, MAX_ASKED = 3, 20_000
"""Tasks with the cluster for each thread: one runs, others wait. And questions in all, which bound this process's
memory."""

_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.%]{2,60}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}", re.ASCII)


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a scheduler.

    Raises:
        InputError: it is none.
    """
    if not _ADDRESS.fullmatch(address):
        hint = "write tcp://HOST:8786, or tls://HOST:8786"
        raise InputError(f"{shown(address)} is not the address of a Dask scheduler", field="scheduler", hint=hint)


def on_cluster(cases: Iterator[Case], address: str) -> Iterator[Answered]:
    """Yield the answers of questions as the workers of a Dask cluster find them.

    A question whose worker dies is asked of another; one with which several die is recorded as failed.

    Args:
        address: of the scheduler, `tcp://HOST:PORT`, or `tls://HOST:PORT` with certificates as Dask's configuration
            says.

    Raises:
        InputError: no such cluster, workers without this version of gpuscale, or files that cannot be sent to them.
        NoAnswerError: the cluster is lost while it works.
    """
    for first in cases:  # none is left where all is answered
        with _quiet(), _connected(address) as client:
            _check_versions(client, address)
            yield from _Tasks(client, address).answers(chain([first], cases))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Dask logs off stderr: what matters becomes an error here."""
    try:
        import distributed  # noqa: F401, PLC0415 - an extra; its loggers have levels from now on
    except ImportError:
        raise InputError("needs Dask, which is not installed", field="scheduler", hint=INSTALL) from None
    known = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    levels = [(one, one.level) for one in known if one.level]
    for one, _ in levels:
        one.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for one, level in levels:
            one.setLevel(level)


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client  # noqa: PLC0415
    from distributed.versions import VersionMismatchWarning  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionMismatchWarning)  # `_check_versions` says what matters
        try:
            with ThreadPoolExecutor(1) as thread:  # in this one a notebook has a loop already
                thread.submit(asyncio.run, _greeted(address)).result()
            client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except Exception as error:  # noqa: BLE001 - whatever stands there instead
            message = f"no Dask scheduler answers at {address}: {_said(error)}"
            hint = "is `dask scheduler` running there, of the same version, and can it be reached from here?"
            raise InputError(message, field="scheduler", hint=hint) from None
    try:
        yield client
    finally:
        with suppress(OSError, TimeoutError, CancelledError):
            client.close(timeout=CONNECT_S)


async def _greeted(address: str) -> None:
    """Wait for the scheduler's greeting, which a `Client` would wait for without end."""
    from distributed import Security  # noqa: PLC0415
    from distributed.comm import connect  # noqa: PLC0415

    options = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, timeout=CONNECT_S, **options), CONNECT_S)
    await comm.close()


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {CONNECT_S:g} s"
    return printable(f"{type(error).__name__}: {error}")[:200]


def _check_versions(client: Client, address: str) -> None:
    try:
        every = client.get_versions()
        found = client.run(resolve_name, "gpuscale.version:__version__", on_error="return")
    except (OSError, TimeoutError, CancelledError) as error:
        raise _lost(address, error) from None
    here = _versions(every["client"])
    places = {"the scheduler": every["scheduler"]} | {f"worker {name}": one for name, one in every["workers"].items()}
    for place, said in places.items():
        there = _versions(said) if isinstance(said, dict) else here  # a worker that has just left
        if there != here:
            message = f"{place} of {address} has {there}, this machine {here}"
            raise InputError(message, field="scheduler", hint="install the same versions everywhere")
    for name, version in found.items():
        if isinstance(version, str | ImportError):
            _check_version(f"worker {name} of {address}", version if isinstance(version, str) else None)


def _versions(said: dict[str, Any]) -> str:
    packages = said["packages"]
    return f"Dask {packages['distributed']} on Python {'.'.join(packages['python'].split('.')[:2])}"


def _check_version(place: str, version: str | None) -> None:
    if version != __version__:
        has = "no gpuscale" if version is None else f"gpuscale {version[:40]}"
        hint = f"`pip install gpuscale=={__version__}` there, or take an image that has it"
        raise InputError(f"{place} has {has}, this machine {__version__}", field="scheduler", hint=hint)


def _lost(address: str, error: BaseException) -> NoAnswerError:
    closed = "its scheduler closed the connection, or dropped the tasks"
    why = _said(error) if isinstance(error, TimeoutError) else closed
    hint = "answers so far are stored: start the study again when the cluster is back"
    return NoAnswerError(f"the Dask cluster at {address} was lost: {why}", field="scheduler", hint=hint)


class _Tasks:
    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address
        self._study, self._count = uuid4().hex, 0
        self._asked: dict[Future, tuple[Case, ...]] = {}
        self._alone: deque[Case] = deque()
        self._done: SimpleQueue[Future] = SimpleQueue()
        self._carried, self._packed, self._sent = Carried(), None, -1
        self._each_s = TASK_S
        self._working = self._looked = time.monotonic()
        self._threads = 0
        self._look()

    def answers(self, cases: Iterator[Case]) -> Iterator[Answered]:
        self._ask(cases)
        while self._asked:
            for future in self._finished():
                yield from self._told(future)
            self._ask(cases)

    def _ask(self, cases: Iterator[Case]) -> None:
        size = min(MAX_PER_TASK, max(1, int(TASK_S / self._each_s)))  # questions of the next task
        tasks = min(TASKS_PER_THREAD * max(self._threads, 1), MAX_ASKED // size)
        while len(self._asked) < tasks:
            chunk = (self._alone.popleft(),) if self._alone else tuple(islice(cases, size))
            if not chunk:
                break
            moved = [self._carried.moved(case) for case in chunk]
            if len(self._carried.files) != self._sent:  # a task of its own: it goes to each worker once, is made again
                self._sent = len(self._carried.files)
                self._packed = self._client.submit(bytes, self._carried.packed(), key=self._name("files"))
            given = (__version__, self._study, self._packed, pickle.dumps(moved))
            self._await(self._client.submit(_question(), *given, key=self._name("gpuscale")), chunk)

    def _await(self, future: Future, chunk: tuple[Case, ...]) -> None:
        self._asked[future] = chunk
        future.add_done_callback(self._done.put)

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{what}-{self._study}-{self._count}"

    def _finished(self) -> list[Future]:
        while True:
            if time.monotonic() - self._looked > LOOK_S:
                self._look()
            with suppress(Empty):
                found = [self._done.get(timeout=LOOK_S)]
                found += [self._done.get() for _ in range(self._done.qsize())]
                return found

    def _look(self) -> None:
        """Count the cluster's threads; refuse one that is gone, or without workers for long."""
        try:
            each = self._client.sync(self._client.scheduler.ncores, callback_timeout=CONNECT_S)
        except (OSError, TimeoutError, CancelledError, AttributeError) as error:
            raise _lost(self._address, error) from None
        self._threads, self._looked = sum(each.values()), time.monotonic()
        if self._threads:
            self._working = self._looked
        elif self._looked - self._working > WORKERS_S:
            message = f"the Dask cluster at {self._address} has had no workers for {WORKERS_S:g} s"
            raise NoAnswerError(message, field="scheduler", hint="start some: `dask worker ADDRESS --nthreads 1`")

    def _told(self, future: Future) -> Iterator[Answered]:
        """Yield a task's answers; questions of one that dies with its workers are asked one by one."""
        from distributed import KilledWorker  # noqa: PLC0415

        chunk = self._asked.pop(future)
        try:
            version, (rows, taken_s, differs) = future.result(timeout=CONNECT_S)
        except KilledWorker:
            if len(chunk) > 1:
                self._alone.extend(chunk)
            else:
                yield failed(chunk[0], "each worker that was asked died, as for lack of memory")
            return
        except TimeoutError:  # its worker has left with the result, which is found once more, or the scheduler is gone
            self._look()
            self._await(future, chunk)
            return
        except (OSError, CancelledError) as error:
            raise _lost(self._address, error) from None
        except Exception as error:  # noqa: BLE001 - whatever a worker may raise
            message = f"a task of the Dask cluster at {self._address} failed: {_said(error)}"
            raise NoAnswerError(message, field="scheduler", hint="see the logs of its workers") from None
        _check_version(f"a worker of {self._address}", version)
        if differs:
            hint = "install the same build of gpuscale everywhere; presets and files of your own are sent along"
            raise InputError(f"a worker of {self._address} {printable(differs)[:300]}", field="scheduler", hint=hint)
        self._each_s += 0.2 * (taken_s / len(chunk) - self._each_s)
        future.release()
        for case, found in zip(chunk, rows, strict=True):
            yield Answered(case, tuple(found))


# --- on the workers

Told = tuple[list[list[Row]], float, str]
"""What a task tells: the rows of each question, the time that they took [s], and why it answered none."""


def _question() -> Callable[..., Any]:
    """Return what a task runs, sent as it is, so that a worker that lacks gpuscale can say so."""

    def ask(version: str, *given: Any) -> tuple[str | None, Told]:
        import os  # noqa: PLC0415 - it takes nothing along
        from pkgutil import resolve_name  # noqa: PLC0415

        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            found: str = resolve_name("gpuscale.version:__version__")
        except ImportError:
            return None, ([], 0.0, "")
        if found != version:
            return found, ([], 0.0, "")
        return found, resolve_name("gpuscale.studies.dask_cluster:answered")(*given)

    return ask


class _Laid:
    study, packed = "", b""
    folder: Path | None = None
    digests: Digests | None = None


_LOCK = Lock()
"""Held while questions are answered: each study has presets of its own."""


def answered(study: str, packed: bytes, asked: bytes) -> Told:
    """Answer pickled questions (`Moved`) of a study, with its `packed` files, if they rest on the same here."""
    with _LOCK:
        start = time.perf_counter()
        root, digests = _laid(study, packed)
        rows = []
        with presets_of(root):
            for moved in pickle.loads(asked):
                case = moved.under(root)
                differs = _differs(case, digests)
                if differs:
                    return [], 0.0, differs
                rows.append(moved.told(answer(case).rows, root))
        return rows, time.perf_counter() - start, ""


def _differs(case: Case, digests: Digests) -> str:
    about = ", ".join(f"{name} {case.options[name]}" for name in ("model", "cluster") if name in case.options)
    try:
        same = not case.digest or digests.of(case.task, case.options) == case.digest
    except GpuscaleError as error:
        return f"does not find what {about} rests on: {error.message}"
    return "" if same else f"has other presets: {about} is not the same there"


def _laid(study: str, packed: bytes) -> tuple[Path, Digests]:
    """Return the folder of a study's files; that of another study is removed."""
    from distributed import get_worker  # noqa: PLC0415

    if _Laid.study != study or _Laid.folder is None or _Laid.digests is None:
        if _Laid.folder is not None:
            rmtree(_Laid.folder, ignore_errors=True)
        folder = Path(mkdtemp(prefix="gpuscale-", dir=get_worker().local_directory))  # which Dask removes
        _Laid.study, _Laid.packed, _Laid.folder, _Laid.digests = study, b"", folder, Digests(Presets())
        _forget_presets()
    if _Laid.packed != packed:
        laid_out(packed, _Laid.folder)
        _Laid.packed = packed
    return _Laid.folder, _Laid.digests
