"""Addresses of the page of the docs that shows answers in JSON, with an answer packed into them."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

PAGE = "https://gpuscale.github.io/gpuscale/latest/open.html"
"""Where the docs of the newest release have the page: each release has a folder (.github/workflows/release.yml)."""

MOST_CHARACTERS = 2000
"""Of an address: what mail and chat leave whole."""

KEPT = (
    "rank", "tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "sharding", "shard_size", "micro_batch_size",
    "recompute", "step_time_s", "step_time_low_s", "step_time_high_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu",
    "memory_gib", "memory_limit_gib", "fit_probability", "bound_by", "bound_fraction", "exposed_comm_fraction",
    "bubble_fraction", "nearest_run_name", "unmeasured",
)  # fmt: skip
"""Keys of a plan that the page reads."""

DIGITS = 6
"""Digits of its numbers: more than a page shows, so that none is rounded twice."""


def link(schema: str, answer: Mapping[str, Any]) -> str:
    """Return the page's address with an answer's JSON in it: as many plans as `MOST_CHARACTERS` hold."""
    same = {"schema": schema, **{name: answer[name] for name in ("model", "cluster", "gpus", "job")}}
    if "plan" in answer:
        return _address({**same, "plan": _kept(answer["plan"])})
    plans = [_kept(one) for one in answer["plans"]]
    for kept, plan in zip(plans, answer["plans"], strict=True):
        if "variant" in plan:  # of several jobs
            kept["choice"] = answer["variants"][plan["variant"]]["choice"]
    links = (_address({**same, "plans": plans[:count]}) for count in range(len(plans), 0, -1))
    return next((one for one in links if len(one) <= MOST_CHARACTERS), _address({**same, "plans": plans[:1]}))


def _kept(plan: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: plan[name] for name in KEPT}
    return {name: float(f"{one:.{DIGITS}g}") if isinstance(one, float) else one for name, one in kept.items()}


def _address(answer: Mapping[str, Any]) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(json.dumps(answer, separators=(",", ":")).encode()) + packer.flush()
    return f"{PAGE}#{urlsafe_b64encode(packed).decode()}"
