"""What every planner is told of a measured run: one flat record of numbers, the same for all of them.

What a row of the table does not state is taken as `gpuscale validate` takes it (docs/validation.md), which every record
lists in `assumed`; nothing that was measured is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscale.architecture.parameters import layer_parameters, model_parameters, trained_parameters
from gpuscale.errors import InputError
from gpuscale.validation.measurements import Library, Row, reason_text
from gpuscale.validation.runs import Run, read_run

ADAPTERS = ("lora_rank", "lora_targets", "base_quantization")
"""Columns of which one is filled where adapters are trained."""

Facts = dict[str, Any]


def class_of(row: Row, run: Run | None) -> str:
    """`fine-tuning` where adapters are trained beside frozen weights, else `experts` or `dense`, by the model."""
    if any(row.text(name) for name in ADAPTERS):
        return "fine-tuning"
    experts = run.job.model.is_moe if run else (row.whole("experts") or 0) > 1
    return "experts" if experts else "dense"


def read_runs(rows: Sequence[Row]) -> list[Run | str]:
    """Each row as a job and a layout, or why it is none."""
    library, found = Library(), list[Run | str]()
    for row in rows:
        try:
            found.append(read_run(row, library))
        except InputError as error:
            found.append(reason_text(error))
    return found


def facts_of(row: Row, run: Run) -> Facts:
    """One run as planners are given it: SI units, bytes and counts; degrees as in the columns of the table."""
    job, layout = run.job, run.layout.row(0)
    model, gpu, node = job.model, job.cluster.gpu, job.cluster.node_gpus
    kind = model.kinds[model.pattern[-1]]
    attention, block = kind.attention, kind.moe or kind.mlp
    counted, largest = model_parameters(model), max(layer_parameters(one, model.hidden).total for one in model.kinds)
    levels, moe, whole = job.cluster.levels, kind.moe, bool(run.layout.layers_recomputed[0])
    held = {"q", "k", "v", "o", "up", "down", *(["gate"] if block and block.gated else [])}  # what models of today have
    stages = -(-model.layers // layout["pp"])
    return {
        "id": row.raw("id"), "class": class_of(row, run), "framework": job.runtime.name, "gpu": gpu.name,
        "gpus": job.gpus, "gpus_per_node": min(node, job.gpus),
        "memory_bytes": gpu.memory_bytes, "memory_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "peak_flops_per_s": gpu.peak(job.precision), "peak_16_bit_flops_per_s": gpu.peak(job.attention_precision),
        "node_bytes_per_s": levels[0].link_bytes_per_s, "network_bytes_per_s": levels[-1].link_bytes_per_s,
        "precision": job.precision, "model": row.text("model"), "layers": model.layers, "hidden": model.hidden,
        "heads": attention.heads if attention else 0, "kv_heads": attention.kv_heads if attention else 0,
        "head_dim": attention.head_dim if attention else 0,
        "latent_attention": bool(attention and attention.latent), "ffn": block.ffn if block else 0,
        "gated": bool(block and block.gated), "vocab": model.vocab, "tied_embeddings": model.tied_embeddings,
        "experts": moe.experts if moe else 0, "topk": moe.top_k if moe else 0,
        "shared_ffn": moe.shared_ffn if moe else 0, "parameters": counted.total, "active_parameters": counted.active,
        "parameters_of_rank": (counted.total - counted.experts) / (layout["tp"] * layout["pp"])
        + counted.experts / (layout["pp"] * layout["ep"] * layout["etp"]),
        "largest_layer_parameters": max(largest, counted.embedding),
        "trained_parameters": trained_parameters(model, job.tuning), "lora_rank": job.tuning.rank if job.tuning else 0,
        "lora_targets": sorted(f"{name}_proj" for name in job.tuning.targets & held) if job.tuning else [],
        "base_dtype": job.tuning.base if job.tuning else "",
        "base_bytes": job.tuning.base_bytes if job.tuning else 0.0, "seq": job.sequence, "gbs": job.global_batch_size,
        "mbs": layout["micro_batch_size"], "microbatches": layout["num_microbatches"],
        **{name: layout[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard")},
        "sp": bool(layout["sp"]), "fused_attention": job.attention != "unfused",
        "recomputed_layers": min(layout["recompute_layers"], stages) / stages if whole else 0.0,
        "recomputes_modules": bool(layout["recompute_modules"]), "offload": job.offload.any,
        "assumed": list(run.assumed),
    }  # fmt: skip
