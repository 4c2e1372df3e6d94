"""What is known while a Python file is worked out: its names, what it does, and what is not certain."""

from __future__ import annotations

import ast
import builtins
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuscale.launch.python_tables import is_table
from gpuscale.launch.python_values import (
    MAX_ITEMS,
    MISSING,
    Class,
    Function,
    Imported,
    Perhaps,
    Place,
    Record,
    Scope,
    Unknown,
    asked_name,
    first_unknown,
    is_key,
    is_plain,
    plainly,
)

MAX_DEPTH = 24
"""Functions that call one another."""


MAX_STEPS = 200_000
"""Expressions and statements that are looked at."""


LOOKED = 100
"""Steps that looking for the file of a module counts as."""


COMMAND_LINE = "command_line"
"""Variable that says what else stands on the command line of a script: `--bf16 true`, or `{"bf16": true}`."""


LINE = "--per_device_train_batch_size 4 --bf16 true"
"""How one is written."""


DOCUMENTS = (".yaml", ".yml", ".json", ".toml")


ABSENT, NAMING = "is in a file that is not here", "names the file of its configuration"
"""Why what such a function returns is not known: the file is not here, or nobody says which it is."""


CHOOSING = "says which entry of a table counts"


MAX_CHOICES = 40


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


@dataclass(eq=False)
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


NOTHING = object()


INSTALLED = object()
"""What a package is taken as that a `try` imports."""


class State(ABC):
    """What is known of one program.

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
        self.looped: set[ast.AST] = set()  #: loops of which it is known every how many rounds an optimizer steps.
        self.whole: dict[str, str] = {}  #: modules that are imported as such -> the file that does.
        self.accumulates: tuple[Any, Place] | None = None  #: every how many steps an optimizer steps: `if n % 4 == 0`.
        self.choices: dict[str, tuple[str, ...]] = {}  #: name of what is asked for -> what it may be.
        #: documents that are loaded and not here, or what names them -> why, and where.
        self.lost: dict[str, tuple[str, Place]] = {}
        self.written: dict[str, Any] = {}  #: documents that the program writes.
        self.tries: list[Trying] = []
        self.rounds = 0  #: loops gone through of which nobody knows how often they are.
        self.optional: dict[str, Choice] = {}  #: names that hang on whether a package is installed -> that it is.
        self.steps = 0
        self.depth = 0
        self.doubt: Unknown | None = None

    @contextmanager
    def doubting(self, why: Unknown | None) -> Iterator[None]:
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

    def doubted(self, before: Any, value: Any) -> Any:
        """Return a value, or what decides it where it is only possible and another than that before."""
        if self.doubt is None or before is value or (is_plain(before) and is_plain(value) and before == value):
            return value
        return Perhaps(self.doubt.name, self.doubt.why) if before is MISSING else self.doubt

    def open(self, name: str, usual: Any, place: Place, why: str = "") -> Any:
        """Return what the caller says of a name that files leave open, else its default, else that it is unknown."""
        if name in self.environment:
            return self.environment[name][0]
        last = name.rpartition(".")[2]
        for key in (asked_name(name), last, last.replace("_", "-")):
            if key in self.given:
                return literal(self.given[key])
        if name == "WORLD_SIZE":  # of torch's launcher
            return self.open("get_world_size", MISSING, place, "is the number of GPUs: `gpus=N` says it")
        if usual is not MISSING:
            self.chosen.setdefault(name, Choice(name, usual, place))
        return Unknown(name, why) if usual is MISSING else usual

    # what is worked out in the modules that follow

    @abstractmethod
    def value(self, node: ast.expr | None, scope: Scope, *, make: bool = False) -> Any:
        """Return what an expression comes to; `make`: parts of records that are not there yet are made."""

    @abstractmethod
    def run(self, body: Sequence[ast.stmt], scope: Scope) -> Ended | None:
        """Go through statements one after the other."""

    @abstractmethod
    def raised(self, error: RaisedError) -> Ended:
        """End what is gone through by an error; where a `try` takes it, its handler is what comes next."""

    @abstractmethod
    def call(
        self, called: Any, args: Sequence[Any], given: Mapping[str, Any], place: Place, written: ast.expr | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> Any:  # fmt: skip
        """Return what a call returns, or a record of it where it is not followed."""

    @abstractmethod
    def follow(self, function: Function, args: Sequence[Any], given: Mapping[str, Any], place: Place) -> Any:
        """Return what a function that is here returns."""

    @abstractmethod
    def made(
        self, kind: Class, args: Sequence[Any], given: Mapping[str, Any], place: Place, places: Mapping[str, Place]
    ) -> Any:
        """Return an object of a class that is here."""

    @abstractmethod
    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> Function:
        """Return a function with the defaults of its arguments."""

    @abstractmethod
    def loaded(self, file: Any, place: Place) -> Any:
        """Return what the document holds that a program opens; `NOTHING` of what is no document."""

    @abstractmethod
    def imported(self, name: str, level: int, importer: str) -> Scope | None:
        """Return the names of a module that is here; None of one that is not."""

    @abstractmethod
    def resolved(self, value: Any) -> Any:
        """Return what a name that is imported means; other values as they are."""


def own_method(whole: Any, name: str) -> Function | None:
    """Return a method of an object of a class that is here."""
    found = whole.kind.find(name) if isinstance(whole, Record) and whole.kind else ()
    return found[0].bound(whole) if found and isinstance(found[0], Function) else None


def part_of(value: Any, whole: Any) -> Any:
    """Return what a part of something is, with what it is a part of where it is not known."""
    return replace(value, of=whole) if isinstance(value, Unknown) else value


def decides(unknown: Unknown, place: Place) -> Unknown:
    """Return what is not known with the line that it decides at."""
    return Unknown(unknown.name, unknown.why or f"decides at line {place.line} of {place.file}")


def entries(value: Any) -> dict[str, Any]:
    """Return what `**` makes of a value: entries of a dictionary; of what is not known one that says so."""
    value = value.parts if is_table(value) else value
    if isinstance(value, dict):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        return {key: one for key, one in value if is_key(key)}
    return {"**": first_unknown(value) or Unknown("...")}


def error_names(error: Any) -> tuple[str, ...]:
    """Return the names of the classes of which an error is one, from what is raised: a class or an object of it."""
    kind = error.kind or error.name if isinstance(error, Record) else error
    line = [one.name for one in kind.line()] if isinstance(kind, Class) else []
    bases = [base for one in kind.line() for base in one.bases] if isinstance(kind, Class) else [kind]
    for one in bases:
        last = (one if isinstance(one, str) else getattr(one, "name", "...")).rpartition(".")[2]
        made = getattr(builtins, last, None)
        line += [base.__name__ for base in made.__mro__] if isinstance(made, type) else [last, "Exception"]
    return (*line, "BaseException")


def literal(value: Any) -> Any:
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
