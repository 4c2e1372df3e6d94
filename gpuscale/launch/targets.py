"""The frameworks whose launch files are read and written: one entry each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpuscale.launch.settings import Reading, Source
from gpuscale.launch.writing import Program, Writing


class Target(NamedTuple):
    """A framework and its launch files.

    Attributes:
        name: as users give it.
        title: name for people.
        basis: the release or commit whose options are written, with its date.
        frameworks: presets of frameworks whose plans it runs; the first is taken where none is given.
        write: makes the program of a plan; None for what is only read.
        claims: whether a source is one of this framework's.
        read: reads the sources that are claimed.
    """

    name: str
    title: str
    basis: str
    frameworks: tuple[str, ...]
    write: Callable[[Writing], Program] | None
    claims: Callable[[Source], bool]
    read: Callable[[Reading], None]


def targets() -> dict[str, Target]:
    """Return every target by name, in the order in which they are asked whether a source is theirs."""
    from gpuscale.launch import huggingface, megatron_family, nanotron, others, torchtitan  # noqa: PLC0415 - most need none

    found = [*megatron_family.TARGETS, torchtitan.TARGET, nanotron.TARGET, *others.TARGETS, *huggingface.TARGETS]
    return {target.name: target for target in found}
