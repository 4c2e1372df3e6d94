"""`sweep show`: what DuckDB answers about results, and that neither they nor a condition reach anything else."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

import gpuscale as package
from gpuscale.errors import InputError
from gpuscale.studies import query
from gpuscale.studies.answers import write_results
from gpuscale.studies.query import Asked, Results, read_results, summarise

COLUMNS = {
    "key": str, "task": str, "status": str, "reason": str, "model": str, "gpus": int, "gpu_hour_price": float,
    "rank": int, "tp": int, "pp": int, "dp": int, "sp": bool, "zero": int, "step_time_s": float,
    "tokens_per_s_per_gpu": float, "mfu": float, "memory_gib": float,
}  # fmt: skip
MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b")
NASTY = "\x1b[31m=cmd()<script>window.ran=1</script>[bold]"


def rows():
    """Three models on four counts of GPUs; the largest does not fit on 8 or 16."""
    for at in range(12):
        model, gpus = MODELS[at // 4], 8 << at % 4
        asked = {"key": f"{at:024x}", "task": "plan", "model": model, "gpus": gpus, "gpu_hour_price": 2.0}
        if model == MODELS[1] and gpus <= 16:
            yield {**asked, "status": "no_answer", "reason": f"needs {500 // gpus}.5 GiB of 80 GiB"}
        else:
            yield {
                **asked, "status": "answered", "rank": 1, "tp": 1 + at // 4, "pp": 1, "dp": gpus, "sp": at % 2 == 0,
                "zero": 1, "step_time_s": 80.0 / gpus, "tokens_per_s_per_gpu": 1000.0 - at, "mfu": 0.5 - gpus / 1000,
                "memory_gib": 20.0 + gpus / 8,
            }  # fmt: skip


def written(path, given=None):
    write_results(path, COLUMNS, rows() if given is None else iter(given))
    return path


@pytest.fixture(params=["parquet", "csv", "jsonl"])
def results(request, tmp_path):
    return written(tmp_path / f"results[1]*.{request.param}")  # a name that means others too


@pytest.fixture
def table(tmp_path):
    return written(tmp_path / "results.parquet")


def test_rows_come_back_whatever_the_format(results):
    assert read_results(results) == [{name: row.get(name) for name in COLUMNS} for row in rows()]
    with Results(results) as found:
        assert found.columns == COLUMNS


def test_json_is_the_contract(results):
    done = gpuscale("sweep", "show", results, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"schema": "gpuscale.sweep/1", "rows": read_results(results)}


def test_csv_is_the_file(tmp_path):
    path = written(tmp_path / "results.csv")
    assert gpuscale("sweep", "show", path, "--csv").out == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("gpus <= 16", lambda row: row["gpus"] <= 16),
        ("GPUS<=16 and Model = 'llama3-8b'", lambda row: row["gpus"] <= 16 and row["model"] == MODELS[0]),
        ("model like 'llama%' and not sp", lambda row: row["model"] != MODELS[2] and row.get("sp") is False),
        ("mfu is null", lambda row: "mfu" not in row),
        ("gpus in (8, 64) -- all others are left out", lambda row: row["gpus"] in {8, 64}),
        ("gpus between 16 and 32 or mfu * 2 > 0.98", lambda row: row["gpus"] in {16, 32} or row.get("mfu", 0) > 0.49),
        ("case when sp then gpus else -gpus end = -16", lambda row: not row.get("sp") and row["gpus"] == 16),
        ("sp = true", lambda row: row.get("sp") is True),
        ("lower(upper(model)) = 'llama3-8b'", lambda row: row["model"] == MODELS[0]),
    ],
)
def test_a_condition_keeps_the_rows_for_which_it_holds(where, kept, table):
    assert [row["key"] for row in read_results(table, where=where)] == [row["key"] for row in rows() if kept(row)]


INJECTIONS = (
    "1) union select * from results where (1=1", "1=1); drop table results; select (1", "1=1) or exists (select 1",
    "(select count(*) from results) > 0", "gpus in (select 1)", "exists (select 1 from read_csv('/etc/passwd'))",
    "(select content from read_text('/etc/passwd')) is not null", "getenv('HOME') = ''", "current_setting('threads')",
    "sum(gpus) over () > 0", "count(*) > 0", "random() > 0.5", "repeat('a', 1000000000) = ''", "sleep(10)", "*",
    "columns(*)", "$1", "?", "gpus = 8 limit 1", "gpus = 8 order by 1", "true; attach 'x.db'",
    "true; copy results to 'x.csv'", "list_transform([1], x -> x) = [1]", "{'a': 1} = {'a': 2}", "gpus[1] = 1",
    "(from results)", "rowid = 1", "results.gpus = 8", "main.results.gpus = 8", "/*", "'", "\"", "", ";", "--",
    "gpus =", "1, 2", "x" * 1001, "(" * 1000, "not " * 240 + "sp", "gpus + " * 140 + "1 > 0", "\x00", "\udcff",
    "\n\x1b[31m", "modle = 'x'", "gpus = 'many'", "nextval('a')", "load_x() = 1", "query('select 1')",
    "pragma_version()", "regexp_matches(model, '(a*)*b')", "model collate nocase = 'x'",
)  # fmt: skip


@pytest.mark.parametrize("where", INJECTIONS)
def test_a_condition_is_nothing_else(where, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = time.monotonic()
    done = gpuscale("sweep", "show", table, "--where", where)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: --where: ")
    assert done.err.removesuffix("\n").replace("\n\n", "").isprintable()
    assert time.monotonic() - before < 5
    assert [one.name for one in tmp_path.iterdir()] == [table.name]


@pytest.mark.parametrize("name", [
    "1", "gpus)", "gpus; drop table results", "gpus as x", "*", "", "count(*)", '"gpus"', "#", "rowid",
    "getenv('HOME')", "(select 1)", "modle",
])  # fmt: skip
@pytest.mark.parametrize("option", ["--columns", "--best-by", "--by", "--sort", "--heat", "--frontier"])
def test_a_column_is_nothing_else(option, name, table):
    more = {"--heat": ",gpus,mfu", "--frontier": ",mfu"}.get(option, "")
    done = gpuscale("sweep", "show", table, f"{option}={name}{more}")
    assert_one_message(done, f"{option}: the results have no column", "the first line of --csv has all")
    assert name != "modle" or "did you mean model" in done.err


@pytest.mark.parametrize("form", ["--json", "--csv"])
@pytest.mark.parametrize("option", ["--best-by", "--by", "--sort"])
def test_nothing_is_written_of_an_answer_that_there_is_not(option, form, table):
    done = gpuscale("sweep", "show", table, f"{option}=modle", form)
    assert_one_message(done, f"{option}: the results have no column", "did you mean")
    assert not done.out


@pytest.mark.parametrize("statement", [
    "SELECT * FROM read_text('/etc/passwd')", "COPY results TO 'x.csv'", "ATTACH 'x.db'", "SET memory_limit = '1TB'",
    "SET enable_external_access = true", "INSTALL httpfs", "LOAD httpfs",
])  # fmt: skip
def test_even_a_statement_would_reach_nothing(statement, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Results(table) as found, pytest.raises(InputError):
        found.all(statement)
    assert [one.name for one in tmp_path.iterdir()] == [table.name]


ENDLESS = (
    "WITH RECURSIVE n(x) AS (SELECT 1::BIGINT UNION ALL SELECT x * 48271 % 2147483647 FROM n) SELECT count(*) FROM n"
)
"""Each row follows from the one before, and none is the last: no optimiser can know the answer."""


def test_a_query_that_takes_long_or_much_ends(table, monkeypatch):
    monkeypatch.setattr(query, "MAX_QUERY_S", 0.2)
    with Results(table) as found:
        with pytest.raises(InputError, match=r"takes more than 0 s"):
            found.all(ENDLESS)
        with pytest.raises(InputError, match=r"takes more than 2GiB of memory|takes more than 0 s"):
            found.all("SELECT list(x) FROM range(10000000000) AS a(x)")


INTERRUPTED = """\
import sys
from pathlib import Path
from gpuscale.studies.query import Results
with Results(Path(sys.argv[1])) as found:
    try:
        print("asked", flush=True)
        found.all(sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_query_ends_where_the_user_interrupts(table):
    child = [sys.executable, "-c", INTERRUPTED, table, ENDLESS]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("interrupted\n", None)
    assert process.returncode == 0


def test_a_defect_is_no_interrupt(table):
    with Results(table) as found, pytest.raises(RecursionError), found._bounded():
        raise RecursionError


def test_no_thread_outlives_a_query(table):
    """One that lets go of the engine while the process ends would abort it."""
    with Results(table) as found:
        before = threading.active_count()
        alive = [threading.active_count() for _ in range(20) if found.all("SELECT 1")]
    assert alive == [before] * 20


def test_the_best_of_each_and_its_order(table):
    best = read_results(table, best_by=["model"])
    assert [(row["model"], row["gpus"]) for row in best] == [(MODELS[0], 8), (MODELS[1], 32), (MODELS[2], 8)]
    small = read_results(table, best_by=["model"], by="memory", where="gpus > 8")
    assert [(row["model"], row["gpus"]) for row in small] == [(MODELS[0], 16), (MODELS[2], 16), (MODELS[1], 32)]
    assert [row["gpus"] for row in read_results(table, by="-memory_gib", top=1)] == [64]
    both = read_results(table, best_by=["model", "gpus"])
    assert len(both) == 12
    assert [row["status"] for row in both[-2:]] == ["no_answer"] * 2


def test_ties_are_in_the_order_of_the_study(tmp_path):
    same = [{**row, "mfu": 0.5} for row in rows() if row["status"] == "answered"]
    path = written(tmp_path / "same.parquet", same)
    assert [row["key"] for row in read_results(path, by="mfu")] == [row["key"] for row in same]
    assert read_results(path, by="mfu", best_by=["model"])[0]["key"] == same[0]["key"]


def test_order_and_columns_as_asked(table):
    found = read_results(table, columns=["gpus", "model"], sort=["-gpus", "model"], top=3)
    assert found == [{"gpus": 64, "model": model} for model in sorted(MODELS)]
    assert [*found[0]] == ["gpus", "model"]


def test_a_frontier_is_what_nothing_beats(table):
    found = read_results(table, frontier=["step_time_s", "memory_gib"])
    every = [row for row in rows() if row["status"] == "answered"]
    wanted = [
        one for one in every
        if not any(
            other["step_time_s"] <= one["step_time_s"] and other["memory_gib"] <= one["memory_gib"]
            and (other["step_time_s"], other["memory_gib"]) != (one["step_time_s"], one["memory_gib"])
            for other in every
        )
    ]  # fmt: skip
    assert {row["gpus"] for row in found} == {row["gpus"] for row in wanted}
    assert [row["step_time_s"] for row in found] == sorted({row["step_time_s"] for row in wanted})


def test_the_study_s_objective_is_the_usual_one(tmp_path):
    columns = COLUMNS | {"objective": str}
    path = tmp_path / "asked.csv"
    write_results(path, columns, ({**row, "objective": "memory"} for row in rows()))
    assert "best by memory_gib (the least): 21.0 with model llama3-8b, gpus 8" in gpuscale("sweep", "show", path).out


def test_a_price_that_only_some_have_makes_none_of_them_the_best(tmp_path):
    path = tmp_path / "priced.csv"
    write_results(
        path, COLUMNS | {"cost_usd": float}, ({**row, "cost_usd": 5.0} if row["gpus"] == 8 else row for row in rows())
    )
    assert "best by tokens_per_s_per_gpu (the most): 1,000 " in gpuscale("sweep", "show", path).out


def test_what_a_summary_says(table):
    with Results(table) as found:
        said = summarise(found, Asked(heat=("model", "gpus", "mfu"), frontier=("step_time_s", "memory_gib")))
    assert (said.questions, said.answered, said.matched) == (12, 10, 12)
    assert (said.varying, dict(said.fixed)) == (("model", "gpus"), {"gpu_hour_price": 2.0})
    assert [(one.status, one.reason, one.questions) for one in said.unanswered] == [
        ("no_answer", "needs 62.5 GiB of 80 GiB", 2)
    ]
    assert (said.heat.rows, said.heat.columns) == (MODELS, (8, 16, 32, 64))
    assert said.heat.values[1] == (None, None, 0.5 - 0.032, 0.5 - 0.064)
    assert len(said.frontier.points) == said.frontier.size == 4  # what else there is lies on the same points


def test_the_terminal_fits_and_reads_without_colour(table):
    done = gpuscale("sweep", "show", table, "--heat", "gpus,model,tokens_per_s_per_gpu", "--frontier", "mfu,memory_gib")
    assert (done.code, done.err) == (0, "")
    verdict = "10 of 12 questions answered; best by tokens_per_s_per_gpu (the most): 1,000 with model llama3-8b,"
    assert done.lines[0] == verdict
    assert all(len(line) <= 100 for line in done.lines)
    assert done.out.isascii() or "─" in done.out
    assert re.search(r"needs 62.5 GiB of 80 GiB +2\n", done.out)


@pytest.mark.parametrize("count", [0, 1])
def test_few_rows(count, tmp_path):
    for suffix in ("parquet", "csv", "jsonl"):
        path = written(tmp_path / f"few.{suffix}", [*rows()][4:5][:count])
        if suffix == "jsonl" and not count:
            assert_one_message(
                gpuscale("sweep", "show", path), "not the results of a study", "gpuscale sweep STUDY.toml"
            )
            continue
        for more in ((), ("--heat", "model,gpus,mfu"), ("--frontier", "mfu,memory_gib"), ("--best-by", "model")):
            done = gpuscale("sweep", "show", path, *more)
            none = "no rows: the file is empty, or no row meets the condition"
            assert (done.code, done.lines[0]) == (0, "0 of 1 question answered" if count else none)
        assert len(json.loads(gpuscale("sweep", "show", path, "--json").out)["rows"]) == count


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_nothing_of_a_file_steers_the_terminal_or_the_page(suffix, tmp_path):
    hostile = [{**row, "model": f"{row['model']}{NASTY}"} for row in rows()]
    hostile += [{**hostile[0], "key": NASTY, "status": NASTY, "reason": f"={NASTY}"}]
    path, page = written(tmp_path / f"hostile.{suffix}", hostile), tmp_path / "page.html"
    done = gpuscale("sweep", "show", path, "--heat", "model,gpus,mfu", "--frontier", "mfu,memory_gib", "--html", page)
    assert done.code == 0
    assert "\x1b" not in done.out
    made = page.read_text(encoding="utf-8")
    assert "<script>window" not in made
    assert "\x1b" not in made
    assert "'=" in gpuscale("sweep", "show", path, "--csv", "--where", "gpus > 0").out
    assert gpuscale("sweep", "show", path, "--json").code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.parquet", "PAR1"), ("x.csv", "a,b\n1,2\n"), ("x.csv", ""), ("x.jsonl", "{}"), ("x.jsonl", "[1"),
        ("x.txt", "key,task,status,reason"), ("x.csv", "key,task,status,reason,#\n1,2,3,4,5\n"),
        ("x.csv", "key,task,status,reason,RowID\n1,2,3,4,5\n"), ("x.jsonl", '{"key": "a", "status": "x"}'),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_results(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    done = gpuscale("sweep", "show", path)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith(f"error: {path}: ")


def test_files_that_are_none(tmp_path):
    assert_one_message(gpuscale("sweep", "show", tmp_path / "no.csv"), "no such file", "")
    assert gpuscale("sweep", "show", tmp_path).code == 2
    for name in ("https://example.org/x.parquet", "s3://x/y.csv", "/dev/stdin", "-"):
        assert gpuscale("sweep", "show", name).code == 2


def test_a_name_that_is_no_text(table):
    other = table.with_name("\udcff.parquet")
    table.rename(other)
    assert_one_message(gpuscale("sweep", "show", other), "its name is not UTF-8", "rename it")


def test_numbers_that_json_lacks_are_none(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("key,task,status,reason,mfu,gpus\na,plan,answered,,nan,1\nb,,answered,,inf,2\nc,,answered,,0.5,3\n")
    assert [row["mfu"] for row in read_results(path)] == [None, None, 0.5]
    assert json.loads(gpuscale("sweep", "show", path, "--json").out)["rows"][1]["mfu"] is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("--heat=model,gpus", "--heat: a heat map has three columns"),
        ("--heat=model,gpus,model", "--heat: 'model' is not a column of numbers"),
        ("--frontier=mfu", "--frontier: a frontier has two columns"),
        ("--by=model", "--by: 'model' is not a column of numbers"),
        ("--top=0", "top"),
        ("--json --csv", "two formats"),
        ("--html=- --json", "two documents on one stream"),
    ],
)
def test_what_cannot_be_asked(asked, message, table):
    done = gpuscale("sweep", "show", table, *asked.split())
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_heat_map_has_an_end(tmp_path):
    many = [{**row, "model": f"{row['model']}-{at}"} for at in range(15) for row in rows()]
    done = gpuscale("sweep", "show", written(tmp_path / "many.parquet", many), "--heat", "model,gpus,mfu")
    assert_one_message(done, "--heat: model has 45 values, a heat map has 40 at most", "--where")


def test_a_page_is_not_written_over_the_results(table):
    before = table.read_bytes()
    assert gpuscale("sweep", "show", table, "--html", table).code == 2
    assert table.read_bytes() == before


def test_without_the_extra_the_command_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = gpuscale("sweep", "show", table)
    assert_one_message(
        done, "questions about results need duckdb, which is not installed", "pip install 'gpuscale[sweep]'"
    )


def test_the_process_ends_in_silence(table):
    command = [sys.executable, "-m", "gpuscale", "sweep", "show", table, "--best-by", "model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_python_has_it_too(table):
    assert package.read_results(str(table), top=1)[0]["gpus"] == 8


WIDE = COLUMNS | {f"more_{at}_s": float for at in range(40)}
MEASURED = """
import re, sys
from pathlib import Path
sys.path[:0] = ['tests']
from test_studies_show import WIDE, rows
from gpuscale.studies.answers import write_results
path = Path(sys.argv[1])
more = {f"more_{at}_s": at / 7 for at in range(40)}
many = ({**row, **more, "key": f"{at:08x}{row['key'][8:]}"} for at in range(100_000 // 12 + 1) for row in rows())
if sys.argv[2] == "write":
    write_results(path, WIDE, many)
else:
    sys.argv = ["gpuscale", "sweep", "show", str(path), *sys.argv[3:]]
    from gpuscale.cli import run
    assert run() == 0
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss: also of its parent
print(int(peak[1]) // 1024, file=sys.stderr)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_hundred_thousand_rows_need_400_mib(suffix, tmp_path):
    path = tmp_path / f"large.{suffix}"

    def mib_of(*asked):
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, path, *asked], capture_output=True, text=True, check=True
        )
        return int(done.stderr), done.stdout

    assert mib_of("write")[0] <= 400
    for asked in ((), ("--json",), ("--csv",), ("--best-by", "model"), ("--frontier", "mfu,memory_gib")):
        used, out = mib_of("show", *asked)
        assert used <= 400, asked
        assert out
