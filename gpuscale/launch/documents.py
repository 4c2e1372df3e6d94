"""YAML, TOML and JSON as flat settings with their places; nothing in them is executed, and all of it is bounded."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import InputError, shown
from gpuscale.files import printable
from gpuscale.launch.settings import Said, Setting, Settings, Source, Span, said_of
from gpuscale.launch.traced import OpenFiles, Traced
from gpuscale.presets.files import known_table, parse_toml

MAX_SETTINGS = 20_000
MAX_DEPTH = 40

Path_ = tuple[str, ...]


class Leaf(NamedTuple):
    """A value of a document."""

    path: Path_  #: its keys, from the outermost; of an element of a list its number.
    value: Any  #: what it is.
    start: int  #: where the value begins in the text; -1 for values of several lines.
    end: int  #: where it ends.
    key: int  #: where its key stands, or the value where it has none.


def document(kind: str, text: Traced, files: OpenFiles, name: str, prefix: str = "") -> Source:
    """Return what a document states.

    Args:
        kind: `yaml`, `toml` or `json`.
        name: of the file, for messages.
        prefix: what stands before every name, with its dot.

    Raises:
        InputError: it is not of this kind, too large, too deep; or YAML, and PyYAML is not installed.
    """
    place = files.place(text.at[0]) if text.at else None
    shift = place[1] - 1 if place else 0
    leaves = _LEAVES.get(kind, _LEAVES["json"])(text.text, name, shift)
    settings: dict[str, Setting] = {}
    again: list[Said] = []
    for count, leaf in enumerate(leaves):
        if count >= MAX_SETTINGS:
            raise InputError(f"more than {MAX_SETTINGS:,} settings", place=name)
        own = prefix + ".".join(leaf.path)
        made = _setting(own, leaf, text, files, name)
        if own in settings:
            again.append(said_of(settings[own], f"given again on line {made.line}, which counts"))
        settings[own] = made
    run = _of_run(settings)
    return Source(name, "arguments" if run else kind, run or _of_board(settings), ignored=tuple(again))


def tree(kind: str, text: str, name: str) -> dict[str, Any]:
    """Return what a document holds as the tables and lists that a program loads it as.

    Raises:
        InputError: as `document`.
    """
    whole: dict[str, Any] = {}
    for count, leaf in enumerate(_LEAVES[kind](text, name, 0)):
        if count >= MAX_SETTINGS:
            raise InputError(f"more than {MAX_SETTINGS:,} settings", place=name)
        table = whole
        for key in leaf.path[:-1]:
            if not isinstance(table.get(key), dict):  # a key that is given again counts as it stands last
                table[key] = {}
            table = table[key]
        table[leaf.path[-1]] = leaf.value
    return {key: _with_lists(one) for key, one in whole.items()}


def _with_lists(value: Any) -> Any:
    """Return tables whose keys are 0, 1, 2 and so on as the lists that they are."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(one) for key, one in value.items()}
    return list(inner.values()) if inner and list(inner) == [*map(str, range(len(inner)))] else inner


def _setting(name: str, leaf: Leaf, text: Traced, files: OpenFiles, file: str) -> Setting:
    place = files.place(text.at[leaf.key]) if 0 <= leaf.key < len(text.at) else None
    span = files.span(text.cut(leaf.start, leaf.end)) if 0 <= leaf.start < leaf.end else None
    if place is None:
        return Setting(name, leaf.value, file, 0, f"{name}: {shown(leaf.value)}")
    opened, line, _ = place
    quote = text.text[leaf.end : leaf.end + 1]
    stands = text.text[leaf.key : leaf.end + (quote in {"'", '"'})]
    whole = 0 <= leaf.key < leaf.end and "\n" not in stands
    return Setting(name, leaf.value, opened.name, line, stands if whole else opened.line(line).strip(), span)


def _yaml(given: str, name: str, shift: int) -> Iterator[Leaf]:
    """Yield the values of every document of a YAML file; of documents that are no mapping none."""
    try:
        import yaml  # noqa: PLC0415 - an optional library, only where a YAML file is read
    except ImportError:
        install = "pip install 'gpuscale[yaml]'"
        raise InputError("reading YAML needs PyYAML, which is not installed", place=name, hint=install) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # YAML allows no tab before a key, and JSON in YAML is often written with them
    text = re.sub(r"(?m)^[ \t]+", lambda blank: " " * len(blank[0]), given)
    try:
        depth = 0  # refused before a document is built: libyaml's recursion is not bounded
        for token in yaml.scan(text, Loader=loader):
            kind = type(token).__name__
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken")) - kind.endswith("EndToken")
            if depth > MAX_DEPTH:
                line = token.start_mark.line + 1 + shift
                raise InputError(f"nested deeper than {MAX_DEPTH} levels", place=f"{name}:{line}")
        nodes = list(yaml.compose_all(text, Loader=loader))
        composed = [node for node in nodes if getattr(node, "id", "") == "mapping"]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = printable(str(getattr(error, "problem", None) or error))[:100]
        place = f"{name}:{mark.line + 1 + shift}" if mark else name
        hint = "a template: give the file that is made of it" if "{{" in text or "{%" in text else None
        raise InputError(f"not valid YAML: {problem}", place=place, hint=hint) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"not valid YAML: {printable(str(error))[:100]}", place=name) from None
    visits = [0]
    for node in composed:
        yield from _walk(yaml, node, (), (), visits, name)
    for node in nodes if not composed else ():
        yield from _overrides(node)


_OVERRIDE = re.compile(r"(\+{0,2}([A-Za-z_][\w.]*)=)(.*)", re.DOTALL)


def _overrides(node: Any) -> Iterator[Leaf]:
    """Yield what a list of Hydra's overrides sets: `- trainer.nnodes=1`; nothing of other lists."""
    items = node.value if getattr(node, "id", "") == "sequence" else []
    found = [_OVERRIDE.fullmatch(item.value) if item.id == "scalar" else None for item in items]
    for item, one in zip(items, found, strict=True) if all(found) else ():
        assert one is not None
        quoted = item.start_mark.index + (item.style in {"'", '"'})
        value = one[3].strip("'\"")
        whole = item.end_mark.index - quoted - (item.style in {"'", '"'}) == len(item.value) and value == one[3]
        start = quoted + len(one[1]) if whole else -1
        yield Leaf(tuple(one[2].split(".")), value, start, start + len(value) if whole else -1, quoted)


def _walk(yaml: Any, node: Any, path: Path_, above: tuple[int, ...], visits: list[int], name: str) -> Iterator[Leaf]:
    visits[0] += 1
    if id(node) in above or visits[0] > 4 * MAX_SETTINGS:  # an alias of what is around it, or aliases of aliases
        what = "an alias that contains itself" if id(node) in above else f"more than {MAX_SETTINGS:,} settings"
        raise InputError(what, place=f"{name}:{node.start_mark.line + 1}")
    start, end = node.start_mark.index, node.end_mark.index
    if node.id == "scalar":
        quoted = 1 if node.style in {"'", '"'} else 0
        yield Leaf(path, _scalar(yaml, node), start + quoted, end - quoted, start)
    elif node.id == "sequence":
        plain = all(item.id == "scalar" for item in node.value)
        if plain:
            yield Leaf(path, [_scalar(yaml, item) for item in node.value], start, end, start)
        for number, item in enumerate(() if plain else node.value):
            yield from _walk(yaml, item, (*path, str(number)), (*above, id(node)), visits, name)
    else:
        if not node.value:
            yield Leaf(path, {}, start, end, start)
        for key, value in _members(node):
            below = path if key is None else (*path, str(key.value))
            for leaf in _walk(yaml, value, below, (*above, id(node)), visits, name):
                own = key is not None and len(leaf.path) == len(below)
                yield leaf._replace(key=key.start_mark.index) if own else leaf


def _members(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of a mapping's members; first those that it merges (`<<`), with no key."""
    merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
    for value in merged:
        for inner in value.value if value.id == "sequence" else [value]:
            if inner.id == "mapping":
                yield None, inner
    yield from ((key, value) for key, value in node.value if key.id == "scalar" and value not in merged)


def _scalar(yaml: Any, node: Any) -> Any:
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind in {"int", "float", "bool"} and ":" not in node.value:
        make = getattr(yaml.constructor.SafeConstructor(), f"construct_yaml_{kind}")
        with suppress(ValueError, OverflowError, KeyError, IndexError):
            return make(node)
    return str(node.value)


def _toml(text: str, name: str, _: int) -> Iterator[Leaf]:
    plain = text.replace("\r\n", "\n")
    parsed = parse_toml(Path(name), plain)
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def walk(value: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
        listed = isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
        if (isinstance(value, dict) and value) or listed:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from walk(item, (*path, key))
            return
        line = parsed.line_of(path) or 1
        start, end = starts[line - 1], starts[line] - 1
        found = re.match(r"""[^=]*?\b(["']?)=?\s*=\s*(["']?)([^"'#]*?)\2[ \t]*(?:#.*)?\r?$""", text[start:end])
        stands = (start + found.start(3), start + found.end(3)) if found else (-1, -1)
        key_at = start + len(text[start:end]) - len(text[start:end].lstrip())
        value = value if isinstance(value, bool | int | float | str | list | dict) else str(value)
        yield Leaf(tuple(map(str, path)), value, *stands, key_at)

    yield from walk(parsed.data, ())


def _json(text: str, name: str, shift: int) -> Iterator[Leaf]:
    try:
        return iter(_Json(text, name, shift).leaves())
    except json.JSONDecodeError as error:
        comment = re.search(r"^\s*(//|#|/\*)", text, re.MULTILINE)
        line = text.count("\n", 0, comment.start(1)) + 1 if comment else error.lineno
        message = "JSON has no comments" if comment else f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        hint = "take the comments out" if comment else None
        raise InputError(message, place=f"{name}:{line + shift}", hint=hint) from None


_LEAVES = {"yaml": _yaml, "toml": _toml, "json": _json}


class _Json:
    """A reader of JSON that knows where each value stands."""

    _SPACE = re.compile(r"[ \t\r\n]*")
    _TEXT = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
    _PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|NaN|-?Infinity")

    def __init__(self, text: str, name: str, shift: int) -> None:
        self.text, self.name, self.shift = text, name, shift
        self.found: list[Leaf] = []

    def leaves(self) -> list[Leaf]:
        at = self._value((), self._skip(0), self._skip(0))
        if self._skip(at) < len(self.text):
            self._fail("more text after the end", at)
        return self.found

    def _fail(self, message: str, at: int) -> Any:
        raise json.JSONDecodeError(message, self.text, at)

    def _skip(self, at: int) -> int:
        found = self._SPACE.match(self.text, at)
        assert found is not None
        return found.end()

    def _scalar(self, at: int) -> tuple[Any, int]:
        found = self._TEXT.match(self.text, at) or self._PLAIN.match(self.text, at)
        if found is None:
            return self._fail("a value is expected", at)
        try:
            return json.loads(found[0]), found.end()
        except ValueError:  # an integer of thousands of digits
            return found[0][:40], found.end()

    def _value(self, path: Path_, at: int, key: int) -> int:
        """Read a value and return where it ends."""
        if len(path) > MAX_DEPTH:
            line = self.text.count("\n", 0, at) + 1 + self.shift
            raise InputError(f"nested deeper than {MAX_DEPTH} levels", place=f"{self.name}:{line}")
        if self.text[at : at + 1] == "{":
            return self._members(path, at, key)
        if self.text[at : at + 1] == "[":
            return self._elements(path, at, key)
        value, end = self._scalar(at)
        quoted = isinstance(value, str) and self.text[at] == '"'
        self.found.append(Leaf(path, value, at + quoted, end - quoted, key))
        return end

    def _members(self, path: Path_, opened: int, outer: int) -> int:
        at = self._skip(opened + 1)
        if self.text[at : at + 1] == "}":
            self.found.append(Leaf(path, {}, opened, at + 1, outer))
            return at + 1
        while True:
            if self.text[at : at + 1] != '"':
                self._fail("a name in double quotes is expected", at)
            key, end = self._scalar(at)
            colon = self._skip(end)
            if self.text[colon : colon + 1] != ":":
                self._fail("`:` is expected", colon)
            at = self._skip(self._value((*path, str(key)), self._skip(colon + 1), at))
            if self.text[at : at + 1] == "}":
                return at + 1
            if self.text[at : at + 1] != ",":
                self._fail("`,` or `}` is expected", at)
            at = self._skip(at + 1)

    def _elements(self, path: Path_, opened: int, outer: int) -> int:
        at, first, number = self._skip(opened + 1), len(self.found), 0
        while self.text[at : at + 1] != "]" or number:
            at = self._skip(self._value((*path, str(number)), at, at))
            number += 1
            if self.text[at : at + 1] == "]":
                break
            if self.text[at : at + 1] != ",":
                self._fail("`,` or `]` is expected", at)
            at = self._skip(at + 1)
        inner = self.found[first:]
        if all(len(leaf.path) == len(path) + 1 and not isinstance(leaf.value, dict | list) for leaf in inner):
            del self.found[first:]
            self.found.append(Leaf(path, [leaf.value for leaf in inner], opened, at + 1, outer))
        return at + 1


# --- what a web page saved, or a tracker of runs


def _of_run(stated: dict[str, Setting]) -> dict[str, Setting]:
    """Return what Weights & Biases saved of a run (`bf16: {value: true}`) by the names that it was told."""
    if not any(name.startswith("_wandb.value.") for name in stated):
        return {}
    made = {}
    for name, one in stated.items():
        first, _, rest = name.partition(".")
        if first != "_wandb" and (rest == "value" or rest.startswith("value.")):
            own = f"{first}{rest.removeprefix('value')}"
            made[own] = replace(one, name=own, text=f"{own}: {shown(one.value)}")
    if "num_beams" in made:  # a configuration of transformers among it, whose length is that of answers
        made.pop("max_length", None)
    return made


_BOARD = known_table("scripts")["board"]


def _of_board(stated: dict[str, Setting]) -> dict[str, Setting]:
    """Return what LLaMA Board saved (`top.model_name`, `train.cutoff_len`) as the arguments that it trains with."""
    if not stated.keys() >= {"top.model_name", "top.finetuning_type", "train.training_stage"}:
        return stated
    words, made = (
        _BOARD["words"],
        {name: one for name, one in stated.items() if not name.startswith(("top.", "train."))},
    )
    said = {name.partition(".")[2]: str(one.value).lower() for name, one in stated.items()}
    on = {name for name, value in said.items() if value not in {"none", "false", ""}}
    on |= {said["finetuning_type"], said["training_stage"]}
    for name, one in stated.items():
        last, value = name.partition(".")[2], str(one.value).lower()
        given = words[name].get(value, {}) if name in words else {_BOARD["names"].get(name, last): one.value}
        if name == "train.ds_stage" and "ds_offload" in on:
            given = {key: str(file).replace("config", "offload_config") for key, file in given.items()}
        elif name == "train.extra_args":
            with suppress(ValueError, TypeError, RecursionError):
                given = {key: inner for key, inner in dict(json.loads(str(one.value))).items() if last in on}
        elif last == "lora_target":
            given = {last: one.value or "all"}
        elif last not in on and name not in words:
            continue
        counts = all(switch in on for begins, switch in _BOARD["beside"].items() if last.startswith(begins))
        for key, inner in given.items() if counts and name not in made else ():
            made[key] = replace(one, name=key, value=inner)
    return made


# --- interpolations of OmegaConf and of templates for envsubst

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("multiply", "mult", "mul"), operator.mul),
    **dict.fromkeys(("divide", "div"), operator.truediv),
    **dict.fromkeys(("int_div", "floor_div", "divide_floor"), operator.floordiv),
    **dict.fromkeys(("div_up", "ceil_div", "divide_up"), lambda first, second: -(-first // second)),
    **dict.fromkeys(("add", "sum"), operator.add),
    **dict.fromkeys(("subtract", "sub"), operator.sub),
}
_Value = tuple[Any, Span | None] | None
"""A value and where it stands; None where it is not known."""

MAX_STEPS = 60
MAX_VALUE = 4096


def interpolated(sources: tuple[Source, ...], variables: Mapping[str, str]) -> tuple[Source, ...]:
    """Return documents with their interpolations (`${a.b}`, `${oc.env:X,1}`, `${multiply:2,${.x}}`, `${X:1}`) replaced.

    What cannot be resolved stays as it is; a reader that needs the value says so.

    Args:
        variables: values of variables that the user gives.
    """
    every: dict[str, Setting] = {}
    for source in sources:
        every |= source.settings
    found = []
    for source in sources:
        settings: dict[str, Setting] = {}
        taken: list[Said] = []
        for name, one in source.settings.items():
            settings[name] = _resolved(one, every, variables, taken)
        found.append(replace(source, settings=settings, assumed=(*source.assumed, *taken)))
    return tuple(found)


def _resolved(one: Setting, every: Settings, variables: Mapping[str, str], taken: list[Said]) -> Setting:
    if isinstance(one.value, list) and any(isinstance(item, str) and "$" in item for item in one.value):
        items = [_resolved(replace(one, value=item), every, variables, taken).value for item in one.value[:1000]]
        return replace(one, value=[*items, *one.value[1000:]])
    if not isinstance(one.value, str) or "$" not in one.value or len(one.value) > MAX_VALUE:
        return one
    value: Any = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), one.value)
    span: Span | None = None
    for _ in range(MAX_STEPS):
        inner = _INNERMOST.search(value)
        got = None
        while inner and (got := _reference(inner[1], one, every, variables, taken)) is None:
            inner = _INNERMOST.search(value, inner.end())
        if inner is None or got is None:
            break
        known, span = got
        if inner[0] == value:
            if not isinstance(known, str) or "$" not in known:
                return Setting(one.name, known, one.file, one.line, one.text, span)
            value = known
        else:
            value, span = f"{value[: inner.start()]}{known}{value[inner.end() :]}"[:MAX_VALUE], None
    return Setting(one.name, value, one.file, one.line, one.text, None)


def _reference(text: str, one: Setting, every: Settings, variables: Mapping[str, str], taken: list[Said]) -> _Value:
    """Return what an interpolation means, and where that stands; None where it is not known."""
    head, colon, rest = (part.strip() for part in text.partition(":"))
    if colon and head in _RESOLVERS:
        return _RESOLVERS[head](rest, one, every, variables, taken)
    if colon and head in _SUMS:
        return _sum(head, rest)
    if colon and head == "eval":
        return _worked_out(rest.strip("'\""))
    if colon and re.fullmatch(r"\w+", head):
        return _variable(head, rest.removeprefix("-"), one, variables, taken)
    return _stated(text.strip(), one, every, variables)


def _stated(name: str, one: Setting, every: Settings, variables: Mapping[str, str]) -> _Value:
    if name in variables:
        return variables[name], None
    found = _named(name, one.name, every)
    return (found.value, found.span) if found is not None and found is not one and found.value != one.value else None


def _variable(name: str, default: str, one: Setting, variables: Mapping[str, str], taken: list[Said]) -> _Value:
    """Return the value of a variable, or its default where it has one; OmegaConf's `null` is one."""
    default = default.strip("'\"")
    if name in variables:
        return variables[name], None
    if default in {"", "?", "??"}:
        return None
    if re.fullmatch(r"[\d._]+|null|None", default):
        taken.append(said_of(one, f"{name} is taken as its default {default}"))
    return None if default in {"null", "None"} else default, None


def _environment(rest: str, one: Setting, _: Settings, variables: Mapping[str, str], taken: list[Said]) -> _Value:
    name, _comma, default = (part.strip() for part in rest.partition(","))
    return _variable(name, default, one, variables, taken)


def _selected(rest: str, one: Setting, every: Settings, variables: Mapping[str, str], _: list[Said]) -> _Value:
    name, _comma, default = (part.strip() for part in rest.partition(","))
    return _stated(name, one, every, variables) or (default.strip("'\"") or None, None)


_RESOLVERS: Mapping[str, Callable[[str, Setting, Settings, Mapping[str, str], list[Said]], _Value]] = {
    "oc.env": _environment,
    "env": _environment,
    "oc.select": _selected,
    "oc.decode": lambda rest, *_: (rest.strip("'\""), None),
    "oc.create": lambda rest, *_: (rest.strip("'\""), None),
}
"""What is built into OmegaConf -> its reader."""


def _named(name: str, here: str, every: Settings) -> Setting | None:
    """Return the setting that a name means at another: relative, from the root, or from a level between."""
    levels = here.split(".")
    dots = len(name) - len(name.lstrip("."))
    if dots:
        return every.get(".".join([*levels[:-dots], name[dots:]]))
    for depth in range(len(levels)):  # of the root, or of a package that is composed below another
        found = every.get(".".join([*levels[:depth], name]))
        if found is not None:
            return found
    return every.get(name.partition(".")[2])  # the file is a part of a larger configuration


_SIGNS = {"*": "mul", "/": "div", "//": "int_div", "+": "add", "-": "sub"}


def _worked_out(text: str) -> tuple[Any, None] | None:
    """Return what numbers with one kind of sign between them make (`8 * 16 * 1`); None of anything else."""
    found = re.fullmatch(r"[\d.]+(?:\s*(\*|//?|\+|-)\s*[\d.]+)+", text.strip()[:200])
    parts = re.split(r"\s*(\*|//?|\+|-)\s*", text.strip()) if found else []
    return _sum(_SIGNS[parts[1]], ",".join(parts[::2])) if len(set(parts[1::2])) == 1 else None


def _sum(name: str, rest: str) -> tuple[Any, None] | None:
    numbers = [part.strip() for part in rest.split(",")]
    if len(numbers) < 2 or not all(re.fullmatch(r"-?\d{1,15}(\.\d{1,9})?", part) for part in numbers):
        return None
    total: Any = None
    for part in numbers:
        number = float(part) if "." in part else int(part)
        try:
            total = number if total is None else _SUMS[name](total, number)
        except ZeroDivisionError:
            return None
    return (int(total) if total == int(total) else total), None
