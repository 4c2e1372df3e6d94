"""The commands: built when they are used, with help pages in plain text.

Building the 70 options of all commands, and importing Rich with its Markdown parser for Typer's own help pages, would
each take longer than everything else that `gpuscale --help` does.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any, no_type_check

import typer
from typer.core import TyperCommand, TyperGroup

from gpuscale.errors import unknown_name

COMMANDS = {
    "plan": "Find the best layouts of a training job.",
    "estimate": "Price one layout in seconds and GiB.",
    "placement": "Place ranks and groups on nodes and rails.",
    "collective": "Price one collective operation.",
    "roofline": "Show from where on compute binds.",
    "validate": "Hold predictions against measured runs.",
    "calibrate": "Fit a cluster to your own measurements.",
    "models": "List and show models.",
    "hardware": "List and show GPUs.",
    "clusters": "List and show clusters.",
    "frameworks": "List and show framework profiles.",
    "bench": "Measure how fast plans are found here.",
}
"""Module of this package -> its line in `gpuscale --help`. A module has a function `command`, or `app` with several."""


class GroupedCommand(TyperCommand):
    """A command whose help lists options by their `rich_help_panel`, in the order in which the panels first appear."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then each group of options as a section of its own."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class LazyGroup(TyperGroup):
    """The root: knows the names of all commands, and builds the one that is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Click's signature
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Build a command.

        Raises:
            InputError: no command has the name.
        """
        if cmd_name not in COMMANDS:
            raise unknown_name("command", cmd_name, COMMANDS, "gpuscale --help")
        return build_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of commands without building them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def build_command(name: str) -> Any:
    """Import a command's module and build the command, or the group of commands, from it."""
    module = import_module(f"gpuscale.cli.{name}")
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.callback()(_nothing)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name)
    else:
        command = no_type_check(module.command)  # Typer reads options from the signature, and needs no plain types
        command.__signature__ = signature(command, eval_str=True)  # it asks for it twice
        holder.command(name, cls=GroupedCommand)(command)
    return typer.main.get_command(holder).commands[name]  # type: ignore[attr-defined]


def _nothing() -> None:
    """Make a Typer application with one command a group."""
