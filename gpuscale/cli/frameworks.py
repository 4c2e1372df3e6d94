"""`gpuscale frameworks list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List and show framework profiles: how a step runs, and what can run.")

JSON = typer.Option("--json", help="Print JSON (schema gpuscale.frameworks/1) instead of tables.")


@app.callback()
def _root() -> None:
    pass


@app.command("list")
def list_command(json: Annotated[bool, JSON] = False) -> None:
    """List the framework profiles."""
    from gpuscale.presets.frameworks import all_framework_files
    from gpuscale.render.frameworks import print_list, print_list_json

    (print_list_json if json else print_list)(all_framework_files())


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Name of a profile, or an alias of it.", show_default=False)],
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show one profile with its sources, and the rules by which its framework runs."""
    from gpuscale.presets.frameworks import framework_file, framework_path
    from gpuscale.render.frameworks import print_profile, print_profile_json

    (print_profile_json if json else print_profile)(framework_path(name).stem, framework_file(name))
