"""Checkpoints: how large they are, how long they stop a job, when one can restart from them, how often to write them.

Failures come independently of one another (exponential times of mean M, the MTBF). With work tau between two
checkpoints, each of which stops the job for delta and is complete w later, the share of time that is work in the end
is, by renewal at each restart,

    tau exp(-w / M) / ((M + D) (exp((tau + delta) / M) - 1)),    D = d exp(R / M) + M (exp(R / M) - 1)

d is the time until a failure is detected, R that of a restart, which may fail as well. With d = w = 0 this is Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future Generation Computer Systems
22), equation 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpuscale.architecture.parameters import trained_parameters
from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.search.evaluation import placed
from gpuscale.specs.job import JobSpec
from gpuscale.steptime.offload import HOST_LINK_FRACTION, host_link_bytes_per_s
from gpuscale.units import GIB

STORAGE = ("sync", "async")
"""Ways of checkpointing whose last checkpoint is in storage, and survives every failure."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a job."""

    #: `sync` (the job waits for storage), `async` (it waits for a copy in host memory), `memory` (it restarts from the
    #: copy in host memory), `peer` (or from a copy in another node's)
    kind: str
    bytes: float  #: of the whole job: weights, master weights and moments [bytes]
    bytes_per_gpu: float  #: of the fullest GPU, where each writes its part of what several hold [bytes]
    blocking_s: float  #: what the job waits for one [s]
    commit_s: float  #: from then on until a restart can use it [s]
    storage_s: float  #: until all of it is written to storage [s]
    survival: float = 1.0  #: share of failures that leave it; after the others the last one in storage is taken


def checkpoint_of(
    kind: str, c: Candidates, job: JobSpec, storage_bytes_per_s: float, survival: float = 1.0
) -> Checkpoint:
    """Return what one checkpoint of a plan (one row) takes, where storage writes `storage_bytes_per_s` for the whole
    job, and the copies of `memory` and `peer` are there after a share of failures (`survival`).

    Raises:
        InputError: copies do not fit into host memory, or there is no other node for one.
    """
    per_parameter = job.states.weight + job.states.optimizer
    whole = (trained_parameters(job.model, job.tuning, job.whole_share) + job.trained_tower) * per_parameter
    held = placed(c, job)[2]
    each = held.dense / (c.dp * c.cp) + held.expert / c.expert_dp
    per_gpu = float(each.max()) * per_parameter
    storage_s = whole / storage_bytes_per_s
    if kind == "sync":
        return Checkpoint(kind, whole, per_gpu, storage_s, 0.0, storage_s)
    copies = {"async": 1, "memory": 2, "peer": 4}[kind]  # a finished and a growing one, of two nodes under `peer`
    needed = copies * per_gpu * min(job.cluster.host_gpus, job.gpus)
    if job.cluster.host and needed > job.host_limit_bytes:
        message = f"copies take {needed / GIB:,.0f} GiB of host memory, which has {job.host_limit_bytes / GIB:,.0f} GiB"
        raise InputError(message, field="checkpoint", hint="write to storage: `checkpoint=sync`")
    # on clusters that say nothing of hosts, no link is shared
    unshared = job.cluster.gpu.host_link_bytes_per_s * HOST_LINK_FRACTION
    copy_s = per_gpu / (host_link_bytes_per_s(job) if job.cluster.host else unshared)
    commit_s = {"async": storage_s, "memory": 0.0}.get(kind)
    if commit_s is None:
        beyond = job.cluster.levels[job.cluster.domain_index + 1 :]
        if not beyond or job.gpus <= job.cluster.host_gpus:
            raise InputError("there is no other node to hold a copy", field="checkpoint", hint="choose sync or async")
        commit_s = per_gpu / (beyond[0].link_bytes_per_s * beyond[0].link_efficiency)
    return Checkpoint(kind, whole, per_gpu, copy_s, commit_s, storage_s, survival)


MOST_EXPONENT = 600.0
"""Largest exponent: what fails that often never gets anywhere."""


def downtime_s(mtbf_s: float, detection_s: float, restart_s: float) -> float:
    """Return how long a job is down after a failure, until a restart has gone through [s]."""
    attempts = math.exp(min(restart_s / mtbf_s, MOST_EXPONENT))
    return detection_s * attempts + mtbf_s * math.expm1(min(restart_s / mtbf_s, MOST_EXPONENT))


def worked_share(interval_s: float, blocking_s: float, commit_s: float, mtbf_s: float, down_s: float) -> float:
    """Return which share of its time a job works on what it need not do again (equation above)."""
    grown = math.expm1(min((interval_s + blocking_s) / mtbf_s, MOST_EXPONENT))
    return interval_s * math.exp(-min(commit_s / mtbf_s, MOST_EXPONENT)) / ((mtbf_s + down_s) * grown)


def young_interval_s(blocking_s: float, mtbf_s: float) -> float:
    """Return the first-order optimum sqrt(2 delta M) (Young 1974, Communications of the ACM 17)."""
    return math.sqrt(2 * blocking_s * mtbf_s)


GOLDEN = (math.sqrt(5) - 1) / 2


def best_interval_s(share: Callable[[float], float], least_s: float, most_s: float) -> float:
    """Return where a share with one maximum is largest, by golden sections of the logarithm [s]."""
    low, high = math.log(least_s), math.log(max(least_s, most_s))
    for _ in range(80):
        span = (high - low) * GOLDEN
        if share(math.exp(high - span)) >= share(math.exp(low + span)):
            high = low + span
        else:
            low = high - span
    return math.exp((low + high) / 2)
