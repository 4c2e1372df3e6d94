"""Ways that any framework runs: all GPUs as if they were the slowest, and one pool alone."""

from __future__ import annotations

from gpuscale.fleets.ways import Fleet, Pool, Way
from gpuscale.planning.jobs import Job
from gpuscale.planning.plans import plan
from gpuscale.request import in_sequences
from gpuscale.results import PlanRow

ANY = "any framework"


def alike(fleet: Fleet) -> Way:
    """Return the best plan that treats all GPUs as if they were the slowest, as `plan` finds it.

    Raises:
        GpuscaleError: there is none.
    """
    row = _best(fleet, fleet.whole.job)
    whole, parts = fleet.spec.gpus, []
    for pool in fleet.pools:
        own = pool.spec.gpus
        sequences = round(row.global_batch_size * own / whole)
        parts.append(fleet.part(pool, row, fleet.spec, sequences, row.tokens_per_s * own / whole))
    text = "every pool does the same, as fast as the slowest"
    return fleet.way("alike", text, parts, row.step_time_s, [row], ANY)


def alone(fleet: Fleet, pool: Pool) -> Way:
    """Return the best plan of one pool, the others idle.

    Raises:
        GpuscaleError: there is none.
    """
    row = _best(fleet, pool.variant.job)
    part = fleet.part(pool, row, pool.spec, row.global_batch_size, row.tokens_per_s)
    idle = ", ".join(one.name for one in fleet.pools if one is not pool)
    name = f"{pool.name} alone"
    return fleet.way("alone", f"{name}, {idle} idle", [part], row.step_time_s, [row], ANY, name=name)


def _best(fleet: Fleet, job: Job) -> PlanRow:
    """Return the best plan of a job on its own cluster."""
    own = {"cluster": job.request["cluster"], "gbs": in_sequences(fleet.spec.global_batch_size)}
    priced = {"gpu_hour_price", "price_term", "rate"}  # by pool, in the fleet
    rest = {name: value for name, value in fleet.asked.items() if name not in {"model", *priced}}
    return plan(fleet.asked["model"], job.spec.gpus, pins=fleet.pins, top=1, **rest | own).plans[0]
