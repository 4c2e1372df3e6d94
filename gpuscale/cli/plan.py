"""`gpuscale plan`."""

from pathlib import Path
from typing import Annotated

import typer

from gpuscale.cli import options as shared
from gpuscale.cli import questions as asked
from gpuscale.cli.options import LAYOUT, OUTPUT, option


def _pin(flag: str, help_text: str) -> typer.models.OptionInfo:
    return option(LAYOUT, flag, "SET", help_text)


def _output(flags: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    return option(OUTPUT, flags, metavar, help_text)


def command(
    model: shared.Model,
    gpus: asked.Gpus,
    cluster: asked.Clusters = None,
    seq: asked.Seq = None,
    gbs: asked.Gbs = None,
    framework: asked.Framework = None,
    precision: asked.Precision = None,
    optimizer: shared.Optimizer = None,
    grad_dtype: shared.GradDtype = None,
    master_dtype: shared.MasterDtype = None,
    moment_dtype: shared.MomentDtype = None,
    vocab_multiple: shared.VocabMultiple = None,
    memory_limit: shared.MemoryLimit = None,
    moe_imbalance: shared.MoeImbalance = None,
    gpus_per_node: shared.GpusPerNode = None,
    offload: asked.Offload = None,
    cp_comm: asked.CpComm = None,
    schedule: asked.Schedule = None,
    order: asked.Order = None,
    pipeline_split: asked.PipelineSplit = None,
    overlap: asked.Overlap = None,
    space: asked.Space = None,
    tp: Annotated[str | None, _pin("--tp", "Tensor parallel.")] = None,
    sp: Annotated[str | None, _pin("--sp", "Sequence parallel: on or off.")] = None,
    pp: Annotated[str | None, _pin("--pp", "Pipeline stages.")] = None,
    vpp: Annotated[str | None, _pin("--vpp", "Model chunks per pipeline rank.")] = None,
    cp: Annotated[str | None, _pin("--cp", "Context parallel.")] = None,
    ep: Annotated[str | None, _pin("--ep", "Expert parallel.")] = None,
    etp: Annotated[str | None, _pin("--etp", "Tensor parallel inside experts.")] = None,
    dp: Annotated[str | None, _pin("--dp", "Data parallel.")] = None,
    zero: Annotated[str | None, _pin("--zero", "ZeRO stage, 0 to 3.")] = None,
    shard: Annotated[str | None, _pin("--shard", "GPUs that share one copy of sharded states.")] = None,
    mbs: Annotated[str | None, _pin("--mbs", "Microbatch size, in sequences.")] = None,
    recompute: Annotated[
        str | None, _pin("--recompute", "Any of none, selective:layernorm+mlp, full, full:10 (layers per stage).")
    ] = None,
    objective: asked.Objective = None,
    pareto: asked.Pareto = None,
    gpu_hour_price: asked.GpuHourPrice = None,
    train_tokens: asked.TrainTokens = None,
    max_memory: asked.MaxMemory = None,
    min_mfu: asked.MinMfu = None,
    max_step_time: asked.MaxStepTime = None,
    max_days: asked.MaxDays = None,
    max_cost: asked.MaxCost = None,
    top: Annotated[int | None, _output("--top", "N", "Plans to show.  [default: 10; all of a frontier]")] = None,
    unfold: Annotated[
        bool,
        typer.Option("--all", help="Rank variants of a layout one by one, not only the best.", rich_help_panel=OUTPUT),
    ] = False,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust",
            help="Rank by the worst decile when network, kernels and the like are not as predicted.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    why: Annotated[
        str | None, _output("--why", "LAYOUT", "Say where a layout such as tp=4,pp=8 stands, or what rules it out.")
    ] = None,
    output: Annotated[Path | None, _output("--output -o", "FILE", "Save a plan as TOML, for `estimate`.")] = None,
    rank: Annotated[int, _output("--rank", "N", "The plan that -o saves.")] = 1,
    csv: Annotated[bool, typer.Option("--csv", help="Print the plans as CSV.", rich_help_panel=OUTPUT)] = False,
    json: shared.Json = False,
) -> None:
    """Find the best ways to split the training of a model over a cluster.

    Example: gpuscale plan --model llama3-70b --gpus 640

    A SET of values pins a dimension: 8, 4..8, 1,2,4, or !16 for all but 16.
    """
    from gpuscale.errors import InputError
    from gpuscale.planning import plan, save_plan
    from gpuscale.planning.planning import MAX_TOP
    from gpuscale.render.plan import print_plan_csv, print_plan_json, print_plans

    if json and csv:
        raise InputError("--json and --csv exclude each other", hint="give one of them")
    if rank != 1 and output is None:
        raise InputError("--rank chooses the plan that -o saves", place="--rank", hint="add -o plan.toml, or use --top")
    pins = {"tp": tp, "sp": sp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": dp, "zero": zero}
    pins |= {"shard": shard, "micro_batch_size": mbs, "recompute": recompute}
    if pareto is None:
        shown = 10 if top is None else top
        top = max(shown, min(rank, MAX_TOP)) if shown > 0 else shown
    options = shared.given_options(
        cluster=cluster, seq=seq, gbs=gbs, framework=framework, precision=precision, optimizer=optimizer,
        grad_dtype=grad_dtype, master_dtype=master_dtype, moment_dtype=moment_dtype,
        vocab_multiple=vocab_multiple, memory_limit_gib=memory_limit, moe_imbalance=moe_imbalance,
        gpus_per_node=gpus_per_node, offload=offload, cp_comm=cp_comm, schedule=schedule, axis_order=order,
        pipeline_split=pipeline_split, overlap=overlap, space=space, objective=objective, pareto=pareto,
        gpu_hour_price=gpu_hour_price, train_tokens=train_tokens, max_memory=max_memory, min_mfu=min_mfu,
        max_step_time=max_step_time, max_days=max_days, max_cost=max_cost, top=top, why=why,
    )  # fmt: skip
    result = plan(model, gpus, pins=shared.given_options(**pins), unfold=unfold, robust=robust, **options)
    if output is not None:
        save_plan(output, result, rank)
    if json:
        print_plan_json(result)
    elif csv:
        print_plan_csv(result)
    else:
        print_plans(result)
