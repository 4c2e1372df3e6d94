"""Where an answer goes: to the terminal, as JSON, CSV or Markdown to standard output, as a page to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from gpuscale.cli.options import OUTPUT, Json, fills_stdout, flags_of, with_flags
from gpuscale.errors import InputError
from gpuscale.files import printable, refuse_output, same_file, write_text
from gpuscale.render.output import json_type, print_csv, print_json

FORMATS = {
    "html": Annotated[
        Path | None,
        typer.Option(
            "--html", help="Also write a self-contained HTML page with tables and charts.", metavar="FILE",
            rich_help_panel=OUTPUT, show_default=False,
        ),
    ],
    "csv": Annotated[bool, typer.Option("--csv", help="Print CSV.", rich_help_panel=OUTPUT)],
    "markdown": Annotated[bool, typer.Option("--markdown", help="Print Markdown.", rich_help_panel=OUTPUT)],
    "link": Annotated[
        bool, typer.Option("--link", help="Print an address that holds the answer (docs/reports.md).",
                           rich_help_panel=OUTPUT)
    ],
    "json": Json,
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print every assumption and rule.", rich_help_panel=OUTPUT)
    ],
}  # fmt: skip
"""Options of the output; a command has all of them but `csv`, `link` and `verbose`, which it asks for."""


class Answer(NamedTuple):
    """What a command answers."""

    found: Any  #: the result, which has a document.
    body: Callable[[], Any] | None = None  #: makes what JSON has where that is not the fields of the result.
    view: Mapping[str, Any] = {}  #: how the document is to be: `verbose`, `depth` and the like.
    rows: Callable[[], Any] = tuple
    name: str | None = None  #: of the JSON's schema where that is not the command's.
    more: Mapping[str, Any] = {}  #: keys of the JSON beside the fields.
    then: Callable[[], None] | None = None  #: what is done after it was printed.
    streamed: bool = False  #: a file that the command wrote was standard output, which then holds nothing else.


def answers(
    name: str, *, csv: bool = False, link: bool = False
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """Give a command that returns its answer the options of the output, and print the answer as they say.

    A command that has a parameter of the name of such an option receives it too.

    Args:
        name: of the schema of its JSON.
        csv: it has rows.
        link: it fits into an address.
    """
    wanted = [*(["csv"] if csv else []), "html", "markdown", *(["link"] if link else []), "json"]

    def wrap(command: Callable[..., Answer | None]) -> Callable[..., None]:
        own = signature(command, eval_str=True).parameters

        def run(*given: Any, **values: Any) -> None:
            asked = {one: values[one] for one in wanted}
            html = asked["html"]
            formats = [one for one in wanted if one != "html" and asked[one]]
            if len(formats) > 1:
                one, other = formats[0], formats[-1]
                raise InputError(f"`{other}` and `{one}` are two formats of the same answer", hint="give one of them")
            streamed = html is not None and fills_stdout(html, other=bool(formats), field="html")
            if html is not None:
                refuse_output(html)  # before the command writes files of its own
            made = command(*given, **{key: value for key, value in values.items() if key in own})
            if made is None:
                return
            if html is not None:
                write_text(html, _written(made, "html"))
            if not (streamed or made.streamed):
                _print(made, name, formats[0] if formats else "")
            if made.then is not None:
                made.then()

        every = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own.values() if one.name not in FORMATS]
        wanted_too = [*wanted, *(["verbose"] if "verbose" in own else [])]
        kinds = {one: None if one == "html" else False for one in wanted_too}
        every += [
            Parameter(one, Parameter.KEYWORD_ONLY, default=default, annotation=FORMATS[one])
            for one, default in kinds.items()
        ]
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in every}
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return wrap


def _print(made: Answer, name: str, form: str) -> None:
    if form == "json":
        print_json(made.name or name, made.found if made.body is None else made.body(), **made.more)
    elif form == "csv":
        print_csv(made.rows())
    elif form == "link":
        from gpuscale.render.html.address import link

        body = made.found if made.body is None else made.body()
        sys.stdout.write(link(f"gpuscale.{made.name or name}/1", json_type(body)) + "\n")
    elif form:
        sys.stdout.write(_written(made, form))
    else:
        from gpuscale.render.answers import show

        show(made.found, spell=with_flags, **made.view)


def _written(made: Answer, form: str) -> str:
    from gpuscale.render.answers import written

    return written(made.found, form, spell=with_flags, **made.view)


def apart(html: Path | None, output: Path | None) -> None:
    """Refuse a page in the same file as another output."""
    if html is not None and output is not None and same_file(html, output):
        raise InputError("two documents in one file", field="html", hint="give another file")


def wrote(output: Path | None, option: str) -> Callable[[], None] | None:
    """Return what says that a file was written, and how it is used."""
    if output is None:
        return None
    name, _, key = option.partition(" ")
    use = f"{flags_of(name)[0]} {key}{'=' * bool(key)}{output}"
    return lambda: typer.echo(printable(f"wrote {output}: use it with {use}"), err=True)
