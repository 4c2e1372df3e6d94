"""`gpuscale roofline`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="A model preset, a TOML file or a Hugging Face config.json.")
    ] = "llama3-70b",
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATH",
            help="A cluster preset or a TOML file; may be repeated.  [default: an H100, a B200 and an NVL72 cluster]",
        ),
    ] = None,
    precision: Annotated[str, typer.Option(metavar="NAME", help="fp32, tf32, bf16, fp16, fp8 or fp4.")] = "bf16",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show from which batch size, and up to which degree, training is bound by compute.

    Example: gpuscale roofline --model deepseek-v3 --cluster dgx-h100-superpod
    """
    from gpuscale.errors import InputError
    from gpuscale.presets.hardware import load_cluster
    from gpuscale.presets.models import load_model
    from gpuscale.render.plain import print_json
    from gpuscale.render.roofline import SCHEMA, draw_roofline, roofline_body
    from gpuscale.rooflines import DEFAULT_CLUSTERS, roofline

    names = tuple(cluster) if cluster else DEFAULT_CLUSTERS
    if len(names) > 32:
        raise InputError(f"{len(names)} clusters are too many", place="--cluster", hint="give at most 32")
    result = roofline(load_model(model), tuple(load_cluster(name) for name in names), precision)
    if as_json:
        print_json(SCHEMA, roofline_body(result))
    else:
        draw_roofline(result)
