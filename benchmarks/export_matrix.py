"""Prints which kinds of jobs each target exports and reads back to the same prediction, and why it refuses the others.

python export_matrix.py
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from round_trips import round_trip  # noqa: E402

from gpuscale.errors import GpuscaleError  # noqa: E402
from gpuscale.launch.targets import targets  # noqa: E402
from gpuscale.planning.plans import plan  # noqa: E402
from gpuscale.request import Layout, declared  # noqa: E402

KINDS = {
    "dense": ({"model": "llama3-70b", "gpus": 64}, {}),
    "MoE": ({"model": "qwen3-30b-a3b", "gpus": 64}, {"ep": "2.."}),
    "long context": ({"model": "llama3-8b", "gpus": 64, "seq": 131072}, {"cp": "2.."}),
    "FSDP only": ({"model": "llama3-8b", "gpus": 64}, {"zero": 3, "tp": 1, "pp": 1, "cp": 1}),
    "PP + VPP uneven": ({"model": "llama3.1-405b", "gpus": 1024}, {"pp": 4, "vpp": 4}),
    "ZeRO-3 offload": ({"model": "llama3-70b", "gpus": 64, "offload": "optimizer"}, {"zero": 3, "pp": 1}),
    "fp8": ({"model": "llama3-70b", "gpus": 64, "precision": "fp8"}, {}),
}
"""Kind of job -> its options, and what is pinned of its layout."""


WHOLE = ("torchtitan", "accelerate")
"""Targets that offload parameters and optimizer together."""


def cell(name, framework, options, pins):
    """What a target makes of a kind of job: `same`, or why there is none."""
    if name in WHOLE and "offload" in options:
        options = {**options, "offload": "optimizer+parameters"}
    try:
        best = plan(**options, framework=framework, pins=pins, top=1).estimates[0]
    except GpuscaleError as error:
        return f"no plan: {error.message}"
    stated = {**best.plan.to_dict(), "shard": best.plan.shard_size}
    implied = {"schedule"} if best.plan.schedule in {"none", "1f1b", "interleaved"} else set()
    layout = {key: stated[key] for key in declared(Layout) if key not in implied}
    with tempfile.TemporaryDirectory() as folder:
        differs = round_trip(name, dict(best.job), layout, Path(folder) / "launch")
    return "same" if not differs else f"refused: {differs}" if isinstance(differs, str) else f"DIFFERS: {differs}"


def main():
    """Print the table, then the reasons."""
    written = [one for one in targets().values() if one.write]
    cells = {
        (one.name, kind): cell(one.name, one.frameworks[0], *job) for one in written for kind, job in KINDS.items()
    }
    width = max(len(one.name) for one in written)
    print(" " * width, *(f"{kind:>16}" for kind in KINDS))
    for one in written:
        print(f"{one.name:{width}}", *(f"{cells[one.name, kind].partition(':')[0]:>16}" for kind in KINDS))
    print()
    for (name, kind), said in cells.items():
        if said != "same":
            print(f"{name}, {kind}: {said}")
    other = sum(said != "same" for said in cells.values())
    print(f"{len(cells)} cells, {other} without an export")
    sys.exit(any(said.startswith("DIFFERS") for said in cells.values()))


if __name__ == "__main__":
    main()
