"""96 B l s h^2 (1 + s/6h + V/16lh) FLOPs with all layers recomputed (Narayanan et al. 2021, arXiv 2104.04473, eq. 3),
72 B l s h^2 (1 + s/6h + V/12lh) without (Korthikanti et al. 2022, arXiv 2205.05198, eq. 7), at 40 % of the GPU's
peak."""

from typing import Any

from adapters.flops_6nd import SHARE


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds per step of a dense transformer with MLPs of 4 x hidden."""
    if case["class"] != "dense":
        raise ValueError(f"a formula of dense models trained whole, not of {case['class']}")
    batch, layers, s, h, vocab = (case[name] for name in ("gbs", "layers", "seq", "hidden", "vocab"))
    in_layers = 24 * batch * layers * s * h**2 * (1 + s / (6 * h))
    flops = in_layers * (3 + case["recomputed_layers"]) + 6 * batch * s * h * vocab
    return {"step_s": flops / (case["gpus"] * case["peak_flops_per_s"] * SHARE)}
