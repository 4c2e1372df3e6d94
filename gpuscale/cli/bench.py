"""`gpuscale bench`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME|PATH", help="As for `gpuscale plan`.")
    ] = "llama3-70b",
    gpus: Annotated[int, typer.Option("--gpus", "-n", metavar="N", help="GPUs of the job.")] = 640,
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="Times to plan; the fastest counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document (docs/json.md).")] = False,
) -> None:
    """Measure how fast plans are found on this machine: candidates per second, time by stage, memory.

    Example: gpuscale bench --model deepseek-v3 --gpus 2048
    """
    import time

    from gpuscale.planning.bench import bench
    from gpuscale.render.bench import SCHEMA, bench_body, draw_bench, draw_into_nothing
    from gpuscale.render.plain import print_json

    result = bench(model, gpus, runs=runs, startup_s=time.process_time(), draw=draw_into_nothing)
    if as_json:
        print_json(SCHEMA, bench_body(result))
    else:
        draw_bench(result)
