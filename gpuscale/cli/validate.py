"""`gpuscale validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured runs, kernels or collectives.")],
    by: Annotated[
        str, typer.Option(metavar="NAME", help="Group runs by family, framework, gpu, model or precision.")
    ] = "family",
    top: Annotated[int, typer.Option(metavar="N", help="Also list the N rows that are furthest off.")] = 0,
    plot: Annotated[bool, typer.Option("--plot", help="Also plot predicted against measured time.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (docs/json.md).")] = False,
) -> None:
    """Predict measured runs from their inputs alone, and show how far off the predictions are.

    Example: gpuscale validate runs.csv --by gpu

    The header tells what the file holds (docs/validation.md lists the columns). Exit code 1: no row was predicted.
    """
    from gpuscale.errors import InputError, NoAnswerError
    from gpuscale.render.validate import print_validation, print_validation_csv, print_validation_json
    from gpuscale.validation.validate import validate

    if not 0 <= top <= 10_000:
        raise InputError(f"{top} is out of range", place="--top", hint="give 0 to 10000")
    if json and csv:
        raise InputError("--json and --csv are two formats of the same rows", hint="give one of them")
    result = validate(file, by)
    if json:
        print_validation_json(result)
    elif csv:
        print_validation_csv(result)
    else:
        print_validation(result, top=top, plot=plot)
    if all(row.status == "unsupported" for row in result.rows):
        raise NoAnswerError(
            f"none of the {len(result.rows):,} rows could be predicted",
            place=str(file),
            hint=next(row.reason for row in result.rows),
        )
