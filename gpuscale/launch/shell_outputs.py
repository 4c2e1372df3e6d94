"""What commands of shell scripts print and write, and what they read: files that are here are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal

from gpuscale.errors import InputError
from gpuscale.launch.python_run import Program
from gpuscale.launch.shell_sed import edited
from gpuscale.launch.shell_state import EMPTY, MAX_DEPTH, State, fields_at, known, mark, open_text
from gpuscale.launch.shell_syntax import Heredoc, Parser, Redirect, Statement, SyntaxProblem
from gpuscale.launch.shell_words import MAX_FIELDS, Words, unescaped
from gpuscale.launch.traced import Traced, joined, untraced

_PLAIN_PATTERN = re.compile(r"(?:[\w\s^$|/:@,.()-]|\\\.|\[\^?[\w\s./:,-]+\][+*]?|\.[+*]){1,60}")
"""A regular expression that repeats single characters alone."""
_READING = ("<", "<<", "<<-", "<<<", "<(")
WRITING = (">", ">>", ">|", "&>", "&>>")
_CLASSES = {name: text for low, text in (("a-z", ascii_lowercase), ("A-Z", ascii_uppercase))
            for name in (low, f"[{low}]", f"[:{'lower' if low == 'a-z' else 'upper'}:]")}  # fmt: skip


class Outputs(Words):
    """Knows what is printed, written and read."""

    def _kept(self) -> list[list[Any]]:
        return [self.launched, self._aside, self.ends, self.missing, self.passed]

    def _marked(self) -> list[int]:
        return [len(kept) for kept in self._kept()]

    def _back(self, marked: list[int]) -> None:
        """Drop what was kept since then."""
        for kept, size in zip(self._kept(), marked, strict=True):
            del kept[size:]

    def redirected(self, redirects: Sequence[Redirect], state: State, follow: Callable[[], object]) -> None:
        """Follow what reads from files, or writes to them, by its redirections."""
        before, reads = state.input, any(it.operator in _READING for it in redirects)
        state.input = self._read_by(redirects, state) if reads else before
        if any(it.operator in WRITING or it.operator == ">&" for it in redirects if not it.errors):
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
            self.grow(len(read.text) if read is not None and read is not state.input else 0)
        return read

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
            return untraced(open_text(re.sub(r"[\s$]+", "_", text.text.strip())[:60]))
        return found.cut(0, len(found.text.rstrip("\n")))

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
        if (
            name in {"dirname", "basename"} and words and (name, words[0].text) != ("basename", ".")
        ):  # its name is unknown
            path = PurePosixPath(words[0].text)
            end = words[1].text if len(words) > 1 else ""
            return untraced(str(path.parent) if name == "dirname" else path.name.removesuffix(end))
        if name == "seq":
            return _sequence([it.text for it in rest])
        if name == "echo":
            flags = list(takewhile(lambda it: re.fullmatch(r"-[neE]+", it.text), rest))
            line = joined(rest[len(flags) :], " ")
            line = unescaped(line.text) if any("e" in it.text for it in flags) and "\\" in line.text else line
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
        if read is None:
            return None
        self.search(read.text, " ".join(it.text for it in words))
        found = _searched([it.text for it in words], read.text)
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
        self.search(text.text, " ".join(scripts))
        made = edited(text, scripts, quiet=any(re.match(r"-\w*n", it.text) for it in words), extended=any(
            re.match(r"-i?[nsz]*[Er]|--regexp-extended", it.text) for it in words))  # fmt: skip
        if made is None:
            self.unfollowed += [] if self._printing else [fields_at(words)]
            return text if names and not self._printing else None
        text = made
        if in_place and names:
            state.write(names[0], text)
        return text

    def where(self, state: State) -> Path:
        """Return what files that a script names are looked for beside: the script, or its name where it has gone."""
        return self.path if state.folder is None else state.folder / self.path.name


def _formatted(words: list[Traced]) -> Traced | None:
    """Return what `printf FORMAT WORDS` prints, for formats of texts and plain numbers."""
    if words and re.fullmatch(r"%0?\dd(\\n)?", words[0].text) and len(words) == 2 and words[1].text.isdecimal():
        return untraced(
            (words[0].text.removesuffix("\\n") + words[0].text[3:].partition("d")[2]) % int(words[1].text[:18])
        )
    if not words or re.search(r"%[^sd%]", words[0].text):
        return None
    parts = [unescaped(part) for part in re.split(r"%[sd]", words[0].text.replace("%%", "%"))]
    holes, rest = len(parts) - 1, words[1:]
    if holes and parts in ([untraced(""), untraced("")], [untraced(""), untraced("\n")]):
        return joined(rest, " ")
    found: list[Traced] = []
    for at in range(0, max(1, len(rest) if holes else 1), max(1, holes)):
        filled = [*rest[at : at + holes], *[EMPTY] * holes][:holes]
        found += [piece for pair in zip(parts, [*filled, EMPTY], strict=True) for piece in pair]
    return joined(found)


def _sequence(words: list[str]) -> Traced | None:
    """Return what `seq FIRST STEP LAST` prints, of whole numbers; `-s` says what stands between them."""
    between, width = "\n", 0
    while words and re.match(r"-[sw]", words[0]):
        width = MAX_FIELDS if words[0][1] == "w" else width
        between = words[0][2:] or (words[1:] or [""])[0] if words[0][1] == "s" else between
        words = words[2 if words[0] == "-s" else 1 :]
    if not 0 < len(words) < 4 or not all(re.fullmatch(r"-?\d{1,9}", it) for it in words):
        return None
    first, *more = (int(it) for it in words)
    low, step, high = {0: (1, 1, first), 1: (first, 1, *more), 2: (first, *more)}[len(more)]
    found = range(low, high + (1 if step > 0 else -1), step) if step else ()
    width = min(width, max(len(str(low)), len(str(high))))
    return (
        untraced(between.join(f"{one:0{width}d}" for one in found) + "\n" * bool(found))
        if len(found) <= MAX_FIELDS
        else None
    )


def _searched(words: list[str], text: str) -> bool | None:
    """Return whether `grep -q TEXT` finds it; None where it prints, or the pattern is not followed."""
    flags = "".join(it[1:] for it in words if re.fullmatch(r"-[a-zA-Z]+", it))
    plain = [it for it in words if not it.startswith("-")]
    if "q" not in flags or set(flags) - set("qiEFxs") or len(plain) != 1 or not known(text):
        return None
    text, wanted = (text.lower(), plain[0].lower()) if "i" in flags else (text, plain[0])
    lines = [wanted in line if re.fullmatch(r"[\w ,:/-]+", wanted) else matched(line[:500], wanted)
             for line in text.split("\n")]  # fmt: skip
    return None if None in lines or "x" in flags else any(lines)


def _filtered(name: str, words: list[Traced], read: Traced | None) -> Traced | None:
    """Return what `tr A B`, `wc -l`, `grep -o ,`, `cut -d, -f2` and `awk -F, '{print NF}'` make of a known text."""
    given = " ".join(word.text for word in words)
    blanks = name == "tr" and re.fullmatch(r"(\\n|\s) (\\t|\s)", given)  # no variable without a value holds any
    if read is None or not (blanks or known(read.text)):
        return None
    if name == "tr":
        one, two = [*(unescaped(word.text).text for word in words), "", ""][:2]
        one, two = (_CLASSES.get(it, it) for it in (one, two))
        if len(words) == 2 and words[0].text == "-d" and re.fullmatch(r"[^\\\[-]+|\n", two):
            return untraced(read.text.translate(dict.fromkeys(map(ord, two))))
        same = len(words) == 2 and len(one) == len(two) and (len(one) == 1 or {one, two} <= {*_CLASSES.values()})
        return Traced(read.text.translate(str.maketrans(one, two)), read.at) if same else None
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


def printed_by_python(words: list[Traced], read: Traced | None) -> Traced | None:
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


def matched(text: str, pattern: str, flags: int = 0) -> re.Match[str] | Literal[False] | None:
    """Return where a text fits a regular expression, False where it does not; None of one that is not followed."""
    plain = pattern.replace("[[:digit:]]", "[0-9]").replace("[[:space:]]", "[ ]").replace("[[:alpha:]]", "[A-Za-z]")
    bare = re.sub(r"\((?!\?)([^()|]*)\)(?![+*?{])", r"\1", plain)  # groups that are not repeated
    if not _PLAIN_PATTERN.fullmatch(bare) or len(re.findall("[+*]", bare)) > 2:
        return None
    try:
        return re.search(plain, text, flags) or False
    except re.error:
        return None
