"""`gpuscale models list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List and show models: shape, parameters, FLOPs per token.")

JSON = typer.Option("--json", help="Print JSON (schema gpuscale.models/1) instead of tables.")


@app.callback()
def _root() -> None:
    pass


@app.command("list")
def list_command(
    family: Annotated[str | None, typer.Option("--family", help="Only this family, such as llama3 or qwen3.")] = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """List the models that can be planned by name."""
    from gpuscale.architecture.parameters import model_parameters
    from gpuscale.presets.models import models_of_family
    from gpuscale.render import models as render

    counted = [(model, model_parameters(model)) for model in models_of_family(family)]
    counted.sort(key=lambda pair: (pair[0].family, pair[1].total, pair[0].name))
    if json:
        render.print_list_json(counted)
    else:
        render.print_list(counted)


@app.command("show")
def show_command(
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model's name, a model file (.toml), or a Hugging Face config.json."),
    ],
    seq: Annotated[
        int | None,
        typer.Option("--seq", metavar="TOKENS", help="Sequence length of the FLOPs; default 4096, or the model's."),
    ] = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Show one model: its shape, its parameters item by item, and its FLOPs per token."""
    from gpuscale.architecture.flops import CONVENTIONS, checked_sequence, forward_flops
    from gpuscale.architecture.parameters import model_parameters
    from gpuscale.presets.models import load_model
    from gpuscale.render import models as render

    model = load_model(name)
    sequence = checked_sequence(model, seq)
    flops = {convention: forward_flops(model, sequence, convention) for convention in CONVENTIONS}
    if json:
        render.print_model_json(model, model_parameters(model), sequence, flops)
    else:
        render.print_model(model, model_parameters(model), sequence, flops)
