"""Scaling laws: the parameters and tokens that use a budget of compute best, and the loss that is to be expected.

C = 6 N D throughout: FLOPs of a training of D tokens with N parameters (Kaplan et al. 2020, section 2.1). Losses are in
nats per token of each paper's own data and tokenizer: they compare choices, not models of different tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

FLOPS_PER_PARAMETER_TOKEN = 6.0
PF_DAY_FLOPS = 1e15 * 86400.0


class LossLaw(NamedTuple):
    """L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, equation 2)."""

    e: float  #: loss of an ideal model on endless data [nats per token]; the others as in the equation.
    a: float
    b: float
    alpha: float
    beta: float
    parameters: tuple[float, float]  #: range of the parameters that it was fitted to.
    tokens: tuple[float, float]  #: range of the tokens.

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss after training `parameters` on `tokens` [nats per token]."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimal(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens of least loss for a budget of compute (equation 4)."""
        both = self.alpha + self.beta
        gain = (self.alpha * self.a / (self.beta * self.b)) ** (1.0 / both)
        product = flops / FLOPS_PER_PARAMETER_TOKEN
        parameters = gain * product ** (self.beta / both)
        return parameters, product / parameters

    def least_flops(self, loss: float) -> float:
        """Least compute that reaches a loss, along the optimum, where both terms fall in the ratio beta : alpha
        [FLOPs].

        Raises:
            ValueError: the loss is not above that of an ideal model.
        """
        if loss <= self.e:
            raise ValueError("no compute reaches this loss")
        both = self.alpha + self.beta
        of_parameters = (loss - self.e) * self.beta / both
        parameters = (self.a / of_parameters) ** (1.0 / self.alpha)
        tokens = (self.b / (loss - self.e - of_parameters)) ** (1.0 / self.beta)
        return FLOPS_PER_PARAMETER_TOKEN * parameters * tokens

    def overtraining(self, parameters: float, tokens: float) -> float:
        """Compute over the least that reaches the same loss: the price of a model that is smaller, or larger."""
        spent = FLOPS_PER_PARAMETER_TOKEN * parameters * tokens
        return spent / self.least_flops(self.loss(parameters, tokens))

    def in_range(self, parameters: float, tokens: float) -> bool:
        """Whether both are within the runs that it was fitted to."""
        asked = zip((parameters, tokens), (self.parameters, self.tokens), strict=True)
        return all(low <= value <= high for value, (low, high) in asked)


class Law(NamedTuple):
    """A rule of how to split a budget of compute."""

    name: str  #: as answers call it.
    source: str  #: paper, table or equation, and how it was looked up.
    flops: tuple[float, float]  #: range of compute of the runs that it was fitted to.
    optimal: Callable[[float], tuple[float, float]]  #: from compute to parameters and tokens.
    loss: LossLaw | None = None  #: where it is a law of the loss.
    outdated: bool = False  #: it is here for comparison alone.


def power_law(factor: float, exponent: float) -> Callable[[float], tuple[float, float]]:
    """Return the rule N = factor x C^exponent, with as many tokens as the compute leaves."""

    def optimal(flops: float) -> tuple[float, float]:
        parameters = factor * flops**exponent
        return parameters, flops / (FLOPS_PER_PARAMETER_TOKEN * parameters)

    return optimal


HOFFMANN = LossLaw(1.6934, 406.4, 410.7, 0.3392, 0.2849, (4.4e7, 1.6e10), (5e9, 5e11))
"""Approach 3; its exponents as the sources of the paper have them: rounded to 0.34 and 0.28 they miss its own table."""

BESIROGLU = LossLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658, (5.7e7, 1.6e10), (2.5e8, 3.2e11))

LAWS = {
    law.name: law
    for law in (
        Law("besiroglu", "Besiroglu et al. 2024 (arXiv 2404.10102), table 1: approach 3 of Hoffmann et al. fitted anew",
            (1.4e18, 1.3e22), BESIROGLU.optimal, BESIROGLU),
        Law("hoffmann-1", "Hoffmann et al. 2022 (arXiv 2203.15556), approach 1: a power law through their table 3",
            (1.4e18, 1.3e22), power_law(0.099159, 0.498099)),
        Law("hoffmann-2", "Hoffmann et al. 2022, approach 2: a power law through their table A3",
            (6e18, 3e21), power_law(0.144877, 0.489942)),
        Law("hoffmann-3", "Hoffmann et al. 2022, approach 3, unrounded; not a fit of its own data (Besiroglu et al.)",
            (1.4e18, 1.3e22), HOFFMANN.optimal, HOFFMANN),
        # M = 0.1715 C^0.5243 FLOPs per token without embeddings, attention included: 6 parameters at most
        Law("deepseek", "DeepSeek LLM 2024 (arXiv 2401.02954), equation 4: parameters as M / 6", (1e17, 3e20),
            lambda flops: (0.1715 * flops**0.5243 / FLOPS_PER_PARAMETER_TOKEN, 5.8316 * flops**0.4757)),
        # D = A C^0.53 through the point that the report names; with its A, rounded to 0.29, D misses it by a third
        Law("llama3", "Llama 3 2024 (arXiv 2407.21783), section 3.2.1: 402B on 16.55T at 3.8e25 FLOPs, exponent 0.53",
            (6e18, 1e22), lambda flops: (402e9 * (flops / 3.8e25)**0.47, 16.55e12 * (flops / 3.8e25)**0.53)),
        # parameters without embeddings, and tokens, of compute at batches far below the critical one
        Law("kaplan", "Kaplan et al. 2020 (arXiv 2001.08361), table 6: superseded by Hoffmann et al.", (1e13, 2e20),
            lambda flops: (1.3e9 * (flops / PF_DAY_FLOPS)**0.73, 2e10 * (flops / PF_DAY_FLOPS)**0.27), outdated=True),
    )
}  # fmt: skip
"""Laws by name, the one that is taken first."""

REFERENCE = LAWS["besiroglu"]
"""The law behind losses and the optimum: the data of Hoffmann et al., fitted so that it agrees with their approaches 1
and 2 and with Chinchilla itself."""


@dataclass(frozen=True)
class Split:
    """What a law makes of a budget of compute."""

    law: str  #: its name
    source: str  #: where it is published
    parameters: float  #: parameters that it calls optimal
    tokens: float  #: tokens that it calls optimal
    tokens_per_parameter: float  #: their ratio
    #: compute over that of the largest runs that it was fitted to, where that is above 1; of compute below the smallest
    #: runs the share of these; 1 inside
    beyond: float
    outdated: bool  #: it is here for comparison alone


def splits(flops: float) -> tuple[Split, ...]:
    """Return what every law makes of a budget of compute [FLOPs]."""
    found = []
    for law in LAWS.values():
        parameters, tokens = law.optimal(flops)
        ratio = tokens / parameters
        found.append(Split(law.name, law.source, parameters, tokens, ratio, beyond(flops, law.flops), law.outdated))
    return tuple(found)


def beyond(value: float, fitted: tuple[float, float]) -> float:
    """Return how far a value is outside a range: over its upper end, or its share of the lower one; 1 inside."""
    low, high = fitted
    return value / high if value > high else value / low if value < low else 1.0
