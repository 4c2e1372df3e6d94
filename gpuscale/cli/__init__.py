"""The command line: parse, call the library, draw. Nothing else happens here.

Modules of this package import only typer at the top; the library and Rich are imported inside the commands, so that
`gpuscale --help` stays instant.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpuscale.cli import clusters, collective, estimate, hardware, models, plan, roofline
from gpuscale.errors import GpuscaleError

app = typer.Typer(
    name="gpuscale",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Plan the parallelism of LLM training: the best layouts for a model on a cluster, ranked, with reasons.",
)
app.command("plan")(plan.command)
app.command("estimate")(estimate.command)
app.command("collective")(collective.command)
app.command("roofline")(roofline.command)
app.add_typer(models.app, name="models")
app.add_typer(hardware.app, name="hardware")
app.add_typer(clusters.app, name="clusters")


def _version(value: bool) -> None:
    if value:
        from gpuscale import __version__

        typer.echo(f"gpuscale {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; turn errors into one message on stderr and an exit code."""
    try:
        app()
    except GpuscaleError as error:
        sys.exit(_report(error))
    except BrokenPipeError:  # the reader of a pipe left; nobody is there to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _report(error: GpuscaleError) -> int:
    head = f"{error.place}: {error.message}" if error.place else error.message
    lines = [f"error: {head}"]
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    sys.stderr.write("\n".join(lines) + "\n")
    return error.exit_code
