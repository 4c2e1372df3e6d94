"""`gpuscale collective`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    op: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="allreduce, allgather, reducescatter, alltoall, broadcast, reduce or sendrecv.",
            show_default=False,
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="The whole (gathered, pre-scatter) tensor; for alltoall the send buffer of one GPU. 32MB or 32MiB.",
            show_default=False,
        ),
    ],
    level: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Level of the cluster.  [default: the innermost that holds the GPUs]"),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="A cluster preset or a TOML file.")
    ] = "dgx-h100-superpod",
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs that take part.  [default: all under the level]")
    ] = None,
    no_sharp: Annotated[bool, typer.Option("--no-sharp", help="No reduction in switches (NVLS, SHARP).")] = False,
    ideal: Annotated[
        bool, typer.Option("--ideal", help="Bytes over bandwidth only: no latency, full wire rate.")
    ] = False,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Force ring, tree, nvls, nvls-tree, collnet, pat or pairwise.  [default: the fastest, as NCCL]",
        ),
    ] = None,
    proto: Annotated[
        str | None, typer.Option(metavar="NAME", help="Force ll, ll128 or simple.  [default: the fastest, as NCCL]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Price one collective: time, bandwidth, and the level that binds.

    Example: gpuscale collective allreduce --bytes 32MB --level leaf
    """
    from gpuscale.collectives import price_collective
    from gpuscale.presets.hardware import load_cluster
    from gpuscale.render.collective import SCHEMA, collective_body, draw_collective
    from gpuscale.render.console import print_json
    from gpuscale.units import parse_bytes

    chosen, note = load_cluster(cluster), None
    if gpus is not None and gpus > chosen.gpus and level in {None, chosen.levels[-1].name}:
        chosen, note = chosen.sized_for(gpus)
    estimate = price_collective(
        chosen,
        op,
        parse_bytes(size),
        level=level,
        gpus=gpus,
        in_network_reduction=not no_sharp,
        ideal=ideal,
        forced=(algo, proto),
    )
    if as_json:
        print_json(SCHEMA, {**collective_body(estimate), "notes": [note] if note else []})
    else:
        draw_collective(estimate, note)
