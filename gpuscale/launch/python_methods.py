"""What methods of texts, lists, sets and dictionaries return, and what they change."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuscale.launch.python_expressions import Expressions
from gpuscale.launch.python_state import NOTHING, entries
from gpuscale.launch.python_tables import is_table
from gpuscale.launch.python_values import (
    OF_PATHS,
    TEXT_METHODS,
    Failed,
    PathText,
    Place,
    Record,
    Rest,
    Row,
    Unique,
    Unknown,
    attempt,
    first_unknown,
    is_key,
    plainly,
    real,
    weight,
)

OF_TABLES = ("get", "pop", "setdefault", "update", "items", "keys", "values", "copy", "to_dict")


LOOKING_AT_SETS = frozenset(
    {"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "copy"}
)


OF_SETS = LOOKING_AT_SETS | {"add", "discard", "remove", "update", "clear", "pop", "difference_update",
                             "intersection_update", "symmetric_difference_update"}  # fmt: skip


CHANGING_LISTS = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "reverse"})


class Methods(Expressions):
    """Methods of plain values."""

    def _of_plain(self, whole: Any, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a text, a path, a list or a table returns; `NOTHING` of others."""
        if isinstance(whole, PathText) and name in {"open", "read_text"}:
            return Record("open", place, {"0": str(whole)}, origin="open")
        if isinstance(whole, str):
            known = (OF_PATHS.get(name) if isinstance(whole, PathText) else None) or TEXT_METHODS.get(name)
            unknown = first_unknown(*args, *given.values())
            return unknown or (plainly(known, whole, *args, **given) if known else Unknown(name, "is not followed"))
        if isinstance(whole, dict):
            return self._of_dictionary(whole, name, args, given, place)
        if isinstance(whole, Record) and is_table(whole) and name in OF_TABLES and name not in whole.parts:
            return self._of_dictionary(whole.parts, name, args, given, place)
        if isinstance(whole, Unique):
            return self._of_set(whole, name, args)
        return self._of_list(whole, name, args, given, place) if isinstance(whole, list) else NOTHING

    def _of_list(self, whole: list[Any], name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a list or a tuple returns, and change it as that does."""
        if name == "extend" and args:
            items = self.items(args[0])
            args = [[first_unknown(*args) or Unknown("...")] if items is None else items]
        if name == "sort":
            found = self._sorted("sorted", [whole], given, place)
            return self.change(whole, "__setitem__", slice(None), found if isinstance(found, list) else [found])
        if name in CHANGING_LISTS and not isinstance(whole, Row):
            return self.change(whole, name, *args, **given)
        if name in {"index", "count", "copy"} and len(args) < 2:
            self.steps += weight(whole) // 5
            return (
                first_unknown(*whole, *args)
                if name != "copy" and first_unknown(*whole, *args)
                else plainly(getattr(list, name), list(whole), *args)
            )
        return Unknown(name, "is not followed")

    def _of_set(self, whole: Unique, name: str, args: list[Any]) -> Any:
        """Return what a method of a set returns, and change it as that does."""
        self.steps += len(whole) // 5
        others = [self.items(one) for one in args] if name not in {"add", "remove", "discard"} else [*args]
        unknown = next((one for one in (*whole, *others) if isinstance(one, Unknown)), None)
        if name not in OF_SETS:
            return Unknown(name, "is not followed")
        if unknown is None and None in others and None not in args:
            unknown = first_unknown(*args) or Unknown("...")
        before = set[Any]() if unknown else set(real(whole))
        after = set(before)
        made = unknown or plainly(getattr(after, name), *others)
        if unknown or (after != before and self.doubt is not None):
            why = unknown or self.doubt or Unknown("...")
            whole[:] = whole if name in LOOKING_AT_SETS else [Rest(why.name, why.why)]
        elif after != before:
            whole[:] = Unique([*(one for one in whole if real(one) in after), *Unique(after)])
        return made

    def _sorted(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what `sorted`, `min` and `max` choose, by a key where one is given."""
        items = self.items(args[0]) if len(args) == 1 else [*args]
        key, more = given.get("key"), {name: one for name, one in given.items() if name != "key"}
        if items is None:
            return first_unknown(*args) or Unknown("...")
        self.steps += len(items) // 5
        keys = items if key is None else [self.call(key, (one,), {}, place) for one in items]
        unknown = first_unknown(*keys, *more.values())
        if unknown is not None or (not items and origin != "sorted"):
            return unknown or more.get("default", Failed("...", error="ValueError"))
        pairs = [(real(one), at) for at, one in enumerate(keys)]
        if origin == "sorted":
            order = attempt(sorted, pairs, key=lambda one: one[0], reverse=bool(more.get("reverse", False)))
            return [items[at] for _, at in order] if isinstance(order, list) else order
        best = attempt(getattr(builtins, origin), pairs, key=lambda one: one[0])
        return items[best[1]] if isinstance(best, list) else best

    def _of_dictionary(
        self, whole: dict[Any, Any], name: str, args: list[Any], given: dict[str, Any], place: Place
    ) -> Any:
        """Return what a method of a dictionary returns, and change it as that does."""
        if name in {"get", "pop", "setdefault"} and args:
            return self._of_key(whole, name, args[0], args[1:], place)
        match name:
            case "update":
                for own, value in {**(entries(args[0]) if args else {}), **given}.items():
                    self.put(whole, own, value, place)
                return None
            case "clear":
                for own in [*whole]:
                    self.remove(whole, own)
                return None
            case "popitem" if whole and self.doubt is None:
                return Row(whole.popitem())
        every: dict[str, Callable[[], Any]] = {
            "items": lambda: [Row(one) for one in whole.items()],
            "keys": lambda: Unique.of(whole),
            "values": lambda: list(whole.values()),
            **dict.fromkeys(("copy", "to_dict"), lambda: dict(whole)),
        }
        return every[name]() if name in every else Unknown(name, "is not followed")

    def _of_key(self, whole: dict[Any, Any], name: str, key: Any, usual: list[Any], place: Place) -> Any:
        """Return the entry of a key, or what is usual; `pop` deletes it, `setdefault` keeps what is usual."""
        if not is_key(key):
            return self._chooses(first_unknown(key) or Unknown("..."), whole)
        if key not in whole and "**" in whole:  # what else is in it nobody knows
            return whole["**"]
        if name == "pop" and key not in whole and not usual:
            return Failed("...", "cannot be worked out", error="KeyError")
        found = whole.get(key, usual[0] if usual else None)
        if name == "setdefault" and key not in whole:
            self.put(whole, key, found, place)
        elif name == "pop":
            self.remove(whole, key)
        return found
