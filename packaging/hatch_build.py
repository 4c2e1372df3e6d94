"""Packs the presets into one file of the wheel, compressed as a whole: they are many, small and alike. With ZOPFLI=1 in
the environment, as for a release, the wheel is also compressed as far as its format allows (20 s, a thirtieth less).
"""

import lzma
import os
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKED = "_presets.xz"

OF_TEXT = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
"""Settings of xz for text, as its manual recommends them."""

ORDER = "tools frameworks failures rates SKILL.md known families clusters gpus models recipes library"
"""Folders of presets in the archive: alike beside alike."""

PRINTED = {"models", "gpus", "clusters", "frameworks"}
"""Folders of presets whose files a command prints as they are."""

WITH_ZOPFLI = os.environ.get("ZOPFLI") == "1"


class WheelHook(BuildHookInterface[Any]):
    """Adds `gpuscale/_presets.xz` to a wheel; an editable install reads the folder itself."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what builds need beside hatchling."""
        return ["zopflipy>=1.14"] if WITH_ZOPFLI else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the archive, with the same bytes from the same files, beside the build's output."""
        if version == "editable":
            return
        root = Path(self.root)
        files = {path.relative_to(root / "presets").as_posix(): path for path in (root / "presets").rglob("*.*")}
        files["SKILL.md"] = root / "docs" / "SKILL.md"
        names = sorted(files, key=lambda name: (ORDER.find(name.partition("/")[0]), name))
        texts = [name.encode() + b"\n" + _kept(files[name]) for name in names]
        packed = Path(self.directory) / PACKED
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(b"\0".join(texts), filters=OF_TEXT))
        build_data["force_include"][str(packed)] = f"gpuscale/{PACKED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove the archive, which the wheel now holds; with zopfli, write the wheel anew: the same files, smaller."""
        Path(self.directory, PACKED).unlink(missing_ok=True)
        if WITH_ZOPFLI and version != "editable":
            from zopfli import ZipFile as ZopfliFile  # noqa: PLC0415 - only then there

            wheel, smaller = Path(artifact_path), Path(f"{artifact_path}.part")
            with ZipFile(wheel) as files, ZopfliFile(smaller, "w") as packed:
                for file in files.infolist():  # which says its time and rights
                    packed.writestr(file, files.read(file))
            smaller.replace(wheel)


def _kept(path: Path) -> bytes:
    """Return what the wheel holds of a file: without lines of comments where no command prints it."""
    data = path.read_bytes()
    return data if path.suffix != ".toml" or path.parent.name in PRINTED else re.sub(rb"(?m)^#.*\n", b"", data)
