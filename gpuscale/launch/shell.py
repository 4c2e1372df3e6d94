"""What a shell script would run: its variables and branches followed as far as they are known, nothing executed.

A variable without a value stands in texts as `${NAME}`; who needs the text asks for it by that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import translate
from functools import partial
from itertools import pairwise, takewhile
from os.path import normpath
from pathlib import Path, PurePosixPath
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal

from gpuscale.errors import InputError
from gpuscale.files import is_folder
from gpuscale.launch.python_run import Program
from gpuscale.launch.shell_arithmetic import assigned_in, whole_number
from gpuscale.launch.shell_sed import edited
from gpuscale.launch.shell_syntax import (
    DECLARING,
    Assignment,
    Branches,
    CaseStatement,
    Chain,
    Function,
    Group,
    Heredoc,
    Loop,
    Parser,
    Pipe,
    Redirect,
    Simple,
    Statement,
    SyntaxProblem,
    Test,
    braced,
    passed,
)
from gpuscale.launch.starters import NOTHING, QUESTIONS, QUIET
from gpuscale.launch.traced import NOWHERE, OpenFiles, Traced, joined, untraced

MAX_LEVELS = 6
"""Folders below a folder, and above a file, in which what it names is looked for."""
MAX_STEPS = 20_000
MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 40
MAX_FIELDS = 20_000
MAX_CHOICES = 20
MAX_TURNS = 1000
MAX_LOOP_STEPS = 8000
"""Turns of a loop, and statements in them, that are followed."""

Value = Traced | tuple[Traced, ...] | dict[str, Traced]

EMPTY = untraced("")
BLANKS = " \t\n"
_MARK = re.compile(r"\$\{([\w@#]+)\}|\$\([^\s)]*\)?")
REST = re.compile(r"\$\{@(\d{1,9})\}")
"""What stands for the arguments of the script from this one on, which nobody gave."""
_FLAG = re.compile(r"--?[A-Za-z]")
_LITERAL = re.compile(r"[^\\'\"$`]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]", re.ASCII)
_PARAMETER = re.compile(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?!$-])(?:\[([^\]]*)\])?(.*)", re.ASCII | re.DOTALL)
_CHOICE = re.compile(r"\w[\w.:+-]{0,59}")
_ARGUMENTS = (['"$@"'], ["$@"], ["$*"], ['"${@}"'], ["${@}"])
_PLAIN_PATTERN = re.compile(r"(?:[\w\s^$|/:@,.()-]|\\\.|\[\^?[\w\s./:,-]+\][+*]?|\.[+*]){1,60}")
"""A regular expression that repeats single characters alone."""
_ALTERNATIVES = re.compile(r"\^?\(?([\w.:+-]+(?:\|[\w.:+-]+)+)\)?\$?")
_READING = ("<", "<<", "<<-", "<<<", "<(")
_WRITING = (">", ">>", ">|", "&>", "&>>")
_HERE = ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "BASH_SOURCE")


def split(text: Traced, separators: str = BLANKS) -> list[Traced]:
    """Split into fields as IFS has them: blanks together end a field, another separator ends one each."""
    blank, other = (re.escape("".join(it for it in separators if it.isspace() is one)) for one in (True, False))
    ends = rf"[{blank}]*[{other}][{blank}]*|[{blank}]+" if blank and other else f"[{other}]" if other else f"[{blank}]+"
    found, at = list[Traced](), 0
    for end in re.finditer(ends, text.text) if separators else ():
        found += [text.cut(at, end.start())] if end.start() > at or (end.start() == at and not end[0].isspace()) else []
        at = end.end()
    return [*found, text.cut(at)] if at < len(text.text) else found


def known(text: str) -> bool:
    """Whether a text holds no variable without a value."""
    return "$" not in text or _MARK.search(text) is None


def mark(name: str) -> Traced:
    """Return what stands for a variable without a value."""
    return untraced(f"${{{name}}}")


class State:
    """What a script has set at one point of it.

    Attributes:
        variables: name -> value, list or table.
        places: name -> where it was set.
        unknown: name -> why its value is not known, though the script sets it.
        exported: names that commands see.
        positional: `$1`, `$2`, ..., as far as they are known.
        rest: which argument of the script itself follows them, when nobody has given it; 0 where none follows.
        texts: files that the script writes.
        folder: where it has gone (`cd`), of the folders that are here; None where it is where it began.
        ended: what it has come to that leaves the rest out: `exit`, `return`, `break` or `continue`, and of how many
            loops.
        local: what variables of the function that is followed were before it; None where they were not set.
        input: what is left of what its commands read; None where that is not known.
        status: of the last command (`$?`); empty where it is not known, `ok` where it is taken for granted.
        counted: variables that hold numbers alone (`declare -i`).
        names: variable that stands for another (`declare -n`) -> the other.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Value] = {}
        self.places: dict[str, int] = {}
        self.unknown: dict[str, str] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, tuple[Statement, ...]] = {}
        self.positional: tuple[Traced, ...] = ()
        self.rest = 0
        self.texts: dict[str, Traced] = {}
        self.folder: Path | None = None
        self.ended, self.levels = "", 0
        self.local: dict[str, Value | None] = {}
        self.input: Traced | None = None
        self.status = "0"
        self.counted: set[str] = set()
        self.names: dict[str, str] = {}

    def copy(self) -> State:
        """Return a state that may go another way."""
        made = State()
        for name, value in vars(self).items():
            setattr(made, name, value.copy() if isinstance(value, dict | set) else value)
        return made

    def text(self, name: str) -> Traced | None:
        """Return what the script wrote into a file."""
        return self.texts.get(str(PurePosixPath(name)))

    def write(self, name: str, text: Traced) -> None:
        """Keep what the script writes into a file."""
        self.texts[str(PurePosixPath(name))] = text

    def argument(self, number: int) -> Traced:
        """Return `$1` or another by its number, from 1."""
        if number <= len(self.positional):
            return self.positional[number - 1]
        return mark(str(self.rest + number - len(self.positional) - 1)) if self.rest else EMPTY

    def shift(self, count: int) -> None:
        """Drop the first arguments."""
        self.rest += max(0, count - len(self.positional)) if self.rest else 0
        self.positional = self.positional[count:]

    def take(self, words: Sequence[Traced]) -> None:
        """Have these arguments, up to what stands for those of the script that nobody gave: `"$@"`."""
        rests = [REST.fullmatch(word.text) for word in words]
        at = next((at for at, one in enumerate(rests) if one), len(words))
        self.positional, self.rest = tuple(words[:at]), next((int(one[1]) for one in rests if one), 0)

    def arguments(self) -> tuple[Traced, ...]:
        """Return `"$@"`."""
        return (*self.positional, mark(f"@{self.rest}")) if self.rest else self.positional

    def adopt(self, other: State) -> None:
        """Become another state."""
        for name, value in vars(other).items():
            setattr(self, name, value)


class Shell:
    """Follows scripts.

    Attributes:
        given: variables that the user gives; they hold whatever a script assigns.
        defaults: variable -> its default that was taken, and where.
        missing: files that scripts read first and that are not here, with the place.
        ends: where `exit` was reached.
        cut: comments that end a command before lines that look like more of it.
        followed: scripts, in the order in which they were first met.
        calls: where the functions that are followed now were called.
        choices: variable without a value -> the texts that conditions compare it with.
        origins: file that a command makes -> the file, not here, that it is made of.
        computed: variables that expressions of unknown value are assigned to: what they are compared with is no value
            of what the expressions hang on.
        unfollowed: where files are changed in ways that are not followed.
        launched: what commands launch, kept by who takes them; a loop drops what a turn that does not count launched.
    """

    def __init__(
        self,
        files: OpenFiles,
        find: Callable[[str, Path], Path | None],
        given: Mapping[str, str],
        command: Callable[[State, list[Traced], dict[str, Traced], Traced | None], None],
    ) -> None:
        self.files, self.find, self.given, self.command = files, find, given, command
        self.defaults: dict[str, tuple[str, int]] = {}
        self.missing: list[tuple[str, int]] = []
        self.ends: list[int] = []
        self.cut: dict[int, None] = {}
        self.followed: list[Path] = []
        self.calls: list[int] = []
        self.choices: dict[str, dict[str, None]] = {}
        self.computed: set[str] = set()
        self.unfollowed: list[int] = []
        self.launched: list[Any] = []
        self.origins: dict[str, str] = {}
        self.path = Path()
        self.steps = self.characters = self.depth = 0
        self._unset: set[str] = set()
        self._defaulting = False
        self._asked: set[str] = set()
        self._aside: list[State] = []
        self._capture: list[Traced | None] | None = None
        self._printing, self._substituted = False, "0"

    def grow(self, characters: int) -> None:
        """Count what expansions make, up to a limit."""
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise InputError("script too long to follow", place=str(self.path))

    def asked(self) -> list[str]:
        """Return the variables that conditions asked for and nobody sets."""
        return sorted(self._asked)

    # --- running

    def run_file(self, path: Path, state: State) -> None:
        """Follow a script."""
        file = self.files.read(path)
        self.followed += [] if path in self.followed else [path]
        before, self.path = self.path, path
        self.run_text(self.files.traced(file), state)
        self.path = before

    def run_text(self, text: Traced, state: State) -> None:
        """Follow the text of a script.

        Raises:
            InputError: it is no shell script, or too much.
        """
        parser = Parser(text)
        try:
            statements = parser.script()
        except SyntaxProblem as problem:
            message, offset = problem.args
            at = text.at[min(offset, len(text.at) - 1)] if text.at else NOWHERE
            hint = "give the script as it runs; a template has to be filled in first"
            raise InputError(f"not a shell script: {message}", place=self.place(at), hint=hint) from None
        self.cut.update(dict.fromkeys(parser.cut))
        self.run(statements, state)

    def line(self, at: int) -> tuple[str, int]:
        """Return file and line of a character; of one that no file holds the script and 0."""
        found = self.files.place(at)
        return (found[0].name, found[1]) if found else (str(self.path), 0)

    def place(self, at: int) -> str:
        """Return file and line of a character as messages have them."""
        file, line = self.line(at)
        return f"{file}:{line}" if line else file

    def run(self, statements: Sequence[Statement], state: State) -> None:
        """Follow statements, up to an `exit`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError("scripts that call each other deeper than is followed", place=str(self.path))
        for one in statements:
            if state.ended:
                break
            self.step(one, state)
        self.depth -= 1

    def step(self, one: Statement, state: State) -> None:
        """Follow one statement."""
        self.steps += 1
        if self.steps > MAX_STEPS or self.characters > MAX_CHARACTERS:
            raise InputError("script too long to follow", place=self.place(one.at))
        if isinstance(one, Function):
            state.functions[one.name] = one.body
        elif isinstance(one, Group):
            inner = state.copy() if one.subshell else state
            self.redirected(one.redirects, inner, lambda: self.run(one.body, inner))
            state.texts, state.status = inner.texts, inner.status
        elif isinstance(one, Test) or (isinstance(one, Simple) and _first_word(one) in {"[", "test"}):
            self.truth(one, state)
        else:
            follow: Mapping[type, Callable[[Any, State], object]] = {
                Simple: self.simple, Branches: self.branches, CaseStatement: self.case, Loop: self.loop,
                Pipe: self.pipe, Chain: self.chain,
            }  # fmt: skip
            follow[type(one)](one, state)

    def chain(self, one: Chain, state: State) -> None:
        """Follow `a && b || c`."""
        value = self.truth(one.first, state, otherwise=True)
        for operator, statement in one.rest:
            wanted = operator == "&&"
            if state.ended:
                return
            if value is None:
                inner = state.copy()
                self.step(statement, inner)
                self.merge(state, [inner, state.copy()], one.at)
            elif value is wanted:
                value = self.truth(statement, state, otherwise=True)

    def pipe(self, one: Pipe, state: State) -> None:
        """Follow a pipeline: what a part writes, the next may read."""
        text, inner = state.input, state
        for part in one.parts:
            inner = state.copy() if len(one.parts) > 1 else state
            inner.input = text
            follow = partial(self.step, part, inner)
            if part is one.parts[-1]:
                follow()
            else:
                text = self.captured(follow)
            state.texts = inner.texts
        state.status = inner.status if not one.negated else {"0": "1", "": "", "ok": "ok"}.get(inner.status, "0")

    def captured(self, follow: Callable[[], object]) -> Traced | None:
        """Return what is printed meanwhile; None where that is not known."""
        before, self._capture = self._capture, []
        follow()
        texts, self._capture = self._capture, before
        return joined(it for it in texts if it) if None not in texts else None

    def show(self, text: Traced | None) -> None:
        """Print."""
        if self._capture is not None:
            self._capture.append(text)

    def redirected(self, redirects: Sequence[Redirect], state: State, follow: Callable[[], object]) -> None:
        """Follow what reads from files, or writes to them, by its redirections."""
        before, reads = state.input, any(it.operator in _READING for it in redirects)
        state.input = self._read_by(redirects, state) if reads else before
        if any(it.operator in _WRITING or it.operator == ">&" for it in redirects if not it.errors):
            self._write(redirects, [], self.captured(follow), state, state)
        else:
            follow()
        state.input = before if reads else state.input

    def _read_by(self, redirects: Sequence[Redirect], state: State) -> Traced | None:
        """Return what redirections give to read."""
        read = state.input
        for one in redirects:
            if isinstance(one.target, Heredoc):
                body = one.target.body
                read = body if one.target.quoted else joined(self._expand(body, state, splitting=False, quoted=True))
            elif one.operator == "<<<":
                read = joined([self.text(one.target, state), untraced("\n")])
            elif one.operator == "<":
                read = self.written(self.text(one.target, state).text, state)
            elif one.operator == "<(":
                read = self.output(one.target, state)
                read = joined([read, untraced("\n")]) if known(read.text) else None
        return read

    def branches(self, one: Branches, state: State, index: int = 0) -> None:
        """Follow an `if`: the branch whose condition is met; where that is not known, each."""
        if index >= len(one.arms):
            return
        condition, body = one.arms[index]
        before, self._unset, self._defaulting = self._unset, set(), self._has_default(one, state)
        value = self.condition(condition, state) if condition else True
        unset, self._unset, self._defaulting = self._unset, before, False
        argument = any(name.isdecimal() for name in unset)
        if value and not (argument and self._ends(body, state)):  # else it asks for an argument that may not matter
            self.run(body, state)
            return
        other = state.copy()
        self.branches(one, other, index + 1)
        if value is None or (unset and other.ended == "exit"):
            inner = state.copy()
            self.run(body, inner)
            self.merge(state, [inner, other], one.at)
        else:
            state.adopt(other)

    def _has_default(self, one: Branches, state: State) -> bool:
        """Whether an `if` ends in an `else` that goes on: what runs without arguments."""
        condition, body = one.arms[-1]
        names = [
            it.words[0].text for it in body if isinstance(it, Simple) and it.words and isinstance(it.words[0], Traced)
        ]
        return not condition and not {"exit", "return", *state.functions} & set(names)

    def _ends(self, body: Sequence[Statement], state: State) -> bool:
        """Whether a branch leaves the script; nothing of it counts."""
        ends, inner = len(self.ends), state.copy()
        self.run(body, inner)
        del self.ends[ends:]
        return inner.ended == "exit"

    def case(self, one: CaseStatement, state: State) -> None:
        """Follow a `case`: the arm whose pattern fits; where the word is not known, each."""
        word = self.text(one.word, state)
        self.offer(word.text, (self.text(it, state).text for patterns, _, _ in one.arms for it in patterns))
        if known(word.text):
            goes_on = False
            for patterns, body, ending in one.arms:
                fits = (re.fullmatch(_pattern(self.text(it, state).text), word.text) for it in patterns)
                if goes_on or any(fits):
                    self.run(body, state)
                    if ending == ";;" or state.ended:
                        return
                    goes_on = ending == ";&"
            return
        ways = [state.copy() for _ in one.arms]
        for way, (_, body, _) in zip(ways, one.arms, strict=True):
            self.run(body, way)
        self.merge(state, ways or [state.copy()], one.at)

    def offer(self, text: str, choices: Iterable[str]) -> None:
        """Keep what a variable without a value is compared with."""
        found = _MARK.fullmatch(text)
        if found and found[1] and not found[1].startswith(("@", "#")):
            listed = self.choices.setdefault(found[1], {})
            listed.update(dict.fromkeys(it for it in choices if _CHOICE.fullmatch(it) and len(listed) < MAX_CHOICES))

    def loop(self, one: Loop, state: State) -> None:
        """Follow a loop."""
        with self._left(state, "break", one.at):
            if one.kind in {"for", "select"}:
                self._for(one, state)
            elif one.kind == "c" and self._starts_as_given(one, state):
                self._any_turn(one, state)
            else:
                self._while(one, state)

    @contextmanager
    def _left(self, state: State, how: str, at: int) -> Iterator[None]:
        """Follow what may be left early, by conditions of which it is not known whether they are met."""
        before, self._aside = self._aside, []
        yield
        ways = [way for way in self._aside if way.ended == how]
        self._aside = before + [way for way in self._aside if way not in ways]
        for way in ways:
            way.ended, way.levels = "", 0
        if ways:
            self.merge(state, [state.copy(), *ways], at)

    def _turn(self, one: Loop, state: State) -> bool:
        """Follow the body of a loop and return whether it may go on."""
        with self._left(state, "continue", one.at):
            self.run(one.body, state)
        if state.ended not in {"break", "continue"}:
            return not state.ended
        state.levels -= 1
        goes = state.ended == "continue" and state.levels < 1
        state.ended = state.ended if state.levels > 0 else ""
        return goes

    def _kept(self) -> list[list[Any]]:
        return [self.launched, self._aside, self.ends, self.missing]

    def _marked(self) -> list[int]:
        return [len(kept) for kept in self._kept()]

    def _back(self, marked: list[int]) -> None:
        """Drop what was kept since then."""
        for kept, size in zip(self._kept(), marked, strict=True):
            del kept[size:]

    def _while(self, one: Loop, state: State) -> None:
        """Follow a loop as long as its condition is met; one that may not run leaves nothing behind that is sure."""
        begin, steps = state.copy(), self.steps
        for _ in range(MAX_TURNS):
            marked, some, before = self._marked(), bool(state.positional), state.copy()
            value = self._count_by(one, 1, state) if one.kind == "c" else self.condition(one.condition, state)
            if value is (one.kind == "until") or len(self.launched) > marked[0]:  # `until torchrun ...`
                return
            after = state.copy()
            goes = self._turn(one, after)
            took = (after.rest, len(after.positional)) != (state.rest, len(state.positional))
            if took and state.rest and not some:  # it takes what nobody gave
                del self._aside[marked[1] :]
                return
            if len(self.launched) > marked[0]:
                self._back(marked)
                self._any_turn(one, state)
                return
            if value is None and not took:
                self._lose(state, after, one.at)
                return
            if one.kind == "c":
                self._count_by(one, 2, after)
            still = not took and after.input is before.input and not _differing(before, after)
            state.adopt(after)
            if not goes or still:
                return
            if self.steps - steps > MAX_LOOP_STEPS:
                break
        self._lose(begin, state, one.at)
        state.adopt(begin)

    def _starts_as_given(self, one: Loop, state: State) -> bool:
        """Begin a C loop, and return whether the user gives what it counts."""
        self._count_by(one, 0, state)
        return any(name in self.given for it in one.words or () for name in assigned_in(it.text))

    def _count_by(self, one: Loop, part: int, state: State) -> bool | None:
        """Follow the beginning, the condition or the end of a turn of a C loop."""
        text = (one.words or ())[part]
        count = self.arithmetic(text, state) if text.text.strip() else 1
        return None if count is None else bool(count)

    def _for(self, one: Loop, state: State) -> None:
        """Follow a loop over values; where they are not known, or turns launch something, as in any turn."""
        every = one.words is None or [it.text for it in one.words] in _ARGUMENTS
        values = list(state.positional) if every else self.fields(one.words or (), state)
        sure = every or not any(_MARK.fullmatch(it.text) or re.search(r"[*?]", it.text) for it in values)
        marked, inner, steps = self._marked(), state.copy(), self.steps
        for value in values if sure else ():
            inner.variables[one.name] = value
            goes = self._turn(one, inner)
            sure = every or len(self.launched) == marked[0] or len(values) == 1
            sure &= self.steps - steps < MAX_LOOP_STEPS
            if not sure or not goes:
                break
        if sure:
            state.adopt(inner)
            return
        self._back(marked)
        state.variables[one.name] = mark(one.name) if len(values) > 1 else values[0]
        if len(values) > 1:
            listed = " ".join(value.text for value in values[:6])
            state.unknown[one.name] = f"takes several values in a loop ({self.place(one.at)}: {listed})"
        self._any_turn(one, state)

    def _any_turn(self, one: Loop, state: State) -> None:
        """Follow a turn of a loop as any of its turns: what one hands to the next is not known."""
        start, marked = state.copy(), self._marked()
        goes, after = self._turn(one, state), self._marked()
        if len(self.launched) == marked[0]:
            self._lose(start, state, one.at)
            state.adopt(start)
        elif goes:
            second = state.copy()
            if one.kind == "c":
                self._count_by(one, 2, second)
            elif one.condition:
                self.condition(one.condition, second)
            self._turn(one, second)
            self._back(after)
            if _differing(state, second):
                self._back(marked)
                self._lose(start, second, one.at, _differing(state, second))
                state.adopt(start)
                self._turn(one, state)

    def _lose(self, state: State, after: State, at: int, names: Iterable[str] = ()) -> None:
        """Go on after turns of which it is not known how many there are: what they change is not known."""
        for name in names or _differing(state, after):
            lists = _words(state.variables.get(name)), _words(after.variables.get(name))
            both = isinstance(after.variables.get(name), tuple)
            state.variables[name] = mark(name)
            if lists[0] is not None and lists[1] is not None and any(lists):
                mixed = _mixed(lists[0], lists[1], mark(name))
                state.variables[name] = tuple(mixed) if both else joined(mixed, " ")
            state.unknown.setdefault(name, f"takes several values in a loop ({self.place(at)})")
        state.texts, state.functions = after.texts, after.functions

    def merge(self, state: State, ways: list[State], at: int) -> None:
        """Go on after branches of which it is not known which is taken."""
        alive = [way for way in ways if not way.ended]
        taken = next(iter([*alive, *(way for way in ways if way.ended != "exit"), *ways]))
        self._aside += [way for way in ways if way is not taken and way.ended in {"return", "break", "continue"}]
        state.adopt(taken)
        asked = self._deciding(at, state)
        for other in alive[1:]:
            differ: dict[str, str] = {}
            for name in sorted(set(state.variables) | set(other.variables)):
                one, two = state.variables.get(name), other.variables.get(name)
                if _same(one, two):
                    continue
                lists = _words(one), _words(two)
                if lists[0] is not None and lists[1] is not None:
                    mixed = _mixed(lists[0], lists[1], mark(asked or "condition"))
                    both = isinstance(one or two, tuple)
                    state.variables[name] = tuple(mixed) if both else joined(mixed, " ")
                    continue
                values = [_said(value) for value in (one, two) if not _same(value, mark(asked))]
                differ[name] = " or ".join(dict.fromkeys(values))
                state.variables[name] = mark(asked or name)
                if not asked:
                    why = f"is {differ[name]}, by a condition that is not known ({self.place(at)})"
                    state.unknown.setdefault(name, why)
            first = next((f" whether {name} is {said}" for name, said in differ.items()), " what is set")
            what = first if len(differ) < 2 else f" on {', '.join(list(differ)[:6])}"
            state.unknown.setdefault(asked or "condition", f"decides{what} ({self.place(at)})")
            state.exported |= other.exported
            state.local = {**other.local, **state.local}
            state.status = state.status if state.status == other.status else ""
            state.functions = {**other.functions, **state.functions}
            state.texts = {**other.texts, **state.texts}
            state.unknown = {**other.unknown, **state.unknown}

    def _deciding(self, at: int, state: State) -> str:
        """Return the variable without a value that the condition on a line hangs on, if there is one."""
        place = self.files.place(at)
        line = place[0].line(place[1]) if place else ""
        for name in re.findall(r"\$\{?([A-Za-z_]\w*|\d+)", line):
            value = self.value(name, state)
            found = _MARK.search(value.text) if isinstance(value, Traced) else None
            if value is None or (found and found[1]):
                return found[1] if found else name
        return ""

    # --- conditions

    def condition(self, statements: Sequence[Statement], state: State) -> bool | None:
        """Return whether a condition is met; None where that is not known."""
        self.run(statements[:-1], state)
        return self.truth(statements[-1], state) if statements else None

    def truth(self, one: Statement, state: State, *, otherwise: bool | None = None) -> bool | None:
        """Return whether a statement succeeds.

        Args:
            otherwise: what is taken of commands of which that is not known.
        """
        value = self._truth(one, state, otherwise)
        if value is not None and (state.status in {"", "ok"} or (state.status == "0") is not value):
            state.status = str(int(not value))
        return value

    def _truth(self, one: Statement, state: State, otherwise: bool | None) -> bool | None:
        if isinstance(one, Test):
            count = self.arithmetic(one.text, state) if one.arithmetic else None
            state.status = ""
            known_count = None if count is None else bool(count)
            return known_count if one.arithmetic else self.test(_test_words(one.text), state, double=True)
        if isinstance(one, Chain):
            return self._truth_of_chain(one, state, otherwise)
        if isinstance(one, Pipe) and one.negated and len(one.parts) == 1:
            value = self.truth(one.parts[0], state, otherwise=otherwise)
            return None if value is None else not value
        if isinstance(one, Group) and not one.redirects:
            inner = state.copy() if one.subshell else state
            self.run(one.body[:-1], inner)
            return self.truth(one.body[-1], inner, otherwise=otherwise) if one.body and not inner.ended else None
        words = [word for word in one.words if isinstance(word, Traced)] if isinstance(one, Simple) else []
        name = words[0].text if words else ""
        if name in {"[", "test"}:
            state.status = ""
            return self.test(words[1:-1] if name == "[" else words[1:], state)
        if name == "getopts":
            return self._getopts([it.text for it in self.fields(words[1:], state)], state)
        self.step(one, state)
        return {"": None, "ok": otherwise}.get(state.status, state.status == "0")

    def _truth_of_chain(self, one: Chain, state: State, otherwise: bool | None) -> bool | None:
        value = self.truth(one.first, state, otherwise=otherwise)
        for operator, statement in one.rest:
            if value is None or value is (operator == "&&"):
                other = self.truth(statement, state, otherwise=otherwise)
                decided = other is (operator == "||")
                value = other if value is not None or decided else None
        return value

    def test(self, words: Sequence[Traced], state: State, *, double: bool = False) -> bool | None:
        """Return whether what stands in `[ ... ]` holds, or in the `double` brackets of bash."""
        return _Testing(self, list(words), state, double=double).whole()

    def defaults_on(self, word: Traced) -> bool:
        """Whether a condition asks which argument is given (`"$1"`), and an `else` says what runs without one."""
        return self._defaulting and re.fullmatch(r'"\$\{?\d+\}?"', word.text) is not None

    def operand(self, word: Traced, state: State, *, emptiness: bool = False) -> str | None:
        """Return a word of a condition; None where it is not known.

        A variable that nobody sets is empty; an argument that nobody gave only where a condition asks for `emptiness`.
        """
        text = self.text(word, state).text
        argument = re.fullmatch(r"\$\{(\d+)\}", text) if emptiness else None
        if argument:
            self._unset.add(argument[1])
            self.defaults.setdefault(argument[1], ("", fields_at([word])))
            return ""

        def emptied(found: re.Match[str]) -> str:
            name = found[1]
            if name and not name.isdecimal() and name not in state.unknown and name not in state.variables:
                self._unset.add(name)
                self._asked.add(name)
                return ""
            return found[0]

        text = _MARK.sub(emptied, text)
        return text if known(text) else None

    def arithmetic(self, text: Traced, state: State) -> int | None:
        """Return what an expression counts; None where it is not known. Assignments in it take place."""
        whole = self.text(text, state).text.strip()
        value = self.count(whole, state, lambda name, number: self._put(name, untraced(str(number)), state))
        if value is None:
            for name in assigned_in(whole):
                self._put(name, mark(name), state)
        return value

    def count(self, text: str, state: State, assign: Callable[[str, int], object] | None = None) -> int | None:
        """Return what an expression counts; without `assign` nothing is assigned in it."""

        def number(name: str) -> str | None:
            name, _, index = name.removesuffix("]").partition("[")
            value = (self._named(name, index or None, state)[0] or [EMPTY])[0] if index else self.value(name, state)
            value = (_listed(value) or [EMPTY])[0] if value is not None else None
            return value.text if value and known(value.text) else None

        return whole_number(text, number, assign) if known(text) else None

    def _put(self, name: str, value: Traced, state: State) -> None:
        """Set a variable, or an element of one."""
        name, _, index = name.removesuffix("]").partition("[")
        key = untraced(index) if index else None
        self.assign(Assignment(name, key, False, value, fields_at([value])), state, expanded=True)

    # --- variables

    def value(self, name: str, state: State) -> Value | None:
        """Return a variable; None for one that nobody sets."""
        name = state.names.get(name, name)
        if name in self.given and name.isidentifier():
            return untraced(self.given[name])
        if name in state.variables:
            return state.variables[name]
        if name in _HERE:
            return untraced("." if name != "BASH_SOURCE" else str(self.path))
        if name in {"@", "*"}:
            return state.arguments()
        if name == "#" and not state.rest:
            return untraced(str(len(state.positional)))
        if name == "0":
            return untraced(str(self.path))
        if name == "?":
            return untraced({"": "$(status)", "ok": "0"}.get(state.status, state.status))
        return state.argument(int(name[:4])) if name.isdecimal() else None

    def empty(self, value: Value | None, state: State) -> bool:
        """Whether a variable is unset or empty, also through others that nobody sets."""
        if isinstance(value, Traced):
            found = re.fullmatch(r"\$\{(\w+)\}", value.text)
            return not value.text or (found is not None and self.is_unset(found[1], state))
        return not value

    def is_unset(self, name: str, state: State) -> bool:
        """Whether nobody sets a variable."""
        return name not in self.given and name not in state.unknown and name not in state.variables

    def assign(self, one: Assignment, state: State, *, expanded: bool = False) -> None:
        """Follow an assignment."""
        name = state.names.get(one.name, one.name)
        state.places[name] = one.at
        before = state.variables.get(name)
        if isinstance(one.value, tuple):
            values = self._table(one.value, state)
            if isinstance(values, tuple) and one.append:
                values = (*_listed(before), *values)
            elif isinstance(before, dict) and isinstance(values, dict) and one.append:
                values = {**before, **values}
            state.variables[name] = values
            return
        value = one.value if expanded else self.text(one.value, state)
        key = None if one.key is None else self._key(one.key, before, state)
        if key is not None:
            table = dict(before) if isinstance(before, dict) else {str(i): it for i, it in enumerate(_listed(before))}
            table[key] = joined([table.get(key, EMPTY), value]) if one.append else value
            state.variables[name] = table
            return
        whole, before = before, (_listed(before) or [EMPTY])[0] if before is not None else None
        counted = self.count(value.text, state) if name in state.counted else None
        if counted is not None:
            added = self.count(before.text, state) if one.append and before is not None else 0
            value = untraced(str(counted + (added or 0)))
        elif one.append and before is not None:
            value = joined([before, value])
        found = _MARK.fullmatch(value.text)
        (self.computed.add if found and "$((" in one.value.text else self.computed.discard)(name)
        if found and not found[1]:
            state.unknown[name] = f"is the output of a command ({self.place(one.at)})"
            value = mark(name)
        elif name in state.unknown and value.text != f"${{{name}}}":
            del state.unknown[name]
        state.variables[name] = (value, *whole[1:]) if isinstance(whole, tuple) else value

    def _key(self, key: Traced, table: Value | None, state: State) -> str:
        """Return of which element a key is: in a list what it counts to."""
        text = self.text(key, state).text
        listed = not isinstance(table, dict) or (bool(table) and all(it.isdecimal() for it in table))
        number = self.arithmetic(key, state) if listed else None
        return text if number is None else str(number + (len(_listed(table)) if number < 0 else 0))

    def _table(self, words: tuple[Traced, ...], state: State) -> Value:
        keys = [re.match(r"\[([^\]]+)\]=", word.text) for word in words]
        if words and all(keys):
            pairs = [(self.text(untraced(key[1]), state).text, self.text(word.cut(key.end()), state))
                     for key, word in zip(keys, words, strict=True) if key]  # fmt: skip
            numbers = all(name.isdecimal() and len(name) < 9 for name, _ in pairs)
            return dict(sorted(pairs, key=lambda pair: int(pair[0])) if numbers else pairs)
        return tuple(self.fields(words, state))

    # --- expansion

    def text(self, word: Traced, state: State) -> Traced:
        """Return a word with its expansions, in one piece."""
        return joined(self._expand(word, state, splitting=False), " ")

    def fields(self, words: Iterable[Traced], state: State) -> list[Traced]:
        """Return the fields of words."""
        found: list[Traced] = []
        for word in (part for one in words for part in braced(one, MAX_FIELDS)):
            found += self._expand(word, state, splitting=True)
            if len(found) > MAX_FIELDS:
                raise InputError("command too long to follow", place=self.place(word.at[0] if word.at else NOWHERE))
        return found

    def _expand(self, word: Traced, state: State, *, splitting: bool, quoted: bool = False) -> list[Traced]:
        """Return the fields of a word; inside double quotes only `$`, backquotes and some backslashes mean anything."""
        self.characters += len(word.text)
        return _Expansion(self, state, splitting=splitting, quoted=quoted).fields_of(word)

    def dollar(self, word: Traced, at: int, state: State) -> tuple[list[Traced], bool, int]:
        """Expand what starts with `$` or a backquote: values, whether they are several fields, and where it ends."""
        text = word.text
        end = passed(text, at)
        if text[at] == "`":
            inside = word.cut(at + 1, end - 1)
            return [self.output(inside, state)], False, end
        if text.startswith("$((", at) and text[end - 2 : end] == "))":
            inside = word.cut(at + 3, end - 2)
            value = self.arithmetic(inside, state)
            return [untraced(self._lacking(inside, state) if value is None else str(value))], False, end
        if text.startswith("$(", at):
            return [self.output(word.cut(at + 2, end - 1), state)], False, end
        if text.startswith("${", at):
            values, several = self._parameter(word.cut(at + 2, end - 1), state)
            return values, several, end
        if text.startswith('$"', at):  # a text that may be translated
            return [EMPTY], False, at + 1
        if text.startswith("$'", at):
            inside = word.cut(at + 2, end - 1)
            return [_unescaped(inside.text) if "\\" in inside.text else inside], False, end
        found = _NAME.match(text, at + 1)
        if not found:
            return [word.cut(at, at + 1)], False, at + 1
        values, several = self._named(found[0], None, state)
        return values, several, found.end()

    def _lacking(self, text: Traced, state: State) -> str:
        """Return what stands for an expression whose value is not known: the first variable that it lacks."""
        whole = self.text(text, state).text
        if "$(" in whole:  # a command, not variables by the words of it
            return _open(whole)
        for name in re.findall(r"(?<![\w{])[A-Za-z_]\w*", whole):
            value = self.value(name, state)
            if value is None or (isinstance(value, Traced) and not known(value.text)):
                return mark(name).text if value is None else _open(value.text)
        return _open(whole)

    def _named(self, name: str, key: str | None, state: State) -> tuple[list[Traced], bool]:
        value = self.value(name, state)
        if name in {"!", "$", "-"}:
            return [untraced("0")], False
        if value is None:
            return [mark(name)], False
        if "*" in {key, name}:
            return [joined(_listed(value), self.separators(state)[:1])], False
        if "@" in {key, name}:
            return _listed(value), True
        if key is not None and not isinstance(value, Traced):
            index = self._key(untraced(key), value, state)
            table = value if isinstance(value, dict) else {str(i): it for i, it in enumerate(value)}
            last = REST.fullmatch(value[-1].text) if isinstance(value, tuple) and value else None
            if last and index.isdecimal() and int(index[:4]) >= len(value) - 1:
                return [mark(str(int(last[1]) + int(index[:4]) - len(value) + 1))], False
            if not known(index):  # of which element nobody says: `$SLURM_ARRAY_TASK_ID`
                self.offer(index, table)
                return [untraced(_open(index))], False
            return [table.get(index, EMPTY)], False
        return [value if isinstance(value, Traced) else (_listed(value) or [EMPTY])[0]], False

    def _parameter(self, body: Traced, state: State) -> tuple[list[Traced], bool]:
        """Expand `${...}`."""
        found = _PARAMETER.fullmatch(body.text)
        if found is None or re.fullmatch(r"@\d+", body.text):
            return [untraced(f"${{{body.text}}}")], False
        indirect, length, name, key, rest = found.groups()
        operation = body.cut(found.start(5))
        if indirect and rest in {"*", "@"}:
            return [untraced(one) for one in sorted(state.variables) if one.startswith(name)], True
        if indirect:
            named = self.value(name, state)
            if key and not isinstance(named, Traced):
                listed = named if isinstance(named, dict) else range(len(named or ()))
                return [untraced(str(one)) for one in listed], True
            if isinstance(named, Traced) and known(named.text) and named.text:
                return self._parameter(joined([named, operation]), state)
        value = self.value(name, state)
        if length:
            texts = _listed(value) if key in {"@", "*"} or value is None else self._named(name, key, state)[0]
            if isinstance(value, Traced) and not known(value.text):
                return [value], False
            size = len(texts) if key in {"@", "*"} or name in {"@", "*"} else sum(len(it.text) for it in texts)
            return [untraced(str(size))], False
        values, several = self._named(name, key, state)
        if re.match(r":?[-=+?]", rest):
            return self._alternative(name, values, several, operation, state)
        if several and rest.startswith(":"):
            start, stop = self._slice(operation, len(values) + (name in {"@", "*"}), state)
            return values[max(start - (name in {"@", "*"}), 0) : stop - (name in {"@", "*"})], True
        return [self._changed(value, operation, state) for value in values] if rest else values, several

    def _slice(self, operation: Traced, size: int, state: State) -> tuple[int, int]:
        """Return where `:start:length` begins and ends."""
        one, colon, two = self.text(operation.cut(1), state).text.partition(":")
        start, length = self.count(one, state) or 0, self.count(two, state) if colon else size
        start = start if start >= 0 else max(0, size + start)
        return start, size if length is None else start + length if length >= 0 else size + length

    def _alternative(
        self, name: str, values: list[Traced], several: bool, operation: Traced, state: State
    ) -> tuple[list[Traced], bool]:
        """Expand `${X:-default}` and its like."""
        sign = operation.text.lstrip(":")[0]
        rest = operation.cut(operation.text.index(sign) + 1)
        value = values[0] if values else None
        set_empty = name in state.variables or (name.isdecimal() and 0 < int(name[:4]) <= len(state.positional))
        set_empty &= value is not None and not value.text and not operation.text.startswith(":")
        absent = self.empty(value, state) and not set_empty
        if sign == "?":
            if absent:
                state.unknown.setdefault(name, "has to be given")
                return [mark(name)], False
            return values, several
        if sign == "+":
            return [] if absent else self._expand(rest, state, splitting=False), True
        if not absent:
            return values, several
        default = joined(self._expand(rest, state, splitting=False), " ")
        self.defaults.setdefault(name, (default.text, rest.at[0] if rest.at else NOWHERE))
        if sign == "=":
            state.variables[name] = default
        return [default], False

    def _changed(self, value: Traced, operation: Traced, state: State) -> Traced:
        """Expand `${X%pattern}`, `${X/old/new}`, `${X:1:2}`, `${X,,}`."""
        rest = operation.text
        if not known(value.text):
            return value
        if rest in {"^^", ",,", "^", ","}:
            size = len(value.text) if len(rest) > 1 else 1
            first = value.text[:size]
            return untraced((first.upper() if "^" in rest else first.lower()) + value.text[size:])
        if rest.startswith(":"):
            return value.cut(*self._slice(operation, len(value.text), state))
        ends = re.match(r"##?|%%?", rest)
        if ends:
            pattern = _pattern(self.text(operation.cut(ends.end()), state).text)
            return _trimmed(value, pattern, ends[0])
        swap = re.match(r"//?[#%]?", rest)
        if swap:
            old, _, new = rest[swap.end() :].replace(r"\/", "\0").partition("/")
            old, new = (self.text(untraced(it.replace("\0", "/")), state).text for it in (old, new))
            count = 0 if swap[0].startswith("//") else 1
            pattern = _pattern(old).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
            anchored = {"#": rf"\A(?:{pattern})", "%": rf"(?:{pattern})\Z"}.get(swap[0][-1], pattern)
            return untraced(re.sub(anchored, lambda _: new, value.text[:2000], count=count)) if anchored else value
        return value

    # --- what commands print

    def output(self, text: Traced, state: State) -> Traced:
        """Return what a command in `$(...)` prints, in one line; what is not known as an open `$(...)`."""
        statements: tuple[Statement, ...] | None = None
        with suppress(SyntaxProblem):
            statements = Parser(text).script()
        inner, found, marked = state.copy(), None, self._marked()
        printing, self._printing = self._printing, True
        self.depth += 1
        if self.depth < MAX_DEPTH and statements is not None:  # of a comment alone nothing: `# part` in backquotes
            found = self.captured(partial(self.run, statements, inner))
        self.depth -= 1
        self._printing = printing
        self._back(marked)
        self._substituted = inner.status if statements else "ok"
        if found is None:
            return untraced(_open(re.sub(r"[\s$]+", "_", text.text.strip())[:60]))
        return found.cut(0, len(found.text.rstrip("\n")))

    def simple(self, one: Simple, state: State) -> None:
        """Follow a command."""
        first, plain = next(iter(one.words), EMPTY), [word for word in one.words if isinstance(word, Traced)]
        if not one.words:
            self._substituted = "0"
            for assignment in one.assignments:
                self.assign(assignment, state)
            state.status = self._substituted
            if one.redirects and not one.assignments:
                self.show(self._read_by(one.redirects, state))  # `$(< file)`
            return
        name = first.text if isinstance(first, Traced) else ""
        if name in DECLARING:
            self._declare(one, name, state)
            return
        fields = self.fields(plain, state)
        inner = state.copy() if one.assignments else state
        for assignment in one.assignments:
            self.assign(assignment, inner)
        if not fields:
            return
        name = PurePosixPath(fields[0].text).name
        state.status = {"false": "1", "true": "0"}.get(
            name, "" if name in QUESTIONS else "ok" if name not in QUIET else "0"
        )
        if fields[0].text in state.functions:
            names = {it.name: state.variables.get(it.name) for it in one.assignments}
            inner.status = state.status
            self.redirected(one.redirects, inner, partial(self._command, one, fields, inner, inner))
            state.adopt(inner)
            _restore(names, state)
        else:
            self._command(one, fields, state, inner)

    def _command(self, one: Simple, fields: list[Traced], state: State, inner: State) -> None:
        read = self._read_by(one.redirects, inner)
        own = fields[0].text in state.functions
        printed = None if own else self._printed(fields, inner, read, state)
        if printed is None and self._printing and re.fullmatch(r"python[\d.]*", PurePosixPath(fields[0].text).name):
            printed = _printed_by_python(fields[1:], read)
        if not own:
            self._write(one.redirects, fields, printed, state, inner)
            self._copy([it.text for it in fields], state)
        elsewhere = any(it.operator in _WRITING and not it.errors for it in one.redirects) or any(
            it.operator == ">&" and not it.errors and it.target.text == "2" for it in one.redirects
            if isinstance(it.target, Traced)
        )  # fmt: skip
        if printed is None and not self._builtin(fields, state, read, self.separators(inner)):
            environment = {it.name: self._as_text(inner.variables.get(it.name)) for it in one.assignments}
            if not self._printing:
                self.command(inner, fields, environment, read)
        elif printed is None and (own or fields[0].text in QUIET):
            return
        if not elsewhere:
            self.show(printed)

    def separators(self, state: State) -> str:
        """Return at which characters texts split into fields."""
        value = state.variables.get("IFS")
        return value.text if isinstance(value, Traced) and known(value.text) else BLANKS

    def _as_text(self, value: Value | None) -> Traced:
        return value if isinstance(value, Traced) else joined(_listed(value), " ")

    def _declare(self, one: Simple, name: str, state: State) -> None:
        words = [word.text for word in one.words[1:] if isinstance(word, Traced)]
        flags = "".join(word for word in words if word.startswith("-"))
        texts = [self.text(it.value, state) if isinstance(it, Assignment) and isinstance(it.value, Traced) else EMPTY
                 for it in one.words[1:]]  # fmt: skip
        for word, value in zip(one.words[1:], texts, strict=True):  # all are worked out before the first is set
            if isinstance(word, Assignment):
                declared = word.name
                self._own(name, flags, declared, state)
                if "n" in flags:
                    state.names[declared] = value.text
                elif isinstance(word.value, Traced) and not word.key:
                    self.assign(word._replace(value=value), state, expanded=True)
                else:
                    self.assign(word, state)
            else:
                declared = ""
                for item in self.fields([word], state) if not word.text.startswith("-") else ():
                    declared, equals, _ = item.text.partition("=")
                    self._own(name, flags, declared, state)
                    if equals:
                        state.variables[declared] = item.cut(len(declared) + 1)
            if name == "export" or "x" in flags:
                state.exported.add(declared)

    def _own(self, how: str, flags: str, name: str, state: State) -> None:
        """Begin with a variable that is declared: in a function it is the function's own."""
        if how in {"local", "declare", "typeset"} and self.calls and "g" not in flags:
            state.local.setdefault(name, state.variables.get(name))
        state.counted |= {name} if "i" in flags else set()
        if "A" in flags and not isinstance(state.variables.get(name), dict):
            state.variables[name] = {}

    def _write(
        self, redirects: Sequence[Redirect], fields: list[Traced], printed: Traced | None, state: State, inner: State
    ) -> None:
        """Keep what a command writes into a file."""
        if printed is None and fields:
            self._derive(fields, redirects, inner)
        targets = [it for it in redirects if it.operator in {">", ">>", ">|"} and not it.errors]
        names = [
            (self.text(it.target, inner).text, it.operator) for it in targets if not isinstance(it.target, Heredoc)
        ]
        if fields and fields[0].text == "tee":
            names += [(it.text, ">") for it in fields[1:] if not it.text.startswith("-")]
        for target, operator in names:
            before = state.text(target) if operator == ">>" else None
            if printed is not None:
                state.write(target, joined([before, printed]) if before is not None else printed)
            elif operator != ">>":
                state.texts.pop(str(PurePosixPath(target)), None)

    def _printed(self, fields: list[Traced], state: State, read: Traced | None, outer: State) -> Traced | None:
        """Return what some plain commands print; None of others."""
        name, rest = PurePosixPath(fields[0].text).name, fields[1:]
        words = [it for it in rest if not re.fullmatch(r"-[A-Za-z]+", it.text)]
        if name in {"expr", "bc"}:
            counted = " ".join(it.text for it in rest) if name == "expr" else read.text.strip() if read else ""
            counted = re.sub(r"\b0+(?=\d)", "", counted if name == "expr" else counted.replace("^", "**"))
            value = self.count(counted, state)
            return None if value is None else untraced(str(value))
        if name in {"dirname", "basename"} and words:
            path = PurePosixPath(words[0].text)
            end = words[1].text if len(words) > 1 else ""
            return untraced(str(path.parent) if name == "dirname" else path.name.removesuffix(end))
        if name == "seq":
            return _sequence([it.text for it in rest])
        if name == "echo":
            flags = list(takewhile(lambda it: re.fullmatch(r"-[neE]+", it.text), rest))
            line = joined(rest[len(flags) :], " ")
            line = _unescaped(line.text) if any("e" in it.text for it in flags) and "\\" in line.text else line
            return line if any("n" in it.text for it in flags) else joined([line, untraced("\n")])
        if name in {"tee", "envsubst"} or (name == "cat" and not words):
            return read
        if name == "cat":
            texts = [self.written(it.text, state) for it in words]
            return joined(it for it in texts if it) if None not in texts else None
        if name in {"command", "which", "type"} and words:  # `command -v deepspeed`
            return words[-1] if name != "command" or any(it.text in {"-v", "-V"} for it in rest) else None
        if name in {"realpath", "readlink"}:
            return words[-1] if words else None
        if name in {"tr", "wc", "cut", "awk"}:
            return _filtered(name, rest, read)
        simple: Mapping[str, Callable[[], Traced | None]] = {
            "sed": lambda: self._sed(rest, state, read), "getopt": lambda: _getopt(rest),
            "printf": lambda: self._formatted(rest, outer), "pwd": lambda: untraced("."),
            "grep": lambda: self._searched(rest, outer, read),
        }  # fmt: skip
        return simple[name]() if name in simple else None

    def _formatted(self, words: list[Traced], state: State) -> Traced | None:
        """Follow `printf`, perhaps into a variable."""
        if not words or words[0].text != "-v":
            return _formatted(words)
        state.variables[words[1].text] = _formatted(words[2:]) or mark(words[1].text)
        return EMPTY

    def _searched(self, words: list[Traced], state: State, read: Traced | None) -> Traced | None:
        """Follow `grep` in a known text."""
        found = _searched([it.text for it in words], read.text) if read is not None else None
        if found is None:
            return _filtered("grep", words, read)
        state.status = str(int(not found))
        return EMPTY

    def written(self, name: str, state: State) -> Traced | None:
        """Return what the script wrote into a file, or what the file holds."""
        text = state.text(name)
        if text is None and known(name):
            path = self.find(name, self.where(state))
            text = self.files.traced(self.files.read(path)) if path else None
        return text

    def _copy(self, fields: list[str], state: State) -> None:
        """Keep a copy of a file that the script wrote, also where its folder is named alone: `cp a.yml configs/.`."""
        if fields[0] not in {"cp", "mv"} or len(fields) < 3:
            return
        name, to = fields[-2:]
        text, target = state.text(name), PurePosixPath(to)
        if text is None and known(name + to):
            self.origins.setdefault(str(target), name)
        if text is not None:
            folder = to.endswith(("/", "/.")) or not target.suffix
            state.write(str(target / PurePosixPath(name).name if folder else target), text)

    def _derive(self, fields: list[Traced], redirects: Sequence[Redirect], state: State) -> None:
        """Keep which file, that is not here, a command makes another of: `sed s/A/B/ a.yml > b.yml`."""
        files = {it.operator: self.text(it.target, state).text for it in redirects
                 if it.operator in {">", "<"} and not it.errors and isinstance(it.target, Traced)}  # fmt: skip
        made, name = files.get(">", ""), files.get("<", fields[-1].text)
        if made and fields[0].text in {"sed", "envsubst", "cat"} and known(made + name):
            self.origins.setdefault(str(PurePosixPath(made)), name)

    def _sed(self, words: list[Traced], state: State, read: Traced | None) -> Traced | None:
        """Return what `sed s/A/B/` makes of a text, for plain texts A, and `/^A/d`."""
        scripts = [two.text for one, two in pairwise([EMPTY, *words])
                   if re.fullmatch(r"-[nirEsz]*e|--expression", one.text)]  # fmt: skip
        scripts = scripts or [it.text for it in words if not it.text.startswith("-")][:1]
        names = [it.text for it in words if not it.text.startswith("-") and it.text not in scripts]
        text = self.written(names[0], state) if names else read
        in_place = any(it.text.startswith("-i") for it in words)
        if text is None or not scripts:
            return None
        made = edited(text, scripts, quiet=any(re.match(r"-\w*n", it.text) for it in words), extended=any(
            re.match(r"-i?[nsz]*[Er]|--regexp-extended", it.text) for it in words))  # fmt: skip
        if made is None:
            self.unfollowed += [] if self._printing else [fields_at(words)]
            return text if names and not self._printing else None
        text = made
        if in_place and names:
            state.write(names[0], text)
        return text

    # --- commands of the shell itself

    def _builtin(self, fields: list[Traced], state: State, read: Traced | None, separators: str) -> bool:
        """Follow a command of the shell; return whether it is one."""
        name, rest = fields[0].text, fields[1:]
        if name in state.functions:
            self.calls.append(fields_at(fields))
            self._call(state.functions[name], tuple(rest), state)
            self.calls.pop()
        elif name in {"exit", "return", "break", "continue"}:
            self._end(fields, state)
        elif name in {"source", "."} and rest:
            self._source(rest, state)
        elif name in {"read", "mapfile", "readarray"}:
            self._read(name, rest, state, read, separators)
        elif name == "exec" and rest:
            if not self._printing:
                self.command(state, rest, {}, read)
            state.ended = "exit"
        elif name in {"eval", "let", "getopts"}:
            follow: Mapping[str, Callable[[], object]] = {
                "eval": lambda: self.run_text(joined(rest, " "), state),
                "let": lambda: [self.arithmetic(it, state) for it in rest],
                "getopts": lambda: self._getopts([it.text for it in rest], state),
            }
            follow[name]()
        elif name in {"unset", "shift", "set", *_GOING}:
            state.folder = self._gone(name, rest, state)
            _forget(name, rest, state)
        else:
            return name in NOTHING
        return True

    def _end(self, fields: list[Traced], state: State) -> None:
        """Follow `exit 1`, `return`, `break 2`."""
        name, number = fields[0].text, fields[1].text[:3] if len(fields) > 1 else ""
        state.ended, state.levels = name, int(number) if number.isdecimal() else 1
        if name in {"return", "exit"} and number:
            state.status = number if number.isdecimal() else ""
        self.ends += [fields[0].at[0]] if name == "exit" and fields[0].at else []

    def where(self, state: State) -> Path:
        """Return what files that a script names are looked for beside: the script, or its name where it has gone."""
        return self.path if state.folder is None else state.folder / self.path.name

    def _gone(self, command: str, words: list[Traced], state: State) -> Path | None:
        """Return where a script is after a command; of `cd NAME` None where it is no folder that is here."""
        name = words[-1].text if words else ""
        if command not in _GOING:
            return state.folder
        if not known(name) or not name or name.startswith(("-", "/", "~")):
            return None
        bases = [state.folder] if state.folder else self.path.parents[:MAX_LEVELS]
        with suppress(OSError, ValueError):
            root = self.path.absolute().parents[:MAX_LEVELS][-1]
            for base in bases:
                path = Path(normpath(base / name))
                if is_folder(path) and path.absolute().is_relative_to(root):
                    return path
        return None

    def _call(self, body: tuple[Statement, ...], arguments: tuple[Traced, ...], state: State) -> None:
        before, local, state.local = (state.positional, state.rest), state.local, {}
        state.take(arguments)
        with self._left(state, "return", next(reversed(self.calls), NOWHERE)):
            self.run(body, state)
        state.positional, state.rest = before
        state.ended = "" if state.ended == "return" else state.ended
        for name in state.local:
            state.names.pop(name, None)
            state.counted.discard(name)
        _restore(state.local, state)
        state.local = local

    def _source(self, rest: list[Traced], state: State) -> None:
        name = rest[0].text
        text = state.text(name)
        path = self.find(name, self.where(state)) if text is None and known(name) else None
        before = state.positional, state.rest
        if len(rest) > 1:
            state.take(rest[1:])
        with self._left(state, "return", fields_at(rest)):
            if path is not None:
                self.run_file(path, state)
            elif text is not None:
                self.run_text(text, state)
            elif not re.search(r"activate|bashrc|profile|conda|modules?\b|spack|lmod", name):
                self.missing.append((name, fields_at(rest)))
        if len(rest) > 1:
            state.positional, state.rest = before
        state.ended = "" if state.ended == "return" else state.ended

    def _getopts(self, words: list[str], state: State) -> bool | None:
        """Follow `getopts LETTERS NAME`; return whether there is one more option, None where that is not known."""
        if len(words) < 2 or (state.rest and not state.positional):  # none that anybody gave
            return False
        letters, name = words[:2]
        index = state.variables.get("OPTIND")
        at = int(index.text[:4]) if isinstance(index, Traced) and index.text.isdecimal() else 1
        option = state.argument(at) if at <= len(state.positional) else EMPTY
        letter = option.text[1:2]
        if not re.fullmatch(r"-[A-Za-z0-9].*", option.text, re.DOTALL) or letter not in letters:
            return False
        state.variables[name] = untraced(letter)
        takes = letters.partition(letter)[2].startswith(":")
        glued = len(option.text) > 2
        if takes:
            state.variables["OPTARG"] = option.cut(2) if glued else state.argument(at + 1)
        state.variables["OPTIND"] = untraced(str(at + (2 if takes and not glued else 1)))
        return True

    def _read(self, how: str, rest: list[Traced], state: State, read: Traced | None, separators: str) -> None:
        """Follow `IFS=, read -r A B <<< "$X"`, and `mapfile -t A` by lines."""
        names = [it.text for it in rest if it.text and not it.text.startswith("-")]
        if how != "read" and read is not None:
            lines = re.finditer(r"[^\n]+|(?<=\n)(?=\n)", read.text)
            state.variables[names[-1] if names else "MAPFILE"] = tuple(read.cut(*it.span()) for it in lines)
            return
        whole = any(re.fullmatch(r"-\w*d", one.text) and not two.text for one, two in pairwise(rest))
        listed = any(it.text.startswith("-") and "a" in it.text for it in rest)
        if whole and read is not None and len(names) == 1:
            # `read -r -d '' ARGS <<EOF` takes all of it
            state.variables[names[0]] = tuple(split(read, separators)) if listed else read
            return
        state.status = ""
        if read is None:
            for name in names:
                state.variables[name] = mark(name)
                state.unknown[name] = "is read while the script runs"
            return
        end = read.text.find("\n") + 1 or len(read.text)
        line = read.cut(0, end)
        line = line.cut(0, len(line.text.rstrip("\n")))
        if read is state.input:
            state.input = read.cut(end)
        state.status = "0" if read.text else "1"
        if listed:
            state.variables[names[-1] if names else "REPLY"] = tuple(split(line, separators))
            return
        for number, name in enumerate(names):
            parts = split(line, separators)
            state.variables[name] = parts[0] if parts else EMPTY
            if number == len(names) - 1:
                blanks = "".join(it for it in separators if it.isspace())
                kept = line.text.strip(blanks) if blanks else line.text
                at = line.text.find(kept)
                state.variables[name] = line.cut(at, at + len(kept))
            elif parts:
                line = line.cut(line.text.find(parts[0].text) + len(parts[0].text))
                line = line.cut(1) if line.text[:1] and not line.text[0].isspace() else line


def _formatted(words: list[Traced]) -> Traced | None:
    """Return what `printf FORMAT WORDS` prints, for formats of texts and plain numbers."""
    if words and re.fullmatch(r"%0?\dd(\\n)?", words[0].text) and len(words) == 2 and words[1].text.isdecimal():
        return untraced(
            (words[0].text.removesuffix("\\n") + words[0].text[3:].partition("d")[2]) % int(words[1].text[:18])
        )
    if not words or re.search(r"%[^sd%]", words[0].text):
        return None
    parts = [_unescaped(part) for part in re.split(r"%[sd]", words[0].text.replace("%%", "%"))]
    holes, rest = len(parts) - 1, words[1:]
    if holes and parts in ([untraced(""), untraced("")], [untraced(""), untraced("\n")]):
        return joined(rest, " ")
    found: list[Traced] = []
    for at in range(0, max(1, len(rest) if holes else 1), max(1, holes)):
        filled = [*rest[at : at + holes], *[EMPTY] * holes][:holes]
        found += [piece for pair in zip(parts, [*filled, EMPTY], strict=True) for piece in pair]
    return joined(found)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\x1b"}


def _unescaped(text: str) -> Traced:
    def meant(found: re.Match[str]) -> str:
        one = found[1]
        return chr(int(one[1:], 16)) if one[0] == "x" and one[1:] else _ESCAPES.get(one, one)

    return untraced(re.sub(r"\\(x[0-9a-fA-F]{1,2}|.)", meant, text, flags=re.DOTALL))


def _sequence(words: list[str]) -> Traced | None:
    """Return what `seq FIRST STEP LAST` prints, of whole numbers; `-s` says what stands between them."""
    between = "\n"
    while words and re.match(r"-[sw]", words[0]):
        between = words[0][2:] or (words[1:] or [""])[0] if words[0][1] == "s" else between
        words = words[2 if words[0] == "-s" else 1 :]
    if not 0 < len(words) < 4 or not all(re.fullmatch(r"-?\d{1,9}", it) for it in words):
        return None
    first, *more = (int(it) for it in words)
    low, step, high = {0: (1, 1, first), 1: (first, 1, *more), 2: (first, *more)}[len(more)]
    found = range(low, high + (1 if step > 0 else -1), step) if step else ()
    return untraced(between.join(map(str, found)) + "\n" * bool(found)) if len(found) <= MAX_FIELDS else None


def _searched(words: list[str], text: str) -> bool | None:
    """Return whether `grep -q TEXT` finds it; None where it prints, or the pattern is not followed."""
    flags = "".join(it[1:] for it in words if re.fullmatch(r"-[a-zA-Z]+", it))
    plain = [it for it in words if not it.startswith("-")]
    if "q" not in flags or set(flags) - set("qiEFxs") or len(plain) != 1 or not known(text):
        return None
    text, wanted = (text.lower(), plain[0].lower()) if "i" in flags else (text, plain[0])
    lines = [wanted in line if re.fullmatch(r"[\w ,:/-]+", wanted) else _matched(line[:500], wanted)
             for line in text.split("\n")]  # fmt: skip
    return None if None in lines or "x" in flags else any(lines)


_CLASSES = {name: text for low, text in (("a-z", ascii_lowercase), ("A-Z", ascii_uppercase))
            for name in (low, f"[{low}]", f"[:{'lower' if low == 'a-z' else 'upper'}:]")}  # fmt: skip


def _filtered(name: str, words: list[Traced], read: Traced | None) -> Traced | None:
    """Return what `tr A B`, `wc -l`, `grep -o ,`, `cut -d, -f2` and `awk -F, '{print NF}'` make of a known text."""
    if read is None or not known(read.text):
        return None
    given = " ".join(word.text for word in words)
    if name == "tr":
        one, two = [*(_unescaped(word.text).text for word in words), "", ""][:2]
        one, two = (_CLASSES.get(it, it) for it in (one, two))
        if len(words) == 2 and words[0].text == "-d" and re.fullmatch(r"[^\\\[-]+|\n", two):
            return untraced(read.text.translate(dict.fromkeys(map(ord, two))))
        same = len(words) == 2 and len(one) == len(two) and (len(one) == 1 or {one, two} <= {*_CLASSES.values()})
        return untraced(read.text.translate(str.maketrans(one, two))) if same else None
    if name == "grep":
        plain = re.fullmatch(r"-o ([\w,:]+)", given)
        return untraced(f"{plain[1]}\n" * read.text.count(plain[1])) if plain else None
    if name == "wc":
        lines = read.text.rstrip("\n")
        count = {"-l": len(lines.split("\n")) if lines else 0, "-w": len(read.text.split())}.get(given)
        return None if count is None else untraced(str(count))
    parts = re.fullmatch(r"-d ?(\S) -f ?(\d{1,2})|-F ?(\S) \{ ?print (?:\$(\d{1,2})|NF) ?\}", given)
    if parts is None:
        return None
    found, number = read.text.strip().split(parts[1] or parts[3]), parts[2] or parts[4]
    if number is None:
        return untraced(str(len(found)))
    return untraced(found[int(number) - 1] if 0 < int(number) <= len(found) else "")


def _getopt(words: list[Traced]) -> Traced | None:
    """Return what `getopt -o LETTERS --long NAMES -- ARGUMENTS` prints: the arguments, then `--`."""
    at = next((at for at, word in enumerate(words) if word.text == "--"), len(words))
    if at == len(words):
        return None
    parts: list[Traced] = []
    for word in words[at + 1 :]:
        name, equals, _ = word.text.partition("=")
        parts += [word.cut(0, len(name)), word.cut(len(name) + 1)] if equals and name.startswith("--") else [word]
    return joined([*parts, untraced("--")], " ")


def _printed_by_python(words: list[Traced], read: Traced | None) -> Traced | None:
    """Return what `python -c TEXT` and `python <<EOF` print, where it is one value that can be worked out."""
    text = words[1] if len(words) == 2 and words[0].text == "-c" else read if len(words) < 2 else None
    if text is None or not known(text.text):
        return None
    program = Program(lambda *_: None, {})
    with suppress(InputError):
        program.module("python", text.text)
        if len(program.printed) == 1 and isinstance(program.printed[0], str | int | float):
            return untraced(str(program.printed[0]))
    return None


def _forget(name: str, rest: list[Traced], state: State) -> None:
    """Follow `unset`, `shift` and `set --`."""
    if name == "unset":
        for it in rest:
            key, table = it.text.partition("[")[::2], state.variables.get(it.text.partition("[")[0])
            if key[1] and not isinstance(table, Traced):
                kept = table if isinstance(table, dict) else dict(enumerate(table or ()))
                state.variables[key[0]] = {str(at): one for at, one in kept.items() if f"{at}]" != key[1]}
                continue
            state.variables.pop(it.text, None)
            state.unknown.pop(it.text, None)
    elif name == "shift":
        state.shift(int(rest[0].text[:6]) if rest and rest[0].text.isdecimal() else 1)
    elif name == "set" and rest and rest[0].text == "--":
        state.take(rest[1:])


class _Expansion:
    """A word on its way into fields."""

    def __init__(self, shell: Shell, state: State, *, splitting: bool, quoted: bool) -> None:
        self.shell, self.state, self.splitting, self.quoted = shell, state, splitting, quoted
        self.fields: list[list[Traced]] = []
        self.separators = shell.separators(state)
        self.fresh = True
        """Whether the next piece starts a field."""

    def fields_of(self, word: Traced) -> list[Traced]:
        text, at = word.text, 0
        if self.quoted:
            self.add(EMPTY)
        while at < len(text):
            plain = (_IN_QUOTES if self.quoted else _LITERAL).match(text, at)
            if plain:
                self.add(word.cut(at, plain.end()))
                at = plain.end()
            elif text[at] == "\\":
                at = self.escaped(word, at)
            elif text[at] in "'\"":
                at = self.quotation(word, at)
            else:
                values, several, at = self.shell.dollar(word, at, self.state)
                self.shell.grow(sum(len(value.text) for value in values))
                self.values(values, several)
        if self.quoted and len(self.fields) == 1 and not joined(self.fields[0]).text and _only_list(text):
            return []
        return [joined(field) for field in self.fields]

    def add(self, piece: Traced) -> None:
        if self.fresh:
            self.fields.append([])
        self.fresh = False
        self.fields[-1].append(piece)

    def escaped(self, word: Traced, at: int) -> int:
        after = word.text[at + 1 : at + 2]
        if after in {"\n", "\r"}:
            return at + (3 if word.text.startswith("\r\n", at + 1) else 2)
        keep = self.quoted and after not in set('$`"\\')
        self.add(word.cut(at if keep else at + 1, at + 2))
        return at + 2

    def quotation(self, word: Traced, at: int) -> int:
        if self.quoted:  # a quotation mark in a heredoc
            self.add(word.cut(at, at + 1))
            return at + 1
        end = passed(word.text, at)
        inside = word.cut(at + 1, end - 1)
        plain = word.text[at] == "'"
        inner = _Expansion(self.shell, self.state, splitting=False, quoted=True)
        for index, piece in enumerate([inside] if plain else inner.fields_of(inside)):
            self.fresh |= index > 0
            self.add(piece)
        return end

    def values(self, values: list[Traced], several: bool) -> None:
        """Add the values of an expansion; outside quotes they split at blanks."""
        if self.quoted or not self.splitting:
            for index, value in enumerate(values):
                self.fresh |= several and index > 0
                self.add(value)
            return
        for number, value in enumerate(values):
            blanks = [it for it in self.separators if it.isspace()]
            self.fresh |= value.text[:1] in blanks or (several and number > 0)
            for index, piece in enumerate(split(value, self.separators)):
                self.fresh |= index > 0
                self.add(piece)
            self.fresh |= value.text[-1:] != "" and value.text[-1:] in self.separators


_GOING = ("cd", "pushd", "popd")


def fields_at(fields: Sequence[Traced]) -> int:
    """Return where fields stand: the first character that is of a file."""
    return next((at for field in fields for at in field.at if at >= 0), NOWHERE)


class _Testing:
    """The expression in `[ ... ]` or `[[ ... ]]`."""

    def __init__(self, shell: Shell, words: list[Traced], state: State, *, double: bool) -> None:
        self.shell, self.words, self.state, self.at, self.double = shell, words, state, 0, double

    def whole(self) -> bool | None:
        return self._either() if self.words and len(self.words) < 200 else None

    def _next(self) -> str:
        return self.words[self.at].text if self.at < len(self.words) else ""

    def _either(self) -> bool | None:
        return self._several(("||", "-o"), self._both, True)

    def _both(self) -> bool | None:
        return self._several(("&&", "-a"), self._single, False)

    def _several(self, signs: tuple[str, ...], part: Callable[[], bool | None], decides: bool) -> bool | None:
        value = part()
        while self._next() in signs:
            self.at += 1
            both = (value, part())
            value = decides if decides in both else None if None in both else not decides
        return value

    def _single(self) -> bool | None:
        negated = False
        while self._next() == "!":
            negated = not negated
            self.at += 1
        if self._next() == "(":
            self.at += 1
            value = self._either()
            self.at += self._next() == ")"
        else:
            value = self._primary()
        return value if value is None or not negated else not value

    def _primary(self) -> bool | None:
        if self.at >= len(self.words):
            return None
        operator = self.words[self.at + 1].text if self.at + 1 < len(self.words) else ""
        if operator in _COMPARING and self.at + 2 < len(self.words):
            one, two = self.words[self.at], self.words[self.at + 2]
            self.at += 3
            return self._compared(one, operator, two)
        first = self._next()
        if re.fullmatch(r"-[a-zA-Z]", first) and self.at + 1 < len(self.words):
            word = self.words[self.at + 1]
            self.at += 2
            if first == "-v":
                return not self.shell.is_unset(word.text, self.state)
            text = self.shell.operand(word, self.state, emptiness=True)
            return None if text is None or first not in {"-z", "-n"} else (text == "") is (first == "-z")
        self.at += 1
        text = self.shell.operand(self.words[self.at - 1], self.state)
        return None if text is None else text != ""

    def _compared(self, left: Traced, operator: str, right: Traced) -> bool | None:
        empty = operator in {"=", "==", "!="} and right.text in {'""', "''"}
        empty |= operator in {"=", "=="} and self.shell.defaults_on(left)
        one, two = (self.shell.operand(word, self.state, emptiness=empty) for word in (left, right))
        own = re.fullmatch(r'"?\$\{?(\w+)\}?"?', left.text)
        choices = (_ALTERNATIVES.fullmatch(right.text) or ("", ""))[1].split("|") if operator == "=~" else [two or ""]
        offering = {"=", "==", "!=", "=~", "-eq", "-ne"}
        if operator in offering and any(choices) and own and own[1] not in self.shell.computed:
            self.shell.offer(self.shell.text(left, self.state).text, choices)
        if one is None or two is None or operator in {"-nt", "-ot", "-ef"}:
            return None
        quoted = right.text[:1] in {"'", '"'}
        if operator == "=~":
            return two in one if quoted and right.text[-1] == right.text[0] else self._fits(one[:500], two)
        if operator in {"=", "==", "!="}:
            same = one == two if quoted or not self.double else re.fullmatch(_pattern(two), one) is not None
            return same is (operator != "!=")
        if operator in {"<", ">"}:
            plain = self.double and (one + two).isalnum()
            return ((one < two) if operator == "<" else (one > two)) if plain else None
        return self._counted(one.strip(), operator, two.strip())

    def _fits(self, text: str, pattern: str) -> bool | None:
        found = _matched(text, pattern)
        if found:
            self.state.variables["BASH_REMATCH"] = tuple(untraced(it or "") for it in (found[0], *found.groups()))
        return None if found is None else bool(found)

    def _counted(self, one: str, operator: str, two: str) -> bool | None:
        if not self.double:  # decimal digits, whatever they begin with; without any an error
            if not one or not two:
                return False
            one, two = (re.sub(r"^(-?)0+(?=\d)", r"\1", it) for it in (one, two))
        low, high = self.shell.count(one, self.state), self.shell.count(two, self.state)
        if low is None or high is None:
            return None
        return {
            "-eq": low == high, "-ne": low != high, "-lt": low < high, "-le": low <= high, "-gt": low > high,
            "-ge": low >= high,
        }[operator]  # fmt: skip


_COMPARING = ("=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef")


def _test_words(text: Traced) -> list[Traced]:
    """Split what stands in `[[ ... ]]`."""
    found: list[Traced] = []
    at = 0
    while at < len(text.text):
        if text.text[at].isspace():
            at += 1
            continue
        pattern = bool(found) and found[-1].text == "=~"  # brackets are of the regular expression
        operator = None if pattern else re.compile(r"&&|\|\||[()]|!(?=\s)").match(text.text, at)
        end = operator.end() if operator else at
        stops = "" if pattern else "()"
        while not operator and end < len(text.text) and not text.text[end].isspace() and text.text[end] not in stops:
            end = passed(text.text, end)
        end = max(end, at + 1)
        found.append(text.cut(at, end))
        at = end
    return found


def _matched(text: str, pattern: str) -> re.Match[str] | Literal[False] | None:
    """Return where a text fits a regular expression, False where it does not; None of one that is not followed."""
    plain = pattern.replace("[[:digit:]]", "[0-9]").replace("[[:space:]]", "[ ]").replace("[[:alpha:]]", "[A-Za-z]")
    bare = re.sub(r"\((?!\?)([^()|]*)\)(?![+*?{])", r"\1", plain)  # groups that are not repeated
    if not _PLAIN_PATTERN.fullmatch(bare) or len(re.findall("[+*]", bare)) > 2:
        return None
    try:
        return re.search(plain, text) or False
    except re.error:
        return None


def _open(text: str) -> str:
    """Return the text of an expansion whose value is not known, in one word; it names a variable if it holds one."""
    name = re.search(r"\$\{(\w+)\}", text)
    plain = re.sub(r"[\s()]+", "_", text)[:60]
    return name[0] if name else f"$({plain})"


def _only_list(text: str) -> bool:
    return re.fullmatch(r"\$\{[A-Za-z_]\w*\[@\]\}|\$@|\$\{@\}", text) is not None


def _restore(names: Mapping[str, Value | None], state: State) -> None:
    state.variables |= {name: value for name, value in names.items() if value is not None}
    for name in [name for name, value in names.items() if value is None]:
        state.variables.pop(name, None)


def _first_word(one: Simple) -> str:
    return one.words[0].text if one.words and isinstance(one.words[0], Traced) else ""


def _pattern(text: str) -> str:
    """Return a pattern of file names as a regular expression."""
    return translate(text.replace("[^", "[!"))


def _differing(one: State, two: State) -> list[str]:
    """Return the variables that differ."""
    names = {**one.variables, **two.variables}
    return [name for name in names if not _same(one.variables.get(name), two.variables.get(name))]


def _listed(value: Value | None) -> list[Traced]:
    if isinstance(value, Traced):
        return [value]
    return list(value.values() if isinstance(value, dict) else value or ())


def _same(one: Value | None, two: Value | None) -> bool:
    if type(one) is not type(two):
        return False
    return [it.text for it in _listed(one)] == [it.text for it in _listed(two)]


def _said(value: Value | None) -> str:
    text = " ".join(it.text for it in _listed(value))[:40]
    return text if value is not None and text else "empty" if value is not None else "not set"


def _words(value: Value | None) -> list[Traced] | None:
    """Return the words of a list of options; None of what is none."""
    if value is None:
        return []
    if isinstance(value, Traced):
        return split(value) if _FLAG.search(value.text) or not value.text.strip() else None
    return list(value) if isinstance(value, tuple) else None


def _mixed(one: list[Traced], two: list[Traced], unknown: Traced) -> list[Traced]:
    """Return two lists of options as one: what both hold stays, of all else the values are not known."""
    same = 0
    while same < min(len(one), len(two)) and one[same].text == two[same].text:
        same += 1
    while same and same < max(len(one), len(two)) and not _FLAG.match([*one[same:], *two[same:]][0].text):
        same -= 1  # a value differs: its option does
    found = one[:same]
    groups = [_grouped(rest) for rest in (one[same:], two[same:])]
    for name in dict.fromkeys([*groups[0], *groups[1]]):
        values = [[it.text for it in group.get(name, [])] for group in groups]
        group = groups[0].get(name) or groups[1][name]
        both = name in groups[0] and name in groups[1] and values[0] == values[1]
        found += group if both else [group[0], unknown] if _FLAG.match(group[0].text) else []
    return found


def _grouped(words: list[Traced]) -> dict[str, list[Traced]]:
    groups: dict[str, list[Traced]] = {}
    name = ""
    for word in words:
        name = word.text.partition("=")[0] if _FLAG.match(word.text) else name or word.text
        groups.setdefault(name, []).append(word)
    return groups


def _trimmed(value: Traced, pattern: str, how: str) -> Traced:
    """Take the shortest (`#`, `%`) or longest (`##`, `%%`) part that fits a pattern from the start or the end."""
    text, front = value.text[:500], how.startswith("#")
    sizes = range(len(text) + 1) if len(how) == 1 else range(len(text), -1, -1)
    for size in sizes:
        part = text[:size] if front else text[len(text) - size :]
        if re.fullmatch(pattern, part):
            return value.cut(size) if front else value.cut(0, len(value.text) - size)
    return value


def _swapped(text: Traced, old: str, new: str) -> Traced:
    parts: list[Traced] = []
    at = 0
    while (found := text.text.find(old, at)) >= 0 and len(parts) < 2000:
        parts += [text.cut(at, found), untraced(new)]
        at = found + len(old)
    return joined([*parts, text.cut(at)])


def unset_in(value: Any) -> list[str]:
    """Return the names of variables without a value in a text or in texts; an empty name for a command's output."""
    texts = value if isinstance(value, list | tuple) else [value]
    return [found[1] or "" for text in texts if isinstance(text, str) for found in _MARK.finditer(text)]
