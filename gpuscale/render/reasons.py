"""Drawing of what `explain` says in words: why, what would help and what not, thresholds, what flips the choice."""

from __future__ import annotations

from gpuscale.explain.changes import Suggestion
from gpuscale.explain.explanation import Explanation
from gpuscale.launch.quoting import shell_word
from gpuscale.ratios import signed
from gpuscale.render.document import Part, Table, table
from gpuscale.render.plan_texts import FIT
from gpuscale.units import format_number, format_seconds

FLIPS = 4
"""Numbers that would flip the choice that are shown if nothing is said."""


def sentences_block(found: Explanation) -> Part:
    """What binds and how the plan stands, a sentence a line."""
    return "\n".join(f"  {text}" for text in found.sentences)


def reason_blocks(found: Explanation, *, verbose: bool = False) -> tuple[Part, ...]:
    """What would help, what would not, thresholds, and what would flip the choice."""
    return _suggestions(found), _rejected(found), _thresholds(found), _flips(found, verbose=verbose)


def _rejected(found: Explanation) -> Part:
    lines = [f"  {one.change}: {one.why}" for one in found.rejected]
    return "\n".join(["Alternatives that do not pay off:", *lines]) if lines else ""


def _suggestions(found: Explanation) -> Part:
    if not found.suggestions:
        return "No single change is predicted to gain 1%."
    return "\n".join(["What would help, each evaluated by itself:", *map(_suggestion, found.suggestions)])


def _suggestion(one: Suggestion) -> str:
    tight = ", tight" if one.fit == "tight" else ""
    lines = [f"  {one.change}; {format_seconds(one.step_time_s)}/step, {one.memory_gib:.1f} GiB{tight}"]
    lines += [f"    {one.caution}"] if one.caution else []
    lines += [f"    gpuscale {' '.join(map(shell_word, one.command))}"] if one.command else []
    return "\n".join(lines)


def _thresholds(found: Explanation) -> Part:
    rows = [
        {
            "threshold": one.name,
            "now": format_number(one.now),
            "needed": f"{'at most' if one.at_most else 'from'} {format_number(one.needed)}",
            "holds": "yes" if one.holds else "NO",
        }
        for one in found.thresholds
    ]
    return table(rows)


def _flips(found: Explanation, *, verbose: bool) -> Part:
    shown = found.flips if verbose else found.flips[:FLIPS]
    if not shown:
        return "No single parameter, within the factors tried, would change the choice."
    rows = [{"would flip the choice": one.quantity, "to": one.value, "the choice then": one.plan} for one in shown]
    return table(rows, left=3)


def change_tables(said: Explanation) -> list[Part]:
    """What would make the step shorter, what would not, where something else would bind, what would flip the choice."""
    tables = [
        Table(
            "The most effective changes, each evaluated by itself",
            ("change", "step time", "gain", "GiB", "fit", "to check"),
            [
                [
                    one.change,
                    (format_seconds(one.step_time_s), one.step_time_s),
                    (signed(one.gain), one.gain),
                    (f"{one.memory_gib:.1f}", one.memory_gib),
                    FIT[one.fit],
                    one.caution,
                ]
                for one in said.suggestions
            ],
        ),
        Table("Changes that do not pay off", ("change", "why not"), [[one.change, one.why] for one in said.rejected]),
        Table(
            "Thresholds at which something else becomes the bottleneck",
            ("quantity", "now", "needed", "holds", "meaning"),
            [
                [
                    one.name,
                    (_number(one.now), one.now),
                    (f"{'at most' if one.at_most else 'at least'} {_number(one.needed)}", one.needed),
                    "yes" if one.holds else "no",
                    one.meaning,
                ]
                for one in said.thresholds
            ],
        ),
        Table(
            "Single parameters that would change the choice",
            ("quantity", "value", "factor", "then"),
            [[one.quantity, one.value, (f"{one.factor:.3g}", one.factor), one.plan] for one in said.flips],
        ),
    ]
    return [table for table in tables if table.rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
