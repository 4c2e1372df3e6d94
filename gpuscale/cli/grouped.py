"""Help pages in plain text, options under their headings.

Typer's own grouped help needs Rich with its Markdown parser, which takes longer to import than everything else that
`gpuscale --help` does.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


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
