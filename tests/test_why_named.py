"""`why` of the layouts that an answer names itself, and of layouts as answers print them."""

from __future__ import annotations

import pytest

from gpuscale import plan
from gpuscale.errors import InputError
from gpuscale.planning.plans import layout_of
from gpuscale.render.plan_texts import layout_text
from gpuscale.request import Question, read

GPT3 = {"model": "gpt3-175b", "gpus": 1024, "cluster": "dgx-a100-superpod", "top": 1}


def asked(text: object) -> dict[str, str]:
    """What `why` understands."""
    found = read(Question, {"why": text}).why
    assert found is not None
    return found


@pytest.mark.parametrize("line", ["measured", "recipe"])
def test_a_line_of_the_answer_is_asked_by_its_name(line: str) -> None:
    """The answer is of the very layout that the line shows: the same step time, and the same distance from #1."""
    found = plan(**GPT3, why=line)
    assert found.why is not None and found.why.plan is not None and found.why.rank is not None
    named = found.measured if line == "measured" else found.recipe
    assert named is not None and named.step_time_s == pytest.approx(found.why.plan.step_time_s)
    assert found.why.slower_than_best == pytest.approx(named.step_time_s / found.plans[0].step_time_s - 1)
    assert found.why.asked.startswith(line)


def test_the_recipe_given_is_the_one_that_is_meant() -> None:
    """Beside `recipe=NAME`, `why=recipe` is that one's layout although another is nearer to the job."""
    found = plan(recipe="kimi-k2-1024gpu-h100-fp8cs", why="recipe", top=1)
    assert found.why is not None and found.why.asked.startswith("recipe kimi-k2-1024gpu-h100-fp8cs")
    assert found.recipe is not None and found.why.plan is not None
    assert found.why.plan.step_time_s == pytest.approx(found.recipe.step_time_s)


def test_what_an_answer_prints_is_understood() -> None:
    """Every part of a printed layout means what it says, in any case and among names and values."""
    assert asked("TP8+SP PP4 VPP2 CP2 EP4 ETP2 DP16 ZeRO-1 mb2 recompute selective:core_attn") == {
        "tp": "8", "sp": "on", "pp": "4", "vpp": "2", "cp": "2", "ep": "4", "etp": "2", "dp": "16", "zero": "1",
        "micro_batch_size": "2", "recompute": "selective:core_attn",
    }  # fmt: skip
    assert asked("tp8 pp=4, recompute full 12 mb1") == asked("tp=8,pp=4,recompute=full:12,micro_batch_size=1")
    assert asked("TP2 HSDP-8 recompute norm+act mbs=1")["recompute"] == "norm+act"
    assert asked("TP2 HSDP-8")["shard"] == "8"
    assert asked("tp=4,pp=8,recompute=full") == {"tp": "4", "pp": "8", "recompute": "full"}
    assert asked({"tp": 2}) == {"tp": "2"}
    assert asked(asked(" Measured ")) == asked("measured")


def test_the_text_of_a_plan_finds_that_plan() -> None:
    """A layout as it is printed is the plan that it was printed of."""
    first = plan("llama3-8b", 64, top=1).plans[0]
    why = plan("llama3-8b", 64, top=1, why=layout_text(first)).why
    assert why is not None and why.rank == 1 and why.plan is not None
    assert layout_of(why.plan) == layout_of(first)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("mesured", "'mesured' is not name=value", "measured or recipe"),
        ("TP8 PP", "'PP' is not name=value", "TP4 PP8"),
        ("TP8 tp=4", "tp is given twice", "once"),
        ("XP8", "'XP8' is not name=value", "TP4 PP8"),
        ("", "no layout is given", "TP4 PP8"),
    ],
)
def test_what_is_not_understood_is_one_message(text: str, message: str, hint: str) -> None:
    """It says what was not understood, and the ways to write it."""
    with pytest.raises(InputError, match=message) as found:
        asked(text)
    assert hint in (found.value.hint or "")


def test_a_line_that_is_not_there_is_refused() -> None:
    """Without a published recipe, and of several jobs, there is no such line."""
    with pytest.raises(InputError, match="no recipe of olmo-1b on about 8 NVIDIA H100"):
        plan("olmo-1b", 8, why="recipe")
    with pytest.raises(InputError, match="answer for one job, not 2 jobs"):
        plan("llama3-8b", [8, 16], why="measured")
