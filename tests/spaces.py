"""Every layout of a small job, formed by plain loops: what the search is held to."""

from itertools import product

import numpy as np

from gpuscale.layouts.arrays import FIELDS, RECOMPUTE_MODULES, Candidates

NAMES = list(FIELDS)
LN, MLP, ACT, MOE, UP = (RECOMPUTE_MODULES[name] for name in ("layernorm", "mlp", "moe_act", "moe", "mla_up_proj"))


def tuples(rows):
    return list(zip(*(getattr(rows, name).tolist() for name in NAMES), strict=True))


def plain_loops(spec):
    """Every layout of a small job, one at a time, in plain Python; a generator of dictionaries."""
    gpus, batch, layers = spec.gpus, spec.global_batch_size, spec.model.layers
    experts = max((kind.moe.experts for kind in spec.model.kinds if kind.moe), default=1)
    latent = any(kind.attention.latent for kind in spec.model.kinds if kind.attention)
    masks = [LN, ACT, LN | ACT, LN | MOE] if spec.model.is_moe else [LN, MLP, LN | MLP]
    masks += [mask | UP for mask in masks] if latent else []
    for tp, pp, cp in product(range(1, gpus + 1), repeat=3):
        if gpus % (tp * pp * cp):
            continue
        dp = gpus // (tp * pp * cp)
        stage = -(-layers // pp)
        recompute = {(0, 0), *((mask, 0) for mask in masks)} | {
            (0, -(-stage * quarter // 4)) for quarter in (1, 2, 3, 4)
        }
        alone = spec.runtime.zero_stage if spec.runtime.zero_alone else 0
        sharding = {(0, 1), *((zero, dp * cp) for zero in (1, 2, 3))} if dp * cp > 1 else {(alone, 1)}
        for level in spec.cluster.levels[:-1]:
            shard = level.gpus // tp
            if 1 < shard < dp * cp and dp * cp % shard == 0:
                sharding.add((3, shard))
        for sp, vpp, ep, etp, (zero, shard), micro, (modules, whole) in product(
            (0, 1) if tp > 1 else (0,),
            [value for value in range(1, layers + 1) if tried(layers, pp, value)],
            [value for value in range(1, experts + 1) if experts % value == 0],
            {1, tp} if spec.model.is_moe else {1},
            sharding,
            [value for value in range(1, 65) if batch % (dp * value) == 0],
            recompute,
        ):
            yield {
                "tp": tp, "sp": sp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp, "dp": dp, "zero": zero,
                "shard": shard, "micro_batch_size": micro, "num_microbatches": batch // dp // micro,
                "recompute_modules": modules, "recompute_layers": whole, "schedule": 0,
            }  # fmt: skip


def tried(layers, pp, vpp):
    """One chunk per rank; or chunks that are even with or without embedding and head, or a power of two of them."""
    chunks = pp * vpp
    if vpp == 1:
        return True
    even = any((layers + extra) % chunks == 0 for extra in (0, 1, 2))
    return pp > 1 and (even or vpp in {2, 4, 8, 16, 32, 64}) and chunks <= layers + 2


def stacked(rows):
    columns = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in NAMES}
    return Candidates(**columns)
