"""What follows from a model's shape alone: parameter counts and FLOPs per token."""

from gpuscale.architecture.flops import (
    CONVENTIONS,
    Convention,
    FlopsPerToken,
    average_keys,
    checked_sequence,
    forward_flops,
    layer_forward_flops,
    mtp_forward_flops,
    training_flops_per_token,
)
from gpuscale.architecture.parameters import LayerParameters, ModelParameters, layer_parameters, parameters

__all__ = [
    "CONVENTIONS",
    "Convention",
    "FlopsPerToken",
    "LayerParameters",
    "ModelParameters",
    "average_keys",
    "checked_sequence",
    "forward_flops",
    "layer_forward_flops",
    "layer_parameters",
    "mtp_forward_flops",
    "parameters",
    "training_flops_per_token",
]
