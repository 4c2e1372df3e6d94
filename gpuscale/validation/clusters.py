"""The cluster of a row: a preset by GPU and fabric, with the row's own measured bandwidth where it gives one."""

from __future__ import annotations

from dataclasses import replace

from gpuscale.collectives import collective_time_s
from gpuscale.errors import InputError
from gpuscale.presets.hardware import load_cluster
from gpuscale.specs.cluster import ClusterSpec
from gpuscale.validation.cells import Row

PROBE_BYTES = 2**30
"""Size of the collective whose bandwidth the `net_*_busbw_gb_per_s` columns state."""

BY_GPU = {
    "v100": "dgx2-v100",
    "v100-sxm-32gb": "dgx2-v100",
    "a100-sxm-40gb": "dgx-a100-superpod",
    "a100-sxm-80gb": "dgx-a100-superpod",
    "a100-pcie-80gb": "box-a100-pcie",
    "h100-sxm-80gb": "dgx-h100-superpod",
    "h100-hbm2e-96gb-500w": "dgx-h100-superpod",
    "h200-sxm-141gb": "h200-hgx",
    "h800-sxm-80gb": "h800-deepseek",
    "gh200": "gh200",
    "gh200-96gb": "gh200",
    "b200-sxm-180gb": "b200-hgx",
    "b200-power-limited": "b200-hgx",
    "b300-sxm-270gb": "b300-hgx",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "mi250x": "mi250x",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
    "tpu-v5p": "tpu-v5p-pod",
    "l40s": "box-l40s-pcie",
}
"""GPU slug -> the cluster assumed when the row's fabric says nothing more."""


def row_cluster(row: Row, gpus: int, assumed: list[str]) -> ClusterSpec:
    """Return the cluster of a row, sized for its GPUs.

    Raises:
        InputError: no preset has such GPUs.
    """
    slug = row.text("gpu")
    name = _by_fabric(slug, row.text("fabric")) or BY_GPU.get(slug)
    if name is None:
        raise InputError(f"no cluster preset has GPUs {slug!r}")
    if not row.text("fabric") and gpus > 8:
        assumed.append(f"cluster {name}")
    cluster = load_cluster(name)
    if cluster.gpu.name != slug and slug.startswith(("h100-hbm2e", "a100-sxm-40")):
        from gpuscale.presets.hardware import load_gpu  # noqa: PLC0415

        cluster = replace(cluster, gpu=load_gpu(slug))
    cluster = cluster.sized_for(gpus)[0]
    busbw = row.number("net_allreduce_busbw_gb_per_s")
    return cluster if busbw is None else calibrated(cluster, gpus, busbw * 1e9)


def _by_fabric(slug: str, fabric: str) -> str | None:
    if "efa" in fabric:
        return {"h100-sxm-80gb": "aws-p5", "a100-sxm-40gb": "aws-p4d", "h200-sxm-141gb": "aws-p5en"}.get(slug)
    return None


def calibrated(cluster: ClusterSpec, gpus: int, busbw_bytes_per_s: float) -> ClusterSpec:
    """Scale the network above the node so that a 1 GiB AllReduce over all GPUs has the measured bus bandwidth.

    Inside one node nothing is scaled. The factor is bounded to 1/100..2: a faster network than the preset's by more
    than 2 contradicts the preset.
    """
    if gpus <= cluster.node_gpus:
        return cluster
    time_s = float(collective_time_s(cluster, "allreduce", PROBE_BYTES, gpus))
    predicted = PROBE_BYTES / time_s * 2 * (gpus - 1) / gpus
    factor = min(max(busbw_bytes_per_s / predicted, 0.01), 2.0)
    levels = [
        replace(
            level,
            link_bytes_per_s=level.link_bytes_per_s * factor,
            switch_bytes_per_s=level.switch_bytes_per_s * factor,
        )
        for level in cluster.levels[1:]
    ]
    return replace(cluster, levels=(cluster.levels[0], *levels))
