"""`gpuscale schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import OUTPUT, AskedPlan, fills_stdout, option, takes, whole
from gpuscale.errors import InputError
from gpuscale.request import JobOptions, Layout, part

GIVEN = "Durations, without a model"


@takes(JobOptions, Layout, optional=True)
@answers("schedule")
def schedule(
    asked: AskedPlan,
    microbatches: Annotated[
        int | None, whole("Number of microbatches, without a model: only with --pp, --vpp, --schedule.", panel=GIVEN)
    ] = None,
    forward: Annotated[
        str | None,
        option("Duration of a microbatch's forward pass on a rank; 1,1,2,1 by rank.", "TIME", "1", panel=GIVEN),
    ] = None,
    backward: Annotated[
        str | None,
        option("Duration of the backward pass, both gradients.", "TIME", "twice the forward pass", panel=GIVEN),
    ] = None,
    weight: Annotated[
        str | None,
        option("Duration of the weight gradients within the backward pass.", "TIME", "half of it", panel=GIVEN),
    ] = None,
    transfer: Annotated[str | None, option("Duration of a transfer between ranks.", "TIME", "0", panel=GIVEN)] = None,
    jitter: Annotated[str, option("Random slowdown of each slot, up to this share.", "SHARE", "0")] = "0",
    seed: Annotated[int, whole("Seed of the jitter.", default="0")] = 0,
    trace: Annotated[
        Path | None, option("Write a trace for Perfetto or chrome://tracing.", "FILE", panel=OUTPUT)
    ] = None,
    svg: Annotated[Path | None, option("Write a picture.", "FILE", panel=OUTPUT)] = None,
    json: bool = False,
) -> Answer:
    """Simulate the pipeline of a plan, or of given durations, slot by slot, and draw it.

    Examples: gpuscale schedule plan.toml; gpuscale schedule --pp 4 --microbatches 8 --schedule zb-h1;
    gpuscale schedule --model llama3-70b --gpus 640 --tp 8 --pp 4 --trace trace.json
    """
    from gpuscale.explain.schedule import schedule as schedule_of_plan
    from gpuscale.explain.schedule import schedule_of_durations
    from gpuscale.files import write_texts

    durations = {"forward": forward, "backward": backward, "weight": weight, "transfer": transfer}
    files = {"trace": trace, "svg": svg}
    wanted = {kind: path for kind, path in files.items() if path is not None}
    streamed = False
    for kind, path in wanted.items():
        streamed |= fills_stdout(path, other=json or streamed, field=kind)
    noise: dict[str, Any] = {"jitter": jitter, "seed": seed}
    if microbatches is None:
        own = next((name for name, value in durations.items() if value is not None), None)
        if own:
            raise InputError("a plan has its own durations", field=own, hint="add `microbatches=8`")
        if not (asked.plan_file or asked.launch_files or "model" in asked.given):
            hint = "give `model` and `gpus`, or a plan file, or `microbatches=8` for a pipeline without a model"
            raise InputError("nothing to simulate", hint=hint)
        found = schedule_of_plan(asked.subject(), **noise)
    elif asked.plan_file or asked.launch_files or asked.var or part(asked.given, JobOptions):
        hint = "leave it out; or give `pp`, `vpp` and `schedule` alone"
        raise InputError("the batch of a plan says how many", field="microbatches", hint=hint)
    else:
        found = schedule_of_durations(part(asked.given, Layout), microbatches, durations, **noise)
    if wanted:
        from gpuscale.render.schedule import WRITERS

        write_texts([(path, WRITERS[kind](found)) for kind, path in wanted.items()])
    return Answer(found, streamed=streamed)
