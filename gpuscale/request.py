"""Every option of a question, declared once: its type and limits, what it means, its default, the names it takes.

What Python functions check, the command line, plan files, the job that answers echo, what may be compared and the
reference page follow from the fields here. An option with the name of a `RuntimeSpec` field takes effect by its
declaration alone (`gpuscale.planning.jobs`). Declaring loads neither NumPy nor pydantic, so that help is quick.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

from gpuscale.arguments import ALIASES, Taken, refuse_unknown
from gpuscale.choices import (
    ATTENTIONS,
    AXES,
    BASE_DTYPES,
    CP_COMMS,
    DISPATCHERS,
    GRAD_REDUCES,
    LOSSES,
    LOW_PRECISIONS,
    MAX_DEGREE,
    MAX_GPUS,
    MAX_SEQUENCE,
    MEMORY_HEADROOM,
    METHODS,
    PIPELINE_SPLITS,
    RANKED_BY,
    RESHARDS,
    ROUTINGS,
    TERMS,
    TOWERS,
    TRAINED,
    TRANSPORTS,
    TUNES,
)
from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.units import (
    BATCH_TOKENS,
    DAYS,
    GIBIBYTES,
    HOURS,
    MAX_COUNT,
    NUMBER,
    PERCENT,
    RATE,
    SECONDS,
    SHARE,
    TOKENS,
    USD,
    WATTS,
    Quantity,
    format_count,
    format_whole,
    parse_whole,
    plural,
    refuse_grouped,
)

if TYPE_CHECKING:
    from gpuscale.specs.job import OffloadSpec, RuntimeSpec

DEFAULT_SEQUENCE = 4096
DEFAULT_BATCH_TOKENS = 4 * 2**20
"""Tokens of a global batch up to 1,024 GPUs; beyond, it grows with their square root."""

MAX_BATCH = 2**24
MOST_BATCH_TOKENS = 2**28
"""Four times the largest published batch, the 63 million tokens of DeepSeek-V3; more must be said with its word."""

PRECISIONS = ("bf16", "fp16", *LOW_PRECISIONS, "tf32", "fp32")
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "none": 0.0}


class Moments(NamedTuple):
    """What an optimizer keeps per parameter."""

    number: int  #: moments.
    each_bytes: float | None = None  #: of one; None: of the data type that is asked for.
    projected: str = ""  #: what gradients of matrices are projected to a low rank by: `svd` or `random`.


IN_8_BITS = 1 + 4 / 256
OPTIMIZERS = {
    "adam": Moments(2), "adamw": Moments(2), "adamw-8bit": Moments(2, IN_8_BITS),
    "paged-adamw": Moments(2, 4.0), "paged-adamw-8bit": Moments(2, IN_8_BITS), "lion": Moments(1),
    "lion-8bit": Moments(1, IN_8_BITS), "muon": Moments(1), "adafactor": Moments(1, 0.0), "sgd-momentum": Moments(1),
    "sgd": Moments(0), "galore": Moments(2, None, "svd"), "galore-8bit": Moments(2, IN_8_BITS, "svd"),
    "apollo": Moments(2, None, "random"),
}  # fmt: skip
"""8 bits: a byte, and a 32-bit scale per block of 256 (Dettmers et al. 2022, arXiv 2110.02861; bitsandbytes
optim/optimizer.py). Paged ones lie in unified memory and leave the GPU where it is full (Dettmers et al. 2023, arXiv
2305.14314, section 3); bitsandbytes keeps 32-bit ones in fp32 beside weights in bf16 too (init_state). Adafactor keeps
a row and a column of each matrix (Shazeer and Stern 2018, arXiv 1804.04235). GaLore and APOLLO:
`gpuscale.specs.tuning.ProjectionSpec`."""

MAX_AXES = 3

DEFAULT_TOP, MAX_TOP = 10, 2000
LEAST, MAX_PRICE, MAX_USD = 1e-10, 1e6, 1e15
"""Limits of prices and constraints: by how much a plan misses one stays a number."""

MEMORY = replace(GIBIBYTES, sure=(1.0, math.inf), other=lambda value: f"{80 * value:.3g}GiB for {value:.3g} of 80 GiB")
"""Of a GPU: a number below 1 may be meant as a share."""
PRICE = replace(USD, what="a price", example="2.5, or CLUSTER=2.5 for each cluster")

ALL_CLUSTERS = ""
"""Key of a price that holds for every cluster."""


@dataclass(frozen=True)
class Option:
    """What is declared of an option beside its type and limits."""

    help: str  #: what it is, in a sentence.
    metavar: str = "N"  #: what a value looks like.
    default: str = ""  #: what is taken where it is not given, in words.
    choices: Sequence[str] = ()  #: the names that it takes, if only some.
    #: from a text to its usual spelling, or to the number that it means; refuses what cannot be read.
    normal: Callable[[str], str | int] | None = None
    #: from any form of a value to what is kept of it; refuses what cannot be read. Of values that are no plain type.
    read: Callable[[Any], Any] | None = None
    label: str = ""  #: how a value is said in a sentence; only of options of which `plan` compares several values.
    header: str = ""  #: what heads its column in a comparison, if not its name.
    word: str = ""  #: how it is called in a sentence, if not by its name.
    needs: str = ""  #: the degree of the layout that must be above 1 for it to make a difference.
    assumption: str = ""  #: the name under which the answer says what was chosen, if not its own.
    quantity: Quantity = NUMBER  #: how its number is read: with which units, and what is asked back.
    repeatable: bool = False  #: may be given several times; the values are joined by commas.
    python: str = ""  #: its type in Python, where a function takes more than the type that is declared.
    example: tuple[int, int] = (4096, 16384)  #: two values by which lists and ranges are explained.


class Within(NamedTuple):
    """The least and the most that a number may be."""

    low: float
    high: float


class Declared(NamedTuple):
    """One option as it is declared."""

    option: Option
    kinds: frozenset[Any]  #: the types that a value may have.
    default: Any  #: what holds where it is not given; None where it must be.
    required: bool
    limits: Within

    @property
    def number(self) -> type | None:
        """`int` or `float` where it takes numbers and no text."""
        return None if str in self.kinds else next((kind for kind in (int, float) if kind in self.kinds), None)


def one_of(field: str, value: Any, known: Sequence[str]) -> str:
    """Return `value` in lower case if it is one of `known`; else an InputError that lists them."""
    lowered = value[:40].strip().lower() if isinstance(value, str) else shown(value)
    if lowered not in known:
        raise InputError(f"unknown value {lowered!r}", field=field, hint=did_you_mean(lowered, known, "choose"))
    return lowered


SWITCH = ("on", "off")
OF_EXPERTS = ("dispatcher", "routing", "transport")
"""Options that say something of experts alone."""

OFFLOADS = ("none", "optimizer", "parameters", "activations")
OVERLAPS = ("tp", "dp", "ep")
"""What `overlap` switches. tp: collectives beside the GEMM next to them (Megatron-LM `--tp-comm-overlap`). dp:
gradients under the backward and parameters under the forward pass (`--overlap-grad-reduce`, `--overlap-param-gather`).
ep: the exchange of one microbatch beside the computation of another (`--overlap-moe-expert-parallel-comm`): it takes EP
above 1 and virtual stages where there is a pipeline. Pipeline transfers are hidden by interleaving alone."""


def split_parts(field: str, text: str, known: Sequence[str], separators: str = "+") -> list[str]:
    """Split `a+b` into known parts, each given once; `none` stands alone, for no part."""
    parts = [part.strip() for part in re.split(f"[{separators}]", text[:100].lower())]
    if parts == ["none"]:
        return []
    names = [part.partition(":")[0] for part in parts]
    for name in names:
        if name not in known or name == "none":
            hint = did_you_mean(name, [one for one in known if one != "none"], "join by + any of")
            message = "none cannot be combined" if name == "none" else f"unknown part {name[:40]!r}"
            raise InputError(message, field=field, hint=f"{hint}, or give none")
        if names.count(name) > 1:
            raise InputError(f"{name} is given twice", field=field, hint="give each part once")
    return parts


def parse_offload(text: str) -> "OffloadSpec":
    """Parse `none`, or any of `optimizer`, `parameters`, `activations` and `activations:0.5`, joined by `+` or `,`.

    Raises:
        InputError: an unknown part, or a share that is not above 0 and at most 1.
    """
    from gpuscale.specs.job import OffloadSpec  # noqa: PLC0415

    shares: dict[str, float] = {}
    for part in split_parts("offload", text, OFFLOADS[1:], "+,"):
        name, colon, share = part.partition(":")
        if colon and name != "activations":
            hint = "only activations takes one, such as activations:0.5"
            raise InputError(f"{part[:40]!r} takes no share", field="offload", hint=hint)
        shares[name] = SHARE.read(share, "offload", LEAST, 1) if colon else 1.0
    return OffloadSpec("optimizer" in shares, "parameters" in shares, shares.get("activations", 0.0))


def offload_name(offload: "OffloadSpec") -> str:
    """Name what is offloaded, as `parse_offload` reads it."""
    parts = ["optimizer"] * offload.optimizer + ["parameters"] * offload.parameters
    if offload.activations:
        parts.append("activations" if offload.activations == 1 else f"activations:{offload.activations!r}")
    return "+".join(parts) or "none"


def parse_overlap(text: str) -> tuple[str, ...]:
    """Parse `none`, or any of `OVERLAPS` joined by `+`."""
    parts = split_parts("overlap", text, OVERLAPS)
    return tuple(name for name in OVERLAPS if name in parts)


def overlap_name(parts: Sequence[str]) -> str:
    """Name a set of overlaps as `parse_overlap` reads it."""
    return "+".join(parts) or "none"


def overlap_of(runtime: "RuntimeSpec") -> tuple[str, ...]:
    """Return what a runtime overlaps; dp where both gradients and parameters are hidden."""
    on = {"tp": runtime.overlap_tp, "dp": runtime.overlap_grad_reduce and runtime.overlap_param_gather}
    on["ep"] = runtime.overlap_ep
    return tuple(name for name in OVERLAPS if on[name])


def parse_schedule(text: str, pp: int = 0) -> int:
    """Return the code of a pipeline schedule given by name.

    Raises:
        InputError: an unknown name, or a schedule that needs an even number of stages where `pp` is odd.
    """
    from gpuscale.layouts.arrays import ONE_F_ONE_B, SCHEDULES  # noqa: PLC0415

    name = text[:40].strip().lower()
    if name in {"", "none"}:
        return ONE_F_ONE_B
    code = SCHEDULES[one_of("schedule", name, tuple(SCHEDULES))]
    if name == "dualpipe" and pp % 2:
        raise InputError(f"dualpipe needs an even number of stages, not {pp}", field="schedule")
    return code


def schedule_text(code: int) -> str:
    """Name a schedule by its code."""
    from gpuscale.layouts.arrays import SCHEDULES  # noqa: PLC0415

    return next(name for name, known in SCHEDULES.items() if known == code)


def parse_batch(text: str) -> int | str:
    """Parse a global batch: `1024`, and with a word behind it `16Mtok` or `4kseq`, in their usual spelling."""
    count = re.fullmatch(r"(.{1,40}?)\s*(tok|seq)(?:(?:en|uence)?s?)", text[:64].strip(), re.IGNORECASE)
    if count is None:
        return parse_whole(text, "gbs")
    number, word = parse_whole(count[1], "gbs"), count[2].lower()
    if not 1 <= number <= MAX_BATCH * (MAX_SEQUENCE if word == "tok" else 1):
        hint = "4Mtok is 4 x 2^20 tokens, 4kseq 4,096 sequences"
        raise InputError(f"{text[:40]!r} is out of range", field="gbs", hint=hint)
    return f"{format_whole(number)}{word}"


def size_of(batch: str) -> int:
    """Return the tokens or sequences of a batch that `parse_batch` leaves a text."""
    return parse_whole(batch[:-3], "gbs")


def in_sequences(batch: int) -> str:
    """Write a batch so that nobody asks whether tokens are meant."""
    return f"{format_whole(batch)}seq"


def check_batch(batch: int, sequence: int) -> None:
    """Ask back a number of sequences that is believable only as one of tokens."""
    if batch * sequence > MOST_BATCH_TOKENS:
        message = f"{batch:,} sequences of {sequence:,} are {format_count(batch * sequence)} tokens per step"
        hint = f"write `gbs={format_whole(batch)}tok` for tokens, or `gbs={in_sequences(batch)}` if you mean sequences"
        raise InputError(message, field="gbs", hint=hint)


def sequences_of(batch: str, sequence: int) -> int:
    """Return the sequences of a batch that is given with a word.

    Raises:
        InputError: its tokens are no whole number of sequences, or too many.
    """
    tokens = size_of(batch)
    if batch.endswith("seq"):
        return tokens
    whole, rest = divmod(tokens, sequence)
    if rest:
        near = " or ".join(f"`gbs={count:d}`" for count in (whole, whole + 1) if count)
        message = f"{batch} is {tokens:,} tokens, not a whole number of sequences of {sequence:,}"
        raise InputError(message, field="gbs", hint=f"the nearest is {near}")
    if whole > MAX_BATCH:
        message = f"{batch} is {whole:,} sequences of {sequence:,}, at most {MAX_BATCH:,}"
        raise InputError(message, field="gbs", hint="give fewer tokens")
    return whole


def _recompute(text: str) -> str:
    """Refuse what is not a way to recompute; `full` means another number of layers in each job, and stays."""
    from gpuscale.layouts.pins import parse_recompute  # noqa: PLC0415

    parse_recompute(text)
    return text.strip().lower()


def _targets(text: str) -> str:
    """Return names of matrices in their usual spelling (`gpuscale.specs.tuning`), fused ones as one."""
    from gpuscale.specs.tuning import JOINED, read_joined, read_targets  # noqa: PLC0415

    names, joined = read_targets(text), read_joined(text)
    for matrices, operators in JOINED.items():
        if joined.intersection(operators):
            parts = matrices.split(",")
            names = names.difference(parts) | {"qkv" if "q" in parts else "gate_up"}
    return ",".join(sorted(names))


def _lengths(text: str) -> str:
    from gpuscale.specs.lengths import read_lengths  # noqa: PLC0415

    return read_lengths(text)


def _order(text: str) -> str:
    from gpuscale.placement import parse_order  # noqa: PLC0415

    return "-".join(parse_order(text))


def _pareto(value: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, Sequence):
        raise _not_text("pareto", value)
    parts = value.split(",", MAX_AXES + 1) if isinstance(value, str) else list(value)
    names = [one_of("pareto", part, RANKED_BY) for part in parts]
    if names and (not 2 <= len(names) <= MAX_AXES or len(set(names)) < len(names)):
        message = f"{len(set(names))} different objectives do not make a frontier"
        raise InputError(message, field="pareto", hint="give two or three")
    return tuple(names)


def _prices(value: float | str | Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    if isinstance(value, Mapping):
        value = [f"{cluster}={price}" for cluster, price in value.items()]
    for item in value if isinstance(value, list | tuple) else [value]:
        name, equals, amount = item.rpartition("=") if isinstance(item, str) else ("", "", item)
        cluster = name.strip() if equals else ALL_CLUSTERS
        if equals and not cluster:
            raise InputError(f"{shown(item)} is not a price", field="gpu_hour_price", hint=f"write {PRICE.example}")
        price = PRICE.read(amount, "gpu_hour_price", LEAST, MAX_PRICE)
        if cluster in found:
            what = f"of {cluster[:60]}" if cluster else "of all clusters"
            raise InputError(f"the price {what} is given twice", field="gpu_hour_price", hint="give each once")
        found[cluster] = price
    return found


def _rates(value: str | Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    from gpuscale.presets.rates import load_rates  # noqa: PLC0415

    if not isinstance(value, Mapping):
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        parts = (part.partition("=") for part in filter(None, text[:4096].split(",")))
        value = {name.strip(): amount for name, _, amount in parts}  # type: ignore[misc]
    found = {}
    for name, amount in value.items():
        number = _number(amount)
        if number is None:
            hint = "write pue=1.3, or electricity_usd_per_kwh=0.1"
            raise InputError(f"{shown(name)}={shown(amount)} is not NAME=VALUE", field="rate", hint=hint)
        found[str(name)] = number
    load_rates(found)
    return found


OF_ANSWER = ("measured", "recipe")
"""Lines of an answer whose layout `why` takes by their name."""


def _why(value: str | Mapping[str, Any]) -> dict[str, str]:
    if isinstance(value, Mapping):
        value = ",".join(f"{name}={one}" for name, one in value.items())
    if not isinstance(value, str):
        raise _not_text("why", value)
    line = value.strip().lower().removeprefix("line=")
    return {"line": line} if line in OF_ANSWER else parse_layout(value, "why")


def _failure_rate(value: float | str) -> float | str:
    number = _number(value)
    if number is None and isinstance(value, str) and 1 <= len(value) <= 4096:
        return value
    if number is None or not LEAST <= number <= 1e6:
        raise InputError(f"{shown(value)} is out of range", field="failure_rate", hint=f"give {LEAST:g} to 1e+06")
    return number


def _not_text(name: str, value: Any) -> InputError:
    return InputError(f"{shown(value)} is not text", field=name)


def _number(value: Any) -> float | None:
    with suppress(InputError):
        return NUMBER.read(value, "")
    return None


def read_plain(text: str, kind: type) -> int | float:
    """Read a number without a unit, as flags and files of text have it; a ValueError of none, or a fraction of an
    `int`."""
    value = _number(text)
    if value is None or (kind is int and not value.is_integer()):
        raise ValueError(f"{shown(text)} is not {_WHAT[kind]}")
    if kind is int and abs(value) >= 2**53:
        raise ValueError(f"{shown(text)} is out of range: give less than 2^53")
    return int(value) if kind is int else value


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that belong together, checked and in their usual spelling (`read`)."""

    strict: ClassVar[bool] = False
    """Numbers and switches must not be texts, nor whole numbers fractions."""

    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)  #: names of what was given.

    def values(self) -> dict[str, Any]:
        """Return every option by name."""
        return {name: getattr(self, name) for name in declared(type(self))}

    def stated(self) -> dict[str, Any]:
        """Return those that were given."""
        return {name: value for name, value in self.values().items() if name in self.given}


_DECLARED: dict[type, Mapping[str, Declared]] = {}


def declared(options: type[Options]) -> Mapping[str, Declared]:
    """Return the options of a kind by name, in the order in which they are declared."""
    if options not in _DECLARED:
        _DECLARED[options] = _declared(options)
    return _DECLARED[options]


def _declared(options: type[Options]) -> Mapping[str, Declared]:
    found = {}
    hints = get_type_hints(options, include_extras=True)
    for one in dataclasses.fields(options):
        said = getattr(hints[one.name], "__metadata__", ())
        option = next((part for part in said if isinstance(part, Option)), None)
        if option is None:
            continue
        kind = hints[one.name].__origin__
        made = {} if one.default_factory is dict else one.default
        required = made is dataclasses.MISSING
        limits = next((part for part in said if isinstance(part, Within)), Within(-math.inf, math.inf))
        kinds = frozenset({kind, *get_args(kind)})
        found[one.name] = Declared(option, kinds, None if required else made, required, limits)
    return found


DEGREE = Within(1, MAX_DEGREE)
OF_FRAMEWORK = "the framework's"

# fmt: off


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    """A job: what is trained, on what, and how; what is left out is chosen by a rule that the answer states."""

    strict = True

    model: Annotated[str, Option("Preset name, TOML file, Hugging Face config.json, or cached model id.", "NAME|PATH",
                                  python="str | Path | ModelSpec")]
    gpus: Annotated[int, Within(1, MAX_GPUS), Option(
        "Number of GPUs; 1 where the cluster is a card.", label="{:,} GPUs", header="GPUs", example=(256, 1024))]
    cluster: Annotated[str, Option("Preset name, cluster TOML file, or a card (rtx-4090): a box of 8.", "NAME|PATH",
                                    label="{}", python="str | Path | ClusterSpec")] = "dgx-h100-superpod"
    seq: Annotated[int | None, Within(1, MAX_SEQUENCE), Option("Sequence length in tokens; 128k is 131,072.",
        default=str(DEFAULT_SEQUENCE), label="seq {:,}", normal=lambda text: parse_whole(text, "seq"))] = None
    gbs: Annotated[int | str | None, Within(1, MAX_BATCH), Option(
        "Global batch size in sequences, or in tokens: 16Mtok is 16 x 2^20.", "N|Ntok",
        "by model and GPUs, 4 Mi tokens for 7B to 70B; 64 samples of fine-tuning", label="gbs {:,}",
        example=(1024, 4096), normal=parse_batch)] = None
    set: Annotated[str | None, Option(
        "Override the cluster: leaf.link_gb_per_s=40 (or x2), network=x2, domain=72, gpu=NAME; repeatable.",
        "LEVEL.KEY=VALUE", repeatable=True)] = None
    framework: Annotated[str, Option(
        "Framework profile (`gpuscale show frameworks`), as of a month if given; accelerate for adapters.",
        "NAME[@YYYY-MM]", label="{}")] = "megatron-lm"
    precision: Annotated[str | None, Option("Precision of matrix multiplications, with its recipe.", "NAME", "bf16",
                                            choices=PRECISIONS, label="{}")] = None
    tune: Annotated[str, Option(
        "Fine-tuning: all weights, or adapters (LoRA) beside frozen ones, in 4 bits under qlora.", "NAME",
        choices=TUNES)] = "full"
    method: Annotated[str, Option(
        "What is learned from: next tokens, preferences (a batch counts samples: pairs), rewards, a teacher.", "NAME",
        choices=METHODS)] = "sft"
    teacher: Annotated[str | None, Option(
        "Frozen model that `method=distill` learns from: dense, with the same vocabulary.", "NAME|PATH", "none")] = None
    lengths: Annotated[str | None, Option(
        "Lengths of samples in tokens: a file of numbers, a list, or lognormal:MEDIAN:SIGMA.", "WHAT",
        "all as long as the sequence", normal=_lengths)] = None
    packing: Annotated[bool | None, Option(
        "Samples of `lengths` are packed into sequences rather than padded.", "on|off", "off")] = None
    lora_rank: Annotated[int | None, Within(1, 4096), Option("Rank of the adapters.", default="16")] = None
    lora_targets: Annotated[str | None, Option(
        "Matrices with adapters: all, attention, mlp, or names such as q,v,o,gate,up,down.", "NAMES", "all",
        repeatable=True, normal=_targets)] = None
    lora_experts: Annotated[bool | None, Option("Adapters in routed experts too.", "on|off", "off")] = None
    lora_dropout: Annotated[bool | None, Option(
        "Dropout before the adapters.", "on|off", "the framework's, mostly off")] = None
    train: Annotated[str | None, Option(
        f"Trained whole beside adapters: {', '.join(TRAINED)}.", "NAMES", "none", repeatable=True,
        normal=lambda text: ",".join(split_parts("train", text, (*TRAINED, "none"), ",+")) or "none")] = None
    base_dtype: Annotated[str | None, Option(
        "Data type of frozen matrices.", "DTYPE", "16 bits; nf4 under qlora", choices=tuple(BASE_DTYPES))] = None
    optimizer: Annotated[str, Option("The optimizer.", "NAME", choices=tuple(OPTIMIZERS))] = "adam"
    optimizer_rank: Annotated[int | None, Within(1, 65536), Option(
        "Rank of gradients under galore and apollo.", default="128")] = None
    grad_dtype: Annotated[str | None, Option("Data type of gradients.", "DTYPE", OF_FRAMEWORK,
                                             choices=("fp32", "bf16", "fp16"), word="gradients")] = None
    master_dtype: Annotated[str, Option("Data type of master weights.", "DTYPE",
                                        choices=("fp32", "bf16", "fp16", "none"))] = "fp32"
    moment_dtype: Annotated[str, Option("Data type of optimizer moments.", "DTYPE",
        choices=("fp32", "bf16", "fp16", "fp8"), label="{} moments", header="moments")] = "fp32"
    swiglu_input_dtype: Annotated[str | None, Option("Data type of the saved inputs of gated activation functions.",
        "DTYPE", OF_FRAMEWORK, choices=("bf16", "fp8"))] = None
    loss: Annotated[str | None, Option(
        "Cross entropy: on an fp32 copy of the logits, fused on 16-bit logits, or chunked or fused with the LM head.",
        "HOW", OF_FRAMEWORK, choices=LOSSES, word="cross entropy")] = None
    vocab_multiple: Annotated[int | None, Within(1, 65536),
                              Option("Pad the vocabulary to a multiple of N x TP.", default=OF_FRAMEWORK)] = None
    memory_limit_gib: Annotated[float | None, Within(1, 10_000), Option(
        "Memory limit per GPU in GiB.", "GIB", "what the driver reports", quantity=GIBIBYTES)] = None
    moe_imbalance: Annotated[float, Within(1, 100),
                             Option("Expert load imbalance: tokens of the busiest rank over the mean.", "X")] = 1.0
    gpus_per_node: Annotated[int | None, DEGREE, Option(
        "GPUs used per node.", default="all; 64 per rack on several racks of 72")] = None
    offload: Annotated[str | None, Option(
        "Offloaded to host memory: optimizer, parameters (ZeRO-3), activations[:SHARE], joined by +.", "WHAT", "none",
        normal=lambda text: offload_name(parse_offload(text)), label="offload {}")] = None
    cp_comm: Annotated[str | None, Option(
        "Context-parallel communication: ring, all-gather, Ulysses, or Ulysses within and a ring across nodes.", "NAME",
        OF_FRAMEWORK, choices=CP_COMMS, label="CP by {}", header="CP by", word="CP communication", needs="cp",
        assumption="context_parallel")] = None
    axis_order: Annotated[str | None, Option("Order of the parallel axes, innermost (adjacent ranks) first.", "AXES",
        "-".join(AXES), normal=_order, label="order {}", header="order", word="order of the axes")] = None
    pipeline_split: Annotated[str | None, Option("How layers are assigned to pipeline stages.", "NAME", OF_FRAMEWORK,
        choices=PIPELINE_SPLITS, label="{} split", header="split", word="split of the layers", needs="pp")] = None
    overlap: Annotated[str | None, Option(
        f"Communication overlapped with compute: {', '.join(OVERLAPS)} joined by +, or none.", "WHAT", OF_FRAMEWORK,
        normal=lambda text: overlap_name(parse_overlap(text)), label="overlap {}")] = None
    cuda_graphs: Annotated[str | None, Option(
        "CUDA graphs: none, all but the experts, or whole iterations.", "NAME", OF_FRAMEWORK,
        choices=("none", "partial", "full"), label="CUDA graphs {}", header="graphs", word="CUDA graphs")] = None
    dispatcher: Annotated[str | None, Option(
        "MoE token dispatcher.", "NAME", OF_FRAMEWORK, choices=DISPATCHERS, label="{}")] = None
    routing: Annotated[str | None, Option(
        "MoE routing: dropless, or dropping at a fixed expert capacity, which spares a CPU sync.", "NAME",
        OF_FRAMEWORK, choices=ROUTINGS)] = None
    transport: Annotated[str | None, Option(
        "DeepEP's transport across nodes.", "NAME", OF_FRAMEWORK, choices=TRANSPORTS)] = None
    reshard: Annotated[str | None, Option(
        "Free gathered parameters after the forward pass (ZeRO-3) or keep them (ZeRO-2); default: free without PP.",
        "NAME", OF_FRAMEWORK, choices=RESHARDS)] = None
    grad_reduce: Annotated[str | None, Option(
        "ZeRO-2, 3: reduce gradients in each microbatch, or in the last, unsharded until then; default: last with PP.",
        "NAME", OF_FRAMEWORK, choices=GRAD_REDUCES, label="gradients reduced {}", header="reduce")] = None
    attention: Annotated[str | None, Option(
        "Attention kernels: FlashAttention-2, 3 or 4, cuDNN, FlexAttention, PyTorch's choice, or scores in memory.",
        "NAME", OF_FRAMEWORK, choices=ATTENTIONS, word="attention kernels")] = None
    compile: Annotated[str | None, Option("torch.compile, where no other kernel fusion applies.", "NAME", OF_FRAMEWORK,
                                          choices=SWITCH)] = None
    tower: Annotated[str | None, Option(
        "Towers for images and sounds: trained, frozen (weights alone), or none. Their memory counts, not their time.",
        "NAME", "trained, frozen beside adapters", choices=TOWERS, word="towers")] = None
    sharp: Annotated[str, Option(
        "In-network reduction across nodes (SHARP); needs its NCCL plugin and NCCL_COLLNET_ENABLE.", "NAME",
        choices=SWITCH, word="SHARP")] = "off"
    nvls: Annotated[str, Option("In-switch reduction within the NVLink domain (NVLS).", "NAME",
                                choices=SWITCH, word="NVLS")] = "on"
    calibration: Annotated[str | None, Option("Calibration of your site, as written by `gpuscale calibrate run -o`.",
        "FILE", "none", python="str | Path")] = None

    def __post_init__(self) -> None:
        """Ask back a batch that is hardly one of sequences."""
        if isinstance(self.gbs, int):
            check_batch(self.gbs, self.seq or DEFAULT_SEQUENCE)


@dataclass(frozen=True, kw_only=True)
class Layout(Options):
    """One way to split the work; `plan` takes a set of allowed values for each."""

    tp: Annotated[int, DEGREE, Option("Tensor parallel size.")] = 1
    sp: Annotated[bool | None, Option("Sequence parallelism.", "on|off", "the framework's, with TP")] = None
    pp: Annotated[int, DEGREE, Option("Pipeline parallel size (stages).")] = 1
    vpp: Annotated[int | None, DEGREE, Option("Model chunks (virtual stages) per pipeline rank.", default="1")] = None
    cp: Annotated[int, DEGREE, Option("Context parallel size.")] = 1
    ep: Annotated[int, DEGREE, Option("Expert parallel size.")] = 1
    etp: Annotated[int | None, DEGREE, Option("Expert tensor parallel size.", default=OF_FRAMEWORK)] = None
    dp: Annotated[int | None, DEGREE, Option("Data parallel size.", default="the remaining GPUs")] = None
    zero: Annotated[int | None, Within(0, 3), Option("ZeRO stage, 0 to 3.", default=OF_FRAMEWORK, word="ZeRO")] = None
    shard: Annotated[int | None, DEGREE, Option(
        "Sharding group size: GPUs that share one copy of sharded states.", default="DP x CP")] = None
    micro_batch_size: Annotated[int, DEGREE, Option("Microbatch size in sequences.", word="microbatch")] = 1
    recompute: Annotated[str, Option(
        "Activation recomputation: none, selective:layernorm+mlp, full, or full:10 (layers per stage).", "CHOICE",
        normal=_recompute)] = "none"
    schedule: Annotated[str, Option(
        "Pipeline schedule: 1f1b (interleaved if VPP > 1), gpipe, zb-h1, zb-2p, zb-v or dualpipe.", "NAME",
        normal=lambda text: schedule_text(parse_schedule(text)), label="{}")] = "1f1b"


PINS = tuple(declared(Layout))
"""Options of which `plan` takes a set of values; of those that `COMPARED` names each value is another search."""

SEVERAL_PLANS = ("pareto", "why", "recipe", "find", "top", "unfold")
"""Options of a question that ask for more than one plan, or for the place of another one."""

OF_ONE_PLAN = (*SEVERAL_PLANS, "risk")
"""Options of a question that are left out where many plans are compared."""

OF_FLEETS = ("gpu_hour_price", "price_term", "rate", "tight")
"""Options of a question that are asked of a fleet too."""


@dataclass(frozen=True, kw_only=True)
class Question(Options):
    """What plans are ranked by, what they must meet, and how much of the answer is wanted."""

    space: Annotated[str, Option("full: also search the framework's non-default settings.", "NAME",
                                 choices=("default", "full"))] = "default"
    objective: Annotated[str | None, Option("Objective to rank by.", "NAME", "step_time; a comparable one across jobs",
                                            choices=RANKED_BY)] = None
    pareto: Annotated[tuple[str, ...], Option("Pareto frontier of two or three objectives; two are plotted.",
                                              "A,B[,C]", read=_pareto, python="str | Sequence[str]")] = ()
    gpu_hour_price: Annotated[dict[str, float], Option("Price of a GPU-hour; repeatable.", "USD|CLUSTER=USD",
        read=_prices, python="float | str | Mapping[str, float] | Sequence[str]")] = field(default_factory=dict)
    train_tokens: Annotated[float | None, Within(1, MAX_COUNT), Option(
        "Tokens of the whole training, such as 15T.", "COUNT", quantity=TOKENS)] = None
    price_term: Annotated[str | None, Option("Which published price to use where none is given.", "TERM",
        "reserved, for a whole training", choices=tuple(term.replace("_", "-") for term in TERMS))] = None
    rate: Annotated[dict[str, float], Option(
        "Override a rate of energy, carbon or goodput: pue=1.3; repeatable.", "NAME=VALUE", repeatable=True,
        read=_rates, python="str | Mapping[str, float] | Sequence[str]")] = field(default_factory=dict)
    max_memory: Annotated[float | None, Within(LEAST, 10_000),
                          Option("Maximum memory per GPU, such as 70GiB.", "SIZE", quantity=MEMORY)] = None
    min_mfu: Annotated[float | None, Within(LEAST, 100), Option(
        "Minimum MFU, such as 38%.", "PERCENT", quantity=PERCENT)] = None
    max_step_time: Annotated[float | None, Within(LEAST, 1e9),
                             Option("Maximum step time, such as 12s.", "SECONDS", quantity=SECONDS)] = None
    max_days: Annotated[float | None, Within(LEAST, 1e9),
                        Option("Maximum training time; needs `train_tokens`.", "DAYS", quantity=DAYS)] = None
    max_cost: Annotated[float | None, Within(LEAST, MAX_USD),
                        Option("Maximum training cost; needs `train_tokens` and a price.", "USD", quantity=USD)] = None
    find: Annotated[str | None, Option(
        "Find how far a number goes before nothing fits: longest sequence, largest microbatch, or fewest GPUs up to "
        "`gpus`.", "NAME", choices=("seq", "mbs", "gpus"))] = None
    top: Annotated[int | None, Within(1, MAX_TOP),
                   Option("Number of plans to show.", default="10; the whole frontier")] = None
    unfold: Annotated[bool, Option("Rank every variant of a layout, not only the best.")] = False
    risk: Annotated[float | None, Within(0.5, 0.9), Option(
        "Rank by the step time that this share of cases, 0.5 to 0.9, stays within as network, kernels and so on vary.",
        "SHARE")] = None
    tight: Annotated[bool, Option(
        f"Also rank plans above {1 - MEMORY_HEADROOM:.0%} of the memory limit, which fragmentation may break.")] = False
    why: Annotated[dict[str, str] | None, Option(
        "Show where a layout ranks, or what rules it out: tp=4,pp=8, TP4 PP8, measured or recipe.", "LAYOUT", read=_why,
        python="str | Mapping[str, Any]")] = None
    recipe: Annotated[str | None, Option(
        "Published recipe (`gpuscale show recipes`): its job, and its layout, which `plan` ranks. Options override it.",
        "NAME")] = None


@dataclass(frozen=True, kw_only=True)
class Length(Options):
    """How long a training is, if not by its tokens."""

    days: Annotated[float | None, Within(1e-4, 1e5), Option(
        "Wall time, instead of a number of tokens.", "DAYS", quantity=DAYS)] = None


@dataclass(frozen=True, kw_only=True)
class Means(Options):
    """What there is to spend on a training."""

    budget: Annotated[float | None, Within(1, MAX_USD), Option(
        "Budget, instead of GPUs or days: 250k, 1.5M.", "USD", quantity=USD)] = None


@dataclass(frozen=True, kw_only=True)
class Noise(Options):
    """What was measured of the noise in gradients."""

    noise_scale: Annotated[float | None, Within(1, MAX_COUNT), Option(
        "Gradient noise scale that you measured.", "TOKENS", quantity=BATCH_TOKENS)] = None


@dataclass(frozen=True, kw_only=True)
class Recovery(Options):
    """What interrupts a training, and what is done about it; of one plan, as `gpuscale.training.goodput` reads them."""

    failure_rate: Annotated[float | str | None, Option(
        "Interruptions per day and 1,000 GPUs, or a study: llama3, rsc-1, rsc-2, opt, bloom, b200 or a file.",
        "X|NAME|PATH", "llama3", read=_failure_rate)] = None
    checkpoint: Annotated[str, Option(
        "Block on storage, or on a copy to host memory only; or also restart from that copy, or a peer's.", "HOW",
        choices=("sync", "async", "memory", "peer"))] = "async"
    checkpoint_interval: Annotated[float | None, Within(LEAST, 1e9), Option(
        "Seconds between checkpoints.", "SECONDS", "the optimum", quantity=SECONDS)] = None
    checkpoint_bandwidth: Annotated[float | None, Within(1e-3, 1e9), Option(
        "Storage write bandwidth of the whole job [GB/s].", "GB/S", "0.08 per GPU", quantity=RATE)] = None
    detection_time: Annotated[float | None, Within(0, 1e6), Option(
        "Seconds until a failure is detected.", "SECONDS", "120", quantity=SECONDS)] = None
    restart_time: Annotated[float | None, Within(0, 1e6), Option(
        "Seconds of a restart, without reading the checkpoint.", "SECONDS", "420", quantity=SECONDS)] = None
    repair_time: Annotated[float | None, Within(0, 1e5), Option(
        "Hours until a failed node is back.", "HOURS", "24", quantity=HOURS)] = None
    spares: Annotated[int | None, Within(0, MAX_GPUS), Option("Spare nodes.", default="as many as pay off")] = None
    elastic: Annotated[bool, Option(
        "Continue with fewer replicas while nodes are missing, instead of waiting.")] = False


SPEED = Within(0.01, 1)


@dataclass(frozen=True, kw_only=True)
class Slow(Options):
    """Parts of a job that are slower than the others, as `gpuscale.training.stragglers` reads them."""

    slow_gpu: Annotated[float | None, SPEED, Option(
        "One GPU, at this share of its usual speed.", "SHARE", quantity=SHARE)] = None
    slow_node: Annotated[float | None, SPEED, Option("All GPUs of one node, likewise.", "SHARE", quantity=SHARE)] = None
    slow_host: Annotated[float | None, SPEED, Option("The CPU of one node, likewise.", "SHARE", quantity=SHARE)] = None
    slow_rail: Annotated[float | None, SPEED, Option(
        "One network link or rail, likewise.", "SHARE", quantity=SHARE)] = None
    packet_loss: Annotated[float | None, Within(0, 0.5), Option(
        "Packet loss of one link.", "SHARE", quantity=SHARE)] = None
    power_cap: Annotated[float | None, Within(10, 10_000), Option(
        "Power of one GPU that is throttled or capped [W].", "W", quantity=WATTS)] = None


@dataclass(frozen=True, kw_only=True)
class Sites(Options):
    """How sites that long lines join exchange by DiLoCo, as `gpuscale.fleets.sites` reads them."""

    inner_steps: Annotated[int, Within(1, 100_000), Option(
        "Local steps of a site between exchanges (H in DiLoCo).", "STEPS")] = 100
    outer_bits: Annotated[int, Within(1, 32), Option(
        "Bits sent per parameter in an exchange: 32, 16, 8 or 4.", "BITS")] = 16
    fragments: Annotated[int | None, Within(1, 10_000), Option(
        "Fragments that Streaming DiLoCo splits the model into.", default="one per three layers")] = None
    outer_delay: Annotated[int, Within(0, 100_000), Option(
        "Steps that run while Streaming DiLoCo exchanges a fragment.", "STEPS")] = 1


# fmt: on


COMPARED = (
    "cluster", "gpus", "seq", "gbs", "framework", "precision", "moment_dtype", "offload", "cp_comm", "schedule",
    "axis_order", "pipeline_split", "overlap", "cuda_graphs", "dispatcher", "grad_reduce",
)  # fmt: skip
"""Options of which `plan` compares several values; combinations are formed in this order, the last one varies first."""

PLACING = ("cluster", "set", "gpus_per_node", "axis_order")
"""Options of a job that say where its ranks run; the others are for its step time and memory."""

OPTIONS = {
    name: one.option
    for options in (JobOptions, Layout, Question, Length, Means, Noise, Recovery, Slow, Sites)
    for name, one in declared(options).items()
}


def taken(
    *kinds: type[Options],
    without: Collection[str] = (),
    several: Collection[str] = (),
    pins: bool = False,
    beside_files: bool = False,
) -> dict[str, Taken]:
    """Return the options of these kinds as a Python function takes them: with `several` values, layouts as sets of them
    (`pins`), or None where they may stand in a file."""
    found = {}
    for kind in kinds:
        sets = pins and kind is Layout
        for name, one in declared(kind).items():
            if name in without:
                continue
            said, default = one.option, None if beside_files or sets or one.default in ((), {}) else one.default
            choices = f" One of {', '.join(said.choices)}." if said.choices else ""
            text = _python_type(one, several=name in several, sets=sets)
            needed = default is not None or (one.required and not beside_files)
            found[name] = Taken(
                annotation=text if needed else f"{text} | None",
                default=default,
                help=f"{said.help}{choices}{f' Default: {said.default}.' if said.default else ''}",
                read=partial(_named, name) if name in {"model", "cluster"} else lambda value: value,
            )
    return found


def with_layout(
    options: Mapping[str, Any], layout: Mapping[str, Any] | None, names: Collection[str] = tuple(declared(Layout))
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that are not of the layout (by `names`), and the layout with those that are; None is not
    given.

    Raises:
        InputError: an option in both.
    """
    given = {name: value for name, value in options.items() if value is not None}
    alone, together = {name: value for name, value in given.items() if name in names}, layout or {}
    twice = next((name for name in alone if together.get(name) is not None), None)
    if twice:
        raise InputError("is given twice", field=twice, hint="give it once: by its own name, or among the others")
    return {name: value for name, value in given.items() if name not in names}, {**together, **alone}


def _python_type(one: Declared, *, several: bool, sets: bool) -> str:
    said, kinds = one.option, one.kinds
    words = [kind.__name__ for kind in (bool, int, float, str) if kind in kinds]
    if "str" not in words and (said.quantity is not NUMBER or said.normal is not None):
        words.append("str")
    each = said.python or " | ".join(words)
    text = each if "str" in each or not (several or sets) else f"{each} | str"  # a list after commas, a range
    more = "str" if said.repeatable and not said.python else each if several or (sets and bool not in kinds) else ""
    return f"{text} | Sequence[{more}]" if more else text


def _named(option: str, value: Any) -> Any:
    """Return the name of a model or cluster, or of each of several, where it is given as an object."""
    if isinstance(value, list | tuple):
        return [_named(option, one) for one in value]
    if value is None or isinstance(value, str):
        return value
    from gpuscale.presets.files import preset_name  # noqa: PLC0415
    from gpuscale.presets.hardware import load_cluster  # noqa: PLC0415
    from gpuscale.presets.models import load_model  # noqa: PLC0415
    from gpuscale.specs.cluster import ClusterSpec  # noqa: PLC0415
    from gpuscale.specs.model import ModelSpec  # noqa: PLC0415

    if isinstance(value, ClusterSpec):
        return preset_name(value, load_cluster, option)
    return preset_name(value, load_model, option) if isinstance(value, ModelSpec) else value


def part(given: Mapping[str, Any], *kinds: type[Options]) -> dict[str, Any]:
    """Return the options of these kinds."""
    return {name: value for name, value in given.items() if any(name in declared(kind) for kind in kinds)}


def without(given: Mapping[str, Any], *kinds: type[Options]) -> dict[str, Any]:
    """Return the options of other kinds."""
    return {name: value for name, value in given.items() if all(name not in declared(kind) for kind in kinds)}


Kind = TypeVar("Kind", bound=Options)


def read(options: type[Kind], values: Mapping[str, Any], *, strict: bool | None = None) -> Kind:
    """Check values by their declarations; None means not given. `strict`: numbers and switches must not be texts, nor
    whole numbers fractions, also where an option takes those.

    Raises:
        InputError: an unknown option, or a value of the wrong type or out of range.
    """
    known = declared(options)
    refuse_unknown(values, known)
    given = {}
    for name, one in known.items():
        value = values.get(name)
        if value is None:
            if one.required:
                raise InputError("is missing", field=name)
            continue
        try:
            given[name] = _checked(name, one, value, strict=options.strict if strict is None else strict)
        except ValueError:  # Python writes no integer of thousands of digits
            raise _refusal(value, name, one, "out of range") from None
    return options(**given, given=frozenset(given))


def _checked(name: str, one: Declared, value: Any, *, strict: bool) -> Any:
    """Return one value in its usual spelling, and as its type; an InputError where it is none, or out of range."""
    said, number = one.option, one.number
    if said.read is not None:
        return said.read(value)
    if said.choices:
        value = one_of(name, value, said.choices)
    if said.repeatable and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if isinstance(value, str) and said.normal is not None:
        value = said.normal(value)
    if number is not None and said.quantity is not NUMBER:
        return said.quantity.read(value, name, *one.limits)
    found = value if strict else _from_text(value, one)
    if type(found) is float and found.is_integer() and int in one.kinds and not strict:
        found = int(found)
    if type(found) not in one.kinds and not (type(found) is int and float in one.kinds):
        wanted = next((text for kind, text in _WHAT.items() if kind in one.kinds), "text")
        raise _refusal(value, name, one, f"not {wanted}")
    if type(found) in {int, float} and not one.limits.low <= found <= one.limits.high:
        raise _refusal(found, name, one, "out of range")
    return float(found) if number is float else found


def _from_text(value: Any, one: Declared) -> Any:
    """Return the number or the switch that a text means, else the value."""
    if isinstance(value, str) and one.number is not None:
        with suppress(ValueError):
            return read_plain(value, one.number)
    if bool in one.kinds and isinstance(value, str):
        return SWITCHES.get(value.strip().lower(), value)
    return bool(value) if bool in one.kinds and type(value) in {int, float} and value in {0, 1} else value


SWITCHES = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def _refusal(value: Any, name: str, one: Declared, wrong: str) -> InputError:
    low, high = one.limits
    given = f"give {low:,} to {high:,}" if int in one.kinds else f"give {low:g} to {high:g}"
    return InputError(f"{shown(value)} is {wrong}", field=name, hint=None if math.isinf(high) else given)


_WHAT = {bool: "on or off", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Range:
    """All sensible values from `low` to `high`, of a batch perhaps in tokens."""

    low: int
    high: int
    tokens: bool = False


MAX_VALUES = 64


def read_several(name: str, value: Any) -> tuple[Any, ...] | Range:
    """Read the values of an option of `COMPARED`: one, `a,b`, a sequence, or of numbers a range `256..1024`.

    Raises:
        InputError: not of this form, an empty name, too many values, or a range that runs backwards.
    """
    number = int in {**declared(JobOptions), **declared(Layout)}[name].kinds
    first, second = OPTIONS[name].example
    hint = f"write {first}, {first},{second} or {first}..{second}" if number else "give one, or several after commas"
    if number and isinstance(value, str):
        refuse_grouped(value, name)
        if ".." in value:
            return _read_range(name, value, hint)
    if isinstance(value, bool) or not isinstance(value, int | str | Sequence):
        raise InputError(f"{shown(value)} is not {'a whole number' if number else 'text'}", field=name, hint=hint)
    whole = isinstance(value, int) or (name == "cluster" and isinstance(value, str))  # paths may hold commas
    given: Any = [value] if whole else value.split(",", MAX_VALUES) if isinstance(value, str) else value
    parts = [part if number and type(part) is int else _read_one(name, part, number, hint) for part in given]
    if not 1 <= len(parts) <= MAX_VALUES:
        raise InputError(f"{len(parts)} values, at most {MAX_VALUES}", field=name, hint="give fewer, or a range")
    return tuple(dict.fromkeys(parts))


def first_of(name: str, value: Any) -> Any:
    """Return the first of the values of an option of `COMPARED`, the value itself of others."""
    if name not in COMPARED:
        return value
    several = read_several(name, value)
    if isinstance(several, Range):
        return f"{several.low}tok" if several.tokens else several.low
    return several[0]


def only_value(name: str, value: Any, where: str, hint: str | None = None) -> Any:
    """Return the one value of an option, also of `COMPARED`; `where` says for the message which question takes no
    more."""
    if name not in COMPARED:
        return value
    several = read_several(name, value)
    if isinstance(several, Range) or len(several) > 1:
        raise InputError(f"takes one value {where}", field=name, hint=hint)
    return several[0]


def _read_one(name: str, part: Any, number: bool, hint: str) -> int | str:
    text, said = part.strip() if isinstance(part, str) else "", OPTIONS[name]
    if text and number and not said.normal:
        with suppress(ValueError):
            return int(read_plain(text, int))
        text = ""
    if not text:
        message = f"{shown(part)} is not {'a whole number' if number else 'a name'}"
        raise InputError(message, field=name, hint=hint)
    return said.normal(text) if said.normal else one_of(name, text, said.choices) if said.choices else text


def _read_range(name: str, value: str, hint: str) -> Range:
    ends = [_read_one(name, end, True, hint) for end in value.split("..", 1)]
    tokens = [isinstance(end, str) for end in ends]
    if tokens[0] != tokens[1] or str(ends[0])[-3:] == "seq" or str(ends[1])[-3:] == "seq":
        hint = "write 256..1024, or 4Mtok..16Mtok"
        raise InputError(f"{value[:40]!r} mixes tokens and sequences", field=name, hint=hint)
    low, high = (size_of(end) if isinstance(end, str) else end for end in ends)
    if low > high:
        raise InputError(f"{value[:40]!r} is empty", field=name, hint="give the smaller number first")
    if low < 0 or not high:
        raise InputError(f"{value[:40]!r} has no value above 0", field=name, hint=hint)
    return Range(max(low, 1), high, tokens[0])


_PRINTED = re.compile(
    r"(?<![\w=])(?:(?P<recompute>recompute\s+[a-z][\w:+]*(?:\s+\d+(?![\w=]))?)"
    r"|(?P<name>tp|pp|vpp|cp|ep|etp|dp|zero-|hsdp-|mb|over\s)\s*(?P<value>\d+)(?P<sp>\+sp)?)(?![\w=+])",
    re.ASCII | re.IGNORECASE,
)
_PRINTED_NAMES = {"zero-": "zero", "hsdp-": "shard", "mb": "micro_batch_size", "over": "shard"}
"""What answers print before a number -> name of `Layout`, where that is another."""


def _as_stated(printed: re.Match[str]) -> str:
    """Return a part of a layout as answers print it, `TP8+SP` or `recompute full 8`, as it is given: `tp=8,sp=on`."""
    if printed["recompute"]:
        _, way, *layers = printed["recompute"].split()
        return f"recompute={':'.join([way, *layers])}"
    name = printed["name"].strip().lower()
    return f"{_PRINTED_NAMES.get(name, name)}={printed['value']}{',sp=on' if printed['sp'] else ''}"


def parse_layout(text: str, field: str) -> dict[str, str]:
    """Parse `tp=4,pp=8,recompute=full`, or `TP4 PP8 recompute full` as answers print it, into names of `Layout` and
    values as text.

    Raises:
        InputError: not of this form, an unknown name, or one given twice.
    """
    out: dict[str, str] = {}
    hint = f"write tp=4,pp=8, or TP4 PP8 ZeRO-1 mb1, or {' or '.join(OF_ANSWER)}"
    stated = _PRINTED.sub(_as_stated, text[:500])
    for item in filter(None, (part.strip() for part in stated.replace(" ", ",").split(","))):
        name, equals, value = item.partition("=")
        name = name.lower().replace("-", "_")
        name = ALIASES.get(name, name)
        if not equals or not value:
            raise InputError(f"{item[:40]!r} is not name=value", field=field, hint=hint)
        if name not in declared(Layout):
            hint = did_you_mean(name, declared(Layout), "names are", 3)
            raise InputError(f"unknown name {name[:40]!r}", field=field, hint=hint)
        if name in out:
            raise InputError(f"{name} is given twice", field=field, hint="give each name once")
        out[name] = value
    if not out:
        raise InputError("no layout is given", field=field, hint=hint)
    return out


def choice_text(choice: Mapping[str, str | int]) -> str:
    """Say what sets a job apart: `640 GPUs, fp8-delayed`."""
    return ", ".join(
        plural(int(value), "GPU") if name == "gpus" else OPTIONS[name].label.format(value)
        for name, value in choice.items()
    )
