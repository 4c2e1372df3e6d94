"""Arguments of the Hugging Face Trainer, and of the tools that build on it: written for its run_clm.py, read of all.

Written are those of examples/pytorch/language-modeling/run_clm.py of transformers 5.23: a model from its config,
trained on blocks of `block_size` tokens. Names of other programs are read too: TRL, LLaMA-Factory, axolotl,
ArcticTraining.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from gpuscale.choices import AXES
from gpuscale.errors import InputError
from gpuscale.launch import adapters, preferences
from gpuscale.launch.huggingface_models import written_model
from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.quoting import Expansion
from gpuscale.launch.settings import OFF, Reading, precision_word
from gpuscale.launch.writing import LaunchFile, Writing
from gpuscale.presets.files import known_table
from gpuscale.presets.models import load_model
from gpuscale.request import OPTIMIZERS
from gpuscale.specs.gpu import WIDE

_KNOWN = known_table("scripts")["trainer"]

SCRIPT = "run_clm.py"
BASIS = "transformers 5.23 (examples/pytorch/language-modeling)"
"""What the arguments were taken from."""

SEQUENCE = tuple(_KNOWN["sequence"])
MICRO = tuple(_KNOWN["micro"])
ACCUMULATION = ("gradient_accumulation_steps",)
OPTIMS = {word: ours for ours, words in known_table("words")["optimizer"].items() for word in words}
"""Names of optimizers in lower case -> the optimizer that gpuscale has for them."""

OPTIM_OF = _KNOWN["optim_of"]

LIGER = {
    "standard": {"cross_entropy": False, "fused_linear_cross_entropy": False},
    "fused": {"cross_entropy": True, "fused_linear_cross_entropy": False},
}
"""`loss` -> how `liger_kernel_config` asks for it; no command line can (HfArgumentParser takes no table for it)."""


# --- written


def refuse_beyond(writing: Writing) -> None:
    """Refuse what no argument of these programs says; accelerate and DeepSpeed lay ranks out as `AXES`."""
    import numpy as np  # noqa: PLC0415 - start-up does without it

    runtime, spec, plan = writing.spec.runtime, writing.spec, writing.plan
    fixed = {
        "cuda_graphs": ("none", "transformers replays no CUDA graphs in training"),
        "routing": ("dropless", "the experts of transformers take all tokens"),
        "swiglu_input_dtype": ("bf16", "transformers saves inputs of activations as they are"),
        "transport": ("nvshmem", "no setting says what DeepEP sends by"),
    }
    for name, (value, why) in fixed.items():
        if getattr(runtime, name) != value and (name != "transport" or runtime.dispatcher == "deepep"):
            writing.refuse(name, f"{why} ({name} = {getattr(runtime, name)})")
    if runtime.overlap_tp:
        writing.refuse("overlap", "no setting runs collectives of TP beside their product (overlap = tp)")
    rows = -(-spec.model.vocab // plan.tp)
    if int(spec.vocabulary_rows(np.array([plan.tp]))[0]) != rows:
        writing.refuse("vocab_multiple", f"transformers pads no vocabulary (vocab_multiple = {spec.vocab_multiple})")
    if spec.model.is_moe and plan.tp > 1 and plan.ep == 1 and plan.etp != plan.tp:
        writing.refuse("etp", f"without EP the experts are split by TP as all layers are (etp = {plan.etp})")
    used = [axis for axis in spec.axis_order if getattr(plan, axis) > 1]
    if used != [axis for axis in AXES if axis in used]:
        writing.refuse("axis_order", f"ranks are laid out {'-'.join(AXES)}, neighbours first, and no setting says else")
    if spec.offload.activations not in {0.0, 1.0} or (spec.offload.activations and not full(writing)):
        writing.refuse("offload", "only inputs of checkpointed layers go to host memory, and all of them")


def full(writing: Writing) -> bool:
    """Whether every layer is recomputed."""
    return writing.plan.recompute.startswith("full")


def optimizer(writing: Writing) -> str:
    """Return the Trainer's `optim`."""
    name = str(writing.asked("optimizer"))
    if name not in OPTIM_OF:
        writing.refuse("optimizer", f"the Trainer has {', '.join(OPTIM_OF)} (optimizer = {name})")
    return OPTIM_OF.get(name, "")


def arguments(writing: Writing) -> tuple[list[tuple[str, ...]], list[LaunchFile]]:
    """Return what run_clm.py is told, whatever it runs under, and the files that this names."""
    plan, precision = writing.plan, writing.spec.precision
    model, files = written_model(writing)
    writing.warn(f"{SCRIPT} is that of {BASIS}: data and learning rate are yours to say")
    leave_training(writing)
    told: list[tuple[str, ...]] = [
        *model, ("--train_file", Expansion("${TRAIN_FILE:?a text file}")), ("--do_train",),
        ("--output_dir", Expansion("${OUTPUT_DIR:-output}")), ("--block_size", str(plan.sequence)),
        ("--per_device_train_batch_size", str(plan.micro_batch_size)),
        ("--gradient_accumulation_steps", str(plan.num_microbatches)),
    ]  # fmt: skip
    if precision in {"bf16", "fp16"}:
        told.append((f"--{precision}", "True"))
    if precision in WIDE:
        told.append(("--tf32", str(precision == "tf32")))
    return told, files


def leave_training(writing: Writing) -> None:
    """Name in the script what of the training is left to the Trainer."""
    writing.leave("learning rate, its schedule, weight decay, Adam's betas, clipping, number of epochs: the Trainer's")
    if str(writing.asked("optimizer")) in {"adam", "adamw"}:
        writing.leave("weight decay: decoupled from the gradient, since Adam is AdamW here")


# --- read


def read_tuning(reading: Reading, names: adapters.Names = adapters.ARGUMENTS, **held: Any) -> bool:
    """Read what is trained of the model, which must be known, and by which method; whether it is adapters.

    Args:
        held: of the reference model, for `preferences.check_reference`.

    Raises:
        InputError: another part of it, or it is trained against other models.
    """
    preferences.read(reading)
    tuned = adapters.read(reading, names)
    preferences.check_reference(reading, tuned=tuned, **held)
    return tuned


def read_sequence(reading: Reading, *names: str) -> int | None:
    """Read tokens per sequence.

    Raises:
        InputError: nobody says them.
    """
    names = names or SEQUENCE
    if reading.given.get("seq"):
        return None
    if reading.options.get("method") == "grpo" and reading.get(*COMPLETION):
        cut, told = reading.stated(*PROMPT) or reading.get(PROMPT[0]), reading.stated(*COMPLETION)
        if cut is None:
            reading.refuse(told, "no file states how long prompts are", settles="seq")
        prompt = reading.integer(*PROMPT) or 0
        answer = reading.integer(*COMPLETION) or 0 if told else CUTTING_COMPLETION
        reading.option("seq", prompt + answer, *PROMPT, *COMPLETION)
        return prompt + answer
    found = reading.integer(*names)
    if found is None:
        raise InputError("no file states how long sequences are", field="seq", hint="add `seq=4096`")
    reading.option("seq", found, *names)
    packed = next((one for name in PACKED if (one := reading.get(name)) and str(one.value).lower() not in OFF), None)
    if packed is not None:
        reading.means("sequences are full", packed.name)
    elif set(names) & {"max_length", "cutoff_len"} and not reading.first("block_size"):
        reading.means("sequences are predicted full", *PACKED)
        reading.assume(f"sequences of {found:,} tokens: without packing they are as long as the data is, at most this")
    return found


PROMPT, COMPLETION = ("max_prompt_length", "max_length"), ("max_completion_length", "trl.max_completion_length")
"""Tokens of a prompt (ms-swift: `max_length`) and of an answer to it, in files of GRPO."""

CUTTING_COMPLETION = 256
"""Tokens of an answer in releases of TRL that cut prompts, where nothing is said (trl 0.14 to 0.26, grpo_config.py)."""

PACKED = tuple(_KNOWN["packed"])


def count(reading: Reading, *names: str) -> int | None:
    """Return a whole number that must be 1 or more.

    Raises:
        InputError: it is not.
    """
    found = reading.integer(*names)
    if found is not None and found < 1:
        reading.refuse(reading.get(*names), f"{found} is not 1 or more")
    return found


def read_batch(reading: Reading, micro: int | None, accumulation: int | None, total: int | None, *of: str) -> None:
    """Set the microbatch and the global batch from two of micro x accumulation x DP = total.

    Args:
        of: the settings that say so.

    Raises:
        InputError: they contradict one another, or the GPUs must be known and are not.
    """
    beside = {name for name in ("micro_batch_size", "gbs") if reading.given.get(name)}
    if micro is not None and total is not None and accumulation is None:
        _batch(reading, beside, micro, total, *of)
        return
    if beside == {"micro_batch_size", "gbs"}:
        return
    if "micro_batch_size" in beside and total is not None and accumulation is None:
        _batch(reading, beside, 1, total, *of)
        return
    if micro is None and total is None:
        if "gbs" in beside or "micro_batch_size" in beside:
            return
        raise InputError("no file states how large batches are", field="gbs", hint="add `gbs=1024`")
    replicas = data_parallel(reading, "the global batch" if total is None else "the microbatch")
    if accumulation is None:
        accumulation = 1
        reading.assume("no gradient accumulation: one microbatch per step")
    if micro is None:
        assert total is not None
        micro, rest = divmod(total, replicas * accumulation)
        if rest or not micro:
            message = f"the batch of {total} does not divide by {replicas} replicas x {accumulation} microbatches"
            reading.refuse(reading.get(*of), message)
    steps = micro * accumulation * replicas
    if total is not None and total != steps and not beside:
        message = f"a batch of {total} is not {micro} x {accumulation} microbatches x {replicas} replicas"
        reading.refuse(reading.get(*of), message, settles="gbs", likely=(str(steps), str(total)))
    _batch(reading, beside, micro, steps, *of)


def _batch(reading: Reading, beside: set[str], micro: int, total: int, *of: str) -> None:
    """Set both; files count samples, a microbatch the sequences of them."""
    if "micro_batch_size" not in beside:
        reading.option("micro_batch_size", micro * preferences.spec(reading).sequences, *of)
    if "gbs" not in beside:
        reading.option("gbs", total, *of)


def data_parallel(reading: Reading, needed: str) -> int:
    """Return DP, from the GPUs and the other degrees read so far.

    Raises:
        InputError: the GPUs are not known, or do not divide.
    """
    gpus = int(reading.given.get("gpus") or reading.options.get("gpus") or gpus_of(reading, needed) or 1)
    inside = math.prod(int(reading.given.get(axis) or reading.layout.get(axis) or 1) for axis in ("tp", "cp", "pp"))
    if gpus % inside:
        raise InputError(f"{gpus} GPUs do not divide by TP x CP x PP = {inside}", field="gpus", hint="give a multiple")
    return gpus // inside


def read_precision(reading: Reading, *beside: str, default: str = "fp32") -> str:
    """Read the precision of products from flags, `dtype` and the like.

    Args:
        beside: further settings that may name it: `mixed_precision`.
        default: where nobody says it.
    """
    chosen, names = default, ("bf16", "fp16", "tf32", *beside, "dtype", "torch_dtype", "model.dtype", "precision")
    if reading.given.get("precision"):
        return str(reading.given["precision"])
    stated = [reading.needed(name) for name in names]
    words = [(word, one.usual) for one in stated if one is not None and (word := precision_word(one))]
    words.sort(
        key=lambda pair: (pair[0] in WIDE, pair[1])
    )  # a switch of half precision counts, whatever is wide beside
    if words:
        low = next((word for word, _ in words if word.startswith("fp8") or word == "mxfp8"), None)
        chosen = low or words[0][0]
        sayings = [name for name in names if (one := reading.get(name)) and precision_word(one) == chosen]
        reading.option("precision", chosen, *sayings)
        return chosen
    reading.option("precision", default)
    reading.assume(f"precision is {default}: nothing else is said")
    return chosen


def read_optimizer(reading: Reading, *names: str) -> None:
    """Read the optimizer, and moments of 8 bits.

    Raises:
        InputError: one that is not modelled.
    """
    name = reading.first(*names)
    if not name:
        trainers = bool(reading.tool.defaults)
        reading.assume("the optimizer is AdamW, " + ("the Trainer's default" if trainers else "as in most programs"))
        reading.option("optimizer", "adamw")
        return
    if reading.given.get("optimizer"):
        reading.means("replaced by the optimizer that is given", name)
        return
    text = str(getattr(reading.needed(name), "value", "")).strip().lower()
    if text not in OPTIMS:
        reading.refuse(reading.get(name), f"the optimizer {text[:60]} is not modelled", settles="optimizer")
    reading.option("optimizer", OPTIMS[text], name)
    if OPTIMIZERS[OPTIMS[text]].projected:
        _read_projection(reading)
    if re.search(r"4bit|fp8", text):
        reading.assume("moments take a byte each: those of 4 bits and in fp8 count as 8-bit ones", name)
    if text.startswith("paged"):
        reading.assume("paged moments leave the GPU where it is full, and what moving them takes is not counted", name)


def _read_projection(reading: Reading) -> None:
    """Read the rank of gradients that the optimizer projects, and which are (trainer_optimizer.py of transformers)."""
    if rank := re.search(r"\brank=(\d+)", reading.text("optim_args") or ""):
        reading.option("optimizer_rank", int(rank[1]), "optim_args")
    said = reading.get("optim_target_modules")
    targets = set(re.findall(r"[a-z]+", str(said.value).lower())) if said else set()
    if targets >= {"all", "linear"} or targets >= {"attn", "mlp"}:
        reading.means("all matrices of layers are projected", "optim_target_modules")


def read_checkpointing(reading: Reading, *names: str, default: bool = False) -> bool:
    """Read whether layers are recomputed."""
    names = names or ("gradient_checkpointing",)
    if reading.given.get("recompute"):
        return str(reading.given["recompute"]).startswith("full")
    found = reading.first(*names)
    on = default
    if found:
        value = str(getattr(reading.needed(found), "value", "")).strip().lower()
        on = value not in OFF
        if value.startswith(("offload", "unsloth")):  # axolotl utils/gradient_checkpointing
            reading.option("offload", "activations", found)
    elif default:
        reading.assume("every layer is recomputed, the tool's default")
    reading.option("recompute", "full" if on else "none", *([found] if found else []))
    return on


def dictionary(reading: Reading, name: str) -> dict[str, Any]:
    """Return a setting that is JSON on a command line, or a table in a document; empty where it is neither.

    Raises:
        InputError: it looks like JSON and is not.
    """
    nested = {key.removeprefix(f"{name}."): one for key, one in reading.settings.items() if key.startswith(f"{name}.")}
    if nested:
        return {key: getattr(reading.get(one.name), "value", None) for key, one in nested.items()}
    found = reading.get(name)
    if found is None or not str(found.value).lstrip().startswith("{"):
        return {}
    try:
        made = json.loads(str(found.value))
    except (ValueError, RecursionError):
        reading.refuse(found, "is not JSON")
    return made if isinstance(made, dict) else {}


def read_loss(reading: Reading) -> str | None:
    """Read what Liger's kernels do of the cross entropy.

    Returns:
        `linear` (fused with the LM head, Liger's default), `fused`, `standard`, or None where no kernel is asked for.
    """
    names = ("use_liger_kernel", "enable_liger_kernel", "use_liger", "liger")
    own = reading.first(*names)
    plugin = reading.get("plugins")
    words = " ".join(reading.words("plugins")).lower() if plugin else ""
    model = reading.text("model.type") or ""
    if own and reading.flag(own):
        asked = dictionary(reading, "liger_kernel_config")
        reading.means("kernels of Liger", own, "liger_kernel_config")
        return next((name for name, config in LIGER.items() if asked and config.items() <= asked.items()), "linear")
    if "liger" in words and "cutcrossentropy" not in words:  # axolotl's plugin does what its switches say
        of = ("liger_fused_linear_cross_entropy", "liger_cross_entropy")
        reading.means("what Liger's kernels do of the cross entropy", "plugins", *of)
        return "linear" if reading.flag(of[0]) else "fused" if reading.flag(of[1]) else None
    cut = reading.get("use_cce") is not None and reading.flag("use_cce")
    if cut or "cutcrossentropy" in words or model == "liger":
        reading.means("cross entropy without whole logits", "plugins", "model.type", "use_cce")
        return "linear"
    if reading.flag("chunked_cross_entropy") or reading.text("loss_type") == "chunked_nll":
        reading.means("cross entropy of a part of the logits at a time", "chunked_cross_entropy", "loss_type")
        return "chunked"
    return None


def read_experts(reading: Reading) -> None:
    """Set how experts are split where only TP splits them."""
    tp, ep = (int(reading.layout.get(axis) or 1) for axis in ("tp", "ep"))
    if tp > 1 and ep == 1 and load_model(str(reading.given.get("model") or reading.options["model"])).is_moe:
        reading.option("etp", tp)
        reading.assume(f"experts are split by TP as all layers are: ETP {tp}")
