"""`gpuscale fleet`."""

from __future__ import annotations

from typing import Any

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import takes
from gpuscale.errors import InputError
from gpuscale.request import COMPARED, OF_FLEETS, JobOptions, Layout, Question, Sites, declared

FLEET = dict.fromkeys(
    (*(name for name in declared(JobOptions) if name != "gpus"), *declared(Layout),
     *OF_FLEETS, *declared(Sites)), ""
) | {"gpu_hour_price": "Price of a GPU-hour, for all pools or one; repeatable."}  # fmt: skip


@takes(JobOptions, Layout, Question, Sites, several=COMPARED, optional=True, only=FLEET)
@answers("fleet")
def fleet(given: dict[str, Any], verbose: bool = False) -> Answer:
    """Compare ways to use a heterogeneous cluster: all paced by the slowest, some idle, or work split by speed.

    Example: gpuscale fleet --model llama3-70b --cluster fleet.toml

    The cluster is a file with [[pools]]; all of its GPUs may be used.
    """
    from gpuscale.fleets.comparing import fleet as find

    clusters = given.pop("cluster", None)
    for name, value in (("model", given.get("model")), ("cluster", clusters)):
        if not value:
            raise InputError("is missing", field=name, hint="give a model, and a cluster file with [[pools]]")
    if len(clusters) > 1:
        raise InputError("is one file", field="cluster", hint="ask about one fleet at a time")
    return Answer(find(cluster=clusters[0], **given), view={"verbose": verbose})
