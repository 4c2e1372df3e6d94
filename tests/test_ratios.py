"""Comparisons in words: what a reader takes from the sentence is the ratio."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpuscale
from gpuscale.ratios import AMOUNT, NUMBER, PRICE, SPEED, TIME, in_words, share_text, signed

WORDS = (SPEED, TIME, PRICE, AMOUNT.of(" energy"), NUMBER.of(" GPU-hours"))
QUANTITIES = st.floats(min_value=1e-2, max_value=1e2)


def read(text, words):
    """The ratio that a sentence says, and how far it may be rounded."""
    percent, times = re.fullmatch(r"([\d.]+)% (.+)", text), re.fullmatch(r"([\d.,]+)x (.+)", text)
    if percent:
        assert float(percent[1]) > 0
        sign = {words.more: 1, words.less: -1}[percent[2]]
        return 1 + sign * float(percent[1]) / 100, 0.0005 + 1e-9
    if times:
        assert times[2] == words.same
        ratio = float(times[1].replace(",", ""))
        return ratio, max(0.005 * ratio, 1e-9)
    assert text == words.same
    return 1.0, 0.0005 + 1e-9


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.more)
@given(one=QUANTITIES, other=QUANTITIES)
@example(one=1.0, other=1.0004)
@example(one=1.0, other=1.5)
@example(one=1.0, other=2.0)
@example(one=0.999999, other=1.0)
def test_a_comparison_says_the_ratio_both_ways(words, one, other):
    said, apart = read(in_words(one / other, words), words)
    assert said == pytest.approx(one / other, abs=apart)
    back, back_apart = read(in_words(other / one, words), words)
    assert said * back == pytest.approx(1, abs=apart * back + back_apart * said + 1e-6)


@given(one=QUANTITIES, other=QUANTITIES, digits=st.integers(0, 2))
@example(one=1.0, other=1.0, digits=1)
@example(one=1.0, other=1.0004, digits=1)
@example(one=1.004, other=1.0, digits=0)
def test_a_change_is_signed_or_the_same(one, other, digits):
    text = signed(one / other - 1, digits)
    if text == "same":
        assert one / other == pytest.approx(1, abs=0.51 * 10 ** -(digits + 2))
        return
    assert re.fullmatch(r"[+-][\d,]+(\.\d+)?%", text)
    assert float(text.rstrip("%").replace(",", "")) / 100 + 1 == pytest.approx(
        one / other, abs=0.51 * 10 ** -(digits + 2)
    )
    assert float(text.rstrip("%").replace(",", ""))


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.5, "50.0% faster"), (1 / 1.5, "33.3% slower"), (3.97, "3.97x as fast"), (0.25, "0.250x as fast"),
     (0.5, "0.500x as fast"), (2, "2.00x as fast"), (1.0004, "as fast"), (0.9996, "as fast"), (123.4, "123x as fast")],
)  # fmt: skip
def test_speeds_in_words(ratio, text):
    assert in_words(ratio, SPEED) == text
    joint = "as" if text.endswith("as fast") else "than"
    assert in_words(ratio, SPEED, "#2") == f"{text} {joint} #2"


def test_shares():
    assert [share_text(part) for part in (0, 1e-5, 0.0005, 0.123, 1)] == ["0.0%", "<0.1%", "0.1%", "12.3%", "100.0%"]


def test_no_other_module_writes_a_signed_percentage():
    """A sign of its own may become "-0.0%", and a ratio of its own "50% slower" for a third less."""
    own = re.compile(r":\+,?\.\d(%|f\}%)|%\} (faster|slower|longer|cheaper|more expensive) |\}x (as|faster|slower)")
    package = Path(gpuscale.__file__).parent
    found = [
        f"{path.relative_to(package)}:{number}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "ratios.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if own.search(line) and '"""' not in line
    ]
    assert found == []
