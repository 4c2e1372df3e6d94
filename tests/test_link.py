"""Answers in an address, and the page that shows them: the same numbers as the answer's own page."""

import base64
import json
import re
import shutil
import subprocess
import tomllib
import zlib
from html import unescape
from pathlib import Path

import pytest
from command import assert_one_message, gpuscale

from gpuscale.render.html.address import KEPT, MOST_CHARACTERS, PAGE, link

SCRIPT = Path(__file__).parents[1] / "docs" / "open.js"
NODE = shutil.which("node")
PLAN = ("plan", "--model", "mixtral-8x7b", "--gpus", 64, "--top", 6)
READ = """
const { readFileSync } = require("fs");
const source = readFileSync(process.argv[1], "utf8") + "; ({ laidOut, unpacked })";
const page = require("vm").runInThisContext(source);
const given = readFileSync(0, "utf8").trim();
const answer = given.startsWith("{") ? Promise.resolve(JSON.parse(given)) : page.unpacked(given);
const print = (one) => console.log(JSON.stringify(one));
answer.then(page.laidOut).then(print, (error) => print({ error: error.message }));
"""
needs_node = pytest.mark.skipif(NODE is None, reason="no node")


def address(*command):
    done = gpuscale(*command, "--link")
    assert done.code == 0, done.err
    return done.out.strip()


def unpacked(url):
    packed = base64.urlsafe_b64decode(url.partition("#")[2])
    return json.loads(zlib.decompress(packed, -15))


def drawn(text):
    """What the page's script makes of an answer or of what follows # in an address."""
    done = subprocess.run([NODE, "-e", READ, str(SCRIPT)], input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_an_address_holds_the_plans_and_is_short():
    url = address(*PLAN)
    assert len(url) <= MOST_CHARACTERS
    assert re.fullmatch(r"https://[\w./-]+/open\.html#[\w=-]+", url)
    told = json.loads(gpuscale(*PLAN, "--json").out)
    held = unpacked(url)
    assert held["schema"] == told["schema"]
    assert held["job"] == told["job"]
    assert len(held["plans"]) == len(told["plans"])
    for kept, plan in zip(held["plans"], told["plans"], strict=True):
        assert set(kept) == set(KEPT)
        assert all(kept[name] == pytest.approx(plan[name], rel=1e-5) for name in KEPT if isinstance(plan[name], float))


def test_as_many_plans_as_there_is_room_for():
    told = json.loads(gpuscale(*PLAN, "--json").out)
    many = {**told, "plans": [{**told["plans"][0], "rank": rank, "step_time_s": rank**1.7} for rank in range(1, 300)]}
    held = unpacked(link("gpuscale.plan/1", many))
    assert 3 < len(held["plans"]) < 299
    assert len(link("gpuscale.plan/1", many)) <= MOST_CHARACTERS


@needs_node
def test_the_page_draws_what_the_answers_own_page_has(tmp_path):
    """Tiles and cells of the script are those of Python's page of the same answer."""
    gpuscale(*PLAN, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    seen = drawn(address(*PLAN).partition("#")[2])
    assert seen["title"] == unescape(re.search(r"<h1>(.*?)</h1>", page)[1])
    for name, number, _ in seen["tiles"]:
        assert f"<dt>{name}</dt><dd>{number} " in page
    head, rows = re.search(r"<thead><tr>(.*?)</tr></thead>\n<tbody>\n(.*?)</tbody>", page, re.DOTALL).groups()
    header = re.findall(r"<th[^>]*>(.*?)</th>", head)
    table = [dict(zip(header, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row), strict=True)) for row in rows.splitlines()]
    own = seen["tables"][0]
    same = [name for name in own["header"] if name in header and name not in {"recompute", "#", "fits%"}]
    assert len(same) >= 10
    for cells, row in zip(own["rows"], table, strict=True):
        assert {name: cells[own["header"].index(name)] for name in same} == {name: row[name] for name in same}


@needs_node
@pytest.mark.parametrize("form", ["--json", "--link"])
def test_plans_of_several_jobs_say_of_which_they_are(form):
    asked = ("plan", "--model", "llama3-8b", "--gpus", "16,32", "--framework", "megatron-lm,torchtitan", "--top", 3)
    text = gpuscale(*asked, form).out.strip()
    table = drawn(text if form == "--json" else text.partition("#")[2])["tables"][0]
    told = json.loads(gpuscale(*asked, "--json").out)
    at = [table["header"].index(name) for name in ("gpus", "framework")]
    for plan, row in zip(told["plans"], table["rows"], strict=True):
        choice = told["variants"][plan["variant"]]["choice"]
        assert [row[one] for one in at] == [str(choice["gpus"]), choice["framework"]]


@needs_node
def test_the_page_writes_what_is_sharded_over_a_part_and_rates_of_all_gpus():
    asked = ("estimate", "--model", "llama3-8b", "--gpus", 16, "--zero", 3, "--shard", 8)
    plan, seen = json.loads(gpuscale(*asked, "--json").out)["plan"], drawn(address(*asked).partition("#")[2])
    table, tiles = seen["tables"][0], {name: (number, said) for name, number, said in seen["tiles"]}
    assert table["rows"][0][table["header"].index("ZeRO")] == "3/8"
    assert " HSDP-8: " in seen["verdict"]
    assert tiles["Step time"][1] == f"80 % within {plan['step_time_low_s']:.1f} s to {plan['step_time_high_s']:.1f} s"
    said = re.fullmatch(r"(\d+)k tokens/s", tiles["Throughput"][0])
    assert float(said[1]) == pytest.approx(16 * plan["tokens_per_s_per_gpu"] / 1e3, rel=5e-3)


@needs_node
def test_the_page_reads_files_of_json():
    estimate = gpuscale("estimate", "--model", "llama3-8b", "--gpus", 16, "--tp", 2, "--json").out
    assert drawn(estimate)["verdict"].startswith("llama3-8b on 16 GPUs: TP2+SP PP1 DP8 ZeRO-1: ")


@needs_node
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "gpuscale.models/1"}', "gpuscale.models/1 is no answer"),
        ("{}", "is no answer"),
        ('{"schema": "gpuscale.plan/1", "plans": [], "message": "nothing fits"}', "nothing fits"),
    ],
)
def test_the_page_says_what_it_cannot_draw(text, said):
    assert said in drawn(text)["error"]


@needs_node
def test_a_bomb_is_not_unpacked():
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(b" " * 50_000_000) + packer.flush()
    assert "more than 4 MB" in drawn(base64.urlsafe_b64encode(bomb).decode())["error"]


def test_the_page_fetches_nothing_and_makes_no_markup_of_an_answer(generate):
    page, script = generate.opening_page(), SCRIPT.read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|https?://", script)
    assert not re.search(r'(?:src|href)="https?:', page)


def test_the_page_is_one_of_the_docs():
    root = Path(__file__).parents[1]
    docs = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    assert f"site_url: {docs}\n" in (root / "mkdocs.yml").read_text()
    assert f"{docs}latest/open.html" == PAGE  # of the newest release, as the docs have a folder for each


def test_an_address_is_one_format():
    assert_one_message(gpuscale(*PLAN, "--link", "--json"), "two formats", "one of them")
