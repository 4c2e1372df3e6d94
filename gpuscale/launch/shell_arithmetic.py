"""Whole-number arithmetic as shells do it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

MAX_LENGTH = 500
MAX_NUMBER = 10**18
_TOKEN = re.compile(r"\s*(?:(\d{1,18}(?:\.0*)?)|([A-Za-z_]\w*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!?:()=|&^]))")

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


def whole_number(text: str, value: Callable[[str], str | None]) -> int | None:
    """Return what an expression counts; None where it is not known or no expression.

    Args:
        value: the text of a variable; None where it has none.
    """
    try:
        return _Expression(text, value).whole()
    except _UnknownError:
        return None


class _Expression:
    def __init__(self, text: str, value: Callable[[str], str | None], depth: int = 0) -> None:
        self.value, self.depth = value, depth
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
        self.at = self.nested = 0

    def whole(self) -> int:
        result = self.expression(0)
        if self._peek():
            raise _UnknownError
        return result

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def expression(self, least: int) -> int:
        left = self.single()
        while self._peek() in _OPERATORS and _OPERATORS[self._peek()][0] >= least:
            order, calculate = _OPERATORS[self._peek()]
            self.at += 1
            right = self.expression(order + 1)
            try:
                left = calculate(left, right)
            except ZeroDivisionError:
                raise _UnknownError from None
            if abs(left) > MAX_NUMBER:
                raise _UnknownError
        if self._peek() == "?" and least == 0:
            self.at += 1
            one = self.expression(0)
            if self._peek() != ":":
                raise _UnknownError
            self.at += 1
            two = self.expression(0)
            left = one if left else two
        return left

    def single(self) -> int:
        token = self._peek()
        self.at += 1
        self.nested += 1
        if self.nested > 100 or not token:
            raise _UnknownError
        if token == "(":
            inner = self.expression(0)
            if self._peek() != ")":
                raise _UnknownError
            self.at += 1
            return inner
        if token in "+-!":
            inner = self.single()
            return {"+": inner, "-": -inner, "!": int(not inner)}[token]
        if token.isdecimal():
            return int(token)
        text = self.value(token) if token[0].isalpha() or token[0] == "_" else None
        if text is None:
            raise _UnknownError
        return _Expression(text, self.value, self.depth + 1).whole()
