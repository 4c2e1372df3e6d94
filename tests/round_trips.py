"""Random legal plans of each framework: what every target must export, read back, and predict the same for."""

import random
from functools import cache, lru_cache

from gpuscale.errors import GpuscaleError, NoAnswerError
from gpuscale.launch.export import BESIDE, exported, save_export
from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.settings import Reading
from gpuscale.launch.sources import launches
from gpuscale.launch.subject import subject_of
from gpuscale.launch.targets import targets
from gpuscale.planning.jobs import OF_TUNING, Presets, build_job
from gpuscale.planning.layouts import domain_groups, fixed_layout
from gpuscale.presets.frameworks import load_framework
from gpuscale.request import OF_EXPERTS, OVERLAPS, JobOptions, declared, overlap_name, overlap_of, read
from gpuscale.rules.check import broken_rules

PRESETS = Presets()

MODELS = (
    "llama3-8b", "llama3.1-70b", "llama3.1-405b", "qwen3-32b", "qwen2.5-7b", "gpt3-13b",  # dense
    "llama3.2-1b", "gemma2-9b",  # with tied embeddings
    "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b",  # mixtures of experts
    "deepseek-v3", "deepseek-v2-lite", "moonlight-16b-a3b",  # with latent attention
    "nemotron-h-8b",  # hybrid
)  # fmt: skip
SEQUENCES = (2048, 4096, 8192, 32768, 131072)
CLUSTERS = ("dgx-h100-superpod", "aws-p5", "dgx-a100-superpod", "b200-hgx", "gb200-nvl72", "mi300x")

VALUES = {
    "optimizer": ("adamw", "sgd", "muon"),
    "master_dtype": ("fp32", "bf16", "none"),
    "moment_dtype": ("fp32", "bf16"),
    "grad_dtype": ("fp32", "bf16"),
    "vocab_multiple": (64, 128),
    "memory_limit_gib": (60.0,),
    "moe_imbalance": (1.2,),
    "gpus_per_node": (4,),
    "offload": ("optimizer", "optimizer+parameters", "activations", "activations:0.5"),
    "axis_order": ("tp-cp-ep-pp-dp",),
    "overlap": ("none", "tp", "dp", "ep", "tp+dp"),
    "set": ("gpu.power_w=600",),
    "seq": (8192,),
    "gbs": (512,),
    "lora_rank": (8, 64),
    "lora_targets": ("all", "attention", "q,v", "q,k,v,o,gate,up,down"),
    "lora_experts": (True,),
    "lora_dropout": (True,),
    "train": ("embeddings,head", "norms"),
    "lengths": (",".join(["512"] * 33),),
    "packing": (True,),
    "teacher": ("llama3-70b",),
    "optimizer_rank": (64,),
}
"""Other values of options of a job that list no choices; of those that do, all are tried."""

HELD_BESIDE = {*BESIDE, "tower", "packing"}
"""Options that no launch file holds, but for the number of processes per node."""

SELDOM = 0.02
"""Share of plans in which an option is not as the framework has it, for each option."""


TUNED = {"torchtune": 0.8, "automodel": 0.4, "megatron-bridge": 0.3}
"""Share of plans that train adapters, by framework; of others every seventh."""


def values_of(name):
    """Values of an option of a job to try: all of its choices, or those of `VALUES`."""
    return VALUES.get(name) or tuple(declared(JobOptions)[name].option.choices)


def predicted(options, layout):
    """The prediction of a layout, without remedies; of the same layout as before it is the same object.

    Raises:
        InputError: the options contradict each other, or the layout breaks a rule.
    """
    return _predicted(tuple(options.items()), tuple(layout.items()))


@lru_cache(maxsize=100)
def _predicted(options, layout):
    return subject_of(_job(dict(options), dict(layout)), dict(layout)).estimate


def _job(options, layout):
    return build_job(read(JobOptions, options), PRESETS, domain_groups(layout))


def plans(target, count, seed=0):
    """Yield `count` random plans that are legal for a target: options of the job, and a layout."""
    return plans_for(targets()[target].frameworks, count, f"{target} {seed}")


def plans_for(frameworks, count, seed=0):
    """The same for presets of frameworks."""
    dice = random.Random(seed)
    while count:
        options, layout = _random_plan(dice, dice.choice(frameworks))
        try:
            job = _job(options, layout)
            if broken_rules(fixed_layout(job.spec, layout), job.spec):  # in less time than why they are broken
                continue
            predicted(options, layout)
        except GpuscaleError:
            continue
        count -= 1
        yield options, layout


@cache
def _framework(name):
    return load_framework(name)


def _random_plan(dice, framework):
    """A plan that arithmetic allows; rules of the framework may not."""
    space = _framework(framework).space
    tp, pp, cp, dp = (dice.choice(sizes) for sizes in ((1, 1, 2, 4, 8), (1, 1, 1, 2, 4, 8), (1, 1, 1, 2, 4), _DP))
    model = dice.choice(MODELS)
    moe = PRESETS.model(model).is_moe
    ep = dice.choice((1, 2, 4, 8, 16, 64)) if moe else 1
    micro, rounds = dice.choice((1, 1, 1, 2, 4)), dice.choice((1, 1, 2, 4, 6, 8, 16))
    layout = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": dice.choice((1, tp)) if moe else 1,
        "sp": dice.choice((None, None, tp > 1, False)),
        "vpp": dice.choice((None, 2, 4)) if pp > 1 else None,
        "zero": dice.choice((None, None, 0, 1, 2, 3)) if dp * cp > 1 else None,  # no file tells shards of one rank
        "shard": dice.choice((None, None, None, max(dp * cp // 2, 1))),
        "micro_batch_size": micro,
        "recompute": dice.choice(_RECOMPUTE),
        "schedule": dice.choice(("1f1b", "1f1b", *space.schedule)) if pp > 1 else None,
    }
    options = {
        "model": model,
        "gpus": tp * pp * cp * dp,
        "cluster": dice.choice(CLUSTERS),
        "framework": framework,
        "seq": dice.choice(SEQUENCES),
        "gbs": dp * micro * max(rounds, 1) * (pp if dice.random() < 0.7 else 1),
        "precision": dice.choice((None, None, "bf16", *space.precision)),
    }
    beside = overlap_of(_framework(framework).runtime)
    overlaps = tuple(overlap_name([part for part in OVERLAPS if part in {*beside, more}]) for more in space.overlap)
    usual = {"offload": space.offload, "overlap": overlaps, "cp_comm": space.cp_comm}
    usual |= {"axis_order": space.axis_order, "pipeline_split": space.pipeline_split}
    if dice.random() < TUNED.get(framework, 0.15):
        of = [name for name in OF_TUNING if name != "lora_experts" or moe]
        options |= {"tune": dice.choice(("lora", "qlora"))}
        options |= {name: dice.choice(values_of(name)) for name in of if dice.random() < 0.3}
    for name in declared(JobOptions):
        if (name in OF_EXPERTS and not moe) or name in {"calibration", "tower", "tune", "packing", *OF_TUNING}:
            continue
        values = (*values_of(name), *usual.get(name, ()))
        if values and name not in options and dice.random() < SELDOM:
            options[name] = dice.choice(values)
        elif usual.get(name) and dice.random() < 0.15:
            options[name] = dice.choice(usual[name])
    layout |= {name: dice.choice(values) for name, values in RUN_BY_EXPORTS.get(framework, {}).items()}
    return _given(options), _given(layout)


RUN_BY_EXPORTS = {
    "torchtune": {"zero": (2, 3)},
    "automodel": {"zero": (3,), "vpp": (None,), "sp": (None,), "etp": (1,), "recompute": ("none", "full")},
}
"""What exports of frameworks run, of what their rules allow more of."""

_DP = (1, 2, 2, 3, 4, 4, 8, 8, 16, 32, 64)
_RECOMPUTE = (
    "none", "none", "none", "full", "full", "selective", "selective:layernorm+mlp", "selective:core_attn+moe_act",
    "full:1", "full:4",
)  # fmt: skip


def _given(values):
    return {name: value for name, value in values.items() if value is not None}


def unheld(options):
    """What of the options of a job no launch file holds."""
    return {name: options[name] for name in BESIDE if name in options}


def read_back(target, result, options, folder):
    """Read an export from a folder: options of the job, with those that no launch file holds, and the layout."""
    folder.mkdir(exist_ok=True)
    save_export(result, folder)
    sources = [launch.sources for launch in launches([folder / "run.sh"], {})]
    claimed = [one for one in sources if any(targets()[target].claims(source) for source in one)]
    assert len(claimed) == 1, f"{len(claimed)} jobs are read from {sources}"
    reading = Reading(claimed[0])
    targets()[target].read(reading)
    job = reading.result(target)
    gpus = {} if "gpus" in job.options else {"gpus": gpus_of(reading, "the job")}
    return {**job.options, **gpus, **unheld(options)}, job.layout


def same(one, other):
    """What two predictions say that is not the same."""
    numbers = [{**found.plan.to_dict(), **found.breakdown, **found.memory} for found in (one, other)]
    return {name: (value, numbers[1].get(name)) for name, value in numbers[0].items() if numbers[1].get(name) != value}


def round_trip(target, options, layout, folder):
    """Export a plan, read it and predict again: what differs; or why the target refuses it, as text."""
    before = predicted(options, layout)
    try:
        result = exported(before, target)
    except NoAnswerError as error:
        return str(error)
    return same(before, predicted(*read_back(target, result, options, folder)))
