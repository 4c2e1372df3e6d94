"""`gpuscale estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuscale.cli import options as shared
from gpuscale.cli.options import JOB, LAYOUT, MODEL_HELP, option


def _degree(flag: str, help_text: str, metavar: str = "N") -> typer.models.OptionInfo:
    return option(LAYOUT, flag, metavar, help_text)


def command(
    plan_file: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN.toml", help="A plan saved by `gpuscale plan -o`.", show_default=False),
    ] = None,
    model: Annotated[str | None, option(JOB, "--model -m", "NAME|PATH", MODEL_HELP)] = None,
    gpus: Annotated[int | None, option(JOB, "--gpus -n", "N", "GPUs of the job.")] = None,
    cluster: shared.Cluster = None,
    seq: shared.Seq = None,
    gbs: shared.Gbs = None,
    framework: shared.FrameworkName = None,
    precision: shared.Precision = None,
    optimizer: shared.Optimizer = None,
    grad_dtype: shared.GradDtype = None,
    master_dtype: shared.MasterDtype = None,
    moment_dtype: shared.MomentDtype = None,
    vocab_multiple: shared.VocabMultiple = None,
    memory_limit: shared.MemoryLimit = None,
    moe_imbalance: shared.MoeImbalance = None,
    gpus_per_node: shared.GpusPerNode = None,
    offload: shared.Offload = None,
    cp_comm: shared.CpComm = None,
    order: shared.Order = None,
    pipeline_split: shared.PipelineSplit = None,
    overlap: shared.Overlap = None,
    tp: Annotated[str | None, _degree("--tp", "Tensor parallel.  [default: 1]")] = None,
    sp: Annotated[
        str | None, _degree("--sp", "Sequence parallel.  [default: with TP, as the framework]", metavar="on|off")
    ] = None,
    pp: Annotated[str | None, _degree("--pp", "Pipeline stages.  [default: 1]")] = None,
    vpp: Annotated[str | None, _degree("--vpp", "Model chunks per pipeline rank.  [default: 1]")] = None,
    cp: Annotated[str | None, _degree("--cp", "Context parallel.  [default: 1]")] = None,
    ep: Annotated[str | None, _degree("--ep", "Expert parallel.  [default: 1]")] = None,
    etp: Annotated[str | None, _degree("--etp", "Tensor parallel inside experts.  [default: 1]")] = None,
    dp: Annotated[str | None, _degree("--dp", "Data parallel.  [default: what is left of the GPUs]")] = None,
    zero: Annotated[str | None, _degree("--zero", "ZeRO stage, 0 to 3.  [default: as the framework]")] = None,
    shard: Annotated[
        str | None, _degree("--shard", "GPUs that share one copy of the states.  [default: DP x CP]")
    ] = None,
    mbs: Annotated[str | None, _degree("--mbs", "Microbatch size, in sequences.  [default: 1]")] = None,
    recompute: Annotated[
        str | None, _degree("--recompute", "none, selective:..., full or full:N.  [default: none]", metavar="CHOICE")
    ] = None,
    schedule: Annotated[
        str | None,
        _degree("--schedule", "1f1b, gpipe, zb-h1, zb-2p, zb-v or dualpipe.  [default: 1f1b]", metavar="NAME"),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Price one layout: where each second and each GiB goes.

    Examples: gpuscale estimate plan.toml; gpuscale estimate --model llama3-70b --gpus 640 --tp 8 --pp 4
    """
    from gpuscale.planning import estimate_from
    from gpuscale.render.estimate import print_estimate, print_estimate_json

    layout = {"tp": tp, "sp": sp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": dp, "zero": zero}
    layout |= {"shard": shard, "micro_batch_size": mbs, "recompute": recompute, "schedule": schedule}
    job = shared.job_options(
        cluster=cluster, seq=seq, gbs=gbs, framework=framework, precision=precision, optimizer=optimizer,
        grad_dtype=grad_dtype, master_dtype=master_dtype, moment_dtype=moment_dtype,
        vocab_multiple=vocab_multiple, memory_limit_gib=memory_limit, moe_imbalance=moe_imbalance,
        gpus_per_node=gpus_per_node, offload=offload, cp_comm=cp_comm, axis_order=order,
        pipeline_split=pipeline_split, overlap=overlap,
    )  # fmt: skip
    given = {name: value for name, value in layout.items() if value is not None}
    result = estimate_from(plan_file, model, gpus, given, job)
    if json:
        print_estimate_json(result)
    else:
        print_estimate(result)
