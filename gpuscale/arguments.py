"""Arguments of the Python functions: what a notebook has at hand is accepted, anything else refused by its name."""

from __future__ import annotations

import functools
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, formatannotation, signature
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpuscale.errors import InputError, did_you_mean, shown

Function = TypeVar("Function", bound=Callable[..., Any])

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}

ALIASES = {
    "mbs": "micro_batch_size", "micro_batch": "micro_batch_size", "vp": "vpp", "shard_size": "shard",
    "order": "axis_order", "all": "unfold", "tokens": "train_tokens", "sequence": "seq", "sequence_length": "seq",
    "seq_len": "seq", "seq_length": "seq", "max_seq_length": "seq", "batch_size": "gbs", "global_batch_size": "gbs",
    "num_gpus": "gpus", "n_gpus": "gpus", "world_size": "gpus", "zero_stage": "zero", "dtype": "precision",
    **{
        f"{name}{ending}": degree
        for degree, axis in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"), ("dp", "data"))
        for name, endings in (
            (axis, ("_parallel", "_parallel_size", "_model_parallel_size", "_parallel_degree", "_parallelism")),
            (degree, ("_size", "_degree")),
        )
        for ending in endings
    },
}  # fmt: skip
"""Other names of options, from the command line, from results and from frameworks: what is meant by each."""


class Text(str):
    """A type as a signature shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Taken:
    """An option that a function takes by its name."""

    annotation: str  #: its type as a user gives it
    default: Any  #: what holds where it is not given, if that is one value
    help: str  #: what it is, in a sentence
    read: Callable[[Any], Any]  #: from what a notebook has at hand, made plain, to what the function takes


class _OtherError(Exception):
    """A value is not what an annotation says."""


def public(function: Function) -> Function:
    """Make a function take NumPy's numbers and arrays, and paths as text or `Path`; other types are an `InputError`."""
    return _checked(function, {})


def taking(options: Mapping[str, Taken]) -> Callable[[Function], Function]:
    """Do what `public` does with a function of `**options`, and give it the signature and the help of these. An option
    that it names itself is checked by its own annotation; of another one its `read` says what is wrong."""
    return lambda function: _checked(function, options)


def _checked(function: Function, options: Mapping[str, Taken]) -> Function:
    own = signature(function)
    kinds: dict[str, Any] = {}
    said = _signature(own, options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kinds:  # the types may be of modules that load later
            kinds.update(get_type_hints(function))
        refuse_unknown(kwargs, said.parameters, f"`help(gpuscale.{function.__name__})` lists all")
        bound = own.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if own.parameters[name].kind is Parameter.VAR_KEYWORD:
                bound.arguments[name] = {one: options[one].read(plain(given)) for one, given in value.items()}
                continue
            given = plain(value)
            given = options[name].read(given) if name in options else given
            try:
                bound.arguments[name] = _fitted(given, kinds.get(name, Any))
            except _OtherError as other:
                raise InputError(f"{shown(given)} is not {other.args[0]}", field=name.rstrip("_")) from None
        return function(*bound.args, **bound.kwargs)

    call.__signature__ = said  # type: ignore[attr-defined]
    lines = [f"{name}: {options[name].help}" for name in said.parameters if name in options]
    filled = (textwrap.fill(line, 112, initial_indent=" " * 8, subsequent_indent=" " * 12) for line in lines)
    call.__doc__ = f"{function.__doc__}" + ("\n".join(["", "    Options:", *filled, "    "]) if lines else "")
    return cast(Function, call)


def _signature(own: Signature, options: Mapping[str, Taken]) -> Signature:
    named = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    told = []
    for one in named:
        text = _written(one.annotation)
        if one.name in options:
            text = options[one.name].annotation.removesuffix(" | None") + " | None" * (one.default is None)
        told.append(one.replace(annotation=Text(text)))
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=one.default, annotation=Text(one.annotation))
        for name, one in options.items()
        if name not in own.parameters
    ]
    return own.replace(parameters=[*told, *more], return_annotation=Text(_written(own.return_annotation)))


def _written(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else formatannotation(annotation)
    return re.sub(r"\b[a-z_]\w*\.", "", text)


def refuse_unknown(given: Iterable[str], known: Iterable[str], listing: str = "") -> None:
    """Refuse names that are none of the known ones: the hint says which is meant or near, and where (`listing`) all
    are."""
    for name in given:
        if name not in known:
            meant = ALIASES.get(str(name).lower().replace("-", "_"))
            if meant is not None and meant in known:
                hint = f"it is `{meant}` here"
            else:
                hint = did_you_mean(str(name), known, "" if listing else "options are", 3) + listing
            raise InputError(f"unknown option {shown(name)}", hint=hint)


def plain(value: Any) -> Any:
    """Return a value with NumPy's numbers and arrays as Python's, and paths as text."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # whoever has NumPy's values has loaded it
        return value.tolist()
    if type(value) in {list, tuple}:
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {plain(name): plain(one) for name, one in value.items()}
    return value


def _fitted(value: Any, kind: Any) -> Any:
    """Return a plain value as an annotation wants it; an `_OtherError` says what is wanted in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or origin is Callable or kind is object:
        return value
    if origin is Annotated:
        return _fitted(value, parts[0])
    if origin in {Union, types.UnionType}:
        return _one_of(value, parts)
    if origin is not None and issubclass(origin, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _OtherError("a list")
        return tuple(_fitted(one, parts[0]) for one in value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if (kind is float and type(value) is int and value.bit_length() < 1000) or (
        kind is int and isinstance(value, float) and value.is_integer()
    ):
        return kind(value)
    own = Mapping if origin is not None and issubclass(origin, Mapping) else origin or kind
    if not isinstance(value, own) or (isinstance(value, bool) and own is not bool):
        raise _OtherError("a mapping" if own is Mapping else WORDS.get(own, f"a {own.__name__}"))
    return value


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
