"""How an answer shows itself: its verdict in a console, its tables in a notebook; both are drawn when asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from importlib import import_module
from typing import Any, TypeVar, cast

Kind = TypeVar("Kind")

_whole: ContextVar[bool] = ContextVar("whole", default=False)
"""Every field is wanted, of answers inside an answer too."""


class WithFields:
    """A result whose fields are its keys in JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(cast(Any, self))


def displayed(kind: type[Kind]) -> type[Kind]:
    """Give a type of answers a `repr` of a line and a table for notebooks; `str` says every field as before."""
    fields: Callable[[Any], str] = kind.__repr__

    def line(self: Any) -> str:
        return fields(self) if _whole.get() else str(_render().line(self))

    def text(self: Any) -> str:
        token = _whole.set(True)
        try:
            return fields(self)
        finally:
            _whole.reset(token)

    for name, method in (("__repr__", line), ("__str__", text), ("_repr_html_", lambda self: _render().fragment(self))):
        setattr(kind, name, method)
    return kind


def _render() -> Any:
    """Return what draws answers: layers above this one, which no answer needs to be made."""
    return import_module("gpuscale.render.answers")
