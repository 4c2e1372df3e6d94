"""The state of a shell script at one point of it, the values of its variables, and what is kept while it is followed.

A variable without a value stands in texts as `${NAME}`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import Any

from gpuscale.errors import InputError
from gpuscale.launch.shell_syntax import Statement
from gpuscale.launch.traced import NOWHERE, OpenFiles, Traced, joined, untraced

MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 40

Value = Traced | tuple[Traced, ...] | dict[str, Traced]

EMPTY = untraced("")
BLANKS = " \t\n"
MARK = re.compile(r"\$\{([\w@#]+)\}|\$\([^\s)]*\)?")
REST = re.compile(r"\$\{@(\d{1,9})\}")
"""What stands for the arguments of the script from this one on, which nobody gave."""
_EXTENDED = re.compile(r"([?*+@!])\(([^()]*)\)")
_REPEATED = re.compile(r"[\w.:/-]+|\[[^\]]+\]|\[\[:\w+:\]\]")
_FLAG = re.compile(r"(?<!\S)--?[A-Za-z]")


def split(text: Traced, separators: str = BLANKS, most: int = MAX_CHARACTERS) -> list[Traced]:
    """Split into fields as IFS has them: blanks together end a field, another separator ends one each.

    Args:
        most: after so many fields what is left stays as it is.
    """
    blank, other = (re.escape("".join(it for it in separators if it.isspace() is one)) for one in (True, False))
    ends = rf"[{blank}]*[{other}][{blank}]*|[{blank}]+" if blank and other else f"[{other}]" if other else f"[{blank}]+"
    found, at = list[Traced](), 0
    for end in re.finditer(ends, text.text) if separators else ():
        if len(found) == most:
            break
        found += [text.cut(at, end.start())] if end.start() > at or (end.start() == at and not end[0].isspace()) else []
        at = end.end()
    return [*found, text.cut(at)] if at < len(text.text) else found


def known(text: str) -> bool:
    """Whether a text holds no variable without a value."""
    return "$" not in text or MARK.search(text) is None


def mark(name: str) -> Traced:
    """Return what stands for a variable without a value."""
    return untraced(f"${{{name}}}")


def fields_at(fields: Sequence[Traced]) -> int:
    """Return where fields stand: the first character that is of a file."""
    return next((at for field in fields for at in field.at if at >= 0), NOWHERE)


def open_text(text: str) -> str:
    """Return the text of an expansion whose value is not known, in one word; it names a variable if it holds one."""
    name = re.search(r"\$\{(\w+)\}", text)
    plain = re.sub(r"[\s()]+", "_", text)[:60]
    return name[0] if name else f"$({plain})"


def glob_pattern(text: str) -> str:
    """Return a pattern of file names as a regular expression, also `@(a|b)` and its like; empty if not followed."""
    found, at, repeated = "", 0, 0
    for one in _EXTENDED.finditer(text):
        parts, how = one[2].split("|"), one[1]
        either = "|".join(map(_globbed, parts))
        repeated += how in "+*"
        begins = {part[:1] for part in parts}
        unlike = all(_REPEATED.fullmatch(part) for part in parts) and len(begins) == len(parts) and (
            "[" not in begins or len(parts) == 1)  # fmt: skip
        if (how in "+*" and not unlike) or repeated > 1 or (how == "!" and text != one[0]):
            return ""
        found += _globbed(text[at : one.start()])
        found += rf"(?!(?:{either})\Z).*" if how == "!" else f"(?:{either}){how.strip('@')}"
        at = one.end()
    return f"(?s:{found}{_globbed(text[at:])})"


def _globbed(text: str) -> str:
    return translate(text.replace("[^", "[!"))[4:-3]  # of `(?s:...)\\Z`


def listed(value: Value | None) -> list[Traced]:
    """Return the texts of a value."""
    if isinstance(value, Traced):
        return [value]
    return list(value.values() if isinstance(value, dict) else value or ())


def same(one: Value | None, two: Value | None) -> bool:
    """Whether two values hold the same texts."""
    return type(one) is type(two) and [it.text for it in listed(one)] == [it.text for it in listed(two)]


def said(value: Value | None) -> str:
    """Return a value as messages have it."""
    return "not set" if value is None else " ".join(it.text for it in listed(value))[:40] or "empty"


def option_words(value: Value | None) -> list[Traced] | None:
    """Return the words of a list of options; None of what is none."""
    if value is None:
        return []
    if isinstance(value, Traced):
        return split(value) if _FLAG.search(value.text) or not value.text.strip() else None
    return list(value) if isinstance(value, tuple) else None


def mixed(first: Value | None, second: Value | None, unknown: Traced) -> Value | None:
    """Return two lists of options as one, None where one is none: what both hold stays, else values are not known."""
    one, two = option_words(first), option_words(second)
    if one is None or two is None:
        return None
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
    return tuple(found) if tuple in {type(first), type(second)} else joined(found, " ")


def _grouped(words: list[Traced]) -> dict[str, list[Traced]]:
    groups: dict[str, list[Traced]] = {}
    name = ""
    for word in words:
        name = word.text.partition("=")[0] if _FLAG.match(word.text) else name or word.text
        groups.setdefault(name, []).append(word)
    return groups


def unset_in(value: Any) -> list[str]:
    """Return the names of variables without a value in a text or in texts; an empty name for a command's output."""
    texts = value if isinstance(value, list | tuple) else [value]
    return [found[1] or "" for text in texts if isinstance(text, str) for found in MARK.finditer(text)]


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
        kinds: variables that hold numbers, lower or upper case alone -> how they are declared: `i`, `l` or `u`.
        options: those of the shell that are on: `nocasematch`, `pipefail`.
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
        self.kinds: dict[str, str] = {}
        self.options: set[str] = set()
        self.names: dict[str, str] = {}

    def copy(self) -> State:
        """Return a state that may go another way."""
        made = State()
        vars(made).update({name: it.copy() if isinstance(it, dict | set) else it for name, it in vars(self).items()})
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
        vars(self).update(vars(other))


def restore(names: Mapping[str, Value | None], state: State) -> None:
    """Set variables as they were before."""
    for name, value in names.items():
        state.variables.pop(name, None)
        state.variables |= {} if value is None else {name: value}


def differing(one: State, two: State) -> list[str]:
    """Return the variables that differ."""
    names = {**one.variables, **two.variables}
    return [name for name in names if not same(one.variables.get(name), two.variables.get(name))]


class Following(ABC):
    """What is kept while scripts are followed; the layers of `Shell` stand on it.

    Attributes:
        given: variables that the user gives; they hold whatever a script assigns.
        defaults: variable -> its default that was taken, and where.
        missing: files that scripts read first and that are not here, with the place.
        ends: where `exit` was reached.
        cut: comments that end a command before lines that look like more of it.
        followed: scripts, in the order in which they were first met.
        asked: variables that conditions asked for and nobody sets.
        passing: where the script ends without what nobody gives, if that is taken for given.
        calls: where the functions that are followed now were called.
        choices: variable without a value -> the texts that conditions compare it with.
        origins: file that a command makes -> the file, not here, that it is made of.
        computed: variables that expressions of unknown value are assigned to: what they are compared with is no value
            of what the expressions hang on.
        unfollowed: where files are changed in ways that are not followed.
        launched: what commands launch, kept by who takes them; a loop drops what a turn that does not count launched.
        passed: other commands, kept in the same way.
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
        self.passed: list[Any] = []
        self.origins: dict[str, str] = {}
        self.path = Path()
        self.steps = self.characters = self.depth = 0
        self._unset: set[str] = set()
        self._defaulting = False
        self.asked: set[str] = set()
        self.passing: list[int] = []
        self._aside: list[State] = []
        self._capture: list[Traced | None] | None = None
        self._printing, self._substituted = False, "0"

    def grow(self, characters: int) -> None:
        """Count what expansions make, up to a limit."""
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise InputError("script too long to follow", place=str(self.path))

    def search(self, text: str, pattern: str) -> None:
        """Count what looking for a pattern in each line of a text costs."""
        lines = text.split("\n")
        longest = max(map(len, lines)) ** min(len(re.findall(r"[+*{]", pattern)), 3)
        self.grow(len(text) + 20 * len(lines) + len(text) * longest // 1000)

    def line(self, at: int) -> tuple[str, int]:
        """Return file and line of a character; of one that no file holds the script and 0."""
        found = self.files.place(at)
        return (found[0].name, found[1]) if found else (str(self.path), 0)

    def place(self, at: int) -> str:
        """Return file and line of a character as messages have them."""
        file, line = self.line(at)
        return f"{file}:{line}" if line else file

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

    @abstractmethod
    def run(self, statements: Sequence[Statement], state: State) -> None:
        """Follow statements, up to an `exit`."""

    @abstractmethod
    def step(self, one: Statement, state: State) -> None:
        """Follow one statement."""

    @abstractmethod
    def output(self, text: Traced, state: State) -> Traced:
        """Return what a command in `$(...)` prints, in one line; what is not known as an open `$(...)`."""
