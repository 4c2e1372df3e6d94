"""Plan files: a job and one layout as TOML, written by `plan -o` and read by `estimate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuscale.errors import InputError
from gpuscale.layouts.pins import MAX_DEGREE, parse_recompute
from gpuscale.placement.groups import parse_order
from gpuscale.planning.jobs import MAX_BATCH, MAX_SEQUENCE, JobOptions, parse_offload
from gpuscale.planning.overlaps import parse_overlap
from gpuscale.presets.files import read_toml, validate
from gpuscale.presets.hardware import split_pool
from gpuscale.presets.text import write_text
from gpuscale.results import PlanRow

SCHEMA = "gpuscale.planfile/1"
LAYOUT_KEYS = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard", "micro_batch_size", "recompute")

IMPLIED_SCHEDULES = ("none", "1f1b", "interleaved")
"""Schedules that PP and VPP imply; a plan file names the others."""


def _readable(parse: Callable[[str], object]) -> AfterValidator:
    """Hold a text to its parser, whose message and hint become pydantic's."""

    def check(text: str) -> str:
        try:
            parse(text)
        except InputError as error:
            raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None
        return text

    return AfterValidator(check)


_Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _JobTable(_Strict):
    model: Annotated[str, Field(min_length=1, max_length=1000)]
    cluster: Annotated[str, Field(min_length=1, max_length=1000)]
    gpus: _Degree
    seq: Annotated[int, Field(ge=1, le=MAX_SEQUENCE, strict=True)]
    gbs: Annotated[int, Field(ge=1, le=MAX_BATCH, strict=True)]
    framework: Annotated[str, Field(min_length=1, max_length=100)] = "megatron-core"
    precision: Literal["bf16", "fp16", "fp8", "fp8-delayed", "fp8-current", "fp8-blockwise", "mxfp8", "fp4", "nvfp4"]
    optimizer: Literal["adam", "adamw", "lion", "muon", "sgd-momentum", "sgd"] = "adam"
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    master_dtype: Literal["fp32", "bf16", "fp16", "none"] = "fp32"
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    vocab_multiple: Annotated[int, Field(ge=1, le=65536, strict=True)] = 128
    moe_imbalance: Annotated[float, Field(ge=1, le=100)] = 1.0
    memory_limit_gib: Annotated[float, Field(gt=0, le=10_000)] | None = None
    gpus_per_node: _Degree | None = None
    cp_comm: Literal["p2p", "all_gather", "a2a", "a2a+p2p"] | None = None
    offload: Annotated[str, Field(max_length=200), _readable(parse_offload)] | None = None
    axis_order: Annotated[str, Field(max_length=200), _readable(parse_order)] | None = None
    pipeline_split: Literal["even", "tapered", "cost"] | None = None
    overlap: Annotated[str, Field(max_length=100), _readable(parse_overlap)] | None = None


class _LayoutTable(_Strict):
    tp: _Degree = 1
    sp: Annotated[bool, Field(strict=True)] = False
    pp: _Degree = 1
    vpp: _Degree = 1
    cp: _Degree = 1
    ep: _Degree = 1
    etp: _Degree = 1
    dp: _Degree
    zero: Annotated[int, Field(ge=0, le=3, strict=True)] = 0
    shard: _Degree = 1
    micro_batch_size: _Degree = 1
    recompute: Annotated[str, Field(max_length=200), _readable(parse_recompute)] = "none"
    schedule: Literal["gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe"] | None = None


class _PlanFile(_Strict):
    format: Literal["gpuscale.planfile/1"]
    job: _JobTable
    layout: _LayoutTable


def plan_document(job_request: dict[str, Any], plan: PlanRow) -> dict[str, Any]:
    """Return the content of a plan file."""
    values = {**plan.to_dict(), "shard": plan.shard_size}
    layout = {key: values[key] for key in LAYOUT_KEYS}
    if plan.schedule not in IMPLIED_SCHEDULES:
        layout["schedule"] = plan.schedule
    return {"format": SCHEMA, "job": job_request, "layout": layout}


def write_plan_file(path: Path, request: Mapping[str, str | int | float], plan: PlanRow) -> None:
    """Write a plan file whole or not at all; paths of model and cluster become relative to its folder.

    Args:
        request: the options that make the job again (`Job.request`).

    Raises:
        InputError: the file cannot be written.
    """
    paths = {key: _moved(str(request[key]), _from_folder, path.parent) for key in ("model", "cluster")}
    text = tomli_w.dumps(plan_document({**request, **paths}, plan))
    write_text(path, text)


def _moved(name: str, move: Callable[[str, Path], str], folder: Path) -> str:
    """Move the path of a file, `fleet.toml:h100` as the file of its pool."""
    file, pool = split_pool(name)
    return move(file, folder) + (f":{pool}" if pool else "")


def _from_folder(name: str, folder: Path) -> str:
    """Name a file, given from the working directory, from the plan file's folder; preset names stay as they are."""
    if not _is_path(name) or Path(name).is_absolute() or not Path(name).exists():
        return name
    relative = Path(os.path.relpath(name, folder)).as_posix()
    return relative if "/" in relative else f"./{relative}"


def _from_here(name: str, folder: Path) -> str:
    """The reverse: name a file, given from the plan file's folder, from the working directory."""
    return str(folder / name) if _is_path(name) and (folder / name).exists() else name


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.lower().endswith((".toml", ".json"))


def read_plan_file(path: Path) -> tuple[str, int, JobOptions, dict[str, int | str | bool]]:
    """Read a plan file.

    Returns:
        Model, GPUs, job options, and the layout by name.

    Raises:
        InputError: missing, not TOML, or with unknown or unusable entries; the message names file and line.
    """
    content = validate(read_toml(path), _PlanFile)
    job = content.job.model_dump(exclude_none=True)
    model, gpus = _from_here(str(job.pop("model")), path.parent), int(job.pop("gpus"))
    job["cluster"] = _moved(str(job["cluster"]), _from_here, path.parent)
    return model, gpus, JobOptions(**job), content.layout.model_dump(exclude_none=True)  # type: ignore[typeddict-item]


__all__ = ["plan_document", "read_plan_file", "write_plan_file"]
