"""What a wheel holds: the package without its comments and the docstrings that `help()` does not show, lines kept, and
the presets packed into one file, compressed as a whole, as they are many, small and alike. The sdist has everything as
it was written.

With ZOPFLI=1 in the environment, as for a release, the wheel is also compressed as far as its format allows (20 s, a
thirtieth less).
"""

import ast
import lzma
import os
import re
import tempfile
import tokenize
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OF_TEXT = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
"""Settings of xz for text, as its manual recommends them."""

ORDER = "tools frameworks failures rates SKILL.md known families clusters gpus models recipes library"
"""Folders of presets in the archive: alike beside alike."""

PRINTED = {"models", "gpus", "clusters", "frameworks"}
"""Folders of presets whose files a command prints as they are."""

WITH_ZOPFLI = os.environ.get("ZOPFLI") == "1"


class WheelHook(BuildHookInterface[Any]):
    """Fills a wheel; an editable install reads the repository itself."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what builds need beside hatchling."""
        return ["zopflipy>=1.14"] if WITH_ZOPFLI else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write what the wheel holds into a folder of its own, with the same bytes from the same files."""
        if version == "editable":
            return
        self.made = tempfile.TemporaryDirectory()
        fill(Path(self.made.name), Path(self.root))
        build_data["force_include"][self.made.name] = "gpuscale"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove that folder; with zopfli, write the wheel anew: the same files, smaller."""
        if version == "editable":
            return
        self.made.cleanup()
        if WITH_ZOPFLI:
            from zopfli import ZipFile as ZopfliFile  # noqa: PLC0415 - only then there

            wheel, smaller = Path(artifact_path), Path(f"{artifact_path}.part")
            with ZipFile(wheel) as files, ZopfliFile(smaller, "w") as packed:
                for file in files.infolist():  # which says its time and rights
                    packed.writestr(file, files.read(file))
            smaller.replace(wheel)


def fill(folder: Path, root: Path) -> None:
    """Write the package as a wheel has it into a folder."""
    for path in sorted((root / "gpuscale").rglob("*.*")):
        if path.is_file() and "__pycache__" not in path.parts:
            made = folder / path.relative_to(root / "gpuscale")
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(bare(path.read_bytes()) if path.suffix == ".py" else path.read_bytes())
    (folder / "_presets.xz").write_bytes(_packed(root))


def bare(code: bytes) -> bytes:
    """Return Python code without comments and docstrings of what is private; lines keep their numbers."""
    lines = code.splitlines(keepends=True)
    for token in tokenize.tokenize(BytesIO(code).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0] - 1
            lines[row] = lines[row].decode()[: token.start[1]].rstrip().encode() + b"\n"
    for said in _private_docstrings(ast.parse(code)):
        rows = range(said.lineno - 1, said.end_lineno or said.lineno)
        lines[rows.start : rows.stop] = [b"\n" for _ in rows]
    return b"".join(lines)


def _private_docstrings(within: ast.AST, *, private: bool = False) -> Iterator[ast.Expr]:
    """Yield docstrings of functions and classes whose names begin with `_`, and of what these hold."""
    for one in ast.iter_child_nodes(within):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = private or one.name.startswith("_") or not isinstance(within, ast.Module | ast.ClassDef)
            first, *more = one.body
            if inside and more and isinstance(first, ast.Expr) and ast.get_docstring(one) is not None:
                yield first
            yield from _private_docstrings(one, private=inside)


def _packed(root: Path) -> bytes:
    """Return the presets and the skill as one archive."""
    files = {path.relative_to(root / "presets").as_posix(): path for path in (root / "presets").rglob("*.*")}
    files["SKILL.md"] = root / "docs" / "SKILL.md"
    names = sorted(files, key=lambda name: (ORDER.find(name.partition("/")[0]), name))
    texts = [name.encode() + b"\n" + _kept(files[name]) for name in names]
    return lzma.compress(b"\0".join(texts), filters=OF_TEXT)


def _kept(path: Path) -> bytes:
    """Return what the wheel holds of a file: without lines of comments where no command prints it."""
    data = path.read_bytes()
    return data if path.suffix != ".toml" or path.parent.name in PRINTED else re.sub(rb"(?m)^#.*\n", b"", data)
