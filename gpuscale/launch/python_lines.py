"""Command lines of Python programs: parsers, and functions and classes that one starts or fills."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.python_methods import Methods
from gpuscale.launch.python_state import COMMAND_LINE, LINE, MAX_CHOICES, NOTHING, literal
from gpuscale.launch.python_values import (
    MISSING,
    Class,
    Function,
    Place,
    Record,
    Row,
    Scope,
    Symbol,
    Unknown,
    first_unknown,
)

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
"""Classes whose objects make dataclasses of a command line (transformers, trl, alignment-handbook)."""


_ESSENTIAL = ("per_device_train_batch_size", "per_device_batch_size")
"""Fields by which a class of a script's own says itself what matters of the Trainer's arguments."""


COMMAND_LINES = ("fire.Fire", "typer.run", "tyro.cli", "simple_parsing.parse", "pyrallis.parse", "draccus.parse",
                 "jsonargparse.CLI", "jsonargparse.auto_cli")  # fmt: skip
"""Functions that start another with arguments of a command line, or make a class of them."""


class CommandLines(Methods):
    """Parsers of command lines."""

    def _parsed(self, parser: Record, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a parser of a command line returns; `NOTHING` of other objects."""
        kind = parser.origin.rpartition(".")[2]
        if kind == "ArgumentParser":
            return self._of_parser(parser, name, args, given, place)
        if kind not in PARSERS or not name.startswith("parse"):
            return NOTHING
        kinds = parser.parts.get("0", parser.parts.get("dataclass_types"))
        line = None
        if name in {"parse_yaml_file", "parse_json_file", "parse_dict"}:
            first = next(iter((*args, *given.values())), None)
            line = first if name == "parse_dict" else self.loaded(first, place)
            line = line if isinstance(line, dict | Unknown) else None
        said = [self._told(one, place, line) for one in (kinds if isinstance(kinds, list) else [kinds])]
        return said if isinstance(kinds, list) or name != "parse" else said[0]

    def _told(self, kind: Any, place: Place, line: dict[str, Any] | Unknown | None = None) -> Any:
        """Return what a command line makes of a class or starts of a function: what the caller says, else defaults.

        Of a class of another package all that matters stands on that command line, or in a file (`line`).
        """
        if isinstance(kind, Function):
            return self.follow(kind, (), self._arguments(kind, place), place)
        line = self._line(place) if line is None else line
        said = line if isinstance(line, dict) else {}
        if not isinstance(kind, Class):
            parts = {"**": line} if isinstance(line, Unknown) else dict(said)
            return Record(getattr(kind, "name", "..."), place, parts, origin=getattr(kind, "origin", "..."))
        made = self.made(kind, (), {}, place, {})
        for name in {**made.parts, **dict.fromkeys(name for one in kind.line() for name in one.fields)}:
            usual = said.get(name, made.parts.get(name, MISSING))
            made.put(name, self.open(name, usual, place, "is of a command line"), made.places.get(name, place))
        known = {name for one in kind.line() for name in one.fields}
        if kind.origin != kind.name:  # of a class of another package, whose own arguments it has too
            made.parts |= {name: one for name, one in said.items() if name not in known}
            made.parts |= {} if known & {*_ESSENTIAL} or not isinstance(line, Unknown) else {"**": line}
        return made

    def _line(self, place: Place) -> dict[str, Any] | Unknown:
        """Return what the caller says that the command line says, by the names of its options.

        Raises:
            InputError: it is neither a dictionary nor the options of a command line.
        """
        line = literal(self.given.get(COMMAND_LINE, Unknown(COMMAND_LINE, "is in no file that is here")))
        if isinstance(line, dict):
            return {name: literal(one) for name, one in line.items()}
        if isinstance(line, Unknown):
            return line
        found = options_of(str(line))
        if found is None:
            hint = f"write its options, `var={COMMAND_LINE}={LINE}`, or a dictionary of them, `{{}}` for none"
            message = f"{str(line)[:80]!r} is no command line of this program"
            raise InputError(message, place=f"{place.file}:{place.line}", field=f"var={COMMAND_LINE}", hint=hint)
        return found

    def _arguments(self, function: Function, place: Place) -> dict[str, Any]:
        """Return the arguments of a function that a command line starts: what the caller says, else the defaults."""
        return {name: self.open(name, one, place) for name, one in function.usual.items()}

    def usual(self, node: ast.expr, scope: Scope) -> Any:
        """Return the default of an argument, of `typer.Option(...)` what it holds."""
        value = self.value(node, scope)
        if isinstance(value, Record) and value.name.rpartition(".")[2] in {"Option", "Argument"}:
            return value.parts.get("default", value.parts.get("0", MISSING))
        return value

    def _of_parser(self, parser: Record, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Follow an `argparse` parser: its arguments are what the caller says, else their defaults."""
        if name == "add_argument":
            words = [one for one in args if isinstance(one, str)]
            long = next((one for one in words if one.startswith("--")), words[0] if words else "...")
            own = str(given.get("dest") or long.lstrip("-").replace("-", "_"))
            off = {"store_true": False, "store_false": True}.get(str(given.get("action")), MISSING)
            needed = given.get("required") is True or (not long.startswith("-") and "nargs" not in given)
            usual = Unknown(own, "is given no value") if needed and long != "..." else None
            if isinstance(choices := given.get("choices"), list) and first_unknown(choices) is None:
                self.choices[own] = tuple(map(str, choices[:MAX_CHOICES]))
            if given.get("type") in (Symbol("int", "int"), Symbol("float", "float")):  # of a default that is a text
                given = {**given, "default": literal(given["default"])} if "default" in given else given
            self.put(parser, own, given.get("default", off if off is not MISSING else usual), place)
            return parser
        if name in {"parse_args", "parse_known_args"}:
            said = self._parsed_args(parser, args[0] if args else given.get("args"), place)
            return said if name == "parse_args" else Row([said, []])
        if name in {"add_argument_group", "add_mutually_exclusive_group"}:
            return parser
        if name == "set_defaults":
            for own, value in given.items():
                self.put(parser, own, value, place)
        return None

    def _parsed_args(self, parser: Record, own: Any, place: Place) -> Any:
        """Return what a parser makes of the command line, or of words that the script gives it itself."""
        line: Any = self._line(place) if own is None else None
        if isinstance(own, list) and first_unknown(own) is None:
            line = options_of(shlex.join(map(str, own)))
        if line is None:
            return Unknown("parse_args", "is given what is not followed")
        told = {name: one for name, one in line.items() if name in parser.parts} if isinstance(line, dict) else {}
        said = Record("args", place, origin="args")
        for name, usual in (parser.parts | told).items():
            needed, at = isinstance(usual, Unknown), parser.places.get(name, place)
            missing = usual is None or name in {"0", "description"}
            value = self.open(name, MISSING if missing or needed else usual, at)
            said.put(name, None if missing and isinstance(value, Unknown) else value, at)
        return said


def options_of(line: str) -> dict[str, Any] | None:
    """Return what the options of a command line say: `--bf16 --lora_r 8 --targets q k`; None where it has others."""
    with suppress(ValueError):
        found, values = dict[str, list[str]](), list[str]()
        for word in shlex.split(line):
            if re.match(r"--[A-Za-z_]", word):
                name, equals, value = word[2:].partition("=")
                values = found[name.replace("-", "_")] = [value] if equals else []
            elif not found:
                return None
            else:
                values.append(word)
        return {name: True if not values else literal(values[0]) if len(values) == 1 else [*map(literal, values)]
                for name, values in found.items()}  # fmt: skip
    return None
