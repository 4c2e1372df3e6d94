"""Where output goes: data to stdout, everything else to stderr; 100 columns unless the terminal says otherwise."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gpuscale.render.plain import WIDTH, chosen_width


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout (or stderr) that honours NO_COLOR, COLUMNS and pipes."""
    stream = sys.stderr if stderr else sys.stdout
    width = chosen_width() or (None if stream.isatty() else WIDTH)
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, title: str | None = None, gap: int = 2
) -> Table:
    """Build an aligned table; the first `left` columns are text, the others numbers (right-aligned), `gap` apart."""
    drawn = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, padding=(0, gap - 1, 0, 0)
    )
    for index, header in enumerate(headers):
        drawn.add_column(header, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def print_wrapped(out: Console, text: str) -> None:
    """Print a text of one line; what does not fit the width goes on below, broken between words."""
    out.print("\n".join(textwrap.wrap(text, out.width, break_on_hyphens=False)), soft_wrap=True)


def report(message: str) -> None:
    """Write a line for the person at the terminal to stderr."""
    console(stderr=True).print(message)
