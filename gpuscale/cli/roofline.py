"""`gpuscale roofline`."""

from __future__ import annotations


def command() -> None:
    """Not built yet."""
