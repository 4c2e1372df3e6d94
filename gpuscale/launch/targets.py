"""The frameworks whose launch files are read and written: one entry each."""

from __future__ import annotations

from gpuscale.launch.writing import Target


def targets() -> dict[str, Target]:
    """Return every target by name, in the order in which they are asked whether a source is theirs."""
    from gpuscale.launch import huggingface, megatron_family, nanotron, others, torchtitan  # noqa: PLC0415 - most need none

    found = [*megatron_family.TARGETS, torchtitan.TARGET, nanotron.TARGET, *others.TARGETS, *huggingface.TARGETS]
    return {target.name: target for target in found}
