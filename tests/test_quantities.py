"""Numbers as people write them: one reading for flags, Python and files; what can hardly be meant is asked back."""

import inspect
import math
from dataclasses import fields
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from command import assert_one_message, gpuscale
from hypothesis import given
from hypothesis import strategies as st
from test_cli_general import WALKED

from gpuscale import units
from gpuscale.errors import InputError
from gpuscale.launch.check import check
from gpuscale.planning.jobs import build_job
from gpuscale.planning.planfile import read_plan_file, write_plan_file
from gpuscale.planning.plans import estimate_layout
from gpuscale.request import (
    OPTIONS,
    JobOptions,
    Layout,
    Length,
    Question,
    Recovery,
    Sites,
    Slow,
    declared,
    read,
    read_several,
)
from gpuscale.units import Quantity, refuse_grouped

QUANTITIES = {name: one for name, one in vars(units).items() if isinstance(one, Quantity)}
KINDS = (JobOptions, Layout, Question, Length, Recovery, Slow, Sites)
NUMBERS = {name: (kind, field) for kind in KINDS for name, field in declared(kind).items() if field.number is not None}
REQUIRED = {JobOptions: {"model": "llama3-8b", "gpus": 8}}
SMALL = ("--model", "llama3-8b", "--gpus", "16")


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=QUANTITIES)
@given(value=st.floats(min_value=1e-6, max_value=1e12))
def test_what_is_written_reads_as_itself(quantity, value):
    assert quantity.read(quantity.written(value), "x") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=QUANTITIES)
def test_every_example_reads(quantity):
    for example in quantity.example.replace(" or ", ", ").split(", "):
        assert quantity.read(example, "x") > 0


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        ("PERCENT", "40", 40), ("PERCENT", "40%", 40), ("PERCENT", "0.4%", 0.4), ("PERCENT", 0, 0),
        ("SHARE", "0.9", 0.9), ("SHARE", "90%", 0.9), ("SHARE", "500 %", 5),
        ("TOKENS", "15T", 15e12), ("TOKENS", "15tok", 15), ("TOKENS", "2ktokens", 2000), ("TOKENS", "1_000_000", 1e6),
        ("SECONDS", "12", 12), ("SECONDS", "800ms", 0.8), ("SECONDS", "2min", 120), ("HOURS", "1d", 24),
        ("HOURS", "7200s", 2), ("DAYS", "48h", 2), ("GIBIBYTES", "80GB", 80e9 / 2**30), ("GIBIBYTES", " 8 ", 8),
        ("RATE", "400Gbit/s", 50), ("RATE", "2TB/s", 2000), ("GIGABITS", "50GB/s", 400), ("WATTS", "0.7kW", 700),
        ("USD", "250k", 250e3), ("USD", "1.5MUSD", 1.5e6), ("TOKENS", "300g", 3e11),
        ("TOKENS", " 2000 k ", 2e6), ("NUMBER", "1e6", 1e6), ("NUMBER", "-3", -3),
    ],
)  # fmt: skip
def test_units(quantity, text, value):
    assert QUANTITIES[quantity].read(text, "x") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=QUANTITIES)
@pytest.mark.parametrize(
    "given", ["", " ", "nan", "inf", "1,000", "８", "٣", "1__0", "_1", "0x10", "1e", "many", "1 000", ".", "$2",
              "9" * 65, True, None, [1], math.nan, math.inf, 10**400, "1e400", "1e400%"],
)  # fmt: skip
def test_what_is_no_number_is_refused(quantity, given):
    with pytest.raises(InputError) as caught:
        quantity.read(given, "x")
    assert caught.value.field == "x"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["50Gb/s", "50gb/s", "50Gbps"])
def test_a_bandwidth_whose_bits_or_bytes_are_in_doubt_is_refused(text):
    with pytest.raises(InputError, match="is not a bandwidth"):
        units.RATE.read(text, "x")


@pytest.mark.parametrize(
    ("quantity", "value", "hint"),
    [
        ("PERCENT", 0.4, "write 40%, or 0.4% if"), ("SHARE", 90, "write 90%, or 9000% if"),
        ("TOKENS", 15, "write 15T, or 15tok if"), ("TOKENS", 300, "write 300B, or"),
        ("TOKENS", 999_999, "write 999999B, or"), ("BATCH_TOKENS", 999, "write 999k, or"),
        ("BATCH_TOKENS", 512, "write 512k, or"), ("HOURS", 7200, "write 7200s, or 7200h if"),
        ("SECONDS", 800_000, "write 800000ms, or 800000s if"), ("DAYS", 20_000, "write 20000h, or 20000d if"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [float, str])
def test_what_can_hardly_be_meant_is_asked_back_with_both_readings(quantity, value, hint, form):
    with pytest.raises(InputError, match="without a unit is") as caught:
        QUANTITIES[quantity].read(form(value), "x")
    assert caught.value.hint.startswith(hint)
    for answer in caught.value.hint.removeprefix("write ").removesuffix(" if that is meant").split(", or "):
        assert QUANTITIES[quantity].read(answer, "x") > 0


# -- every option --


def test_every_flag_that_takes_a_number_reads_it_like_all_others():
    seen = 0
    for command in WALKED.values():
        hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
        for name, hint in hints.items():
            kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if {int, float} & {kind, *get_args(kind)}:
                seen += 1
                assert said[-1].parser is not None, (command.name, name)
    assert seen > 30


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_read_in_one_way_whoever_gives_it(name):
    kind, field = NUMBERS[name]
    if kind is JobOptions and field.option.quantity is units.NUMBER:
        return  # numbers alone in Python and files; the flags are tested below
    low = field.limits.low
    value = max(low, 2 if field.number is int else low)
    sure = field.option.quantity.sure
    value = min(max(value, sure[0]), sure[1])
    for text in (value, f"{value!r}", f" {value!r} ", field.option.quantity.written(value)):
        found = getattr(read(kind, {**REQUIRED.get(kind, {}), name: text}), name)
        assert found == pytest.approx(value)
        assert type(found) is field.number
    for wrong in ("nan", "inf", "1e400", "８", "1,000", "x", "-1", "", math.nan, math.inf, True):
        with pytest.raises(InputError) as caught:
            read(kind, {**REQUIRED.get(kind, {}), name: wrong})
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("plan", *SMALL, "--min-mfu", "0.4"), "--min-mfu: 0.4 without a unit is 0.4%", "write 40%, or 0.4%"),
        (("check", *SMALL, "--min-mfu", "0.4"), "--min-mfu: 0.4 without a unit is 0.4%", "write 40%, or 0.4%"),
        (("check", *SMALL, "--max-memory", "0.9"), "0.9 without a unit is 0.9 GiB", "write 90%, or 0.9GiB"),
        (("plan", *SMALL, "--max-memory", "0.9"), "0.9 without a unit is 0.9 GiB", "write 72GiB for 0.9"),
        (("plan", *SMALL, "--memory-limit", "0.9"), "--memory-limit: 0.9 is out of range", "give 1 to 10000 GiB"),
        (("plan", *SMALL, "--tokens", "300_000"), "300000 without a unit is 300000 tok", "300000tok if"),
        (("plan", *SMALL, "--gbs", "4M"), "--gbs: 4,194,304 sequences of 4,096 are 17.2B tokens per step",
         "write --gbs 4Mtok for tokens, or --gbs 4Mseq if"),
        (("plan", *SMALL, "--gbs", "1024,4194304"), "are 17.2B tokens per step", "--gbs 4Mtok"),
        (("estimate", *SMALL, "--gbs", "4000000"), "are 16.4B tokens per step", "--gbs 4000000tok"),
        (("batch-size", *SMALL, "--tokens", "1T", "--gbs", "4M"), "are 17.2B tokens per step", "--gbs 4Mtok"),
        (("plan", *SMALL, "--tokens", "15"), "15 without a unit is 15 tok", "write 15T, or 15tok"),
        (("train-time", *SMALL, "--tokens", "15"), "15 without a unit is 15 tok", "write 15T"),
        (("size", "--gpus", "16", "--days", "2 weeks"), "--days: '2 weeks' is not a time", "30d"),
        (("plan", "--model", "llama3-8b", "--gpus", "16,384"), "--gpus: '16,384' may be one number or a list",
         "write 16384 for one number, or '16, 384' for 2"),
        (("plan", *SMALL, "--gbs", "1,024"), "--gbs: '1,024' may be", "write 1024 for one"),
        (("plan", *SMALL, "--dp", "1,024"), "--dp: '1,024' may be", "write 1024 for one"),
        (("goodput", *SMALL, "--repair-time", "7200"), "--repair-time: 7200 without a unit is 7200 h", "write 7200s"),
        (("goodput", *SMALL, "--checkpoint-bandwidth", "50Gb/s"), "is not a bandwidth", "1600Gbit/s"),
        (("stragglers", *SMALL, "--slow-gpu", "90"), "90 is out of range", "0.01 to 1 (1% to 100%)"),
        (("schedule", *SMALL, "--jitter", "5"), "--jitter: 5 without a unit is 500%", "write 5%"),
        (("plan", *SMALL, "--top", "２"), "--top: '２' is not a whole number", "--help"),
        (("estimate", "--model", "llama3-8b", "--gpus", "６４"), "'６４' is not a whole number", ""),
        (("plan", *SMALL, "--gpu-hour-price", "２"), "'２' is not a price", "2.5"),
        (("plan", *SMALL, "--gpu-hour-price", "nan"), "nan is out of range", "give 1e-10 to 1e+06 USD"),
    ],
)  # fmt: skip
def test_commands_ask_back(arguments, message, hint):
    assert_one_message(gpuscale(*arguments), message, hint)


@pytest.mark.parametrize("flag", [("--min-mfu", "40%"), ("--memory-limit", "80GB"), ("--max-step-time", "2min"),
                                  ("--top", " 3 "), ("--gbs", "1_024"), ("--gbs", "1e2"), ("--max-days", "400d"),
                                  ("--train-tokens", "1T"), ("--gbs", "256seq"), ("--max-cost", "250k")])  # fmt: skip
def test_commands_take_units(flag):
    more = ("--tokens", "1B", "--gpu-hour-price", "2") if flag[0] in {"--max-days", "--max-cost"} else ()
    assert gpuscale("plan", *SMALL, *flag, *more).code == 0


def test_a_batch_that_was_confirmed_stays_confirmed(tmp_path):
    """In the job that answers echo, in plan files, and where commands change or compare it."""
    made = build_job(read(JobOptions, {"model": "llama3-8b", "gpus": 16, "gbs": "128kseq"}))
    assert (made.spec.global_batch_size, made.request["gbs"]) == (2**17, "128kseq")
    assert build_job(read(JobOptions, made.request)).spec == made.spec
    path = tmp_path / "plan.toml"
    write_plan_file(path, made.request, estimate_layout(made, {"zero": 1}).plan)
    assert build_job(read(JobOptions, read_plan_file(path)[0])).spec == made.spec
    for command in ("estimate", "explain", "memory", "goodput"):
        assert gpuscale(command, path).code == 0, command
    assert read_several("gbs", "1024,128kseq") == (1024, "128kseq")


@pytest.mark.parametrize("text", ["256,512", "64,128,256", "8,16", "1024,2048", "100,200", "16, 384", "1", "1,2,4"])
def test_lists_stay_lists(text):
    refuse_grouped(text, "gpus")


@pytest.mark.parametrize("text", ["1,000", "1,024", "4,096", "16,384", "12,288", "1,048,576", "16,000"])
def test_groups_of_thousands_are_asked_back(text):
    with pytest.raises(InputError, match="may be one number or a list"):
        refuse_grouped(text, "gpus")


def test_limits_of_check_are_read_as_those_of_plan():
    for name, text in (("min_mfu", "0.4"), ("max_step_time", "many"), ("max_regression", 0.05)):
        with pytest.raises(InputError) as caught:
            check(model="llama3-8b", gpus=16, **{name: text}, **({"baseline": "x"} if "regr" in name else {}))
        assert caught.value.field == name


def test_every_declared_quantity_has_an_option():
    assert {one.name for one in fields(Quantity)} >= {"units", "sure", "other"}
    used = {id(said.quantity) for said in OPTIONS.values()}
    for name in ("PERCENT", "SHARE", "TOKENS", "SECONDS", "HOURS", "DAYS", "RATE", "WATTS", "USD", "GIBIBYTES"):
        assert id(QUANTITIES[name]) in used, name
