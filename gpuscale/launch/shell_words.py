"""Words of shell scripts: variables, expansions and arithmetic, from what stands there to the fields of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from gpuscale.errors import InputError
from gpuscale.launch.shell_arithmetic import assigned_in, whole_number
from gpuscale.launch.shell_state import (
    BLANKS,
    EMPTY,
    MARK,
    REST,
    Following,
    State,
    Value,
    fields_at,
    glob_pattern,
    known,
    listed,
    mark,
    open_text,
    split,
)
from gpuscale.launch.shell_syntax import Assignment, braced, passed
from gpuscale.launch.traced import NOWHERE, Traced, joined, untraced

MAX_FIELDS = 20_000
MAX_CHOICES = 20
_LITERAL = re.compile(r"[^\\'\"$`]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]", re.ASCII)
_PARAMETER = re.compile(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?!$-])(?:\[([^\]]*)\])?(.*)", re.ASCII | re.DOTALL)
_WHOLE_LIST = re.compile(r"\$\{[A-Za-z_]\w*\[@\]\}|\$@|\$\{@\}")
_CHOICE = re.compile(r"\w[\w.:+,-]{0,59}")
_HERE = ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "BASH_SOURCE")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "e": "\x1b"}


class Words(Following):
    """Expands words."""

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
            value = (listed(value) or [EMPTY])[0] if value is not None else None
            return value.text if value and known(value.text) else None

        return whole_number(text, number, assign) if known(text) else None

    def _put(self, name: str, value: Traced, state: State) -> None:
        """Set a variable, or an element of one."""
        name, _, index = name.removesuffix("]").partition("[")
        key = untraced(index) if index else None
        self.assign(Assignment(name, key, False, value, fields_at([value])), state, expanded=True)

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
                values = (*listed(before), *values)
            elif isinstance(before, dict) and isinstance(values, dict) and one.append:
                values = {**before, **values}
            state.variables[name] = values
            return
        value = one.value if expanded else self.text(one.value, state)
        key = None if one.key is None else self._key(one.key, before, state)
        if key is not None:
            table = dict(before) if isinstance(before, dict) else {str(i): it for i, it in enumerate(listed(before))}
            table[key] = joined([table.get(key, EMPTY), value]) if one.append else value
            state.variables[name] = table
            return
        whole, before = before, (listed(before) or [EMPTY])[0] if before is not None else None
        kind = state.kinds.get(name, "")
        counted = self.count(value.text, state) if kind == "i" else None
        if counted is not None:
            added = self.count(before.text, state) if one.append and before is not None else 0
            value = untraced(str(counted + (added or 0)))
        elif one.append and before is not None:
            value = joined([before, value])
        if kind in {"l", "u"} and known(value.text):
            value = untraced(value.text.lower() if kind == "l" else value.text.upper())
        found = MARK.fullmatch(value.text)
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
        counts = not isinstance(table, dict) or (bool(table) and all(it.isdecimal() for it in table))
        number = self.arithmetic(key, state) if counts else None
        return text if number is None else str(number + (len(listed(table)) if number < 0 else 0))

    def _table(self, words: tuple[Traced, ...], state: State) -> Value:
        keys = [re.match(r"\[([^\]]+)\]=", word.text) for word in words]
        if words and all(keys):
            pairs = [(self.text(untraced(key[1]), state).text, self.text(word.cut(key.end()), state))
                     for key, word in zip(keys, words, strict=True) if key]  # fmt: skip
            numbers = all(name.isdecimal() and len(name) < 9 for name, _ in pairs)
            return dict(sorted(pairs, key=lambda pair: int(pair[0])) if numbers else pairs)
        return tuple(self.fields(words, state))

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
            return [self.output(word.cut(at + 1, end - 1), state)], False, end
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
            return [unescaped(inside.text) if "\\" in inside.text else inside], False, end
        found = _NAME.match(text, at + 1)
        if not found:
            return [word.cut(at, at + 1)], False, at + 1
        values, several = self._named(found[0], None, state)
        return values, several, found.end()

    def _lacking(self, text: Traced, state: State) -> str:
        """Return what stands for an expression whose value is not known: the first variable that it lacks."""
        whole = self.text(text, state).text
        if "$(" in whole:  # a command, not variables by the words of it
            return open_text(whole)
        for name in re.findall(r"(?<![\w{])[A-Za-z_]\w*", whole):
            value = self.value(name, state)
            if value is None or (isinstance(value, Traced) and not known(value.text)):
                return mark(name).text if value is None else open_text(value.text)
        return open_text(whole)

    def _named(self, name: str, key: str | None, state: State) -> tuple[list[Traced], bool]:
        value = self.value(name, state)
        if name in {"!", "$", "-"}:
            return [untraced("0")], False
        if value is None:
            return [mark(name)], False
        if "*" in {key, name}:
            return [joined(listed(value), self.separators(state)[:1])], False
        if "@" in {key, name}:
            return listed(value), True
        if key is not None and not isinstance(value, Traced):
            index = self._key(untraced(key), value, state)
            table = value if isinstance(value, dict) else {str(i): it for i, it in enumerate(value)}
            last = REST.fullmatch(value[-1].text) if isinstance(value, tuple) and value else None
            if last and index.isdecimal() and int(index[:4]) >= len(value) - 1:
                return [mark(str(int(last[1]) + int(index[:4]) - len(value) + 1))], False
            if not known(index):  # of which element nobody says: `$SLURM_ARRAY_TASK_ID`
                self.offer(index, table)
                return [untraced(open_text(index))], False
            return [table.get(index, EMPTY)], False
        return [value if isinstance(value, Traced) else (listed(value) or [EMPTY])[0]], False

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
                keys = named if isinstance(named, dict) else range(len(named or ()))
                return [untraced(str(one)) for one in keys], True
            if isinstance(named, Traced) and known(named.text) and named.text:
                return self._parameter(joined([named, operation]), state)
        value = self.value(name, state)
        if length:
            texts = listed(value) if key in {"@", "*"} or value is None else self._named(name, key, state)[0]
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
        if sign == "?" and absent:
            return [self.lack(name, state)], False
        if sign == "?":
            return values, several
        if sign == "+":
            return [] if absent else self._expand(rest, state, splitting=False), True
        if not absent:
            return values, several
        default = self.text(rest, state)
        if self.passing and not default.text:
            return [self.lack(name, state)], False
        self.defaults.setdefault(name, (default.text, rest.at[0] if rest.at else NOWHERE))
        if sign == "=":
            state.variables[name] = default
        return [default], False

    def lack(self, name: str, state: State) -> Traced:
        """Have a variable for one that has to be given; return what stands for it."""
        state.unknown.setdefault(name, "has to be given")
        if name in state.variables:
            state.variables[name] = mark(name)
        return mark(name)

    def _changed(self, value: Traced, operation: Traced, state: State) -> Traced:
        """Expand `${X%pattern}`, `${X/old/new}`, `${X:1:2}`, `${X,,}`."""
        rest = operation.text
        if not known(value.text):
            return value
        rest = {"@L": ",,", "@U": "^^", "@u": "^"}.get(rest, rest)
        if rest in {"^^", ",,", "^", ","}:
            first = value.text if len(rest) > 1 else value.text[:1]
            return untraced((first.upper() if "^" in rest else first.lower()) + value.text[len(first) :])
        if rest.startswith(":"):
            return value.cut(*self._slice(operation, len(value.text), state))
        ends = re.match(r"##?|%%?", rest)
        if ends:
            pattern = self._pattern(self.text(operation.cut(ends.end()), state).text, value)
            return _trimmed(value, pattern, ends[0]) if pattern else untraced(open_text(rest))
        swap = re.match(r"//?[#%]?", rest)
        if swap:
            old, _, new = rest[swap.end() :].replace(r"\/", "\0").partition("/")
            old, new = (self.text(untraced(it.replace("\0", "/")), state).text for it in (old, new))
            count = 0 if swap[0].startswith("//") else 1
            pattern = self._pattern(old, value)
            if not pattern:
                return untraced(open_text(rest))
            anchored = {"#": rf"\A{pattern}", "%": rf"{pattern}\Z"}.get(swap[0][-1], pattern)
            plain = not old and swap[0][-1] == "/"
            return value if plain else untraced(re.sub(anchored, lambda _: new, value.text[:2000], count=count))
        return untraced(open_text(rest)) if rest.startswith("@") else value

    def _pattern(self, text: str, value: Traced) -> str:
        """Return a pattern as a regular expression that is looked for from each character of a value on."""
        self.search(value.text[:2000], text + "+" if "(" in text else "")
        return glob_pattern(text)

    def fits(self, text: str, pattern: str, state: State) -> bool | None:
        """Return whether a text fits a pattern of file names; None of one that is not followed."""
        made, flags = glob_pattern(pattern), re.IGNORECASE * ("nocasematch" in state.options)
        self.search(text, pattern if "(" in pattern else "")
        return re.fullmatch(made, text, flags) is not None if made else None

    def separators(self, state: State) -> str:
        """Return at which characters texts split into fields."""
        value = state.variables.get("IFS")
        return value.text if isinstance(value, Traced) and known(value.text) else BLANKS

    def offer(self, text: str, choices: Iterable[str]) -> None:
        """Keep what a variable without a value is compared with."""
        found = MARK.fullmatch(text)
        if found and found[1] and not found[1].startswith(("@", "#")):
            kept = self.choices.setdefault(found[1], {})
            kept.update(dict.fromkeys(it for it in choices if _CHOICE.fullmatch(it) and len(kept) < MAX_CHOICES))


class _Expansion:
    """A word on its way into fields."""

    def __init__(self, shell: Words, state: State, *, splitting: bool, quoted: bool) -> None:
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
                self.shell.grow(sum(len(value.text) for value in values) + 16)
                self.values(values, several)
        found = [joined(field) for field in self.fields]
        nothing = self.quoted and len(found) == 1 and not found[0].text and _WHOLE_LIST.fullmatch(text)
        return [] if nothing else found

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


def unescaped(text: str) -> Traced:
    """Return what a text with escapes after backslashes means."""

    def meant(found: re.Match[str]) -> str:
        one = found[1]
        return chr(int(one[1:], 16)) if one[0] == "x" and one[1:] else _ESCAPES.get(one, one)

    return untraced(re.sub(r"\\(x[0-9a-fA-F]{1,2}|.)", meant, text, flags=re.DOTALL))


def _trimmed(value: Traced, pattern: str, how: str) -> Traced:
    """Take the shortest (`#`, `%`) or longest (`##`, `%%`) part that fits a pattern from the start or the end."""
    text, front = value.text[:500], how.startswith("#")
    sizes = range(len(text) + 1) if len(how) == 1 else range(len(text), -1, -1)
    for size in sizes:
        part = text[:size] if front else text[len(text) - size :]
        if re.fullmatch(pattern, part):
            return value.cut(size) if front else value.cut(0, len(value.text) - size)
    return value
