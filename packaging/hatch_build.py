"""Packs the presets into one file of the wheel, compressed as a whole: they are many, small and alike."""

import lzma
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKED = "_presets.xz"

OF_TEXT = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
"""Settings of xz for text, as its manual recommends them."""


class PresetsHook(BuildHookInterface[Any]):
    """Adds `gpuscale/_presets.xz` to a wheel; an editable install reads the folder itself."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the archive, with the same bytes from the same files, beside the build's output."""
        if version == "editable":
            return
        root = Path(self.root)
        files = {path.relative_to(root / "presets").as_posix(): path for path in (root / "presets").rglob("*.*")}
        files["SKILL.md"] = root / "docs" / "SKILL.md"
        texts = [name.encode() + b"\n" + path.read_bytes() for name, path in sorted(files.items())]
        packed = Path(self.directory) / PACKED
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(b"\0".join(texts), filters=OF_TEXT))
        build_data["force_include"][str(packed)] = f"gpuscale/{PACKED}"

    def finalize(self, *_: Any) -> None:
        """Remove the archive, which the wheel now holds."""
        Path(self.directory, PACKED).unlink(missing_ok=True)
