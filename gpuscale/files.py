"""Files and streams of users: read within bounds, written whole or not at all, and never over one that was read; what
kind a file is, by how it begins.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shlex
import sys
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, ParamSpec, TypeVar

from gpuscale.errors import InputError
from gpuscale.units import MIB

NO_BREAK = "\u00a0"
"""A space at which no line is broken; printed as a plain one."""

_read: set[Path] | None = None
"""Files that the command has read; None where no command runs, as in a notebook."""

_folders: tuple[Path, ...] = ()
"""Folders that files of users must lie in; anywhere where there are none."""


def confine(*folders: Path) -> None:
    """From now on take no file from elsewhere, and tell nothing of what is there."""
    global _folders  # noqa: PLW0603 - of the process
    _folders = tuple(folder.resolve() for folder in folders)


def _is_outside(path: Path) -> bool:
    if not _folders or not isinstance(path, Path):  # a preset in an archive
        return False
    try:
        whole = path.resolve()
    except (OSError, ValueError, RuntimeError):  # not a path: who opens it says so
        return False
    return not any(whole.is_relative_to(folder) for folder in _folders)


def _refuse_outside(path: Path) -> None:
    if _is_outside(path):
        hint = f"copy it below {_folders[0]}"
        raise InputError("lies outside the folder that may be read", place=repr(str(path)[:300]), hint=hint)


def begin_command() -> None:
    """From now on remember what is read, and let no writer replace it."""
    global _read  # noqa: PLW0603 - of the process, as its files are
    _read = set()


def refuse_irregular(path: Path, kind: str, hint: str | None = None) -> None:
    """Refuse what is no file before it is opened (`kind`: `a TOML file`): a pipe would wait, a device never end.

    Raises:
        InputError: missing, a folder, or not a regular file.
    """
    _refuse_outside(path)
    try:
        exists, folder, regular = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long a name, a NUL byte: who opens it says which
        return
    if not regular:
        what = "no such file" if not exists else f"is a folder, not {kind}" if folder else "is not a regular file"
        raise InputError(what, place=str(path)[:300], hint=hint)


def is_file(path: Path) -> bool:
    """Whether a path means a file; not one that the system cannot take."""
    with suppress(OSError, ValueError):
        return not _is_outside(path) and path.is_file()
    return False


def is_folder(path: Path) -> bool:
    """Whether a path means a folder, as `is_file` for files."""
    with suppress(OSError, ValueError):
        return not _is_outside(path) and path.is_dir()
    return False


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Open a file to read; no writer of the same command replaces it.

    Raises:
        InputError: it cannot be opened or read.
    """
    place = repr(str(path)[:300])
    _refuse_outside(path)
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {reason(error)}", place=place) from None
    try:
        with stream:
            if _read is not None and isinstance(path, Path):  # and no preset in an archive
                _read.add(path.resolve())
            yield stream
    except OSError as error:
        raise InputError(f"cannot be read: {reason(error)}", place=place) from None


def read_text(path: Path, max_bytes: int, kind: str, *, hint: str = "save the file as UTF-8") -> str:
    """Read a UTF-8 file, with or without a byte order mark, of at most `max_bytes`; messages call it by its `kind` (`a
    preset`), and the `hint` says what to do where it is not UTF-8.

    Raises:
        InputError: not readable, too large, or not UTF-8 (the place says the line).
    """
    place = str(path)[:300]
    with reading(path) as stream:
        raw = stream.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise InputError(f"larger than {max_bytes // MIB} MiB, the limit for {kind}", place=place)
    raw = raw.removeprefix(BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("not UTF-8 text", place=f"{place}:{line}", hint=hint) from None


def printable(text: str) -> str:
    """Return text of a file or a user on one line: what would steer a terminal becomes escapes."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable() or character == NO_BREAK:
        return character
    short, number = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}, ord(character)
    return short.get(character) or (f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")


def printable_lines(text: str) -> str:
    """The same of several lines, and of columns with tabs."""
    return re.sub(r"[^\n\t]+", lambda part: printable(part[0]), text)


def csv_cell(value: Any) -> Any:
    """Return a value as a cell of CSV, never one that a spreadsheet runs as a formula."""
    if isinstance(value, tuple | list):
        return csv_cell(shlex.join(map(str, value)))
    if not isinstance(value, str):
        return value
    formula = value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(value)
    return printable(f"'{value}" if formula else value)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def write_text(path: Path, text: str) -> None:
    """Write a text file, as `write_texts` does."""
    write_texts([(path, text)])


def write_texts(texts: Collection[tuple[Path, str]]) -> None:
    """Write text files, all of them or none: what stood there stays until all that is new is on the disk.

    A symbolic link stays one, a file keeps its rights and its other names (hard links). `-`, `/dev/stdout` and the
    like are this process's own streams; devices and pipes are written to, never replaced.

    Raises:
        InputError: two of them are the same file; one was read, is read-only, or cannot be written.
    """
    for (one, _), (other, _) in itertools.combinations(texts, 2):
        if same_file(one, other):
            hint = "give each a file of its own"
            raise InputError("given for two outputs", place=repr(str(one)[:300]), hint=hint)
    with ExitStack() as drafts:
        streams: list[tuple[Path, Callable[[], object]]] = []
        files: list[tuple[Path, Callable[[], object]]] = []
        for path, text in texts:
            with _naming(path):
                data, stream = text.encode(), _own_stream(path)
                if stream is not None:
                    streams.append((path, partial(_write_stream, stream, text)))
                elif path.exists() and not path.is_file():
                    streams.append((path, partial(_write_device, path, data)))
                else:
                    _refuse_output(path)
                    files.append((path, _drafted(path.resolve(), data, drafts)))
        for path, put in [*streams, *files]:  # a stream may fail, a draft hardly
            with _naming(path):
                put()


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write in parts; as with `write_texts`, what stood there stays until all is on the disk.

    Raises:
        InputError: a file was read, is read-only, or cannot be written.
    """
    with ExitStack() as drafts:
        with _naming(path):
            refuse_output(path)
            device = path.exists() and not path.is_file()
            folder = Path(tempfile.gettempdir()) if device else path.resolve().parent
            file, temporary = _draft(folder / path.name, drafts)
        try:
            yield file
        except OSError as error:
            raise _unwritable(path, error) from None
        with _naming(path):
            if device:
                file.flush()
                _write_device(path, temporary.read_bytes())
            else:
                _settled(path.resolve(), file, temporary)()


def refuse_output(path: Path) -> None:
    """Refuse a file to write to, before the work that fills it.

    Raises:
        InputError: it was read, is read-only, is a folder, or is in none.
    """
    if not is_there(path) or path.is_file() or path.is_dir():
        _refuse_output(path)


@contextmanager
def appending(path: Path) -> Iterator[Callable[[str], None]]:
    """Open a text file to add to its end; what is added is on the disk before the next.

    Raises:
        InputError: it cannot be written.
    """
    with _naming(path):
        file = path.open("ab", buffering=0)

    def add(text: str) -> None:
        with _naming(path):
            write_all(file.fileno(), text.encode())
            os.fsync(file.fileno())

    with file:
        yield add


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a circle of links
        raise _unwritable(path, error) from None


def make_folder(path: Path) -> None:
    """Make a folder and those above it; what is there stays.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be made: {reason(error)}", place=repr(str(path)[:300])) from None


def is_there(path: Path) -> bool:
    """Whether a path is of something; not where it cannot be one."""
    with suppress(OSError, ValueError):
        return not _is_outside(path) and path.exists()
    return False


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths mean the same file, there or not."""
    with suppress(OSError, ValueError, RuntimeError):
        return one.resolve() == other.resolve() or one.samefile(other)
    return False


def is_stdout(path: Path | None) -> bool:
    """Whether a path to write to means the standard output."""
    return path is not None and _own_stream(path) == 1


def _refuse_output(path: Path) -> None:
    """Refuse to write over a file that was read, by whatever name or link, or that is read-only, or where none can be.

    Raises:
        InputError: the path is such a file, a folder, or in no folder.
    """
    place = repr(str(path)[:300])
    try:
        if not path.exists():
            path.parent.stat()  # as the system follows `missing/../file`: nowhere
            path.resolve().parent.stat()  # of a link to what is not there yet
            return
        there = path.stat()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except (OSError, ValueError, RuntimeError) as error:
        raise _unwritable(path, error) from None
    for one in _read or ():
        with suppress(OSError):
            if os.path.samestat(one.stat(), there):
                raise InputError("is also a file to read", place=place, hint="write to another file")
    if path.is_file() and not there.st_mode & 0o222:
        raise InputError("is read-only", place=place, hint="write to another file, or make it writable")


def _unwritable(path: Path, error: Exception) -> InputError:
    lost = isinstance(error, FileNotFoundError | NotADirectoryError)
    hint = "give a file in a folder that exists" if lost else None
    return InputError(f"cannot write: {reason(error)}", place=repr(str(path)[:300]), hint=hint)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, waiting where a pipe is full."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            import select  # noqa: PLC0415 - hardly ever needed

            select.select([], [descriptor], [])


def _drafted(target: Path, data: bytes, drafts: ExitStack) -> Callable[[], object]:
    """Write to a temporary file beside a file; return what puts it there."""
    file, temporary = _draft(target, drafts)
    file.write(data)
    return _settled(target, file, temporary)


def _draft(target: Path, drafts: ExitStack) -> tuple[IO[bytes], Path]:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
    temporary = Path(name)
    drafts.callback(temporary.unlink, missing_ok=True)
    file = os.fdopen(handle, "wb")
    drafts.callback(_close, file)
    return file, temporary


def _close(file: IO[bytes]) -> None:
    """Close a file whose content no longer matters where it cannot be written."""
    with suppress(OSError):
        file.close()


def _settled(target: Path, file: IO[bytes], temporary: Path) -> Callable[[], object]:
    """Bring a draft to the disk; return what puts it in the place of a file, or its content where that has several
    names or another owner."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    there = target.stat() if target.exists() else None
    if there is not None and (there.st_nlink > 1 or there.st_uid != temporary.stat().st_uid):
        return lambda: _overwrite(target, temporary.read_bytes())
    temporary.chmod(_usual_mode() if there is None else there.st_mode & 0o7777)
    if there is not None and there.st_gid != temporary.stat().st_gid:
        with suppress(OSError):  # only members of a group may give files to it
            os.chown(temporary, -1, there.st_gid)
    return partial(temporary.replace, target)


def _overwrite(target: Path, data: bytes) -> None:
    """Write over a file in place; what stood there is put back if that fails."""
    with target.open("r+b", buffering=0) as file:
        before = file.read()
        try:
            file.seek(0)
            write_all(file.fileno(), data)
            file.truncate()
            os.fsync(file.fileno())
        except BaseException:
            file.seek(0)
            write_all(file.fileno(), before)
            file.truncate()
            raise


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _own_stream(path: Path) -> int | None:
    """Return the open descriptor of this process that a path means; None for others."""
    if str(path) == "-":
        return 1
    with suppress(OSError, ValueError, RuntimeError):
        for _ in range(40):
            path = path.parent.resolve() / path.name
            own = re.fullmatch(rf"(?:/dev|/proc/(?:{os.getpid()}|self|thread-self))/fd/(\d+)", str(path))
            if own is not None:
                return int(own[1])
            if not path.is_symlink():
                return None
            path = path.parent / path.readlink()
    return None


def _write_device(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as device:
        write_all(device.fileno(), data)


def _write_stream(descriptor: int, text: str) -> None:
    stream = {1: sys.stdout, 2: sys.stderr}.get(descriptor)
    if stream is None:
        write_all(descriptor, text.encode())
    else:
        stream.write(text)
        stream.flush()


def reason(error: Exception) -> str:
    """Say what is wrong with a path; a ValueError is of a NUL byte or a lone surrogate."""
    return error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path or text"


Given = ParamSpec("Given")
Found = TypeVar("Found")

HEAD_BYTES = 65536


class Kind(NamedTuple):
    """A kind of file."""

    what: str  #: what such a file is, with its article.
    use: str  #: what to do with FILE, which is one.


KINDS = {
    "plan": Kind("a plan file", "`gpuscale estimate FILE` reads it"),
    "training": Kind("a training of several phases", "`gpuscale train-time FILE` reads it"),
    "study": Kind("a study", "`gpuscale sweep FILE -o results.parquet` answers it"),
    "trials": Kind("a study of trials", "`gpuscale tune FILE` proposes the next layout to try"),
    "results": Kind("the results of a study", "`gpuscale sweep show FILE` shows them"),
    "answer": Kind("the answer of a command", "`gpuscale plan -o plan.toml` saves a plan that other commands read"),
    "cluster": Kind("a cluster file", "give it as `cluster=FILE`"),
    "gpu": Kind("a GPU file", "give it as `set=gpu=FILE`, or name it in a cluster file"),
    "model": Kind("a model file", "give it as `model=FILE`"),
    "config": Kind("a model's config.json", "give it as `model=FILE`"),
    "framework": Kind("a framework profile", "put it into `frameworks/` of your folder of presets, and give its name"),
    "rates": Kind("a file of rates", "put it into `rates/` of your folder of presets"),
    "calibration": Kind("a calibration of a site", "give it as `calibration=FILE`"),
    "failures": Kind("a study of failures", "give it as `failure_rate=FILE`"),
    "launch": Kind("a launch file", "give it as `launch_files=FILE`"),
    "topology": Kind("a description of a fabric", "`gpuscale calibrate topology FILE` makes a cluster file of it"),
    "collectives": Kind("a log of collectives", "`gpuscale calibrate nccl FILE` fits a cluster to it"),
    "run": Kind("a log of a training run", "`gpuscale calibrate run FILE` fits a site to it"),
    "trace": Kind("a trace of a profiler", "`gpuscale calibrate run FILE` fits a site to it"),
    "protocol": Kind("a file of measured kernels", "`gpuscale calibrate gpu` wrote it, and fits a GPU to it"),
    "measured": Kind("a table of measurements", "`gpuscale validate FILE` predicts them"),
}

_OWN = {
    "planfile": "plan",
    "training": "training",
    "calibration": "calibration",
    "gpu-protocol": "protocol",
    "trials": "trials",
}
_STARTS = (
    ("topology", r"\s*<\?xml|\s*<system"),
    ("launch", r"#!.*sh\b"),
    ("results", r"key,task,status,"),
    ("answer", r"rank,tp,sp,pp,"),
    ("measured", r"id,source,|recipe,source,"),
)
"""Kind -> how its first line begins."""
_KEYS = (
    ("trace", {"traceEvents"}),
    ("results", {"key", "task", "status"}),
    ("config", {"model_type"}),
    ("config", {"architectures"}),
    ("run", {"log_history"}),
    ("run", {"current_steps", "elapsed_time"}),
    ("launch", {"zero_optimization"}),
    ("launch", {"train_micro_batch_size_per_gpu"}),
)
"""Kind -> keys of JSON that tell it."""
_LINES = (
    ("study", r"\[study\]|\[\[questions\]\]"),
    ("cluster", r"\[\[(?:levels|pools)\]\]"),
    ("failures", r"\[interruptions[.\]]"),
    ("framework", r"(?:rule_set|as)[ \t]*="),
    ("gpu", r"sm_count[ \t]*="),
    ("launch", r"per_device_batch_size[ \t]*:"),
    ("model", r"published_params[ \t]*=|tied_embeddings[ \t]*=|base_emb_dim[ \t]*:"),
    ("collectives", r"#?.{0,300}\balgbw[ \t]+busbw"),
    ("run", r".{0,300}\biteration:?[ \t]+[0-9]+[ \t/]|.{0,300}\bstep:?[ \t]+[0-9]+.{0,300}\bloss"),
    (
        "launch",
        r"\[(?:parallelism|training|optim|trainer|orchestrator)\]|#SBATCH|(?:trainer|parallelism|modules|recipe):",
    ),
    ("launch", r"[^#\n]*\b(?:torchrun|deepspeed|srun|accelerate launch)[ \t]"),
    ("topology", r"[ \t]*GPU0[ \t]+GPU1|SwitchName=|CA '|vendid=|GPU 0: .*UUID"),
    ("rates", r"source[ \t]*=.*\ndate[ \t]*="),
)
"""Kind -> how a line begins that tells it, the surest first."""


def kind_of(path: Path) -> str | None:
    """Return what of `KINDS` a file is; None of others, and where there is none."""
    raw = b""
    with suppress(InputError):
        if is_file(path):
            with reading(path) as stream:
                raw = stream.read(HEAD_BYTES)
    if raw.startswith(b"PAR1"):
        return "results"
    if not raw or b"\0" in raw:
        return None
    text = raw.decode(errors="replace").removeprefix("\ufeff")
    own = re.search(r'^[{\s]*"?(?:format|schema)"?\s*[=:]\s*"gpuscale\.([a-z-]{1,40})/', text)
    own = own or re.search(r'^format = "gpuscale\.([a-z-]{1,40})/', text, re.MULTILINE)
    if own is not None:
        return _OWN.get(own[1], "answer")
    keys = set(re.findall(r'"(\w{1,60})"\s*:', text)) if text.lstrip()[:1] == "{" else set()
    by_keys = (kind for kind, needed in _KEYS if needed <= keys)
    by_start = (kind for kind, start in _STARTS if re.match(start, text))
    by_line = (kind for kind, line in _LINES if not keys and re.search(rf"^(?:{line})", text, re.MULTILINE))
    by_name = ("launch" for suffix in (".sh", ".sbatch", ".slurm", ".yaml", ".yml") if path.suffix == suffix)
    return next(chain(by_keys, by_start, by_line, by_name), None)


def use_of(kind: str, path: Path) -> str:
    """Say what to do with a file of a kind."""
    name = str(path) if re.fullmatch(r"[\w./~+-]{1,200}", str(path)) else "FILE"
    return KINDS[kind].use.replace("FILE", name)


@contextmanager
def expecting(path: Any, *kinds: str) -> Iterator[None]:
    """Where a file cannot be used (an `InputError`) and is of another kind than these, say that."""
    try:
        yield
    except InputError:
        given = path if isinstance(path, list | tuple) else [path]
        for one in (Path(one) for one in given if isinstance(one, str | Path)):
            found = kind_of(one)
            if found is not None and found not in kinds:
                message = f"this is {KINDS[found].what}, not {KINDS[kinds[0]].what}"
                raise InputError(message, place=str(one)[:300], hint=use_of(found, one)) from None
        raise


def reads(*kinds: str) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Let a function say of its first argument, files, what they are where they are of another kind."""

    def wrap(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @wraps(function)
        def read(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            with expecting(next(chain(args, kwargs.values()), None), *kinds):
                return function(*args, **kwargs)

        return read

    return wrap
