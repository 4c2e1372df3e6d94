"""Studies are run by processes that may end at any point: no answer is lost, doubled or asked for twice."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from command import assert_one_message, gpuscale

import gpuscale as library
from gpuscale.errors import InputError
from gpuscale.render import machine
from gpuscale.studies import answers, run
from gpuscale.studies.answers import FAILED
from gpuscale.studies.run import opened
from gpuscale.studies.study import read_study

SMALL = {"model": ["llama3.2-1b", "llama3-8b"], "gpus": [8, 16], "tp": "1", "pp": "1", "cp": "1", "zero": "1"}
"""Four questions, quickly answered."""


def toml(table):
    return "[study]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


def rows_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def stored(path, study=SMALL):
    """How many questions of a study a store has."""
    with opened(Path(f"{path}.sqlite")) as store:
        return sum(bool(store.ask(case)[0]) for case in read_study(study).cases())


def test_rows_stand_in_the_order_of_the_study(tmp_path):
    output = tmp_path / "r.jsonl"
    found = list(library.sweep(SMALL, output))
    rows = rows_in(output)
    assert [row["key"] for row in rows] == [case.key for case in read_study(SMALL).cases()]
    assert [one.case.key for one in found] == [row["key"] for row in rows]
    assert [one.rows[0]["step_time_s"] for one in found] == [row["step_time_s"] for row in rows]
    assert [(row["model"], row["gpus"]) for row in rows] == [
        ("llama3.2-1b", 8), ("llama3.2-1b", 16), ("llama3-8b", 8), ("llama3-8b", 16)
    ]  # fmt: skip


def test_the_same_study_with_more_values_asks_the_new_ones_alone(tmp_path, monkeypatch):
    output = tmp_path / "r.jsonl"
    list(library.sweep(SMALL, output))
    asked = []
    monkeypatch.setattr(run, "answer", lambda case: asked.append(case) or answers.answer(case))
    more = list(library.sweep({**SMALL, "gpus": [8, 32, 16]}, output))
    assert [one.resumed for one in more] == [True] * 4 + [False] * 2
    assert [case.options["gpus"] for case in asked] == [32, 32]
    assert [row["gpus"] for row in rows_in(output)] == [8, 32, 16] * 2
    fewer = list(library.sweep({**SMALL, "gpus": 32}, output))
    assert (len(fewer), len(asked), len(rows_in(output))) == (2, 2, 2)


def test_answers_of_another_version_are_asked_again(tmp_path, monkeypatch):
    output = tmp_path / "r.jsonl"
    list(library.sweep(SMALL, output))
    before = output.read_bytes()
    with sqlite3.connect(f"{output}.sqlite") as db:
        db.execute("UPDATE answers SET digest = 'of another', rows = '[{\"key\": \"old\"}]' WHERE rowid <= 3")
    db.close()
    notes = []
    found = list(library.sweep(SMALL, output, note=notes.append))
    assert [one.resumed for one in found] == [True, False, False, False]
    assert notes == ["3 stored answers are of another version or other presets: their questions are asked again"]
    assert output.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database, by far" * 100, None, "foreign", "newer"])
def test_a_file_that_is_no_store_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "r.jsonl.sqlite"
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE answers (question, digest, failed, rows)")
            db.execute(f"PRAGMA application_id = {0x67707363 if content == 'newer' else 7}")
            db.execute("PRAGMA user_version = 99")
        db.close()
    before = path.read_bytes() if path.is_file() else None
    (tmp_path / "s.toml").write_text(toml(SMALL))
    done = gpuscale("sweep", tmp_path / "s.toml", "-o", tmp_path / "r.jsonl")
    assert_one_message(done, "r.jsonl.sqlite", "")
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize("rows", ["", "[1]", "[]", '[{"no": "key"}]', "[" * 100_000, "{}"])
def test_rows_of_a_damaged_store_are_refused(tmp_path, rows):
    output = tmp_path / "r.jsonl"
    list(library.sweep(SMALL, output))
    with sqlite3.connect(f"{output}.sqlite") as db:
        db.execute("UPDATE answers SET rows = ?", (rows,))
    db.close()
    with pytest.raises(InputError, match="damaged"):
        list(library.sweep(SMALL, output))


def test_a_second_process_is_told_that_the_store_is_in_use(tmp_path):
    output, study = tmp_path / "r.jsonl", tmp_path / "s.toml"
    study.write_text(toml(SMALL))
    first = library.sweep(SMALL, output)
    next(first)
    done = gpuscale("sweep", study, "-o", output)
    assert_one_message(done, "another run has it open", "wait")
    first.close()
    assert len(rows_in(output)) == 1
    done = gpuscale("sweep", study, "-o", output)
    assert (done.code, done.out, done.err.splitlines()[-1]) == (0, "", "done: 4 questions, 4 rows, 1 resumed")


def test_two_processes_give_the_bytes_of_one(tmp_path):
    one, two = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    assert len(list(library.sweep(SMALL, one))) == len(list(library.sweep(SMALL, two, jobs=2))) == 4
    assert one.read_bytes() == two.read_bytes()


def test_flags_are_a_study_and_replace_values_of_a_file(tmp_path):
    pins = ("--tp", "1", "--pp", "1", "--cp", "1", "--zero", "1")
    done = gpuscale("sweep", "--model", "llama3.2-1b,llama3-8b", "--gpus", "8,16", *pins)
    assert (done.code, done.err) == (0, "done: 4 questions, 4 rows, 0 resumed\n")
    assert done.lines[0].startswith("4 of 4 questions answered; ")
    assert all(len(line) <= 100 for line in done.lines)
    (tmp_path / "s.toml").write_text(toml(SMALL))
    done = gpuscale("sweep", tmp_path / "s.toml", "--gpus", "32", "--mbs", "1", "--json")
    document = json.loads(done.out)
    assert document["schema"] == "gpuscale.sweep/1"
    assert [(row["gpus"], row["layout"], row["status"]) for row in document["rows"]] == [
        (32, "tp=1; pp=1; cp=1; zero=1; micro_batch_size=1", "answered")
    ] * 2
    done = gpuscale("sweep", tmp_path / "s.toml", "--task", "estimate", "-o", tmp_path / "r.csv")
    assert (done.code, done.out, done.err) == (0, "", "done: 4 questions, 4 rows, 0 resumed\n")
    assert (tmp_path / "r.csv").read_text().startswith("key,task,status,reason,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.toml",), "no such file"),
        (("--gpus", "8"), "model is missing"),
        (("--model", "llama3-8b", "--gpus", "8", "-o", "r.txt"), "--output: 'r.txt' is not a file of results"),
        (("--model", "llama3-8b", "--gpus", "8", "-o", "-"), "is not a file of results"),
        (("--model", "llama3-8b", "--gpus", "8", "-o", "no/r.csv"), "cannot write"),
        (("--model", "llama3-8b", "--gpus", "8", "--jobs", "0"), "--jobs: 0 is out of range"),
        (("--model", "llama3-8b", "--gpus", "8", "--scheduler", "tcp://x:1", "--jobs", "2"), "are mutually exclusive"),
        (("--model", "llama3-8b", "--gpus", "8", "--task", "guess"), "unknown task"),
    ],
)
def test_unusable_input_is_refused_before_the_work(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert_one_message(gpuscale("sweep", *arguments), message, "")
    assert list(tmp_path.iterdir()) == []


SMALL_STUDY = ("--model", "llama3.2-1b", "--gpus", "8")

KILLED = """\
import os, signal
from pathlib import Path
from gpuscale.studies import run
answer = run.answer
def answer_or_die(case):
    if case.options["gpus"] == 16:
        with Path({marks!r}).open("a") as file:
            file.write(case.key + "\\n")
        if Path({marks!r}).read_text().count(case.key) <= {times}:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer(case)
run.answer = answer_or_die
"""


@pytest.mark.parametrize(("times", "failing"), [(1, 0), (2, 2)])
def test_a_worker_that_dies_loses_no_question_of_others(tmp_path, monkeypatch, times, failing):
    output, marks = tmp_path / "r.jsonl", tmp_path / "marks"
    (tmp_path / "killed.py").write_text(KILLED.format(marks=str(marks), times=times))
    monkeypatch.setattr(run, "_PROGRAM", run._PROGRAM.replace("from gpuscale", "import killed; from gpuscale", 1))
    monkeypatch.syspath_prepend(tmp_path)
    found = list(library.sweep(SMALL, output, jobs=2))
    rows = rows_in(output)
    assert len(found) == len(rows) == 4
    assert [row["gpus"] for row in rows if row["status"] == FAILED] == [16] * failing
    assert {row["reason"] for row in rows if row["status"] == FAILED} <= {"its process ended twice, by signal 9"}
    assert len(marks.read_text().splitlines()) == 4
    again = list(library.sweep(SMALL, output))  # what failed is asked again
    assert [one.resumed for one in again].count(False) == failing
    assert all(row["status"] == "answered" for row in rows_in(output))


def test_a_study_without_any_answer_says_so(tmp_path):
    none = (
        ("--tp", 3),
        ["note: no question has an answer; `reason` says why not", "done: 1 question, 1 row, 0 resumed"],
    )
    for layout, said in (none, (("--tp", 2), ["done: 1 question, 1 row, 0 resumed"])):
        asked = ("--model", "llama3-8b", "--gpus", 16, "--task", "estimate", *layout)
        done = gpuscale("sweep", *asked, "-o", tmp_path / f"{layout[1]}.csv")
        assert (done.code, done.err.splitlines()) == (0, said)


def test_a_defect_ends_a_question_and_not_the_study(tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text(toml(SMALL))

    def broken(case, real=answers.rows_of):
        return real(case) if case.options["gpus"] == 8 else 1 / 0

    monkeypatch.setattr(answers, "rows_of", broken)
    done = gpuscale("sweep", tmp_path / "s.toml", "-o", tmp_path / "r.jsonl")
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines()[-1] == "done: 4 questions, 4 rows, 0 resumed"
    assert [row["reason"] for row in rows_in(tmp_path / "r.jsonl")] == [None, "ZeroDivisionError: division by zero"] * 2


@pytest.mark.parametrize("jobs", [0, -1, 10**6, "2", True])
def test_jobs_within_limits(jobs):
    with pytest.raises(InputError) as error:
        library.sweep(SMALL, jobs=jobs)
    assert error.value.field == "jobs"


@pytest.mark.parametrize("given", [
    {"study": 5}, {"study": ["a"]}, {"study": None}, {"output": 5}, {"output": "a\0.csv"}, {"jobs": 2.5},
    {"scheduler": 5},
])  # fmt: skip
def test_arguments_of_other_types_are_refused(given):
    with pytest.raises(InputError):
        list(library.sweep(**{"study": SMALL, **given}))


def test_what_a_notebook_has_at_hand_is_taken(tmp_path):
    study = {**SMALL, "gpus": np.array([8, 16])}
    assert len(list(library.sweep(study, tmp_path / "r.csv", np.int64(1)))) == 4
    assert len(list(library.sweep(read_study(study), str(tmp_path / "r.csv")))) == 4


MANY = {**SMALL, "gpus": [8, 16, 32], "seq": [2048, 4096, 6144, 8192], "gbs": [32, 64, 96]}
"""72 questions."""


def kill_at_random_points(output, study, jobs, times, seed):
    """Run a study and kill it `times` times; check that it keeps what it has; return how many answers are stored."""
    store = Path(f"{output}.sqlite-wal")
    page, points, before = 4096, random.Random(seed), 0
    for _ in range(times):
        size = store.stat().st_size if store.exists() else 0
        target = size + points.randint(1, 8 * page)
        process = get_context("fork").Process(target=lambda: list(library.sweep(study, output, jobs)))
        process.start()
        while process.is_alive() and not (store.exists() and store.stat().st_size >= target):
            process.join(0.0005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it came to its end: fewer or nearer points are needed"
        now = stored(output, study)
        assert now >= before
        before = now
    return before


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.full)])
def test_killed_at_random_points_and_resumed(tmp_path, jobs):
    output, whole = tmp_path / "r.jsonl", tmp_path / "undisturbed.jsonl"
    before = kill_at_random_points(output, MANY, jobs, 8 if jobs == 1 else 20, seed=18 + jobs)
    found = list(library.sweep(MANY, output, jobs))
    assert (len(found), sum(one.resumed for one in found)) == (72, before)
    list(library.sweep(MANY, whole))
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_leaves_what_is_answered(tmp_path, jobs):
    file, output = tmp_path / "s.toml", tmp_path / "r.jsonl"
    file.write_text(toml({**MANY, "gpus": list(range(8, 808, 8))}))
    command = [sys.executable, "-m", "gpuscale", "sweep", str(file), "-o", str(output), "--jobs", str(jobs)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    store = Path(f"{output}.sqlite-wal")
    while process.poll() is None and not (store.exists() and store.stat().st_size > 40_000):
        try:
            process.wait(0.001)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    rows = rows_in(output)
    assert len(rows) > 0
    notes = [f"note: stopped: {count:,} of 2,400 questions are answered; the same command resumes\n"
             for count in (len(rows), len(rows) - 1)]  # fmt: skip
    assert said in notes  # the signal may come between storing an answer and counting it


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path):
    process = get_context("fork").Process(target=lambda: list(library.sweep(MANY, tmp_path / "r.jsonl", 2)))
    process.start()
    store = Path(f"{tmp_path / 'r.jsonl'}.sqlite-wal")
    while process.is_alive() and not (store.exists() and store.stat().st_size > 40_000):
        process.join(0.001)
    started = [
        int(pid)
        for thread in Path(f"/proc/{process.pid}/task").iterdir()
        for pid in (thread / "children").read_text().split()
    ]
    assert len(started) == 2
    process.kill()
    process.join()
    deadline = time.monotonic() + 20
    while any(map(is_running, started)):
        assert time.monotonic() < deadline


def test_scripts_ask_for_workers_as_they_are():
    script = f"import gpuscale\nprint(sum(1 for _ in gpuscale.sweep({SMALL!r}, jobs=2)))\n"
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("4\n", "", 0)


def test_workers_that_do_not_start_are_an_error(monkeypatch):
    monkeypatch.setattr(run, "_PROGRAM", "raise SystemExit(1)")
    with pytest.raises(InputError, match="do not start"):
        list(library.sweep(SMALL, jobs=2))


def test_a_line_now_and_then_says_what_is_left(monkeypatch, capsys):
    times = iter([0.0, 30.0, 61.0, 100.0, 125.0])
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(times))
    with machine.progress_bar() as tell:
        for done in (1, 2, 3, 5):
            tell(done, 10, "")
    assert capsys.readouterr().err == "2 of 10, about 4.07 min left\n5 of 10, about 2.08 min left\n"


@pytest.mark.full
def test_memory_of_many_questions(tmp_path):
    script = f"""
import resource
from gpuscale.render import machine
from gpuscale.studies import answers, run
from gpuscale.studies.study import read_study
study = read_study({{"model": "llama3-8b", "gpus": list(range(8, 8008, 8)), "seq": list(range(1024, 103424, 1024))}})
row = answers.rows_of(next(study.cases()))[0]
run.answer = lambda case: answers.Answered(case, ({{**row, "key": case.key}},))
assert sum(1 for _ in run.sweep(study, {str(tmp_path / "r.csv")!r})) == 100_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 400


@pytest.mark.parametrize(
    "arguments", [("--model", "nobody", "--gpus", "8"), (*SMALL_STUDY, "--scheduler", "tcp://127.0.0.1:9")]
)
def test_a_study_that_fails_leaves_no_store(arguments, tmp_path):
    done = gpuscale("sweep", *arguments, "-o", tmp_path / "r.csv")
    assert done.code in {1, 2}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r.csv", "r.jsonl", "r.parquet"])
def test_a_file_of_something_else_is_replaced_only_where_asked(name, tmp_path):
    path = tmp_path / name
    path.write_text("name,grade\nme,1\n")
    asked = ("sweep", *SMALL_STUDY, "-o", path)
    assert_one_message(gpuscale(*asked), "holds something else than results of a study", "--force")
    assert path.read_text() == "name,grade\nme,1\n"
    assert gpuscale(*asked, "--force").code == 0
    assert gpuscale(*asked).code == 0  # results are replaced by results
    (tmp_path / f"{name}.sqlite").unlink()
    assert gpuscale(*asked).code == 0
