"""Statements of a Python file: branches, loops, patterns, and errors that are raised and taken.

Where a condition is not known, what either branch would change is unknown afterwards, unless both make the same of it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuscale.launch.python_builtins import is_a
from gpuscale.launch.python_calls import MAYBE, STARTS, Calls
from gpuscale.launch.python_state import (
    INSTALLED,
    MAX_STEPS,
    NOTHING,
    Choice,
    Ended,
    RaisedError,
    Trying,
    decides,
    error_names,
    literal,
    own_method,
)
from gpuscale.launch.python_values import (
    Class,
    Function,
    Property,
    Record,
    Rest,
    Row,
    Scope,
    Symbol,
    Unique,
    Unknown,
    first_unknown,
    is_plain,
    operate,
    truth,
)

STEPPING = re.compile(r"\bopt(im\w*)?\.step\(|\.step\(opt")
"""How an optimizer steps."""


PERHAPS = "perhaps"
"""How a block ends that a `break`, a `continue` or an error leaves perhaps."""


REFUSING = re.compile(r"(sys\.exit|exit|quit|os\._exit|\w*pars\w*\.(error|exit))\(")
"""Calls that end a program."""


SPEAKING = re.compile(r"([\w.]*\b)?(print\w*|s?echo|log|info|warn(ing)?|error|critical|exception|write|flush)\(")
"""Calls that only say something."""


class Statements(Calls):
    """Statements, one after the other."""

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> Ended | None:
        """Go through statements one after the other."""
        for at, statement in enumerate(body):
            self.steps += 1
            if self.steps > MAX_STEPS:
                return Ended("raise")
            run = getattr(self, f"_run_{type(statement).__name__.lower()}", None)
            raised = sum(len(one.perhaps) for one in self.tries)
            ended = run(statement, scope) if run is not None else None
            perhaps = [why for one in self.tries for _, why in one.perhaps][raised:] if self.doubt is None else []
            if ended is not None and ended.how == PERHAPS:
                perhaps.append(ended.value)
            elif ended is not None:
                return ended
            if perhaps:
                with self.doubting(perhaps[0]):
                    rest = self.run(body[at + 1 :], scope)
                return rest or ended
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
            return literal(self.given.get(target.id, replace(value, name=target.id)))
        return value

    def _run_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        before, value = self.value(node.target, scope), self.value(node.value, scope)
        if isinstance(before, list) and not isinstance(before, Row) and isinstance(node.op, ast.Add):
            items = self.items(value)
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
                self.remove(whole, target.attr if isinstance(target, ast.Attribute) else self.key_of(target, scope))
            elif isinstance(target, ast.Name):
                names = scope.elsewhere.get(target.id, scope).names
                if self.doubt is None:
                    names.pop(target.id, None)
                elif target.id in names:
                    names[target.id] = self.doubt

    def _run_expr(self, node: ast.Expr, scope: Scope) -> None:
        made = self.value(node.value, scope)
        if isinstance(node.value, ast.Call) and isinstance(made, Record) and made.kind is None:
            self.called.append(made)
            if made.name.endswith("requires_grad_") and made.parts.get("0", True) is not True:
                self.frozen.append(made.place)

    def _run_return(self, node: ast.Return, scope: Scope) -> Ended:
        return Ended("return", None if node.value is None else self.value(node.value, scope))

    def _run_break(self, *_: Any) -> Ended:
        return Ended("break")

    def _run_continue(self, *_: Any) -> Ended:
        return Ended("continue")

    def _run_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        before = scope.names.get(node.name)
        made = self.function(node, scope)
        words = [ast.unparse(one) for one in node.decorator_list]
        if isinstance(before, Property) and f"{node.name}.setter" in words:
            scope.names[node.name] = Property(before.get, made)
        elif any(one.rpartition(".")[2] in {"property", "cached_property", "abstractproperty"} for one in words):
            scope.names[node.name] = Property(made)
        else:
            self._define(node, made, scope)

    _run_asyncfunctiondef = _run_functiondef

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, made: Any, scope: Scope) -> None:
        """Set the name of a function or class to what decorators that are here make of it."""
        before = scope.names.get(node.name, NOTHING)
        scope.names[node.name] = made
        for one in reversed(node.decorator_list):
            by = one.func if isinstance(one, ast.Call) else one
            if isinstance(by, ast.Name | ast.Attribute) and isinstance(self.value(by, scope), Function | Class):
                made = self.call(self.value(one, scope), (made,), {}, scope.place(one))
        scope.names[node.name] = made if before is NOTHING else self.doubted(before, made)

    def _run_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        self._define(node, self._class(node, scope), scope)

    def _run_with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> Ended | None:
        entered, suppressed = list[Any](), list[Any]()
        for item in node.items:
            made = manager = self.value(item.context_expr, scope)
            entered.append(manager)
            if isinstance(made, Record) and made.origin == "contextlib.suppress":
                suppressed += made.parts.values()
            if isinstance(made, Record) and made.origin == "contextlib.nullcontext":
                made = made.parts.get("0", made.parts.get("enter_result"))
            if enters := own_method(manager, "__enter__"):
                made = self.follow(enters, (), {}, scope.place(node))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, made, scope)
        if suppressed:
            trying = Trying([(_classes(suppressed), None)], self.doubt)
            ended, _ = self._tried(trying, node.body, scope)
        else:
            ended = self.run(node.body, scope)
        for one in reversed(entered):
            if leaves := own_method(one, "__exit__"):
                self.follow(leaves, (None, None, None), {}, scope.place(node))
        return ended

    _run_asyncwith = _run_with

    def _run_raise(self, node: ast.Raise, scope: Scope) -> Ended:
        if node.exc is None:
            return self.raised(scope.error) if scope.error is not None else Ended("raise")
        made = self.value(node.exc, scope)
        return self.raised(RaisedError(error_names(made), made))

    def raised(self, error: RaisedError) -> Ended:
        """End what is gone through by an error; where a `try` takes it, its handler is what comes next.

        A handler that only ends the program takes none: a job that runs does not come there.
        """
        for one in reversed(self.tries):
            for by in one.takes(error.names):
                if not self._goes_on(one, by, error.names):
                    return Ended("raise")
                if self.doubt is one.doubt:
                    raise error
                one.perhaps.append((error, self.doubt or Unknown("...")))
                return Ended("raise")
        return Ended("raise")

    def _run_assert(self, node: ast.Assert, scope: Scope) -> Ended | None:
        holds = self.truth(self.value(node.test, scope)) if self.tries else True
        with self.doubting(holds if isinstance(holds, Unknown) else None):
            ended = None if holds is True else self.raised(RaisedError(error_names(Symbol("AssertionError", "")), None))
        return ended if holds is False else None

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
                scope.error = error
                if by.name is not None:
                    scope.names[by.name] = error.value
                return self.run(by.body, scope)
        return None

    def _optional(self, node: ast.Try, scope: Scope) -> RaisedError | None:
        """Take packages of a `try` as installed unless the caller says `var=PACKAGE=false`; keep what hangs on that."""
        missing = RaisedError(error_names(Symbol("ModuleNotFoundError", "")), None)
        taken = [by for one in node.handlers for by in Trying([(_classes([self.value(one.type, scope)]), one)], None)
                 .takes(missing.names) if one.type is not None] if node.handlers else []  # fmt: skip
        for one in node.body if taken else ():
            names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
            names = [one.module or ""] if isinstance(one, ast.ImportFrom) and not one.level else names
            for name in names:
                whole = name.partition(".")[0]
                if literal(self.given.get(whole, True)) in {False, None}:
                    return missing
                if whole in sys.stdlib_module_names or self.find(name, 0, scope.file) is not None:
                    continue
                for by in taken:
                    for set_there in by.body if by is not None else ():
                        for target in _targets(set_there):
                            self.optional[target] = Choice(whole, INSTALLED, scope.place(one))
        return None

    def _is_taken(self, last: ast.stmt, scope: Scope) -> bool:
        """Whether a statement raises an error that a handler around takes and goes on."""
        if not isinstance(last, ast.Raise) or not self.tries or last.exc is None:
            return False
        kind = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        return self._taken(error_names(self.value(kind, scope)), self.tries)

    def _taken(self, names: tuple[str, ...], tries: Sequence[Trying]) -> bool:
        """Whether one of some `try`s takes an error of these classes and goes on."""
        for one in reversed(tries):
            for by in one.takes(names):
                return self._goes_on(one, by, names)
        return False

    def _goes_on(self, trying: Trying, by: ast.ExceptHandler | None, names: tuple[str, ...]) -> bool:
        """Whether a handler does more than end the program; another error that it raises may be taken around it."""
        if by is None or not (refuses(by.body) or (trying.alone and all(map(speaks, by.body)))):
            return True
        last, around = by.body[-1], self.tries[: self.tries.index(trying)] if trying in self.tries else []
        if not isinstance(last, ast.Raise):
            return False
        kind = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        return self._taken(names if kind is None else error_names(Symbol(ast.unparse(kind), "")), around)

    def _steps(self, node: ast.If) -> bool:
        """Whether an optimizer steps where a condition holds; told once, whatever loop it is in."""
        if node not in self.stepping:
            self.stepping[node] = bool(STEPPING.search(ast.unparse(node)))
        return self.stepping[node]

    def _accumulate(self, loop: ast.For | ast.While, scope: Scope) -> None:
        """Take every how many rounds of a loop an optimizer steps, where it is not in each; told once."""
        if loop not in self.looped:
            self.looped.add(loop)
            every = _period_of(loop) if STEPPING.search(ast.unparse(loop)) else None
            if every is not None:
                self.accumulates = self.value(every, scope), scope.place(loop)

    def _run_if(self, node: ast.If, scope: Scope, above: tuple[list[ast.stmt], ...] = ()) -> Ended | None:
        """Take a branch; `above`: those of the conditions before, which do not hold, that this one is the `elif` of."""
        for one in ast.walk(node.test):
            if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) and self._steps(node):
                self.accumulates = self.value(one.right, scope), scope.place(node)
        holds = self.holds(node.test, scope)
        if isinstance(holds, bool):
            chosen, other = (node.body, node.orelse) if holds else (node.orelse, node.body)
            if refuses(chosen) and not self._is_taken(
                chosen[-1], scope
            ):  # a job that runs does not come here, and what is said makes it take another branch
                others = [one for one in (*above, other) if not refuses(one)]
                why = Unknown(_asked_of(node.test), f"decides at line {node.lineno} of {scope.file}")
                return self.run(others[0], scope) if len(others) == 1 else self._either(others, why, scope)
            if not holds and len(chosen) == 1 and isinstance(chosen[0], ast.If):
                return self._run_if(chosen[0], scope, (*above, node.body))
            return self.run(chosen, scope)
        if _guards(node):
            return self.run(node.body, scope)
        for branch, other in ((node.body, node.orelse), (node.orelse, node.body)):
            taken = bool(branch) and self._is_taken(branch[-1], scope)
            if branch and not taken and (isinstance(branch[-1], ast.Raise) or refuses(branch)):
                return self.run(other, scope)
        return self._either([node.body, node.orelse], decides(holds, scope.place(node)), scope)

    def _either(self, branches: Sequence[Sequence[ast.stmt]], why: Unknown, scope: Scope) -> Ended | None:
        """Go through branches of which one is taken, nobody knows which."""
        with self.doubting(why):
            ends = [self.run(branch, scope) for branch in branches]
        returned = [one.value for one in ends if one is not None and one.how == "return"]
        if any(one is not None and one.how in {"break", "continue", PERHAPS} for one in ends):
            same = len({one and one.how for one in ends}) == 1 and ends[0] is not None
            return ends[0] if same else None if self.rounds else Ended(PERHAPS, why)  # a round shows what others do
        scope.unsure = scope.unsure or 0 < len(returned) < len(ends)
        if not returned:
            return None
        if len(returned) == len(ends) and all(operate(ast.Is(), returned[0], one) is True for one in returned[1:]):
            return Ended("return", returned[0])
        if len(returned) == len(ends):
            return Ended("return", why)
        scope.names.setdefault(MAYBE, []).append((returned[0], why))
        return None

    def _once(self, body: list[ast.stmt], why: Unknown, scope: Scope) -> Ended | None:
        """Go through the body of a loop once of which nobody knows how often it is gone through.

        Inside what it sets is certain, but for numbers and texts that each round makes of those of the last; what it
        changes of what was there before is unknown afterwards.
        """
        before = dict(scope.names)
        counted = (name for name in _counted(body) if name in before and is_plain(before[name]))
        scope.names |= dict.fromkeys(counted, why)
        ended = self._for_all(body, why, scope)
        with self.doubting(why):
            scope.names |= {name: self.doubted(one, scope.names.get(name, why)) for name, one in before.items()}
        if ended is not None and ended.how == "return":
            scope.names.setdefault(MAYBE, []).append((ended.value, why))
        return None

    def _run_for(self, node: ast.For, scope: Scope) -> Ended | None:
        self._accumulate(node, scope)
        every = self.value(node.iter, scope)
        items = self.items(every)
        every = every if items is None else items
        if not isinstance(every, list):
            why = first_unknown(every) or Unknown("...")
            parts = isinstance(every, Record)  # what is set of each part of another package is set of all
            self.assign(node.target, every if parts else why, scope)
            why = decides(why, scope.place(node))
            return self._for_all(node.body, why, scope) if parts else self._once(node.body, why, scope)
        perhaps: Unknown | None = None  # what another round hangs on
        for one in every:
            with self.doubting(perhaps):
                self.assign(node.target, one, scope)
                ended = self.run(node.body, scope)
            if ended is not None and ended.how == PERHAPS:
                perhaps = perhaps or ended.value
            elif ended is not None and ended.how != "continue":
                return self._left(ended, perhaps, scope)
        with self.doubting(perhaps):
            return self.run(node.orelse, scope)

    def _left(self, ended: Ended, perhaps: Unknown | None, scope: Scope) -> Ended | None:
        """Return what a round that ends a loop ends besides it; `perhaps`: what that round hangs on."""
        if ended.how == "return" and perhaps is not None:
            scope.names.setdefault(MAYBE, []).append((ended.value, perhaps))
        return None if ended.how == "break" or perhaps is not None else ended

    def _for_all(self, body: list[ast.stmt], why: Unknown, scope: Scope) -> Ended | None:
        """Go through statements once for parts of which nobody knows how many there are."""
        before = [(one, len(one)) for one in scope.names.values() if isinstance(one, list)]
        self.rounds += 1
        ended = self.run(body, scope)
        self.rounds -= 1
        for one, length in before:
            if len(one) > length and not isinstance(one, Unique):
                one.insert(length, Rest(why.name, why.why))
        scope.unsure = True
        return None if ended is not None and ended.how in {"break", "continue", PERHAPS} else ended

    def _run_while(self, node: ast.While, scope: Scope) -> Ended | None:
        self._accumulate(node, scope)
        perhaps: Unknown | None = None
        while (holds := self.holds(node.test, scope)) is True:
            with self.doubting(perhaps):
                ended = self.run(node.body, scope)
            if ended is not None and ended.how == PERHAPS:
                perhaps = perhaps or ended.value
            elif ended is not None and ended.how != "continue":
                return self._left(ended, perhaps, scope)
            if isinstance(node.test, ast.Constant) and self._hangs_on_data(node, scope):  # once shows what it does
                why = decides(perhaps or Unknown("..."), scope.place(node))
                for name in (one for one in _counted(node.body) if one in scope.names):
                    scope.names[name] = literal(self.given.get(name, replace(why, name=name)))
                scope.unsure = True
                return None
        if isinstance(holds, Unknown):
            return self._once(node.body, decides(holds, scope.place(node)), scope)
        with self.doubting(perhaps):
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
                return self._either([*bodies, []], decides(holds, scope.place(node)), scope)
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
            case ast.MatchSequence():
                return self._row_fits(pattern.patterns, subject, scope)
        return self._parts_fit(pattern, subject, scope)

    def _parts_fit(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | Unknown:
        match pattern:
            case ast.MatchClass():
                holds = is_a(subject, self.value(pattern.cls, scope))
                if holds is not True or not (pattern.patterns or pattern.kwd_patterns):
                    return holds
                names = list(subject.kind.fields) if isinstance(subject, Record) and subject.kind else [""]
                names = [*names[: len(pattern.patterns)], *pattern.kwd_attrs]
                parts = [self.attribute(subject, name, scope.place(pattern.cls)) if name else subject for name in names]
                return self._all_fit([*pattern.patterns, *pattern.kwd_patterns], parts, scope)
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


def _classes(kinds: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the classes of errors that a handler takes."""
    every = [inner for one in kinds for inner in (one if isinstance(one, list) else [one])]
    return tuple(getattr(one, "name", "...").rpartition(".")[2] for one in every)


def _targets(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement sets."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    for node in ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _period_of(loop: ast.For | ast.While) -> ast.expr | None:
    """Return what says how many backward passes of a loop are one step of an optimizer; None where nothing does."""
    every = list(ast.walk(loop))
    of = {target.id: one.value for one in every if isinstance(one, ast.Assign) and _divides(one.value)
          for target in one.targets if isinstance(target, ast.Name)}  # fmt: skip
    counted = {ast.unparse(one.target) for one in every if isinstance(one, ast.AugAssign)}
    back = next((one.lineno for one in every if isinstance(one, ast.Attribute) and one.attr == "backward"), 0)
    for one in every:
        skips = isinstance(one, ast.If) and isinstance(one.body[-1], ast.Continue) and one.lineno > back
        if isinstance(one, ast.If) and (skips or _steps_alone(one)):
            named = (of[part.id] for part in ast.walk(one.test) if isinstance(part, ast.Name) and part.id in of)
            if divided := _divides(one.test) or next(map(_divides, named), None):
                return divided
            if _steps_alone(one) and isinstance(one.test, ast.Compare) and ast.unparse(one.test.left) in counted:
                return one.test.comparators[0]
        if isinstance(one, ast.For) and one is not loop and isinstance(one.iter, ast.Call) and len(one.iter.args) == 1:
            inner = ast.unparse(one)  # `for _ in range(4):` of backward passes, and a step after it
            if ast.unparse(one.iter.func) == "range" and ".backward(" in inner and not STEPPING.search(inner):
                return one.iter.args[0]
    return None


def _steps_alone(node: ast.If) -> bool:
    """Whether an optimizer steps under a condition, and no backward pass is there."""
    text = ast.unparse(node)
    return STEPPING.search(text) is not None and ".backward(" not in text


def _divides(node: ast.expr) -> ast.expr | None:
    """Return what something is divided by whose rest is asked for: `(step + 1) % 4`."""
    return next(
        (one.right for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)), None
    )


def _guards(node: ast.If) -> bool:
    """Whether a condition only asks if something is there before its parts are set: `if a.b is not None: a.b.c = 1`."""
    test = node.test
    asks = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot)
    if not asks or not isinstance(test, ast.Compare) or ast.unparse(test.comparators[0]) != "None" or node.orelse:
        return False
    start = f"{ast.unparse(test.left)}."
    sets = [one.targets for one in node.body if isinstance(one, ast.Assign)]
    return len(sets) == len(node.body) and all(ast.unparse(one).startswith(start) for each in sets for one in each)


def refuses(branch: Sequence[ast.stmt]) -> bool:
    """Whether a branch does nothing but say why the program ends, and end it."""
    *before, last = branch or [ast.Pass()]
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and REFUSING.match(ast.unparse(last)) is not None and ast.unparse(last)[-2:] != "))"
    )
    return ends and all(map(speaks, before))


def speaks(statement: ast.stmt) -> bool:
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
