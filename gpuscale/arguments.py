"""Arguments of the Python functions: what a notebook has at hand is accepted, anything else refused by its name."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from gpuscale.errors import InputError, shown

Function = TypeVar("Function", bound=Callable[..., Any])

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}


class _OtherError(Exception):
    """A value is not what an annotation says."""


def public(function: Function) -> Function:
    """Make a function take NumPy's numbers and arrays, and paths as text or `Path`; other types are an `InputError`.

    Arguments beyond the named ones (`**options`) are only made plain: who reads them says what is wrong.
    """
    named = signature(function)
    kinds: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kinds:  # the types may be of modules that load later
            kinds.update(get_type_hints(function))
        bound = named.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            whole = named.parameters[name].kind is named.parameters[name].VAR_KEYWORD
            try:
                bound.arguments[name] = plain(value) if whole else _fitted(plain(value), kinds.get(name, Any))
            except _OtherError as other:
                hint = f"`gpuscale.load_{other.args[1]}` makes one of a name" if other.args[1] else None
                raise InputError(
                    f"{shown(plain(value))} is not {other.args[0]}", field=name.rstrip("_"), hint=hint
                ) from None
        return function(*bound.args, **bound.kwargs)

    return cast(Function, call)


def plain(value: Any) -> Any:
    """Return a value with NumPy's numbers and arrays as Python's, and paths as text."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if type(value) in {list, tuple}:
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {plain(name): plain(one) for name, one in value.items()}
    return value


def _fitted(value: Any, kind: Any) -> Any:
    """Return a plain value as an annotation wants it.

    Raises:
        _OtherError: it is something else; with what is wanted in words, and which loader makes one.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or origin is Callable or kind is object:
        return value
    if origin is Annotated:
        return _fitted(value, parts[0])
    if origin in {Union, types.UnionType}:
        return _one_of(value, parts)
    if origin is not None and issubclass(origin, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _OtherError("a list", "")
        return tuple(_fitted(one, parts[0]) for one in value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if (kind is float and type(value) is int and value.bit_length() < 1000) or (kind is int and _is_whole(value)):
        return kind(value)
    own = Mapping if origin is not None and issubclass(origin, Mapping) else origin or kind
    if not isinstance(value, own) or (isinstance(value, bool) and own is not bool):
        maker = {"ModelSpec": "model", "ClusterSpec": "cluster", "GpuSpec": "gpu"}.get(getattr(own, "__name__", ""), "")
        raise _OtherError("a mapping" if own is Mapping else WORDS.get(own, f"a {own.__name__}"), maker)
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _one_of(value: Any, kinds: Sequence[Any]) -> Any:
    if value is None and type(None) in kinds:
        return None
    first: _OtherError | None = None
    for kind in kinds:
        try:
            return _fitted(value, kind)
        except _OtherError as other:
            first = first or other
    assert first is not None
    raise first
