"""Calls: functions and classes that are here are followed, of others a record is kept."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from gpuscale.launch.python_builtins import WRAPPERS, Builtins
from gpuscale.launch.python_state import ABSENT, MAX_DEPTH, NAMING, NOTHING, entries, literal, own_method
from gpuscale.launch.python_values import (
    ENUMERATIONS,
    MISSING,
    TEXT_METHODS,
    Bound,
    Class,
    Failed,
    Function,
    Place,
    Property,
    Record,
    Row,
    Scope,
    Stream,
    Symbol,
    Unknown,
    first_unknown,
    is_plain,
    member,
    operate,
    value_of,
)

AROUND = ("train_on_responses_only", "prepare_trainer", "add_config_arguments")
"""Calls that return the trainer or the parser that they are given, as it is (Unsloth, Ray Train, DeepSpeed)."""


OF_DEEPSPEED = ("deepspeed", "deepspeed_config", "hf_ds_config", "ds_config")


OF_ENGINE = ("config", "config_params")
"""Keywords that take DeepSpeed's configuration, or the name of its file; of DeepSpeed's own calls alone."""


STARTS = ("train", "fit")
"""Methods that start a training, whatever is made of what they return."""


MAYBE = " returned"
"""Name in the scope of a function of what it may have returned; no name of Python has a space."""


CLASS = " class"
"""Name in the scope of a class of the class itself."""


class Calls(Builtins):
    """Calls of functions and classes."""

    def chosen_of(self, function: Function) -> dict[str, Any]:
        """Return what the caller says of a function's arguments."""
        spec = function.node.args
        names = (one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
        return {name: literal(self.given[name]) for name in names if name in self.given}

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        place = scope.place(node)
        args = [self.within_bounds(one) for one in self._values(node.args, scope)]
        self.steps += len(args) // 10
        given: dict[str, Any] = {}
        for word in node.keywords:
            value = self.within_bounds(self.value(word.value, scope))
            given |= {word.arg: value} if word.arg else self._keywords(value, word.value)
        places = {str(at): scope.place(one) for at, one in enumerate(node.args)}
        places |= {word.arg: scope.place(word.value) for word in node.keywords if word.arg}
        if isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value).startswith("super("):
                return self._of_bases(node.func.attr, args, given, places, scope)
            whole = self.value(node.func.value, scope)
            made = self._method(whole, node.func.attr, args, given, place)
            if made is not NOTHING:
                return made
            called = self.attribute(whole, node.func.attr, place)
        else:
            called = self.value(node.func, scope)
        return self.call(called, args, given, place, node.func, places)

    def _keywords(self, value: Any, node: ast.expr) -> dict[str, Any]:
        """Return what `**` gives: where no file says it, what the caller says of its name (`{"bf16": True}`)."""
        found = entries(value)
        if "**" not in found:
            return found
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)[:80]
        said = literal(self.given.get(name))
        if isinstance(said, dict) or found["**"].why in {ABSENT, NAMING}:
            return said if isinstance(said, dict) else found
        return {"**": Unknown(name, "is of no file that is here")}

    def _of_bases(
        self, name: str, args: list[Any], given: dict[str, Any], places: Mapping[str, Place], scope: Scope
    ) -> Any:
        """Call a method of the bases of the class whose method this is: `super().__init__(...)`.

        Of a class of another package the arguments of `__init__` are parts of the object, as where it is called itself.
        """
        around: Scope | None = scope
        while around is not None and CLASS not in around.names:
            scope, around = around, around.outer
        record = next(iter(scope.names.values()), None)
        kind = record.kind if isinstance(record, Record) else record
        if around is None or not isinstance(kind, Class):
            return None
        line, here = kind.line(), around.names[CLASS]
        later = line[line.index(here) + 1 :] if here in line else []
        own = next((one.scope.names[name] for one in later if name in one.scope.names), None)
        if isinstance(own, Function):
            bound = own if own.decorated("staticmethod") else own.bound(record)
            return self.follow(bound, args, given, Place(scope.file, 0))
        if not isinstance(record, Record):
            return Unknown(name, "is of another package")
        if name == "__init__":
            for key, value in {**{str(at): one for at, one in enumerate(args)}, **given}.items():
                record.put(key, value, places.get(key, record.places.get(key, record.place)))
        return None

    def call(
        self, called: Any, args: Sequence[Any], given: Mapping[str, Any], place: Place, written: ast.expr | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> Any:  # fmt: skip
        """Return what a call returns, or a record of it where it is not followed."""
        if isinstance(called, Class):
            return self.made(called, args, given, place, places or {})
        if isinstance(called, Bound):
            return self._method(called.whole, called.name, [*args], dict(given), place)
        if does := called if isinstance(called, Function) else own_method(called, "__call__"):
            return self.follow(does, args, given, place)
        if is_plain(called) and called is not None:  # what the caller says that a function returns
            return called
        if isinstance(called, Symbol) and "." in called.name and called.name in self.given:
            return literal(self.given[called.name])
        if isinstance(called, Unknown) and called.why != "is not stated":
            return Unknown(called.name, called.why or "is called")
        made = self._known(called, args, given, place) if isinstance(called, Symbol) else NOTHING
        if isinstance(made, Record) and isinstance(called, Symbol) and called.origin in WRAPPERS:
            made.places |= places or {}
        return self._recorded(called, args, given, place, written, places) if made is NOTHING else made

    def _recorded(
        self, called: Any, args: Sequence[Any], given: Mapping[str, Any], place: Place, written: ast.expr | None,
        places: Mapping[str, Place] | None,
    ) -> Any:  # fmt: skip
        """Return the record of a call that is not followed."""
        if getattr(called, "origin", "") == "deepspeed.initialize":
            given = _configured(args, given)
        parts = {**{str(at): one for at, one in enumerate(args)}, **self._opened(given, called, place)}
        own = isinstance(called, Symbol | Record)
        if own and called.name.rpartition(".")[2] in AROUND and (within := parts.get("0", parts.get("trainer"))):
            if isinstance(within, Record) and called.origin == "deepspeed.add_config_arguments":
                within.parts.setdefault("deepspeed_config", None)
            return within
        name = called.name if own else ast.unparse(written)[:200] if written is not None else "..."
        origin = called.origin if own else name
        made = Record(name, place, parts, dict(places or {}), None, origin, None if own else called)
        if any(one is called for one in self.unfollowed):  # of what another call returned
            self.again.add(id(made))
        self.unfollowed.append(made)
        return made

    def _opened(self, given: Mapping[str, Any], called: Any, place: Place) -> dict[str, Any]:
        """Return keywords with what the file holds that one names as DeepSpeed's configuration, if that is here."""
        engine = "deepspeed" in str(getattr(called, "origin", "")).lower()
        known = {name: self._document(given.get(name), place) for name in (*OF_DEEPSPEED, *OF_ENGINE * engine)}
        return {**given, **{name: one for name, one in known.items() if one is not None}}

    def _given_to(self, function: Function, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Scope:
        """Return the names of a call: arguments, and defaults of others."""
        spec = function.node.args
        names = [one.arg for one in (*spec.posonlyargs, *spec.args)]
        usual = function.usual
        scope = Scope({}, function.scope, function.scope.file, function.scope.lines)
        every = (*function.args, *args)
        scope.names.update(zip(names, every, strict=False))
        words = {**function.given, **given}
        known = {*names, *(one.arg for one in spec.kwonlyargs)}
        scope.names.update({name: value for name, value in words.items() if name in known})
        if spec.vararg:
            scope.names[spec.vararg.arg] = Row(every[len(names) :])
        if spec.kwarg:
            scope.names[spec.kwarg.arg] = {name: value for name, value in words.items() if name not in known}
        for name in (*names, *(one.arg for one in spec.kwonlyargs)):
            if name not in scope.names:
                default = usual.get(name, MISSING)
                told = default is MISSING or function.decorated("command")  # by a command line (click, typer)
                scope.names[name] = self.open(name, default, place) if told else default
        return scope

    def follow(self, function: Function, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what a function that is here returns."""
        if self.depth >= MAX_DEPTH:
            return Unknown(function.name, "calls itself too often")
        self.followed.add(function.node)
        scope = self._given_to(function, args, given, place)
        self.depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            ended = self.run(function.node.body, scope)
        finally:
            self.depth -= 1
        if scope.yielded:
            if function.decorated("contextmanager"):
                return scope.yielded[0]
            return Unknown(function.name, "yields one thing after the other") if scope.unsure else Stream(scope.yielded)
        if ended is not None and ended.how == "raise" and self.doubt is not None:
            return self.doubt
        value = ended.value if ended is not None and ended.how == "return" else None
        for other, why in scope.names.get(MAYBE, []):
            if operate(ast.Is(), other, value) is not True and other != value:
                return why
        return value

    def made(
        self, kind: Class, args: Sequence[Any], given: Mapping[str, Any], place: Place, places: Mapping[str, Place]
    ) -> Any:
        """Return an object of a class that is here."""
        if kind.made_from(*ENUMERATIONS) and len(args) == 1 and not given:
            same = (one for one in kind.members() if operate(ast.Eq(), value_of(one), value_of(args[0])) is True)
            found = next(same, None)
            return first_unknown(args[0]) or (Failed("...", error="ValueError") if found is None else found)
        record = Record(kind.name, place, kind=kind, origin=kind.origin)
        own = kind.find("__init__")
        if own and isinstance(own[0], Function):
            self.follow(own[0].bound(record), args, given, place)
            return record
        fields: dict[str, Any] = {}
        for one in reversed(kind.line()):
            fields |= one.fields
            record.places |= {name: one.places[name] for name in one.fields}
        for name, default in fields.items():
            if default is not MISSING:
                record.parts[name] = self._default(default, place)
        taken = [
            name for name, one in fields.items() if not (isinstance(one, Record) and one.parts.get("init") is False)
        ]
        for at, value in enumerate(args):
            name = taken[at] if at < len(taken) else str(at)
            record.put(name, value, places.get(str(at), place))
        for name, value in given.items():
            record.put(name, value, places.get(name, place))
        after = kind.find("__post_init__")
        if after and isinstance(after[0], Function):
            extra = [record.parts.get(name) for one in reversed(kind.line()) for name in one.initial]
            self.follow(after[0].bound(record), extra, {}, place)
        return record

    def _default(self, default: Any, place: Place) -> Any:
        """Return a default of a dataclass's field, of `field(...)` what it makes; objects are not shared."""
        if isinstance(default, Record) and default.name.rpartition(".")[2].lower() == "field":
            if "default_factory" in default.parts:
                return self.call(default.parts["default_factory"], (), {}, place)
            return default.parts.get("default", default.parts.get("0", Unknown("...", "is not stated")))
        if isinstance(default, Record):
            return default.copy()
        return default.copy() if isinstance(default, list | dict) else default

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        outer = scope.names.get("__qualname__")
        name = f"{outer}.{node.name}" if outer else node.name
        own = Scope({"__qualname__": name}, scope, scope.file, scope.lines)
        with self.surely():
            self.run(node.body, own)
        fields: dict[str, Any] = {}
        places: dict[str, Place] = {}
        initial: list[str] = []
        for one in node.body:
            if not isinstance(one, ast.AnnAssign) or "ClassVar" in ast.unparse(one.annotation):
                continue
            if isinstance(one.target, ast.Name):
                fields[one.target.id] = own.names.get(one.target.id, MISSING)
                places[one.target.id] = scope.place(one)
                initial += [one.target.id] if "InitVar" in ast.unparse(one.annotation) else []
        made = Class(name, tuple(self.value(base, scope) for base in node.bases), own, fields, places, tuple(initial))
        own.names[CLASS] = made
        if made.made_from(*ENUMERATIONS):
            _enumerate(made)
        return made

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> Function:
        """Return a function with the defaults of its arguments."""
        return Function(node, scope, {name: self.usual(one, scope) for name, one in defaults(node).items()})

    def _method(self, whole: Any, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a plain value or of a record of a parser returns; `NOTHING` of others."""
        if (plain := self._of_plain(whole, name, args, given, place)) is not NOTHING:
            return plain
        if isinstance(whole, Unknown) and name in TEXT_METHODS:  # `args.dtype.lower()`: who knows the text knows it
            return whole
        if isinstance(whole, Record) and (said := self._parsed(whole, name, args, given, place)) is not NOTHING:
            return said
        if not isinstance(whole, Record):
            self._map_samples(name, args if isinstance(whole, Unknown) else [])
            return NOTHING
        if name in {"_asdict", "_replace"} and whole.kind and whole.kind.made_from("NamedTuple"):
            return (
                dict(whole.parts)
                if name == "_asdict"
                else self._of_objects("dataclasses.replace", [whole], given, place)
            )
        own = name in whole.parts or (whole.kind and whole.kind.find(name))
        return NOTHING if own else self._of_other(whole, name, args, given, place)

    def _map_samples(self, name: str, args: list[Any]) -> None:
        """Go through a function once that is mapped over samples, for what it does."""
        if name == "map" and args and isinstance(args[0], Function) and not args[0].args:
            with self.doubting(Unknown("sample")):
                self.follow(args[0], (Unknown("sample"),), {}, Place("", 0))

    def _of_other(self, whole: Record, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of an object of another package returns: what the caller says, else a record."""
        if name in self.given and whole.kind is None:
            return literal(self.given[name])
        parts = {"of": whole, **{str(at): one for at, one in enumerate(args)}, **given}
        self._map_samples(name, args)
        if name in STARTS:
            self.started.setdefault(id(whole), (len(self.unfollowed), len(self.assigned)))
        self.unfollowed.append(Record(name, place, parts, {}, None, f"{whole.origin}.{name}"))
        return self.unfollowed[-1]


def defaults(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> dict[str, ast.expr]:
    """Return the defaults of a function's arguments, and those that decorators of click state for them."""
    spec = node.args
    names = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    found = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
    found |= {one.arg: own for one, own in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if own is not None}
    for one in getattr(node, "decorator_list", ()):
        if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("option"):
            words = {word.arg: word.value for word in one.keywords}
            flag = words.get("is_flag") and ast.Constant(False)
            own = [ast.literal_eval(arg).lstrip("-").split("/")[0].replace("-", "_") for arg in one.args
                   if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]  # fmt: skip
            usual = words.get("default", flag)
            found |= {name: usual for name in own if usual is not None and name in names}
    return found


def _enumerate(kind: Class) -> None:
    """Make members of the values of an enumeration."""
    last = 0
    for name, one in list(kind.scope.names.items()):
        if not name.startswith(("_", " ")) and not isinstance(one, Function | Property | Class):
            automatic = isinstance(one, Record) and one.name.rpartition(".")[2] == "auto"
            value = (name.lower() if kind.made_from("StrEnum") else last + 1) if automatic else one
            last = value if isinstance(value, int) else last
            kind.scope.names[name] = member(value, name, kind)


def _configured(args: Sequence[Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what DeepSpeed's engine is given, with the file that its first argument names where no other is named."""
    told = given.get("args", args[0] if args else None)
    named = told.parts.get("deepspeed_config") if isinstance(told, Record) else None
    other = any(given.get(one) is not None for one in OF_ENGINE)
    return given if named is None or other else {**given, "config": named}
