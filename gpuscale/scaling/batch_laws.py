"""Critical batch sizes: how many more tokens a larger batch needs for the same loss, and what laws and runs say.

A training that takes S steps with endless batches and E tokens with tiny ones takes S (1 + B_crit / B) steps and
E (1 + B / B_crit) tokens with batches of B (McCandlish et al. 2018, arXiv 1812.06162, equation 2.11). Batches are in
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.errors import InputError
from gpuscale.layouts.space import odd_factor
from gpuscale.request import DEFAULT_BATCH_TOKENS
from gpuscale.scaling.laws import BESIROGLU, FLOPS_PER_PARAMETER_TOKEN, beyond

TOLERATED = 0.2
"""Share of tokens that a batch may cost more: at it, batches are called critical by Zhang et al. 2024."""


def tokens_factor(batch: float, critical: float) -> float:
    """Tokens for the same loss over those that tiny batches need."""
    return 1.0 + batch / critical


class Norm(NamedTuple):
    """A gradient as it was measured."""

    batch: float  #: tokens that it is the mean of.
    norm: float  #: its Euclidean norm, before clipping; the mean of squares over many steps, and its root.


def noise_scale(one: Norm, other: Norm) -> float:
    """Return the simple noise scale tr(S) / |G|^2 [tokens] from gradients of two batches at the same weights.

    McCandlish et al. 2018, appendix A.1: |G_B|^2 is |G|^2 + tr(S) / B on average.

    Raises:
        InputError: equal batches; or norms of which no noise is left, or no gradient.
    """
    small, big = sorted((one, other))
    if small.batch == big.batch:
        raise InputError("both norms are of the same batch", field="gradient_norm", hint="measure at two batches")
    square, noisy = big.norm**2, small.norm**2
    gradient = (big.batch * square - small.batch * noisy) / (big.batch - small.batch)
    noise = (noisy - square) / (1.0 / small.batch - 1.0 / big.batch)
    if noise <= 0.0:
        message = f"the norm at {small.batch:,.0f} tokens is not above that at {big.batch:,.0f}"
        raise InputError(message, field="gradient_norm", hint="average squares over more steps, before clipping")
    if gradient <= 0.0:
        message = "all of the larger batch's gradient is noise"
        raise InputError(message, field="gradient_norm", hint="measure a larger batch, over more steps")
    return noise / gradient


class BatchLaw(NamedTuple):
    """A law of batches."""

    name: str  #: as answers call it.
    source: str  #: paper and equation, and which numbers have not been checked against it.
    kind: str  #: `critical`: as in equation 2.11; `optimal`: of least loss for given tokens.
    variable: str  #: what it depends on: `tokens`, `flops` or `loss`.
    fitted: tuple[float, float]  #: range of that of the runs that it was fitted to.
    batch: Callable[[float], float]  #: from that to tokens of a batch.


LAWS = {
    law.name: law
    for law in (
        BatchLaw("zhang",
            "Zhang et al. 2024 (arXiv 2410.21676): 22.91 (D / 1e6)^0.47 sequences of 512 tokens cost 20 % more, a "
            "fifth of the critical batch; the factor is unchecked, and agrees with their 93.20 (N / 1e6)^0.47",
            "critical", "tokens", (1.7e9, 2.4e10), lambda tokens: 22.91 * 512.0 / TOLERATED * (tokens / 1e6) ** 0.47),
        BatchLaw("bergsma",
            "Bergsma et al. 2025 (arXiv 2505.13738): B_crit = 0.0471 D^0.462 sequences of 2,048 tokens; the factor and "
            "the range are unchecked",
            "critical", "tokens", (2e9, 1e11), lambda tokens: 0.0471 * 2048.0 * tokens**0.462),
        BatchLaw("kaplan",
            "Kaplan et al. 2020 (arXiv 2001.08361), equation 5.3: 2.1e8 / L^(1 / 0.21); L here by Besiroglu et al., "
            "not of their data",
            "critical", "loss", (2.4, 10.0), lambda loss: 2.1e8 / loss ** (1.0 / 0.21)),
        BatchLaw("bergsma-optimal",
                 "Bergsma et al. 2025: B_opt = 0.0306 D^0.383 sequences of 2,048 tokens; the factor and the range are "
                 "unchecked",
                 "optimal", "tokens", (2e9, 1e11), lambda tokens: 0.0306 * 2048.0 * tokens**0.383),
        BatchLaw("step-law",
                 "Li et al. 2025 (arXiv 2503.04715), Step Law: 0.58 D^0.571; the range is unchecked",
                 "optimal", "tokens", (2e9, 1e11), lambda tokens: 0.58 * tokens**0.571),
        BatchLaw("deepseek",
                 "DeepSeek LLM 2024 (arXiv 2401.02954), equation 1: 0.2920 C^0.3271",
                 "optimal", "flops", (1e17, 2e19), lambda flops: 0.2920 * flops**0.3271),
    )
}  # fmt: skip
"""Laws by name, the one that is taken first."""

REFERENCE = LAWS["zhang"]
"""The law behind answers where nothing was measured: the only one that holds data and size apart, its exponent
confirmed by Bergsma et al. on other data."""


@dataclass(frozen=True)
class BatchAnswer:
    """What a law says of a training."""

    law: str  #: its name
    kind: str  #: `critical`: a batch with which twice the tokens are needed; `optimal`: of least loss for given tokens
    source: str  #: where it is published
    batch_tokens: float  #: the batch [tokens]
    #: how far what it depends on is outside of the range that it was fitted to: over its upper end, or the share of its
    #: lower end; 1 inside
    beyond: float


def batches(parameters: float, tokens: float) -> tuple[BatchAnswer, ...]:
    """Return what every law says of training `parameters` on `tokens`."""
    known = {
        "tokens": tokens,
        "flops": FLOPS_PER_PARAMETER_TOKEN * parameters * tokens,
        "loss": BESIROGLU.loss(parameters, tokens),
    }
    valued = ((law, known[law.variable]) for law in LAWS.values())
    return tuple(
        BatchAnswer(law.name, law.kind, law.source, law.batch(value), beyond(value, law.fitted))
        for law, value in valued
    )


def largest_batch(critical: float) -> float:
    """Return the batch that costs `TOLERATED` more tokens [tokens]."""
    return TOLERATED * critical


def usual_batches(gpus: int, sequence: int, tokens: float) -> tuple[int, ...]:
    """Return the batches [sequences] to try for a training of `tokens`: a usual one, and the largest advisable
    (docs/which-model.md).

    The target of the first is that of `plan`, but at most the second, which costs `TOLERATED` more tokens. Both are the
    odd factor of the GPUs times a power of two, for data parallelism.
    """
    most = largest_batch(REFERENCE.batch(tokens))
    usual = DEFAULT_BATCH_TOKENS * math.sqrt(max(1.0, gpus / 1024)) * math.sqrt(2.0)
    odd = odd_factor(gpus)
    powers = (math.floor(math.log2(max(1.0, target / sequence / odd))) for target in (min(usual, most), most))
    return tuple(dict.fromkeys(odd << power for power in powers))
