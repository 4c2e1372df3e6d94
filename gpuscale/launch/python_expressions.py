"""What expressions of a Python file come to, and what assignments change."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpuscale.launch.python_state import (
    ABSENT,
    CHOOSING,
    MAX_CHOICES,
    MAX_STEPS,
    NAMING,
    NOTHING,
    Assigned,
    Choice,
    RaisedError,
    State,
    decides,
    entries,
    error_names,
    literal,
    own_method,
    part_of,
)
from gpuscale.launch.python_tables import is_table
from gpuscale.launch.python_values import (
    ENUMERATIONS,
    MAX_ITEMS,
    MAX_PARTS,
    MISSING,
    TYPES,
    Bound,
    Class,
    Failed,
    Function,
    Member,
    PathText,
    Perhaps,
    Place,
    Property,
    Record,
    Rest,
    Row,
    Scope,
    Stream,
    Symbol,
    Table,
    Unique,
    Unknown,
    asked_name,
    attempt,
    first_unknown,
    formatted,
    is_key,
    is_plain,
    of_path,
    operate,
    plainly,
    real,
    truth,
    value_of,
    weight,
)

SIGNATURES = ("inspect.", "signature", "dataclasses.fields", "fields")
"""Functions by which scripts leave out arguments that a release does not know."""


class Expressions(State):
    """Expressions and assignments."""

    def value(self, node: ast.expr | None, scope: Scope, *, make: bool = False) -> Any:
        """Return what an expression comes to; `make`: parts of records that are not there yet are made."""
        self.steps += 1
        if node is None or self.steps > MAX_STEPS:
            return Unknown("...", "is out of bounds")
        found = getattr(self, f"_{type(node).__name__.lower()}", None)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(node.value, scope, make=make), node.attr, scope.place(node), make=make)
        made = found(node, scope) if found is not None else Unknown(_kind_of(node), "is not followed")
        if not isinstance(node, ast.Name | ast.Subscript):
            made = self.within_bounds(made)
        if isinstance(made, Unknown) and made.name == "..." and not isinstance(node, ast.Constant):
            failed, made = made, Unknown(ast.unparse(node)[:80], made.why, made.of)  # by which it can be given
            said = literal(self.given.get(asked_name(made.name), made))
            if said is made and isinstance(failed, Failed) and self.tries:
                raised = Record(failed.error, scope.place(node), origin=failed.error)
                self.raised(RaisedError(error_names(raised), raised))
            return said
        return made

    def within_bounds(self, value: Any) -> Any:
        """Return a value, or that it is out of bounds; going through what is in it counts as so many steps."""
        size = len(value) // 10 if isinstance(value, str) else weight(value)
        self.steps += size // 10
        return value if size <= MAX_PARTS else Unknown("...", "is out of bounds")

    def _constant(self, node: ast.Constant, _: Scope) -> Any:
        value = node.value
        return value if is_plain(value) and (not isinstance(value, str) or len(value) <= MAX_ITEMS) else Unknown("...")

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        return self.resolved(found[0]) if found else Symbol(node.id, node.id)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        while scope.within and scope.outer is not None:
            scope = scope.outer
        self.assign(node.target, value, scope)
        return value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        return self._values(node.elts[:MAX_ITEMS], scope)

    def _values(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        """Return what expressions come to, those behind a star one by one."""
        found: list[Any] = []
        for one in nodes:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            items = self.items(value) if isinstance(one, ast.Starred) else None
            rest = isinstance(one, ast.Starred) and isinstance(value, Unknown)
            found += items if items is not None else [Rest(value.name, value.why) if rest else value]
        return found

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        return self._unique(self._list(node, scope))

    def _unique(self, items: list[Any]) -> Any:
        """Return a set of elements; where one is not known nobody knows how many it has."""
        unknown = next((one for one in map(_open, items) if one is not None), None)
        return attempt(Unique, items if unknown is None else [*items, Rest(unknown.name, unknown.why)])

    def items(self, value: Any) -> list[Any] | None:
        """Return what going through a value gives one after the other; None where that is not known."""
        if isinstance(value, Stream):
            left, value[:] = list(value), []
            return left
        if isinstance(value, list):
            return list(value) if isinstance(value, Unique) else value
        if isinstance(value, dict) or (isinstance(value, str) and not isinstance(value, PathText)):
            return list(value)
        if isinstance(value, Class) and value.made_from(*ENUMERATIONS):
            return value.members()
        if isinstance(value, Record) and value.kind and value.kind.made_from("NamedTuple"):
            return [value.parts.get(name) for one in reversed(value.kind.line()) for name in one.fields]
        if does := own_method(value, "__iter__"):
            return self.items(self.follow(does, (), {}, value.place))
        return None

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Row:
        return Row(self._list(node, scope))

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            own = self.value(value, scope)
            if key is None:
                found |= entries(own)
                continue
            name = self.value(key, scope)
            if isinstance(name, Unknown):
                self.put(found, name, own, scope.place(node))
            else:
                found[name if is_key(name) else getattr(name, "name", "...")] = own
        return found

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            holds = self.truth(value)
            return not holds if isinstance(holds, bool) else holds
        self.steps += weight(value) // 10
        signs = {ast.USub: lambda one: -one, ast.UAdd: lambda one: +one, ast.Invert: lambda one: ~one}
        return first_unknown(value) or plainly(signs[type(node.op)], value)

    def truth(self, value: Any) -> bool | Unknown:
        """Return whether a value counts as true."""
        does = own_method(value, "__bool__") or own_method(value, "__len__")
        return truth(value if does is None else self.follow(does, (), {}, value.place))

    def holds(self, test: ast.expr, scope: Scope) -> bool | Unknown:
        """Return whether a condition holds; of packages that are taken as installed keep that it hangs on them."""
        for one in ast.walk(test) if self.optional else ():
            if isinstance(one, ast.Name) and one.id in self.optional:
                self.chosen.setdefault(self.optional[one.id].name, self.optional[one.id])
        return self.truth(self.value(test, scope))

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        one, two = (self._said(self.value(side, scope)) for side in (node.left, node.right))
        self.steps += (weight(one) + weight(two)) // 10
        return operate(node.op, one, two)

    def _said(self, value: Any) -> Any:
        """Return what the caller says of a name of another package; other values as they are."""
        name = asked_name(value.name) if isinstance(value, Symbol) else ""
        return literal(self.given[name]) if name in self.given else value

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        wanted, why = isinstance(node.op, ast.Or), None
        value: Any = None
        for one in node.values:
            if why is None:
                before, value = value, self.value(one, scope)
            else:
                with self.doubting(why):
                    before, value = value, self.value(one, scope)
            usual = wanted and len(node.values) == 2 and isinstance(before, Unknown) and not before.why
            if usual and is_plain(value) and not isinstance(value, bool):
                self.chosen.setdefault(before.name, Choice(before.name, value, scope.place(node)))
                return value
            holds = self.truth(value)
            if holds is wanted:
                return value if why is None else wanted if isinstance(value, bool) else why
            why = why or (holds if isinstance(holds, Unknown) else None)
        return why if why is not None else value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        one, why = self.value(node.left, scope), None
        for operator, other in zip(node.ops, node.comparators, strict=True):
            two = self.value(other, scope)
            self.steps += (weight(one) + weight(two)) // 5
            if isinstance(two, Symbol) and two.origin == "os.environ" and isinstance(one, str):
                inside = one in self.environment or one in self.given
                two = {one: ""} if inside else Unknown(one, "may be set outside")
            holds = operate(operator, one, two.parts if is_table(two) else two)
            if holds is False:
                return False
            why = why or (holds if isinstance(holds, Unknown) else None)
            one = two
        return why if why is not None else True

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        holds = self.holds(node.test, scope)
        if isinstance(holds, bool):
            return self.value(node.body if holds else node.orelse, scope)
        why = decides(holds, scope.place(node))
        with self.doubting(why):
            one, two = self.value(node.body, scope), self.value(node.orelse, scope)
            if isinstance(one, dict) and isinstance(two, dict):  # what either has is there perhaps
                made = {key: self.doubted(two.get(key, MISSING), value) for key, value in one.items()}
                return made | {key: self.doubted(MISSING, value) for key, value in two.items() if key not in one}
        return one if operate(ast.Eq(), one, two) is True else why

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts: list[str] = []
        for one in node.values:
            if isinstance(one, ast.Constant):
                parts.append(str(one.value))
                continue
            assert isinstance(one, ast.FormattedValue)
            value = self.value(one.value, scope)
            spec = self.value(one.format_spec, scope) if one.format_spec is not None else ""
            self.steps += weight(value) // 10
            unknown = first_unknown(value, spec)
            if unknown is not None:
                return unknown
            parts.append(str(formatted(repr(value) if one.conversion == ord("r") else value, str(spec))))
        return "".join(parts)[:MAX_ITEMS]

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        whole, key = self.value(node.value, scope), self.key_of(node, scope)
        if isinstance(node.slice, ast.Slice) and not isinstance(whole, str | list | Unknown):
            return Unknown(_kind_of(node))
        self.steps += len(whole) // 20 if isinstance(key, slice) and isinstance(whole, list) else 0
        if isinstance(whole, Record):
            return self._element(whole, key, scope.place(node))
        if isinstance(whole, Class) and whole.made_from(*ENUMERATIONS) and isinstance(key, str):
            return self.attribute(whole, key, scope.place(node))
        if isinstance(whole, Symbol) and whole.origin == "os.environ" and isinstance(key, str):
            return self.open(key, MISSING, scope.place(node))
        if isinstance(whole, Symbol) and whole.origin == "sys.argv" and isinstance(key, int):
            return self.open(f"sys.argv.{key}", MISSING, scope.place(node))
        if isinstance(whole, Symbol) and not _is_type(key):
            inner = repr(key).replace(".", "_") if is_plain(key) else "_"
            return self._said(Symbol(f"{whole.name}[{inner}]", f"{whole.origin}[{inner}]"))
        if isinstance(whole, Symbol | Class):  # `Sequence[int]`
            return whole
        if isinstance(whole, Unknown) and isinstance(key, str):
            return self.attribute(whole, key, scope.place(node))
        return self._entry(whole, key, scope.place(node))

    def _entry(self, whole: Any, key: Any, place: Place) -> Any:
        """Return an entry of a dictionary, an element of a list or a part of a text."""
        unknown = whole if isinstance(whole, Unknown) else key if isinstance(key, slice) else first_unknown(key)
        if isinstance(unknown, Unknown):
            return self._chooses(unknown, whole)
        if isinstance(whole, Table) and is_key(key) and key not in whole and "**" not in whole:
            self.put(whole, key, self.call(whole.make, (), {}, place), place)
        lacks = isinstance(whole, dict) and "**" in whole and key not in whole
        return whole["**"] if lacks else attempt(lambda: whole[key])

    def _element(self, whole: Record, key: Any, place: Place) -> Any:
        """Return an element of an object; the arguments of a call are none of what it returns."""
        if does := own_method(whole, "__getitem__"):
            return self.follow(does, (key,), {}, place)
        if isinstance(key, int) and whole.kind and whole.kind.made_from("NamedTuple"):
            return attempt((self.items(whole) or []).__getitem__, key)
        if isinstance(key, int) and whole.kind is None and whole.name and not is_table(whole):
            return part_of(self.open(f"{whole.name}.{key}", MISSING, place, "is not stated"), whole)
        return self.attribute(whole, str(key), place)

    def _chooses(self, unknown: Unknown, among: Any) -> Unknown:
        """Return what chooses among the entries of a dictionary, which it may be; others as they are."""
        if not isinstance(among, dict) or not all(isinstance(one, str) for one in among):
            return unknown
        self.choices.setdefault(asked_name(unknown.name), tuple(among)[:MAX_CHOICES])
        return replace(unknown, why=CHOOSING)

    def key_of(self, node: ast.Subscript, scope: Scope) -> Any:
        """Return what stands in brackets; of `[1:n]` the slice, if its ends are known."""
        if not isinstance(node.slice, ast.Slice):
            return self.value(node.slice, scope)
        ends = [None if end is None else self.value(end, scope)
                for end in (node.slice.lower, node.slice.upper, node.slice.step)]  # fmt: skip
        return first_unknown(*ends) or slice(*ends)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Any:
        return self._comprehended(node.generators, scope, lambda inner: self.value(node.elt, inner))

    def _setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        found = self._listcomp(node, scope)
        return self._unique(found) if isinstance(found, list) else found

    def _generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        found = self._listcomp(node, scope)
        return Stream(found) if isinstance(found, list) else found

    def _dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        pairs = self._comprehended(
            node.generators, scope, lambda inner: (self.value(node.key, inner), self.value(node.value, inner))
        )
        return pairs if isinstance(pairs, Unknown) else {key: one for key, one in pairs if is_key(key)}

    def _comprehended(
        self, generators: list[ast.comprehension], scope: Scope, make: Callable[[Scope], Any]
    ) -> list[Any] | Unknown:
        """Return what `make` returns for each choice of the loops of a comprehension."""
        inner, found = Scope({}, scope, scope.file, scope.lines, within=True), list[Any]()

        def choose(at: int) -> Unknown | None:
            if at == len(generators):
                found.append(make(inner))
                return None
            one = generators[at]
            every = self.value(one.iter, inner if at else scope)
            items = self.items(every)
            if items is None:  # once, for what it does: `[freeze(layer) for layer in model.layers]`
                why = part_of(first_unknown(every) or Unknown("..."), every)
                self.assign(one.target, every if isinstance(every, Record) else why, inner)
                make(inner)
                return replace(why, name="...") if why.why == "is of another package" else why
            for item in items:
                self.assign(one.target, item, inner)
                holds = [self.truth(self.value(test, inner)) for test in one.ifs]
                unknown = next((what for what in holds if isinstance(what, Unknown)), None)
                if unknown is not None and not unknown.name.startswith(SIGNATURES):  # which change nothing
                    return unknown
                if all(holds) and (stop := choose(at + 1)) is not None:
                    return stop
                if len(found) > MAX_ITEMS or self.steps > MAX_STEPS:
                    return Unknown("...", "is out of bounds")
            return None

        return choose(0) or found

    def _yield(self, node: ast.Yield, scope: Scope) -> None:
        self._yields([self.value(node.value, scope) if node.value is not None else None], scope)

    def _yieldfrom(self, node: ast.YieldFrom, scope: Scope) -> None:
        self._yields(self.items(self.value(node.value, scope)), scope)

    def _yields(self, items: list[Any] | None, scope: Scope) -> None:
        """Keep what a generator yields; None where nobody knows what or how often."""
        scope.unsure = scope.unsure or items is None or self.doubt is not None or len(scope.yielded) > MAX_ITEMS
        scope.yielded += [Unknown("...")] if items is None else items

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self.function(node, scope)

    def attribute(self, whole: Any, name: str, place: Place, *, make: bool = False) -> Any:
        """Return an attribute of a value; `make`: of a record one that is not there yet is made."""
        if isinstance(whole, Record):
            return self._of_record(whole, name, place, make=make)
        if name in {"__name__", "__qualname__"} and isinstance(whole, Symbol | Class | Function):
            return whole.name.rpartition(".")[2]
        if isinstance(whole, Symbol):
            if f"{whole.origin}.{name}" in CONSTANTS:
                return CONSTANTS[f"{whole.origin}.{name}"]
            importer = self.whole.get(whole.origin)
            there = None if importer is None else self.imported(whole.origin, 0, importer)
            found = () if there is None else there.find(name)
            own = f"{whole.name}.{name}"
            return (
                self.resolved(found[0])
                if found
                else literal(self.given.get(own, Symbol(own, f"{whole.origin}.{name}")))
            )
        if isinstance(whole, Class):
            found = whole.find(name)
            bound = bool(found) and isinstance(found[0], Function) and found[0].decorated("classmethod")
            own = f"{whole.name}.{name}"
            return found[0].bound(whole) if bound else found[0] if found else Symbol(own, own)
        if isinstance(whole, Scope):
            return self.resolved(whole.names.get(name, Symbol(name, name)))
        if isinstance(whole, Unknown):
            whole_too = whole.why in {ABSENT, NAMING, CHOOSING}
            return whole if whole_too else part_of(self.open(f"{whole.name}.{name}", MISSING, place, whole.why), whole)
        return self._of_value(whole, name)

    def _of_value(self, whole: Any, name: str) -> Any:
        if isinstance(whole, PathText) and (found := of_path(whole, name)) is not None:
            return found
        if name == "name" and isinstance(whole, Member):
            return whole.label
        if name in {"value", "name"} and isinstance(whole, str | int | float):
            return value_of(whole)
        known = isinstance(whole, str | list | dict) and hasattr(real(whole), name)
        return Bound(whole, name) if known else Unknown(name, "is not followed")

    def _of_record(self, whole: Record, name: str, place: Place, *, make: bool) -> Any:
        own = whole.kind.find(name) if whole.kind else ()
        if own and isinstance(own[0], Property) and isinstance(own[0].get, Function) and name not in whole.parts:
            return self.follow(own[0].get.bound(whole), (), {}, place)
        if name in whole.parts:
            return whole.parts[name]
        if name == "__class__" and whole.kind:
            return whole.kind
        if name == "__dict__" and (whole.kind or is_table(whole)):
            return whole.parts
        if is_table(whole) and whole.origin.startswith("omegaconf"):
            return None
        if own and isinstance(own[0], Function):
            bound = whole.kind if own[0].decorated("classmethod") else whole
            return own[0] if own[0].decorated("staticmethod") else own[0].bound(bound)
        if own and own[0] is not MISSING:
            return own[0]
        if does := own_method(whole, "__getattr__"):
            return self.follow(does, (name,), {}, place)
        if make:
            whole.put(name, Record("", place, within=whole), place)
            return whole.parts[name]
        return part_of(self.open(f"{whole.name}.{name}".strip("."), MISSING, place, "is not stated"), whole)

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Set a name, an attribute, an element, or several of them."""
        if isinstance(target, ast.Name):
            of = scope.elsewhere.get(target.id, scope)
            known = of.names.get(target.id, NOTHING)
            of.names[target.id] = value if known is NOTHING else self.doubted(known, value)
            of.places[target.id] = scope.place(target)
        elif isinstance(target, ast.Tuple | ast.List):
            items = self.items(value)
            value = value if items is None else items
            for index, one in enumerate(target.elts):
                own = _dealt(value, index, target.elts)
                self.assign(one.value if isinstance(one, ast.Starred) else one, own, scope)
        elif isinstance(target, ast.Attribute):
            whole, place = self.value(target.value, scope, make=True), scope.place(target)
            if target.attr == "requires_grad" and value is not True:
                self.frozen.append(place)
            self._touched(target, whole, value, scope)
            own = own_method(whole, "__setattr__") is not None
            self.put(whole, target.attr, Unknown(target.attr, "is set by a method") if own else value, place)
        elif isinstance(target, ast.Subscript):
            self._assign_element(target, value, scope)

    def _assign_element(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        key = self.key_of(target, scope)
        if isinstance(target.value, ast.Name) and not scope.find(target.value.id):
            scope.names[target.value.id] = Record("", scope.place(target))
        whole = self.value(target.value, scope, make=True)
        if isinstance(whole, Symbol) and isinstance(target.value, ast.Name):  # a dictionary of another module
            whole = scope.names[target.value.id] = Record("", scope.place(target), origin=whole.origin)
        self._touched(target, whole, value, scope)
        if isinstance(whole, Symbol) and whole.origin == "os.environ" and isinstance(key, str):
            before = self.environment.get(key, (MISSING,))[0]
            self.environment[key] = (self.doubted(before, value), scope.place(target))
        if does := own_method(whole, "__setitem__"):
            self.follow(does, (key, value), {}, scope.place(target))
        else:
            self.put(whole, key, value, scope.place(target))

    def _touched(self, target: ast.Attribute | ast.Subscript, whole: Any, value: Any, scope: Scope) -> None:
        """Keep that an attribute or an element is set or deleted."""
        if isinstance(target, ast.Attribute):
            under = self.doubt.name if self.doubt else ""
            self.assigned.append(Assigned(whole, target.attr, scope.place(target), value, under))
        elif value is None or not isinstance(target.slice, ast.Slice | ast.Tuple):  # else values of a tensor
            name = ast.unparse(target.value).rpartition(".")[2][:80]
            self.assigned.append(Assigned(whole, name, scope.place(target), value))

    def put(self, whole: Any, key: Any, value: Any, place: Place) -> None:
        """Set a part of an object, an entry of a dictionary or an element of a list."""
        if isinstance(whole, Record):
            own = whole.kind.find(str(key)) if whole.kind else ()
            if own and isinstance(own[0], Property) and isinstance(own[0].set, Function):
                self.follow(own[0].set.bound(whole, value), (), {}, place)
                return
            before = whole.parts.get(str(key), MISSING)
            whole.put(str(key), self.doubted(before, value), place)
        elif isinstance(whole, dict) and isinstance(key, Unknown):  # any entry may be that
            whole |= dict.fromkeys(whole if not self.rounds else (), key)
            whole["**"] = Perhaps(key.name, key.why)
        elif isinstance(whole, dict) and is_key(key) and len(whole) < MAX_ITEMS:
            whole[key] = self.doubted(whole.get(key, MISSING), value)
        elif isinstance(whole, list) and isinstance(key, int) and -len(whole) <= key < len(whole):
            whole[key] = self.doubted(whole[key], value)
        elif isinstance(whole, list) and isinstance(key, slice):
            self.change(whole, "__setitem__", key, value)
        elif isinstance(whole, Class | Scope):
            names = whole.scope.names if isinstance(whole, Class) else whole.names
            names[str(key)] = self.doubted(names.get(str(key), MISSING), value)

    def change(self, whole: list[Any], how: str, *args: Any, **given: Any) -> Any:
        """Change a list by one of its methods; what only perhaps is so ends what is known of it."""
        after = list(whole)
        looks = how in {"remove", "index", "count"} and any(isinstance(one, Unknown) for one in whole)
        made = first_unknown(whole) if looks else attempt(getattr(after, how), *args, **given)
        if isinstance(made, Unknown):
            after = after if isinstance(made, Failed) and self.tries else [made]
        elif self.doubt is not None:
            same = next((at for at, one in enumerate(whole) if at >= len(after) or after[at] is not one), len(whole))
            after = (
                after if same == len(whole) == len(after) else [*after[:same], Rest(self.doubt.name, self.doubt.why)]
            )
        whole[:] = after[:MAX_ITEMS]
        self.steps += len(whole) // 20
        return made

    def remove(self, whole: Any, key: Any) -> None:
        """Delete an entry of a dictionary, elements of a list or a part of an object."""
        if isinstance(whole, list) and isinstance(key, int | slice):
            self.change(whole, "__delitem__", key)
        entries: Any = whole.parts if isinstance(whole, Record) else whole
        if isinstance(entries, dict) and is_key(key) and key in entries:
            if self.doubt is None:
                del entries[key]
            else:
                entries[key] = self.doubted(MISSING, None)


CONSTANTS = {"math.pi": math.pi, "math.e": math.e}


def _is_type(key: Any) -> bool:
    """Whether what stands in brackets is a type, or types: `Sequence[int]`, `dict[str, Any]`."""
    every = key if isinstance(key, list) else [key]
    return any(
        isinstance(one, Class)
        or (isinstance(one, Symbol) and (one.name in TYPES or one.name.rpartition(".")[2][:1].isupper()))
        for one in every
    )


def _dealt(value: Any, index: int, targets: Sequence[ast.expr]) -> Any:
    """Return what one of several targets is given: of a call that is not followed each has all of it, by itself."""
    if isinstance(value, Record):  # `model, tokenizer = load(...)`
        return value.copy() if index else value
    count, starred = len(targets), next((at for at, one in enumerate(targets) if isinstance(one, ast.Starred)), None)
    if starred is not None and isinstance(value, list) and len(value) >= count - 1:
        end = len(value) - (count - 1 - starred)
        value = [*value[:starred], value[starred:end], *value[end:]]
    fits = isinstance(value, list) and len(value) == count
    return value[index] if fits else first_unknown(value) or Unknown("...")


def _kind_of(node: ast.expr) -> str:
    return type(node).__name__.lower()


def _open(value: Any) -> Unknown | None:
    """Return what a value hangs on that is not known, or that a function of another package returns."""
    called = isinstance(value, Record) and value.kind is None
    return value if isinstance(value, Unknown) else first_unknown(value) if called else None
