"""The ways through a shell script: conditions, branches and loops, also where it is not known which way it goes."""

from __future__ import annotations

import operator as operators
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gpuscale.launch.shell_arithmetic import assigned_in
from gpuscale.launch.shell_outputs import Outputs, matched
from gpuscale.launch.shell_state import MARK, State, differing, fields_at, known, mark, mixed, option_words, said, same
from gpuscale.launch.shell_syntax import (
    Branches,
    CaseStatement,
    Chain,
    Group,
    Loop,
    Pipe,
    Simple,
    Statement,
    Test,
    passed,
)
from gpuscale.launch.traced import Traced, untraced

MAX_TURNS = 1000
MAX_LOOP_STEPS = 8000
"""Turns of a loop, and statements in them, that are followed."""
_ARGUMENTS = (['"$@"'], ["$@"], ["$*"], ['"${@}"'], ["${@}"])
_ALTERNATIVES = re.compile(r"\^?\(?([\w.:+-]+(?:\|[\w.:+-]+)+)\)?\$?")
_COMPARING = ["=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"]


class Flow(Outputs):
    """Follows branches and loops, and answers conditions."""

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
        return not condition and not {"exit", "return", *state.functions} & {
            it.name for it in body if isinstance(it, Simple)
        }

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
        if known(word.text) and not any(
            "(" in it.text and self.fits("", self.text(it, state).text, state) is None
            for patterns, _, _ in one.arms
            for it in patterns
        ):
            goes_on = False
            for patterns, body, ending in one.arms:
                fits = (self.fits(word.text, self.text(it, state).text, state) for it in patterns)
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
            still = not took and after.input is before.input and not differing(before, after)
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
        return self.counts(text, state) if text.text.strip() else True

    def counts(self, text: Traced, state: State) -> bool | None:
        """Return whether an expression counts to more or less than nothing."""
        count = self.arithmetic(text, state)
        return None if count is None else bool(count)

    def _for(self, one: Loop, state: State) -> None:
        """Follow a loop over values; where they are not known, or turns launch something, as in any turn."""
        every = one.words is None or [it.text for it in one.words] in _ARGUMENTS
        values = list(state.positional) if every else self.fields(one.words or (), state)
        sure = every or not any(MARK.fullmatch(it.text) or re.search(r"[*?]", it.text) for it in values)
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
            several = " ".join(value.text for value in values[:6])
            self.choices.pop(one.name, None)
            self.offer(mark(one.name).text, (value.text for value in values))
            self.computed.add(one.name)  # what it is compared with need not be among them
            state.unknown[one.name] = f"takes several values in a loop ({self.place(one.at)}: {several})"
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
            if differing(state, second):
                self._back(marked)
                self._lose(start, second, one.at, differing(state, second))
                state.adopt(start)
                self._turn(one, state)

    def _lose(self, state: State, after: State, at: int, names: Iterable[str] = ()) -> None:
        """Go on after turns of which it is not known how many there are: what they change is not known."""
        for name in names or differing(state, after):
            one, two = state.variables.get(name), after.variables.get(name)
            both = mixed(one, two, mark(name)) if option_words(one) or option_words(two) else None
            state.variables[name] = mark(name) if both is None else both
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
                if same(one, two):
                    continue
                both = mixed(one, two, mark(asked or "condition"))
                if both is not None:
                    state.variables[name] = both
                    continue
                values = [said(value) for value in (one, two) if not same(value, mark(asked))]
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
            found = MARK.search(value.text) if isinstance(value, Traced) else None
            if value is None or (found and found[1]):
                return found[1] if found else name
        return ""

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
            value = self.counts(one.text, state) if one.arithmetic else None
            state.status = ""
            return value if one.arithmetic else self.test(_test_words(one.text), state, double=True)
        if isinstance(one, Chain):
            return self._truth_of_chain(one, state, otherwise)
        if isinstance(one, Pipe) and one.negated and len(one.parts) == 1:
            value = self.truth(one.parts[0], state, otherwise=otherwise)
            return None if value is None else not value
        if isinstance(one, Group) and not one.redirects:
            inner = state.copy() if one.subshell else state
            self.run(one.body[:-1], inner)
            return self.truth(one.body[-1], inner, otherwise=otherwise) if one.body and not inner.ended else None
        if isinstance(one, Simple) and one.name in {"[", "test"}:
            state.status = ""
            words = [word for word in one.words[1:] if isinstance(word, Traced)]
            return self.test(words[:-1] if one.name == "[" else words, state)
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
                self.asked.add(name)
                return ""
            return found[0]

        own = re.fullmatch(r'"?\$\{?(\w+)(:?-)?\}?"?', word.text)
        if self.passing and own and not MARK.sub(emptied, text):
            self.lack(own[1], state)
            return None
        text = MARK.sub(emptied, text)
        return text if known(text) else None


class _Testing:
    """The expression in `[ ... ]` or `[[ ... ]]`."""

    def __init__(self, shell: Flow, words: list[Traced], state: State, *, double: bool) -> None:
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
        return None if value is None else value is not negated

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
            if not self.double or (quoted and "nocasematch" not in self.state.options):
                return (one == two) is (operator != "!=")
            same = one.lower() == two.lower() if quoted else self.shell.fits(one, two, self.state)
            return None if same is None else same is (operator != "!=")
        if operator in {"<", ">"}:
            plain = self.double and (one + two).isalnum()
            return ((one < two) if operator == "<" else (one > two)) if plain else None
        return self._counted(one.strip(), operator, two.strip())

    def _fits(self, text: str, pattern: str) -> bool | None:
        self.shell.search(text, pattern)
        found = matched(text, pattern, re.IGNORECASE * ("nocasematch" in self.state.options))
        if found:
            self.state.variables["BASH_REMATCH"] = tuple(untraced(it or "") for it in (found[0], *found.groups()))
        return None if found is None else bool(found)

    def _counted(self, one: str, operator: str, two: str) -> bool | None:
        if not self.double:  # decimal digits, whatever they begin with; without any an error
            if not one or not two:
                return False
            one, two = (re.sub(r"^(-?)0+(?=\d)", r"\1", it) for it in (one, two))
        low, high = self.shell.count(one, self.state), self.shell.count(two, self.state)
        return None if low is None or high is None else bool(getattr(operators, operator[1:])(low, high))


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
            end = passed(text.text, end + text.text.startswith(("?(", "*(", "+(", "@(", "!("), end))
        end = max(end, at + 1)
        found.append(text.cut(at, end))
        at = end
    return found
