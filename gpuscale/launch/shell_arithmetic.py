"""Whole-number arithmetic as shells do it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

MAX_LENGTH = 500
MAX_NUMBER = 10**18
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]{1,15}|\d{1,2}#\w{1,18}|\d{1,18}(?:\.0*)?)|([A-Za-z_]\w*)"
    r"|(<<=|>>=|\+\+|--|\*\*|<<|>>|[-+*/%<>=!&|^]=|&&|\|\||[-+*/%<>!~?:()\[\]=|&^,]))"
)
_ASSIGNED = re.compile(
    r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)

_OPERATORS: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda one, two: int(bool(one or two))),
    "&&": (2, lambda one, two: int(bool(one and two))),
    "|": (3, operator.or_),
    "^": (3, operator.xor),
    "&": (4, operator.and_),
    "==": (5, lambda one, two: int(one == two)),
    "=": (5, lambda one, two: int(one == two)),
    "!=": (5, lambda one, two: int(one != two)),
    "<": (6, lambda one, two: int(one < two)),
    "<=": (6, lambda one, two: int(one <= two)),
    ">": (6, lambda one, two: int(one > two)),
    ">=": (6, lambda one, two: int(one >= two)),
    "+": (8, operator.add),
    "-": (8, operator.sub),
    "*": (9, operator.mul),
    "/": (9, lambda one, two: abs(one) // abs(two) * (1 if (one < 0) is (two < 0) else -1)),
    "%": (9, lambda one, two: abs(one) % abs(two) * (1 if one >= 0 else -1)),
    "**": (10, lambda one, two: one**two if 0 <= two <= 60 and abs(one) <= 1000 else MAX_NUMBER * 2),
    "<<": (7, lambda one, two: one << two if 0 <= two <= 60 else MAX_NUMBER * 2),
    ">>": (7, lambda one, two: one >> two if 0 <= two <= 60 else 0),
}


class _UnknownError(Exception):
    """The value is not known, or there is none."""


def whole_number(
    text: str, value: Callable[[str], str | None], assign: Callable[[str, int], object] | None = None
) -> int | None:
    """Return what an expression counts; None where it is not known or no expression.

    Args:
        value: the text of a variable, or of an element (`A[1]`); None where it has none.
        assign: takes what the expression assigns; without it `=` compares.
    """
    try:
        return _Expression(text, value, assign).whole()
    except _UnknownError:
        return None


def assigned_in(text: str) -> list[str]:
    """Return the variables that an expression assigns."""
    return [found[1] or found[2] for found in _ASSIGNED.finditer(text)]


class _Expression:
    def __init__(
        self,
        text: str,
        value: Callable[[str], str | None],
        assign: Callable[[str, int], object] | None = None,
        depth: int = 0,
    ) -> None:
        self.value, self.assign, self.depth = value, assign, depth
        self.tokens: list[str] = []
        at, text = 0, text.strip().rstrip(";")
        if len(text) > MAX_LENGTH or depth > 10:
            raise _UnknownError
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _UnknownError
            self.tokens.append((found[1] or "").partition(".")[0] or found[2] or found[3])
            at = found.end()
        self.at = self.nested = self.passed = 0

    def whole(self) -> int:
        result = self.several() if self.tokens else 0
        if self._peek():
            raise _UnknownError
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, token: str) -> None:
        if self._peek() != token:
            raise _UnknownError
        self.at += 1

    def several(self) -> int:
        result = self.expression(0)
        while self._peek() == ",":
            self.at += 1
            result = self.expression(0)
        return result

    def expression(self, least: int) -> int:
        left = self.single()
        while (operator := self._operator()) in _OPERATORS and _OPERATORS[operator][0] >= least:
            self.at += 1
            decided = (operator == "&&" and not left) or (operator == "||" and left)
            right = self.side(_OPERATORS[operator][0] + (operator != "**"), counts=not decided)
            left = self.calculated(left, operator, right)
        if self._peek() == "?" and least == 0:
            self.at += 1
            one = self.side(0, counts=bool(left))
            self._take(":")
            two = self.side(0, counts=not left)
            left = one if left else two
        return left

    def side(self, least: int, *, counts: bool) -> int:
        """Return what stands on a side; of one that does not count nothing is assigned or asked."""
        self.passed += not counts
        found = self.expression(least)
        self.passed -= not counts
        return found

    def calculated(self, left: int, operator: str, right: int) -> int:
        try:
            found = _OPERATORS[operator][1](left, right)
        except ZeroDivisionError:
            found = MAX_NUMBER * 2
        if abs(found) > MAX_NUMBER and not self.passed:
            raise _UnknownError
        return found if abs(found) <= MAX_NUMBER else 0

    def _operator(self) -> str:
        """Return what stands here; of `5--3`, where nothing can be counted down, the first sign."""
        token = self._peek()
        if token in {"++", "--"}:
            self.tokens[self.at : self.at + 1] = token
        return token[:1] if token in {"++", "--"} else token

    def single(self) -> int:
        token = self._peek()
        self.at += 1
        self.nested += 1
        if self.nested > 100 or not token:
            raise _UnknownError
        if token == "(":
            inner = self.several()
            self._take(")")
            return inner
        if token in {"++", "--"} and self._peek()[:1].isidentifier() and self.assign:
            name = self.name()
            return self.put(name, self.number(name) + (1 if token == "++" else -1))
        if token in {"++", "--", "+", "-", "!", "~"}:
            inner = self.single()
            return {"-": -inner, "!": int(not inner), "~": ~inner}.get(token, inner)
        if token[0].isdecimal():
            return _literal(token)
        if not token[0].isidentifier():
            raise _UnknownError
        self.at -= 1
        return self.variable(self.name())

    def name(self) -> str:
        """Return a variable, or an element of one."""
        name = self._peek()
        self.at += 1
        if self._peek() == "[":
            self.at += 1
            name = f"{name}[{self.several()}]"
            self._take("]")
        return name

    def variable(self, name: str) -> int:
        token = self._peek()
        if self.assign and token in {"++", "--"}:
            self.at += 1
            before = self.number(name)
            self.put(name, before + (1 if token == "++" else -1))
            return before
        if self.assign and token[-1:] == "=" and (token == "=" or token[:-1] in _OPERATORS) and token not in _COMPARING:
            self.at += 1
            right = self.expression(0)
            return self.put(name, right if token == "=" else self.calculated(self.number(name), token[:-1], right))
        return self.number(name)

    def put(self, name: str, number: int) -> int:
        if self.assign and not self.passed:
            self.assign(name, number)
        return number

    def number(self, name: str) -> int:
        text = None if self.passed else self.value(name)
        if text is None and not self.passed:
            raise _UnknownError
        return _Expression(text or "", self.value, None, self.depth + 1).whole()


_COMPARING = ("==", "!=", "<=", ">=")


def _literal(token: str) -> int:
    """Return a number, also one in another base: `0x10`, `010`, `2#101`."""
    base, _, digits = token.rpartition("#")
    try:
        if base:
            return int(digits, int(base))
        octal = token[0] == "0" and token.isdecimal()
        return int(token, 8) if octal else int(token, 0)
    except ValueError:
        raise _UnknownError from None
