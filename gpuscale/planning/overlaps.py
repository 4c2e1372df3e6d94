"""Which communication runs beside computation, as a user says it: `tp+dp`, `none`."""

from __future__ import annotations

from dataclasses import replace

from gpuscale.errors import InputError, nearest
from gpuscale.specs.job import RuntimeSpec

OVERLAPS = ("tp", "dp", "ep")
"""What `--overlap` switches. tp: collectives beside the GEMM next to them (Megatron-LM `--tp-comm-overlap`). dp:
gradients under the backward and parameters under the forward pass (`--overlap-grad-reduce`, `--overlap-param-gather`).
ep: the exchange of one microbatch beside the computation of another (`--overlap-moe-expert-parallel-comm`; it counts
with CUDA graphs only). Pipeline transfers are not among them: interleaving alone hides those."""


def parse_overlap(text: str) -> tuple[str, ...]:
    """Parse `none`, or any of `OVERLAPS` joined by `+`.

    Raises:
        InputError: an unknown part, or one given twice.
    """
    place, parts = "--overlap", [part.strip() for part in text[:100].lower().split("+")]
    if parts == ["none"]:
        return ()
    for part in parts:
        if part not in OVERLAPS:
            close = nearest(part[:40], (*OVERLAPS, "none"), 1)
            hint = f"did you mean {close[0]}? " if close else ""
            message = "none stands alone" if part == "none" else f"unknown part {part[:40]!r}"
            raise InputError(message, place=place, hint=f"{hint}join any of {', '.join(OVERLAPS)} by +, or give none")
        if parts.count(part) > 1:
            raise InputError(f"{part} is given twice", place=place, hint="give each part once")
    return tuple(name for name in OVERLAPS if name in parts)


def with_overlap(runtime: RuntimeSpec, parts: tuple[str, ...]) -> RuntimeSpec:
    """Return a runtime that overlaps these parts and no others."""
    return replace(
        runtime,
        overlap_tp="tp" in parts,
        overlap_grad_reduce="dp" in parts,
        overlap_param_gather="dp" in parts,
        overlap_ep="ep" in parts,
    )


def overlap_of(runtime: RuntimeSpec) -> tuple[str, ...]:
    """Return what a runtime overlaps; dp where both gradients and parameters are hidden."""
    on = {"tp": runtime.overlap_tp, "dp": runtime.overlap_grad_reduce and runtime.overlap_param_gather}
    on["ep"] = runtime.overlap_ep
    return tuple(name for name in OVERLAPS if on[name])


def overlap_name(parts: tuple[str, ...]) -> str:
    """Name a set of overlaps as `parse_overlap` reads it."""
    return "+".join(parts) or "none"
