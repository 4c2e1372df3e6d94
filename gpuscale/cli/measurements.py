"""`gpuscale validate` and `calibrate`: predictions beside measurements, and clusters fitted to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gpuscale.calibration.calibrate import calibrate as fit
from gpuscale.calibration.calibrate import cluster_file_text
from gpuscale.calibration.training_logs import read_training_log
from gpuscale.cli.options import (
    FLAGS,
    Csv,
    Json,
    arguments,
    fills_stdout,
    known,
    option,
    refuse_two_formats,
    with_flags,
)
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.files import printable, write_text
from gpuscale.presets.hardware import cluster_file, load_cluster
from gpuscale.render.output import print_csv, print_json
from gpuscale.validation.scores import validate as predict


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured runs, kernels or collectives.")],
    by: Annotated[
        str, option("Group runs by family, framework, gpu, model or precision.", "NAME", "family")
    ] = "family",
    top: Annotated[int, option("Also list the N rows that are furthest off.")] = 0,
    plot: Annotated[bool, option("Also plot predicted against measured time.", "", flags="--plot")] = False,
    csv: Csv = False,
    json: Json = False,
) -> None:
    """Predict measured runs from their inputs alone, and show how far off the predictions are.

    Example: gpuscale validate runs.csv --by gpu

    The header tells what the file holds (docs/validation.md lists the columns). Exit code 1: no row was predicted.
    """
    from gpuscale.render.measurements import draw_validation

    if not 0 <= top <= 10_000:
        raise InputError(f"{top} is out of range", field="top", hint="give 0 to 10000")
    refuse_two_formats(json=json, csv=csv)
    result = predict(file, by, spelled=partial(arguments, "estimate"))
    if json:
        print_json("validate", result)
    elif csv:
        print_csv(result.rows)
    else:
        draw_validation(result, top=top, plot=plot)
    if all(row.status == "unsupported" for row in result.rows):
        hint = next(row.reason for row in result.rows)
        raise NoAnswerError(f"none of the {len(result.rows):,} rows could be predicted", place=str(file), hint=hint)


calibrate = typer.Typer(no_args_is_help=True, help="Fit predictions to your own measurements.")


@calibrate.command("nccl")
def calibrate_nccl(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG",
            help="Output of nccl-tests, rccl-tests, nccom-test or torch all_reduce_bench, as it was printed.",
            show_default=False,
        ),
    ],
    cluster: Annotated[str, option("The cluster on which they were measured.", "NAME|PATH", flags=FLAGS["cluster"])],
    output: Annotated[
        Path | None, option("Write the cluster with the fitted curves to a TOML file.", "FILE", flags="--output -o")
    ] = None,
    op: Annotated[str | None, option("The operation measured.", "OP", "as the logs say")] = None,
    gpus: Annotated[int | None, option("GPUs that took part.", default="as the logs say", flags=FLAGS["gpus"])] = None,
    per_host: Annotated[
        int | None, option("Of which on each host.", default="as the logs say", flags="--gpus-per-node")
    ] = None,
    holdout: Annotated[
        bool, option("Show the errors at every other size, fitted on the rest.", "", flags="--holdout")
    ] = False,
    json: Json = False,
) -> None:
    """Fit latency and bandwidth of a cluster's collectives to logs of nccl-tests.

    Example: gpuscale calibrate nccl all_reduce.log --cluster aws-p5 -o my-cluster.toml

    Then `gpuscale plan --cluster my-cluster.toml` uses what was measured (docs/collectives.md).
    """
    from gpuscale.render.measurements import calibration_json, draw_calibration

    streamed = fills_stdout(output, other=json)
    cluster = known("clusters", cluster)
    source = cluster_file(cluster)
    result = fit(load_cluster(cluster), logs, op=op, gpus=gpus, per_host=per_host, holdout=holdout)
    for reason in result.left_out:
        typer.echo(f"warning: left out: {printable(reason)}", err=True)
    if output is not None:
        write_text(output, cluster_file_text(result, source, output))
    if streamed:
        return
    if json:
        print_json("calibrate", calibration_json(result, output))
    else:
        draw_calibration(result)
    if output is not None:
        typer.echo(printable(f"wrote {output}: use it with --cluster {output}"), err=True)


@calibrate.command("run")
def calibrate_run(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG", help="Log of a training run, as the framework printed it.", show_default=False),
    ],
    measure: Annotated[bool, option("Print what the log measured, and fit nothing.", "", flags="--measure")] = False,
    run: Annotated[int | None, option("Which run of a log that has several.", default="the longest")] = None,
    json: Json = False,
) -> None:
    """Read the log of a training run: time per iteration, jitter, throughput, memory.

    Example: gpuscale calibrate run train.log --measure
    """
    from gpuscale.render.measurements import draw_measured, measured_json

    if not measure:
        raise InputError("only `measure` is there yet", field="measure", hint="add `measure`")
    if len(logs) != 1:
        raise InputError(f"{len(logs)} logs", place="LOG", hint="measure one at a time")
    found = read_training_log(logs[0], run)
    if json:
        print_json("measured-run", measured_json(found))
    else:
        draw_measured(found, spell=with_flags)
