"""`gpuscale size batch` and `gpuscale size`: which batch, which model, how many GPUs."""

from __future__ import annotations

from typing import Annotated, Any

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import option, takes
from gpuscale.cli.training import ASKED
from gpuscale.request import COMPARED, JobOptions, Layout, Length, Means, Noise, Question, Recovery

FOR_EACH = {name: "" for name in ASKED if name not in {"risk", "days"}}
"""Options of the many plans that are compared; how one of them stands noise is for `gpuscale plan` to say."""

BATCH = FOR_EACH | {
    "train_tokens": "Training tokens at small batch sizes, such as 15T.",
    "gbs": "Batch sizes to compare: 512,1024 or 4Mtok..64Mtok.",
    "noise_scale": "",
}


@takes(JobOptions, Layout, Question, Noise, Recovery, several=COMPARED, optional=True, only=BATCH)
@answers("batch-size")
def batch_size(
    given: dict[str, Any],
    gradient_norm: Annotated[
        list[str] | None,
        option("Batch size in tokens and the gradient norm at it: 512k=0.9; give two.", "BATCH=NORM", panel="Question"),
    ] = None,
    verbose: bool = False,
) -> Answer:
    """Find the critical batch size, and the batch size that trains fastest and costs least.

    Examples: gpuscale size batch --model llama3-70b --gpus 1024 --tokens 15T;
    gpuscale size batch --model llama3-8b --gpus 64,256 --tokens 1T --gradient-norm 512k=0.9 --gradient-norm 4M=0.5
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.scaling.batches import batch_size as find

    with progress_bar() as progress:
        result = find(gradient_norm=gradient_norm, progress=progress, **given)
    return Answer(result, view={"verbose": verbose})


SIZED = FOR_EACH | {
    "model": "The model, to find the fewest GPUs that meet a deadline.",
    "gpus": "Available GPUs, to find the model to train on them.",
    "train_tokens": "Tokens to train the model on, such as 15T.",
    "days": "Days that the GPUs are available, or the deadline.",
    "budget": "",
    "gbs": "Global batch size in sequences; chosen by GPUs and tokens if not given.",
}


@takes(JobOptions, Layout, Question, Length, Means, Recovery, optional=True, only=SIZED)
@answers("size")
def size(given: dict[str, Any], verbose: bool = False) -> Answer:
    """Find the best model to train on some GPUs and days, or a budget; or the GPUs that meet a deadline.

    Examples: gpuscale size --gpus 64 --days 14; gpuscale size --budget 1M;
    gpuscale size --model llama3-70b --tokens 15T --days 60
    """
    from gpuscale.render.machine import progress_bar
    from gpuscale.scaling.sizing import size as find

    with progress_bar() as progress:
        result = find(progress=progress, **given)
    return Answer(result, view={"verbose": verbose})
