"""Results of studies as files: what is written comes back, whatever the format, and nothing is lost on the way."""

import csv
import errno
import json
import os
import resource
import subprocess
import sys

import pytest
from pyarrow import parquet

from gpuscale.errors import InputError
from gpuscale.studies.answers import ROWS_AT_ONCE, SCHEMA, check_output, write_results

COLUMNS = {"key": str, "task": str, "model": str, "gpus": int, "status": str, "reason": str, "mfu": float, "sp": bool}
SUFFIXES = ("parquet", "csv", "jsonl")


def rows(count=5, **values):
    for index in range(count):
        yield {
            "key": f"{index:024x}", "task": "plan", "model": f"m{index % 2}", "gpus": 8 << index % 4,
            "status": "answered", "reason": None, "mfu": 0.1 + index / 1e6, "sp": index % 2 == 0, **values,
        }  # fmt: skip


def read(path):
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("count", [0, 5, ROWS_AT_ONCE + 1])
def test_what_is_written_comes_back(suffix, count, tmp_path):
    path = tmp_path / f"results.{suffix}"
    assert write_results(path, COLUMNS, rows(count)) == count
    wanted = [*rows(count)]
    if suffix == "csv":
        wanted = [{name: "" if one is None else str(one) for name, one in row.items()} for row in wanted]
    assert read(path) == wanted
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_rows_same_bytes(suffix, tmp_path):
    one, other = (tmp_path / f"{name}.{suffix}" for name in "ab")
    for path in (one, other):
        write_results(path, COLUMNS, rows())
    assert one.read_bytes() == other.read_bytes()


def test_parquet_says_its_form_and_keeps_types(tmp_path):
    path = tmp_path / "results.parquet"
    write_results(path, COLUMNS, rows(2, reason=("a", "b"), mfu=1, extra=3))
    table = parquet.read_table(path)
    assert table.schema.metadata[b"schema"].decode() == SCHEMA
    assert [str(one.type) for one in table.schema] == ["string"] * 3 + ["int64", "string", "string", "double", "bool"]
    assert table["reason"].to_pylist() == ["a; b"] * 2


@pytest.mark.parametrize("text", ["=1+1", "@x", "+a", "-a", "\t=1"])
def test_a_spreadsheet_runs_nothing(text, tmp_path):
    path = tmp_path / "results.csv"
    write_results(path, COLUMNS, rows(1, reason=text))
    assert read(path)[0]["reason"].startswith("'")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_text_stops_a_study(suffix, tmp_path):
    path = tmp_path / f"results.{suffix}"
    write_results(path, COLUMNS, rows(1, reason="\udcff\x00\x1b[31m\n\r,\"'"))
    assert len(read(path)) == 1


@pytest.mark.parametrize("name", ["results.txt", "results", "-", "/dev/stdout", "missing/results.csv", "folder.csv"])
def test_what_cannot_be_written_is_refused_before_the_study(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError):
        check_output(tmp_path / name if name.startswith(("m", "f")) else type(tmp_path)(name))


def test_a_missing_library_is_said_before_the_study(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="need pyarrow, which is not installed") as caught:
        check_output(tmp_path / "results.parquet")
    assert caught.value.hint == "pip install 'gpuscale[sweep]'"
    check_output(tmp_path / "results.csv")


def test_a_study_that_breaks_off_leaves_the_old_file(tmp_path):
    def broken():
        yield from rows(3)
        raise ZeroDivisionError

    path = tmp_path / "results.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_results(path, COLUMNS, broken())
    assert (path.read_text(), len([*tmp_path.iterdir()])) == ("old", 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_the_old_file(suffix, tmp_path):
    path = tmp_path / f"results.{suffix}"
    path.write_text("old")
    code = (
        "import sys; sys.path[:0] = ['tests']; from pathlib import Path; from test_studies_table import *\n"
        f"try: write_results(Path({str(path)!r}), COLUMNS, rows(3000))\n"
        "except InputError as error: print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-Bc", code], capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )  # fmt: skip
    assert done.stdout == f"cannot write: {os.strerror(errno.EFBIG)}\n"
    assert (path.read_text(), len([*tmp_path.iterdir()])) == ("old", 1)
