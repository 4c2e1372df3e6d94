"""Writes gpuscale/__init__.pyi, which type checkers and editors read, anew: python tests/update_stub.py.

The names are those of `gpuscale/__init__.py`. Of a function of many options the stub has the whole signature, made of
their declarations in `gpuscale/request.py`; all else comes from where it stands.
"""

import builtins
import inspect
import re
import textwrap
from pathlib import Path

import gpuscale

STUB = Path(gpuscale.__file__).with_suffix(".pyi")
HEAD = '''"""What `gpuscale` has, for type checkers and editors. Made by tests/update_stub.py."""'''
ELSEWHERE = {"Any": "typing"} | dict.fromkeys(("Callable", "Mapping", "Sequence"), "collections.abc")


def of_options(function):
    """Whether a function takes options that it does not name itself."""
    own = inspect.signature(getattr(function, "__wrapped__", function)).parameters.values()
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own)


def written(function):
    """A function as the stub has it: its signature and its own text."""
    said = inspect.signature(function)
    parts, named = [], False
    for one in said.parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not named:
            parts, named = [*parts, "*"], True
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{one.name}: {one.annotation}{default}")
    doc = textwrap.indent(inspect.getdoc(function.__wrapped__), "    ").strip()
    head = f"def {function.__name__}(\n{filled(parts)}\n) -> {said.return_annotation}:"
    return f'{head}\n    """{doc}\n    """\n'


def filled(parts):
    """Parts after commas in indented lines, each part on one."""
    joined = ", ".join(part.replace(" ", "\0") for part in parts)
    lines = textwrap.wrap(joined, 116, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"    {line}" for line in lines).replace("\0", " ") + ","


def imports(functions):
    """Lines that import the types which the signatures of functions name."""
    homes = dict(ELSEWHERE)
    for function in functions:
        homes |= {
            name: one.__module__ for name, one in function.__wrapped__.__globals__.items() if inspect.isclass(one)
        }
    said = " ".join(str(inspect.signature(one)) for one in functions)
    words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", said)))
    wanted = sorted(word for word in words if word in homes and not hasattr(builtins, word))
    lines = [f"from {homes[name]} import {name}" for name in wanted if name not in gpuscale.__all__]
    return sorted(lines)


def stub():
    """The text of the file."""
    found = {name: getattr(gpuscale, name) for name in gpuscale.__all__}
    functions = [one for one in found.values() if inspect.isfunction(one) and of_options(one)]
    apart = {one.__name__ for one in functions}
    lines = [HEAD, "", *imports(functions)]
    for module, names in gpuscale._NAMES.items():
        parts = ", ".join(f"{name} as {name}" for name in names.split() if name not in apart)
        lines += [f"from gpuscale.{module} import {parts}"] if parts else []
    lines += ["from gpuscale.version import __version__ as __version__", ""]
    return "\n".join([*lines, *map(written, functions)])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
