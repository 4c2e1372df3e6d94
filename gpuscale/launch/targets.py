"""The frameworks whose launch files are read and written: one entry each."""

from __future__ import annotations

from gpuscale.launch.settings import Source
from gpuscale.launch.writing import Target


def targets() -> dict[str, Target]:
    """Return every target by name, in the order in which they are asked whether a source is theirs."""
    from gpuscale.launch import (  # noqa: PLC0415 - most need none
        huggingface,
        megatron_family,
        nanotron,
        olmo_core,
        others,
        posttraining,
        tabled,
        torchtitan,
        torchtune,
        xtuner,
    )  # fmt: skip

    found = [
        *tabled.tabled_targets(),
        *megatron_family.TARGETS,
        torchtitan.TARGET,
        nanotron.TARGET,
        olmo_core.TARGET,
        xtuner.TARGET,
        *others.TARGETS,
        *posttraining.TARGETS,
        torchtune.TARGET,
        *huggingface.TARGETS,
    ]
    return {target.name: target for target in found}


IN_PYTHON = ("megatron-bridge", "nemo", "torchtitan", "nanotron", "olmo-core", "xtuner")
"""Targets that read Python files."""


def configured_in(source: Source) -> bool:
    """Whether what a Python file configures is known to a target that reads such."""
    known = targets()
    return any(known[name].claims(source) for name in (*IN_PYTHON, "accelerate"))
