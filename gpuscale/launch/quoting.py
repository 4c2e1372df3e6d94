"""Text of others in what a machine runs or reads: one line in the quotes of its language, or refused.

Titles, names and paths come from files of users. Every writer of a script or of a file beside it puts text into it
through these functions, and through nothing else.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import printable

MAX_COMMENT = 200
"""Characters of others' text that a comment repeats."""


class Expansion(str):
    """A word of a script that is gpuscale's own and names a variable of the shell: `${TRAIN_FILE:?a text file}`."""

    __slots__ = ()


def comment(text: str) -> str:
    """Return a text as one line of a comment, in shell, YAML, TOML and Python."""
    text = printable(text)
    return f"# {text}" if len(text) <= MAX_COMMENT else f"# {text[: MAX_COMMENT - 3]}..."


def shell_word(text: str) -> str:
    r"""Return a text as one word of bash, printable and on one line: `plan`, `'my plan'`, `$'two\x0alines'`.

    Raises:
        InputError: it cannot be an argument of a program.
    """
    if isinstance(text, Expansion):
        return f'"{text}"'
    if text.isprintable():
        return shlex.quote(text)
    try:
        if "\0" in text:
            raise ValueError
        return f"$'{''.join(_in_bytes(one) if one in _ESCAPED or not one.isprintable() else one for one in text)}'"
    except ValueError:  # also what no encoding has
        raise _refusal(text, "an argument") from None


_ESCAPED = "\\'"


def _in_bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def hydra_value(value: Any) -> str:
    """Return a value as overrides of Hydra have it.

    Raises:
        InputError: a text that Hydra would take for more than a text.
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    text = str(value)
    if not isinstance(value, str) or re.fullmatch(r"[\w.:+-]+", text, re.ASCII):
        return text
    if not text.isprintable() or re.search(r"['\\$]", text):
        raise _refusal(text, "a value of Hydra")
    return f"'{text}'"


def json_text(value: Any) -> str:
    """Return a table as a file of JSON."""
    return json.dumps(value, indent=2) + "\n"


def yaml_text(value: Any) -> str:
    """Return tables, lists and scalars as YAML, texts in double quotes; a key that begins with # is a comment.

    Raises:
        InputError: a text that no file can hold.
    """
    return "".join(f"{line}\n" for line in _yaml(value))


def _yaml(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.startswith("#"):
                yield comment(item)
            elif isinstance(item, Mapping | list):
                yield f"{key}:"
                yield from (f"  {line}" for line in _yaml(item))
            else:
                yield f"{key}: {_scalar(item)}"
    else:
        for item in value:
            lines = list(_yaml(item)) if isinstance(item, Mapping | list) else [_scalar(item)]
            lead = next(index for index, line in enumerate(lines) if not line.startswith("#"))
            yield from lines[:lead]
            yield f"- {lines[lead]}"
            yield from (f"  {line}" for line in lines[lead + 1 :])


def _scalar(item: Any) -> str:
    if isinstance(item, str):
        return f'"{"".join(map(_in_yaml, item))}"'
    text = json.dumps(item)
    # YAML takes 1e-08 for text
    return text.replace("e", ".0e") if isinstance(item, float) and "." not in text else text


def _in_yaml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    number = ord(character)
    if 0xD800 <= number < 0xE000:
        raise _refusal(character, "YAML")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _refusal(text: str, what: str) -> InputError:
    return InputError(f"{printable(text[:60])!r} cannot be {what}", hint="give names of printable characters")
