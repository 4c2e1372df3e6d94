"""What `--space full` opens: everything that the framework can run on the cluster and that may pay."""

from __future__ import annotations

from gpuscale.layouts.stages import starts_dense
from gpuscale.planning.overlaps import OVERLAPS, overlap_name, overlap_of
from gpuscale.presets.frameworks import Framework
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.specs.job import AXES
from gpuscale.specs.model import ModelSpec
from gpuscale.steptime.kernels import LOW_PRECISIONS, available_recipes


def full_values(framework: Framework, model: ModelSpec, cluster: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """Return option -> values to try, what the framework does by itself first; options with one value are left out.

    Left out are values that cannot be on this cluster or for this model, and such as never pay in the cost model:
    overlaps switched off, and recipes of a precision beside the framework's own.
    """
    space, runtime = framework.space, framework.runtime
    own = "bf16" if "bf16" in cluster.gpu.peak_flops_per_s else "fp16"
    found = {
        "precision": (own, *(name for name in space.precision if _runs(name, framework, cluster))),
        "offload": ("none", *(space.offload if cluster.host else ())),
        "cp_comm": (runtime.cp_comm, *space.cp_comm),
        "schedule": ("1f1b", *space.schedule),
        "axis_order": ("-".join(AXES), *space.axis_order),
        "pipeline_split": (runtime.pipeline_split, *(space.pipeline_split if starts_dense(model) else ())),
    }
    on = overlap_of(runtime)
    more = tuple(name for name in OVERLAPS if name in {*on, *space.overlap})
    found["overlap"] = (overlap_name(on), overlap_name(more))
    distinct = {name: tuple(dict.fromkeys(values)) for name, values in found.items()}
    return {name: values for name, values in distinct.items() if len(values) > 1}


def _runs(precision: str, framework: Framework, cluster: ClusterSpec) -> bool:
    """Whether the GPU has units for a precision, and for the recipe that comes with it."""
    products, recipe = LOW_PRECISIONS.get(precision, (precision, ""))
    if products not in cluster.gpu.peak_flops_per_s:
        return False
    return precision not in LOW_PRECISIONS or (recipe or framework.runtime.fp8_recipe) in available_recipes(cluster.gpu)


__all__ = ["full_values"]
