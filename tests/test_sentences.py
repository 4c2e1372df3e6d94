"""Sentences of every kind of answer have content: no nothing in percent, no two equal values as different ones."""

import re
from pathlib import Path

import pytest
from command import gpuscale
from goldens import FOLDER

EMPTY = {
    "a difference of nothing": (
        r"[+-]0(\.0+)?%|(?<![\d.,])0(\.0+)?% (behind|ahead|faster|slower|longer|less|more|of the step)|\([A-Z]\w+ 0%\)"
    ),
    "nothing that differs": r"\b([\d.,]+(?: ?[a-zA-Z/%]+)?), not \1(?![\d.,]*\d)",
    "one of several": r"(?<![\d.,x] )\b1 (families|hosts|GPUs|plans|runs|replicas|layouts|groups|jobs|microbatches)\b",
    "several of one": r"\b([2-9]|\d+\d|\d[\d,]+) (family|host|GPU|plan|run|replica|layout|job|microbatch)\b(?! |/|-)",
    "a time of nothing": r"\b0\.00? (ns|us|ms|s)\b",
    "times faster": r"[\d.]+ ?x (faster|slower|longer|cheaper)",
    "none of them": r"\bby 0 ",
}
"""What a sentence does not say."""

OWN_WORDS = (
    r"dearer|presses most|badly hashed|to be seen to|stands against it|the model resolves|must give|adds? up payloads|"
    r"cannot tell (plans so close )?apart|what there is to plan|unlike (GPUs|nodes)|alike nodes|as fast as the slowest|"
    r"communication shows|(of the )?time that (counts|trains)|work done again|leaves the box|furthest off|stands on"
)
"""Phrases for which the field has terms: exposed, tie, goodput, in-network reduction, heterogeneous, NVLink domain."""

ROOT = Path(__file__).parents[1]
PAGES = sorted([*FOLDER.glob("*.txt"), *(ROOT / "docs").glob("**/*.md"), ROOT / "README.md"])

COMMANDS = [
    ("plan", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16, "--verbose"),
    ("plan", "--model", "llama2-7b", "--gpus", 8, "--risk", "0.9"),
    ("plan", "--model", "llama3-70b", "--gpus", 640, "--risk", "0.9", "--why", "tp=4,pp=4"),
    ("plan", "--model", "mixtral-8x7b", "--gpus", 64, "--why", "tp=1,pp=1,ep=8"),
    ("plan", "--model", "llama3-70b", "--gpus", "32..128", "--gpu-hour-price", "2"),
    ("estimate", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16),
    ("explain", "--model", "llama2-7b", "--gpus", 8),
    ("explain", "--model", "llama2-7b", "--gpus", 8, "--traffic"),
    ("advise", "--model", "llama3-8b", "--gpus", 8),
    ("advise", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16),
    ("compare", "--model llama3-8b --gpus 8 --tp 2", "--model llama3-8b --gpus 8 --tp 2 --set gpu=h100-sxm-80gb"),
    ("goodput", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16),
    ("stragglers", "--model", "llama2-7b", "--gpus", 8),
    ("memory", "--model", "llama3-8b", "--gpus", 8),
    ("train-time", "--model", "llama3-8b", "--gpus", 8, "--tokens", "1T"),
    ("batch-size", "--model", "llama3-8b", "--gpus", 16, "--tokens", "100B"),
    ("plan", "--model", "llama3-8b", "--gpus", 64, "--seq", "1M", "--gbs", 64),
    ("plan", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16, "--pareto", "step_time,memory"),
    ("plan", "--model", "llama3.2-1b", "--gpus", "1,2", "--gbs", 16, "--gpu-hour-price", 2),
    ("plan", "--model", "llama3.2-1b", "--gpus", "1,2", "--gbs", 16, "--pareto", "step_time,memory"),
    ("placement", "--gpus", 2, "--cluster", "gh200"),
    ("advise", "--model", "mixtral-8x7b", "--gpus", 64),
    ("bench", "--model", "llama3.2-1b", "--gpus", 1),
]

REFUSED = [
    ("estimate", "--model", "llama3.2-1b", "--gpus", 1, "--tp", 2),
    ("plan", "--model", "llama3.2-1b", "--gpus", 1, "--pp", "!1"),
    ("plan", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 16, "--max-step-time", "1ms"),
    ("plan", "--model", "llama3-8b", "--gpus", 1, "--gbs", 16),
]


def faults(text):
    """What the sentences of an answer say that they should not; tables, whose cells may be 0, are not sentences."""
    said = re.sub(r"(?m)^.*(?:─|\|).*$|^(?:\S.*?  +){3,}.*$", "", text)
    return [
        (name, found[0]) for name, pattern in EMPTY.items() for found in re.finditer(pattern, " ".join(said.split()))
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_no_answer_on_record_says_nothing(path):
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_answers_and_pages_use_the_terms_of_the_field(path):
    said = " ".join(path.read_text(encoding="utf-8").split())
    assert [found[0] for found in re.finditer(OWN_WORDS, said)] == []


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(map(str, arguments))[:60])
def test_no_answer_says_nothing(arguments):
    done = gpuscale(*arguments)
    assert done.code == 0, done.err
    assert faults(done.out) == []


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda arguments: " ".join(map(str, arguments))[:60])
def test_no_message_says_nothing(arguments):
    done = gpuscale(*arguments)
    assert done.code > 0
    assert faults(done.err) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nine of ten cases stay within 10.4 s, not 10.4 s", "nothing that differs"),
        ("0.0% behind #2 on paper", "a difference of nothing"),
        ("-0.0% time", "a difference of nothing"),
        ("communication 1% (TP 0%)", "a difference of nothing"),
        ("fit in 1 families", "one of several"),
        ("one version on all 1 hosts", "one of several"),
        ("64 microbatch per step", None),
        ("1,024 GPUs are 3.8x faster", "times faster"),
        ("DP comm 0.00 ns per step", "a time of nothing"),
        ("by 0 similar measured runs", "none of them"),
        ("stay within 10.4 s, not 10.5 s", None),
        ("fewer model chunks (16, not 164)", None),
    ],
)
def test_the_test_can_fail(text, name):
    assert [found for found, _ in faults(text)] == ([name] if name else [])
