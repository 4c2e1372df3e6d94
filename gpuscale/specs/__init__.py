"""Frozen descriptions, in SI units, of what a prediction starts from: GPU, cluster, model and training job."""

from gpuscale.specs.cluster import ClusterSpec, LevelSpec, PoolSpec
from gpuscale.specs.gpu import GpuSpec, KernelSpec
from gpuscale.specs.model import (
    AttentionSpec,
    IndexerSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    StateSpaceSpec,
    mtp_module,
)

__all__ = [
    "AttentionSpec",
    "ClusterSpec",
    "GpuSpec",
    "IndexerSpec",
    "KernelSpec",
    "LatentSpec",
    "LayerSpec",
    "LevelSpec",
    "MlpSpec",
    "ModelSpec",
    "MoeSpec",
    "MtpSpec",
    "PoolSpec",
    "StateSpaceSpec",
    "mtp_module",
]
