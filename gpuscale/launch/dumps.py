"""Arguments as programs print them into their logs: Megatron's dotted list, `Namespace(...)`, the world size."""

from __future__ import annotations

import re

from gpuscale.launch.settings import Setting, Source
from gpuscale.launch.traced import OpenFile

MAX_ARGUMENTS = 5000
MAX_LINE = 400_000

_BEGIN = re.compile(r"-{8,} (?:\w+ )?arguments -{8,}")
_END = re.compile(r"-{8,} end of (?:\w+ )?arguments -{8,}")
_DOTTED = re.compile(r"(?:^|\s)([A-Za-z_]\w{0,99}) \.{2,} ?(.*)$|\s\s([a-z]\w{40,99})  ?(?!\.\.)(\S.*)$")
_WORLD = re.compile(r"\bworld[ _]size:? ?=? ?(\d{1,9})\b", re.IGNORECASE)
_NAMESPACE = re.compile(r"\bNamespace\(")
_PAIR = re.compile(r"\s*([A-Za-z_]\w{0,99})=")


def dumped_arguments(file: OpenFile) -> Source | None:
    """Return the arguments that a log repeats, of several lists the last; None where there are none."""
    settings: dict[str, Setting] = {}
    launcher: dict[str, Setting] = {}
    inside = False
    for number, line in enumerate(file.text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            continue
        if _END.search(line):
            inside = False
        elif _BEGIN.search(line):
            inside, settings = True, {}
        elif inside and len(settings) < MAX_ARGUMENTS:
            found = _DOTTED.search(line.rstrip())
            if found:
                name, value = found[1] or found[3], (found[2] if found[1] else found[4]).strip()
                settings[name] = Setting(name, value, file.name, number, found[0].strip())
        elif "Namespace(" in line:
            found = _NAMESPACE.search(line)
            settings = _pairs(line, found.end(), file, number) if found else settings
        else:
            world = _WORLD.search(line)
            if world and "world_size" not in launcher:
                launcher["world_size"] = Setting("world_size", world[1], file.name, number, line.strip())
    return Source(file.name, "arguments", settings, launcher=launcher) if settings else None


def _pairs(line: str, at: int, file: OpenFile, number: int) -> dict[str, Setting]:
    """Read `a=1, b='x', c=[1, 2])`; a value ends at a comma or bracket outside its own quotes and brackets."""
    found: dict[str, Setting] = {}
    while len(found) < MAX_ARGUMENTS:
        pair = _PAIR.match(line, at)
        if pair is None:
            break
        start, depth, quote, at = pair.end(), 0, "", pair.end()
        while at < len(line):
            letter = line[at]
            if quote:
                at += letter == "\\"
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            elif letter in "([{<":
                depth += 1
            elif letter in ")]}>" and depth:
                depth -= 1
            elif letter in ",)" and not depth:
                break
            at += 1
        value = line[start:at].strip().strip("'\"")
        found[pair[1]] = Setting(pair[1], value, file.name, number, f"{pair[1]}={line[start:at].strip()}")
        at += 1
    return found
