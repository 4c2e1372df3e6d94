"""Python worked out without being run: assignments, calls of functions that are here, conditions on what is known.

Calls of what is not here are recorded, not made. Where a condition is not known, what either branch would change is
unknown afterwards, unless both make the same of it.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.launch.python_tables import as_table, entries_of, interpolated, is_table, merge, path_of
from gpuscale.launch.python_values import (
    ENUMERATIONS,
    MAX_ITEMS,
    MISSING,
    OF_PATHS,
    PURE,
    TEXT_METHODS,
    TYPES,
    Bound,
    Class,
    Failed,
    Function,
    Imported,
    Member,
    MemberNumber,
    MemberText,
    PathText,
    Place,
    Property,
    Record,
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
    member,
    of_path,
    operate,
    plainly,
    real,
    truth,
)
from gpuscale.presets.files import known_table

MAX_DEPTH = 24
"""Functions that call one another."""
MAX_STEPS = 200_000
"""Expressions and statements that are looked at."""
LOOKED = 100
"""Steps that looking for the file of a module counts as."""
MAX_MODULES = 60
MAGIC = re.compile(r"^([ \t]*)(?:!|%%?[a-z]|pip3? install ).*$", re.MULTILINE)
"""Lines that are IPython's: `!pip install trl`, `%cd ..`."""

LEAVES = frozenset({"AutoBridge", "model_registry"})
"""Names that readers know, and that are not followed where their package is here."""

PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
"""Classes whose objects make dataclasses of a command line (transformers, trl, alignment-handbook)."""

COMMAND_LINE = "command_line"
"""Variable that says what else stands on the command line of a script: `--bf16 true`, or `{"bf16": true}`."""
LINE = "--per_device_train_batch_size 4 --bf16 true"
"""How one is written."""

_ESSENTIAL = ("per_device_train_batch_size", "per_device_batch_size")
"""Fields by which a class of a script's own says itself what matters of the Trainer's arguments."""

COMMAND_LINES = ("fire.Fire", "typer.run", "tyro.cli", "simple_parsing.parse", "pyrallis.parse", "draccus.parse",
                 "jsonargparse.CLI", "jsonargparse.auto_cli")  # fmt: skip
"""Functions that start another with arguments of a command line, or make a class of them."""

SIGNATURES = ("inspect.", "signature", "dataclasses.fields", "fields")
"""Functions by which scripts leave out arguments that a release does not know."""

PATCHING = re.compile(r"patch|hijack|inject|replace|override|^exec$", re.IGNORECASE)
"""Words of functions that put other code into a model."""

STEPPING = re.compile(r"\bopt(im\w*)?\.step\(|\.step\(opt")
"""How an optimizer steps."""

AROUND = ("train_on_responses_only", "prepare_trainer", "add_config_arguments")
"""Calls that return the trainer or the parser that they are given, as it is (Unsloth, Ray Train, DeepSpeed)."""

LOADERS = ("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads", "toml.load", "toml.loads",
           "tomllib.load", "tomllib.loads")  # fmt: skip
"""Functions that make tables of an open file, or of what it holds: `yaml.safe_load(open(path))`."""

DOCUMENTS = (".yaml", ".yml", ".json", ".toml")

ABSENT, NAMING = "is in a file that is not here", "names the file of its configuration"
"""Why what such a function returns is not known: the file is not here, or nobody says which it is."""
CHOOSING = "says which entry of a table counts"
MAX_CHOICES = 40

TABLES = frozenset(known_table("scripts")["program"]["tables"])
"""Classes of dictionaries whose entries are attributes too."""

OF_TABLES = ("get", "pop", "setdefault", "update", "items", "keys", "values", "copy", "to_dict")

OF_DEEPSPEED = ("deepspeed", "deepspeed_config", "hf_ds_config", "ds_config")
OF_ENGINE = ("config", "config_params")
"""Keywords that take DeepSpeed's configuration, or the name of its file; of DeepSpeed's own calls alone."""

STARTS = ("train", "fit")
"""Methods that start a training, whatever is made of what they return."""

Importer = Callable[[str, int, str], "tuple[str, str] | None"]
"""Returns file name and text of a module that is here, from its dotted name, the dots before it and the importer."""


Loader = Callable[[str, str], "dict[str, Any] | None"]
"""Returns what a document that is here holds, from its path as a file, named after it, has it."""


class Ended(NamedTuple):
    """How a block ended before its last statement."""

    how: str  #: `return`, `break`, `continue` or `raise`.
    value: Any = None


class Choice(NamedTuple):
    """What was taken for what the caller may say otherwise: an environment variable's or an argument's default."""

    name: str
    value: Any
    place: Place


class RaisedError(Exception):
    """An error that a program raises and a `try` of it takes."""

    def __init__(self, names: tuple[str, ...], value: Any) -> None:
        super().__init__(*names[:1])
        self.names, self.value = names, value


@dataclass
class Trying:
    """A `try` whose body is gone through."""

    handlers: list[
        tuple[tuple[str, ...], ast.ExceptHandler | None]
    ]  #: classes of errors (none: all) -> what takes them.
    doubt: Unknown | None  #: what its own being reached hangs on.
    alone: bool = False  #: whether its body is one call, as that of a whole program is.
    perhaps: list[tuple[RaisedError, Unknown]] = field(default_factory=list)  #: errors that may be raised in it.

    def takes(self, names: tuple[str, ...]) -> tuple[ast.ExceptHandler | None, ...]:
        """Return what takes an error of one of these classes, in a tuple; an empty one where nothing does."""
        return next(((by,) for classes, by in self.handlers if not classes or {*classes} & {*names}), ())


class Assigned(NamedTuple):
    """An attribute or an element that is set, or deleted."""

    whole: Any
    name: str  #: of the attribute; of an element that of what it is an element of.
    place: Place
    value: Any = None
    under: str = ""  #: what decides whether it is, where that is not known.


class Program:
    """The modules of one program.

    Args:
        find: finds modules that are here.
        load: reads documents that are here.
        given: values of variables, of arguments and of anything else that the files leave open, by name.
    """

    def __init__(self, find: Importer, given: Mapping[str, Any], load: Loader = lambda *_: None) -> None:
        self.find, self.given, self.load = find, given, load
        self.modules: dict[str, Scope | None] = {}
        self.called: list[Record] = []  #: calls that are statements of their own and not followed.
        self.unfollowed: list[Record] = []  #: all calls that are not followed, whatever is made of what they return.
        self.printed: list[Any] = []  #: what is printed; None of what is more than one value, or perhaps not printed.
        self.again: set[int] = set()  #: of those what calls what another returned: `model(**batch)`.
        self.followed: set[ast.AST] = set()  #: functions that were.
        self.frozen: list[Place] = []  #: where `requires_grad` of something is set to what is not True.
        self.assigned: list[Assigned] = []
        #: object whose training is started -> how many calls and assignments came before that.
        self.started: dict[int, tuple[int, int]] = {}
        self.chosen: dict[str, Choice] = {}
        self.environment: dict[str, tuple[Any, Place]] = {}  #: variables that `os.environ[...] = ...` sets.
        self.imports: dict[Imported, Any] = {}
        self.words: dict[str, Counter[str]] = {}  #: of each file, how often each is in it.
        self.stepping: dict[ast.If, bool] = {}  #: whether an optimizer steps where a condition holds.
        self.whole: dict[str, str] = {}  #: modules that are imported as such -> the file that does.
        self.accumulates: tuple[Any, Place] | None = None  #: every how many steps an optimizer steps: `if n % 4 == 0`.
        self.choices: dict[str, tuple[str, ...]] = {}  #: name of what is asked for -> what it may be.
        #: documents that are loaded and not here, or what names them -> why, and where.
        self.lost: dict[str, tuple[str, Place]] = {}
        self.written: dict[str, Any] = {}  #: documents that the program writes.
        self.tries: list[Trying] = []
        self.optional: dict[str, Choice] = {}  #: names that hang on whether a package is installed -> that it is.
        self.steps = 0
        self.depth = 0
        self.doubt: Unknown | None = None

    # --- modules

    def module(self, file: str, text: str, name: str = "__main__") -> Scope:
        """Go through a module and return its names.

        Raises:
            InputError: not Python, or too deeply nested.
        """
        try:
            with warnings.catch_warnings():  # of the file's own mistakes, as `1if x`
                warnings.simplefilter("ignore")
                tree = ast.parse(MAGIC.sub(r"\1pass", text))
        except SyntaxError as error:
            raise InputError(f"not Python: {error.msg}", place=f"{file}:{error.lineno or 1}") from None
        except (ValueError, RecursionError, MemoryError):
            raise InputError("not Python", place=file) from None
        scope = Scope({"__name__": name, "__file__": PathText(Path(file).absolute())}, None, file, text.splitlines())
        self.modules[file] = scope
        try:
            self.run(tree.body, scope)
        except RecursionError:
            raise InputError("too deeply nested", place=file) from None
        return scope

    def imported(self, name: str, level: int, importer: str) -> Scope | None:
        """Return the names of a module that is here; None of one that is not."""
        found = self.find(name, level, importer) if len(self.modules) < MAX_MODULES else None
        if found is None:
            return None
        file, text = found
        if file not in self.modules:
            self.modules[file] = None  # while it is gone through it has no names for those that it imports
            with self.surely():
                self.module(file, text, name)
        return self.modules[file]

    def _run_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            own = alias.asname or alias.name
            if isinstance(node, ast.Import):
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                own = own.partition(".")[0]
                scope.names[own] = Symbol(own, whole)
                self.whole.setdefault(alias.name, scope.file)
                if self._words(scope)[own] == 1:  # for what it does alone
                    self._done_by_import(alias.name, scope.place(node))
                continue
            module, origin = node.module or "", f"{'.' * node.level}{node.module or ''}.{alias.name}"
            if alias.name == "*":
                there = self.imported(module, node.level, scope.file)
                names = {} if there is None else there.names
                scope.names.update({name: value for name, value in names.items() if not name.startswith("_")})
            else:
                scope.names[own] = Imported(Symbol(own, origin), module, alias.name, node.level, scope.file)

    _run_importfrom = _run_import

    def _words(self, scope: Scope) -> Counter[str]:
        """Return how often each word is in a file."""
        if scope.file not in self.words:
            self.words[scope.file] = Counter(word for line in scope.lines for word in re.findall(r"\w+", line))
        return self.words[scope.file]

    def _done_by_import(self, name: str, place: Place) -> None:
        """Go through a module that nothing else is made of; of one that is not here keep that it patches something."""
        self.steps += LOOKED
        if self.imported(name, 0, place.file) is None and PATCHING.search(name):
            made = Record(name, place, origin=name)
            self.called.append(made)
            self.unfollowed.append(made)

    def resolved(self, value: Any) -> Any:
        """Return what a name that is imported means; other values as they are."""
        for _ in range(MAX_DEPTH):
            if not isinstance(value, Imported):
                return value
            if value.name in LEAVES:
                return value.symbol
            if value not in self.imports:
                self.imports[value] = value.symbol
                there = self.imported(value.module, value.level, value.importer)
                found = there.find(value.name) if there is not None else ()
                below = f"{value.module}.{value.name}".strip(".")
                inner = None if found else self.imported(below, value.level, value.importer)
                self.imports[value] = found[0] if found else inner
                if inner is None and not found:
                    self.imports[value] = _literal(self.given.get(value.name, value.symbol))
            value = self.imports[value]
        return Unknown("...", "is imported in a circle")

    # --- statements

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> Ended | None:
        """Go through statements one after the other."""
        for statement in body:
            self.steps += 1
            if self.steps > MAX_STEPS:
                return Ended("raise")
            run = getattr(self, f"_run_{type(statement).__name__.lower()}", None)
            ended = run(statement, scope) if run is not None else None
            if ended is not None:
                return ended
        return None

    def _run_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        if isinstance(node.value, ast.Call) and isinstance(value, Record) and value.name in STARTS:
            self.called.append(value)  # `result = trainer.train()`
        for target in node.targets:
            self.assign(target, self._named(value, target), scope)

    def _run_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self._named(self.value(node.value, scope), node.target), scope)

    def _named(self, value: Any, target: ast.expr) -> Any:
        """Return a value; what is not known and has no name by which it could be given is asked for by its variable."""
        if isinstance(value, Unknown) and isinstance(target, ast.Name) and "(" in value.name:
            return _literal(self.given.get(target.id, replace(value, name=target.id)))
        return value

    def _run_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        before, value = self.value(node.target, scope), self.value(node.value, scope)
        if isinstance(before, list) and not isinstance(before, Row) and isinstance(node.op, ast.Add):
            items = self._items(value)
            if items is not None and not isinstance(before, Unique):
                self.change(before, "extend", items)
                return
        made = operate(node.op, before, value)
        if isinstance(before, list) and type(made) is type(before) and not isinstance(before, Row):
            self.change(before, "__setitem__", slice(None), list(made))
        elif isinstance(before, dict) and isinstance(made, dict):
            self._of_dictionary(before, "update", [value], {}, scope.place(node))
        else:
            self.assign(node.target, made, scope)

    def _run_global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        around = [scope]
        while around[-1].outer is not None:
            around.append(around[-1].outer)
        for name in node.names:
            holding = (one for one in around[1:] if name in one.names)
            found = None if isinstance(node, ast.Global) else next(holding, None)
            scope.elsewhere[name] = found or around[-1]

    _run_nonlocal = _run_global

    def _run_delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute | ast.Subscript):
                whole = self.value(target.value, scope)
                self._touched(target, whole, None, scope)
                self.remove(whole, target.attr if isinstance(target, ast.Attribute) else self._key(target, scope))
            elif isinstance(target, ast.Name):
                names = scope.elsewhere.get(target.id, scope).names
                if self.doubt is None:
                    names.pop(target.id, None)
                elif target.id in names:
                    names[target.id] = self.doubt

    def _touched(self, target: ast.Attribute | ast.Subscript, whole: Any, value: Any, scope: Scope) -> None:
        """Keep that an attribute or an element is set or deleted."""
        if isinstance(target, ast.Attribute):
            under = self.doubt.name if self.doubt else ""
            self.assigned.append(Assigned(whole, target.attr, scope.place(target), value, under))
        elif value is None or not isinstance(target.slice, ast.Slice | ast.Tuple):  # else values of a tensor
            name = ast.unparse(target.value).rpartition(".")[2][:80]
            self.assigned.append(Assigned(whole, name, scope.place(target), value))

    def _run_expr(self, node: ast.Expr, scope: Scope) -> None:
        made = self.value(node.value, scope)
        if isinstance(node.value, ast.Call) and isinstance(made, Record) and made.kind is None:
            self.called.append(made)
            if made.name.endswith("requires_grad_") and made.parts.get("0", True) is not True:
                self.frozen.append(made.place)

    def _run_return(self, node: ast.Return, scope: Scope) -> Ended:
        return Ended("return", None if node.value is None else self.value(node.value, scope))

    def _run_raise(self, node: ast.Raise, scope: Scope) -> Ended:
        made = self.value(node.exc, scope) if node.exc is not None else scope.find(_ERROR)
        if isinstance(made, tuple):
            return self._raised(made[0]) if made else Ended("raise")
        return self._raised(RaisedError(_error_names(made), made))

    def _raised(self, error: RaisedError) -> Ended:
        """End what is gone through by an error; where a `try` takes it, its handler is what comes next.

        A handler that only ends the program takes none: a job that runs does not come there.
        """
        for one in reversed(self.tries):
            for by in one.takes(error.names):
                if by is not None and (_refuses(by.body) or (one.alone and all(map(_speaks, by.body)))):
                    return Ended("raise")
                if self.doubt is one.doubt:
                    raise error
                one.perhaps.append((error, self.doubt or Unknown("...")))
                return Ended("raise")
        return Ended("raise")

    def _run_assert(self, node: ast.Assert, scope: Scope) -> Ended | None:
        if self.tries and self.truth(self.value(node.test, scope)) is False:
            return self._raised(RaisedError(_error_names(Symbol("AssertionError", "")), None))
        return None

    def _run_break(self, *_: Any) -> Ended:
        return Ended("break")

    def _run_continue(self, *_: Any) -> Ended:
        return Ended("continue")

    def _run_with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> Ended | None:
        entered, suppressed = list[Any](), list[Any]()
        for item in node.items:
            made = manager = self.value(item.context_expr, scope)
            entered.append(manager)
            if isinstance(made, Record) and made.origin == "contextlib.suppress":
                suppressed += made.parts.values()
            if isinstance(made, Record) and made.origin == "contextlib.nullcontext":
                made = made.parts.get("0", made.parts.get("enter_result"))
            if enters := _own_method(manager, "__enter__"):
                made = self.follow(enters, (), {}, scope.place(node))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, made, scope)
        if suppressed:
            trying = Trying([(_classes(suppressed), None)], self.doubt)
            ended, _ = self._tried(trying, node.body, scope)
        else:
            ended = self.run(node.body, scope)
        for one in reversed(entered):
            if leaves := _own_method(one, "__exit__"):
                self.follow(leaves, (None, None, None), {}, scope.place(node))
        return ended

    _run_asyncwith = _run_with

    def _tried(self, trying: Trying, body: Sequence[ast.stmt], scope: Scope) -> tuple[Ended | None, RaisedError | None]:
        """Go through statements whose errors are taken; return how they ended, and the error that is to be taken."""
        self.tries.append(trying)
        depth = len(self.tries)
        try:
            return self.run(body, scope), None
        except RaisedError as error:
            if not trying.takes(error.names):
                raise
            return None, error
        finally:
            del self.tries[depth - 1 :]

    def _run_try(self, node: ast.Try, scope: Scope) -> Ended | None:
        handlers = [(_classes([self.value(one.type, scope)]) if one.type else (), one) for one in node.handlers]
        trying = Trying([*handlers], self.doubt, len(node.body) == 1 and isinstance(node.body[0], ast.Expr))
        absent = self._optional(node, scope)
        try:
            ended, error = (None, absent) if absent else self._tried(trying, node.body, scope)
            if error is not None:
                ended = self._handle(trying, error, scope)
            elif ended is None:
                ended = self.run(node.orelse, scope)
            for other, why in trying.perhaps:
                with self.doubting(why):
                    self._handle(trying, other, scope)
        except RaisedError:
            if self.run(node.finalbody, scope) is None:
                raise
            return None
        return self.run(node.finalbody, scope) or ended

    def _handle(self, trying: Trying, error: RaisedError, scope: Scope) -> Ended | None:
        for by in trying.takes(error.names):
            if by is not None:
                scope.names[_ERROR] = error
                if by.name is not None:
                    scope.names[by.name] = error.value
                return self.run(by.body, scope)
        return None

    def _optional(self, node: ast.Try, scope: Scope) -> RaisedError | None:
        """Take packages of a `try` as installed unless the caller says `var=PACKAGE=false`; keep what hangs on that."""
        missing = RaisedError(_error_names(Symbol("ModuleNotFoundError", "")), None)
        taken = [by for one in node.handlers for by in Trying([(_classes([self.value(one.type, scope)]), one)], None)
                 .takes(missing.names) if one.type is not None] if node.handlers else []  # fmt: skip
        for one in node.body if taken else ():
            names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
            names = [one.module or ""] if isinstance(one, ast.ImportFrom) and not one.level else names
            for name in names:
                whole = name.partition(".")[0]
                if _literal(self.given.get(whole, True)) in {False, None}:
                    return missing
                if whole in sys.stdlib_module_names or self.find(name, 0, scope.file) is not None:
                    continue
                for by in taken:
                    for set_there in by.body if by is not None else ():
                        for target in _targets(set_there):
                            self.optional[target] = Choice(whole, INSTALLED, scope.place(one))
        return None

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> Function:
        return Function(node, scope, {name: self._usual(one, scope) for name, one in _defaults(node).items()})

    def _run_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        before = scope.names.get(node.name)
        made = scope.names[node.name] = self._function(node, scope)
        words = [ast.unparse(one) for one in node.decorator_list]
        if isinstance(before, Property) and f"{node.name}.setter" in words:
            scope.names[node.name] = Property(before.get, made)
        elif any(one.rpartition(".")[2] in {"property", "cached_property", "abstractproperty"} for one in words):
            scope.names[node.name] = Property(made)
        else:
            scope.names[node.name] = self._decorated(node, scope)

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope) -> Any:
        """Return what decorators that are here make of a function or class."""
        made = scope.names[node.name]
        for one in reversed(node.decorator_list):
            by = one.func if isinstance(one, ast.Call) else one
            if isinstance(by, ast.Name | ast.Attribute) and isinstance(self.value(by, scope), Function | Class):
                made = self.call(self.value(one, scope), (made,), {}, scope.place(one))
        return made

    _run_asyncfunctiondef = _run_functiondef

    def _run_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.names[node.name] = self._class(node, scope)
        scope.names[node.name] = self._decorated(node, scope)

    @contextmanager
    def doubting(self, why: Unknown) -> Iterator[None]:
        """Take what is assigned inside as possible only: unknown afterwards where it changes something."""
        before, self.doubt = self.doubt, self.doubt or why
        try:
            yield
        finally:
            self.doubt = before

    @contextmanager
    def surely(self) -> Iterator[None]:
        """Take what is assigned inside as certain."""
        before, self.doubt = self.doubt, None
        try:
            yield
        finally:
            self.doubt = before

    def _steps(self, node: ast.If) -> bool:
        """Whether an optimizer steps where a condition holds; told once, whatever loop it is in."""
        if node not in self.stepping:
            self.stepping[node] = bool(STEPPING.search(ast.unparse(node)))
        return self.stepping[node]

    def _run_if(self, node: ast.If, scope: Scope, above: tuple[list[ast.stmt], ...] = ()) -> Ended | None:
        """Take a branch; `above`: those of the conditions before, which do not hold, that this one is the `elif` of."""
        for one in ast.walk(node.test):
            if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) and self._steps(node):
                self.accumulates = self.value(one.right, scope), scope.place(node)
        holds = self.holds(node.test, scope)
        if isinstance(holds, bool):
            chosen, other = (node.body, node.orelse) if holds else (node.orelse, node.body)
            if _refuses(chosen) and not self._is_taken(
                chosen[-1], scope
            ):  # a job that runs does not come here, and what is said makes it take another branch
                others = [one for one in (*above, other) if not _refuses(one)]
                why = Unknown(_asked_of(node.test), f"decides at line {node.lineno} of {scope.file}")
                return self.run(others[0], scope) if len(others) == 1 else self._either(others, why, scope)
            if not holds and len(chosen) == 1 and isinstance(chosen[0], ast.If):
                return self._run_if(chosen[0], scope, (*above, node.body))
            return self.run(chosen, scope)
        if _guards(node):
            return self.run(node.body, scope)
        for branch, other in ((node.body, node.orelse), (node.orelse, node.body)):
            taken = bool(branch) and self._is_taken(branch[-1], scope)
            if branch and not taken and (isinstance(branch[-1], ast.Raise) or _refuses(branch)):
                return self.run(other, scope)
        return self._either([node.body, node.orelse], _decides(holds, scope.place(node)), scope)

    def holds(self, test: ast.expr, scope: Scope) -> bool | Unknown:
        """Return whether a condition holds; of packages that are taken as installed keep that it hangs on them."""
        for one in ast.walk(test) if self.optional else ():
            if isinstance(one, ast.Name) and one.id in self.optional:
                self.chosen.setdefault(self.optional[one.id].name, self.optional[one.id])
        return self.truth(self.value(test, scope))

    def truth(self, value: Any) -> bool | Unknown:
        """Return whether a value counts as true."""
        does = _own_method(value, "__bool__") or _own_method(value, "__len__")
        return truth(value if does is None else self.follow(does, (), {}, value.place))

    def _is_taken(self, last: ast.stmt, scope: Scope) -> bool:
        """Whether a statement raises an error that a handler around takes and goes on."""
        if not isinstance(last, ast.Raise) or not self.tries or last.exc is None:
            return False
        kind = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        names = _error_names(self.value(kind, scope))
        for one in reversed(self.tries):
            for by in one.takes(names):
                return by is None or not (_refuses(by.body) or (one.alone and all(map(_speaks, by.body))))
        return False

    def _either(self, branches: Sequence[Sequence[ast.stmt]], why: Unknown, scope: Scope) -> Ended | None:
        """Go through branches of which one is taken, nobody knows which."""
        with self.doubting(why):
            ends = [self.run(branch, scope) for branch in branches]
        returned = [one.value for one in ends if one is not None and one.how == "return"]
        if not returned:
            return None
        if len(returned) == len(ends) and all(operate(ast.Is(), returned[0], one) is True for one in returned[1:]):
            return Ended("return", returned[0])
        if len(returned) == len(ends):
            return Ended("return", why)
        scope.names.setdefault(_MAYBE, []).append((returned[0], why))
        return None

    def _once(self, body: list[ast.stmt], why: Unknown, scope: Scope) -> Ended | None:
        """Go through the body of a loop once of which nobody knows how often it is gone through.

        Inside what it sets is certain, but for numbers and texts that each round makes of those of the last; what it
        changes of what was there before is unknown afterwards.
        """
        before = {name: one for name, one in scope.names.items() if name != _YIELDED}
        counted = (name for name in _counted(body) if name in before and is_plain(before[name]))
        scope.names |= dict.fromkeys(counted, why)
        ended = self.run(body, scope)
        with self.doubting(why):
            scope.names |= {name: self._doubted(one, scope.names.get(name, why)) for name, one in before.items()}
        if _YIELDED in scope.names:
            scope.names[_YIELDED] = None  # nobody knows how often
        if ended is not None and ended.how == "return":
            scope.names.setdefault(_MAYBE, []).append((ended.value, why))
        return None

    def _run_for(self, node: ast.For, scope: Scope) -> Ended | None:
        every = self.value(node.iter, scope)
        items = self._items(every)
        every = every if items is None else items
        if isinstance(every, Record):  # what is set of each part of another package is set of all
            every = [every]
        if not isinstance(every, list):
            why = first_unknown(every) or Unknown("...")
            self.assign(node.target, why, scope)
            return self._once(node.body, _decides(why, scope.place(node)), scope)
        for one in every:
            self.assign(node.target, one, scope)
            ended = self.run(node.body, scope)
            if ended is not None and ended.how == "break":
                return None
            if ended is not None and ended.how != "continue":
                return ended
        return self.run(node.orelse, scope)

    def _run_while(self, node: ast.While, scope: Scope) -> Ended | None:
        while (holds := self.holds(node.test, scope)) is True:
            ended = self.run(node.body, scope)
            if ended is not None and ended.how == "break":
                return None
            if ended is not None and ended.how != "continue":
                return ended
            if isinstance(node.test, ast.Constant) and self._hangs_on_data(node, scope):  # once shows what it does
                scope.names[_YIELDED] = None
                return None
        if isinstance(holds, Unknown):
            return self._once(node.body, _decides(holds, scope.place(node)), scope)
        return self.run(node.orelse, scope)

    def _hangs_on_data(self, node: ast.While, scope: Scope) -> bool:
        """Whether nobody knows what ends a loop without a condition: what a call returns, or nothing in it."""
        tests = [one.test for one in ast.walk(node) if isinstance(one, ast.If)
                 if any(isinstance(part, ast.Break | ast.Return) for part in ast.walk(one))]  # fmt: skip
        if any(isinstance(inner, ast.Break | ast.Return) for one in node.body if isinstance(one, ast.Try)
               for inner in (*one.body, *one.orelse)):  # fmt: skip
            return False
        calls = any(isinstance(part, ast.Call) for test in tests for part in ast.walk(test))
        return calls or not tests or any(not isinstance(truth(self.value(test, scope)), bool) for test in tests)

    def _run_match(self, node: ast.Match, scope: Scope) -> Ended | None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            holds = self._fits(case.pattern, subject, scope)
            if holds is True and case.guard is not None:
                holds = self.truth(self.value(case.guard, scope))
            if isinstance(holds, Unknown):
                bodies = [one.body for one in node.cases if not isinstance(one.body[-1], ast.Raise)]
                return self._either([*bodies, []], _decides(holds, scope.place(node)), scope)
            if holds:
                return self.run(case.body, scope)
        return None

    def _fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | Unknown:
        match pattern:
            case ast.MatchValue():
                return truth(operate(ast.Eq(), subject, self.value(pattern.value, scope)))
            case ast.MatchSingleton():
                return truth(operate(ast.Is(), subject, pattern.value))
            case ast.MatchOr():
                found: bool | Unknown = False
                for one in pattern.patterns:
                    fits = self._fits(one, subject, scope)
                    if fits is True:
                        return found or True
                    found = found or fits
                return found
            case ast.MatchAs():
                holds = pattern.pattern is None or self._fits(pattern.pattern, subject, scope)
                if pattern.name is not None and holds is True:
                    scope.names[pattern.name] = subject
                return holds
            case ast.MatchClass():
                holds = _is_a(subject, self.value(pattern.cls, scope))
                if holds is not True or not (pattern.patterns or pattern.kwd_patterns):
                    return holds
                names = list(subject.kind.fields) if isinstance(subject, Record) and subject.kind else [""]
                names = [*names[: len(pattern.patterns)], *pattern.kwd_attrs]
                parts = [self.attribute(subject, name, scope.place(pattern.cls)) if name else subject for name in names]
                return self._all_fit([*pattern.patterns, *pattern.kwd_patterns], parts, scope)
            case ast.MatchSequence():
                return self._row_fits(pattern.patterns, subject, scope)
            case ast.MatchMapping():
                keys = [self.value(key, scope) for key in pattern.keys]
                if not isinstance(subject, dict) or not all(key in subject for key in keys):
                    return False if is_plain(subject) else first_unknown(subject) or False
                if pattern.rest is not None:
                    scope.names[pattern.rest] = {key: one for key, one in subject.items() if key not in keys}
                return self._all_fit(pattern.patterns, [subject[key] for key in keys], scope)
        return first_unknown(subject) or Unknown("...", "is matched in a way that is not followed")

    def _row_fits(self, patterns: list[ast.pattern], subject: Any, scope: Scope) -> bool | Unknown:
        star = next((at for at, one in enumerate(patterns) if isinstance(one, ast.MatchStar)), None)
        if not isinstance(subject, list):
            return False if is_plain(subject) else first_unknown(subject) or False
        if len(subject) < len(patterns) - 1 or (star is None and len(subject) != len(patterns)):
            return False
        if star is None:
            return self._all_fit(patterns, subject, scope)
        end, own = len(subject) - (len(patterns) - 1 - star), patterns[star]
        if isinstance(own, ast.MatchStar) and own.name is not None:
            scope.names[own.name] = list(subject[star:end])
        return self._all_fit([*patterns[:star], *patterns[star + 1 :]], [*subject[:star], *subject[end:]], scope)

    def _all_fit(self, patterns: list[ast.pattern], parts: Sequence[Any], scope: Scope) -> bool | Unknown:
        found = [self._fits(one, part, scope) for one, part in zip(patterns, parts, strict=False)]
        if len(patterns) != len(parts) or False in found:
            return False
        return next((one for one in found if isinstance(one, Unknown)), True)

    # --- assignments

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Set a name, an attribute, an element, or several of them."""
        if isinstance(target, ast.Name):
            of = scope.elsewhere.get(target.id, scope)
            known = of.names.get(target.id, _NOTHING)
            of.names[target.id] = value if known is _NOTHING else self._doubted(known, value)
            of.places[target.id] = scope.place(target)
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._items(value)
            value = value if items is None else items
            for index, one in enumerate(target.elts):
                own = _dealt(value, index, target.elts)
                self.assign(one.value if isinstance(one, ast.Starred) else one, own, scope)
        elif isinstance(target, ast.Attribute):
            whole, place = self.value(target.value, scope, make=True), scope.place(target)
            if target.attr == "requires_grad" and value is not True:
                self.frozen.append(place)
            self._touched(target, whole, value, scope)
            self.put(whole, target.attr, value, place)
        elif isinstance(target, ast.Subscript):
            key = self._key(target, scope)
            if isinstance(target.value, ast.Name) and not scope.find(target.value.id):
                scope.names[target.value.id] = Record("", scope.place(target))
            whole = self.value(target.value, scope, make=True)
            if isinstance(whole, Symbol) and isinstance(target.value, ast.Name):  # a dictionary of another module
                whole = scope.names[target.value.id] = Record("", scope.place(target), origin=whole.origin)
            self._touched(target, whole, value, scope)
            if isinstance(whole, Symbol) and whole.origin == "os.environ" and isinstance(key, str):
                self.environment[key] = (value, scope.place(target))
            self.put(whole, key, value, scope.place(target))

    def put(self, whole: Any, key: Any, value: Any, place: Place) -> None:
        """Set a part of an object, an entry of a dictionary or an element of a list."""
        if isinstance(whole, Record):
            own = whole.kind.find(str(key)) if whole.kind else ()
            if own and isinstance(own[0], Property) and isinstance(own[0].set, Function):
                self.follow(own[0].set.bound(whole, value), (), {}, place)
                return
            before = whole.parts.get(str(key), MISSING)
            whole.put(str(key), self._doubted(before, value), place)
        elif isinstance(whole, dict) and is_key(key) and len(whole) < MAX_ITEMS:
            whole[key] = self._doubted(whole.get(key, MISSING), value)
        elif isinstance(whole, list) and isinstance(key, int) and -len(whole) <= key < len(whole):
            whole[key] = self._doubted(whole[key], value)
        elif isinstance(whole, list) and isinstance(key, slice):
            self.change(whole, "__setitem__", key, value)
        elif isinstance(whole, Class | Scope):
            names = whole.scope.names if isinstance(whole, Class) else whole.names
            names[str(key)] = self._doubted(names.get(str(key), MISSING), value)

    def change(self, whole: list[Any], how: str, *args: Any, **given: Any) -> Any:
        """Change a list by one of its methods; what only perhaps is so ends what is known of it."""
        after = list(whole)
        looks = how in {"remove", "index", "count"} and any(isinstance(one, Unknown) for one in whole)
        made = first_unknown(whole) if looks else attempt(getattr(after, how), *args, **given)
        if isinstance(made, Unknown):
            after = after if isinstance(made, Failed) and self.tries else [made]
        elif self.doubt is not None:
            same = next((at for at, one in enumerate(whole) if at >= len(after) or after[at] is not one), len(whole))
            after = after if same == len(whole) == len(after) else [*after[:same], self.doubt]
        whole[:] = after[:MAX_ITEMS]
        return made

    def _of_set(self, whole: Unique, name: str, args: list[Any]) -> Any:
        """Return what a method of a set returns, and change it as that does."""
        others = [self._items(one) for one in args] if name not in {"add", "remove", "discard"} else [*args]
        unknown = next((one for one in (*whole, *others) if isinstance(one, Unknown)), None)
        if name not in OF_SETS:
            return Unknown(name, "is not followed")
        if unknown is None and None in others and None not in args:
            unknown = first_unknown(*args) or Unknown("...")
        before = set[Any]() if unknown else set(real(whole))
        after = set(before)
        made = unknown or plainly(getattr(after, name), *others)
        if unknown or (after != before and self.doubt is not None):
            whole[:] = [unknown or self.doubt] if name not in LOOKING_AT_SETS else whole
        elif after != before:
            whole[:] = Unique([*(one for one in whole if real(one) in after), *Unique(after)])
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
                entries[key] = self.doubt

    def _doubted(self, before: Any, value: Any) -> Any:
        """Return a value, or what decides it where it is only possible and another than that before."""
        if self.doubt is None or before is value or (is_plain(before) and is_plain(value) and before == value):
            return value
        return self.doubt

    # --- expressions

    def value(self, node: ast.expr | None, scope: Scope, *, make: bool = False) -> Any:
        """Return what an expression comes to; `make`: parts of records that are not there yet are made."""
        self.steps += 1
        if node is None or self.steps > MAX_STEPS:
            return Unknown("...", "is out of bounds")
        found = getattr(self, f"_{type(node).__name__.lower()}", None)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(node.value, scope, make=make), node.attr, scope.place(node), make=make)
        made = found(node, scope) if found is not None else Unknown(_kind_of(node), "is not followed")
        if isinstance(made, Unknown) and made.name == "..." and not isinstance(node, ast.Constant):
            failed, made = made, Unknown(ast.unparse(node)[:80], made.why, made.of)  # by which it can be given
            said = _literal(self.given.get(asked_name(made.name), made))
            if said is made and isinstance(failed, Failed) and self.tries:
                self._raised(RaisedError(_error_names(Symbol(failed.error, "")), None))
            return said
        return made

    def _constant(self, node: ast.Constant, _: Scope) -> Any:
        value = node.value
        return value if is_plain(value) and (not isinstance(value, str) or len(value) <= MAX_ITEMS) else Unknown("...")

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        return self.resolved(found[0]) if found else Symbol(node.id, node.id)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        return self._values(node.elts[:MAX_ITEMS], scope)

    def _values(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        """Return what expressions come to, those behind a star one by one."""
        found: list[Any] = []
        for one in nodes:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            items = self._items(value) if isinstance(one, ast.Starred) else None
            found += [value] if items is None else items
        return found

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        return attempt(Unique, self._list(node, scope))

    def _items(self, value: Any) -> list[Any] | None:
        """Return what going through a value gives one after the other; None where that is not known."""
        if isinstance(value, Stream):
            left, value[:] = list(value), []
            return left
        if isinstance(value, list):
            return value
        if isinstance(value, dict) or (isinstance(value, str) and not isinstance(value, PathText)):
            return list(value)
        if isinstance(value, Class) and value.made_from(*ENUMERATIONS):
            return value.members()
        if isinstance(value, Record) and value.kind and value.kind.made_from("NamedTuple"):
            return [value.parts.get(name) for one in reversed(value.kind.line()) for name in one.fields]
        if does := _own_method(value, "__iter__"):
            return self._items(self.follow(does, (), {}, value.place))
        return None

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Row:
        return Row(self._list(node, scope))

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            own = self.value(value, scope)
            if key is None:
                found |= _entries(own)
                continue
            name = self.value(key, scope)
            found[name if is_key(name) else getattr(name, "name", "...")] = own
        return found

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            holds = self.truth(value)
            return not holds if isinstance(holds, bool) else holds
        signs = {ast.USub: lambda one: -one, ast.UAdd: lambda one: +one, ast.Invert: lambda one: ~one}
        return first_unknown(value) or plainly(signs[type(node.op)], value)

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        one, two = (self._said(self.value(side, scope)) for side in (node.left, node.right))
        return operate(node.op, one, two)

    def _said(self, value: Any) -> Any:
        """Return what the caller says of a name of another package; other values as they are."""
        name = asked_name(value.name) if isinstance(value, Symbol) else ""
        return _literal(self.given[name]) if name in self.given else value

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        wanted, why = isinstance(node.op, ast.Or), None
        value: Any = None
        if wanted and len(node.values) == 2:
            one, two = self.value(node.values[0], scope), self.value(node.values[1], scope)
            if isinstance(one, Unknown) and not one.why and is_plain(two):
                self.chosen.setdefault(one.name, Choice(one.name, two, scope.place(node)))
                return two
        for one in node.values:
            value = self.value(one, scope)
            holds = self.truth(value)
            if holds is wanted and why is None:
                return value
            if holds is wanted:
                return wanted
            why = why or (holds if isinstance(holds, Unknown) else None)
        return why if why is not None else value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        one, why = self.value(node.left, scope), None
        for operator, other in zip(node.ops, node.comparators, strict=True):
            two = self.value(other, scope)
            self.steps += len(two) // 20 if isinstance(two, list | dict) else 0
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
        one, two = self.value(node.body, scope), self.value(node.orelse, scope)
        if isinstance(one, dict) and isinstance(two, dict):  # what either has is there perhaps
            why = _decides(holds, scope.place(node))
            same = {key for key in one.keys() & two.keys() if operate(ast.Eq(), one[key], two[key]) is True}
            return {key: one[key] if key in same else why for key in (*one, *(two.keys() - one.keys()))}
        return one if operate(ast.Eq(), one, two) is True else _decides(holds, scope.place(node))

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts: list[str] = []
        for one in node.values:
            if isinstance(one, ast.Constant):
                parts.append(str(one.value))
                continue
            assert isinstance(one, ast.FormattedValue)
            value = self.value(one.value, scope)
            spec = self.value(one.format_spec, scope) if one.format_spec is not None else ""
            unknown = first_unknown(value, spec)
            if unknown is not None:
                return unknown
            parts.append(str(formatted(repr(value) if one.conversion == ord("r") else value, str(spec))))
        return "".join(parts)[:MAX_ITEMS]

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        whole, key = self.value(node.value, scope), self._key(node, scope)
        if isinstance(node.slice, ast.Slice) and not isinstance(whole, str | list | Unknown):
            return Unknown(_kind_of(node))
        if isinstance(whole, Record):
            return self._element(whole, key, scope.place(node))
        if isinstance(whole, Table) and is_key(key) and key not in whole and self.doubt is None:
            whole[key] = self.call(whole.make, (), {}, scope.place(node))
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
        unknown = whole if isinstance(whole, Unknown) else key if isinstance(key, slice) else first_unknown(key)
        if isinstance(unknown, Unknown):
            return self._chooses(unknown, whole)
        lacks = isinstance(whole, dict) and "**" in whole and key not in whole
        return whole["**"] if lacks else attempt(lambda: whole[key])

    def _element(self, whole: Record, key: Any, place: Place) -> Any:
        """Return an element of an object; the arguments of a call are none of what it returns."""
        if does := _own_method(whole, "__getitem__"):
            return self.follow(does, (key,), {}, place)
        if isinstance(key, int) and whole.kind and whole.kind.made_from("NamedTuple"):
            return attempt((self._items(whole) or []).__getitem__, key)
        if isinstance(key, int) and whole.kind is None and whole.name and not is_table(whole):
            return _part(self.open(f"{whole.name}.{key}", MISSING, place, "is not stated"), whole)
        return self.attribute(whole, str(key), place)

    def _chooses(self, unknown: Unknown, among: Any) -> Unknown:
        """Return what chooses among the entries of a dictionary, which it may be; others as they are."""
        if not isinstance(among, dict) or not all(isinstance(one, str) for one in among):
            return unknown
        self.choices.setdefault(asked_name(unknown.name), tuple(among)[:MAX_CHOICES])
        return replace(unknown, why=CHOOSING)

    def _key(self, node: ast.Subscript, scope: Scope) -> Any:
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
        return attempt(Unique, found) if isinstance(found, list) else found

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
        inner, found = Scope({}, scope, scope.file, scope.lines), list[Any]()
        inner.elsewhere = {one.target.id: scope.elsewhere.get(one.target.id, scope) for each in generators
                           for test in each.ifs for one in ast.walk(test) if isinstance(one, ast.NamedExpr)}  # fmt: skip

        def choose(at: int) -> Unknown | None:
            if at == len(generators):
                found.append(make(inner))
                return None
            one = generators[at]
            every = self.value(one.iter, inner if at else scope)
            items = self._items(every)
            if items is None:  # once, for what it does: `[freeze(layer) for layer in model.layers]`
                why = _part(first_unknown(every) or Unknown("..."), every)
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
        self._yields(self._items(self.value(node.value, scope)), scope)

    def _yields(self, items: list[Any] | None, scope: Scope) -> None:
        """Keep what a generator yields; None where nobody knows what or how often."""
        before = scope.names.get(_YIELDED, [])
        scope.names.setdefault(_FIRST, items[0] if items else Unknown("..."))
        unsure = items is None or before is None or self.doubt is not None or len(before) > MAX_ITEMS
        scope.names[_YIELDED] = None if unsure else [*before, *(items or ())]

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self._function(node, scope)

    def attribute(self, whole: Any, name: str, place: Place, *, make: bool = False) -> Any:
        """Return an attribute of a value; `make`: of a record one that is not there yet is made."""
        if isinstance(whole, Record):
            return self._of_record(whole, name, place, make=make)
        if name in {"__name__", "__qualname__"} and isinstance(whole, Symbol | Class | Function):
            return whole.name.rpartition(".")[2]
        if isinstance(whole, Symbol) and whole.origin in OF_MATH and name in OF_MATH[whole.origin]:
            return OF_MATH[whole.origin][name]
        if isinstance(whole, Symbol):
            importer = self.whole.get(whole.origin)
            there = None if importer is None else self.imported(whole.origin, 0, importer)
            found = () if there is None else there.find(name)
            return self.resolved(found[0]) if found else Symbol(f"{whole.name}.{name}", f"{whole.origin}.{name}")
        if isinstance(whole, Class):
            found = whole.find(name)
            bound = bool(found) and isinstance(found[0], Function) and found[0].decorated("classmethod")
            own = f"{whole.name}.{name}"
            return found[0].bound(whole) if bound else found[0] if found else Symbol(own, own)
        if isinstance(whole, Scope):
            return self.resolved(whole.names.get(name, Symbol(name, name)))
        if isinstance(whole, Unknown):
            whole_too = whole.why in {ABSENT, NAMING, CHOOSING}
            return whole if whole_too else _part(self.open(f"{whole.name}.{name}", MISSING, place, whole.why), whole)
        if isinstance(whole, PathText) and (found := of_path(whole, name)) is not None:
            return found
        if name == "name" and isinstance(whole, Member):
            return whole.label
        if name in {"value", "name"} and isinstance(whole, str | int | float):
            return {MemberText: str, MemberNumber: int}.get(type(whole), lambda one: one)(whole)
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
        if does := _own_method(whole, "__getattr__"):
            return self.follow(does, (name,), {}, place)
        if make:
            whole.put(name, Record("", place, within=whole), place)
            return whole.parts[name]
        return _part(self.open(f"{whole.name}.{name}".strip("."), MISSING, place, "is not stated"), whole)

    def open(self, name: str, usual: Any, place: Place, why: str = "") -> Any:
        """Return what the caller says of a name that files leave open, else its default, else that it is unknown."""
        if name in self.environment:
            return self.environment[name][0]
        last = name.rpartition(".")[2]
        for key in (asked_name(name), last, last.replace("_", "-")):
            if key in self.given:
                return _literal(self.given[key])
        if name == "WORLD_SIZE":  # of torch's launcher
            return self.open("get_world_size", MISSING, place, "is the number of GPUs: `gpus=N` says it")
        if usual is not MISSING:
            self.chosen.setdefault(name, Choice(name, usual, place))
        return Unknown(name, why) if usual is MISSING else usual

    # --- calls

    def chosen_of(self, function: Function) -> dict[str, Any]:
        """Return what the caller says of a function's arguments."""
        spec = function.node.args
        names = (one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
        return {name: _literal(self.given[name]) for name in names if name in self.given}

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        place = scope.place(node)
        args = self._values(node.args, scope)
        given: dict[str, Any] = {}
        for word in node.keywords:
            value = self.value(word.value, scope)
            given |= {word.arg: value} if word.arg else self._keywords(value, word.value)
        places = {str(at): scope.place(one) for at, one in enumerate(node.args)}
        places |= {word.arg: scope.place(word.value) for word in node.keywords if word.arg}
        if isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value).startswith("super("):
                return self._of_bases(node.func.attr, args, given, places, scope)
            whole = self.value(node.func.value, scope)
            made = self._method(whole, node.func.attr, args, given, place)
            if made is not _NOTHING:
                return made
            called = self.attribute(whole, node.func.attr, place)
        else:
            called = self.value(node.func, scope)
        return self.call(called, args, given, place, node.func, places)

    def _keywords(self, value: Any, node: ast.expr) -> dict[str, Any]:
        """Return what `**` gives: where no file says it, what the caller says of its name (`{"bf16": True}`)."""
        found = _entries(value)
        if "**" not in found:
            return found
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)[:80]
        said = _literal(self.given.get(name))
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
        while around is not None and _CLASS not in around.names:
            scope, around = around, around.outer
        record = next(iter(scope.names.values()), None)
        kind = record.kind if isinstance(record, Record) else record
        if around is None or not isinstance(kind, Class):
            return None
        line, here = kind.line(), around.names[_CLASS]
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
        if does := called if isinstance(called, Function) else _own_method(called, "__call__"):
            return self.follow(does, args, given, place)
        if is_plain(called) and called is not None:  # what the caller says that a function returns
            return called
        if isinstance(called, Symbol) and "." in called.name and called.name in self.given:
            return _literal(self.given[called.name])
        if isinstance(called, Unknown) and called.why != "is not stated":
            return Unknown(called.name, called.why or "is called")
        if isinstance(called, Symbol):
            made = self._known(called, args, given, place)
            if isinstance(made, Record) and called.origin in WRAPPERS:
                made.places |= places or {}
            if made is not _NOTHING:
                return made
        parts = {**{str(at): one for at, one in enumerate(args)}, **self._opened(given, called, place)}
        own = isinstance(called, Symbol | Record)
        if own and called.name.rpartition(".")[2] in AROUND and (within := parts.get("0", parts.get("trainer"))):
            return within
        name = called.name if own else ast.unparse(written)[:200] if written is not None else "..."
        origin = called.origin if own else name
        made = Record(name, place, parts, dict(places or {}), None, origin, None if own else called)
        return self._kept(made, called)

    def _opened(self, given: Mapping[str, Any], called: Any, place: Place) -> dict[str, Any]:
        """Return keywords with what the file holds that one names as DeepSpeed's configuration, if that is here."""
        engine = "deepspeed" in str(getattr(called, "origin", "")).lower()
        known = {name: self._document(given.get(name), place) for name in (*OF_DEEPSPEED, *OF_ENGINE * engine)}
        return {**given, **{name: one for name, one in known.items() if one is not None}}

    def _kept(self, made: Record, called: Any) -> Record:
        """Keep a call that is not followed, and whether it is of what another returned."""
        if any(one is called for one in self.unfollowed):
            self.again.add(id(made))
        self.unfollowed.append(made)
        return made

    def follow(self, function: Function, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what a function that is here returns."""
        if self.depth >= MAX_DEPTH:
            return Unknown(function.name, "calls itself too often")
        self.followed.add(function.node)
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
        self.depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            ended = self.run(function.node.body, scope)
        finally:
            self.depth -= 1
        if _FIRST in scope.names:
            items = scope.names[_YIELDED]
            if function.decorated("contextmanager"):
                return scope.names[_FIRST]
            return Stream(items) if items is not None else Unknown(function.name, "yields one thing after the other")
        if ended is not None and ended.how == "raise" and self.doubt is not None:
            return self.doubt
        value = ended.value if ended is not None and ended.how == "return" else None
        for other, why in scope.names.get(_MAYBE, []):
            if operate(ast.Is(), other, value) is not True and other != value:
                return why
        return value

    def made(
        self, kind: Class, args: Sequence[Any], given: Mapping[str, Any], place: Place, places: Mapping[str, Place]
    ) -> Any:
        """Return an object of a class that is here."""
        if kind.made_from(*ENUMERATIONS) and len(args) == 1 and not given:
            same = (one for one in kind.members() if operate(ast.Eq(), _value_of(one), _value_of(args[0])) is True)
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
        own.names[_CLASS] = made
        last = 0
        for key, value in list(own.names.items()) if made.made_from(*ENUMERATIONS) else ():
            if not key.startswith(("_", " ")) and not isinstance(value, Function | Property | Class):
                automatic = isinstance(value, Record) and value.name.rpartition(".")[2] == "auto"
                value = (key.lower() if made.made_from("StrEnum") else last + 1) if automatic else value
                last = value if isinstance(value, int) else last
                own.names[key] = member(value, key, made)
        return made

    def _method(self, whole: Any, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a plain value or of a record of a parser returns; `_NOTHING` of others."""
        if (plain := self._of_plain(whole, name, args, given, place)) is not _NOTHING:
            return plain
        if isinstance(whole, Unknown) and name in TEXT_METHODS:  # `args.dtype.lower()`: who knows the text knows it
            return whole
        if isinstance(whole, Record) and (said := self._parsed(whole, name, args, given, place)) is not _NOTHING:
            return said
        if isinstance(whole, Record) and whole.kind and whole.kind.made_from("NamedTuple"):
            if name == "_asdict":
                return dict(whole.parts)
            if name == "_replace":
                return self._of_objects("dataclasses.replace", [whole], given, place)
        if isinstance(whole, Record) and name in self.given and name not in whole.parts and whole.kind is None:
            return _literal(self.given[name])
        if isinstance(whole, Record) and name not in whole.parts and not (whole.kind and whole.kind.find(name)):
            parts = {"of": whole, **{str(at): one for at, one in enumerate(args)}, **given}
            if name == "map" and args and isinstance(args[0], Function) and not args[0].args:  # of samples
                with self.doubting(Unknown("sample")):
                    self.follow(args[0], (Unknown("sample"),), {}, place)
            if name in STARTS:
                self.started.setdefault(id(whole), (len(self.unfollowed), len(self.assigned)))
            self.unfollowed.append(Record(name, place, parts, {}, None, f"{whole.origin}.{name}"))
            return self.unfollowed[-1]
        return _NOTHING

    def _of_plain(self, whole: Any, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a text, a path, a list or a table returns; `_NOTHING` of others."""
        if isinstance(whole, PathText) and name in {"open", "read_text"}:
            return Record("open", place, {"0": str(whole)}, origin="open")
        if isinstance(whole, str):
            known = OF_PATHS.get(name) if isinstance(whole, PathText) else None
            known = known or TEXT_METHODS.get(name)
            if name in {"startswith", "endswith"}:
                args = [tuple(one) if isinstance(one, list) else one for one in args]
            unknown = first_unknown(*given.values(), *(one for one in args if not isinstance(one, tuple)))
            return unknown or (plainly(known, whole, *args, **given) if known else Unknown(name, "is not followed"))
        if isinstance(whole, dict):
            return self._of_dictionary(whole, name, args, given, place)
        if isinstance(whole, Record) and is_table(whole) and name in OF_TABLES and name not in whole.parts:
            return self._of_dictionary(whole.parts, name, args, given, place)
        if isinstance(whole, Unique):
            return self._of_set(whole, name, args)
        if isinstance(whole, list):
            if name == "extend" and args:
                items = self._items(args[0])
                args = [[first_unknown(*args) or Unknown("...")] if items is None else items]
            if name == "sort":
                found = self._sorted("sorted", [whole], given, place)
                return self.change(whole, "__setitem__", slice(None), found if isinstance(found, list) else [found])
            if name in {"append", "extend", "insert", "pop", "remove", "clear", "reverse"} and not isinstance(
                whole, Row
            ):
                return self.change(whole, name, *args, **given)
            looks = name in {"index", "count", "copy"} and len(args) < 2
            return (
                first_unknown(*args) or plainly(getattr(list, name), list(whole), *args)
                if looks
                else Unknown(name, "is not followed")
            )
        return _NOTHING

    def _sorted(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what `sorted`, `min` and `max` choose, by a key where one is given."""
        items = self._items(args[0]) if len(args) == 1 else [*args]
        key, more = given.get("key"), {name: one for name, one in given.items() if name != "key"}
        if items is None:
            return first_unknown(*args) or Unknown("...")
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

    def _parsed(self, parser: Record, name: str, args: list[Any], given: dict[str, Any], place: Place) -> Any:
        """Return what a method of a parser of a command line returns; `_NOTHING` of other objects."""
        kind = parser.origin.rpartition(".")[2]
        if kind == "ArgumentParser":
            return self._of_parser(parser, name, args, given, place)
        if kind not in PARSERS or not name.startswith("parse"):
            return _NOTHING
        kinds = parser.parts.get("0", parser.parts.get("dataclass_types"))
        line = None
        if name in {"parse_yaml_file", "parse_json_file", "parse_dict"}:
            first = next(iter((*args, *given.values())), None)
            line = first if name == "parse_dict" else self._loaded(first, place)
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
        line = _literal(self.given.get(COMMAND_LINE, Unknown(COMMAND_LINE, "is in no file that is here")))
        if isinstance(line, dict):
            return {name: _literal(one) for name, one in line.items()}
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

    def _usual(self, node: ast.expr, scope: Scope) -> Any:
        """Return the default of an argument, of `typer.Option(...)` what it holds."""
        value = self.value(node, scope)
        if isinstance(value, Record) and value.name.rpartition(".")[2] in {"Option", "Argument"}:
            return value.parts.get("default", value.parts.get("0", MISSING))
        return value

    def _of_dictionary(
        self, whole: dict[Any, Any], name: str, args: list[Any], given: dict[str, Any], place: Place
    ) -> Any:
        key = args[0] if args and is_key(args[0]) else None
        usual = args[1] if len(args) > 1 else None
        if args and isinstance(args[0], Unknown) and name != "update":
            return self._chooses(args[0], whole)
        if name == "get":
            return whole.get(key, usual)
        match name:
            case "pop" | "setdefault":
                if name == "setdefault" and key not in whole:
                    self.put(whole, key, usual, place)
                found = whole.get(key, usual)
                if name == "pop":
                    self.remove(whole, key)
                return found
            case "update":
                for own, value in {**(_entries(args[0]) if args else {}), **given}.items():
                    self.put(whole, own, value, place)
                return None
            case "items":
                return [Row(one) for one in whole.items()]
            case "keys":
                return Unique(whole)
            case "values":
                return list(whole.values())
            case "copy" | "to_dict":
                return dict(whole)
            case "clear" | "popitem":
                last = Row(list(whole.items())[-1]) if whole else Failed("...", error="KeyError")
                for own in [*whole] if name == "clear" else last[:1] if isinstance(last, Row) else ():
                    self.remove(whole, own)
                return None if name == "clear" else last
        return Unknown(name, "is not followed")

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
                given = {**given, "default": _literal(given["default"])} if "default" in given else given
            parser.put(own, given.get("default", off if off is not MISSING else usual), place)
            return parser
        if name in {"parse_args", "parse_known_args"}:
            said = Record("args", place, origin="args")
            own_line = args[0] if args else given.get("args")
            line = self._line(place) if own_line is None else own_line
            if isinstance(own_line, list):
                line = options_of(shlex.join(map(str, own_line))) if first_unknown(own_line) is None else None
            told = line if isinstance(line, dict) else {}
            if line is None:
                return Unknown("parse_args", "is given what is not followed")
            for own, usual in (parser.parts | {own: told[own] for own in told if own in parser.parts}).items():
                needed, at = isinstance(usual, Unknown), parser.places.get(own, place)
                missing = usual is None or own in {"0", "description"}
                value = self.open(own, MISSING if missing or needed else usual, at)
                said.put(own, None if missing and isinstance(value, Unknown) else value, at)
            return said if name == "parse_args" else [said, []]
        if name in {"add_argument_group", "add_mutually_exclusive_group"}:
            return parser
        if name == "set_defaults":
            for own, value in given.items():
                parser.put(own, value, place)
        return None

    def _known(self, called: Symbol, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what a function of Python's own returns; `_NOTHING` of others."""
        origin = called.origin
        if (said := self._of_machine(origin, args, place)) is not _NOTHING:
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
        made = self._of_objects(origin, args, given, place)
        return _wrapped(called, args, given, place) if made is _NOTHING else made

    def _purely(self, origin: str, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Return what a pure function makes of its arguments; what only deals out elements takes any."""
        does = {"len": "__len__", "str": "__str__", "int": "__int__"}.get(origin, "")
        if does and args and (own := _own_method(args[0], does)):
            return self.follow(own, (), {}, args[0].place)
        told = list(args)
        if origin in DEALING or origin in {"sum", "any", "all", "len"} or origin.startswith("itertools."):
            every = [self._items(one) if isinstance(one, Stream | Class | Record | dict) else one for one in told]
            told = [one if items is None else items for one, items in zip(told, every, strict=True)]
        self.steps += sum(len(one) // 20 for one in told if isinstance(one, list))
        if origin == "len" and told and isinstance(told[0], list | dict | str):
            return len(told[0])
        if origin in DEALING and all(isinstance(one, list | str | int) for one in told):
            return plainly(PURE[origin], *told, **given)
        unknown = first_unknown(*told, *given.values())
        if unknown is not None and unknown.why == "is of another package":
            return replace(unknown, name="...")  # the call can be given, what it is given cannot
        return unknown or plainly(PURE[origin], *told, **given)

    def _of_objects(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what functions of Python return that make, copy or write objects; `_NOTHING` of others."""
        match origin:
            case "dict" | "collections.OrderedDict" if args and isinstance(args[0], Unknown) and not given:
                return args[0]
            case "dict" | "collections.OrderedDict":
                return {**(_entries(args[0]) if args else {}), **given}
            case "vars" if args and isinstance(args[0], Record) and (args[0].kind or is_table(args[0])):
                return args[0].parts
            case "next" if args and isinstance(args[0], Stream):
                return args[0].pop(0) if args[0] else args[1] if len(args) > 1 else Unknown("...", "is empty")
            case "iter" if len(args) == 1 and (items := self._items(args[0])) is not None:
                return args[0] if isinstance(args[0], Stream) else Stream(items)
            case "type" if len(args) == 1 and (is_plain(args[0]) or getattr(args[0], "kind", None)):
                kind = getattr(args[0], "kind", None) or type(real(args[0])).__name__
                return Symbol(kind, kind) if isinstance(kind, str) else kind
            case "issubclass" if len(args) == 2 and isinstance(args[0], Class):
                return _is_a(Record(args[0].name, place, kind=args[0]), args[1])
            case "callable" if args and isinstance(args[0], Function | Class | Bound):
                return True
            case "functools.reduce" if len(args) > 1 and (items := self._items(args[1])) is not None:
                made, *rest = [*args[2:], *items] or [Failed("...", error="TypeError")]
                for one in rest:
                    made = self.call(args[0], (made, one), {}, place)
                return made
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
                table = Table(_entries(args[1]) if len(args) > 1 else {})
                table.make = args[0] if args else None
                return table if args else _NOTHING
            case "collections.Counter" if (
                args and (items := self._items(args[0])) is not None and all(map(is_key, items))
            ):
                table = Table({one: items.count(one) for one in items})
                table.make = Symbol("int", "int")
                return table
            case "dict.fromkeys" if args and (items := self._items(args[0])) is not None:
                return {one: args[1] if len(args) > 1 else None for one in items if is_key(one)}
            case "asyncio.run" if args and not isinstance(args[0], Record):
                return args[0]
            case "json.dump" | "yaml.dump" | "yaml.safe_dump" if len(args) > 1 and (path := path_of(args[1])):
                self.written[path] = args[0]
                return None
            case "copy.deepcopy" if args:
                return _copied(args[0], 0)
            case "copy.copy" if args:
                return (
                    args[0].copy()
                    if isinstance(args[0], Record)
                    else type(args[0])(args[0])
                    if isinstance(args[0], list | dict)
                    else args[0]
                )
            case "dataclasses.replace" if args and isinstance(args[0], Record):
                made = args[0].copy()
                for name, value in given.items():
                    made.put(name, value, place)
                return made
        return _NOTHING

    def _of_machine(self, origin: str, args: Sequence[Any], place: Place) -> Any:
        """Return what the environment or the machine says; `_NOTHING` of other functions."""
        last, first = origin.rpartition(".")[2], args[0] if args and isinstance(args[0], str) else None
        if origin == "len" and args and getattr(args[0], "origin", "") == "sys.argv":
            ends = (int(name[9:]) for name in self.given if re.fullmatch(r"sys\.argv\.\d{1,3}", name))
            return _literal(self.given.get("sys.argv", 1 + max(ends, default=0)))  # nothing else stands there
        if origin in {"os.environ.get", "os.getenv"} and first is not None:
            return self.open(first, args[1] if len(args) > 1 else MISSING, place)
        if origin == "os.environ.setdefault" and first is not None and len(args) > 1:
            self.environment.setdefault(first, (_literal(self.given.get(first, args[1])), place))
            return self.environment[first][0]
        if origin == "os.environ.update" and isinstance(entries := args[0] if args else None, dict):
            self.environment |= {str(key): (one, place) for key, one in entries.items()}
            return None
        if last == "get_device_capability":
            return [self.open(last, 8, place), 0]
        if last in {"get_world_size", "device_count"}:
            return self.open(last, MISSING, place, "is the number of GPUs: `gpus=N` says it")
        return _NOTHING

    def _loaded(self, file: Any, place: Place) -> Any:
        """Return what the document holds that a program opens; `_NOTHING` of what is no document."""
        named = path_of(file)
        found = self._document(named, place)
        why = NAMING if isinstance(named, Unknown) else ABSENT
        if isinstance(named, Unknown) or (found is None and isinstance(named, str) and named.endswith(DOCUMENTS)):
            name = named.name if isinstance(named, Unknown) else named
            self.lost[name] = why, place
            return Unknown(name, why)
        return _NOTHING if found is None else found

    def _document(self, named: Any, place: Place) -> Any:
        """Return what a document holds: one that the program wrote, or one that is here; None of others."""
        if not isinstance(named, str):
            return None
        self.steps += LOOKED
        return _copied(self.written[named], 0) if named in self.written else self.load(named, place.file)

    def _table(self, origin: str, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return a dictionary whose entries are attributes too, or what OmegaConf makes of such."""
        does, first = origin.rpartition(".")[2], args[0] if args else {}
        if does == "load":
            first = self._loaded(first, place)
            first = _NOTHING if first is _NOTHING else interpolated(first, first, 0)
        elif does in {"to_container", "to_object"}:
            return entries_of(first, 0)
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
                whole.parts[name] = _literal(self.given[f"{prefix}{name}"])

    def _mapped(self, origin: str, function: Any, args: Sequence[Any], place: Place) -> Any:
        """Call a function once for each item; what is no list counts as one item."""
        lists = [self._items(one) for one in args]
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
            return self._loaded(args[0], place)
        if origin == "dataclasses.asdict":
            return entries_of(args[0], 0) if isinstance(args[0], Record) else _NOTHING
        if origin == "isinstance":
            return _is_a(args[0], args[1])
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
        return {name: True if not values else _literal(values[0]) if len(values) == 1 else [*map(_literal, values)]
                for name, values in found.items()}  # fmt: skip
    return None


def _adapters(model: Record, place: Place) -> Any:
    """Return the adapters that `get_peft_config` makes of a command line that is known (trl 1.16 trainer/utils.py).

    It makes none without `--use_peft`, which is off where nothing is said.
    """
    if "**" in model.parts or not model.origin.endswith("ModelConfig"):
        return _NOTHING
    if model.parts.get("use_peft") is not True:
        return None
    named = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
             "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}  # fmt: skip
    usual = {"lora_r": 16, "lora_dropout": 0.05}
    parts = {own: value for own, name in named.items() if (value := model.parts.get(name, usual.get(name))) is not None}
    return Record("LoraConfig", place, parts, origin="peft.LoraConfig")


def _defaults(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> dict[str, ast.expr]:
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


REFLECTING = {"isinstance": 2, "hasattr": 2, "getattr": 2, "setattr": 3, "map": 2, "filter": 2,
              **dict.fromkeys((*COMMAND_LINES, *LOADERS, "dataclasses.asdict"), 1)}  # fmt: skip
"""Functions that look at objects, go through them or make them of files -> how many arguments they need."""


DEALING = frozenset({"list", "tuple", "enumerate", "zip", "reversed", "itertools.chain", "itertools.product"})
"""Functions that deal out elements, whatever these are."""
LOOKING_AT_SETS = frozenset(
    {"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "copy"}
)
OF_SETS = LOOKING_AT_SETS | {"add", "discard", "remove", "update", "clear", "pop", "difference_update",
                             "intersection_update", "symmetric_difference_update"}  # fmt: skip
OF_MATH = {"math": {"pi": math.pi, "e": math.e}}


def _classes(kinds: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the classes of errors that a handler takes."""
    every = [inner for one in kinds for inner in (one if isinstance(one, list) else [one])]
    return tuple(getattr(one, "name", "...").rpartition(".")[2] for one in every)


def _error_names(error: Any) -> tuple[str, ...]:
    """Return the names of the classes of which an error is one, from what is raised: a class or an object of it."""
    kind = error.kind or error.name if isinstance(error, Record) else error
    line = [one.name for one in kind.line()] if isinstance(kind, Class) else []
    bases = [base for one in kind.line() for base in one.bases] if isinstance(kind, Class) else [kind]
    for one in bases:
        last = (one if isinstance(one, str) else getattr(one, "name", "...")).rpartition(".")[2]
        made = getattr(builtins, last, None)
        line += [base.__name__ for base in made.__mro__] if isinstance(made, type) else [last, "Exception"]
    return (*line, "BaseException")


def _targets(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement sets."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    for node in ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _value_of(value: Any) -> Any:
    """Return the value of an enumeration's member; others as they are."""
    return str(value) if isinstance(value, MemberText) else int(value) if isinstance(value, MemberNumber) else value


def _own_method(whole: Any, name: str) -> Function | None:
    """Return a method of an object of a class that is here."""
    found = whole.kind.find(name) if isinstance(whole, Record) and whole.kind else ()
    return found[0].bound(whole) if found and isinstance(found[0], Function) else None


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


def _guards(node: ast.If) -> bool:
    """Whether a condition only asks if something is there before its parts are set: `if a.b is not None: a.b.c = 1`."""
    test = node.test
    asks = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot)
    if not asks or not isinstance(test, ast.Compare) or ast.unparse(test.comparators[0]) != "None" or node.orelse:
        return False
    start = f"{ast.unparse(test.left)}."
    sets = [one.targets for one in node.body if isinstance(one, ast.Assign)]
    return len(sets) == len(node.body) and all(ast.unparse(one).startswith(start) for each in sets for one in each)


REFUSING = re.compile(r"(sys\.exit|exit|quit|os\._exit|\w*pars\w*\.(error|exit))\(")
"""Calls that end a program."""
SPEAKING = re.compile(r"([\w.]*\b)?(print\w*|s?echo|log|info|warn(ing)?|error|critical|exception|write|flush)\(")
"""Calls that only say something."""


def _refuses(branch: Sequence[ast.stmt]) -> bool:
    """Whether a branch does nothing but say why the program ends, and end it."""
    *before, last = branch or [ast.Pass()]
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and REFUSING.match(ast.unparse(last)) is not None and ast.unparse(last)[-2:] != "))"
    )
    return ends and all(map(_speaks, before))


def _speaks(statement: ast.stmt) -> bool:
    """Whether a statement only says something."""
    return isinstance(statement, ast.Expr) and SPEAKING.match(ast.unparse(statement)) is not None


def _asked_of(test: ast.expr) -> str:
    """Return the name of the argument or variable that a condition is about."""
    named = (one for one in ast.walk(test) if isinstance(one, ast.Attribute | ast.Name))
    found = next(named, None)
    return found.attr if isinstance(found, ast.Attribute) else found.id if found is not None else "..."


def _counted(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements make of what they meant before: `count += 1`, `size = size * 2`."""
    for node in (inner for one in body for inner in ast.walk(one)):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for name in (one.id for one in targets if isinstance(one, ast.Name)):
            value = node.value if isinstance(node, ast.Assign) else None
            if value is None or any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value)):
                yield name


_NOTHING = object()
_MAYBE = " returned"
"""Name in the scope of a function of what it may have returned; no name of Python has a space."""
_YIELDED, _FIRST = " yielded", " first"
"""Names in the scope of a generator of what it yields, and of the first of that."""
_ERROR = " error"
"""Name in the scope of a handler of the error that it takes."""
INSTALLED = object()
"""What a package is taken as that a `try` imports."""
_CLASS = " class"
"""Name in the scope of a class of the class itself."""

WRAPPERS = ("functools.partial", "nemo_run.Partial", "nemo_run.Config", "nemo_run.autoconvert")
"""Calls that stand for a later call of their first argument."""


def _wrapped(called: Symbol, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
    """Return the call that `functools.partial` and NeMo-Run's configurations stand for, TRL's adapters."""
    if called.origin.endswith(".get_peft_config") and args and isinstance(args[0], Record):
        return _adapters(args[0], place)
    if called.origin not in WRAPPERS or not args or not isinstance(args[0], Symbol | Function | Class):
        return _NOTHING
    if called.origin == "functools.partial" and isinstance(args[0], Function):
        return args[0].bound(*args[1:], **given)
    parts = {**{str(at): one for at, one in enumerate(args[1:])}, **given}
    origin = args[0].origin if isinstance(args[0], Symbol) else args[0].name
    return Record(args[0].name, place, parts, {}, None, origin)


def _entries(value: Any) -> dict[str, Any]:
    """Return what `**` makes of a value: entries of a dictionary; of what is not known one that says so."""
    value = value.parts if is_table(value) else value
    if isinstance(value, dict):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        return {key: one for key, one in value if is_key(key)}
    return {"**": first_unknown(value) or Unknown("...")}


def _has(whole: Any, name: str) -> bool | Unknown:
    if isinstance(whole, Record):
        if name in whole.parts or (whole.kind and whole.kind.find(name)):
            return True
        other = whole.kind is None and not is_table(whole)
        return Unknown(f"{whole.name}.{name}", "is not stated") if other else False
    return first_unknown(whole) or False


def _is_a(value: Any, kind: Any) -> bool | Unknown:
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


def _copied(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_copied(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one, depth + 1) for key, one in value.items()}
    if isinstance(value, Record):
        made = value.copy()
        made.parts = {key: _copied(one, depth + 1) for key, one in made.parts.items()}
        return made
    return value


def _part(value: Any, whole: Any) -> Any:
    """Return what a part of something is, with what it is a part of where it is not known."""
    return replace(value, of=whole) if isinstance(value, Unknown) else value


def _decides(unknown: Unknown, place: Place) -> Unknown:
    return Unknown(unknown.name, unknown.why or f"decides at line {place.line} of {place.file}")


def _kind_of(node: ast.expr) -> str:
    return type(node).__name__.lower()


def _literal(value: Any) -> Any:
    """Return a value that is given as text as Python would have it, where it is a plain literal."""
    if not isinstance(value, str) or len(value) > MAX_ITEMS:
        return value
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    made = plainly(int, value)
    made = plainly(float, value) if isinstance(made, Unknown) else made
    if isinstance(made, Unknown) and value[:1] == "{":
        made = _dictionary(value)
    return value if isinstance(made, Unknown) else made


def _dictionary(text: str) -> Any:
    """Return a dictionary of plain values that is given as text, as Python or JSON have it; else the text."""
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        made = ast.literal_eval(text)
        return made if isinstance(made, dict) and all(isinstance(key, str) for key in made) else text
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text
