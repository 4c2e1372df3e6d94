"""Ask one planner about runs: JSON lines of facts in, JSON lines of predictions out.

    PYTHON benchmarks/yardstick/worker.py ADAPTER < facts.jsonl > predictions.jsonl

Runs in the adapter's own environment, so nothing of gpuscale is imported here.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from typing import Any

REFUSED = (ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError)
"""How planners say that they do not know a job."""


def answers(adapter: str, cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a planner says of each case: `step_s`, `mem_gib` and `fits`, as far as it has them, or a `reason`."""
    predict = importlib.import_module(f"adapters.{adapter}").predict
    for case in cases:
        try:
            found = predict(case)
            if not all(0 < found[name] < math.inf for name in ("step_s", "mem_gib") if name in found):
                raise ValueError("answers with no positive number")
        except REFUSED as error:
            found = {"reason": " ".join(str(error).split())[:200] or type(error).__name__}
        yield {"id": case["id"], **found}


if __name__ == "__main__":
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        for one in answers(sys.argv[1], map(json.loads, sys.stdin)):
            print(json.dumps(one), file=out)
