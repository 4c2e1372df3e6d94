"""What expressions of a Python file come to where nothing is run: plain values, records of calls, unknown ones.

Plain values are those of Python (None, truth, numbers, texts, lists, dictionaries), within the bounds given here.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os.path import normpath, splitext
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from gpuscale.presets.files import known_table

_KNOWN = known_table("scripts")["program"]

MAX_NUMBER = 10**15
MAX_ITEMS = 10_000
"""Elements of a list or dictionary, and characters of a text, that are worked out."""


MAX_PARTS, MAX_LEVELS = 50_000, 60
"""Elements of a list or dictionary with all that is in them, each as often as it is there, and lists in one another."""


LONG_TEXT = 100
"""Characters of a text in a list that count as an element more."""


MAX_OWNERS = 24
"""Parts of parts that are followed up to what they are parts of."""


class Place(NamedTuple):
    """Where something stands."""

    file: str  #: the file's name as it was given.
    line: int  #: from 1.
    text: str = ""  #: the line.


@dataclass(frozen=True)
class Unknown:
    """A value that follows from something which no file says."""

    name: str  #: what decides it, as `variables` names it.
    why: str = ""  #: why that is not known; empty where it simply has no value.
    of: Any = field(default=None, compare=False)  #: the record or unknown value that it is a part of.


@dataclass(frozen=True)
class Failed(Unknown):
    """What an operation of Python comes to that raises an error."""

    error: str = ""  #: the class of the error.


@dataclass(frozen=True)
class Perhaps(Unknown):
    """An entry or a part that may not be there."""


@dataclass(frozen=True)
class Rest(Unknown):
    """Elements of a list of which nobody knows how many there are."""


@dataclass(frozen=True)
class Symbol:
    """A name of another package: a class, a function, a constant."""

    name: str  #: as it is written: `np.prod`.
    origin: str  #: with the package that it comes from: `numpy.prod`.


class Imported(NamedTuple):
    """A name that a module takes from another, which is gone through when the name is first used."""

    symbol: Symbol  #: what it is where the other module is not here.
    module: str  #: dotted name of the other module.
    name: str  #: what it is called there.
    level: int  #: dots before the module's name.
    importer: str  #: the file that imports it.


@dataclass(eq=False)
class Record:
    """A call of what is not followed (a class or function of another package), or an object of a class that is here."""

    name: str  #: what is called, as it is written; empty for what only assignments make.
    place: Place
    #: keyword -> value; positions as `0`, `1`; what is assigned afterwards too.
    parts: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)  #: part -> where it stands.
    kind: Class | None = None  #: its class, where that is here.
    origin: str = ""  #: what is called, with the package that it comes from.
    within: Any = None  #: what it is a part of, where only an assignment or a call of a method says so.

    def put(self, key: str, value: Any, place: Place) -> None:
        """Set a part."""
        self.parts[key], self.places[key] = value, place

    def copy(self) -> Record:
        """Return a record whose parts can be changed without changing these."""
        return Record(self.name, self.place, dict(self.parts), dict(self.places), self.kind, self.origin)


@dataclass(eq=False)
class Scope:
    """Names of a module, a class or a call of a function."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    file: str = ""
    lines: list[str] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)  #: name -> where it was last set.
    elsewhere: dict[str, Scope] = field(default_factory=dict)  #: name -> the scope that `global` and `nonlocal` mean.
    yielded: list[Any] = field(default_factory=list)  #: what a generator yields.
    unsure: bool = False  #: whether nobody knows how often it does.
    error: Any = None  #: the error that a handler takes.
    within: bool = False  #: whether it is that of a comprehension, from which `:=` sets names around it.

    def find(self, name: str) -> Any:
        """Return what a name means here or around, in a tuple; an empty one where it means nothing."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or "__qualname__" not in scope.names):  # not of a class around
                return (scope.names[name],)
            scope = scope.outer
        return ()

    def place(self, node: ast.AST) -> Place:
        """Return where a part of this file stands."""
        line = getattr(node, "lineno", 0)
        return Place(self.file, line, self.lines[line - 1].strip() if 0 < line <= len(self.lines) else "")


@dataclass(eq=False)
class Function:
    """A function of a file, or what is bound to one."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope  #: the names around it.
    usual: Mapping[str, Any] = field(default_factory=dict)  #: defaults of its arguments.
    args: tuple[Any, ...] = ()  #: bound already: the object of a method, arguments of `functools.partial`.
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return getattr(self.node, "name", "lambda")

    def bound(self, *args: Any, **given: Any) -> Function:
        """Return it with some of its arguments."""
        return replace(self, args=(*self.args, *args), given={**self.given, **given})

    def decorated(self, word: str) -> bool:
        """Whether one of its decorators is of this name."""
        return any(word in ast.unparse(one) for one in getattr(self.node, "decorator_list", ()))


class Property(NamedTuple):
    """An attribute that functions return and set."""

    get: Any
    set: Any = None


class Bound(NamedTuple):
    """A method of a plain value that is not called yet: `key=table.get`."""

    whole: Any
    name: str


@dataclass(eq=False)
class Class:
    """A class of a file."""

    name: str
    bases: tuple[Any, ...]
    scope: Scope  #: its names.
    fields: dict[str, Any]  #: annotated names in their order -> default, `MISSING` where they have none.
    places: dict[str, Place]
    initial: tuple[str, ...] = ()  #: those of its fields that `__post_init__` is given.

    def find(self, name: str) -> Any:
        """Return an attribute of the class or of its bases, in a tuple; an empty one where there is none."""
        for one in self.line():
            if name in one.scope.names:
                return (one.scope.names[name],)
        return ()

    @property
    def origin(self) -> str:
        """The class of another package that it is made from, by its package and name; else its own name."""
        every = (base for one in self.line() for base in one.bases if isinstance(base, Symbol) and "." in base.origin)
        return next((base.origin for base in every), self.name)

    def line(self) -> list[Class]:
        """Return the class and those of its bases that are here, the nearest first."""
        found = [self]
        for base in self.bases:
            found += base.line() if isinstance(base, Class) else []
        return list(dict.fromkeys(reversed(found[:40])))[::-1]  # what several are made from comes after them all

    def made_from(self, *names: str) -> bool:
        """Whether it or a base of it is made from a class of another package with one of these names."""
        every = (base for one in self.line() for base in one.bases if isinstance(base, Symbol))
        return any(base.name.rpartition(".")[2] in names for base in every)

    def members(self) -> list[Any]:
        """Return the members of an enumeration."""
        own = [one for one in self.scope.names.values() if isinstance(one, Member) and one.kind is self]
        return own if self.made_from(*ENUMERATIONS) else []


class Row(list[Any]):
    """A tuple: a list that `+=` does not change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


class Unique(list[Any]):
    """A set: numbers in Python's order, others as they were put in."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        every = dict.fromkeys(sorted(items, key=repr) if isinstance(items, set | frozenset) else items)
        super().__init__(set(every) if all(type(one) is int for one in every) else every)

    @classmethod
    def of(cls, table: Mapping[Any, Any]) -> Unique:
        """Return the keys of a dictionary, in their order."""
        made = cls()
        made.extend(table)
        return made


class Stream(list[Any]):
    """What is left of a generator or an iterator."""


class Table(dict[Any, Any]):
    """A dictionary that makes what is not in it: `defaultdict`."""

    make: Any = None  #: what is called for that.


ENUMERATIONS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")


class Member:
    """A member of an enumeration, which counts as its value."""

    label: str
    kind: Class


class MemberText(str, Member):
    """A member that is a text."""


class MemberNumber(int, Member):
    """A member that is a whole number."""


def member(value: Any, name: str, kind: Class) -> Any:
    """Return a value as the member of an enumeration, where it can be one."""
    plain = {str: MemberText, int: MemberNumber}.get(type(value))
    made = value if plain is None else plain(value)
    if isinstance(made, Member):
        made.label, made.kind = name, kind
    return made


def real(value: Any) -> Any:
    """Return a plain value with tuples and sets as Python has them."""
    if isinstance(value, list):
        inner = [real(one) for one in value]
        if isinstance(value, Row):
            return tuple(inner)
        if isinstance(value, Unique):
            return set(inner)
        return value if all(one is two for one, two in zip(inner, value, strict=True)) else inner
    if isinstance(value, dict):
        inner_too = {key: real(one) for key, one in value.items()}
        return value if all(inner_too[key] is value[key] for key in value) else inner_too
    return value


def _ours(value: Any, depth: int = 0) -> Any:
    """Return what Python made with its tuples and sets as they are kept here."""
    if isinstance(value, tuple) and depth < 9:
        return Row(_ours(one, depth + 1) for one in value)
    if isinstance(value, set | frozenset):
        return Unique(value)
    if type(value) is list and depth < 9:
        inner = [_ours(one, depth + 1) for one in value]
        return value if all(one is two for one, two in zip(inner, value, strict=True)) else inner
    return value


class PathText(str):
    """A path: what `__file__`, `pathlib.Path` and functions of `os.path` come to."""


def _joined(*parts: Any) -> PathText:
    return PathText(normpath(PurePosixPath(*parts)))


def of_path(path: str, name: str) -> Any:
    """Return an attribute of a path; None of others."""
    whole = PurePosixPath(path)
    match name:
        case "parent":
            return PathText(whole.parent)
        case "parents":
            return [PathText(one) for one in whole.parents]
        case "name" | "stem" | "suffix":
            return str(getattr(whole, name))
        case "parts":
            return Row(whole.parts)
    return None


OF_PATHS = {
    **dict.fromkeys(("absolute", "expanduser", "resolve", "as_posix"), lambda path, *_, **__: path),
    "joinpath": _joined,
    "with_suffix": lambda path, suffix: PathText(PurePosixPath(path).with_suffix(suffix)),
    "with_name": lambda path, name: PathText(PurePosixPath(path).with_name(name)),
}  # fmt: skip
"""Methods of paths that look at nothing on a disk."""


MISSING = Unknown("")
"""Default of a field that has none."""

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "tuple": tuple, "dict": dict, "set": set,
}  # fmt: skip


def asked_name(name: str) -> str:
    """Return the name by which something that is not known is asked for."""
    return re.sub(r"[^\w.]", "", re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", name))[:80] or "..."


def is_plain(value: Any) -> bool:
    """Whether a value is one of Python's own."""
    return value is None or isinstance(value, bool | int | float | str | list | dict)


HANDING_OUT = frozenset(_KNOWN["handing_out"])


def owners(value: Any) -> Iterator[Record]:
    """Yield the records that a value is, is a part of, or is handed out by, the nearest first."""
    for _ in range(MAX_OWNERS):
        if isinstance(value, Record):
            yield value
            handed = value.parts.get("of") if value.name in HANDING_OUT else None
            value = handed if value.within is None else value.within
        elif isinstance(value, Unknown):
            value = value.of
        else:
            return


def weight(value: Any) -> int:
    """Return how many elements a value has with all that is in them; more than `MAX_PARTS` of one out of bounds."""
    count, level = 0, [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_LEVELS):
        count += sum(map(len, level))
        if not level or count > MAX_PARTS:
            return count
        parts = [one for whole in level for one in (whole.values() if isinstance(whole, dict) else whole)]
        count += sum(len(one) // LONG_TEXT for one in parts if isinstance(one, str))
        level = [one for one in parts if isinstance(one, list | dict)]
    return MAX_PARTS + 1


def first_unknown(*values: Any) -> Unknown | None:
    """Return what makes an operation on these values unknown; None where all are plain."""
    left, lists = [iter(values)], {0}
    while left:
        value = next(left[-1], left)
        if value is left:
            left.pop()
        elif isinstance(value, Unknown):
            return value
        elif isinstance(value, Record | Symbol):
            return Unknown(value.name or "...", "is of another package")
        elif isinstance(value, list) and id(value) not in lists:
            lists.add(id(value))
            left.append(iter(value))
        elif not is_plain(value):
            return Unknown(getattr(value, "name", "..."), "is a function or class")
    return None


def truth(value: Any) -> bool | Unknown:
    """Return whether a value counts as true; objects of other packages do, results of their functions may not."""
    if isinstance(value, Record):
        made = value.kind is not None or value.name.rpartition(".")[2][:1].isupper()
        return True if made else Unknown(value.name or "...", "is of another package")
    if isinstance(value, Symbol):
        return Unknown(value.name, "is of another package")
    if isinstance(value, list) and value and isinstance(value[0], Rest):
        return value[0]
    return value if isinstance(value, Unknown) else bool(value)


def _bounded(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        too_large = not math.isfinite(value) or abs(value) > MAX_NUMBER
        return Unknown("...", "is out of bounds") if too_large else value
    if isinstance(value, str | list | tuple | set | frozenset | dict) and len(value) > MAX_ITEMS:
        return Unknown("...", "is out of bounds")
    return Unknown("...", "is out of bounds") if weight(value) > MAX_PARTS else _ours(value)


def _power(one: Any, two: Any) -> Any:
    return one**two if abs(two) <= 64 and abs(one) <= MAX_NUMBER else math.inf


def _times(one: Any, two: Any) -> Any:
    for whole, count in ((one, two), (two, one)):
        if isinstance(whole, str | list) and isinstance(count, int) and len(whole) * count > MAX_ITEMS:
            return math.inf
    return one * two


def _percent(text: str, values: Any) -> Any:
    wide = re.search(r"%[^a-zA-Z%]*(\*|\d{3})", text)
    return math.inf if wide else text % values


OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{getattr(ast, name): getattr(operator, word) for name, word in _KNOWN["operators"].items()},
    ast.Mult: _times, ast.Pow: _power, ast.LShift: lambda one, two: one << min(two, 64),
    ast.Div: lambda one, two: _joined(one, two) if isinstance(one, PathText) else one / two,
    ast.Mod: lambda one, two: one % two if not isinstance(one, str) else _percent(one, two),
    ast.In: lambda one, two: one in two, ast.NotIn: lambda one, two: one not in two,
}  # fmt: skip


SIMPLE = {int, float, bool, str}
"""Types of values that are equal, or not, without more ado."""


def operate(by: ast.AST, one: Any, two: Any) -> Any:
    """Return what an operator makes of two values."""
    if isinstance(by, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        same = _same(one, two, known=isinstance(by, ast.Is | ast.IsNot))
        return not same if isinstance(same, bool) and isinstance(by, ast.IsNot | ast.NotEq) else same
    if isinstance(by, ast.Add) and isinstance(one, list) and isinstance(two, list):
        return type(one)([*one, *two][:MAX_ITEMS]) if type(one) is type(two) else Unknown("...", "cannot be worked out")
    if isinstance(by, ast.BitOr) and isinstance(one, dict) and isinstance(two, dict):
        return {**one, **two}
    if isinstance(by, ast.In | ast.NotIn) and isinstance(two, dict | list) and not isinstance(one, Unknown):
        if isinstance(two, dict) and is_key(one) and isinstance(may_be := two.get(one, two.get("**")), Perhaps):
            return may_be
        inside: Any = one in two if {type(one), *map(type, two)} <= SIMPLE else None
        if inside is None:
            found = [_same(one, other, known=False) for other in two]
            inside = True if True in found else next((what for what in found if isinstance(what, Unknown)), False)
        return not inside if isinstance(inside, bool) and isinstance(by, ast.NotIn) else inside
    return first_unknown(one, two) or plainly(OPERATORS.get(type(by), lambda *_: math.inf), one, two)


def _same(one: Any, two: Any, *, known: bool) -> bool | Unknown:
    """Whether two values are the same; `known`: objects are compared as such, as `is` does."""
    for value, other in ((one, two), (two, one)):
        if isinstance(value, Unknown):
            return value
        if other is None and not is_plain(value):
            return False
    if isinstance(one, Symbol) and isinstance(two, Symbol):
        return one.origin == two.origin
    for value, other in ((one, two), (two, one)):
        if isinstance(value, Member) and not isinstance(other, Member) and not value.kind.made_from(*MIXED):
            return False
    if is_plain(one) and is_plain(two):
        if isinstance(one, list | dict) and weight(one) + weight(two) > MAX_PARTS:
            return Unknown("...", "is out of bounds")
        return first_unknown(one, two) or bool(real(one) == real(two))
    called = next((value for value in (one, two) if isinstance(value, Record) and value.kind is None), None)
    if known and called is not None and called.name[-1:] != "" and not called.name.rpartition(".")[2][:1].isupper():
        return True if one is two else Unknown(called.name, "is of another package")
    return one is two if known else first_unknown(one, two) or one is two


MIXED = ("str", "int", "float", "IntEnum", "StrEnum", "IntFlag")
"""Classes whose members of an enumeration are equal to their values."""


RAISED = (KeyError, IndexError, ZeroDivisionError, ValueError)
"""Errors that tell of values, not of what is not known here; scripts catch them."""


def attempt(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Return what a pure function of Python makes of values; unknown where it refuses them."""
    try:
        return _bounded(function(*args, **given))
    except RAISED as error:
        return Failed("...", "cannot be worked out", error=type(error).__name__)
    except (TypeError, ArithmeticError, LookupError, AttributeError, MemoryError, RecursionError):
        return Unknown("...", "cannot be worked out")


def plainly(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Return what a pure function of Python makes of plain values, tuples and sets among them."""
    if sum(map(weight, (*args, *given.values()))) > MAX_PARTS:
        return Unknown("...", "is out of bounds")
    return attempt(function, *map(real, args), **{name: real(one) for name, one in given.items()})


def value_of(value: Any) -> Any:
    """Return the value of an enumeration's member; others as they are."""
    return str(value) if isinstance(value, MemberText) else int(value) if isinstance(value, MemberNumber) else value


def is_key(value: Any) -> bool:
    """Whether a value can be a key of a dictionary."""
    if isinstance(value, Row):
        return weight(value) <= MAX_PARTS and all(map(is_key, value))
    return is_plain(value) and not isinstance(value, list | dict)


def _filled(text: str, *args: Any, **given: Any) -> Any:
    plain = re.fullmatch(r"(?:[^{}]|\{\w*(?::[.,]?\d{0,2}[.,]?\d?[a-z%]?)?\})*", text)
    return text.format(*args, **given) if plain else math.inf


def _replaced(text: str, old: str, new: str, *_: Any) -> str:
    return text.replace(old, new) if len(text) * max(len(new), 1) < MAX_ITEMS**2 else text


def _wide_text(name: str) -> Callable[..., Any]:
    return lambda text, width, *fill: getattr(text, name)(width, *fill) if width <= MAX_ITEMS else math.inf


TEXT_METHODS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(str, name) for name in _KNOWN["text_methods"]}, "replace": _replaced, "format": _filled,
    "format_map": lambda text, table: _filled(text, **table),
    **{name: _wide_text(name) for name in ("zfill", "ljust", "rjust", "center")},
}  # fmt: skip


def _some(items: Iterable[Any]) -> list[Any]:
    return list(itertools.islice(items, MAX_ITEMS + 1))


def _products(*items: Any, repeat: int = 1) -> Any:
    return _some(itertools.product(*items, repeat=repeat)) if repeat * len(items) < 10 else math.inf


PURE: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(_KNOWN["true"], lambda: True),
    **{name: getattr(builtins, name) for name in _KNOWN["pure"]},
    **{f"math.{name}": getattr(math, name) for name in _KNOWN["pure_of_math"]},
    **dict.fromkeys(("os.path.join", "pathlib.Path", "pathlib.PurePath"), _joined),
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "os.path.normpath", "os.path.expanduser"), _joined),
    "os.path.dirname": lambda path: PathText(PurePosixPath(path).parent),
    "set": set, "frozenset": set, "tuple": tuple, "list": list,
    "enumerate": lambda *args, **given: _some(enumerate(*args, **given)), "divmod": divmod, "pow": _power,
    "zip": lambda *items, **_: list(zip(*items, strict=False)), "ord": ord, "chr": chr,
    "reversed": lambda items: list(reversed(items)),
    "os.path.basename": lambda text: text.rpartition("/")[2], "os.path.splitext": splitext,
    "range": lambda *args: list(range(*args)) if len(range(*args)) <= MAX_ITEMS else math.inf,
    "json.loads": json.loads, "json.dumps": json.dumps,
    "itertools.product": _products, "itertools.chain": lambda *items: list(itertools.chain(*items)),
    "itertools.chain.from_iterable": lambda items: list(itertools.chain(*items)),
    "itertools.islice": lambda items, *ends: list(itertools.islice(items, *ends)),
    "itertools.accumulate": lambda items: list(itertools.accumulate(items)),
    "itertools.combinations": lambda *args: _some(itertools.combinations(*args)),
    "itertools.permutations": lambda *args: _some(itertools.permutations(*args)),
    **{f"str.{name}": does for name, does in TEXT_METHODS.items()},
}  # fmt: skip
"""Functions of Python that change nothing, by their origin, on plain values."""


def formatted(value: Any, spec: str) -> str | Unknown:
    """Return a value as an f-string writes it."""
    return plainly(format, value, spec if re.fullmatch(r"[\w,.<>=+ %-]{0,8}", spec) and not _wide(spec) else "")


def _wide(spec: str) -> bool:
    return any(int(number) > 100 for number in re.findall(r"\d+", spec))
