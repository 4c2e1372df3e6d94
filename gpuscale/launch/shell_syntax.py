"""The syntax of shell scripts: statements, with their words as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpuscale.launch.traced import NOWHERE, Traced, joined, untraced

MAX_DEPTH = 30
DECLARING = ("declare", "typeset", "export", "local", "readonly")


class SyntaxProblem(Exception):  # noqa: N818 - its reader makes an error of it
    """What stands in the text is no shell script that is understood; with the offset."""


class Assignment(NamedTuple):
    """`name=value`, `name+=value`, `name[key]=value` or `name=(values)`."""

    name: str
    key: Traced | None
    append: bool
    value: Traced | tuple[Traced, ...]
    at: int


class Heredoc:
    """The lines after a command that it reads; `quoted` where they stay as they stand."""

    def __init__(self, end: str, *, strip: bool, quoted: bool, body: Traced) -> None:
        self.end, self.strip, self.quoted, self.body = end, strip, quoted, body


class Redirect(NamedTuple):
    """A redirection, `<(` of what a command prints; `errors` where it is of the standard error alone."""

    operator: str
    target: Traced | Heredoc
    errors: bool = False


class Simple(NamedTuple):
    """Assignments before a command, its words, and redirections; `at` is its first offset."""

    assignments: tuple[Assignment, ...]
    words: tuple[Traced | Assignment, ...]
    redirects: tuple[Redirect, ...]
    at: int

    @property
    def name(self) -> str:
        """The command itself, as it stands."""
        first = self.words[0] if self.words else None
        return first.text if isinstance(first, Traced) else ""


class Test(NamedTuple):
    """`[[ ... ]]` or `(( ... ))`: what stands inside."""

    arithmetic: bool
    text: Traced
    at: int


class Branches(NamedTuple):
    """`if`: conditions with what follows them; of the last, `else`, without one."""

    arms: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    at: int


class CaseStatement(NamedTuple):
    """`case word in pattern) ...`: patterns, what follows, and what ends it (`;;`, `;&` or `;;&`)."""

    word: Traced
    arms: tuple[tuple[tuple[Traced, ...], tuple[Statement, ...], str], ...]
    at: int


class Loop(NamedTuple):
    """`for name in words` (None: the arguments), `while` and `until` with a condition, or a C loop: its three words."""

    kind: str
    name: str
    words: tuple[Traced, ...] | None
    condition: tuple[Statement, ...]
    body: tuple[Statement, ...]
    at: int


class Function(NamedTuple):
    """A function's definition."""

    name: str
    body: tuple[Statement, ...]
    at: int


class Group(NamedTuple):
    """`{ ... }` or, as a subshell, `( ... )` and `... &`; also a loop and its like with redirections."""

    body: tuple[Statement, ...]
    subshell: bool
    redirects: tuple[Redirect, ...]
    at: int


class Pipe(NamedTuple):
    """`a | b`, perhaps with `!` before."""

    parts: tuple[Statement, ...]
    negated: bool
    at: int


class Chain(NamedTuple):
    """`a && b || c`: the first, then operators with what follows."""

    first: Statement
    rest: tuple[tuple[str, Statement], ...]
    at: int


Statement = Simple | Test | Branches | CaseStatement | Loop | Function | Group | Pipe | Chain

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]*\])?(\+?)=", re.ASCII)
_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\)", re.ASCII)
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)*")
_MORE = re.compile(r"(?:(?:#.*)?\n[ \t]*)+(?:--?[A-Za-z]|[+~]{0,2}\w+\.[\w.]+=)")
"""Comments or ends of lines, and then what only continues a command: an option, or a dotted name with its value."""
_OPERATOR = re.compile(r"&>>|&>|<<<|<<-|<<|>>|>&|<&|<>|>\||[<>]")
_ENDS_ARM = (";;", ";&")
_CLOSING = ("then", "elif", "else", "fi", "do", "done", "esac", "}")


class Parser:
    """Reads statements from a text."""

    def __init__(self, text: Traced) -> None:
        self.traced, self.text, self.at, self.depth = text, text.text, 0, 0
        self.heredocs: list[Heredoc] = []
        self.cut: list[int] = []  #: comments that end a continued command before lines that look like more of it.

    def origin(self, at: int) -> int:
        """Return where in its file a character of the text stands."""
        return self.traced.at[at] if at < len(self.traced.at) else NOWHERE

    def here(self, *texts: str) -> bool:
        """Whether one of these texts stands here."""
        return self.text.startswith(texts, self.at)

    def unexpected(self, size: int) -> SyntaxProblem:
        """Return that what stands here is no part of a script."""
        return SyntaxProblem(f"{self.text[self.at : self.at + size]!r} is not expected here", self.at)

    def script(self) -> tuple[Statement, ...]:
        """Return all statements."""
        found = self.statements(())
        if self.at < len(self.text):
            raise self.unexpected(10)
        return found

    def statements(self, until: Sequence[str]) -> tuple[Statement, ...]:
        """Return the statements up to one of these words, which is not read."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SyntaxProblem(f"nested deeper than {MAX_DEPTH} levels", self.at)
        found: list[Statement] = []
        while True:
            self.lines()
            if self.at >= len(self.text) or self.here(")", *_ENDS_ARM):
                break
            word = self.keyword()
            if word in until or word in _CLOSING:
                break
            start, one = self.at, self.chain()
            self.blank()
            background = self.here("&")
            found.append(Group((one,), True, (), self.origin(start)) if background else one)
            self.at += background
        self.depth -= 1
        return tuple(found)

    # --- blanks and words

    def blank(self) -> None:
        """Pass blanks, continued lines and comments."""
        found = _BLANK.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        escaped = self.text[max(0, found.start() - 2) : found.start()] in {"\\ ", "\\\t"}  # no backslash ends the line
        stops = escaped or (self.here("#") and "\n" in found[0])
        if stops and _MORE.match(self.text, self.at):
            self.cut.append(self.origin(self.at))
        if self.here("#"):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def lines(self) -> None:
        """Pass blanks and ends of lines; after a line stand the bodies of its heredocs."""
        while True:
            self.blank()
            if self.here("\n"):
                self.newline()
            elif self.here(";") and not self.here(*_ENDS_ARM):
                self.at += 1
            else:
                return

    def newline(self) -> None:
        """Pass the end of a line and the bodies of its heredocs."""
        self.at += 1
        for one in self.heredocs:
            start, body = self.at, -1
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop].rstrip("\r")
                if (line.lstrip("\t") if one.strip else line).rstrip() == one.end:
                    body, self.at = self.at, min(stop + 1, len(self.text))
                    break
                self.at = stop + 1
            self.at = min(self.at, len(self.text))
            one.body = self.traced.cut(start, body if body >= 0 else self.at)
            if one.strip:
                tabs = {at for found in re.finditer(r"(?m)^\t+", one.body.text) for at in range(*found.span())}
                one.body = one.body.pick([at for at in range(len(one.body.text)) if at not in tabs])
        self.heredocs.clear()

    def keyword(self) -> str:
        """Return the plain word that stands here, without reading it."""
        if self.here("((", "[["):
            return self.text[self.at : self.at + 2]
        found = re.compile(r"(?:[A-Za-z_]\w*|[{}!])(?=[\s;&|()<>]|$)").match(self.text, self.at)
        return found[0] if found else ""

    def expect(self, word: str) -> None:
        """Pass a word that has to stand here."""
        self.lines()
        if not self.here(word):
            raise SyntaxProblem(f"`{word}` is missing", self.at)
        self.at += len(word)

    def word(self) -> Traced:
        """Return the word that stands here, as it stands."""
        start = self.at
        while self.at < len(self.text):
            if self.here(*" \t\n;&|()<>", "\r\n"):
                break
            self.at = passed(self.text, self.at + self.here("?(", "*(", "+(", "@(", "!("))
        if self.at == start:
            raise self.unexpected(10)
        return self.traced.cut(start, self.at)

    # --- statements

    def chain(self) -> Statement:
        """Return pipelines joined by `&&` and `||`."""
        start, first = self.at, self.pipe()
        rest: list[tuple[str, Statement]] = []
        while True:
            self.blank()
            operator = self.text[self.at : self.at + 2]
            if operator not in {"&&", "||"}:
                return Chain(first, tuple(rest), self.origin(start)) if rest else first
            self.at += 2
            self.lines()
            rest.append((operator, self.pipe()))

    def pipe(self) -> Statement:
        """Return commands joined by `|`."""
        start, negated = self.at, False
        while self.keyword() in {"!", "time"}:
            negated ^= self.keyword() == "!"
            self.at += len(self.keyword())
            self.blank()
        parts = [self.command()]
        while True:
            self.blank()
            if not self.here("|") or self.here("||"):
                break
            self.at += 1 + self.here("|&")
            self.lines()
            parts.append(self.command())
        return Pipe(tuple(parts), negated, self.origin(start)) if negated or len(parts) > 1 else parts[0]

    def command(self) -> Statement:
        """Return one command."""
        start, word = self.at, self.keyword()
        compound: dict[str, Callable[[], Statement]] = {
            "if": self.branches, "case": self.case, "for": self.loop, "select": self.loop, "while": self.loop,
            "until": self.loop, "function": self.function, "[[": self.test, "((": self.test,
        }  # fmt: skip
        if word == "((" and not self._closes_arithmetic():
            word = ""
        if word in compound:
            made: Statement = compound[word]()
            redirects = self.redirects()
            return Group((made,), False, redirects, self.origin(start)) if redirects else made
        if word == "{" or self.here("("):
            self.at += 1
            body = self.statements(("}",))
            self.expect("}" if word == "{" else ")")
            return Group(body, word != "{", self.redirects(), self.origin(start))
        defined = _FUNCTION.match(self.text, self.at)
        if defined:
            self.at = defined.end()
            return self.defined(defined[1], start)
        return self.simple()

    def _closes_arithmetic(self) -> bool:
        end = passed(self.text, self.at)
        return self.text[end - 2 : end] == "))"

    def simple(self) -> Simple:
        """Return assignments, words and redirections."""
        start = self.at
        assigned: list[Assignment] = []
        words: list[Traced | Assignment] = []
        redirects: list[Redirect] = []
        while True:
            self.blank()
            if self.at >= len(self.text) or self.here(*"\n;|)") or (self.here("&") and not self.here("&>")):
                break
            if re.compile(r"\d+[<>]").match(self.text, self.at) or _OPERATOR.match(self.text, self.at):
                redirects += self.redirects()
                continue
            declaring = bool(words) and isinstance(words[0], Traced) and words[0].text in DECLARING
            found = _ASSIGNED.match(self.text, self.at) if not words or declaring else None
            if found:
                (words or assigned).append(self.assignment(found))
            elif self.here("("):
                raise SyntaxProblem("`(` is not expected here", self.at)
            else:
                words.append(self.word())
        if self.at == start:
            raise self.unexpected(10)
        return Simple(tuple(assigned), tuple(words), tuple(redirects), self.origin(start))

    def assignment(self, found: re.Match[str]) -> Assignment:
        """Return an assignment whose name was matched."""
        start, self.at = self.at, found.end()
        key = self.traced.cut(found.start(2) + 1, found.end(2) - 1) if found[2] else None
        value: Traced | tuple[Traced, ...]
        if self.here("("):
            self.at += 1
            values: list[Traced] = []
            cut = len(self.cut)
            while True:
                self.lines()
                if self.at >= len(self.text):
                    raise SyntaxProblem("a list without its `)`", start)
                if self.here(")"):
                    self.at += 1
                    break
                if self.here(*"&|;<>("):  # a placeholder such as <PATH>
                    self.at += 1
                    continue
                values.append(self.word())
            value = tuple(values)
            del self.cut[cut:]  # a list goes on over ends of lines
        elif self.at >= len(self.text) or self.here(*" \t\r\n;&|)<>"):
            value = self.traced.cut(self.at, self.at)
        else:
            value = self.word()
        return Assignment(found[1], key, bool(found[3]), value, self.origin(start))

    def redirects(self) -> tuple[Redirect, ...]:
        """Return the redirections that stand here."""
        found: list[Redirect] = []
        while True:
            self.blank()
            descriptor = re.compile(r"\d+(?=[<>])").match(self.text, self.at)
            operator = _OPERATOR.match(self.text, descriptor.end() if descriptor else self.at)
            if operator is None:
                return tuple(found)
            self.at = operator.end()
            self.blank()
            if self.at >= len(self.text) or self.here(*"\n;|"):
                continue
            if self.here(*"()&<>"):  # process substitution, a placeholder
                inside = self.here(">(", "<(")
                start, self.at = self.at, passed(self.text, self.at + inside)
                if operator[0] == "<" and inside:
                    found.append(Redirect("<(", self.traced.cut(start + 2, self.at - 1)))
                continue
            target = self.word()
            if operator[0] in {"<<", "<<-"}:
                plain = re.sub(r"[\"'\\]", "", target.text)
                quoted, empty = plain != target.text, self.traced.cut(0, 0)
                self.heredocs.append(Heredoc(plain, strip=operator[0] == "<<-", quoted=quoted, body=empty))
                found.append(Redirect(operator[0], self.heredocs[-1]))
            else:
                found.append(Redirect(operator[0], target, descriptor is not None and descriptor[0] == "2"))

    def branches(self) -> Branches:
        """Return an `if`."""
        start = self.at
        arms: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        self.at += 2
        while True:
            condition = self.statements(("then",))
            self.expect("then")
            arms.append((condition, self.statements(("elif", "else", "fi"))))
            word = self.keyword()
            if word == "else":
                self.at += 4
                arms.append(((), self.statements(("fi",))))
                word = self.keyword()
            if word != "elif":
                self.expect("fi")
                return Branches(tuple(arms), self.origin(start))
            self.at += 4

    def case(self) -> CaseStatement:
        """Return a `case`."""
        start = self.at
        self.at += 4
        self.blank()
        word = self.word()
        self.expect("in")
        arms: list[tuple[tuple[Traced, ...], tuple[Statement, ...], str]] = []
        while True:
            self.lines()
            if self.keyword() == "esac" or self.at >= len(self.text):
                self.expect("esac")
                return CaseStatement(word, tuple(arms), self.origin(start))
            patterns: list[Traced] = []
            while True:
                self.blank()
                if self.here("(", "|"):
                    self.at += 1
                    continue
                if self.here(")"):
                    self.at += 1
                    break
                patterns.append(self.word())
            body = self.statements(("esac",))
            self.lines()
            ended = re.compile(r";;&|;&|;;").match(self.text, self.at)
            self.at = ended.end() if ended else self.at
            arms.append((tuple(patterns), body, ended[0] if ended else ";;"))

    def loop(self) -> Loop:
        """Return a loop."""
        start, kind = self.at, self.keyword()
        self.at += len(kind)
        self.blank()
        name = ""
        words: tuple[Traced, ...] | None = None
        condition: tuple[Statement, ...] = ()
        if kind in {"for", "select"} and self.here("(("):
            kind, inside, self.at = "c", self.at + 2, passed(self.text, self.at)
            ends = [inside - 1, *(at for at in range(inside, self.at) if self.text[at] == ";")]
            words = tuple(self.traced.cut(one + 1, two) for one, two in pairwise([*ends, self.at - 2]))
            if len(words) != 3:
                raise SyntaxProblem("a loop that counts has three parts", start)
        elif kind in {"for", "select"}:
            name = self.word().text
            self.lines()
            if self.keyword() == "in":
                self.at += 2
                listed: list[Traced] = []
                self.blank()
                while self.at < len(self.text) and not self.here(*"\n;"):
                    listed.append(self.word())
                    self.blank()
                words = tuple(listed)
        else:
            condition = self.statements(("do",))
        self.lines()
        self.expect("do")
        body = self.statements(("done",))
        self.expect("done")
        return Loop(kind, name, words, condition, body, self.origin(start))

    def function(self) -> Function:
        """Return a function that is defined with the word `function`."""
        start = self.at
        self.at += len("function")
        self.blank()
        name = self.word().text
        self.blank()
        if self.here("("):
            self.at = self.text.find(")", self.at) + 1 or len(self.text)
        return self.defined(name, start)

    def defined(self, name: str, start: int) -> Function:
        """Return a function whose body follows."""
        self.lines()
        body = self.command()
        whole = isinstance(body, Group) and not body.subshell and not body.redirects
        return Function(name, body.body if whole and isinstance(body, Group) else (body,), self.origin(start))

    def test(self) -> Test:
        """Return `[[ ... ]]` or `(( ... ))`."""
        start, opening = self.at, self.text[self.at : self.at + 2]
        if opening == "((":
            self.at = passed(self.text, self.at)
            return Test(True, self.traced.cut(start + 2, self.at - 2), self.origin(start))
        self.at += 2
        while self.at < len(self.text):
            if re.compile(r"\s\]\](?=[\s;&|)]|$)").match(self.text, self.at):
                inside = self.traced.cut(start + 2, self.at)
                self.at += 3
                return Test(False, inside, self.origin(start))
            self.at = passed(self.text, self.at)
        raise SyntaxProblem("`[[` without `]]`", start)


_OPENED = {"$(": ")", "${": "}", "$'": "$'"}


def passed(text: str, at: int) -> int:
    """Return the offset after what stands at one: a quotation, an expansion, brackets, or a character."""
    closing: list[str] = []
    while at < len(text):
        inside = closing[-1] if closing else ""
        letter, two = text[at], text[at : at + 2]
        if inside == "'":
            end = text.find("'", at)
            at = end if end >= 0 else len(text)
            letter = "'"
        elif letter == "\\":
            at += 1
        elif inside == "$'":
            letter = inside if letter == "'" else ""
        elif letter != inside:
            quoted = '"' in closing
            opened = _OPENED.get(two) if two != "$'" or not quoted else None
            plain = letter in '"`' or (letter == "'" and not quoted)
            own = letter if plain else ")" if letter == "(" and inside in {"", ")"} else ""
            closing += [opened or own] if opened or own else []
            at += bool(opened)
            letter = ""
        if letter and letter == inside:
            closing.pop()
        at += 1
        if not closing:
            break
    return min(at, len(text))


_SPAN = re.compile(r"(-?\d{1,9}|[a-zA-Z](?=\.\.[a-zA-Z]))\.\.(-?\d{1,9}|[a-zA-Z])(?:\.\.(-?\d{1,9}))?")


def braced(word: Traced, most: int) -> list[Traced]:
    """Return what `{a,b}` and `{1..4}` outside quotes make of a word, up to so many words."""
    text, at = word.text, 0
    while text.count("{") <= MAX_DEPTH and (at := _plain_brace(text, at)) < len(text):
        ends, end = [at], at + 1
        depth = 0
        while end < len(text) and (text[end] != "}" or depth):
            depth += (text[end] == "{") - (text[end] == "}")
            ends += [end] if text[end] == "," and not depth else []
            end = passed(text, end)
        if end >= len(text):
            break
        span = _SPAN.fullmatch(text, at + 1, end)
        tails = braced(word.cut(end + 1), most) if span or len(ends) > 1 else []
        parts = _counted(span, most) if span else []
        if not span:
            parts = [it for one, two in pairwise([*ends, end]) for it in braced(word.cut(one + 1, two), most)]
        if tails:
            few = len(parts) * len(tails) <= most
            return [joined([word.cut(0, at), part, tail]) for part in parts for tail in tails] if few else [word]
        at += 1
    return [word]


def _plain_brace(text: str, at: int) -> int:
    while at < len(text) and text[at] != "{":
        at = passed(text, at)
    return at


def _counted(span: re.Match[str], most: int) -> list[Traced]:
    letters = span[1].isalpha()
    if letters is not span[2].isalpha():
        return [untraced(f"{{{span[0]}}}")]
    first, last = (ord(one) if letters else int(one) for one in span.groups()[:2])
    step = abs(int(span[3] or 1)) or 1
    padded = any(re.match(r"-?0\d", one) for one in span.groups()[:2])
    width = max(len(span[1]), len(span[2])) if padded else 0
    found = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [untraced(chr(one) if letters else f"{one:0{width}d}") for one in found[: most + 1]]
