"""Packs the presets into one file of the wheel: names of hundreds would take as much as what is in them."""

from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PresetsHook(BuildHookInterface[Any]):
    """Adds `gpuscale/_presets.zip` to a wheel; an editable install reads the folder itself."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the archive, with the same bytes from the same files, beside the build's output."""
        if version == "editable":
            return
        root = Path(self.root)
        files = {path.relative_to(root / "presets").as_posix(): path for path in (root / "presets").rglob("*.*")}
        packed = Path(self.directory) / "_presets.zip"
        packed.parent.mkdir(parents=True, exist_ok=True)
        with ZipFile(packed, "w", ZIP_STORED) as archive:  # stored, so that the wheel compresses all files as one
            for name, path in sorted({**files, "SKILL.md": root / "docs" / "SKILL.md"}.items()):
                archive.writestr(ZipInfo(name), path.read_bytes())
        build_data["force_include"][str(packed)] = "gpuscale/_presets.zip"

    def finalize(self, *_: Any) -> None:
        """Remove the archive, which the wheel now holds."""
        Path(self.directory, "_presets.zip").unlink(missing_ok=True)
