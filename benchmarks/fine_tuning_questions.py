"""Questions of those who fine-tune, put by flags, beside what is publicly known: docs/published.md.

    python benchmarks/fine_tuning_questions.py

Written: the table between the markers of the page, from tests/data/fine_tuning_questions.toml, which is edited by hand.
"""

from __future__ import annotations

import tomllib
from typing import Any

from published_jobs import PAGE, ROOT, ask
from update_validation import replaced

QUESTIONS = ROOT / "tests" / "data" / "fine_tuning_questions.toml"


def answered(question: dict[str, Any]) -> tuple[str, bool]:
    """What gpuscale says, and whether that is right."""
    options, within = question["options"], question.get("within", 0.0)
    if "longest" in question:
        tokens = ask(f"plan {options} --find seq")["plans"][0]["sequence"]
        return f"{tokens:,} tokens", abs(tokens / question["longest"] - 1) <= within
    plan = ask(f"estimate {options}")["plan"]
    said = f"{'fits' if plan['fits'] else 'does not fit'}: {plan['memory_gib']:.1f} GiB"
    if "gib" in question:
        return said, abs(plan["memory_gib"] / question["gib"] - 1) <= within
    return said, plan["fits"] == question["fits"]


def table(questions: list[dict[str, Any]]) -> str:
    """Markdown: what is asked, what is known, what gpuscale says, and how many answers are right."""
    found = [(question, *answered(question)) for question in questions]
    right = sum(is_right for *_, is_right in found)
    lines = [f"{right} of {len(found)} answers are right.", ""]
    lines += ["| asked | known | gpuscale | |", "|---|---|---|---|"]
    for question, said, is_right in found:
        verdict = "right" if is_right else f"wrong: {question.get('wrong', 'not known why')}"
        lines.append(f"| {question['ask']} | {question['known']} ({question['source']}) | {said} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """Ask every question and write the page."""
    questions = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["question"]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replaced(page, {"questions": table(questions)}), encoding="utf-8")


if __name__ == "__main__":
    main()
