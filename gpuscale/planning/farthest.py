"""How far one number of a job goes: the longest sequence, the largest microbatch or the fewest GPUs that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuscale.choices import MAX_SEQUENCE
from gpuscale.errors import InputError
from gpuscale.layouts.space import divisors
from gpuscale.planning.jobs import Presets
from gpuscale.planning.variants import Variant, gpu_counts, make_variants
from gpuscale.request import Question, Range, in_sequences, read_several
from gpuscale.results import Farthest
from gpuscale.search.loop import anything_fits

SHORTEST, STEPS = 128, 16
"""Sequences that are tried: this many tokens, doubled again and again, and 16 equal steps within the doubling in which
nothing fits any longer; of a batch in tokens those that divide it."""

OPTION = {"seq": "seq", "mbs": "micro_batch_size", "gpus": "gpus"}
"""What is looked for -> the option that sets it."""


def farthest(
    job: Mapping[str, Any], pins: Mapping[str, Any], question: Question, presets: Presets | None
) -> tuple[dict[str, Any], dict[str, Any], Farthest]:
    """Find how far `question.find` goes before no layout fits, `gpus` being the most that may be taken.

    Returns:
        Job and pins with the number that was found, or, where nothing fits at all, the easiest one; and what was found.

    Raises:
        InputError: several jobs, or a number that is given although it is looked for.
    """
    name, job = str(question.find), {**job, **_one_batch(job)}
    option, own = OPTION[name], replace(question, find=None)
    if name != "gpus" and option in {**job, **pins}:
        raise InputError(f"`{name}` is looked for and given", field="find", hint=f"leave out `{name}`")

    def variant(value: int | None = None) -> Variant:
        said = {} if value is None else {option: value}
        of_job, of_layout = ({}, said) if name == "mbs" else (said, {})
        tried = make_variants({**job, **of_job}, {**pins, **of_layout}, own, presets).tried
        if len(tried) > 1:
            raise InputError(f"it is found for one job, not for {len(tried)}", field="find", hint="ask for one job")
        return tried[0]

    def fits(value: int) -> bool:
        try:
            one = variant(value)
        except InputError:  # a number that the job cannot have: no batch of that many, another cluster
            return False
        return anything_fits(one.job.spec, one.pins)

    if name == "seq" and isinstance(job.get("gbs"), int):  # no number of them is one of tokens, however long they are
        job = {**job, "gbs": in_sequences(job["gbs"])}
    spec = variant().job.spec
    if name == "seq" and str(job.get("gbs", "")).endswith("tok"):
        lengths = [one for one in divisors(spec.tokens_per_step).tolist() if SHORTEST <= one <= MAX_SEQUENCE]
        value, beyond = _last(lengths or [spec.sequence], fits)
    elif name == "seq":
        value, beyond = _longest(fits)
    elif name == "mbs":
        value, beyond = _last([*divisors(spec.global_batch_size).tolist()], fits)
    else:
        value, beyond = _last(gpu_counts(Range(1, spec.gpus), spec.cluster)[::-1], fits)
    found = Farthest(name, value, beyond)
    return ({**job, option: value}, dict(pins), found) if name != "mbs" else (dict(job), {**pins, option: value}, found)


def _one_batch(job: Mapping[str, Any]) -> dict[str, int | str]:
    """Return the batch of a job as it is spelled everywhere, if it has a single one."""
    given = read_several("gbs", job["gbs"]) if "gbs" in job else ()
    return {"gbs": given[0]} if isinstance(given, tuple) and len(given) == 1 else {}


def _longest(fits: Callable[[int], bool]) -> tuple[int, int | None]:
    """The longest sequence that fits and the next that does not, None where all do."""
    doubled = [SHORTEST << k for k in range((MAX_SEQUENCE // SHORTEST).bit_length())]
    value, beyond = _last(doubled, fits)
    if beyond is None:
        return value, beyond
    step = (beyond - value) // STEPS
    return _last(list(range(value, beyond + 1, step)), fits)


def _last(values: Sequence[int], fits: Callable[[int], bool]) -> tuple[int, int | None]:
    """Of values that are the harder to fit the later they come, the last that does, by halving, and the one after it;
    the first where none does."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(values[middle]) else (low, middle)
    return values[low], values[high] if high < len(values) else None
