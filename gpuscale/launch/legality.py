"""Broken rules of a framework as findings: the values that break them, and what would be legal next to those."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.remarks import Remark
from gpuscale.layouts.space import divisors
from gpuscale.planning.jobs import Job, changed_job
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.planfile import replaced
from gpuscale.request import Layout, declared
from gpuscale.rules.check import broken_rules, source_in
from gpuscale.rules.rule import Rule
from gpuscale.specs.job import JobSpec

CLOSE = 32
"""Values of a degree that are tried on either side of it, beside its divisors and its double."""

NEAREST = 2
"""Values of an option that are said to be legal."""


def illegal_settings(job: Job, layout: Mapping[str, Any], broken: Sequence[Rule]) -> Iterator[Remark]:
    """Yield each broken rule, with the values that break it and what would be legal next to them."""
    row = fixed_layout(job.spec, layout).row(0)
    known = _values(job, row)
    for rule in broken:
        values = ", ".join(f"{name} {known[name]}" for name in rule.options if known.get(name, "") != "")
        if rule.code in {"uneven_stages", "uneven_chunks"}:
            stages = row["pp"] * (row["vpp"] if rule.code == "uneven_chunks" else 1)
            what = "pp x vpp" if rule.code == "uneven_chunks" else "pp"
            said = f"num_layers {job.spec.model.layers} is not divisible by {what} = {stages}"
        else:
            said = f"{rule.text}: {values}" if values else rule.text
        legal = _legal_next(job, layout, row, broken, rule)
        for name, near in legal.items():
            said += f"; legal next to it: {name} {' or '.join(map(_word, sorted(near, key=_order)))}"
        source = source_in(rule, job.spec.runtime.rule_set)
        yield Remark(rule.code, "error", f"{said} [{source}]", rule.options, legal=legal)


def _values(job: Job, row: Mapping[str, int]) -> dict[str, Any]:
    """Return the options of a job and its layout, and facts of the model, as findings name them."""
    model = job.spec.model
    heads = sorted({one.heads for one in model.attentions})
    kv_heads = sorted({one.kv_heads for one in model.attentions if one.latent is None})
    widths = sorted({one.ffn for kind in model.kinds for one in (kind.mlp, kind.moe) if one})
    experts = sorted({kind.moe.experts for kind in model.kinds if kind.moe})
    several = {"heads": heads, "kv_heads": kv_heads, "ffn": widths, "experts": experts}
    texts = {name: " and ".join(map(str, values)) for name, values in several.items()}
    facts = {"layers": model.layers, "hidden": model.hidden, "vocab": model.vocab, **texts}
    return {**job.request, **row, **facts, "recompute": "", "sp": "on" if row["sp"] else "off"}


def _legal_next(
    job: Job, layout: Mapping[str, Any], row: Mapping[str, int], broken: Sequence[Rule], rule: Rule
) -> dict[str, tuple[Any, ...]]:
    """Return the first option with values that break this rule no more, nor any that the layout did not break before.

    Those after which no rule is broken go before the others, then the nearest first.
    """
    before = {one.code for one in broken}
    for name in rule.options:
        found: list[tuple[bool, Any]] = []
        for value in _near(job.spec, row, name):
            after = _broken_with(job, layout, name, value)
            if after is not None and rule.code not in after and after <= before:
                found.append((bool(after), value))
        clean = [value for left, value in found if not left] or [value for _, value in found]
        if clean:
            return {name: tuple(clean[:NEAREST])}
    return {}


def _word(value: Any) -> str:
    return "left out" if value is None else str(value)


def _order(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _broken_with(job: Job, layout: Mapping[str, Any], name: str, value: Any) -> set[str] | None:
    """Return the rules that are broken with one option changed; None where that makes no job."""
    with suppress(InputError):
        if name in declared(Layout):
            spec, changed = job.spec, replaced(layout, {name: value})
        else:
            spec, changed = changed_job(job, {name: value}), dict(layout)
        return {one.code for one in broken_rules(fixed_layout(spec, changed), spec)}
    return None


def _near(spec: JobSpec, row: Mapping[str, int], name: str) -> Iterable[Any]:
    """Return other values of an option, the nearest first."""
    if name in {"gbs", "seq"}:
        unit = row["dp"] * row["micro_batch_size"] * row["pp"] if name == "gbs" else 2 * row["cp"] * row["tp"]
        now = spec.global_batch_size if name == "gbs" else spec.sequence
        below = now // unit * unit
        steps = [below, below + unit, below - unit, below + 2 * unit]
        finer = row["dp"] * row["micro_batch_size"]
        steps += [now // finer * finer, now // finer * finer + finer] if name == "gbs" else []
        return [value for value in sorted(dict.fromkeys(steps), key=lambda one: abs(one - now)) if 0 < value != now]
    texts = {
        "sp": ("on", "off"), "recompute": ("selective", "full", "none"), "schedule": ("1f1b",),
        "cp_comm": ("all_gather", "a2a", "p2p"), **dict.fromkeys(("offload", "overlap", "precision"), (None,)),
    }  # fmt: skip
    if name in texts:
        return texts[name]
    if name == "zero":
        return sorted((stage for stage in range(4) if stage != row["zero"]), key=lambda one: abs(one - row["zero"]))
    if name in row and name != "dp":
        now = row[name]
        others = {*range(max(1, now - CLOSE), now + CLOSE + 1), *divisors(now).tolist(), 2 * now} - {now}
        return sorted(others, key=lambda one: (abs(math.log(one / now)), one))
    return ()
