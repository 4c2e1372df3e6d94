"""`gpuscale placement`: verdict, table, drawing, exports and messages."""

import csv
import json
import re
from collections import Counter

import pytest
from command import assert_one_message, gpuscale

LAYOUT = ("--gpus", "640", "--tp", "8", "--pp", "4")


def verdict_of(done):
    """What is said before the first table, in one line."""
    return " ".join(done.out.partition("\n\n")[0].split())


def test_verdict_table_and_drawing():
    done = gpuscale("placement", *LAYOUT)
    assert (done.code, done.err) == (0, "")
    assert verdict_of(done) == (
        "TP inside a node, DP over 20 nodes on one rail each, PP between nodes 20 apart: nothing straddles a node"
    )
    assert all(len(line) <= 100 and not line.endswith(" ") for line in done.lines)
    assert (
        "DP      20       8      32  20 nodes, 1-2 leaves     leaf        8/1        50    50  0,8,16,24,.." in done.out
    )
    assert "node0080  0.19.3  1.19.3  2.19.3" in done.out
    assert "16 of 32 DP groups straddle leaves (12 + 8 GPUs)" in done.out


RACKS = ("--gpus", "576", "--tp", "4", "--cluster", "gb200-nvl72")


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("--gpus", "1"), "one GPU: there are no groups"),
        (("--gpus", "8", "--tp", "4", "--cluster", "box-l40s"), "TP 4: its collectives run over PCIe, and"),
        (("--gpus", "64", "--tp", "8", "--pp", "4", "--order", "tp-pp"), "PP between neighbouring nodes: nothing"),
        (("--gpus", "64", "--tp", "4", "--pp", "4", "--order", "tp-pp"), "PP within nodes and between neighbouring"),
        (("--gpus", "24", "--tp", "6"), "2 of 4 TP groups straddle nodes (2 + 4 GPUs)"),
        (("--gpus", "262144", "--tp", "8", "--pp", "2"), "PP between nodes 16,384 apart"),
        ((*RACKS, "--ep", "32", "--gpus-per-node", "72"), "EP over 1-2 nvl72 domains of"),
        ((*RACKS, "--ep", "32"), "EP inside one nvl72, DP over 9 nvl72 domains of 16 GPUs each"),
        (("--gpus", "64", "--tp", "16"), "TP 16 spans 2 nodes: its collectives run over InfiniBand, and"),
        ((*RACKS[:2], "--tp", "144", *RACKS[4:]), "TP 144 spans 2 nvl72 domains: its collectives run over InfiniBand"),
        (("--gpus", "32", "--tp", "16", "--cluster", "aws-p5"), "TP 16 spans 2 nodes: its collectives run over EFA"),
    ],
)
def test_verdicts(arguments, verdict):
    done = gpuscale("placement", *arguments)
    assert (done.code, done.err) == (0, "")
    assert verdict in verdict_of(done)
    assert all(len(line) <= 100 for line in done.lines)


def test_the_fabric_is_drawn_leaf_by_leaf():
    done = gpuscale("placement", *LAYOUT)
    rows = [line.split() for line in done.lines]
    assert ["leaf", "nodes", "TP", "groups", "DP", "groups", "PP", "groups"] in rows
    assert ["1", "1-32", "0-31", "0-15:", "12-20", "of", "20", "0-159:", "1-2", "of", "4"] in rows
    assert ["3", "65-80", "64-79", "24-31:", "16", "of", "20", "32-159:", "1", "of", "4"] in rows
    assert "leaf  nodes" not in gpuscale("placement", "--gpus", "256", "--tp", "8").out  # one leaf: nothing to tell
    many = gpuscale("placement", "--gpus", "8192", "--tp", "8")
    assert [line.split()[0] for line in many.lines if re.match(r"\d+ +\d+-|\.\.\. *$", line)][:8] == [
        *"1234567", "...",
    ]  # fmt: skip
    assert any(line.split()[:2] == ["32", "993-1,024"] for line in many.lines)


def test_rails_are_told_where_the_file_states_them():
    done = gpuscale("placement", *LAYOUT)
    assert "DP one rail each, one hop; PP one rail each, one hop" in done.out
    body = json.loads(gpuscale("placement", *LAYOUT, "--json").out)
    assert {axis["axis"]: (axis["rails"], axis["strays"]) for axis in body["axes"]} == {
        "tp": (None, 0), "dp": ("one", 0), "pp": ("one", 0),
    }  # fmt: skip
    assert [leaf["first_node"] for leaf in body["fabric"]] == ["node0001", "node0033", "node0065"]
    stray = gpuscale("placement", "--gpus", "48", "--tp", "6")
    assert "4 of 8 TP groups leave their rails, over the spine; all DP groups leave" in " ".join(stray.out.split())
    experts = gpuscale("placement", "--gpus", "64", "--ep", "16")
    assert "EP to other rails over NVLink first (PXN)" in experts.out
    planes = gpuscale("placement", "--gpus", "24", "--tp", "6", "--cluster", "h800-deepseek")
    assert "passed on by other GPUs of the node" in " ".join(planes.out.split())
    assert "rails  " not in gpuscale("placement", "--gpus", "64", "--tp", "8", "--cluster", "aws-p5").out


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_the_drawing_fits(columns):
    done = gpuscale("placement", "--gpus", "2048", "--pp", "16", "--ep", "64", "--tp", "2", columns=columns)
    assert all(len(line) <= columns for line in done.lines)


def test_a_saved_plan_is_placed(tmp_path):
    path = tmp_path / "plan.toml"
    assert gpuscale("plan", "--model", "llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "2", "-o", path).code == 0
    done = gpuscale("placement", path, "--best", "--json")
    assert (done.code, done.err) == (0, "")
    body = json.loads(done.out)
    assert (body["degrees"]["tp"], body["degrees"]["pp"], body["gpus"]) == (2, 2, 16)
    assert all(order["step_time_s"] > 0 for order in body["best"]["orders"])
    again = json.loads(gpuscale("placement", path, "--tp", "4", "--json").out)
    assert (again["degrees"]["tp"], again["degrees"]["dp"]) == (4, 2)


def test_best_says_whether_there_is_a_better_order():
    given = gpuscale("placement", *LAYOUT, "--order", "dp-tp-pp", "--best", "--model", "llama3-70b")
    assert "better order: tp-cp-ep-" in verdict_of(given)
    assert "less TP communication" in verdict_of(given)
    usual = gpuscale("placement", *LAYOUT, "--best")
    assert verdict_of(usual).endswith("no better order than tp-cp-ep-dp-pp: of 6 orders none gives a higher rate")


def test_orders_stay_on_one_line():
    done = gpuscale("placement", "--gpus", "4096", "--tp", "8", "--pp", "8", "--cp", "4", "--ep", "64", "--best")
    assert "tp-cp-ep-dp-pp (given)" in done.out
    assert all(len(line) <= 100 for line in done.lines)


def test_a_machine_of_pairs_is_one_line_of_a_hostfile(tmp_path):
    path = tmp_path / "hosts"
    done = gpuscale("placement", "--gpus", "4", "--tp", "2", "--cluster", "box-a100-pcie-pairs", "--hostfile", path)
    assert (done.code, path.read_text()) == (0, "node0001 slots=4\n")


def test_exports(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\nalpha\n\nbeta.example.org # second\ngamma\ndelta\n")
    files = {name: tmp_path / name for name in ("ranks", "groups", "hostfile", "rankfile", "slurm")}
    flags = [part for name, path in files.items() for part in (f"--{name}", path)]
    done = gpuscale("placement", "--gpus", "20", "--tp", "2", "--hosts", hosts, *flags)
    assert (done.code, done.err) == (0, "")
    rows = list(csv.DictReader(files["ranks"].read_text().splitlines()))
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(20)]
    assert Counter(row["node"] for row in rows) == {"alpha": 8, "beta.example.org": 8, "gamma": 4}
    assert rows[13] == {
        "rank": "13", "node": "beta.example.org", "local_gpu": "5", "rail": "5", "tp": "1", "cp": "0", "ep": "0",
        "dp": "6", "pp": "0", "tp_group": "6", "dp_group": "1",
    }  # fmt: skip
    groups = list(csv.DictReader(files["groups"].read_text().splitlines()))
    assert groups[0] == {
        "axis": "tp", "group": "0", "size": "2", "nodes": "alpha", "rails": "0 1", "ranks": "0 1",
    }  # fmt: skip
    assert files["hostfile"].read_text() == "alpha slots=8\nbeta.example.org slots=8\ngamma slots=4\n"
    assert files["rankfile"].read_text().splitlines()[13] == "rank 13=beta.example.org slot=5"
    assert files["slurm"].read_text().splitlines() == [row["node"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--tp", "8"], "--gpus is missing", "a plan file"),
        (["--gpus", "10", "--tp", "4"], "--tp: 10 GPUs cannot be split by TP 4", "1, 2, 5 or 10 can"),
        (["--gpus", "16", "--tp", "0"], "--tp: 0 is out of range", "give 1 to"),
        (["--gpus", "16", "--tp", "x"], "--tp: 'x' is not a whole number", "give 1 to"),
        (["--gpus", "0"], "--gpus: 0 is out of range", "give 1 to"),
        (["--gpus", "64", "--tp", "8", "--ep", "3"], "EP 3 x ETP 1 = 3 does not divide TP x CP x DP = 64", "divisors"),
        (["--gpus", "16", "--order", "tp-qp"], "--order: unknown axis 'qp'", "did you mean"),
        (["--gpus", "16", "--order", ""], "--order: unknown axis ''", "neighbours first"),
        (["--gpus", "16", "--order", "tp-dp-tp"], "--order: tp is given 2 times", "once"),
        (
            ["--gpus", "64", "--tp", "2", "--ep", "8", "--pp", "2", "--order", "tp-pp"],
            "stages of the experts",
            "pp last",
        ),
        (
            ["--gpus", "16", "--model", "llama3-8b"],
            "--model: only the search for a better order uses a model",
            "--best",
        ),
        (
            ["--gpus", "16", "--seq", "4096"],
            "--seq: only the search for a better order by step time uses it",
            "--model",
        ),
        (["--gpus", "16", "--gbs", "64", "--best"], "--gbs: only the search for a better order", "--model"),
        (["--gpus", "64", "--tp", "64", "--best", "--model", "llama3-8b"], "TP must divide", "leave --model out"),
        (["--gpus", "16", "--cluster", "box-l40s"], "has 8 GPUs and cannot be extended to 16", "at most 8"),
        (["--gpus", "16", "--gpus-per-node", "3"], "3 GPUs per node do not divide the 8", "divisor of 8"),
        (
            ["--gpus", "2", "-c", "box-a100-pcie-pairs", "--gpus-per-node", "2"],
            "the GPUs of a node of box-a100-pcie-pairs are not all joined alike (pair of 2, node of 4)",
            "leave it out",
        ),
        (["--gpus", "16", "--ranks", "/nowhere/ranks.csv"], "'/nowhere/ranks.csv': cannot write", "folder that exists"),
    ],
)
def test_messages(arguments, message, hint):
    assert_one_message(gpuscale("placement", *arguments), message, hint)


def test_what_is_read_is_not_written_over(tmp_path):
    hosts, plan = tmp_path / "hosts", tmp_path / "plan.toml"
    hosts.write_text("one\ntwo\n")
    done = gpuscale("placement", "--gpus", "16", "--hosts", hosts, "--hostfile", hosts)
    assert_one_message(done, "is also a file to read", "write to another file")
    assert hosts.read_text() == "one\ntwo\n"
    assert gpuscale("plan", "--model", "llama3-8b", "--gpus", "8", "-o", plan).code == 0
    saved = plan.read_text()
    plan.write_text(f"# mine\n{saved}")
    assert_one_message(gpuscale("placement", plan, "--ranks", plan), "is also a file to read", "another file")
    assert plan.read_text() == f"# mine\n{saved}"


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"one\n", "hosts: 1 hosts, but the job needs 2", "add hosts"),
        (b"", "hosts: 0 hosts, but the job needs 2", "add hosts"),
        (b"one\ntwo;rm\n", "hosts:2: 'two;rm' is not a host name", "one name per line"),
        (b"one\n-x\n", "hosts:2: '-x' is not a host name", "one name per line"),
        (b"one slots=8\ntwo\n", "hosts:1: 'one slots=8' is not a host name", "one name per line"),
        (b"one\n\none\n", "hosts:3: one is given twice", "line 1"),
        (b"one\n\xff\xfe\n", "hosts:2: not UTF-8 text", "one host name per line"),
        (b"one\n\x1b[31m\n", "is not a host name", "one name per line"),
    ],
)
def test_bad_lists_of_hosts(content, message, hint, tmp_path):
    (tmp_path / "hosts").write_bytes(content)
    out = tmp_path / "ranks.csv"
    done = gpuscale("placement", "--gpus", "16", "--hosts", tmp_path / "hosts", "--ranks", out)
    assert_one_message(done, message, hint)
    assert not out.exists()


def test_two_exports_to_one_file_are_refused(tmp_path):
    path = tmp_path / "out"
    done = gpuscale("placement", "--gpus", "16", "--hostfile", path, "--rankfile", path)
    assert_one_message(done, "given for two outputs", "a file of its own")
    assert not path.exists()
