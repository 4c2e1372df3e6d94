"""How often the first choice changes its family when peaks, bandwidths or memory differ by 1 %.

    python benchmarks/stability.py

Printed: each job whose first choice has another TP, PP, CP, EP or ZeRO stage then, and the shares of all.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from published_jobs import ROOT

from gpuscale.planning.plans import plan
from gpuscale.results import PlanResult

SMALL = ("llama3-8b", "llama2-13b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b")
LARGE = ("llama3-70b", "gpt3-175b", "llama3.1-405b", "qwen3-235b-a22b", "deepseek-v3")
GPUS = {SMALL: (64, 256), LARGE: (512, 2048)}
CLUSTERS = {"dgx-h100-superpod": "h100-sxm-80gb", "dgx-a100-superpod": "a100-sxm-80gb", "gb200-nvl72": "gb200"}

FAMILY = ("tp", "pp", "cp", "ep", "zero")

FACTORS = (0.99, 1.01)
RATES = {"peaks": "peak_(?:bf16|fp16|fp8)_tflops", "hbm": "memory_bandwidth_gb_per_s", "memory": "memory_driver_mib"}
"""What of a GPU is changed -> its keys in a preset."""


def family(found: PlanResult) -> dict[str, int]:
    """What of the first choice should stay."""
    return {name: getattr(found.plans[0], name) for name in FAMILY}


def scaled(preset: str, keys: str, factor: float) -> str:
    """Multiply the values of keys of a preset."""
    pattern = re.compile(rf"^({keys}) = ([\d.]+)$", re.MULTILINE)
    if not pattern.search(preset):
        raise ValueError(f"no {keys} in the preset")
    return pattern.sub(lambda one: f"{one[1]} = {float(one[2]) * factor:g}", preset)


def changes(gpu: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is changed, and the options that change it."""
    preset = (ROOT / "presets" / "gpus" / f"{gpu}.toml").read_text(encoding="utf-8")
    for factor in FACTORS:
        yield f"network x{factor}", {"set": [f"network=x{factor}"]}
        for name, keys in RATES.items():
            path = folder / f"{gpu}-{name}-{factor}.toml"
            path.write_text(scaled(preset, keys, factor), encoding="utf-8")
            yield f"{name} x{factor}", {"set": [f"gpu={path}"]}


def main() -> None:
    """Plan every job, and again under each change."""
    jobs = [(model, cluster, gpus) for kind in GPUS for model, cluster, gpus in product(kind, CLUSTERS, GPUS[kind])]
    tried = same = steady = 0
    with tempfile.TemporaryDirectory() as folder:
        for model, cluster, gpus in jobs:
            usual = plan(model, gpus, cluster=cluster, top=1)
            before, moved = family(usual), []
            for name, options in changes(CLUSTERS[cluster], Path(folder)):
                after = family(plan(model, gpus, cluster=cluster, top=1, **options))
                tried += 1
                same += after == before
                if after != before:
                    apart = [f"{key} {before[key]} -> {after[key]}" for key in FAMILY if before[key] != after[key]]
                    moved.append(f"{name}: {', '.join(apart)}")
            steady += not moved
            if moved:
                print(f"{model} on {gpus} of {cluster}: {'; '.join(moved)}")
    print(f"in its family: {same} of {tried} plans; under every change: {steady} of {len(jobs)} jobs")


if __name__ == "__main__":
    main()
