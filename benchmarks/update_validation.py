"""Bring everything that follows from our table of published runs up to date with the model.

    python benchmarks/update_validation.py                  # refuses when the figures get worse
    python benchmarks/update_validation.py --accept-worse   # writes all the same: say why in the commit

Written: presets/known/residuals.csv (from which intervals are made) and the tables between the markers in
docs/validation.md and README.md. tests/data/published_runs.csv is the input; it is edited by hand.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuscale.uncertainty import DIGITS, TYPES, Residual, evidence, family_of, read_residuals, residuals_file
from gpuscale.validation.measurements import FILES, Column, Row, read_measurements
from gpuscale.validation.runs import Prediction, predict_runs
from gpuscale.validation.scores import Figures, balanced, figures, grouped

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "data" / "published_runs.csv"
PAGES = (ROOT / "docs" / "validation.md", ROOT / "README.md")

FAMILIES = {
    "automodellora": "NVIDIA NeMo AutoModel, LoRA",
    "aws": "AWS samples, torchtitan",
    "bloom": "BigScience BLOOM, Megatron-DeepSpeed",
    "dgxc": "NVIDIA DGX Cloud recipes 24.11-25.05, NeMo",
    "fmsacc": "fms-acceleration, LoRA and QLoRA",
    "fsdpqlora": "Answer.AI, QLoRA under FSDP",
    "hf": "Ultra-Scale Playbook, nanotron",
    "korthikanti22": "Korthikanti et al. 2022, Megatron-LM",
    "mcoremoe": "Megatron-Core MoE paper",
    "mleng": "Machine Learning Engineering, DeepSpeed",
    "mosaic": "MosaicML llm-foundry, MPT",
    "nvidia-automodel": "NVIDIA NeMo AutoModel",
    "nvidia-dgxc": "NVIDIA DGX Cloud recipes 25.02-26.02",
    "nvidia-mb": "NVIDIA Megatron-Bridge summaries",
    "nvidia-mbcard": "NVIDIA Megatron-Bridge model cards",
    "nvidia-mlm": "NVIDIA Megatron-LM READMEs",
    "nvidia-nemo": "NVIDIA NeMo performance summaries",
    "nvidia-nfl": "NVIDIA NeMo Framework Launcher",
    "primerlrl": "prime-rl's trainer, LoRA",
    "qwen1": "Qwen 1, LoRA and QLoRA",
    "simumax": "SimuMax, Megatron-LM on one node",
    "torchao": "PyTorch torchao float8",
    "tt": "PyTorch torchtitan",
    "uci": "Rapid-LLM, own training loop",
    "vtrain": "vTrain, Megatron-DeepSpeed GPT",
    "zerobubble": "Zero Bubble paper, Megatron-LM",
}
"""Family of rows -> what it is."""


def compute_residuals(path: Path) -> tuple[Residual, ...]:
    """Predict every run of a table; runs that cannot be predicted are left out.

    Raises:
        InputError: the table cannot be used.
    """
    _, rows = read_measurements(path)
    found = []
    for row, prediction in zip(rows, predict_runs(rows), strict=True):
        if isinstance(prediction, Prediction):
            step_s, mem_gib = row.number("step_s"), row.number("mem_gib")
            log_ratio = None if step_s is None else math.log(step_s / prediction.step_s)
            mem_ratio = None if mem_gib is None else mem_gib / prediction.memory_gib
            job = prediction.run.job
            rate = None if step_s is None else job.tokens_per_step / job.gpus / step_s
            name = run_name(row, prediction)
            found.append(Residual(row.raw("id"), name, rate, prediction.features, log_ratio, mem_ratio))
    return tuple(found)


def run_name(row: Row, prediction: Prediction) -> str:
    """Say in words what a run was: model, GPUs, layout, software."""
    job, layout = prediction.run.job, prediction.run.layout.row(0)
    degrees = [f"{name.upper()}{layout[name]}" for name in ("tp", "pp", "vpp", "cp", "ep") if layout[name] > 1]
    degrees += [f"ZeRO-{layout['zero']}"] if layout["zero"] > 1 or not degrees else []
    software = " ".join(text for text in (row.text("framework"), row.text("source_date")[:7]) if text)
    gpu = job.cluster.gpu.title.partition(" (")[0].removeprefix(f"{job.cluster.gpu.vendor} ")
    return f"{row.text('model')}, {job.gpus:,} {gpu}, {' '.join(degrees)}, {software}"


def write_residuals(residuals: Sequence[Residual], path: Path | None = None) -> None:
    """Write residuals as CSV, numbers with four digits behind the point."""
    with (path or residuals_file()).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "name", "tokens_per_s_per_gpu", "log_ratio", "mem_ratio", *TYPES])
        for one in residuals:
            own = [one.id, one.name, one.tokens_per_s_per_gpu, one.log_ratio, one.mem_ratio]
            values = [*own, *(getattr(one.features, name) for name in TYPES)]
            writer.writerow([_text(value) for value in values])


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{DIGITS}f}" if isinstance(value, float) else value or ""


def balanced_figures(residuals: Sequence[Residual]) -> dict[str, float]:
    """Family-balanced median and 90th percentile of the errors of step time and memory, and the number of each."""
    step = [(family_of(one.id), math.exp(-one.log_ratio) - 1) for one in residuals if one.log_ratio is not None]
    memory = [(family_of(one.id), 1 / one.mem_ratio - 1) for one in residuals if one.mem_ratio]
    found: dict[str, float] = {"step_rows": len(step), "mem_rows": len(memory)}
    for name, errors in (("step", step), ("mem", memory)):
        means = balanced(grouped(errors))
        found |= {f"{name}_{key}": means[key] or 0.0 for key in ("median_abs", "p90_abs")}
    return found


SLACK = {"step_median_abs": 0.01, "step_p90_abs": 0.04, "mem_median_abs": 0.01, "mem_p90_abs": 0.04}
"""By how much a figure may be worse than on file before it counts as worse."""


def worsened(now: Sequence[Residual], before: Sequence[Residual]) -> list[str]:
    """What is worse now than on file, one line each: figures beyond `SLACK`, or fewer runs predicted."""
    new, old = balanced_figures(now), balanced_figures(before)
    lines = [
        f"{name}: {100 * new[name]:.1f} %, was {100 * old[name]:.1f} % (slack {100 * slack:.0f})"
        for name, slack in SLACK.items()
        if new[name] > old[name] + slack
    ]
    fewer = [name for name in ("step_rows", "mem_rows") if new[name] < old[name]]
    return lines + [f"{name}: {new[name]:.0f}, was {old[name]:.0f}" for name in fewer]


def error_table(residuals: Sequence[Residual]) -> str:
    """Markdown: errors of step time and memory by family, from the residuals on file."""
    runs: dict[str, list[dict[str, str]]] = defaultdict(list)
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            runs[family_of(row["id"])].append(row)
    lines = [
        "| published runs | GPUs | rows | median | p90 | bias | memory rows | median | p90 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in sorted(runs, key=lambda name: (-len(runs[name]), name)):
        mine = [one for one in residuals if family_of(one.id) == family]
        step = figures([math.exp(-one.log_ratio) - 1 for one in mine if one.log_ratio is not None])
        memory = figures([1 / one.mem_ratio - 1 for one in mine if one.mem_ratio is not None])
        gpus = ", ".join(sorted({row["gpu"].split("-")[0].upper() for row in runs[family]}))
        cells = [FAMILIES[family], gpus, str(step["predicted"]), *_percents(step, signed=True)]
        cells += [str(memory["predicted"] or ""), *_percents(memory, signed=False)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percents(numbers: Figures, *, signed: bool) -> list[str]:
    shown = ["" if value is None else f"{100 * value:.1f} %" for value in (numbers["median_abs"], numbers["p90_abs"])]
    if signed:
        shown.append("" if numbers["bias"] is None else f"{100 * numbers['bias']:+.1f} %")
    return shown


def summary(residuals: Sequence[Residual]) -> str:
    """Markdown: the figures of all families in two sentences."""
    numbers = balanced_figures(residuals)
    step, step_p90, memory, memory_p90 = (
        f"{100 * numbers[name]:.1f} %" for name in ("step_median_abs", "step_p90_abs", "mem_median_abs", "mem_p90_abs")
    )
    inside, half = interval_figures(residuals)
    kinds = []
    for kind, moe in (("dense models", False), ("mixtures of experts", True)):
        own = balanced_figures([one for one in residuals if one.features.moe == moe])
        figure, tail = 100 * own["step_median_abs"], 100 * own["step_p90_abs"]
        kinds.append(f"{kind} ({own['step_rows']:.0f} runs) by {figure:.1f} % and {tail:.1f} %")
    text = (
        f"On {numbers['step_rows']:.0f} published runs, most of them from sources to which constants were fitted, the "
        f"step time is off by {step} (median) and {step_p90} (90th percentile), balanced over families: "
        f"{kinds[0]}, {kinds[1]}. Peak memory is off, on {numbers['mem_rows']:.0f} runs, by {memory} and "
        f"{memory_p90}. Of the measurements {100 * inside:.0f} % lie inside the 80 % interval made without their own "
        f"family; half of the intervals are narrower than "
        f"+-{100 * half:.0f} %."
    )
    return "\n".join(textwrap.wrap(text, 125))


def interval_figures(residuals: Sequence[Residual]) -> tuple[float, float]:
    """Share of the table inside its cross-validated intervals, and the median half-width."""
    known = [one for one in residuals if one.log_ratio is not None]
    ranges = evidence([one.features for one in known], cross_validate=True)
    inside = [
        math.log(one.low) <= (known_one.log_ratio or 0.0) <= math.log(one.high)
        for one, known_one in zip(ranges, known, strict=True)
    ]
    return statistics.mean(inside), statistics.median((one.high - one.low) / 2 for one in ranges)


COLUMNS = tomllib.loads((ROOT / "docs" / "columns.toml").read_text(encoding="utf-8"))
"""Kind of file -> column -> what it means, and what an empty cell does; recipes have the columns of runs too."""


def column_table(kind: str, columns: Mapping[str, Column]) -> str:
    """Markdown: the columns of one kind of file, as they are declared and described."""
    if strange := COLUMNS[kind].keys() - columns.keys():
        raise KeyError(f"no file of {kind} has {strange}")
    texts = (COLUMNS["runs"] if kind == "recipes" else {}) | COLUMNS[kind]
    lines = ["| column | type | meaning | default |", "|---|---|---|---|"]
    for name, column in columns.items():
        holds = ", ".join(f"`{word}`" for word in column.kind) if isinstance(column.kind, tuple) else column.kind
        holds = "whole number" if holds == "whole" else holds
        meaning, *default = texts[name]
        default = "required" if column.required else default[0] if default else "-"
        lines.append(f"| `{name}` | {holds} | {meaning} | {default} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[Sequence[Residual]], str]] = {
    "errors": error_table,
    "summary": summary,
    **{
        f"columns of {kind}": lambda _, kind=kind, columns=columns: column_table(kind, columns)
        for kind, columns in FILES.items()
    },
}
"""Marker in the pages -> what stands between it and its end."""


def updated(text: str, residuals: Sequence[Residual]) -> str:
    """A page with what follows from our table made anew."""
    return replaced(text, {name: make(residuals) for name, make in PARTS.items()})


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """A page with other text between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, part in parts.items():
        pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)"
        text = re.sub(pattern, lambda _, part=part: f"{part}\n", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main() -> None:
    """Compute, compare with what is on file, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--accept-worse", action="store_true", help="write even if the figures are worse than on file")
    arguments = parser.parse_args()
    now = compute_residuals(TABLE)
    worse = worsened(now, read_residuals())
    if worse and not arguments.accept_worse:
        sys.exit("worse than on file, nothing is written:\n" + "\n".join(f"  {line}" for line in worse))
    write_residuals(now)
    read_residuals.cache_clear()
    on_file = read_residuals()
    for page in PAGES:
        if page.exists():
            page.write_text(updated(page.read_text(encoding="utf-8"), on_file), encoding="utf-8")
    print(summary(on_file))


if __name__ == "__main__":
    main()
