"""The command line: parse, call the library, draw. Nothing else happens here.

Modules of this package import only typer at the top; the library and Rich are imported inside the commands, so that
`gpuscale --help` stays instant.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuscale.cli.commands import LazyGroup
from gpuscale.errors import GpuscaleError

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""`ClickException`, base of every usage error; newer versions of Typer carry their own copy of Click."""

app = typer.Typer(
    name="gpuscale",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Plan the parallelism of LLM training: the best layouts for a model on a cluster, ranked, with reasons.",
    epilog="Exit codes: 0 an answer, 1 no answer (nothing fits), 2 unusable input.",
)


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
    """Run the command line and exit, in a process that others have set up (`gpuscale.__main__` is the command)."""
    sys.exit(run())


def run() -> int:
    """Run the command line; turn errors into one message on stderr and an exit code."""
    if hasattr(signal, "SIGPIPE"):  # when the reader of a pipe leaves, end as every other Unix tool does
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the process began
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    try:
        code = app(prog_name="gpuscale", standalone_mode=False)
    except GpuscaleError as error:
        code = _report(error.message, error.exit_code, place=error.place, hint=error.hint)
    except USAGE_ERROR as error:
        code = _report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except (
        OSError
    ) as error:  # stdout: a full disk, a closed descriptor; what the library reads and writes reports itself
        code = _report_output(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _report_output(error)
    return code if isinstance(code, int) else 0


def _report(message: str, exit_code: int, *, place: str | None = None, hint: str | None = None) -> int:
    lines = [f"error: {place}: {message}" if place else f"error: {message}"]
    if hint:
        lines += ["", f"hint: {hint}"]
    with contextlib.suppress(OSError):  # nowhere to say it: the exit code does
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    return exit_code


def _report_output(error: OSError) -> int:
    """Say that the answer could not be written, and write what is left of it nowhere."""
    code = _report(f"cannot write the output: {error.strerror or error}", 2)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _report_usage(error: Exception) -> int:
    """Say what Typer found wrong: a missing or unknown option, a value of the wrong type."""
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gpuscale"
    exit_code = int(getattr(error, "exit_code", 2))
    if message.startswith("Usage:"):  # no arguments: the message is the help page
        sys.stderr.write(message + "\n")
        return exit_code
    said = message[:1].lower() + message[1:300].rstrip(".\n ")
    return _report(" ".join(said.split()), exit_code, hint=f"`{path} --help` lists what it takes")
