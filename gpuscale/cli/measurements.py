"""`gpuscale validate`, `calibrate` and `tune`: predictions beside measurements, and what is fitted to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers, wrote
from gpuscale.cli.options import (
    FLAGS,
    OUTPUT,
    LaunchFiles,
    Variables,
    arguments,
    fills_stdout,
    known,
    option,
    stated_job,
    takes,
    whole,
)
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.files import printable, write_text
from gpuscale.request import JobOptions, Layout

if TYPE_CHECKING:
    from gpuscale.planning.calibrating import AskedRun
    from gpuscale.trials import Tuning


@answers("validate", csv=True)
def validate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="Measured runs, kernels or collectives, or recipes.")
    ],
    by: Annotated[
        str, option("Group runs by family, framework, gpu, model or precision.", "NAME", "family")
    ] = "family",
    top: Annotated[int, whole("Also list the N rows with the largest errors.")] = 0,
    plot: Annotated[bool, option("Also plot predicted against measured time.", "", flags="--plot")] = False,
    csv: bool = False,
    json: bool = False,
) -> Answer:
    """Predict measured runs from their inputs alone, and show the errors; hold recipes to our own first choices.

    Examples: gpuscale validate runs.csv --by gpu; gpuscale validate recipes.csv

    The header tells what the file holds (docs/validation.md lists the columns). Exit code 1: no row was predicted.
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.validation.scores import NOT_PREDICTED
    from gpuscale.validation.scores import validate as predict

    if not 0 <= top <= 10_000:
        raise InputError(f"{top} is out of range", field="top", hint="give 0 to 10000")
    commands = {"spelled": partial(arguments, "estimate")} if json or csv else {}  # tables show none
    with progress_bar() as progress:
        result = predict(file, by, progress=progress, **commands)
    if plot and result.kind == "recipes":
        raise InputError("recipes are not measured", field="plot", hint="`top=10` lists those furthest behind")

    def refuse_nothing() -> None:
        if all(row.status in NOT_PREDICTED for row in result.rows):
            hint = next(row.reason for row in result.rows)
            raise NoAnswerError(f"none of the {len(result.rows):,} rows could be predicted", place=str(file), hint=hint)

    return Answer(result, view={"top": top, "plot": plot}, rows=lambda: result.rows, then=refuse_nothing)


@answers("calibrate")
def calibrate_nccl(
    logs: Annotated[list[Path], typer.Argument(
        metavar="LOG", help="Output of nccl-tests, rccl-tests, nccom-test or torch all_reduce_bench, unedited.",
        show_default=False,
    )],
    cluster: Annotated[str, option("The cluster that was measured.", "NAME|PATH", flags=FLAGS["cluster"])],
    output: Annotated[
        Path | None, option("Write the cluster with the fitted curves to a TOML file.", "FILE", flags="--output -o")
    ] = None,
    op: Annotated[str | None, option("The operation measured.", "OP", "as the logs say")] = None,
    gpus: Annotated[int | None, whole("GPUs that were used.", default="as the logs say", flags=FLAGS["gpus"])] = None,
    per_host: Annotated[int | None, whole("GPUs per host.", default="as the logs say", flags="--gpus-per-node")] = None,
    holdout: Annotated[
        bool,
        option("Also cross-validate: fit every second size, show the errors of the others.", "", flags="--holdout"),
    ] = False,
    json: bool = False,
) -> Answer:  # fmt: skip
    """Fit latency and bandwidth of a cluster's collectives to logs of nccl-tests.

    Example: gpuscale calibrate nccl all_reduce.log --cluster aws-p5 -o my-cluster.toml

    Then `gpuscale plan --cluster my-cluster.toml` uses what was measured (docs/collectives.md).
    """
    from gpuscale.calibration.calibrate import calibrate as fit
    from gpuscale.calibration.calibrate import cluster_file_text
    from gpuscale.presets.hardware import cluster_file, load_cluster
    from gpuscale.render.measurements import calibration_json

    streamed = fills_stdout(output, other=json)
    cluster = known("clusters", cluster)
    source = cluster_file(cluster)
    result = fit(load_cluster(cluster), logs, op=op, gpus=gpus, per_host=per_host, holdout=holdout)
    for reason in result.left_out:
        typer.echo(f"warning: left out: {printable(reason)}", err=True)
    if output is not None:
        write_text(output, cluster_file_text(result, source, output))
    body = partial(calibration_json, result, output)
    return Answer(result, body=body, streamed=streamed, then=wrote(output, "cluster"))


@takes(JobOptions, Layout, optional=True)
@answers("calibrate-run")
def calibrate_run(
    given: dict[str, Any],
    logs: Annotated[list[Path], typer.Argument(
        metavar="LOG", help="Log of a training run as the framework printed it, or a trace of PyTorch's profiler.",
        show_default=False,
    )],
    plan: Annotated[
        list[Path] | None,
        option("The plan that ran, as `gpuscale plan -o` writes it: one for all logs, or one for each.", "FILE"),
    ] = None,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    measure: Annotated[
        bool, option("Print the measurements of one log; fit nothing.", "", flags="--measure", panel=OUTPUT)
    ] = False,
    run: Annotated[int | None, whole("Index of the run, where a log has several.", default="the longest")] = None,
    output: Annotated[
        Path | None, option("Write the calibration to a TOML file.", "FILE", flags="--output -o", panel=OUTPUT)
    ] = None,
    json: bool = False,
) -> Answer:  # fmt: skip
    """Fit predictions to your training runs: factors of your site with their uncertainty, from logs and plans.

    Examples: gpuscale calibrate run train.log --from run.sh -o site.toml;
    gpuscale calibrate run train.log --plan plan.toml -o site.toml; gpuscale calibrate run train.log --measure

    Then `--calibration site.toml` predicts with them. Given here, it is an earlier calibration to add these runs to.
    """
    from gpuscale.planning.calibrating import calibrate_runs, save_site

    if measure:
        return _measured(logs, run)
    streamed = fills_stdout(output, other=json)
    earlier = given.pop("calibration", None)
    options, layout = stated_job(given, plan[0] if plan else None, launch_files, var)
    asked = _asked(logs, run, plan or [], options, layout)
    result = calibrate_runs(asked, earlier=earlier, name=str(output) if output else "calibration")
    if output is not None:
        save_site(output, result)
    return Answer(result, streamed=streamed, then=wrote(output, "calibration"))


def _measured(logs: list[Path], run: int | None) -> Answer:
    from gpuscale.calibration.traces import read_run_log
    from gpuscale.render.measurements import measured_json

    if len(logs) != 1:
        raise InputError(f"{len(logs)} logs", field="measure", hint="measure one at a time")
    found = read_run_log(logs[0], run)
    return Answer(found, body=lambda: measured_json(found), name="measured-run")


def _asked(
    logs: list[Path], run: int | None, plans: list[Path], options: dict[str, Any], layout: dict[str, Any]
) -> list[AskedRun]:
    from gpuscale.calibration.traces import read_run_log
    from gpuscale.launch.subject import stated_plan
    from gpuscale.planning.calibrating import AskedRun

    if len(plans) not in {0, 1, len(logs)}:
        raise InputError(f"{len(plans)} plans for {len(logs)} logs", field="plan", hint="give one, or one for each log")
    asked = []
    for index, log in enumerate(logs):
        stated = stated_plan(plans[index % len(plans)] if plans else None, options, layout)
        asked.append(AskedRun(read_run_log(log, run), stated.options, stated.layout))
    return asked


@answers("calibrate-gpu")
def calibrate_gpu(
    recorded: Annotated[Path, option(
        "Measurement log, one per line; an interrupted run resumes from it, and without torch it is only fitted.",
        "FILE", "gpu-protocol.jsonl", flags="--protocol",
    )] = Path("gpu-protocol.jsonl"),
    gpu: Annotated[str | None, option("GPU preset to start from.", "NAME|PATH", "by its product name")] = None,
    device: Annotated[int, whole("Index of the GPU to measure.", default="0")] = 0,
    fit_only: Annotated[bool, option("Measure nothing; fit to the existing protocol.", "", flags="--fit-only")] = False,
    output: Annotated[
        Path | None, option("Write a GPU file with the fitted constants.", "FILE", flags="--output -o")
    ] = None,
    verbose: bool = False,
    json: bool = False,
) -> Answer:  # fmt: skip
    """Measure a GPU's kernels in minutes, and fit the constants that predictions use.

    Example: gpuscale calibrate gpu -o gpu.toml, then gpuscale plan --model llama3-8b --gpus 8 --set gpu=gpu.toml

    GEMMs by shape and precision, attention, memory, launches, the optimizer; collectives of several GPUs. Measuring
    needs torch (pip install 'gpuscale[gpu]'), fitting to a recorded protocol does not (docs/kernels.md).
    """
    from gpuscale.gpubench.calibrate import calibrate_gpu as measure_and_fit
    from gpuscale.gpubench.calibrate import gpu_file_text
    from gpuscale.render import machine as render

    streamed = fills_stdout(output, other=json)
    own = None if gpu is None else known("gpus", gpu)
    with render.progress_bar() as progress:
        found = measure_and_fit(recorded, gpu=own, device=device, fit_only=fit_only, progress=progress)
    if found.missing:
        said = f"{found.missing} measurements are missing: the same command on that machine resumes them"
        typer.echo(f"note: {said}", err=True)
    if output is not None:
        write_text(output, gpu_file_text(found.fit, found.protocol, found.base, output))
    return Answer(
        found, body=lambda: render.fit_json(found, output), view={"verbose": verbose}, streamed=streamed,
        then=wrote(output, "set gpu"),
    )  # fmt: skip


@answers("tune")
def tune(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="A study of trials.", show_default=False)],
    run: Annotated[
        bool,
        option("Run the study's command for trial after trial, until they end.", "", flags="--run", panel="Running"),
    ] = False,
) -> Answer:
    """Find the fastest layout on your machine: propose the next one to try, by predictions and by the logs so far.

    Example: gpuscale tune study.toml, with format = "gpuscale.trials/1" and a table [job] in it

    Each call reads the logs of the trials, calibrates to them, and writes the plan of the next into the study's folder;
    with --run, which runs the command in [trials] of the study, it goes on until trials end.
    """
    from gpuscale.trials import run_trials
    from gpuscale.trials import tune as propose

    state = run_trials(study, _tell) if run else propose(study)
    return Answer(state, then=_none_ran if state.stopped and state.best is None else None)


def _none_ran() -> None:
    raise typer.Exit(1)


def _tell(state: Tuning) -> None:
    from gpuscale.render.trials import trial_line

    typer.echo(printable(trial_line(state)), err=True)
