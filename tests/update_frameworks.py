"""Writes the tables of rules into docs/planning.md and docs/frameworks.md: python tests/update_frameworks.py.

A table stands between `<!-- rules ... -->` and `<!-- end of rules -->`; what else the pages say is left alone.
"""

import re
from pathlib import Path

from gpuscale.rules.check import ALL_RULES, cited, rules_of
from gpuscale.rules.general import FRAMEWORKS
from gpuscale.rules.rule import EVERY
from gpuscale.search import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY
from gpuscale.specs.job import RULE_SETS

DOCS = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"(<!-- rules(?: of ([a-z0-9-]+))? -->\n).*?(<!-- end of rules -->)", re.DOTALL)
GENERATION = re.compile(r"-20\d\d$")
MEMORY_ROWS = (
    (OUT_OF_HOST_MEMORY, "what is offloaded needs more than 90 % of a host's memory", "all", "memory model"),
    (OUT_OF_MEMORY, "the fullest stage needs more than the usable memory", "all", "memory model"),
)


def frameworks_text(rule):
    """The rule sets for which a rule holds; a framework all of whose generations have it goes by its name alone."""
    if rule.frameworks == EVERY:
        return "all"
    names = [name for name in RULE_SETS if name in rule.frameworks]
    for family in ("megatron-lm", "torchtitan"):
        members = [name for name in RULE_SETS if name == family or name.startswith(f"{family}-")]
        if set(members) <= set(names):
            names = [name for name in names if name == family or name not in members]
        elif family in names:
            names[names.index(family)] = f"{family} (today)"
    return ", ".join(names)


def all_rules():
    """The table of docs/planning.md."""
    rows = [(rule.code, rule.text, frameworks_text(rule), rule.source) for rule in ALL_RULES]
    return table(("code", "rule", "frameworks", "source"), [*rows, *MEMORY_ROWS])


def own_rules(name):
    """The rules of one framework beyond arithmetic, and those of arithmetic that its source states; of an earlier
    generation those that today's has no more."""
    rules = [rule for rule in rules_of(name) if rule.frameworks != EVERY or rule.code in FRAMEWORKS[name].cited]
    today = GENERATION.sub("", name)
    if today != name:
        rules = [rule for rule in rules if today not in rule.frameworks]
    return table(
        ("code", "rule", "where", "what its own check misses"),
        [(rule.code, rule.text, cited(rule, name).where, cited(rule, name).missed) for rule in rules],
    )


def table(header, rows):
    cells = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    cells += [f"| `{row[0]}` | {' | '.join(row[1:])} |" for row in rows]
    return "\n".join(line.replace("  |", " |") for line in cells) + "\n"


def rewritten(text):
    """A page with its tables of rules as they are in the code."""
    return MARKED.sub(lambda found: found[1] + (own_rules(found[2]) if found[2] else all_rules()) + found[3], text)


if __name__ == "__main__":
    for page in (DOCS / "planning.md", DOCS / "frameworks.md"):
        page.write_text(rewritten(page.read_text()))
