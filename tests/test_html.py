"""Pages of answers: what they hold, and what a browser makes of them (skipped where there is no Chromium)."""

import json
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Browser, find_browser
from command import assert_one_message, gpuscale

from gpuscale.render.document import Checklist, Document, Section, Table
from gpuscale.render.html.charts import Bar, Line, Points, curves, heat_map, points, scale, stacked, waterfall
from gpuscale.render.html.page import html
from gpuscale.render.plots import Axis
from gpuscale.units import MB, format_bytes, format_seconds

DATA = Path(__file__).parent / "data"
NASTY = "<script>window.ran=1</script><img src=x onerror=window.ran=1>&amp;\"'"
JOB = ("--model", "llama3-8b", "--gpus", 32)
EXPLAINED = "--model llama3-8b --gpus 32 --tp 2 --pp 4 --gbs 64"
COMMANDS = {
    "plan": ("plan", *JOB),
    "explain": ("explain", *EXPLAINED.split()),
    "compare": ("compare", f"{EXPLAINED}", f"{EXPLAINED} --tp 4 --sp off"),
    "frontier": ("plan", "--model", "llama3-8b", "--gpus", "16,32", "--pareto", "tokens_per_s,memory", "--top", 8),
    "risk": ("plan", "--model", "mixtral-8x7b", "--gpus", 64, "--risk", "0.9", "--why", "tp=8", "--top", 4),
    "sweep": ("collective", "allreduce", "--sweep", "8B..1GB", "--factor", 4, "--gpus", 16, "--cluster", "aws-p5"),
    "goodput": ("goodput", *JOB, "--spares", 1),
    "train-time": ("train-time", "--model", "llama3-8b", "--gpus", "16,32,64", "--tokens", "1T"),
    "phases": ("train-time", DATA / "example_phases.toml", "--tokens", "1T"),
    "study": (
        "sweep",
        "show",
        DATA / "studies" / "results.csv",
        "--heat",
        "model,gpus,mfu",
        "--frontier",
        "step_time_s,mfu",
    ),
    "validate": ("validate", DATA / "published_runs.csv"),
    "kernels": ("validate", DATA / "published_kernels.csv"),
}
"""Command -> its arguments, as many as there are kinds of pages."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of every kind, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    class Pages(dict):
        def __missing__(self, name):
            self[name] = folder / f"{name}.html"
            done = gpuscale(*COMMANDS[name], "--html", self[name])
            assert (done.code, done.err) == (0, "")
            return self[name]

    return Pages()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


class Outline(HTMLParser):
    """What of a page programs for the blind go by."""

    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.headings, self.texts = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip() and self.open[-1] not in {"script", "style"}:
            self.texts.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_small_whole_and_in_order(pages, name):
    page = pages[name].read_text()
    assert len(page.encode()) <= 0.5 * MB
    outline = Outline(page)
    for landmark in ("header", "nav", "main", "footer"):
        assert len(outline.all(landmark)) == 1
    assert outline.headings[0] == 1
    assert all(after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in outline.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(attributes.get("scope") in {"col", "row"} for attributes in outline.all("th"))
    charts = [attributes for attributes in outline.all("div") if attributes.get("class") == "plot"]
    assert charts
    assert len(charts) == len(outline.all("figure"))
    assert len(outline.all("details")) == len(outline.all("summary")) >= len(charts)
    assert all(one["role"] == "img" and len(one["aria-label"]) > 20 for one in charts)
    assert not re.search(r"\b(nan|inf|None|Infinity)\b", " ".join(outline.texts))


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_but_the_scripts_of_the_page_may_run(pages, name):
    page = pages[name].read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert {b64encode(sha256(one.encode()).digest()).decode() for one in scripts} == allowed
    assert len(scripts) == page.count("<script") == 1
    assert not re.search(r"""(?:src|href)=["']?(?:https?:|//)|url\(|@import""", page)


def test_the_answer_is_printed_as_ever_beside_the_page(tmp_path):
    for name in ("plan", "sweep"):
        beside = gpuscale(*COMMANDS[name], "--html", tmp_path / "page.html")
        assert beside == gpuscale(*COMMANDS[name])


def test_the_same_answer_is_the_same_page(tmp_path):
    made = []
    for seed in (1, 2):
        path = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "gpuscale", *map(str, COMMANDS["plan"]), "--html", path]
        environment = {"PYTHONHASHSEED": str(seed), "PATH": "", "COLUMNS": str(60 * seed), "TZ": f"UTC{seed}"}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        made.append(path.read_bytes())
    assert made[0] == made[1]


def test_the_page_says_what_the_command_says(pages):
    texts = " ".join(Outline(pages["plan"].read_text()).texts)
    plans = json.loads(gpuscale(*COMMANDS["plan"], "--json").out)["plans"]
    assert gpuscale(*COMMANDS["plan"]).lines[0].split(": ", 1)[1].split(",")[0] in texts
    rows = re.findall(r'<tr><th scope="row" class="number" data-value="(\d+)">', pages["plan"].read_text())
    assert [int(one) for one in rows[: len(plans)]] == [plan["rank"] for plan in plans]


def test_sections_follow_what_was_asked(pages):
    titles = {name: re.findall(r"<h2 [^>]*>([^<]+)</h2>", pages[name].read_text()) for name in COMMANDS}
    assert {"Plans", "Choice", "Step time", "Memory", "Placement", "Evidence", "Assumptions"} <= set(titles["plan"])
    assert {"Why", "Changes", "Step time", "Memory", "Pipeline", "Traffic"} <= set(titles["explain"])
    assert titles["compare"] == ["Both plans", "Time", "Memory"]
    assert {"Other conditions", "The requested layout"} <= set(titles["risk"]) - set(titles["plan"])
    assert titles["goodput"] == ["Losses", "Facts", "Interval", "Assumptions"]
    assert titles["train-time"] == ["Over GPUs", "Timeline", "Time", "Money", "Energy", "Assumptions"]
    assert titles["phases"] == ["Timeline", "Time", "Money", "Energy", "Assumptions"]
    assert titles["sweep"] == ["Sizes", "Bandwidth", "Time", "Levels", "Assumptions"]
    assert titles["study"] == ["All questions", "Rows", "Heat map", "Frontier", "No answer"]
    assert {"Predicted and measured", "Errors", "Coverage"} <= set(titles["validate"])


def rects(chart):
    """Class, start and width [%] of the bars of a chart."""
    found = re.findall(r'<rect class="([^"]+)" x="([-\d.]+)%" y="[\d.]+" width="([\d.]+)%"', chart.drawing)
    return [(css, float(x), float(width)) for css, x, width in found]


def texts(chart):
    return re.findall(r">([^<>]+)</text>", chart.drawing)


def test_a_waterfall_ends_where_its_parts_add_up_to():
    parts = [Bar("a", 0, [3.0]), Bar("b", 1, [2.0]), Bar("c", 2, [-1.0], idle=True)]
    chart = waterfall("t", "s", parts, "all", Axis("seconds", "{:.0f} s".format))
    assert rects(chart) == [("c1", 0, 60), ("c2", 60, 40), ("c3 idle", 80, 20), ("whole", 0, 80)]
    assert [one for one in texts(chart) if one.endswith(" s")][-4:] == ["3 s", "2 s", "-1 s", "4 s"]
    assert [row[0] for row in chart.numbers.rows] == ["a", "b", "c", "all"]


def test_a_stack_has_its_total_and_its_limit():
    bars = [Bar("a", 0, [3.0, 1.0]), Bar("b", 11, [2.0, 0.0]), Bar("none", 2, [0.0, 0.0])]
    chart = stacked("t", "s", ["x", "y"], bars, Axis("GiB", "{:.1f}".format), {"limit": 8.0})
    assert [name for name, _ in chart.legend] == ["a", "b"]
    assert [row[1:] for row in chart.numbers.rows][-1] == [("5.0", 5.0), ("1.0", 1.0)]
    (limit,) = re.findall(r'class="limit" x1="([\d.]+)%"', chart.drawing)
    (a, b, other) = rects(chart)
    assert (a[0], b[0], other[0]) == ("c1", "c2 again", "c1")
    assert b[1] == pytest.approx(a[2], abs=0.01)
    assert b[1] + b[2] == pytest.approx(float(limit) * 5 / 8, abs=0.02)
    assert "3.0" in texts(chart)
    assert stacked("t", "s", ["x"], [Bar("none", 0, [0.0])], Axis("GiB", str)).numbers.rows == [["x", ("0.0", 0.0)]]


def test_the_longer_way_of_the_numbers_of_a_stack_goes_down():
    bars = [Bar(str(index), index, [1.0, 2.0]) for index in range(13)]
    chart = stacked("t", "s", ["x", "y"], bars, Axis("GiB", str))
    assert (chart.numbers.header, len(chart.numbers.rows)) == (["", "x", "y"], 14)
    chart = stacked("t", "s", [*map(str, range(13))], [Bar("a", 0, [1.0] * 13)], Axis("GiB", str))
    assert (chart.numbers.header, len(chart.numbers.rows)) == (["", "a", "total"], 13)


def test_curves_and_points_lie_where_their_axes_have_them():
    axes = Axis("bytes", format_bytes, log=True, of_bytes=True), Axis("time", format_seconds, log=True)
    chart = curves("t", "s", [Line("a", 0, [1024, 32768, 2**20], [1e-5, 1e-4, 1e-3])], *axes)
    places = [float(one) for one in re.findall(r'<circle [^>]*cx="([\d.]+)%"', chart.drawing)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.02)
    assert {"1 KiB", "16 KiB", "1 MiB", "100 us", "1 ms"} <= set(texts(chart))
    group = Points("a", 0, [1.0, 2.0, 2.001], [1.0, 3.0, 3.0], ["p", "q", "r"], marks=["#1", "#2", "#3"])
    chart = points("t", "s", [group], Axis("x", str), Axis("y", str))
    assert {"#1", "#2"} <= set(texts(chart))
    assert "#3" not in texts(chart)  # it would lie on #2
    assert "<title>p x: 1.0 y: 1.0</title>" in chart.drawing


@pytest.mark.parametrize(
    ("axis", "values", "names"),
    [
        (Axis("", "{:.1f}".format), [0, 80], ["0", "10", "20", "30", "40", "50", "60", "70", "80"]),
        (Axis("", "{:.0f}".format), [0, 2], ["0", "0.5", "1", "1.5", "2"]),
        (Axis("", format_seconds), [0, 1.2], ["0", "200 ms", "400 ms", "600 ms", "800 ms", "1 s", "1.2 s"]),
        (Axis("", "{:.0f}".format, log=True), [10, 500], ["10", "20", "50", "100", "200", "500"]),
        (Axis("", "{:g}".format, log=True), [1e-3, 1e3], ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]),
        (Axis("", format_bytes, log=True, of_bytes=True), [2**20, 2**23], ["1 MiB", "2 MiB", "4 MiB", "8 MiB"]),
        (Axis("", "{:.0f}".format, log=True), [7, 7], ["5", "10"]),
        (Axis("", "{:.0f}".format), [-3, -3], ["-3.1", "-3.05", "-3", "-2.95", "-2.9", "-2.85"]),
    ],
)
def test_an_axis_names_round_values(axis, values, names):
    found = scale(axis, values)
    assert [name for _, name in found.ticks] == names
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in found.shares(value for value, _ in found.ticks))


def test_a_text_shows_only_where_it_has_room():
    """A bar of a tenth has room for its number on a page of 1000 px, not on a phone."""
    axis = Axis("s", "{:.2f} s".format)
    chart = stacked("t", "s", ["x"], [Bar("a", 0, [9.0]), Bar("b", 1, [1.0]), Bar("c", 2, [0.001])], axis)
    shown = dict(re.findall(r'<text class="in( w\d+)"[^>]*>([\d.]+ s)<', chart.drawing))
    assert shown == {" w200": "9.00 s", " w600": "1.00 s"}


def test_what_names_say_is_shown_and_never_markup():
    axis, nasty = Axis(NASTY, lambda value: f"{NASTY}{value:.0f}"), [NASTY, f"{NASTY}\x1b[31m"]
    charts = [
        waterfall(NASTY, NASTY, [Bar(NASTY, 0, [1.0])], NASTY, axis),
        stacked(NASTY, NASTY, nasty, [Bar(NASTY, 0, [1.0, 2.0])], axis, {NASTY: 2.0}),
        curves(NASTY, NASTY, [Line(NASTY, 0, [1.0, 2.0], [1.0, 2.0])], axis, axis, spans=[(NASTY, 0.0, 1.0)]),
        points(NASTY, NASTY, [Points(NASTY, 0, [1.0, 2.0], [1.0, 2.0], nasty, marks=nasty)], axis, axis),
        heat_map(NASTY, NASTY, (NASTY, NASTY), nasty, nasty, [[1.0, None], [2.0, 3.0]], axis),
    ]
    table = Table(NASTY, ("a",), [[NASTY]])
    sections = [
        Section(NASTY, [table, [(NASTY, NASTY)], Checklist([(NASTY, [(NASTY, NASTY)])]), f"{NASTY}\n", *charts])
    ]
    shown = html(Document(NASTY, "\x1b[31m", [(NASTY, NASTY, NASTY)], sections))
    assert "<img" not in shown
    assert shown.count("<script") == 1
    assert "\x1b" not in shown
    outline = Outline(shown)
    assert NASTY in outline.texts
    assert all(name in ATTRIBUTES for _, attributes in outline.tags for name in attributes)


ATTRIBUTES = {
    "aria-hidden", "lang", "charset", "http-equiv", "content", "name", "rel", "href", "class", "id", "aria-label",
    "aria-labelledby", "role", "tabindex", "scope", "data-value", "style", "title", "width", "height", "x", "y", "x1",
    "x2", "y1", "y2", "cx", "cy", "r", "d", "viewbox", "preserveaspectratio", "fill-opacity",
}  # fmt: skip
"""Attributes that pages have; none of them runs anything."""


CSS = (Path(__file__).parents[1] / "gpuscale" / "render" / "html" / "charts.css").read_text()


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """The ratio of WCAG 2.2, "contrast ratio"."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_charts_have_the_contrast_of_wcag_aa(scheme):
    block = re.findall(r"--back: #.*?}", CSS, re.DOTALL)[scheme]
    found = dict(re.findall(r"--(\w+): (#\w{6})", block))
    assert len(found) == 16
    for back in ("back", "panel"):
        assert all(contrast(found[text], found[back]) >= 4.5 for text in ("text", "soft", "link"))
    assert all(contrast(found[f"c{number}"], found["back"]) >= 4.5 for number in range(1, 11))


def test_a_page_is_written_as_other_files_are(tmp_path):
    plan = COMMANDS["plan"]
    done = gpuscale(*plan, "--html", "/dev/stdout")
    assert (done.code, done.out.startswith("<!DOCTYPE html>"), done.out.endswith("</html>\n")) == (0, True, True)
    for other in ("--json", "--csv"):
        assert_one_message(gpuscale(*plan, "--html", "-", other), "--html: two documents on one stream", "give a file")
    both = gpuscale(*plan, "--html", "-", "-o", "/dev/stdout")
    assert_one_message(both, "two documents on one stream", "give a file")
    assert_one_message(gpuscale(*plan, "--html", tmp_path), "cannot write: ", "")
    assert_one_message(gpuscale(*plan, "--html", tmp_path / "no" / "page.html"), "cannot write", "folder that exists")
    runs = tmp_path / "runs.csv"
    runs.write_text((DATA / "published_runs.csv").read_text())
    before = runs.read_bytes()
    assert_one_message(gpuscale("validate", runs, "--html", runs), "is also a file to read", "write to another file")
    assert runs.read_bytes() == before
    same = tmp_path / "same"
    assert_one_message(gpuscale(*plan, "--html", same, "-o", same), "--html: two documents in one file", "give another")
    assert not same.exists()


def test_files_and_a_page_are_two_answers(tmp_path):
    exported = gpuscale(*COMMANDS["plan"], "--export", "megatron-lm", "--html", tmp_path / "x")
    assert_one_message(exported, "--export and --html are two answers", "one of them")


INK = "getComputedStyle(document.querySelector('.plot text.middle:not(.soft)')).fill"
PLOTS = "[...document.querySelectorAll('.plot')]"
VIEWS = {"desktop": (1280, False), "phone": (400, False), "dark": (1280, True), "dark phone": (400, True)}
CUT = (
    "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
    ".map((one) => one.getAttribute('aria-label'))"
)
"""Tables that are wider than their boxes."""

OVERLAPS = """
(() => {
  const lap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const found = [];
  for (const plot of document.querySelectorAll('.area')) {
    const texts = [...plot.querySelectorAll('text')].map((one) => [one.getBoundingClientRect(), one.textContent])
      .filter(([box]) => box.width);
    texts.forEach(([box, said], index) => texts.slice(index + 1).forEach(([other, also]) => {
      if (lap(box, other)) found.push(`${said} | ${also}`);
    }));
  }
  return found;
})()
"""
"""Texts of charts that lie on each other."""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_draws_in_silence_with_nothing_cut_off(pages, browser, name, view):
    width, dark = VIEWS[view]
    browser.open(pages[name], width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == []
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(OVERLAPS) == []
    if width > 1000:
        assert browser.evaluate(CUT) == []
    drawn = browser.evaluate(f"{PLOTS}.map((one) => one.querySelectorAll('rect, circle, path').length)")
    assert drawn
    assert all(drawn)
    back, text = browser.evaluate(f"[getComputedStyle(document.body).backgroundColor, {INK}]")
    assert back == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert text == ("rgb(232, 236, 241)" if dark else "rgb(27, 36, 48)")


COLUMN = "document.querySelector('table.sortable').tHead.rows[0].cells[{0}]"


def column(browser, index):
    cells = f"[...document.querySelector('table.sortable').tBodies[0].rows].map((row) => row.cells[{index}])"
    return browser.evaluate(
        f"{cells}.map((cell) => cell.dataset.value ? Number(cell.dataset.value) : cell.textContent)"
    )


def sorting(browser):
    heads = "[...document.querySelector('table.sortable').tHead.rows[0].cells]"
    return browser.evaluate(f"{heads}.map((head) => head.getAttribute('aria-sort'))")


def test_a_table_sorts_by_click_and_by_key(pages, browser):
    browser.open(pages["plan"])
    heads = browser.evaluate(
        "[...document.querySelector('table.sortable').querySelectorAll('th[scope=col]')].map((one) => one.textContent)"
    )
    memory, recompute = heads.index("GiB"), heads.index("recompute")
    assert sorting(browser)[0] == "ascending"
    before = column(browser, memory)
    assert before != sorted(before)
    browser.click(f"{COLUMN.format(memory)}.querySelector('button')")
    assert column(browser, memory) == sorted(before)
    assert sorting(browser).count(None) == len(heads) - 1
    assert sorting(browser)[memory] == "ascending"
    browser.click(f"{COLUMN.format(memory)}.querySelector('button')")
    assert column(browser, memory) == sorted(before, reverse=True)
    assert sorting(browser)[memory] == "descending"
    assert browser.evaluate("document.getElementById('said').textContent") == "sorted by GiB, descending"
    browser.evaluate(f"{COLUMN.format(0)}.querySelector('button').focus()")
    browser.press("Enter", 13, "\r")
    assert column(browser, 0) == sorted(column(browser, 0))
    for _ in range(recompute):
        browser.press("Tab", 9)
    browser.press(" ", 32, " ")
    assert sorting(browser)[recompute] == "ascending"
    assert column(browser, recompute) == sorted(column(browser, recompute))
    assert browser.complaints() == []


NAMED = {"button", "link", "img", "image", "table", "region", "navigation", "figure", "heading", "DisclosureTriangle"}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_read_out_has_a_name_and_charts_are_one_image_each(pages, browser, name):
    browser.open(pages[name])
    nodes = [one for one in browser.send("Accessibility.getFullAXTree")["nodes"] if not one.get("ignored")]
    roles = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes]
    assert [role for role, said in roles if role in NAMED and not said.strip()] == []
    charts = browser.evaluate(f"{PLOTS}.length")
    assert sum(role in {"image", "img", "SvgRoot", "graphics-symbol"} for role, _ in roles) == charts


def test_the_keyboard_reaches_the_content_first(pages, browser):
    browser.open(pages["plan"])
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_prints_light_and_as_wide_as_paper(pages, browser, name):
    browser.open(pages[name], width=680, dark=True)  # what A4 and Letter have room for
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.send("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert browser.evaluate(INK) == "rgb(27, 36, 48)"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 680
    assert browser.evaluate(OVERLAPS) == []
    printed = b64decode(browser.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    assert printed.startswith(b"%PDF")
    browser.send("Emulation.setEmulatedMedia", media="screen")
    assert browser.complaints() == []


def test_what_a_file_says_never_runs(browser, tmp_path):
    runs = tmp_path / "<img src=x onerror=window.ran=1>.csv"
    header, *rows = (DATA / "published_runs.csv").read_text().splitlines()
    quoted = NASTY.replace('"', '""')
    rows = [f'"{quoted}{index}"{row[row.index(",") :]}' for index, row in enumerate(rows[:20])]
    runs.write_text("\n".join([header, *rows]) + "\n")
    page = tmp_path / "page.html"
    assert gpuscale("validate", runs, "--html", page).code == 0
    assert "&lt;script&gt;window.ran" in page.read_text()
    browser.open(page)
    browser.evaluate("[...document.querySelectorAll('details')].forEach((one) => { one.open = true })")
    assert browser.complaints() == []
    assert browser.evaluate("window.ran") is None
    assert "<script>window.ran=1</script>" in browser.evaluate("document.body.innerText")
