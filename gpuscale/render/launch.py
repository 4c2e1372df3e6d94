"""What users see of exports: the files themselves, or where they lie."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuscale.files import printable
from gpuscale.launch.export import Export
from gpuscale.render.console import draw


def draw_export(made: Export, folder: Path | None) -> None:
    """Print every file under its name, or say where they were written; on stderr what to see to."""
    for text in made.warnings:
        sys.stderr.write(f"note: {printable(text)}\n")
    if folder is None:
        sys.stdout.write("\n".join(f"# ==> {one.path} <==\n{one.text}" for one in made.files))
        return
    draw(
        f"{made.target}: {len(made.files)} files in {printable(str(folder))}; `run.sh` starts the job on each node",
        [(one.path, f"{len(one.text.splitlines())} lines") for one in made.files],
    )
