"""Measured kernels (GEMMs, grouped GEMMs, fused attention) and collectives, each predicted as it was measured
(docs/kernels.md).

FLOPs are counted as 2 m n k (GEMM), as the masked half (`seq`, AIConfigurator) or the full square (`seq_len`, SimuMax)
of causal attention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.collectives.channels import knows_channels
from gpuscale.collectives.estimate import LARGE_BYTES, SMALL_BYTES
from gpuscale.collectives.groups import place as groups_on
from gpuscale.collectives.ideal import operation_named
from gpuscale.collectives.nccl import taken_s, timings
from gpuscale.collectives.nccl_constants import NEWEST, Tuning, parse_version
from gpuscale.collectives.network import network_of
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_gpu
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.steptime.kernels import attention_time_s, gemm_time_s, stream_time_s
from gpuscale.validation.measurements import COLLECTIVES, KERNELS, Library, Row, batched, named_cluster, reason_text

PRESET_OF = {
    "b200-sxm-180gb": "b200", "b300-sxm-270gb": "b300", "h100-sxm": "h100-sxm-80gb", "gh200-sxm": "gh200-144gb",
    "v100-sxm2": "v100-sxm-32gb",
}  # fmt: skip
"""GPU as measurement files call it -> name of the preset, where they differ."""

PRECISION_OF = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8",
    "nvfp4": "fp4", "fp4": "fp4", "tf32": "tf32", "fp32": "fp32",
}  # fmt: skip

BENCHMARKS = {"aic": "short", "simumax": "sustained", "mamf": "best-shape"}
"""Beginning of a row's id -> its benchmark: short runs see no power limit. Others are taken as sustained."""

QUANTISE = {
    ("ada", "fp8"): (2.5, 3e-6), ("hopper", "fp8"): (7.5, 9e-6), ("blackwell", "fp8"): (8.0, 13e-6),
    ("blackwell", "fp4"): (4.9, 6.4e-6), ("blackwell-ultra", "fp8"): (8.0, 12e-6),
    ("blackwell-ultra", "fp4"): (4.2, 11e-6), ("blackwell-rtx", "fp8"): (3.0, 7.3e-6),
    ("blackwell-rtx", "fp4"): (2.0, 1e-6),
}  # fmt: skip
"""What AIConfigurator's rows contain beside the GEMM: kernels that quantise m x k activations, as bytes moved per
element and a fixed time [s]. Fitted along; the step-time model counts casts as streams."""


class Kernels(NamedTuple):
    """Measured kernels of one GPU, kind, precision and benchmark as arrays; `columns` depend on the kind."""

    gpu: str
    kind: str
    precision: str
    benchmark: str
    columns: Mapping[str, FloatArray]
    measured_s: FloatArray
    members: tuple[int, ...]  #: index of each kernel among the rows of the file.


def group_kernels(rows: Sequence[Row]) -> tuple[list[Kernels], dict[int, str]]:
    """Group rows by GPU, kind, precision and benchmark; rows that cannot be predicted are told by index, with why."""
    library = Library()
    batches, refused = batched(rows, lambda row: _kernel(row, library))
    found = []
    for key, records in sorted(batches.items()):
        columns = {name: np.array([sizes[name] for _, sizes in records]) for name in records[0][1]}
        found.append(Kernels(*key, columns, columns["measured_s"], tuple(index for index, _ in records)))
    return found, refused


def _kernel(row: Row, library: Library) -> tuple[tuple[str, str, str, str], dict[str, float]]:
    row.check(KERNELS)
    kind, slug = row.text("kind"), row.text("gpu")
    if kind not in {"gemm", "attention"}:
        raise InputError(f"kind {kind[:40]!r} is not predicted: only gemm and attention have shapes")
    gpu: GpuSpec | None = library.find("gpus", PRESET_OF.get(slug, slug))
    if gpu is None:
        raise InputError(f"no GPU preset is called {slug[:60]!r}" if slug else "the GPU is not stated")
    precision = PRECISION_OF.get(row.text("dtype"))
    if precision is None or (precision not in gpu.peak_flops_per_s and precision not in {"bf16", "fp16"}):
        raise InputError(f"{gpu.title} has no {row.raw('dtype')[:20] or 'stated'} precision")
    extra = dict(part.strip().split("=", 1) for part in row.raw("extra").split(";") if "=" in part)
    columns, flops = _gemm(row, extra) if kind == "gemm" else _attention(row, extra)
    time_us, tflops = row.number("time_us"), row.number("tflops")
    if time_us is None and tflops is None:
        raise InputError("neither TFLOP/s nor time is stated")
    columns["measured_s"] = flops / tflops / 1e12 if time_us is None and tflops else (time_us or 0.0) * 1e-6
    benchmark = row.text("benchmark") or BENCHMARKS.get(row.raw("id").split("-")[0], "sustained")
    benchmark += "-grouped" if benchmark == "sustained" and "ng" in extra else ""
    benchmark += "-bwd" if columns.get("backward") else ""
    return (gpu.name, kind, precision, benchmark), columns


def _sizes(row: Row, **texts: str | None) -> dict[str, float]:
    found = {}
    for name, text in texts.items():
        try:
            found[name] = float(text or "")
        except ValueError:
            raise InputError(f"the row states no {name}") from None
        if not 1 <= found[name] <= 2**40:
            raise InputError(f"{name} is out of range", place=row.place)
    return found


def _gemm(row: Row, extra: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """For a weight gradient of grouped experts the tokens are the inner size."""
    sizes = _sizes(row, m=row.raw("m"), n=row.raw("n"), k=row.raw("k"), groups=extra.get("ng", "1"))
    m, n, k, groups = sizes.values()
    accumulate = extra.get("accumulate") == "True"
    wide = accumulate and (extra.get("out") == "fp32" or extra.get("main_grad") == "fp32")
    order = (n, k, m) if accumulate and "ng" in extra else (m, n, k)
    columns = dict(zip("mnk", order, strict=True)) | {"groups": groups, "output_bytes": 8.0 if wide else 2.0}
    return columns, 2.0 * m * n * k * groups


def _attention(row: Row, extra: Mapping[str, str]) -> tuple[dict[str, float], float]:
    heads, qk_dim = extra.get("heads") or extra.get("head_num"), extra.get("head_dim") or extra.get("qk_head_dim")
    sizes = _sizes(
        row,
        sequences=extra.get("batch", "1"),
        tokens=extra.get("seq") or extra.get("seq_len"),
        heads=heads,
        qk_dim=qk_dim,
        kv_heads=extra.get("kv_heads") or extra.get("kv_head_num") or heads,
        v_dim=extra.get("v_head_dim") or qk_dim,
    )
    backward = "bwd" in row.raw("extra")
    full_flops = 2.0 * sizes["sequences"] * sizes["heads"] * sizes["tokens"] ** 2 * (sizes["qk_dim"] + sizes["v_dim"])
    counted = full_flops * (2.5 if backward else 1.0) if "seq_len" in extra else full_flops / 2
    return sizes | {"backward": float(backward)}, counted


IN_TRAINING = 0.88
"""Speed of GEMMs in training / that of the same GEMMs back to back (docs/kernels.md, sustained clocks)."""


def predict_s(gpu: GpuSpec, kernels: Kernels, quantise: Mapping[str, float] | None = None) -> FloatArray:
    """Predict each kernel under the conditions of its benchmark: short runs see no power limit, GEMMs back to back less
    of it than a training step. `quantise`: `quantise_bytes.<precision>` and `quantise_s.<precision>` in place of
    `QUANTISE`."""
    clock, narrow = gpu.kernels.sustained_clock_fraction, gpu.kernels.sustained_16bit_fraction
    if kernels.benchmark.startswith(("short", "best-shape")):
        clock, narrow = 1.0, None
    elif kernels.kind == "gemm":  # the clocks of GEMMs back to back
        clock, narrow = min(clock / IN_TRAINING, 1.0), None if narrow is None else min(narrow / IN_TRAINING, 1.0)
    gpu = replace(gpu, kernels=replace(gpu.kernels, sustained_clock_fraction=clock, sustained_16bit_fraction=narrow))
    c = kernels.columns
    if kernels.kind == "gemm":
        gemm_s = gemm_time_s(gpu, kernels.precision, c["m"], c["n"], c["k"], c["groups"], c["output_bytes"])
        if kernels.benchmark != "short":
            return gemm_s
        default_bytes, default_s = QUANTISE.get((gpu.architecture, kernels.precision), (0.0, 0.0))
        moved = (quantise or {}).get(f"quantise_bytes.{kernels.precision}", default_bytes)
        fixed_s = (quantise or {}).get(f"quantise_s.{kernels.precision}", default_s)
        return gemm_s + (stream_time_s(gpu, moved * c["m"] * c["k"], 0) + fixed_s)
    attention_s = attention_time_s(
        gpu, kernels.precision, c["sequences"], c["heads"], c["tokens"], c["tokens"] / 2, c["qk_dim"], c["v_dim"],
        bool(c["backward"].any()),
    )  # fmt: skip
    if kernels.benchmark != "short":
        return attention_s
    # AIConfigurator's kernel also reads and writes queries, keys and values once: rotary embedding, KV cache.
    cached = 2 * 2 * c["qk_dim"] * c["sequences"] * c["tokens"] * (c["heads"] + 2 * c["kv_heads"])
    return attention_s + stream_time_s(gpu, cached)


def predict_kernels(rows: Sequence[Row]) -> list[tuple[float, float] | str]:
    """(measured, predicted) seconds of every row, or why there is no prediction."""
    groups, refused = group_kernels(rows)
    found: dict[int, tuple[float, float] | str] = {**refused}
    for group in groups:
        predicted_s = predict_s(load_gpu(group.gpu), group)
        found |= zip(group.members, zip(group.measured_s.tolist(), predicted_s.tolist(), strict=True), strict=True)
    return [found[index] for index in range(len(rows))]


NOT_MODELLED = {"gb200": "partitions"}
"""GPU slug -> what fabrics say that no preset stands for: racks cut into parts."""

ASKED = (
    (("collnet",), ("SHARP",)),
    (("nccl_algo=ring", "ring+ll128 forced", "nccl_nvls_enable=0"), ("ring",)),
    (("nccl_algo=tree",), ("tree",)),
    (("nccl_algo=nvlstree", "nccl_algo=nvls/nvlstree"), ("NVLS tree", "NVLS")),
    (("nccl_algo=nvls",), ("NVLS",)),
    (("nvls off", "nvls/sharp off"), ("ring", "tree")),
)
"""Words in the column `sharp_or_nvls`, algorithms that NCCL was left with; the first that fits."""

SHARP_ON = re.compile(r"collnet|^(?!.*\boff\b)(nvls *\+ *)?sharp\b")
"""What the same column says where switches between nodes added up."""

SIZE_CLASSES = (("< 64 KiB", SMALL_BYTES), ("64 KiB - 64 MiB", LARGE_BYTES), (">= 64 MiB", float("inf")))
"""Name and upper end of each class of sizes."""

Run = tuple[str, int, int, tuple[str, ...], Tuning]
"""One run of a benchmark at several sizes: operation, GPUs, GPUs from one member of the group to the next, the
algorithms that NCCL was left with (none for all), and how NCCL was run."""


def predict_collectives(rows: Sequence[Row]) -> list[tuple[float, float] | str]:
    """(measured, predicted) seconds of every row, or why there is no prediction."""
    library = Library()  # where one object stands for equal clusters, and is the key

    def read(row: Row) -> tuple[tuple[int, Run], tuple[ClusterSpec, float, float]]:
        cluster, run, size, measured_s = _collective(row, library)
        return (id(cluster), run), (cluster, size, measured_s)

    batches, refused = batched(rows, read)
    found: dict[int, tuple[float, float] | str] = {**refused}
    for (_, run), members in batches.items():
        operation, gpus, distance, algorithms, tuning = run
        data = np.array([size for _, (_, size, _) in members], dtype=np.float64)
        try:
            wide = members[0][1][0].sized_for(gpus * distance)[0]
            times = collective_time_s(wide, operation, data, gpus, distance, tuning=tuning)
            if algorithms:
                groups = groups_on(wide, np.full(data.size, gpus), distance)
                every = timings(network_of(wide, groups, tuning=tuning), operation, data)
                left = [one for one in every if one.algorithm in algorithms]
                forced = taken_s(left) if left else times
                times = np.where(np.isfinite(forced), np.maximum(forced, times), times)
        except InputError as error:
            found |= dict.fromkeys((index for index, _ in members), reason_text(error))
        else:
            found |= {index: (one[2], value) for (index, one), value in zip(members, times.tolist(), strict=True)}
    return [found[index] for index in range(len(rows))]


def located(row: Row) -> tuple[ClusterSpec, str, int, float, float]:
    """Cluster, operation, GPUs, bytes and measured seconds of one row.

    Raises:
        InputError: no prediction is possible, and why.
    """
    cluster, (operation, gpus, *_), size, measured_s = _collective(row, Library())
    return cluster, operation, gpus, size, measured_s


def _collective(row: Row, library: Library) -> tuple[ClusterSpec, Run, float, float]:
    """Cluster, run, bytes and measured seconds of one row."""
    row.check(COLLECTIVES)
    operation, algorithms = operation_named(row.text("collective")), row.text("sharp_or_nvls")
    if "not nccl" in algorithms or "custom" in algorithms:
        raise InputError("a custom kernel, not NCCL")
    size, time_us, gpus = row.number("bytes"), row.number("time_us"), row.whole("gpus")
    missing = [name for name, value in (("bytes", size), ("time_us", time_us), ("gpus", gpus)) if not value]
    if missing or size is None or time_us is None or gpus is None:
        raise InputError(f"the row does not state {', '.join(missing)}")
    if gpus < 2:
        raise InputError("one GPU exchanges nothing")
    slug, fabric, per_node = row.text("gpu"), row.text("fabric"), row.whole("gpus_per_node")
    sharp = SHARP_ON.search(algorithms) is not None
    if slug in NOT_MODELLED and NOT_MODELLED[slug] in fabric:
        raise InputError(f"no cluster preset stands for {slug} with {fabric[:60]}")
    key = row.text("cluster"), slug, fabric, per_node, sharp
    cluster = library.once(key, lambda: replace(named_cluster(row, library), sharp=sharp))
    host = cluster.host_gpus  # of a rack: a tray, whose neighbours are the next
    lent = min(per_node or host, host)
    distance = host // lent if gpus > lent else 1  # more than 1 where a node lends fewer GPUs than it has
    left = next((left for words, left in ASKED if any(word in algorithms for word in words)), ())
    version, channels = row.text("nccl"), row.whole("channels") if knows_channels(cluster) else None
    tuning = Tuning(channels, parse_version(version) if version else NEWEST, row.text("launch") or "processes")
    return cluster, (operation, gpus, distance, left, tuning), size, time_us * 1e-6


def size_class(row: Row) -> str:
    """Name of the class that the row's size falls in."""
    try:
        size = row.number("bytes")
    except InputError:
        size = None
    return "not stated" if size is None else next(name for name, end in SIZE_CLASSES if size < end)
