"""Immutable records: frozen dataclasses that cost little to define.

`dataclasses.dataclass(frozen=True)` looks at every field and compiles six methods for every class when its module is
loaded. For the records that a command needs, that took longer than searching the layouts of a dense model. Here all
records share five of the methods; the sixth, `__init__`, is compiled for classes of which many are made; and fields
are looked at when `fields`, `replace` or `asdict` first ask for them. Seen from outside, records are dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, replace
from functools import cache
from threading import RLock
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

T = TypeVar("T")

MANY = 20
"""Records of one class whose making takes as long as compiling how they are made."""


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
        methods: dict[str, Any] = {"__setattr__": _refuse, "__delattr__": _refuse, "__init__": _first_init(made)}
        methods |= {"__eq__": _equal, "__hash__": _hash} if eq else {}
        methods |= {} if "__repr__" in vars(made) else {"__repr__": _repr}
        methods |= {"__dataclass_fields__": _LazyFields(made), "__replace__": replace}  # the latter for copy.replace
        for name, method in methods.items():
            setattr(made, name, method)
        return made

    return wrap if cls is None else wrap(cls)


class _LazyFields:
    """`__dataclass_fields__` of a record: the first look makes the class a dataclass, which puts its own there."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, _instance: object, _owner: type) -> dict[str, Field[Any]]:
        with _LOOKING:
            if vars(self._cls)["__dataclass_fields__"] is self:
                dataclass(init=False, repr=False, eq=False, match_args=False)(self._cls)
        found: dict[str, Field[Any]] = vars(self._cls)["__dataclass_fields__"]
        return found


_LOOKING = RLock()
"""Held while a class becomes a dataclass, and its bases before it, lest two threads do it at once."""


@cache
def _fields_of(cls: Any) -> dict[str, Any]:
    """Return field -> its default, a `Field` that makes one, or MISSING; those of bases first."""
    found: dict[str, Any] = {}
    for base in cls.__mro__[:0:-1]:
        found |= _fields_of(base) if "__dataclass_fields__" in vars(base) else {}
    known = vars(cls)["__dataclass_fields__"]  # a dict once asked for, when attributes that held a `Field` are gone
    own = known if isinstance(known, dict) else {name: vars(cls).get(name, MISSING) for name in cls.__annotations__}
    return found | {name: _plain(default) for name, default in own.items()}


def _plain(default: Any) -> Any:
    return default.default if isinstance(default, Field) and default.default_factory is MISSING else default


def _first_init(cls: type) -> Callable[..., None]:
    """Return an `__init__` that is made when first called, and puts that in its own place."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made = _plain_init(cls)
        cls.__init__ = made  # type: ignore[misc]
        made(self, *args, **kwargs)

    return init


def _plain_init(cls: type) -> Callable[..., None]:
    """Return an `__init__` that is not compiled; after many calls, and to refuse arguments, a compiled one follows."""
    defaults = _fields_of(cls)
    required = {name for name, default in defaults.items() if default is MISSING}
    makers: dict[str, Any] = {
        name: default.default_factory for name, default in defaults.items() if isinstance(default, Field)
    }
    check = getattr(cls, "__post_init__", None)
    calls = 0

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        given = dict(zip(defaults, args, strict=False))
        given.update(kwargs)
        values = defaults | given
        fits = len(given) == len(args) + len(kwargs) and len(values) == len(defaults) and required <= given.keys()
        if calls > MANY or not fits:
            compiled = _compiled_init(cls)
            cls.__init__ = compiled  # type: ignore[misc]
            compiled(self, *args, **kwargs)
            return
        values.update({name: make() for name, make in makers.items() if name not in given})
        self.__dict__.update(values)
        if check is not None:
            check(self)

    return init


def _compiled_init(cls: type) -> Callable[..., None]:
    """Compile what takes one argument for each field, in order, and stores it."""
    known: dict[str, Any] = {}
    arguments, body = ["self"], ["stored = self.__dict__"]
    for name, default in _fields_of(cls).items():
        value = name
        if isinstance(default, Field):
            known |= {f"_make_{name}": default.default_factory, "_missing": MISSING}
            arguments.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        elif default is not MISSING:
            known[f"_default_{name}"] = default
            arguments.append(f"{name}=_default_{name}")
        else:
            arguments.append(name)
        body.append(f"stored[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = [f"def __init__({', '.join(arguments)}):", *(f"    {line}" for line in body)]
    exec("\n".join(lines), known)  # as dataclasses do; nothing in it but names of fields
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values(made: Any) -> tuple[Any, ...]:
    stored = vars(made)
    return tuple(stored[name] for name in _names(made.__class__))


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return next(tuple(_fields_of(one)) for one in cls.__mro__ if "__dataclass_fields__" in vars(one))


def _refuse(self: Any, name: str, *_value: Any) -> NoReturn:
    raise FrozenInstanceError(f"{name!r} of {type(self).__name__} cannot be changed")


def _repr(self: Any) -> str:
    pairs = zip(_names(self.__class__), _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _equal(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


__all__ = ["record"]
