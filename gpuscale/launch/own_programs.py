"""Programs of one's own: what a launcher starts and no framework claims, by names that options of many such share.

Nothing is known of what such a program has where nothing is said, nor how it counts its batch: this is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import printable
from gpuscale.launch import trainer
from gpuscale.launch.hardware import NODES, USUAL_NODE
from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.own_files import (
    BATCHES,
    ELSEWHERE,
    OTHER_MODELS,
    OWN,
    is_called,
    is_own,
    is_spelled,
    opened,
    refuse_two_models,
    spellings,
)
from gpuscale.launch.settings import OFF, Reading, Setting, Source, digits
from gpuscale.launch.shapes import model_line, named_shape
from gpuscale.launch.tokenizers import vocabulary_of
from gpuscale.launch.tools import started
from gpuscale.launch.unread import is_on, speaks_of
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import Tool, load_tool

NAME = OWN

OF_TRAINER = frozenset({
    "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "lr_scheduler_type",
    "evaluation_strategy", "eval_strategy", "save_strategy", "logging_strategy", "finetuning_type", "sft_type",
    "tuner_type", "train_type", "distributed_type", "fsdp_config",
})  # fmt: skip
"""Arguments by which a program is one of the Trainer, whose defaults are known."""

OF_DEEPSPEED = ("train_micro_batch_size_per_gpu",)
"""Settings of DeepSpeed's configuration by which its engine counts the batch, whatever runs it."""

STARTERS = ("torchrun", "deepspeed", "accelerate", "beaker")
CONFIGURING = re.compile(r"\.(ya?ml|json|toml|py)$")
"""What a file that configures a program is called."""

TRAINING = re.compile(r"train|tun(e|ing)|sft|dpo|grpo|ppo|clm|lora|distil", re.IGNORECASE)
_FOREIGN = frozenset({"batch_size", "epochs", "lr", "max_len", "max_seq_len", "accumulation_steps", "grad_accum"})
"""Options that programs of TRL, whose parser takes no others than the Trainer's, do not have."""
_TABLES = ("train", "training", "trainer", "model", "data", "optim", "optimizer", "args", "sft", "config")
_ESSENTIAL = ("model_name_or_path", "max_length", "per_device_train_batch_size", "batch_size", "global_batch_size")


def claims(source: Source) -> bool:
    """Whether a command that nothing else claims starts a program of one's own that may train a language model."""
    words = source.program
    starts = words[:1] and (words[0] in STARTERS or bool(TRAINING.search(" ".join(words[1:]))))
    configured = any(map(CONFIGURING.search, words[2:]))
    named = _named(source.settings)
    return bool(starts) and source.kind == "command" and not configured and _is_own(source) and any(
        one in named for one in _ESSENTIAL
    ) and not any(ELSEWHERE.search(name) for name in source.settings)  # fmt: skip


def take(reading: Reading, tool: Tool) -> Tool:
    """Give the options of a program of one's own the Trainer's names; return the tool that the job is of.

    Args:
        tool: what it is of if it is no program of one's own: then nothing is done.

    Raises:
        InputError: DeepSpeed starts it and nobody says how it shards; it trains no language model.
    """
    source = reading.sources[-1]
    others = any(OF_TRAINER & {name.rpartition(".")[2] for name in one.settings} for one in reading.sources
                 if not is_own(one) and "compute_environment" not in one.settings)  # fmt: skip
    counted = any(digits(getattr(reading.settings.get(name), "value", "")) is not None for name in OF_DEEPSPEED)
    inside = any(tool.name in re.split(r"[/.]", word) for word in source.program)  # `trl/scripts/sft.py`
    of_trl = tool.name == "trl" and "model_name_or_path" in source.settings
    inside |= tool.name == "alpaca-lora" or (of_trl and not _FOREIGN & source.settings.keys())
    known = inside or any(started(one, tool) for one in reading.sources)
    document = any(map(is_own, reading.sources)) and not others
    if not document and (known or source.kind != "command" or not _is_own(source) or others or counted):
        return tool
    _refuse_two(reading)
    for name, own in _named(reading.settings).items():
        one = reading.settings.pop(own)
        reading.settings.setdefault(name, one)
    _take_devices(reading)
    _take_sharding(reading)
    _refuse_other(reading, source)
    stage = reading.settings.get("zero_stage")
    worded = re.fullmatch(r"(?:zero|stage|ds|_|-)*([0-3])", str(stage.value).lower()) if stage is not None else None
    if stage is not None and worded:
        reading.settings["zero_stage"] = replace(stage, value=worded[1])
    elif stage is not None:  # `--stage sft`
        reading.settings.pop("zero_stage")
    if source.program[:1] == ("deepspeed",):
        _take_stage(reading, source)
    reading.assume(
        "a program of one's own: its options are read by the names that many have, and the rest is asked for"
    )
    return load_tool(NAME)


def _take_sharding(reading: Reading) -> None:
    """Take how FSDP shards by a word: `--sharding_strategy=full`."""
    found = reading.settings.get("sharding_strategy")
    kind = _SHARDING.get(str(found.value).lower().removesuffix("_shard")) if found is not None else None
    if found is not None and kind is not None:
        for name, value in (("distributed_type", "FSDP"), ("fsdp_config.fsdp_sharding_strategy", kind)):
            reading.settings.setdefault(name, replace(found, name=name, value=value))
        reading.means("how FSDP shards", "sharding_strategy")


_SHARDING = {
    "full": "FULL_SHARD",
    "hybrid": "HYBRID_SHARD",
    "grad_op": "SHARD_GRAD_OP",
    "shard_grad_op": "SHARD_GRAD_OP",
}


def _take_devices(reading: Reading) -> None:
    """Take the GPUs that a setting counts or lists, of each node where nodes are counted beside them."""
    found = reading.settings.pop("num_processes", None)
    if found is None:
        return
    listed = found.value if isinstance(found.value, list) else str(found.value).split(",")
    count = (digits(listed[0]) or 0) if len(listed) == 1 else len(listed)
    beside = [one for one in opened(reading.settings).values() if NODES.fullmatch(one.last)]
    nodes = 1 if found.last in _WHOLE else (digits(beside[0].value) if beside else None) or 1
    if nodes > 1 and count > USUAL_NODE and count % nodes == 0 and not reading.given.get("gpus"):
        message = f"no file states whether {count} GPUs are those of each of {nodes} nodes or of all"
        reading.refuse(found, message, settles="gpus", likely=(str(count), str(count * nodes)))
    if count > 0:
        reading.settings["num_processes"] = replace(found, value=count * nodes)
        for one in beside:
            reading.say(one, "nodes")


_WHOLE = ("world_size", "total_gpus", "num_processes")


def _refuse_two(reading: Reading) -> None:
    """Ask which model is trained where options name several that are known: `--model_name gpt2 --model_path ...`."""
    words = ("model_name_or_path", *load_tool(NAME).names["model_name_or_path"])
    stated = (one for name in words if (one := reading.settings.get(name)) is not None)
    named = ((known_model(one.value)[0], one) for one in stated if isinstance(one.value, str))
    known = {load_model(name).name: one for name, one in named if name is not None}
    if len(known) > 1 and not reading.given.get("model"):
        first, second, *_ = known.values()
        refuse_two_models(reading, first, second)


def _refuse_other(reading: Reading, source: Source) -> None:
    other = next((one for name, one in source.settings.items() if OTHER_MODELS.search(name)), None)
    if other is not None and "model_name_or_path" not in reading.settings and not reading.given.get("model"):
        hint = "gpuscale predicts training of causal language models; add `model=NAME` if it is one"
        raise InputError("nothing names a language model, and this is of other models",
                         place=f"{other.place}: {printable(other.name)}", hint=hint)  # fmt: skip


def _is_own(source: Source) -> bool:
    return len(source.program) > 1 and not OF_TRAINER & source.settings.keys()


def _named(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return the Trainer's name of what options say -> the option."""
    lasts: dict[str, str] = {}
    for name in settings:
        table, _, last = name.lower().rpartition(".")
        if not table or table in _TABLES:
            lasts.setdefault(last, name)
    found: dict[str, str] = {}
    for ours in (one for one in load_tool(NAME).names if "." not in one):
        own = next((lasts[last] for one in spellings(ours) for last in lasts if is_spelled(last, one)
                    and (ours not in BATCHES or _COUNT.search(str(settings[lasts[last]].value)))), None)  # fmt: skip
        if own is not None:
            found[ours] = own
    return found


_COUNT = re.compile(r"^[\d.,_e+-]+$|\$|^True$", re.ASCII)
"""What a size of a batch may be: a number, or a variable; another text is a label of a run."""


def read_shape(reading: Reading) -> bool:
    """Take a model of one's own from its sizes; whether there is one.

    Raises:
        LackingError: it is not said whether MLPs are gated or embeddings tied, how many tokens there are, or which of
            several models it is; the message has what is likely.
    """
    found = _stated_shape(reading)
    named = reading.settings.get("model_name_or_path")
    known = known_model(str(named.value))[0] if named is not None else None
    if "dtype" in reading.settings and reading.tool.name == NAME and not known:  # of products, as nanoGPT has it
        name = "mixed_precision" if "mixed_precision" not in reading.settings else "precision"
        reading.settings.setdefault(name, reading.settings.pop("dtype"))
    if known or not found.keys() >= set(_SIZES[:3]):
        spec = load_model(known) if known else None
        for key, one in found.items():
            if str(one.value) == str(getattr(spec, key, "")):
                reading.say(one, "as the model that is named has it")
        return False
    for one in found.values():
        reading.say(one, "replaced by the model that is given" if reading.given.get("model") else "shape of the model")
    if reading.given.get("model"):
        return False
    reading.option("model", named_shape(_whole_shape(reading, found)))
    reading.state("model", found.values())
    return True


def _whole_shape(reading: Reading, found: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the keys of a model whose sizes are stated.

    Raises:
        LackingError: as `read_shape`.
    """
    layers = found["layers"]
    others = [one for name, one in opened(reading.settings).items()
              if is_called("shape.layers", name.rpartition(".")[2]) and one.value != layers.value]  # fmt: skip
    if others:
        also = ", ".join(f"{one.name} {one.value}" for one in others)
        reading.refuse(layers, f"several models are stated: {layers.name} {layers.value}, {also}", settles="model")
    keys: dict[str, Any] = {key: int(str(found[key].value)) for key in _SIZES if key in found}
    longest = reading.settings.get("max_length")
    keys.setdefault("sequence", digits(longest.value) if longest is not None else None)
    keys["vocab"] = keys.get("vocab") or _vocabulary(reading)
    if str(getattr(found.get("gqa"), "value", "")).lower() in OFF:
        keys.pop("kv_heads", None)
    dense = any(name.rpartition(".")[2] in _EXPERTS and not is_on(one.value) for name, one in reading.settings.items())
    if dense or keys.get("moe.experts", 0) < 2:
        keys = {key: value for key, value in keys.items() if not key.startswith("moe.")}
    stated, likely = _traits(reading, found, keys)
    keys |= {**likely, **stated}
    if "moe.experts" in keys:
        keys.pop("ffn", None)
        keys.pop("mlp_bias", None)
    line = model_line(keys)
    if beside := _beside(reading, found, dense=dense):
        message = f"what {beside} does to the model is not known beside its sizes ({line})"
        reading.refuse(layers, message, f"add `model={line}`, or what it is", settles="model")
    if keys["vocab"] is None:
        message = f"no file states how many tokens the vocabulary of the model has ({line},vocab=N)"
        reading.refuse(None, message, f"add `model={line},vocab=N`", settles="model")
    guessed = [key for key in likely if key not in stated]
    if guessed:
        message = f"the sizes of a model are stated, and nothing of {', '.join(guessed)}"
        reading.refuse(layers, message, f"add `model={line}`, or what it is", settles="model", likely=(line,))
    return keys


_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence", "window.length",
          "moe.experts", "moe.top_k", "moe.ffn")  # fmt: skip
_TRAITS = ("activation", "gated", "tied", "norm", "positions", "bias", "qk_norm", "ffn_ratio", "gqa")
_EXPERTS = ("use_moe", "moe", "moe_enabled", "is_moe", "enable_moe")
_OF_EXPERTS = re.compile(r"moe|expert")
_OF_MODEL = re.compile(r"|(.*\.)?(model\w*|net\w*|arch\w*|transformer|gpt\w*|ll?m|decoder|config|moe)")
_OF_SHAPE = re.compile(r"moe|expert|mamba|ssm|byte|patch|latent|mla|mtp|share_|loop|recur|hybrid|conv|local_")
"""Words of settings that make a model of one's own another one than its sizes say."""
_OF_LOSS = re.compile(
    r"rope|rotary|theta|multiple|coef|loss|dropout|init|bias|noise|jitter|log|lr|eps|path|dir|block_size"
)


def _beside(reading: Reading, found: Mapping[str, Setting], *, dense: bool) -> str:
    """Return settings beside the sizes that make another model of it, of a dense one none of experts."""
    read = {one.name for one in found.values()}
    names = [last for name, one in opened(reading.settings).items()
             for of, _, last in (name.rpartition("."),)
             if _OF_MODEL.fullmatch(of) and is_on(one.value) and one.name not in read and last not in _EXPERTS
             and (_OF_SHAPE.search(last if of != "moe" else name) or _of_sizes(last, one.value))
             and not (dense and _OF_EXPERTS.search(name)) and not _OF_LOSS.search(last)]  # fmt: skip
    return ", ".join(names)


def _of_sizes(last: str, value: Any) -> bool:
    """Whether a setting is a size of a model by its words, and by no name that is read."""
    spelled = any(is_called(f"shape.{key}", last) for key in (*_SIZES, *_TRAITS))
    return speaks_of(last) == "model" and digits(value) is not None and not spelled


def _stated_shape(reading: Reading) -> dict[str, Setting]:
    """Return what states sizes and traits of a model, whatever table it stands in: key -> its first setting."""
    found: dict[str, Setting] = {}
    settings = opened(reading.settings)
    for key in (*_SIZES, *_TRAITS):
        ours = f"shape.{key}"
        mine = [one for name, one in settings.items() if name == ours or is_called(ours, name.rpartition(".")[2])]
        mine = [one for one in mine if key in _TRAITS or digits(one.value)]
        found |= {key: mine[0]} if mine else {}
        other = [one for one in mine if one.last in _INNER and mine[0].last not in _INNER]
        if key == "hidden" and other and digits(other[0].value) != digits(mine[0].value):
            found["ffn"] = other[0]
    return found


_INNER = ("hidden_dim", "hidden_size")
"""Names of the width of a model that are that of its MLP beside another one: `emb_dim`, `d_model`."""


def _vocabulary(reading: Reading) -> int | None:
    """Return the vocabulary of the tokenizer that a setting names, if that is known."""
    names = [one for one in reading.settings.values() if "tokenizer" in one.name.lower() and isinstance(one.value, str)]
    return next((size for one in names if (size := vocabulary_of(str(one.value)))), None)


def _traits(
    reading: Reading, found: Mapping[str, Setting], keys: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys of a model that words say, and those that are likely where none does."""
    said = {key: str(found[key].value).lower() for key in _TRAITS if key in found}
    rotary = any(re.search(r"rope|rotary|\btheta$", one.name) for one in reading.settings.values())
    rms = keys.get("kv_heads", keys["heads"]) < keys["heads"] or any(
        re.search(r"rms|llama|mistral", f"{one.name} {one.value}".lower()) for one in reading.settings.values()
    )
    stated: dict[str, Any] = {"qk_norm": "head"} if is_on(said.get("qk_norm", "")) else {}
    if re.search(r"glu|silu|swish", said.get("activation", "")) or said.get("gated") == "true":
        stated["gated"] = True
    elif re.search(r"gelu|relu", said.get("activation", "")) or said.get("gated") == "false":
        stated["gated"] = False
    if said.get("tied") in {"true", "false"}:
        stated["tied_embeddings"] = said["tied"] == "true"
    ratio = keys["ffn"] / keys["hidden"] if "ffn" in keys else None
    gated = stated.get("gated", (rotary or rms) if ratio is None else ratio not in {2, 4})
    likely: dict[str, Any] = {"gated": gated, "tied_embeddings": not (rotary or rms)}
    if ratio is None:
        times = float(said["ffn_ratio"]) if re.fullmatch(r"\d{1,2}(\.\d{1,6})?", said.get("ffn_ratio", "")) else 0
        usual = 256 * math.ceil(8 * keys["hidden"] / 3 / 256) if gated else 4 * keys["hidden"]
        likely["ffn"] = int(times * keys["hidden"]) or usual
    if "moe.experts" in keys:
        width = keys.get("ffn") or likely.pop("ffn")
        likely |= {"moe.top_k": keys.get("moe.top_k", 2)} | ({} if "moe.ffn" in keys else {"moe.ffn": width})
    _add_positions(said, keys.get("sequence"), stated, likely, plain=not (rotary or rms))
    return stated, likely


def _add_positions(
    said: Mapping[str, str], length: int | None, stated: dict[str, Any], likely: dict[str, Any], *, plain: bool
) -> None:
    """Add learned positions and biases to what words say, or to what is likely: GPT-2 has both where it is `plain`."""
    positions, bias = said.get("positions", ""), said.get("bias", "")
    if length and (plain or "learn" in positions) and (not positions or "learn" in positions):
        (stated if positions else likely)["learned_positions"] = length
    if bias == "true" or (bias != "false" and "learned_positions" in {**likely, **stated}):
        (stated if bias == "true" else likely).update(dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True))
    if plain and bias != "false":
        (stated if bias == "true" and "layer" in said.get("norm", "") else likely)["norm_bias"] = True


def _take_stage(reading: Reading, source: Source) -> None:
    """Take the stage of ZeRO of a program that DeepSpeed starts, whose configuration may be in it."""
    named = reading.settings.get("deepspeed") or reading.settings.get("deepspeed_config")
    filed = named is not None and named.value is not True and str(named.value).lower() not in {"true", *OFF}
    if "zero_stage" in reading.settings or filed:
        return
    if "zero" not in reading.given:
        reading.refuse(None, "no file states how DeepSpeed shards", settles="zero")
    stage = str(reading.given["zero"])
    reading.settings["zero_stage"] = Setting("zero_stage", stage, source.file, 0, f"zero={stage}")


def need(reading: Reading) -> None:
    """Ask for what a program of one's own may have otherwise than the Trainer: precision and, of replicas, shards.

    Raises:
        InputError: nobody says it.
    """
    if not reading.given.get("precision"):
        _need_precision(reading)
    if not reading.given.get("optimizer") and reading.stated_by("optimizer") is None:
        for one in reading.settings.values():
            other = _OPTIMIZERS.search(one.name)
            if other is not None and is_on(one.value):
                message = "it is of another optimizer than AdamW, and no setting names one"
                reading.refuse(one, message, settles="optimizer", likely=(other[1].lower(),))
    several = int(reading.given.get("gpus") or reading.options.get("gpus") or 1) > 1
    plain = reading.first("ddp", "use_ddp")
    if several and plain and reading.flag(plain) and reading.stated_by("zero") is None and _shards(reading) == "0":
        reading.option("zero", 0, plain)
    if several and "zero" not in reading.given and reading.stated_by("zero") is None:
        likely = filter(None, [_shards(reading)])
        reading.refuse(None, "no file states how the job is sharded", settles="zero", likely=likely)
    if not reading.given.get("recompute") and reading.stated_by("recompute") is None:
        reading.assume("no layer is recomputed: no option speaks of it")


_OPTIMIZERS = re.compile(r"(?:^|[._])(muon|lion|adafactor|galore|apollo)(?=_)", re.IGNORECASE)


def _need_precision(reading: Reading) -> None:
    """Ask for the precision where nothing says it, or a switch contradicts what does.

    Raises:
        LackingError: it is so.
    """
    said, chosen = reading.stated_by("precision"), str(reading.options.get("precision"))
    switches = [one for name in (chosen, "use_amp", "amp", "mixed_precision", "use_mixed_precision")
                if (one := reading.settings.get(name)) is not None]  # fmt: skip
    off = next((one for one in switches if str(one.value).lower() in OFF), None)
    if said is None:
        likely = "fp32" if off is not None else "bf16"
        reading.refuse(None, "no file states in which precision it trains", settles="precision", likely=(likely,))
    if off is not None and said is not off and chosen in {"bf16", "fp16"}:
        message = f"{said.name} {said.value} is stated, and {off.name} {off.value}"
        reading.refuse(said, message, settles="precision", likely=("fp32", chosen))


def _shards(reading: Reading) -> str:
    """Return the stage that switches and strategies speak of (`--enable_fsdp`, `--strategy deepspeed_stage_2`)."""
    said = [name for name, one in reading.settings.items() if is_on(one.value)]
    said += [
        str(one.value).lower()
        for name, one in reading.settings.items()
        if re.search(r"backend|distributed|strategy|shard|parallel", name)
    ]
    stage = next((found[1] for text in said if (found := re.search(r"(?:stage|zero)_?-?([0-3])\b", text))), "")
    sharded = any(re.search("fsdp|full_shard|^full$", text) for text in said)
    engine = reading.settings.get("deepspeed")
    usual = "" if engine is not None and engine.value in (None, "...") else "0"  # an engine told elsewhere
    return stage or ("3" if sharded else "2" if "deepspeed" in said else usual)


MANY = 65536
"""A batch that is more likely of tokens than of sequences."""


def read_batch(reading: Reading) -> None:
    """Read the batch: of a plain `batch_size` nobody knows whether it is of each GPU or of all.

    Raises:
        InputError: it is not known, or nobody says it.
    """
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size", "batch_size")
    micro, steps, total, plain = (trainer.count(reading, name) for name in names)
    given = int(reading.given.get("gbs") or 0)
    length = int(reading.given.get("seq") or reading.options.get("seq") or 0)
    if total is not None and total >= MANY and not given:
        message = f"{total:,} are more than sequences of a batch: no file states whether they are tokens"
        tokens = [str(total // length)] if length and total % length == 0 else []
        reading.refuse(reading.get("global_batch_size"), message, settles="gbs", likely=[*tokens, str(total)])
    if given and total is not None and total >= MANY:
        reading.means("replaced by the gbs that is given", "global_batch_size")
        total = None
    if total is None and plain is not None:
        replicas = trainer.data_parallel(reading, "the global batch")
        each = (micro or plain) * (steps or 1) * replicas
        if replicas == 1 and micro is None:
            micro = plain
        elif given:
            reading.means("replaced by the gbs that is given", "batch_size")
            share = given // (replicas * (steps or 1))
            micro = micro or (share if share * replicas * (steps or 1) == given else None)
        else:
            likely = (plain, plain * replicas) if micro else (each, plain)
            message = f"no file states whether {plain} is the batch of each GPU or of all"
            reading.refuse(reading.get("batch_size"), message, settles="gbs", likely=map(str, dict.fromkeys(likely)))
    elif total and plain and not micro and total % (plain * trainer.data_parallel(reading, "the microbatch")) == 0:
        micro = plain
        reading.assume(f"the batch of {plain} is that of each GPU: that of all stands beside it", "batch_size")
    if micro is None and total is None and not given:
        reading.refuse(None, "no file states how large batches are", "add `gbs=N`", settles="gbs")
    if micro is None and (total is None or steps is None) and not reading.given.get("micro_batch_size"):
        message = "no file states how many sequences a GPU takes at a time"
        reading.refuse(None, message, settles="micro_batch_size", likely=("1",))
    trainer.read_batch(reading, micro, steps, total, *names)
