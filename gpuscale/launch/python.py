"""Configurations that are Python functions, as settings: read from the syntax, never executed.

torchtitan's `config_registry.py` is of this kind: a function returns `Trainer.Config(training=TrainingConfig(...))`,
or calls another such function and changes some of what it returned. What is not written there in plain (a condition,
the value of another module) is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.settings import Setting, Source

MAX_DEPTH = 8
"""Functions of the file that call one another."""
MAX_SETTINGS = 20_000
MAX_STEPS = 200_000
"""Expressions that are looked at."""
MAX_NUMBER = 10**15


@dataclass
class Called:
    """A call that is not followed: of a class or of a function of another module."""

    name: str  #: what is called (`Trainer.Config`).
    line: int  #: where it stands, from 1.
    #: keyword -> value; positions as `0`, `1`; what is assigned afterwards too.
    parts: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)  #: part -> where it stands.


@dataclass(frozen=True)
class Symbol:
    """A name that is not followed."""

    name: str


def python_source(text: str, file: str) -> Source:
    """Return what the functions of a Python file configure.

    Settings are named after the function: `llama3_8b` is what it calls (`Trainer.Config`), `llama3_8b.training.seq_len`
    a value inside. Of a call inside another the name is the value: `llama3_8b.activation_checkpoint` is
    `SelectiveAC.Config`. What a module puts into a dictionary has the dictionary's name: `llama3_configs.8B`; where a
    name comes from is `import.model_registry`.

    Raises:
        InputError: not Python.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"not Python: {error.msg}", place=f"{file}:{error.lineno or 1}") from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError("not Python", place=file) from None
    lines = text.splitlines()
    settings: dict[str, Setting] = {}
    try:
        for name, value, line in islice(_Module(module).configurations(), MAX_SETTINGS):
            at = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            settings[name] = Setting(name, value, file, line, at)
    except RecursionError:
        raise InputError("too deeply nested", place=file) from None
    return Source(file, "python", settings)


class _Module:
    def __init__(self, module: ast.Module) -> None:
        self.imports = {
            alias.asname or alias.name: (one.module or "", one.lineno)
            for one in module.body
            if isinstance(one, ast.ImportFrom)
            for alias in one.names
        }
        self.functions = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
        self.values: dict[str, Any] = {}
        self.steps = 0
        self.run(module.body, self.values)

    def configurations(self) -> Iterator[tuple[str, Any, int]]:
        """Yield name, value and line of every setting."""
        for name, (origin, line) in self.imports.items():
            yield f"import.{name}", origin, line
        for name, value in self.values.items():
            if isinstance(value, Called) and not value.name:  # a dictionary of another module
                for key, part in value.parts.items():
                    yield f"{name}.{key}", _plain(part), value.lines.get(key, 0)
        for name in self.functions:
            found = self.follow(name, [], {}, 0)
            if isinstance(found, Called):
                yield name, found.name, found.line
                yield from _inside(name, found)

    def follow(self, name: str, args: list[Any], given: dict[str, Any], depth: int) -> Any:
        """Return what a function of the file returns."""
        function = self.functions[name]
        if depth > MAX_DEPTH:
            return Symbol(name)
        own = {one.arg: Symbol(one.arg) for one in (*function.args.args, *function.args.kwonlyargs)}
        named: dict[str, Any] = {**own, **dict(zip(own, args, strict=False)), **given}
        return self.run(function.body, named, depth)

    def run(self, body: list[ast.stmt], names: dict[str, Any], depth: int = 0) -> Any:
        """Go through statements one after the other; return what they return."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self.value(statement.value, names, depth)
            if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
                every = self.value(statement.iter, names, depth)
                if isinstance(every, Called):  # what is set of each is set of all
                    self.run(statement.body, {**names, statement.target.id: every}, depth)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                value = self.value(statement.value, names, depth)
                for target in targets:
                    self.assign(target, value, names, depth)
        return None

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
            return
        if isinstance(target, ast.Attribute):
            whole, key = self.value(target.value, names, depth, make=True), target.attr
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            key = str(target.slice.value)
            if isinstance(target.value, ast.Name):
                whole = names.setdefault(target.value.id, Called("", target.lineno))
            else:
                whole = self.value(target.value, names, depth, make=True)
        else:
            return
        if isinstance(whole, Called):
            whole.parts[key], whole.lines[key] = value, target.lineno
        elif isinstance(whole, dict):
            whole[key] = value

    def value(self, node: ast.expr, names: dict[str, Any], depth: int, make: bool = False) -> Any:
        """Return what an expression means: plain values, calls, or the name of what is not followed."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            return Symbol("...")
        found: Any = Symbol("...")
        if isinstance(node, ast.Constant):
            found = node.value
        elif isinstance(node, ast.Name):
            found = names.get(node.id, self.values.get(node.id, Symbol(node.id)))
        elif isinstance(node, ast.Attribute):
            found = self._attribute(node, names, depth, make)
        elif isinstance(node, ast.Call):
            found = self._call(node, names, depth)
        elif isinstance(node, ast.List | ast.Tuple):
            found = [self.value(one, names, depth) for one in node.elts]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = {str(k.value): self.value(v, names, depth) for k, v in pairs if isinstance(k, ast.Constant)}
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, names, depth)
            found = -number if _is_number(number) else found
        elif isinstance(node, ast.BinOp):
            found = _arithmetic(node.op, self.value(node.left, names, depth), self.value(node.right, names, depth))
        return found

    def _attribute(self, node: ast.Attribute, names: dict[str, Any], depth: int, make: bool) -> Any:
        whole = self.value(node.value, names, depth, make)
        if isinstance(whole, Called):
            if make and node.attr not in whole.parts:
                whole.parts[node.attr], whole.lines[node.attr] = Called("", node.lineno), node.lineno
            return whole.parts.get(node.attr, Symbol(node.attr))
        return Symbol(f"{whole.name}.{node.attr}"[:200] if isinstance(whole, Symbol) else node.attr)

    def _call(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        args = [self.value(one, names, depth) for one in node.args]
        given = {one.arg: self.value(one.value, names, depth) for one in node.keywords if one.arg}
        called = self.value(node.func, names, depth)
        name = called.name if isinstance(called, Symbol | Called) else "..."
        if isinstance(node.func, ast.Name) and name in self.functions:
            found = self.follow(name, args, given, depth + 1)
            if isinstance(found, Called):
                return found
        parts = {**{str(index): one for index, one in enumerate(args)}, **given}
        lines = {str(index): one.lineno for index, one in enumerate(node.args)}
        lines |= {one.arg: one.value.lineno for one in node.keywords if one.arg}
        return Called(name, node.lineno, parts, lines)


def _arithmetic(operator: ast.operator, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right) and abs(left) < MAX_NUMBER and abs(right) < MAX_NUMBER):
        return Symbol("...")
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv | ast.Div) and right:
        return left // right if isinstance(operator, ast.FloorDiv) else left / right
    return Symbol("...")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A value as a setting has it: of a call its name, of names their text."""
    if isinstance(value, Called | Symbol):
        return value.name
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float) or value is None else "..."


def _inside(prefix: str, whole: Called) -> Iterator[tuple[str, Any, int]]:
    for key, value in whole.parts.items():
        name, line = f"{prefix}.{key}", whole.lines.get(key, whole.line)
        yield name, _plain(value), line
        if isinstance(value, Called):
            yield from _inside(name, value)
        elif isinstance(value, list):
            for index, one in enumerate(value[:256]):
                if isinstance(one, Called):
                    yield from _inside(f"{name}.{index}", one)
