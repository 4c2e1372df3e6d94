"""6 FLOPs per active parameter and token (Kaplan et al. 2020, arXiv 2001.08361, table 1), 4 of frozen ones, at 40 % of
the GPU's peak."""

from typing import Any

SHARE = 0.4
"""Of the dense peak in the precision of the run: what planning by hand takes for the MFU of a good run."""


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds per step; frozen weights need no gradient of their own: four FLOPs instead of six."""
    trained = case["trained_parameters"] if case["class"] == "fine-tuning" else case["active_parameters"]
    per_token = 4 * case["active_parameters"] + 2 * trained
    flops = per_token * case["gbs"] * case["seq"]
    return {"step_s": flops / (case["gpus"] * case["peak_flops_per_s"] * SHARE)}
