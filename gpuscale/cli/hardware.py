"""`gpuscale hardware list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List the GPUs, or show one with the source of every number.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON (gpuscale.hardware/1) instead of a table.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the GPUs: dense TFLOP/s, memory, links."""
    from gpuscale.presets.hardware import all_gpus
    from gpuscale.render import hardware as render

    gpus = all_gpus()
    render.hardware_list_json(gpus) if json else render.hardware_list(gpus)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A GPU's name or alias, or the path of a TOML file.")],
    json: Json = False,
) -> None:
    """Show one GPU: its numbers, what follows from them, and where they come from."""
    from gpuscale.presets.hardware import load_gpu
    from gpuscale.render import hardware as render

    gpu = load_gpu(name)
    render.hardware_show_json(gpu) if json else render.hardware_show(gpu)
