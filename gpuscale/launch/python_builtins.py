"""What functions of Python's own and of its libraries return, where they do no harm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from gpuscale.launch.python_lines import COMMAND_LINES, CommandLines
from gpuscale.launch.python_state import (
    ABSENT,
    DOCUMENTS,
    LOOKED,
    NAMING,
    NOTHING,
    Assigned,
    entries,
    literal,
    own_method,
)
from gpuscale.launch.python_tables import as_table, entries_of, interpolated, is_table, merge, path_of
from gpuscale.launch.python_values import (
    MAX_ITEMS,
    MAX_PARTS,
    MISSING,
    PURE,
    TYPES,
    Bound,
    Class,
    Failed,
    Function,
    Member,
    Perhaps,
    Place,
    Record,
    Rest,
    Row,
    Scope,
    Stream,
    Symbol,
    Table,
    Unique,
    Unknown,
    first_unknown,
    is_key,
    is_plain,
    plainly,
    real,
    weight,
)
from gpuscale.presets.files import known_table

LOADERS = ("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads", "toml.load", "toml.loads",
           "tomllib.load", "tomllib.loads")  # fmt: skip
"""Functions that make tables of an open file, or of what it holds: `yaml.safe_load(open(path))`."""


TABLES = frozenset(known_table("scripts")["program"]["tables"])
"""Classes of dictionaries whose entries are attributes too."""


REFLECTING = {"isinstance": 2, "hasattr": 2, "getattr": 2, "setattr": 3, "map": 2, "filter": 2,
              **dict.fromkeys((*COMMAND_LINES, *LOADERS, "dataclasses.asdict"), 1)}  # fmt: skip
"""Functions that look at objects, go through them or make them of files -> how many arguments they need."""


DEALING = frozenset({"list", "tuple", "enumerate", "zip", "reversed", "itertools.chain", "itertools.product"})
"""Functions that deal out elements, whatever these are."""
GONE_THROUGH = (Stream, Unique, Class, Record, dict)


WRAPPERS = ("functools.partial", "nemo_run.Partial", "nemo_run.Config", "nemo_run.autoconvert")
"""Calls that stand for a later call of their first argument."""


class Builtins(CommandLines):
    """Functions of Python's own."""

    def _known(self, called: Symbol, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what a function of Python's own returns; `NOTHING` of others."""
        origin = called.origin
        if (said := self._of_machine(origin, args, place)) is not NOTHING:
            return said
        if origin in TABLES or origin.startswith("omegaconf.OmegaConf."):
            return self._table(origin, args, given, place)
        if origin in {"sorted", "min", "max"} and args:
            return self._sorted(origin, args, given, place)
        if origin in PURE and (origin not in LOADERS or (args and isinstance(args[0], str))):
            return self._purely(origin, args, given)
        if origin in REFLECTING and len(args) >= REFLECTING[origin]:
            return self._reflected(origin, args, place)
        if origin in {"print", "sys.exit", "exit"}:
            said = args[0] if len(args) == 1 and not given and self.doubt is None else None
            self.printed += [said] * (origin == "print")
            return None
        made = self._of_items(origin, args, place)
        made = self._of_kinds(origin, args, place) if made is NOTHING else made
        made = self._of_collections(origin, args, given, place) if made is NOTHING else made
        made = self._of_objects(origin, args, given, place) if made is NOTHING else made
        return _wrapped(called, args, given, place) if made is NOTHING else made

    def _purely(self, origin: str, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Return what a pure function makes of its arguments; what only deals out elements takes any."""
        does = {"len": "__len__", "str": "__str__", "int": "__int__"}.get(origin, "")
        if does and args and (own := own_method(args[0], does)):
            return self.follow(own, (), {}, args[0].place)
        if origin == "len" and args and isinstance(args[0], list | dict | str):
            parts = args[0].values() if isinstance(args[0], dict) else args[0]
            return next((one for one in parts if isinstance(one, Rest | Perhaps)), None) or len(args[0])
        told = list(args)
        if origin in DEALING or origin in {"sum", "any", "all", "len"} or origin.startswith("itertools."):
            gone = [self.items(one) if isinstance(one, GONE_THROUGH) else None for one in told]
            told = [one if items is None else items for one, items in zip(told, gone, strict=True)]
        if origin in DEALING and all(isinstance(one, list | str | int) for one in told):
            return plainly(PURE[origin], *told, **given)
        unknown = first_unknown(*told, *given.values())
        if unknown is not None and unknown.why == "is of another package":
            return replace(unknown, name="...")  # the call can be given, what it is given cannot
        return unknown or plainly(PURE[origin], *told, **given)

    def _of_objects(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what functions of Python return that make, copy or write objects; `NOTHING` of others."""
        match origin:
            case "dict" | "collections.OrderedDict" if args and isinstance(args[0], Unknown) and not given:
                return args[0]
            case "dict" | "collections.OrderedDict":
                return {**(entries(args[0]) if args else {}), **given}
            case "vars" if args and isinstance(args[0], Record) and (args[0].kind or is_table(args[0])):
                return args[0].parts
            case "json.dump" | "yaml.dump" | "yaml.safe_dump" if len(args) > 1 and (path := path_of(args[1])):
                self.written[path] = args[0]
                return None
            case "copy.deepcopy" if args:
                return copied(args[0], {})
            case "copy.copy" if args:
                return args[0].copy() if isinstance(args[0], Record) else copy(args[0])
            case "dataclasses.replace" if args and isinstance(args[0], Record):
                made = args[0].copy()
                for name, value in given.items():
                    made.put(name, value, place)
                return made
        return NOTHING

    def _of_items(self, origin: str, args: Sequence[Any], place: Place) -> Any:
        """Return what functions return that go through what they are given; `NOTHING` of others."""
        match origin:
            case "next" if args and isinstance(args[0], Stream):
                return (
                    self.change(args[0], "pop", 0)
                    if args[0]
                    else args[1]
                    if len(args) > 1
                    else Unknown("...", "is empty")
                )
            case "iter" if len(args) == 1 and (items := self.items(args[0])) is not None:
                return args[0] if isinstance(args[0], Stream) else Stream(items)
            case "functools.reduce" if len(args) > 1 and (items := self.items(args[1])) is not None:
                made, *rest = [*args[2:], *items] or [Failed("...", error="TypeError")]
                for one in rest:
                    made = self.call(args[0], (made, one), {}, place)
                return made
        return NOTHING

    def _of_kinds(self, origin: str, args: Sequence[Any], place: Place) -> Any:
        """Return what functions say of classes; `NOTHING` of others."""
        match origin:
            case "type" if len(args) == 1 and (is_plain(args[0]) or getattr(args[0], "kind", None)):
                kind = getattr(args[0], "kind", None) or type(real(args[0])).__name__
                return Symbol(kind, kind) if isinstance(kind, str) else kind
            case "issubclass" if len(args) == 2 and isinstance(args[0], Class):
                return is_a(Record(args[0].name, place, kind=args[0]), args[1])
            case "callable" if args and isinstance(args[0], Function | Class | Bound):
                return True
            case "asyncio.run" if args and not isinstance(args[0], Record):
                return args[0]
        return NOTHING

    def _of_collections(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what `collections` makes; `NOTHING` of others."""
        match origin:
            case "collections.namedtuple" if len(args) > 1 and isinstance(args[1], list | str):
                names = args[1].replace(",", " ").split() if isinstance(args[1], str) else args[1]
                usual = given.get("defaults") or []
                defaults = [*[MISSING] * (len(names) - len(usual)), *usual]
                base = Symbol("NamedTuple", "typing.NamedTuple")
                own = Scope({"__qualname__": str(args[0])}, None, place.file)
                return Class(
                    str(args[0]), (base,), own, dict(zip(names, defaults, strict=False)), dict.fromkeys(names, place)
                )
            case "collections.defaultdict":
                table = Table(entries(args[1]) if len(args) > 1 else {})
                table.make = args[0] if args else None
                return table if args else NOTHING
            case "collections.Counter" if (
                args and (items := self.items(args[0])) is not None and all(map(is_key, items))
            ):
                table = Table(Counter(items))
                table.make = Symbol("int", "int")
                return table
            case "dict.fromkeys" if args and (items := self.items(args[0])) is not None:
                return {one: args[1] if len(args) > 1 else None for one in items if is_key(one)}
        return NOTHING

    def _of_machine(self, origin: str, args: Sequence[Any], place: Place) -> Any:
        """Return what the environment or the machine says; `NOTHING` of other functions."""
        last, first = origin.rpartition(".")[2], args[0] if args and isinstance(args[0], str) else None
        if origin == "len" and args and getattr(args[0], "origin", "") == "sys.argv":
            ends = (int(name[9:]) for name in self.given if re.fullmatch(r"sys\.argv\.\d{1,3}", name))
            return literal(self.given.get("sys.argv", 1 + max(ends, default=0)))  # nothing else stands there
        if origin in {"os.environ.get", "os.getenv"} and first is not None:
            return self.open(first, args[1] if len(args) > 1 else MISSING, place)
        if origin == "os.environ.setdefault" and first is not None and len(args) > 1:
            if first not in self.environment:
                said = literal(self.given.get(first, args[1]))
                self.environment[first] = self.doubted(MISSING, said), place
            return self.environment[first][0]
        if origin == "os.environ.update" and isinstance(entries := args[0] if args else None, dict):
            self.environment |= {str(key): (one, place) for key, one in entries.items()}
            return None
        if last == "get_device_capability":
            return [self.open(last, 8, place), 0]
        if last == "get_default_supported_precision":  # litgpt/utils.py, where GPUs have bf16
            return "bf16-mixed"
        if last in {"get_world_size", "device_count"}:
            return self.open(last, MISSING, place, "is the number of GPUs: `gpus=N` says it")
        return NOTHING

    def loaded(self, file: Any, place: Place) -> Any:
        """Return what the document holds that a program opens; `NOTHING` of what is no document."""
        named = path_of(file)
        found = self._document(named, place)
        why = NAMING if isinstance(named, Unknown) else ABSENT
        if isinstance(named, Unknown) or (found is None and isinstance(named, str) and named.endswith(DOCUMENTS)):
            name = named.name if isinstance(named, Unknown) else named
            self.lost[name] = why, place
            return Unknown(name, why)
        return NOTHING if found is None else found

    def _document(self, named: Any, place: Place) -> Any:
        """Return what a document holds: one that the program wrote, or one that is here; None of others."""
        if not isinstance(named, str):
            return None
        self.steps += LOOKED
        return copied(self.written[named], {}) if named in self.written else self.load(named, place.file)

    def _table(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return a dictionary whose entries are attributes too, or what OmegaConf makes of such."""
        does, first = origin.rpartition(".")[2], args[0] if args else {}
        if does == "load":
            first = self.loaded(first, place)
            first = NOTHING if first is NOTHING else interpolated(first, first, 0)
        elif does in {"to_container", "to_object"}:
            return entries_of(first, {})
        elif does == "from_cli":
            return Record("Namespace", place, origin="cli")
        elif does == "merge":
            return self._merged(args, place)
        elif does == "structured" or isinstance(first, Record):
            return self.made(first, (), {}, place, {}) if isinstance(first, Class) else first
        elif origin not in TABLES and does != "create":
            return None
        if not isinstance(first, dict):
            return first
        return as_table({**first, **given}, origin, place, 0)

    def _merged(self, args: Sequence[Any], place: Place) -> Any:
        """Return tables with what later ones say, and what the caller says where a command line is among them."""
        unknown = next((one for one in args if isinstance(one, Unknown)), None)
        if any(weight(entries_of(one, {})) > MAX_PARTS for one in args):
            return Unknown("...", "is out of bounds")
        made = Record("Namespace", place, origin="omegaconf")
        for one in args:
            if isinstance(one, Record) and one.origin == "cli":
                self._overridden(made, "")
            else:
                merge(made, as_table(one, "omegaconf", place, 0) if isinstance(one, dict) else one, 0)
        return unknown or made

    def _overridden(self, whole: Record, prefix: str) -> None:
        for name, one in list(whole.parts.items()):
            if isinstance(one, Record) and is_table(one):
                self._overridden(one, f"{prefix}{name}.")
            elif f"{prefix}{name}" in self.given:
                whole.parts[name] = literal(self.given[f"{prefix}{name}"])

    def _mapped(self, origin: str, function: Any, args: Sequence[Any], place: Place) -> Any:
        """Call a function once for each item; what is no list counts as one item."""
        lists = [self.items(one) for one in args]
        items = None if None in lists else lists[0]
        every = list(args) if items is None else items
        rows = [args] if items is None else [*zip(*(one or [] for one in lists), strict=False)]
        found = [row[0] if function is None else self.call(function, row, {}, place) for row in rows[:MAX_ITEMS]]
        holds = [self.truth(one) for one in found]
        if origin == "filter" and all(isinstance(one, bool) for one in holds):
            found = [one for one, held in zip(every, holds, strict=False) if held]
        elif origin == "filter":
            items = None
        return Stream(found) if isinstance(items, list) else Unknown(origin, "is not followed")

    def _reflected(self, origin: str, args: Sequence[Any], place: Place) -> Any:
        """Return what `getattr`, `hasattr`, `setattr`, `isinstance`, `map`, `filter` and loading a file do."""
        if origin in COMMAND_LINES:
            return self._told(args[0], place)
        if origin in LOADERS:
            return self.loaded(args[0], place)
        if origin == "dataclasses.asdict":
            return entries_of(args[0], {}) if isinstance(args[0], Record) else NOTHING
        if origin == "isinstance":
            return is_a(args[0], args[1])
        if origin in {"map", "filter"}:
            return self._mapped(origin, args[0], args[1:], place)
        name = args[1] if isinstance(args[1], str) else "..."
        if origin == "hasattr":
            return _has(args[0], name)
        if origin == "setattr":
            self.assigned.append(Assigned(args[0], name, place, args[2]))
            return self.put(args[0], name, args[2], place)
        lacking = len(args) > REFLECTING[origin] and _has(args[0], name) is False
        return args[2] if lacking else self.attribute(args[0], name, place)


def _adapters(model: Record, place: Place) -> Any:
    """Return the adapters that `get_peft_config` makes of a command line that is known (trl 1.16 trainer/utils.py).

    It makes none without `--use_peft`, which is off where nothing is said.
    """
    if "**" in model.parts or not model.origin.endswith("ModelConfig"):
        return NOTHING
    if model.parts.get("use_peft") is not True:
        return None
    named = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
             "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}  # fmt: skip
    usual = {"lora_r": 16, "lora_dropout": 0.05}
    parts = {own: value for own, name in named.items() if (value := model.parts.get(name, usual.get(name))) is not None}
    return Record("LoraConfig", place, parts, origin="peft.LoraConfig")


def _wrapped(called: Symbol, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
    """Return the call that `functools.partial` and NeMo-Run's configurations stand for, TRL's adapters."""
    if called.origin.endswith(".get_peft_config") and args and isinstance(args[0], Record):
        return _adapters(args[0], place)
    if called.origin not in WRAPPERS or not args or not isinstance(args[0], Symbol | Function | Class):
        return NOTHING
    if called.origin == "functools.partial" and isinstance(args[0], Function):
        return args[0].bound(*args[1:], **given)
    parts = {**{str(at): one for at, one in enumerate(args[1:])}, **given}
    origin = args[0].origin if isinstance(args[0], Symbol) else args[0].name
    return Record(args[0].name, place, parts, {}, None, origin)


def _has(whole: Any, name: str) -> bool | Unknown:
    if isinstance(whole, Record):
        if isinstance(whole.parts.get(name), Perhaps):
            return whole.parts[name]
        if name in whole.parts or (whole.kind and whole.kind.find(name)):
            return True
        other = whole.kind is None and not is_table(whole)
        return Unknown(f"{whole.name}.{name}", "is not stated") if other else False
    return first_unknown(whole) or False


def is_a(value: Any, kind: Any) -> bool | Unknown:
    """Whether a value is an object of a class, or of one of several."""
    kinds = kind if isinstance(kind, list) else [kind]
    if isinstance(value, Member) and any(one in value.kind.line() for one in kinds if isinstance(one, Class)):
        return True
    names = [one.name.rpartition(".")[2] for one in kinds if isinstance(one, Symbol | Class)]
    if isinstance(value, Record):
        own = [one.name for one in value.kind.line()] if value.kind else [value.name.rpartition(".")[2]]
        made = bool(own[0][:1].isupper()) or not (set(names) - TYPES.keys())
        return bool(set(own) & set(names)) if made else Unknown(value.name, "is of another package")
    if not is_plain(value) and value is not None:
        return first_unknown(value) or False
    plain = real(value) if isinstance(value, Row | Unique) else value
    return any(isinstance(plain, TYPES[name]) for name in names if name in TYPES)


def copied(value: Any, made: dict[int, Any]) -> Any:
    """Return a value whose parts can be changed without changing those of the other; `made`: copies, by their `id`."""
    if id(value) in made or not isinstance(value, list | dict | Record):
        return made.get(id(value), value)
    own = made[id(value)] = copy(value)
    if isinstance(own, list):
        own[:] = [copied(one, made) for one in own]
    elif isinstance(own, dict):
        own.update({key: copied(one, made) for key, one in own.items()})
    else:
        own.parts, own.places = {key: copied(one, made) for key, one in own.parts.items()}, dict(own.places)
    return own
