"""`gpuscale calibrate nccl`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Fit a cluster to your own measurements.")


@app.command("nccl")
def nccl(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG",
            help="Output of nccl-tests, rccl-tests, nccom-test or torch all_reduce_bench, as it was printed.",
            show_default=False,
        ),
    ],
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", "-c", metavar="NAME|PATH", help="The cluster on which they were measured.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the cluster with the fitted curves to a TOML file."),
    ] = None,
    op: Annotated[
        str | None, typer.Option(metavar="OP", help="The operation measured.  [default: as the logs say]")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs that took part.  [default: as the logs say]")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Of which on each host.  [default: as the logs say]")
    ] = None,
    holdout: Annotated[
        bool, typer.Option("--holdout", help="Show the errors at every other size, fitted on the rest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit latency and bandwidth of a cluster's collectives to logs of nccl-tests.

    Example: gpuscale calibrate nccl all_reduce.log --cluster aws-p5 -o my-cluster.toml

    Then `gpuscale plan --cluster my-cluster.toml` uses what was measured (docs/collectives.md).
    """
    from gpuscale.calibration.calibrate import calibrate, told
    from gpuscale.calibration.clusterfile import cluster_file_text
    from gpuscale.presets.hardware import cluster_file, load_cluster
    from gpuscale.presets.text import refuse_overwriting, write_text
    from gpuscale.render.calibration import draw_calibration, print_calibration_json

    if output is not None:
        refuse_overwriting(output, logs)
    source = cluster_file(cluster)
    result = calibrate(load_cluster(cluster), logs, told(op, gpus, gpus_per_node), holdout=holdout)
    for reason in result.left_out:
        typer.echo(f"warning: left out: {reason}", err=True)
    if output is not None:
        write_text(output, cluster_file_text(source, output, result.cluster.calibration, result.fits))
    if as_json:
        print_calibration_json(result, output)
    else:
        draw_calibration(result)
    if output is not None:
        typer.echo(f"wrote {output}: use it with --cluster {output}", err=True)
