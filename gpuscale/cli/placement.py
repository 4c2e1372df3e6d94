"""`gpuscale placement`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuscale.cli import options as shared
from gpuscale.cli.options import JOB, LAYOUT, MODEL_HELP, OUTPUT, option


def _degree(flag: str, help_text: str) -> typer.models.OptionInfo:
    return option(LAYOUT, flag, "N", help_text)


def _file(flag: str, help_text: str) -> typer.models.OptionInfo:
    return option(OUTPUT, flag, "FILE", help_text)


def command(
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN.toml", help="A plan saved by `gpuscale plan -o`.", show_default=False),
    ] = None,
    gpus: Annotated[int | None, option(JOB, "--gpus -n", "N", "GPUs of the job.")] = None,
    cluster: shared.Cluster = None,
    gpus_per_node: shared.GpusPerNode = None,
    tp: Annotated[str | None, _degree("--tp", "Tensor parallel.  [default: 1]")] = None,
    pp: Annotated[str | None, _degree("--pp", "Pipeline stages.  [default: 1]")] = None,
    cp: Annotated[str | None, _degree("--cp", "Context parallel.  [default: 1]")] = None,
    ep: Annotated[str | None, _degree("--ep", "Expert parallel.  [default: 1]")] = None,
    etp: Annotated[str | None, _degree("--etp", "Tensor parallel inside experts.  [default: 1]")] = None,
    dp: Annotated[str | None, _degree("--dp", "Data parallel.  [default: what is left of the GPUs]")] = None,
    order: Annotated[
        str | None,
        option(LAYOUT, "--order", "AXES", "The axes, from neighbouring ranks outwards.  [default: tp-cp-ep-dp-pp]"),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Look for a better order.", rich_help_panel="Best order")
    ] = False,
    model: Annotated[
        str | None, option("Best order", "--model -m", "NAME|PATH", f"Rank orders by its step time. {MODEL_HELP}")
    ] = None,
    seq: Annotated[int | None, option("Best order", "--seq", "N", "Tokens per sequence.  [default: 4096]")] = None,
    gbs: Annotated[int | None, option("Best order", "--gbs", "N", "Sequences per step.  [default: 4 M tokens]")] = None,
    ranks: Annotated[
        Path | None, _file("--ranks", "Write a CSV: node, GPU, rail, coordinates and groups of each rank.")
    ] = None,
    groups: Annotated[
        Path | None, _file("--groups", "Write a CSV: every group of every axis with its nodes, rails and ranks.")
    ] = None,
    hostfile: Annotated[Path | None, _file("--hostfile", "Write a hostfile (Open MPI, DeepSpeed).")] = None,
    rankfile: Annotated[Path | None, _file("--rankfile", "Write a rankfile (Open MPI).")] = None,
    slurm: Annotated[
        Path | None, _file("--slurm", "Write a SLURM_HOSTFILE, for `srun --distribution=arbitrary`.")
    ] = None,
    hosts: Annotated[
        Path | None, _file("--hosts", "Read names of nodes, one per line.  [default: node0001, node0002, ...]")
    ] = None,
    json: shared.Json = False,
) -> None:
    """Show which ranks form each group, what levels they span and what they share.

    Examples: gpuscale placement plan.toml; gpuscale placement --gpus 640 --tp 8 --pp 4 --best
    """
    from gpuscale.planning.placement import export_placement, place_ranks
    from gpuscale.presets.text import refuse_overwriting
    from gpuscale.render.placement import print_placement, print_placement_json

    files = {"ranks": ranks, "groups": groups, "hostfile": hostfile, "rankfile": rankfile, "slurm": slurm}
    wanted = {kind: path for kind, path in files.items() if path is not None}
    for path in wanted.values():
        refuse_overwriting(path, [read for read in (plan_file, hosts) if read is not None])
    layout = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "dp": dp}
    result = place_ranks(
        gpus,
        {name: value for name, value in layout.items() if value is not None},
        plan_file=plan_file, order=order, best=best, model=model, hosts=hosts,
        **shared.job_options(cluster=cluster, gpus_per_node=gpus_per_node, seq=seq, gbs=gbs),
    )  # fmt: skip
    export_placement(result, wanted)
    if json:
        print_placement_json(result)
    else:
        print_placement(result)
