"""Tables, texts and JSON of any result: what fits a terminal, and which keys come from which fields."""

import json
import re
from dataclasses import dataclass

import pytest
from command import gpuscale

from gpuscale.render.console import as_many_as_fit, draw
from gpuscale.render.document import table
from gpuscale.render.output import picked, print_csv, print_json

HEADERS = ("name of a thing", "what it is\nfor", "first", "second", "third")
CELLS = [("alpha beta", "a long description of it", "1,234", "56.78", "9"), ("gamma", "short", "1", "2", "3")]
ROWS = [dict(zip(HEADERS, cells, strict=True)) for cells in CELLS]


@pytest.fixture(params=[40, 50, 60, 100])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_tables_fit_and_numbers_stay_whole(width, capsys):
    draw(table(ROWS, left=2, optional=("second", "first")))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width and not line.endswith(" ") for line in lines)
    text = "\n".join(lines)
    assert "third" in text
    for part in ("first", "1,234", "second", "56.78"):
        assert (part in text) == (width >= 60)
    assert len(text.split("─\n")[1].splitlines()) == (2 if width >= 50 else 4)


@pytest.mark.parametrize(
    ("columns", "drawn"),
    [
        (39, """                 what it is
name of a thing  for               third
────────────────────────────────────────
alpha beta       a long                9
                 description of
                 it
gamma            short                 3"""),
        (45, """                 what it is
name of a thing  for                    third
─────────────────────────────────────────────
alpha beta       a long description of      9
                 it
gamma            short                      3"""),
        *[(columns, f"""                what it is
name of a thing for                     {" " * room} third
────────────────────────────────────────{"─" * room}──────
alpha beta      a long description of it{" " * room}     9
gamma           short                   {" " * room}     3""") for columns, room in ((46, 0), (51, 0))],
        *[(columns, """                what it is
name of a thing for                      first third
────────────────────────────────────────────────────
alpha beta      a long description of it 1,234     9
gamma           short                        1     3""") for columns in (52, 58)],
        *[(columns, """                what it is
name of a thing for                      first second third
───────────────────────────────────────────────────────────
alpha beta      a long description of it 1,234  56.78     9
gamma           short                        1      2     3""") for columns in (59, 62)],
        (63, """                 what it is
name of a thing  for                       first  second  third
───────────────────────────────────────────────────────────────
alpha beta       a long description of it  1,234   56.78      9
gamma            short                         1       2      3"""),
    ],
)  # fmt: skip
def test_columns_move_together_then_are_left_out_then_texts_are_folded(columns, drawn, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    draw(table(ROWS, left=2, optional=("second", "first", "none of these")))
    assert capsys.readouterr().out.rstrip("\n") == drawn


@pytest.mark.parametrize(
    ("texts", "digits", "whole"), [(HEADERS[1:2], 20, True), (HEADERS[:2], 30, False), (HEADERS[:2], 22, True)]
)
def test_room_for_numbers_is_that_of_the_texts_that_are_left(texts, digits, whole, monkeypatch, capsys):
    """At 40: a text gives way down to 8 columns; one that is left out gives nothing."""
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{**{name: row[name] for name in (*texts, "first")}, "x": "9" * digits} for row in ROWS]
    draw(table(rows, left=len(texts), optional=HEADERS[1:2] if len(texts) > 1 else ()))
    out = capsys.readouterr().out
    assert out.count("9" * digits) == 2 * whole
    assert max(map(len, out.splitlines())) == 40


@pytest.mark.parametrize("header", ["a longer\nheader than that", "a longer header\nthan that"])
def test_a_header_is_as_wide_as_its_widest_line(header, capsys):
    draw(table([{"name": "x", header: "1"}]))
    assert max(map(len, capsys.readouterr().out.splitlines())) == 4 + 2 + max(map(len, header.split("\n")))


@pytest.mark.parametrize(
    ("number", "lines"), [("1,234", ["1,234"]), ("1,234,56", ["1,234,56"]), ("1,234,567", ["1,234,56", "7"])]
)
def test_numbers_are_folded_where_texts_of_eight_columns_do_not_make_room(number, lines, monkeypatch, capsys):
    """Beside a text of 8: numbers of 5, 6, 5 and up to 8 columns, and four gaps of two, are 40."""
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{**{name: row[name] for name in HEADERS[1:]}, "x": number} for row in ROWS]
    draw(table(rows, left=1))
    body = capsys.readouterr().out.split("─\n")[1].splitlines()
    assert [line.split()[-1] for line in body if re.search(r"\d$", line)] == [*lines, *lines]


def test_columns_are_aligned(capsys):
    draw(table(ROWS, left=2))
    _, head, rule, first, second = capsys.readouterr().out.splitlines()
    assert rule == "─" * len(head)
    for name, cells in zip(HEADERS[2:], list(zip(*CELLS, strict=True))[2:], strict=True):
        end = head.index(name) + len(name)
        assert [line[:end].split()[-1] for line in (first, second)] == list(cells)


def test_blocks_are_apart_and_long_lines_wrap_where_words_end(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    words = " ".join(["word"] * 20)
    draw(words, "", [], f"  {words}", [("name", words), ("", "x")])
    first, second, third = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert " ".join(first.split()) == words
    assert [line[:5] for line in first.splitlines()] == ["word "] * 3
    assert [len(line) - len(line.lstrip()) for line in second.splitlines()] == [2, 4, 4]
    assert [line.index("w") for line in third.splitlines()[:3]] == [8, 8, 8]
    assert third.splitlines()[-1] == "        x"
    assert max(map(len, "\n".join((first, second, third)).splitlines())) <= 40
    assert as_many_as_fit("head: ", ["one", "two", "three"], 14) == "head: one, two"


@dataclass(frozen=True)
class Measured:
    name: str
    time_s: float
    sizes_bytes: tuple[float, ...]
    rate_bytes_per_s: float | None


def test_keys_follow_from_fields_and_units_from_keys(capsys):
    one = Measured("x", 2e-6, (2e9, 4e9), None)
    assert picked(one, ("name", "time_us", "sizes_gb", "rate_gb_per_s_per_gpu")) == {
        "name": "x", "time_us": pytest.approx(2), "sizes_gb": [2, 4], "rate_gb_per_s_per_gpu": None,
    }  # fmt: skip
    print_json("thing", one, notes=(one,))
    body = json.loads(capsys.readouterr().out)
    assert list(body) == ["schema", "name", "time_s", "sizes_bytes", "rate_bytes_per_s", "notes"]
    assert (body["schema"], body["notes"][0]["sizes_bytes"]) == ("gpuscale.thing/1", [2e9, 4e9])
    print_csv([one, one])
    assert capsys.readouterr().out.splitlines()[0] == "name,time_s,sizes_bytes,rate_bytes_per_s"
    with pytest.raises(ValueError, match="JSON"):
        print_json("thing", {"bad": float("nan")})


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--model", "llama3-8b", "--gpus", "16", "--risk", "0.9"),
        ("estimate", "--model", "llama3-8b", "--gpus", "8"),
        ("placement", "--gpus", "640", "--tp", "8", "--pp", "4", "--best"),
        ("collective", "allreduce", "--bytes", "1MB"),
        ("collective", "allreduce", "--sweep", "8B..8GB", "--gpus", "16"),
        ("roofline", "--model", "mixtral-8x7b"),
        ("models", "list"),
        ("models", "show", "deepseek-v3"),
        ("hardware", "list"),
        ("hardware", "show", "h100"),
        ("clusters", "list"),
        ("clusters", "show", "leonardo"),
        ("frameworks", "list"),
        ("frameworks", "show", "nanotron"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.usefixtures("computed_once")
def test_every_output_fits_its_terminal(arguments, columns):
    done = gpuscale(*arguments, columns=columns)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert not [line for line in done.lines if len(line) > columns or line.endswith(" ")]
