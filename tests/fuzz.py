"""Fuzzing: mutated files and options through every command, in this process.

    python tests/fuzz.py --seconds 20 [--seed N] [--jobs N] [--first N] [--inputs N]

Whatever is found is made small and kept in `tests/data/fuzz_corpus/`, which `test_fuzz.py` runs again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import pickle
import queue
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256
from itertools import pairwise, takewhile
from pathlib import Path
from unittest import mock

from command import gpuscale
from fuzz_inputs import Case, case

from gpuscale import files as gpuscale_files
from gpuscale.presets import files as preset_files
from gpuscale.validation import measurements

CORPUS = Path(__file__).parent / "data" / "fuzz_corpus"
COMMAND = "command"
"""File of the corpus that holds the arguments; those beside it are what the command reads."""

MAX_SECONDS, MAX_MIB = 5, 500
"""Of one input: time of the processor, and growth of the process."""

MAX_TRIES = 500
"""Inputs that are tried to make a finding smaller."""

OUTPUTS = ("-o", "--output", "--html")
"""Options that name a file which may be replaced, where nothing reads it."""

NO_NUMBER = re.compile(r"(?<![\w./-])(?:nan|-?inf)(?![\w./-])", re.IGNORECASE)
PYTHON_WARNING = re.compile(r"^\S+\.py:\d+: \w*Warning", re.MULTILINE)
MESSAGE = re.compile(r"(?:(?:note|warning|wrote)\b.*\n)*error: .+\n(?:\nhint: .+\n)?")


class TooLong(BaseException):
    """An input took more than `MAX_SECONDS`."""


def problem(one: Case) -> tuple[str, int]:
    """Run a case in a folder of its own; return what is wrong with the outcome, or nothing, and the exit code."""
    own = mock.patch.dict("os.environ", HF_HUB_CACHE="hub", PATH="bin")
    with tempfile.TemporaryDirectory(prefix="fuzz") as name, contextlib.chdir(name), own:
        folder = Path(name)
        for path, content in one.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
            (folder / path).chmod(0o755 if path.startswith("bin/") else 0o644)
        before = _contents(folder)
        presets = "presets" if (folder / "presets").is_dir() else ""
        gpuscale_files.begin_command()
        resident = _reset_peak()
        try:
            with _limited():
                done = gpuscale(*one.arguments, presets=presets)
        except TooLong:
            endless = one.arguments[0] == "sweep" or "recipes.csv" in one.files  # as many searches as were asked for
            return "" if endless else f"slow: more than {MAX_SECONDS} s", -1
        except BaseException as error:  # noqa: BLE001 - nothing may leave a command but its exit code
            return f"raised: {type(error).__name__}", -1
        grown = _peak() - resident
        if grown > MAX_MIB:
            return f"memory: more than {MAX_MIB} MiB", done.code
        return _wrong(one, done, before, _contents(folder)), done.code


def _wrong(one, done, before, after):
    """Say what is wrong with exit code, streams and files, in words that do not depend on the input's own."""
    text = "\n".join(done.err.splitlines()[:1])
    if done.code not in {0, 1, 2}:
        return f"exit {done.code}: {text.split(': ')[1][:100] if ': ' in text else text}"
    if PYTHON_WARNING.search(done.err):
        return f"python: {PYTHON_WARNING.search(done.err)[0].rpartition('/')[2]}"
    if done.code and not MESSAGE.fullmatch(done.err):
        return f"message: exit {done.code} without an error"
    for stream in (done.out, done.err):
        if not re.sub(r"[\n\t\u00a0]", "", stream).isprintable():
            return "unprintable: " + ("stdout" if stream is done.out else "stderr")
    named = {text for option, text in pairwise(one.arguments) if option in OUTPUTS and one.arguments.count(text) == 1}
    if any(after.get(path) != content for path, content in before.items() if path not in named):
        return "destroyed: a file that was there"
    if done.code == 2 and after != before:
        return "written: a file, in spite of exit 2"
    return _wrong_document(one, done)


def _wrong_document(one, done):
    """Say what is wrong with what is printed on stdout."""
    options = takewhile("--".__ne__, one.arguments)  # what follows `--` is a name
    said = "\0".join(one.arguments) + "".join(content.decode("latin-1") for content in one.files.values())
    if (
        any(text == "--json" and not before.startswith("--") for before, text in pairwise(options))
        and "--help" not in one.arguments
        and (done.out or (done.code == 0 and not {"-o", "--output"} & set(one.arguments)))
    ):
        try:
            json.loads(done.out, parse_constant=_no_constant)
        except ValueError as error:
            return f"json: {str(error).partition(':')[0]}"
    if not re.search("nan|inf", said, re.IGNORECASE) and NO_NUMBER.search(done.out):
        return "number: nan or inf is printed"
    return ""


def _no_constant(name):
    raise ValueError(f"{name} is no number")


def _contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def _limited():
    """Raise `TooLong` in what runs for more than `MAX_SECONDS` of the processor's time."""

    def stop(*_, **__):
        raise TooLong

    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def _reset_peak():
    """Let the peak of resident memory count from now on, where the system can; return it [MiB]."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak()


def _peak():
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024
    return 0.0


# --- small findings


def minimised(one: Case, found: str) -> Case:
    """Return a smaller case with the same finding."""
    tries = iter(range(MAX_TRIES if not found.startswith(("slow", "memory")) else 12))

    def holds(smaller):
        return next(tries, None) is not None and problem(smaller)[0] == found

    arguments = _fewer(list(one.arguments), lambda left: holds(replace(one, arguments=tuple(left))))
    one = replace(one, arguments=tuple(arguments))
    for name in one.files:
        fewer = {path: content for path, content in one.files.items() if path != name}
        if holds(replace(one, files=fewer)):
            one = replace(one, files=fewer)
            continue
        for split in (lambda raw: raw.splitlines(keepends=True), lambda raw: [bytes([byte]) for byte in raw]):
            whole = one
            left = _fewer(
                split(one.files[name]),
                lambda left, whole=whole, name=name: holds(replace(whole, files=whole.files | {name: b"".join(left)})),
            )
            one = replace(one, files=one.files | {name: b"".join(left)})
    return one


def _fewer(parts, holds):
    """Return the parts that are left when as many as possible are taken out, in ever smaller runs."""
    size = max(1, len(parts) // 2)
    while True:
        at = 0
        while at < len(parts):
            left = parts[:at] + parts[at + size :]
            if holds(left):
                parts = left
            else:
                at += size
        if size == 1:
            return parts
        size //= 2


def save(one: Case, found: str) -> Path:
    """Keep a finding in the corpus: its arguments in `command`, and its files beside it."""
    slug = re.sub(r"[^a-z0-9]+", "-", found.lower()).strip("-")[:50]
    digest = sha256(repr((one.arguments, sorted(one.files.items()))).encode("utf-8", "surrogatepass")).hexdigest()[:6]
    folder = CORPUS / f"{slug}-{digest}"
    for name, content in one.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMMAND).write_bytes(os.fsencode(shlex.join(one.arguments) + "\n"))
    return folder


def load(folder: Path) -> Case:
    """Return a case of the corpus."""
    arguments = tuple(shlex.split(os.fsdecode((folder / COMMAND).read_bytes())))
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / COMMAND]
    return Case(arguments, {str(path.relative_to(folder)): path.read_bytes() for path in paths})


# --- runs


def outcomes(seed, wanted, until=float("inf")):
    """Run inputs of a seed until it is time; yield the number of each, the input, what was found, and the exit code."""
    for number in wanted:
        if time.monotonic() > until:
            return
        one = case(seed, number)
        found, code = problem(one)
        yield number, one, found, code


@contextlib.contextmanager
def quick():
    """Let many commands in one process be quick: texts are parsed once, and our presets' aliases read once."""
    parse = tomllib.loads

    @lru_cache(maxsize=400)
    def parsed(text):
        return pickle.dumps(parse(text))

    spelled, read = cache(measurements._spellings), preset_files.preset_aliases
    ours = cache(read)

    def aliases(kind):
        return (read if os.environ.get("GPUSCALE_PRESETS") else ours)(kind)

    with (
        mock.patch.object(tomllib, "loads", lambda text: pickle.loads(parsed(text))),
        mock.patch.object(preset_files, "preset_aliases", aliases),
        mock.patch.object(measurements, "_spellings", spelled),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        yield


def _work(seed, wanted, until, results):
    """Run inputs in a process of its own; small ones of what is found go to `results`, then the counts."""
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, resource.RLIM_INFINITY))
    codes, seen = Counter(), Counter()
    with quick():
        for number, one, found, code in outcomes(seed, wanted, until):
            codes[code] += 1
            if found and not seen[found]:
                results.put((number, found, minimised(one, found)))
            if found:
                seen[found] += 1
    results.put((codes, seen))


def fuzz(seconds: float, seed: int, jobs: int, first: int, inputs: int) -> int:
    """Fuzz for some seconds; print what is found and how many inputs were run, and return how many kinds were found."""
    results = multiprocessing.Queue()
    until = time.monotonic() + seconds
    workers = [
        multiprocessing.Process(target=_work, args=(seed, range(first + job, first + inputs, jobs), until, results))
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    codes, seen, kept = Counter(), Counter(), set()
    left = jobs
    while left:
        try:
            said = results.get(timeout=1)
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise SystemExit("a worker died: the inputs from --first on, one by one, show of what") from None
            continue
        if len(said) == 2:
            codes, seen, left = codes + said[0], seen + said[1], left - 1
        elif said[1] not in kept:
            number, found, one = said
            kept.add(found)
            print(f"input {number}: {found}\n  {save(one, found)}", flush=True)
    for worker in workers:
        worker.join()
    answers = ", ".join(f"exit {code}: {count:,}" for code, count in sorted(codes.items()))
    print(f"{sum(codes.values()):,} inputs of seed {seed} ({answers}); {len(seen)} kinds of findings")
    for found, count in seen.most_common():
        print(f"  {count:6,} {found}")
    return len(seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--inputs", type=int, default=10**9, help="inputs at most")
    asked = parser.parse_args()
    sys.exit(fuzz(asked.seconds, asked.seed, asked.jobs, asked.first, asked.inputs) > 0)


if __name__ == "__main__":
    main()
