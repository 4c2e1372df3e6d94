"""`gpuscale hardware list|show`."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="List and show hardware.")


@app.callback()
def _root() -> None:
    pass
