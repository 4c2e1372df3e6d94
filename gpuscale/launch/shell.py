"""What a shell script would run: its variables and branches followed as far as they are known, nothing executed.

A variable without a value stands in texts as `${NAME}`; who needs the text asks for it by that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from os.path import normpath
from pathlib import Path, PurePosixPath
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import is_folder
from gpuscale.launch.shell_flow import Flow
from gpuscale.launch.shell_outputs import WRITING, printed_by_python
from gpuscale.launch.shell_state import (
    EMPTY,
    MARK,
    MAX_CHARACTERS,
    MAX_DEPTH,
    State,
    fields_at,
    known,
    listed,
    mark,
    restore,
    split,
)
from gpuscale.launch.shell_syntax import (
    DECLARING,
    Assignment,
    Branches,
    CaseStatement,
    Chain,
    Function,
    Group,
    Loop,
    Parser,
    Pipe,
    Simple,
    Statement,
    SyntaxProblem,
    Test,
)
from gpuscale.launch.starters import NOTHING, QUESTIONS, QUIET
from gpuscale.launch.traced import NOWHERE, Traced, joined, untraced

MAX_LEVELS = 6
"""Folders below a folder, and above a file, in which what it names is looked for."""
MAX_STEPS = 20_000
_GOING = ("cd", "pushd", "popd")


class Shell(Flow):
    """Follows scripts."""

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
        elif isinstance(one, Test) or (isinstance(one, Simple) and one.name in {"[", "test"}):
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
        text, inner, statuses = state.input, state, list[str]()
        for part in one.parts:
            inner = state.copy() if len(one.parts) > 1 else state
            inner.input = text
            follow = partial(self.step, part, inner)
            if part is one.parts[-1]:
                follow()
            else:
                text = self.captured(follow)
            state.texts = inner.texts
            statuses.insert(0, inner.status)
        status = next((it for it in statuses if it not in {"0", "ok"} and "pipefail" in state.options), statuses[0])
        state.status = {"0": "1", "": "", "ok": "ok"}.get(status, "0") if one.negated else status

    def simple(self, one: Simple, state: State) -> None:
        """Follow a command."""
        if not one.words:
            self._substituted = "0"
            for assignment in one.assignments:
                self.assign(assignment, state)
            state.status = self._substituted
            if one.redirects and not one.assignments:
                self.show(self._read_by(one.redirects, state))  # `$(< file)`
            return
        if one.name in DECLARING:
            self._declare(one, one.name, state)
            return
        fields = self.fields([word for word in one.words if isinstance(word, Traced)], state)
        inner = state.copy() if one.assignments else state
        for assignment in one.assignments:
            self.assign(assignment, inner)
        if not fields:
            return
        name = PurePosixPath(fields[0].text).name
        state.status = "1" if name == "false" else "" if name in QUESTIONS else "0" if name in QUIET else "ok"
        if fields[0].text in state.functions:
            names = {it.name: state.variables.get(it.name) for it in one.assignments}
            inner.status = state.status
            self.redirected(one.redirects, inner, partial(self._command, one, fields, inner, inner))
            state.adopt(inner)
            restore(names, state)
        else:
            self._command(one, fields, state, inner)

    def _command(self, one: Simple, fields: list[Traced], state: State, inner: State) -> None:
        read = self._read_by(one.redirects, inner)
        own = fields[0].text in state.functions
        printed = None if own else self._printed(fields, inner, read, state)
        if printed is None and self._printing and re.fullmatch(r"python[\d.]*", PurePosixPath(fields[0].text).name):
            printed = printed_by_python(fields[1:], read)
        if not own:
            self._write(one.redirects, fields, printed, state, inner)
            self._copy([it.text for it in fields], state)
        elsewhere = any(it.operator in WRITING and not it.errors for it in one.redirects) or any(
            it.operator == ">&" and not it.errors and it.target.text == "2" for it in one.redirects
            if isinstance(it.target, Traced)
        )  # fmt: skip
        if printed is None and not self._builtin(fields, state, read, self.separators(inner)):
            environment = {it.name: joined(listed(inner.variables.get(it.name)), " ") for it in one.assignments}
            if not self._printing:
                self.command(inner, fields, environment, read)
        elif printed is None and (own or fields[0].text in QUIET):
            return
        if not elsewhere:
            self.show(printed)

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
        kind = re.search("[ilu]", flags)
        state.kinds |= {name: kind[0]} if kind else {}
        if "A" in flags and not isinstance(state.variables.get(name), dict):
            state.variables[name] = {}

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
                "let": lambda: [self.arithmetic(it, state) for it in rest][-1:] != [0],
                "getopts": lambda: self._getopts([it.text for it in rest], state),
            }
            more = follow[name]()
            state.status = state.status if name == "eval" else str(int(not more))
        elif name == "trap" and self._printing:  # what it prints at the end is not followed
            self.show(None)
        elif name in {"unset", "shift", "set", "shopt", *_GOING}:
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
        self._until_return(partial(self.run, body), state, self.calls[-1])
        state.positional, state.rest = before
        for name in state.local:
            state.names.pop(name, None)
            state.kinds.pop(name, None)
        restore(state.local, state)
        state.local = local

    def _until_return(self, follow: Callable[[State], object], state: State, at: int) -> None:
        with self._left(state, "return", at):
            follow(state)
        state.ended = "" if state.ended == "return" else state.ended

    def _source(self, rest: list[Traced], state: State) -> None:
        name = rest[0].text
        text = state.text(name)
        path = self.find(name, self.where(state)) if text is None and known(name) else None
        before = state.positional, state.rest
        if len(rest) > 1:
            state.take(rest[1:])
        if path is not None:
            self._until_return(partial(self.run_file, path), state, fields_at(rest))
        elif text is not None:
            self._until_return(partial(self.run_text, text), state, fields_at(rest))
        elif not re.search(r"activate|bashrc|profile|conda|modules?\b|spack|lmod", name):
            self.missing.append((name, fields_at(rest)))
        if len(rest) > 1:
            state.positional, state.rest = before

    def _getopts(self, words: list[str], state: State) -> bool:
        """Follow `getopts LETTERS NAME`; return whether there is one more option."""
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
        blanks = "".join(it for it in separators if it.isspace())
        start = len(line.text) - len(line.text.lstrip(blanks)) if blanks else 0
        unknown = MARK.fullmatch(line.text)
        parts = [line] * len(names) if unknown else split(line.cut(start), separators, len(names) - 1)
        for name, part in zip(names, [*parts, *[EMPTY] * len(names)], strict=False):
            state.variables[name] = part.cut(0, len(part.text.rstrip(blanks))) if blanks else part


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
    else:
        flag = ""
        for it in rest:
            flag = it.text if it.text[:1] in {"-", "+"} else flag
            if it.text in {"nocasematch", "pipefail"}:
                (state.options.discard if flag[:1] == "+" or flag == "-u" else state.options.add)(it.text)
