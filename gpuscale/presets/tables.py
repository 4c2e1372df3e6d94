"""Tables of preset files, checked against the fields of spec classes.

A field's declaration in `gpuscale.specs` says its key (its name, or its alias), type, limits in SI and default. The
unit that ends a key says by what its numbers are multiplied to be in SI: of `hop_latency_us` come seconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, zip_longest
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Strict, ValidationError, create_model
from pydantic.fields import FieldInfo

from gpuscale.errors import InputError, did_you_mean
from gpuscale.presets.files import Document, KeyPath, short
from gpuscale.units import NUMBER, unit_of

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Spec = TypeVar("Spec")


class Table:
    """One kind of table: its keys are the fields of spec classes, and further keys that only files have. Fields that
    hold other specs are no keys: a file has tables of their own for them."""

    def __init__(
        self,
        *specs: type,
        without: Collection[str] = (),
        optional: Collection[str] = (),
        required: Collection[str] = (),
        unless: Mapping[str, Sequence[str]] | None = None,
        inner: Mapping[str, Table] | None = None,
        **further: tuple[Any, Any],
    ) -> None:
        """Describe a table.

        Args:
            specs: classes whose fields are its keys.
            without: fields that files do not state.
            optional: fields without a default that may be left out all the same.
            required: fields with a default that files must state all the same.
            unless: fields that must be stated unless one of these keys is.
            inner: key -> what the table or tables at it are, whose keys are checked along with its own.
            further: key -> type, limits in SI, and default (`...`: required).
        """
        self.specs, self.further = specs, further
        self.without, self.optional, self.required = without, optional, required
        self.unless, self.inner = unless or {}, inner or {}

    @cached_property
    def columns(self) -> dict[str, tuple[str, Any, Any]]:
        """Key -> name of the field, its type and its default, in SI."""
        found: dict[str, tuple[str, Any, Any]] = {}
        for spec in self.specs:
            hints = get_type_hints(spec, include_extras=True)
            for field in fields(spec):
                hint = hints[field.name]
                if field.name not in self.without and not _holds_spec(hint):
                    default = field.default if field.default_factory is MISSING else field.default_factory()
                    if default is MISSING or field.name in self.required:
                        default = None if field.name in self.optional else ...
                    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
                    alias = next((mark.alias for mark in marks if isinstance(mark, FieldInfo) and mark.alias), None)
                    found[alias or field.name] = (field.name, hint, default)
        return found | {key: (key, hint, default) for key, (hint, default) in self.further.items()}

    @cached_property
    def model(self) -> type[BaseModel]:
        """What checks such a table, in the units of the file."""
        name = self.specs[0].__name__.removesuffix("Spec") if self.specs else "Table"
        columns = {
            key: (_in_unit(hint, unit_of(key)[1]), default / unit_of(key)[1] if isinstance(default, float) else default)
            for key, (_, hint, default) in self.columns.items()
        }
        model: type[BaseModel] = create_model(name, __config__=_STRICT, **columns)  # type: ignore[call-overload]
        return model

    def read(self, document: Document, place: KeyPath = ()) -> dict[str, Any]:
        """Return what the table at `place` states (nothing where it is left out): field -> value in SI; of further keys
        the defaults too.

        Raises:
            InputError: an unknown, missing or unusable key, with file, line, value, limit and a hint.
        """
        found = self._checked(document, place)
        stated = {}
        for key, (name, hint, _) in self.columns.items():
            if key in found.model_fields_set or (key in self.further and getattr(found, key) is not None):
                stated[name] = _in_si(getattr(found, key), unit_of(key)[1], whole=_bare(hint) is int)
        return stated

    def shown(self, document: Document, place: KeyPath = ()) -> dict[str, Any]:
        """Return every key of the table at `place` with its value or default, as files have them."""
        return self._checked(document, place).model_dump(mode="json")

    def _checked(self, document: Document, place: KeyPath) -> BaseModel:
        data: Any = document.data
        for part in place:
            data = data[part] if isinstance(part, int) else data.get(part, {})
        found, problems = self._check(data, place)
        if found is None or problems:
            raise _refusal(document, problems)
        return found

    def _check(self, data: Any, place: KeyPath) -> tuple[BaseModel | None, list[_Problem]]:
        """Return what a table holds, if it can be read, and all that is wrong with it and the tables inside it."""
        found, problems = None, []
        try:
            found = self.model.model_validate(data)
        except ValidationError as error:
            problems = [_Problem(self, (*place, *one["loc"]), one) for one in error.errors(include_url=False)]
        if not isinstance(data, dict):
            return found, problems
        for key, others in zip(self.keys(self.unless), self.unless.values(), strict=True):
            if key not in data and all(data.get(other, []) == [] for other in others):
                problems.append(_Problem(self, (*place, key), {"type": "missing"}, others))
        for key, table in self.inner.items():
            value = data.get(key)
            tables = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, one in tables:
                if isinstance(one, dict):
                    problems += table._check(one, (*place, key) if index is None else (*place, key, index))[1]
        return found, problems

    def keys(self, names: Iterable[str]) -> list[str]:
        """Return the keys of fields, as files spell them."""
        spelled = {name: key for key, (name, _, _) in self.columns.items()}
        return [spelled[name] for name in names]


class _Problem(NamedTuple):
    """What is wrong at a key of a table, as pydantic says it; of a missing key also what may stand for it."""

    table: Table
    path: KeyPath
    said: Mapping[str, Any]
    others: Sequence[str] = ()

    @property
    def key(self) -> str:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in self.path)
        return "".join(parts).removeprefix(".")


def _refusal(document: Document, problems: Sequence[_Problem]) -> InputError:
    """Name all unknown and missing keys, or where there are none what is wrong with the first value."""
    unknown, missing = (
        [one for one in problems if one.said["type"] == kind] for kind in ("extra_forbidden", "missing")
    )
    texts, hint = [], "see docs/hardware.md or docs/models.md"
    if missing:
        texts = [f"{_named(missing)} {'is' if len(missing) == 1 else 'are'} missing"]
    if unknown:
        texts.insert(0, f"unknown {_named(unknown)}")
        hint = did_you_mean(str(unknown[0].path[-1]), sorted(unknown[0].table.columns), "known keys:")
    others = len(problems) - len(unknown) - len(missing)
    if texts:
        more = f" (and {others} more)" if others else ""
        return document.error((*unknown, *missing)[0].path, "; ".join(texts) + more, hint)
    path, said = problems[0].path, problems[0].said
    value = "" if isinstance(said["input"], dict | list) else f" = {short(said['input'])}"
    more = f" (and {others - 1} more)" if others > 1 else ""
    return document.error(path, f"{problems[0].key}{value}: {what_is_wrong(said)}{more}")


_WRONG = {
    "greater_than": "should be more than {gt:.15g}",
    "greater_than_equal": "should be at least {ge:.15g}",
    "less_than": "should be less than {lt:.15g}",
    "less_than_equal": "should be at most {le:.15g}",
    "finite_number": "should be a finite number",
    "too_long": "should have at most {max_length} items",
    "too_short": "should have at least {min_length} items",
    "string_too_long": "should have at most {max_length} characters",
    "string_too_short": "should have at least {min_length} characters",
    "string_pattern_mismatch": "should match {pattern}",
    "literal_error": "should be one of {expected}",
    "string_type": "should be text",
    "bool_type": "should be true or false",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "int_type": "should be a whole number",
    "tuple_type": "should be a list",
    "dict_type": "should be a table",
    "model_type": "should be a table",
    "missing": "is missing",
    "extra_forbidden": "is no key here",
    "value_error": "{error}",
}
"""Kind of error, as pydantic names it -> what is wrong, in words that do not change with pydantic's."""
UNKNOWN = "cannot be used"
"""What is wrong where pydantic has a name of it that is not known here."""


def what_is_wrong(said: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, of an error as pydantic lists it."""
    return _WRONG.get(said["type"], UNKNOWN).format_map(said.get("ctx", {}))


def _named(problems: Sequence[_Problem]) -> str:
    """List keys, at most 30, and behind the last of those that others may stand for these."""
    keys = []
    for one, after in zip_longest(problems[:30], problems[1:30]):
        last = one.others and (after is None or (one.others, one.path[:-1]) != (after.others, after.path[:-1]))
        keys.append(f"{one.key!r} (or {' or '.join(one.others)})" if last else repr(one.key))
    more = f" and {len(problems) - 30} more" if len(problems) > 30 else ""
    return f"key{'s' * (len(problems) > 1)} {', '.join(keys)}{more}"


def made(spec: type[Spec], stated: Mapping[str, Any], **given: Any) -> Spec:
    """Make a spec of those of the stated values that are its fields, and of the values given."""
    names = {field.name for field in fields(spec)}  # type: ignore[arg-type]
    return spec(**{name: value for name, value in stated.items() if name in names and name not in given}, **given)


def stated_value(text: str) -> bool | int | float | str:
    """Read a value given in a line: a switch (`yes`, `true`), a number, or else text."""
    if text.lower() in {"yes", "true", "no", "false"}:
        return text.lower() in {"yes", "true"}
    with suppress(InputError):
        value = NUMBER.read(text, "")
        return value if re.search(r"[.eE]", text) or abs(value) > 2**53 else int(value)
    return text


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _holds_spec(hint: Any) -> bool:
    bare = _bare(hint)
    return (isinstance(bare, type) and is_dataclass(bare)) or any(_holds_spec(inner) for inner in get_args(bare))


def _in_unit(hint: Any, unit: float) -> Any:
    """Return a type whose limits are in a unit rather than in SI, and that takes a list where it is a tuple."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        # the limits that stand in a `Field`, which pydantic takes apart much more slowly
        limits = chain.from_iterable(mark.metadata if isinstance(mark, FieldInfo) else (mark,) for mark in marks)
        parts = []
        for one in limits:
            name = next((name for name in ("gt", "ge", "lt", "le") if hasattr(one, name)), None)
            parts.append(type(one)(float(f"{getattr(one, name) / unit:.12g}")) if name and unit != 1 else one)
        return Annotated[(_in_unit(inner, unit), *parts)] if parts else inner
    if get_origin(hint) is tuple:
        element, *rest = get_args(hint)
        return Annotated[tuple[(_in_unit(element, unit), *rest)], Strict(False)]  # type: ignore[misc]
    return float if hint is int and unit != 1 else hint


def _in_si(value: Any, unit: float, *, whole: bool) -> Any:
    if unit == 1:
        return value
    if isinstance(value, tuple):
        return tuple(_in_si(one, unit, whole=whole) for one in value)
    return round(value * unit) if whole else value * unit


def sources_of(document: Document, place: KeyPath, given: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Return key -> source from a `sources` table, whose keys are names, lists `a, b` or patterns `peak_*`: exact names
    go before patterns, longer patterns before shorter ones.

    Raises:
        InputError: a number without a source, or a source of nothing.
    """
    names = list(keys)
    patterns = [(part.strip(), text, entry) for entry, text in given.items() for part in entry.split(",")]
    for part, _, entry in patterns:
        if part not in names and not any(fnmatchcase(name, part) for name in names):
            hint = f"the keys with numbers are {', '.join(names)}"
            raise document.error((*place, "sources", entry), f"{part[:80]!r} in sources matches no key", hint)
    exact = {part: text for part, text, _ in reversed(patterns)}
    wild = [pattern for pattern in patterns if pattern[0] not in names]
    ranked = sorted(wild, key=lambda pattern: ("*" in pattern[0], -len(pattern[0])))
    found = {
        name: exact.get(name) or next((text for part, text, _ in ranked if fnmatchcase(name, part)), "")
        for name in names
    }
    without = [name for name in names if not found[name]]
    if without:
        have = "has" if len(without) == 1 else "have"
        hint = f'add {without[0]} = "..." to the sources table: document and year, or "guesstimate: why"'
        raise document.error((*place, without[0]), f"{', '.join(without)} {have} no source", hint)
    return found
