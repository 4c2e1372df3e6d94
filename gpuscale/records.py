"""Immutable records: frozen dataclasses that cost little to define.

`dataclasses.dataclass(frozen=True)` compiles six methods for every class when its module is loaded. For the records
that a command needs, that took longer than searching the layouts of a dense model. Here all records share five of the
methods, and the sixth, `__init__`, is compiled when a record is first made. Everything else is a dataclass: `fields`,
`replace` and `asdict` work.

In modules with many fields annotations are objects, not texts (`from __future__ import annotations`): in a text a
dataclass looks for `ClassVar` and the like with a pattern, field by field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, eq: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a record of its annotated attributes.

    Args:
        eq: records with equal fields are equal, and hash alike; else each is equal to itself only, as arrays need.
    """

    def wrap(made: type[T]) -> type[T]:
        made = dataclass(init=False, repr=False, eq=False, match_args=False)(made)
        methods: dict[str, Any] = {"__setattr__": _refuse, "__delattr__": _refuse, "__init__": _first_init(made)}
        methods |= {"__eq__": _equal, "__hash__": _hash} if eq else {}
        methods |= {} if "__repr__" in vars(made) else {"__repr__": _repr}
        for name, method in methods.items():
            setattr(made, name, method)
        return made

    return wrap if cls is None else wrap(cls)


def _first_init(cls: type) -> Callable[..., None]:
    """Return an `__init__` that compiles the real one, puts it in its own place and calls it."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        compiled = _compiled_init(cls)
        cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *args, **kwargs)

    return init


def _compiled_init(cls: type) -> Callable[..., None]:
    """Compile what takes one argument for each field, in order, and stores it."""
    defaults: dict[str, Any] = {}
    arguments, body = ["self"], ["stored = self.__dict__"]
    for name, one in _fields(cls).items():
        value = name
        if one.default_factory is not MISSING:
            defaults |= {f"_make_{name}": one.default_factory, "_missing": MISSING}
            arguments.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif one.default is not MISSING:
            defaults[f"_default_{name}"] = one.default
            arguments.append(f"{name}=_default_{name}")
        else:
            arguments.append(name)
        body.append(f"stored[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = [f"def __init__({', '.join(arguments)}):", *(f"    {line}" for line in body)]
    exec("\n".join(lines), defaults)  # as dataclasses do; nothing in it but names of fields
    init: Callable[..., None] = defaults["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _fields(made: Any) -> dict[str, Field[Any]]:
    found: dict[str, Field[Any]] = made.__dataclass_fields__
    return found


def _values(made: Any) -> tuple[Any, ...]:
    stored = vars(made)
    return tuple(stored[name] for name in _fields(made))


def _refuse(self: Any, name: str, *_value: Any) -> NoReturn:
    raise FrozenInstanceError(f"{name!r} of {type(self).__name__} cannot be changed")


def _repr(self: Any) -> str:
    pairs = zip(_fields(self), _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _equal(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


__all__ = ["record"]
