"""Drawing of `gpuscale size batch` and `gpuscale size`."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscale.presets.rates import Rate
from gpuscale.ratios import signed
from gpuscale.render.compared import three_digits
from gpuscale.render.document import Document, Spell, Table, plain, table
from gpuscale.render.training import short_source
from gpuscale.scaling.batches import BatchRow, BatchSize
from gpuscale.scaling.sizing import Size, SizeRow
from gpuscale.units import DAY_S, format_count, plural

WITHIN = 0.02
"""Batches that take this much longer than the best are as good: predictions are no finer."""


def batch_size_document(result: BatchSize, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out each batch with its plan, and what the laws say; `verbose`: sources in full."""
    return plain(
        "Batch size",
        f"{_batch_verdict(result)}\n{_recommended(result)}",
        _batches(result),
        _batch_laws(result),
        [(one.law, one.source) for one in result.laws] if verbose else "",
        [("price", spell(_price(result.assumptions))), *_notes((*result.skipped, *result.notes), spell)],
    )


def _batch_verdict(result: BatchSize) -> str:
    critical, largest = (format_count(one) for one in (result.critical_batch_tokens, result.largest_batch_tokens))
    return (
        f"{result.model} on {format_count(result.tokens)} tokens: efficient up to batches of about {largest} "
        "tokens (20 % more tokens for the same loss; twice as many at the critical batch size, "
        f"{critical}; by {result.critical_source})"
    )


def _recommended(result: BatchSize) -> str:
    first, cheap = result.batches[result.fastest], result.batches[result.cheapest]
    as_good = [
        f"{one.global_batch_size:,}"
        for one in result.batches
        if one is not first and one.gpus == first.gpus and one.wall_s <= (1.0 + WITHIN) * first.wall_s
    ]
    near = f"; within {WITHIN:.0%} of that: {', '.join(as_good)}" if as_good else ""
    if first == cheap:
        return f"best: {_choice(first, result)}{near}"
    return f"fastest:  {_choice(first, result)}{near}\ncheapest: {_choice(cheap, result)}"


def _choice(one: BatchRow, result: BatchSize) -> str:
    return (
        f"{one.global_batch_size:,} x {result.sequence:,} = {format_count(one.batch_tokens)} tokens on "
        f"{plural(one.gpus, 'GPU')}: {three_digits(one.wall_s / DAY_S)} days{_money(one.cost_usd)}"
    )


def _batches(result: BatchSize) -> Table:
    marks = {result.fastest: "soonest", result.cheapest: "cheapest"}
    if result.fastest == result.cheapest:
        marks = {result.fastest: "best"}
    rows = []
    for at, one in enumerate(result.batches):
        cells = {"": marks.get(at, ""), "layout": one.layout, "GPUs": f"{one.gpus:,}"}
        cells |= {"gbs": f"{one.global_batch_size:,}", "tokens": format_count(one.batch_tokens)}
        cells |= {"more tokens": signed(one.tokens_factor - 1), "steps": f"{one.steps:,}"}
        cells |= {"s/step": three_digits(one.step_time_s), "MFU": f"{one.mfu:.1%}"}
        cells |= {"days": three_digits(one.wall_s / DAY_S)}
        rows.append(cells | ({} if one.cost_usd is None else {"USD": format_count(one.cost_usd)}))
    return table(rows, left=2, optional=("steps", "s/step"))


def _batch_laws(result: BatchSize) -> Table:
    kinds = {"critical": "twice the tokens", "optimal": "least loss for the tokens"}
    rows = [
        {
            "law": one.law,
            "its batch": kinds[one.kind],
            "tokens": format_count(one.batch_tokens),
            "fitted range": _range(one.beyond),
        }
        for one in result.laws
    ]
    return table(rows, left=2)


def size_document(result: Size, *, verbose: bool = False, spell: Spell = str) -> Document:
    """Lay out the choices with their plans, and what the laws say; `verbose`: sources in full, each model in a line."""
    best = result.choices[result.best]
    shapes = [(format_count(one.parameters), one.model) for one in result.choices] if verbose else []
    facts = shapes or [("model", best.model)]
    facts.append(
        ("more compute", "than the least that reaches the same loss (besiroglu): the one-time cost of a smaller model")
    )
    return plain(
        "Size",
        _model_verdict(result, best) if result.question == "model" else _gpus_verdict(result, best),
        _models(result) if result.question == "model" else _gpu_counts(result),
        _laws(result) if result.laws else "",
        [(one.law, one.source) for one in result.laws] if verbose and result.laws else "",
        [
            *(facts if result.question == "model" else ()),
            ("price", spell(_price(result.assumptions))),
            *_notes(result.notes, spell),
        ],
    )


def _model_verdict(result: Size, best: SizeRow) -> str:
    current = [one.parameters for one in result.laws if not one.outdated]
    given = f"{plural(result.gpus, 'GPU')} for {three_digits(result.days)} days{_money(best.cost_usd)}"
    return (
        f"{given}: {format_count(best.parameters)} parameters on {format_count(best.tokens)} tokens for the least loss "
        f"(laws: {format_count(min(current))} to {format_count(max(current))})\n"
        f"{best.layers} layers, {best.hidden:,} wide: {best.layout}: {three_digits(best.step_time_s)} s/step, "
        f"MFU {best.mfu:.1%}"
    )


def _models(result: Size) -> Table:
    rows = []
    for at, one in enumerate(result.choices):
        loss = "" if one.loss is None else f"{'' if one.loss_in_range else '~'}{one.loss:.3f}"
        cells = {"": "best" if at == result.best else "", "layout": one.layout}
        cells["like"] = one.presets[0] if one.presets else ""
        cells |= {"params": format_count(one.parameters), "tokens": format_count(one.tokens)}
        cells |= {"per param": three_digits(one.tokens_per_parameter), "loss": loss}
        cells["more compute"] = "" if one.overtraining is None else signed(one.overtraining - 1, 0, "least")
        rows.append(cells | {"gbs": f"{one.global_batch_size:,}", "MFU": f"{one.mfu:.1%}"})
    return table(rows, left=3, optional=("gbs", "like"))


def _laws(result: Size) -> Table:
    rows = [
        {
            "law": f"{one.law}{', outdated' * one.outdated}",
            "params": format_count(one.parameters),
            "tokens": format_count(one.tokens),
            "per param": three_digits(one.tokens_per_parameter),
            "fitted range": _range(one.beyond),
        }
        for one in result.laws
    ]
    return table(rows)


def _gpus_verdict(result: Size, best: SizeRow) -> str:
    low, high = (three_digits(time_s / DAY_S) for time_s in (best.wall_low_s, best.wall_high_s))
    return (
        f"{best.model} on {format_count(best.tokens)} tokens in {three_digits(result.days)} days: "
        f"{plural(best.gpus, 'GPU')}: {three_digits(best.wall_s / DAY_S)} days ({low} to {high})"
        f"{_money(best.cost_usd)}\n{best.layout}: {three_digits(best.step_time_s)} s/step, MFU {best.mfu:.1%}"
    )


def _gpu_counts(result: Size) -> Table:
    rows = []
    for at, one in enumerate(result.choices):
        cells = {"": "fewest" if at == result.best else "" if one.meets else "too late", "layout": one.layout}
        cells |= {"GPUs": f"{one.gpus:,}", "gbs": f"{one.global_batch_size:,}", "s/step": three_digits(one.step_time_s)}
        cells |= {"more tokens": signed(one.tokens_factor - 1, 0, "-"), "MFU": f"{one.mfu:.1%}"}
        cells["days"] = three_digits(one.wall_s / DAY_S)
        cells["80 %"] = " to ".join(three_digits(end / DAY_S) for end in (one.wall_low_s, one.wall_high_s))
        cells["GPU-h"] = format_count(one.gpu_hours)
        rows.append(cells | ({} if one.cost_usd is None else {"USD": format_count(one.cost_usd)}))
    return table(rows, left=2, optional=("s/step", "GPU-h", "more tokens"))


def _money(usd: float | None) -> str:
    return "" if usd is None else f", {format_count(float(f'{usd:.3g}'))} USD"


def _price(assumptions: Mapping[str, Rate]) -> str:
    rate = assumptions.get("gpu_hour_price")
    if rate is None:
        return "none is published here: `gpu_hour_price=2.5` gives one"
    return f"{rate.value:g} USD per GPU-hour: {', '.join(filter(None, (short_source(rate.source), rate.dated)))}"


def _notes(texts: tuple[str, ...], spell: Spell) -> list[tuple[str, str]]:
    return [("note", spell(text)) for text in texts]


def _range(beyond: float) -> str:
    if beyond == 1.0:
        return "inside"
    return f"{three_digits(beyond)}x its {'largest' if beyond > 1.0 else 'smallest'}"
