"""Presets, and TOML files of users: found, and parsed so that a mistake is reported with file and line. Nothing in a
file is trusted: its size, its lines and its nesting are bounded before it is parsed."""

from __future__ import annotations

import json
import lzma
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib import resources
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

from gpuscale.errors import InputError, unknown_name
from gpuscale.files import read_text, refuse_irregular
from gpuscale.units import MIB

if TYPE_CHECKING:
    from gpuscale.specs.cluster import ClusterSpec
    from gpuscale.specs.gpu import GpuSpec
    from gpuscale.specs.model import ModelSpec

KINDS = {
    "gpus": ("GPU", "gpuscale show hardware"),
    "clusters": ("cluster", "gpuscale show clusters"),
    "models": ("model", "gpuscale show models"),
    "frameworks": ("framework", "gpuscale show frameworks"),
}
"""Folder of presets -> what one of them is, and the command that lists all."""

MAX_FILE_BYTES = MIB
MAX_LINE_CHARACTERS = 16384
MAX_DEPTH = 16

KeyPath = tuple[str | int, ...]

_ARCHIVE = resources.files("gpuscale") / "_presets.xz"  # of a wheel
_STEM = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_BARE_OR_QUOTED = r"""(?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')"""
_KEY = rf"{_BARE_OR_QUOTED}(?:[ \t]*\.[ \t]*{_BARE_OR_QUOTED})*"
_HEADER = rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]"  # compiled when an error is placed, as the next
_ASSIGNMENT = rf"[ \t]*({_KEY})[ \t]*="
_DEEP_KEY = re.compile(r"""(?:[A-Za-z0-9_"'-]{1,64}[ \t]{0,4}\.[ \t]{0,4}){33}""")


def preset_folders(kind: str) -> list[Path]:
    """Return the existing folders of presets of a kind, the user's first: $GPUSCALE_PRESETS, else
    $XDG_CONFIG_HOME/gpuscale/presets, else ~/.config/gpuscale/presets.

    Raises:
        InputError: GPUSCALE_PRESETS is set and is not a folder; the package was installed without its own.
    """
    chosen = os.environ.get("GPUSCALE_PRESETS")
    if chosen and not Path(chosen).is_dir():
        hint = "point it at a folder with subfolders gpus, clusters and models, or unset it"
        raise InputError(f"{chosen[:200]!r} is not a folder", place="GPUSCALE_PRESETS", hint=hint)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - never raises
    user = Path(chosen) if chosen else Path(config) / "gpuscale" / "presets"
    return [folder for folder in (user / kind, _shipped() / kind) if folder.is_dir()]


@cache
def _shipped() -> Path:
    """Return the folder of the presets that come with the package: packed into it, or beside it in a checkout."""
    beside = Path(__file__).resolve().parents[2] / "presets"
    if _packed():
        return cast(Path, _Packed(str(_ARCHIVE)))
    if not beside.is_dir():
        raise InputError("its presets are missing", place="gpuscale", hint="the installation is incomplete: repeat it")
    return beside


@cache
def _packed() -> dict[str, dict[str, bytes]]:
    """Return the folders of the archive that a wheel has, and their files: each is its name, a line's end and its
    content, and a NUL parts it from the next."""
    folders: dict[str, dict[str, bytes]] = {}
    if _ARCHIVE.is_file():
        for file in lzma.decompress(_ARCHIVE.read_bytes()).split(b"\0"):
            path, _, content = file.partition(b"\n")
            folder, _, name = f"{_ARCHIVE}/{path.decode()}".rpartition("/")
            folders.setdefault(folder, {})[name] = content
    return folders


class _Packed(PurePosixPath):
    """A file or folder of that archive, with all of a Path that is used of presets."""

    def is_dir(self) -> bool:
        return str(self) in _packed()

    def is_file(self) -> bool:
        return self.name in _packed().get(str(self.parent), ())

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def iterdir(self) -> Iterator[_Packed]:
        return (self / name for name in _packed()[str(self)])

    def open(self, _: str) -> BytesIO:
        return BytesIO(_packed()[str(self.parent)][self.name])

    def read_text(self, encoding: str) -> str:
        return self.open("rb").read().decode(encoding)


def skill_text() -> str:
    """Return the skill for coding agents that comes with the package, as Markdown."""
    packed = _shipped() / "SKILL.md"
    return (packed if packed.is_file() else _shipped().parent / "docs" / "SKILL.md").read_text(encoding="utf-8")


@cache
def family_table(name: str) -> Mapping[str, Any]:
    """Read a shipped file of facts about families of models, of TOML or JSON; it is shared."""
    text = (_shipped() / "families" / name).read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    return found


def preset_files(kind: str) -> dict[str, Path]:
    """Return the file of every preset of a kind by its name, sorted; the user's goes first."""
    found: dict[str, Path] = {}
    for folder in reversed(preset_folders(kind)):
        with suppress(OSError):  # a folder of the user's that cannot be read
            found |= files_in(folder)
    return dict(sorted(found.items()))


def files_in(folder: Path) -> dict[str, Path]:
    """Return the TOML files of a folder by their stems, sorted."""
    found = {path.stem: path for path in folder.iterdir() if path.suffix == ".toml" and path.is_file()}
    return dict(sorted(found.items()))


def preset_names(kind: str) -> list[str]:
    """Return the names of all presets of `kind`, sorted."""
    return list(preset_files(kind))


def find_preset(kind: str, name: str) -> Path | None:
    """Return the file of the preset called `name` (any case), or None; the user's goes first."""
    stem = name.lower()
    if _STEM.fullmatch(stem) is None:
        return None
    for folder in preset_folders(kind):
        path = folder / f"{stem}.toml"
        if path.is_file():
            return path
    return None


def means_preset(kind: str, path: Path) -> bool:
    """Whether a file is the one that its stem means as a preset, also in an archive."""
    return str(find_preset(kind, path.stem)) == str(path)


def preset_aliases(kind: str) -> dict[str, Path]:
    """Return every alias (lower case) of the presets of a kind and its file; reads every file."""
    found: dict[str, Path] = {}
    for path in preset_files(kind).values():
        aliases = read_toml(path).data.get("aliases")
        if isinstance(aliases, list):
            for alias in aliases:
                found.setdefault(str(alias).lower(), path)
    return found


def resolve_preset(kind: str, name_or_path: str) -> Path:
    """Return the file that a path to a TOML file, a preset's name or one of its aliases means."""
    path = "/" in name_or_path or os.sep in name_or_path or name_or_path.lower().endswith(".toml")
    return Path(name_or_path) if path else named_preset(kind, name_or_path)


def named_preset(kind: str, name: str) -> Path:
    """Return the file of a preset, by its name, an alias, or what can only mean one of them; else an InputError."""
    return _meant(kind, name)[0]


def settled(kind: str, name: str) -> tuple[str, str]:
    """Return the preset's own name for what a user calls it, and a note where that is only short for it. Paths, shapes
    in a line and names that mean nothing stay as they are; so does a month behind a name (`nemo@2024-03`)."""
    stem, at, month = name.partition("@")
    with suppress(OSError, ValueError, InputError):  # no usable path; no preset
        paths = Path(name), Path(name, "config.json")
        stays = not name or "=" in name or find_preset(kind, stem) or any(path.is_file() for path in paths)
        if not stays:
            path, note = _meant(kind, stem)
            return f"{path.stem}{at}{month}", note
    return name, ""


def _meant(kind: str, name: str) -> tuple[Path, str]:
    """Return the preset that a name means, and a note where it is only short for it. Exact names go before aliases, and
    these before the same words spelled otherwise. What is shorter must leave one preset, or one and those whose names
    say more than its, or with a size (`llama70b`) generations of one name, of which the newest is taken. The name of a
    GPU is short for no cluster."""
    found = find_preset(kind, name)
    aliases = {} if found else preset_aliases(kind)
    found = found or aliases.get(name.lower())
    if found is not None:
        return found, ""
    files = preset_files(kind)
    called = [*((stem, stem) for stem in files), *((alias, path.stem) for alias, path in aliases.items())]
    called += [(alias.rpartition("/")[2], stem) for alias, stem in called if "/" in alias]
    wanted = spelled(name) if len(name) <= 100 else ""
    same = [(known, stem) for known, stem in called if wanted and spelled(known) == wanted]
    fitting = same
    if not same and not (kind == "clusters" and card_named(name)):
        fitting = [(known, stem) for known, stem in called if wanted and is_short_for(wanted, known)]
    meant = sorted({stem for _, stem in fitting})
    label, listing = KINDS[kind]
    if not meant:
        cards = preset_names("gpus") if kind == "clusters" else ()  # which mean boxes of them
        raise unknown_name(label, name, [*files, *aliases, *cards], listing)
    if len(meant) > 1:
        some = f"{', '.join(meant[:12])}{', ...' if len(meant) > 12 else ''}"
        plain = next((one for one in meant if all(is_short_for(spelled(one), other) for other in meant)), None)
        if plain:
            meant = sorted(meant, key=lambda one: one != plain)
        else:
            meant = newest_first(fitting) if has_size(name) else []
        if not meant:
            raise InputError(f"{name!r} may be any {label} of several", hint=f"name one: {some}; `{listing}` lists all")
    newest, *others = meant
    also = f"; also: {', '.join(others)}" if others else ""
    return files[newest], "" if same and not others else f"{name} is taken as {newest}{also}"


def card_named(name: str) -> Path | None:
    """Return the file of the GPU of which a name means a box: `box-rtx-4090`, `rtx-3090-pairs`."""
    with suppress(InputError):
        path, note = _meant("gpus", name.lower().removeprefix("box-").removesuffix("-pairs"))
        return None if note else path
    return None


Spec = TypeVar("Spec", "GpuSpec", "ClusterSpec", "ModelSpec")

_loaded: WeakValueDictionary[tuple[type, str], Any] = WeakValueDictionary()


def remembered(name: str, spec: Spec) -> Spec:
    """Return what was loaded by a name, which `preset_name` then knows."""
    _loaded[type(spec), name] = spec
    return spec


def preset_name(given: str | Path | Spec | None, load: Callable[[str], Spec], field: str | None = None) -> str | None:
    """Return the name that means a preset, given for an option (`field`), also where the preset itself is given, which
    `load` would load; None of nothing.

    Raises:
        InputError: it was changed or made in Python, and no name means it.
    """
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    for (_, name), one in _loaded.items():
        if one is given:
            return name
    try:
        same = load(given.name) == given
    except InputError:
        same = False
    if not same:
        hint = "change a cluster with `set`, and for anything else write a file and give its path"
        message = f"this {type(given).__name__} is not what {given.name[:60]!r} means, and answers go by names"
        raise InputError(message, field=field, hint=hint)
    return given.name


@dataclass(frozen=True)
class Document:
    """A parsed TOML file that remembers on which line each key stands."""

    path: Path
    data: dict[str, Any]
    text: str = field(default="", repr=False)

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        """Key path -> line of each `[table]`, `[[array]]` and `key =`; inner tables of inline tables are not seen."""
        found: dict[KeyPath, int] = {}
        table: KeyPath = ()
        counts: dict[KeyPath, int] = {}
        closing = ""
        for number, line in enumerate(self.text.split("\n"), start=1):
            if closing:  # inside a multi-line string
                closing = "" if line.count(closing) % 2 else closing
                continue
            header = re.match(_HEADER, line)
            if header:
                table = _numbered(_parts(header[2]), counts, array=header[1] == "[[")
                found[table] = number
                continue
            assignment = re.match(_ASSIGNMENT, line)
            if assignment:
                key = table + _parts(assignment[1])
                for length in range(len(table) + 1, len(key) + 1):
                    found[key[:length]] = number
            closing = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
        return found

    def line_of(self, key_path: Sequence[str | int]) -> int | None:
        """Return the line of a key, or of the nearest table around it; None of nothing."""
        for length in range(len(key_path), 0, -1):
            line = self._lines.get(tuple(key_path[:length]))
            if line is not None:
                return line
        return None

    def error(self, key_path: Sequence[str | int], message: str, hint: str | None = None) -> InputError:
        """Build the error for something wrong at `key_path`; its place is `file:line`."""
        line = self.line_of(key_path)
        return InputError(message, place=f"{self.path}:{line}" if line else str(self.path), hint=hint)


def _parts(key: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_BARE_OR_QUOTED, key))


def _numbered(parts: KeyPath, counts: dict[KeyPath, int], *, array: bool) -> KeyPath:
    """Insert the index of the current element after each name of an array of tables."""
    path: KeyPath = ()
    for position, part in enumerate(parts, start=1):
        path += (part,)
        if array and position == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path += (counts[path],)
    return path


def read_toml(path: Path, hint: str = "give a preset's name or the path of a TOML file") -> Document:
    """Read and parse a TOML file of at most 1 MiB; the `hint` says what to do where there is none."""
    refuse_irregular(path, "a TOML file", hint=hint)
    return parse_toml(path, read_text(path, MAX_FILE_BYTES, "a preset").replace("\r\n", "\n"))


def read_unchanged(path: Path) -> Document:
    """Return what `read_toml` does, parsed anew only where the text has changed; it is shared and must stay as it
    is."""
    refuse_irregular(path, "a TOML file")
    return _parsed(path, read_text(path, MAX_FILE_BYTES, "a preset").replace("\r\n", "\n"))


@cache
def known_table(name: str) -> dict[str, Any]:
    """Return what the package knows of other software, `presets/known/NAME.toml`; it is shared and must stay as it
    is."""
    return read_unchanged(preset_folders("known")[-1] / f"{name}.toml").data


def parse_toml(path: Path, text: str) -> Document:
    """Parse what a TOML file at `path` holds or is about to hold."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE_CHARACTERS:
            limit = f"{MAX_LINE_CHARACTERS:,}"
            raise InputError(f"line of {len(line):,} characters, at most {limit}", place=f"{path}:{number}")
        if line.count(".") > 2 * MAX_DEPTH and _DEEP_KEY.search(line):
            raise InputError(f"nested deeper than {MAX_DEPTH} levels", place=f"{path}:{number}")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels", place=str(path)) from None
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise _syntax_error(path, text, error) from None
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        inner = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
        level = [child for child in inner if isinstance(child, dict | list)]
    if level:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels", place=str(path))
    return Document(path, data, text)


_parsed = lru_cache(maxsize=32)(parse_toml)


def _syntax_error(path: Path, text: str, error: ValueError) -> InputError:
    message = str(error)
    found = re.search(r"\(at line (\d+), column \d+\)|\(at end of document\)", message)
    line = int(found[1]) if found and found[1] else text.count("\n") + 1 if found else None
    syntax = isinstance(error, tomllib.TOMLDecodeError)
    what = message[: found.start()].strip() if found else message if syntax else "a number is too long"
    what = f"{what} at the end of the file" if found and not found[1] else what
    place = f"{path}:{line}" if line else str(path)
    return InputError(f"not valid TOML: {what[:200]}", place=place, hint="https://toml.io shows the format")


def short(value: Any) -> str:
    """Return a value of a user's file as a message shows it."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- Names of presets as people write them: spelled in other ways, or shorter than they are. --

_IDLE = ("base", "chat", "hf", "instruct", "it", "meta", "nvidia", "pt")
"""Parts of names that tell checkpoints of one shape apart, or say who made it."""

_WORD = r"[a-z]{3,}|[a-z]{0,2}[0-9][0-9.]*(?:x[0-9.]+)?[a-z]*|[a-z]+"
_SIZE = r"[0-9][0-9.]*(?:x[0-9.]+)?[mbt]"
_GENERATION = r"v?([0-9]{1,2})(?:\.([0-9]{1,2}))?"


def _kept_parts(name: str) -> list[str]:
    return [part for part in re.split(r"[-_ ]+", name.lower()) if part not in _IDLE]


def words(name: str) -> list[str]:
    """Return what may be left out of a name: of `Llama-3.1-70B-Instruct` llama, 3.1 and 70b."""
    return [word for part in _kept_parts(name) for word in re.findall(_WORD, part)]


def spelled(name: str) -> str:
    """Spell a name without what people write in different ways; what parts two numbers stays: `gpt3-13b`."""
    return re.sub(r"(?<![0-9])-|-(?![0-9])", "", "-".join(_kept_parts(name)))


def has_size(name: str) -> bool:
    """Whether a name says how large the model is: `70b`, `8x7b`."""
    return any(re.fullmatch(_SIZE, word) for word in words(name))


def is_short_for(name: str, known: str) -> bool:
    """Whether a name, as `spelled` has it, is the first word of another and some of those after it, in order."""
    first, *rest = words(known) or ["-"]
    more = (f"(?:{'(?:-|(?<![0-9.]))' * word[0].isdigit()}{re.escape(word)})?" for word in rest)
    return name.startswith(first) and re.fullmatch(first + "".join(more), name) is not None


def newest_first(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return presets that are generations of one name, newest first; none where they differ in more than that. `names`:
    what the presets are called, and which preset that is; one may have several names."""
    generations: dict[str, tuple[int, int]] = {}
    others: dict[str, set[str]] = {}
    for known, preset in names:
        first, *rest = words(known)
        found = re.fullmatch(_GENERATION, rest[0]) if rest else None
        number = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        generations[preset] = max(generations.get(preset, number), number)
        others.setdefault(preset, set()).add(" ".join([first, *rest[bool(found) :]]))
    if not set.intersection(*others.values()):
        return []
    return sorted(generations, key=lambda preset: generations[preset], reverse=True)
