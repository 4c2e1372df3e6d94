"""Models as Hugging Face programs name them: an id of the hub, or a config.json beside the launch files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from gpuscale.errors import InputError
from gpuscale.files import is_file
from gpuscale.launch.quoting import Expansion, json_text
from gpuscale.launch.settings import Reading, Setting
from gpuscale.launch.shapes import (
    LABELS,
    agree,
    all_models_once,
    model_line,
    name_left,
    named_shape,
    named_spec,
    same_shape,
    stated,
)
from gpuscale.launch.writing import LaunchFile, Writing
from gpuscale.presets.files import known_table
from gpuscale.presets.huggingface import read_config
from gpuscale.presets.huggingface_config import STATED, SYNONYMS, Config, class_defaults
from gpuscale.presets.huggingface_numerics import KEYS
from gpuscale.presets.models import load_model
from gpuscale.specs.model import MAX_SEQUENCE, LayerSpec, ModelSpec, NumericsSpec

_KNOWN = known_table("scripts")["models"]

CONFIG_FILE = "config.json"

MODEL_TYPES = tuple(_KNOWN["model_types"])

_GPT2 = _KNOWN["gpt2"]
OURS = _KNOWN["ours"]


_HUB_ID = r"\w[\w.-]*/\w[\w.-]*"


def hub_id(model: ModelSpec) -> str | None:
    """Return the id under which the hub has this very shape, if a preset knows one that computes the same."""
    for known in (model, *all_models_once()):
        alike = all(stated(model.numerics, name) in {None, stated(known.numerics, name)} for name in LABELS)
        if known is model or (alike and same_shape(known, model)):
            found = next((alias for alias in known.aliases if re.fullmatch(_HUB_ID, alias, re.ASCII)), None)
            if found:
                return found
    return None


def config_json(model: ModelSpec, sequence: int) -> dict[str, Any] | None:
    """Return a config.json that transformers builds this shape from; None where it has no class for it.

    Args:
        sequence: tokens of a sequence, for models that do not say how long they may be.
    """
    longest = model.learned_positions or (model.max_sequence if model.max_sequence < MAX_SEQUENCE else sequence)
    keys = _keys(model, longest)
    for model_type in MODEL_TYPES if keys else ():
        own = {_GPT2.get(key, key) if model_type == "gpt2" else key: value for key, value in keys.items()}
        data = {"model_type": model_type, **own}
        try:
            made = read_config(Config(CONFIG_FILE, data, {}), "model")
        except InputError:
            continue
        if same_shape(made, model) and agree(made.numerics, model.numerics, ("router_score", "router_normalised")):
            return data | _numeric_keys(model.numerics, model_type)
    return None


OWN_KEYS = _KNOWN["own_keys"]


SCALED = ("deepseek_v2", "deepseek_v3", "glm4_moe")
"""Model types whose routers have a factor."""


def _numeric_keys(numerics: NumericsSpec, model_type: str) -> dict[str, Any]:
    """Return what a model states beside its shape, as a class calls it."""
    own = OWN_KEYS.get(model_type, {})
    found = {own.get(field, keys[0]): getattr(numerics, field) for field, keys in KEYS.items()}
    activation = own.get("activation", "hidden_act")
    found[activation] = {"gelu_tanh": "gelu_pytorch_tanh"}.get(str(found[activation]), found[activation])
    yarn = numerics.rotary_scaling == "yarn"
    scaling = {
        "rope_type": numerics.rotary_scaling,
        "factor": numerics.scaling_factor,
        "original_max_position_embeddings": numerics.scaling_sequence,
        "beta_slow" if yarn else "low_freq_factor": numerics.scaling_low,
        "beta_fast" if yarn else "high_freq_factor": numerics.scaling_high,
        "mscale": numerics.scaling_mscale,
        "mscale_all_dim": numerics.scaling_mscale_all,
    }
    if numerics.rotary_scaling not in {None, "none"}:
        found["rope_scaling"] = {key: value for key, value in scaling.items() if value is not None}
    return {key: value for key, value in found.items() if value is not None}


def _keys(model: ModelSpec, longest: int) -> dict[str, Any]:
    """Return what classes of transformers may want to know of a model; nothing where its layers differ in attention."""
    layers: list[LayerSpec] = [model.kinds[index] for index in model.pattern]
    attention = layers[0].attention
    if attention is None or any(layer.attention != attention for layer in layers):
        return {}
    dense = next((layer.mlp for layer in layers if layer.mlp), None)
    experts = next((layer.moe for layer in layers if layer.moe), None)
    width = dense.ffn if dense else experts.ffn if experts else 0
    keys: dict[str, Any] = {
        "hidden_size": model.hidden, "num_hidden_layers": len(layers), "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads, "head_dim": attention.head_dim, "intermediate_size": width,
        "vocab_size": model.vocab, "max_position_embeddings": longest, "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": attention.qkv_bias, "mlp_bias": bool(dense and dense.bias), "use_bias": attention.qkv_bias,
    }  # fmt: skip
    if attention.window is not None:
        keys |= {"sliding_window": attention.window, "use_sliding_window": True, "max_window_layers": 0}
    if attention.latent is not None:
        latent = attention.latent
        keys |= {
            "q_lora_rank": latent.query_rank, "kv_lora_rank": latent.kv_rank, "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim, "v_head_dim": attention.value_head_dim,
        }  # fmt: skip
        del keys["head_dim"]
    if experts is not None:
        shared = experts.shared_ffn
        keys |= {
            "num_experts": experts.experts, "num_local_experts": experts.experts, "n_routed_experts": experts.experts,
            "num_experts_per_tok": experts.top_k, "moe_intermediate_size": experts.ffn,
            "first_k_dense_replace": next(index for index, layer in enumerate(layers) if layer.moe),
            "n_shared_experts": shared // experts.ffn or None, "shared_expert_intermediate_size": shared or None,
            "n_group": experts.groups, "topk_group": experts.top_groups,
        }  # fmt: skip
    return {key: value for key, value in keys.items() if value is not None}


def written_model(writing: Writing) -> tuple[list[tuple[str, ...]], list[LaunchFile]]:
    """Return the arguments that name the model, and the config.json that it takes without an id of the hub."""
    model, found = writing.model, hub_id(writing.model)
    if found:
        return [("--config_name", found), ("--tokenizer_name", found)], []
    made = config_json(model, writing.spec.sequence)
    if made is None:
        writing.refuse(
            "model", f"transformers has no class for {model.name}: a gpuscale model without an id of the hub"
        )
        return [], []
    writing.warn("--tokenizer_name: name a tokenizer whose vocabulary fits the model")
    written = {*KEYS, "rotary_scaling"} - (set() if made["model_type"] in SCALED else {"router_scale"})
    name_left(writing, written, NumericsSpec(router_scale=1.0), f"in transformers' {made['model_type']}")
    file = LaunchFile(CONFIG_FILE, json_text(made))
    return [("--config_name", CONFIG_FILE), ("--tokenizer_name", Expansion("${TOKENIZER:?a tokenizer}"))], [file]


MODEL_NAMES = tuple(_KNOWN["model_names"])


OTHER = _KNOWN["other"]


def read_model(reading: Reading, *names: str) -> None:
    """Read which model is trained: an id of the hub, a folder or config.json beside the file that names it.

    Raises:
        InputError: no setting names it, or what it names is not known here.
    """
    if reading.given.get("model"):
        for name in names or MODEL_NAMES:
            reading.means("replaced by the model that is given", name)
        return
    name = reading.first(*(names or MODEL_NAMES))
    found = reading.get(name) if name else None
    if found is None and (_read_table(reading) or _read_overrides(reading) or _read_mention(reading)):
        return
    name, found = (name, found) if found else ("model_type", _sized_type(reading))
    if found is None:
        raise InputError("no file states which model is trained", field="model", hint="add `model=NAME`")
    value = str(found.value).strip().rstrip("/")
    beside = Path(found.file).parent / value
    if is_file(beside / "config.json") or (beside.suffix == ".json" and is_file(beside)):
        value = str(beside)
    known, note = known_model(value)
    if known is None and _read_table(reading):
        reading.say(found, "replaced by the sizes that are stated")
        return
    if known is None:
        _refuse_unknown(reading, found, value)
    if note:
        reading.assume(f"the model is {known}, by its name", name)
    layers = reading.integer("model.hf_config_kwargs.num_hidden_layers")
    if layers and layers != load_model(known).layers and not known.endswith(".json"):
        known = f"{load_model(known).name},layers={layers}"
    reading.option("model", known, name, "model.hf_config_kwargs.num_hidden_layers")


def _refuse_unknown(reading: Reading, found: Setting, value: str) -> NoReturn:
    other = next((what for what, words in OTHER.items() if re.search(words, value.lower())), None)
    if other:
        message = f"the model {value[:120]!r} {other}: not modelled"
        reading.refuse(found, message, "add `model=NAME` of a decoder", settles="model")
    hint = "add `model=NAME`; a config.json and a shape in a line do as well"
    reading.need(found)
    reading.refuse(found, f"the model {value[:120]!r} is not known here", hint, settles="model")


def _read_table(reading: Reading) -> bool:
    """Take a model from a table of a document that holds a configuration of transformers; whether there is one.

    Raises:
        InputError: it is not modelled.
    """
    for source in reading.sources:
        for name, kind in source.settings.items() if source.kind != "command" else ():
            table = name.removesuffix("model_type")
            inside = {key.removeprefix(table): one for key, one in source.settings.items() if key.startswith(table)}
            if (table and not table.endswith(".")) or not name.endswith("model_type") or not _SIZES & inside.keys():
                continue
            own = {*_OF_CONFIG, *class_defaults().get(str(kind.value), ())}  # of all that a run was told
            keys = {key: one.value for key, one in inside.items()
                    if one.value is not None and (key in own if not table else "." not in key)}  # fmt: skip
            try:
                made = configured_model(str(kind.value).replace("_", ""), keys, source.file)
            except InputError as error:
                reading.refuse(kind, error.message, settles="model")
            if made is not None:
                reading.option("model", made, *(f"{table}{key}" for key in keys))
                for key in set(inside) - set(keys) if table else ():
                    reading.say(inside[key], "of the model's configuration")
                return True
    return False


_SIZES = {"hidden_size", "n_embd", "d_model"}
_OF_CONFIG = {
    "model_type",
    "tie_word_embeddings",
    "activation_function",
    "hidden_act",
    *(name for key in (*OURS, *STATED) for name in (key, *SYNONYMS.get(key, ()))),
}
_MENTION = re.compile(
    r"tok|data|teach|ref|reward|judge|draft|embed|visi|hub|repo|out|push|eval|adapter|lora|run|project"
)


def _read_mention(reading: Reading) -> bool:
    """Take the one model that a document names under whatever key, by its id on the hub; whether there is one."""
    found: dict[str, Setting] = {}
    for name, one in reading.settings.items():
        text = str(one.value)
        if (
            re.fullmatch(_HUB_ID, text, re.ASCII)
            and not _MENTION.search(name.lower())
            and (known := known_model(text)[0])
        ):
            found.setdefault(load_model(known).name, one)
    if len(found) != 1:
        return False
    ((model, one),) = found.items()
    reading.option("model", model, one.name)
    reading.assume(f"{one.name[:60]} names the model", one)
    return True


def _sized_type(reading: Reading) -> Setting | None:
    """Return the type of a model that is one by itself, as ms-swift 2 has it: `qwen2_5-7b-instruct`."""
    kind = reading.get("model_type")
    sized = kind is not None and re.search(r"\d+b", str(kind.value)) and known_model(str(kind.value))[0]
    return kind if sized else None


def _read_overrides(reading: Reading) -> bool:
    """Read `--model_type gpt2 --config_overrides n_embd=1024,n_layer=24` of run_clm.py; whether it is a model."""
    kind, changed = reading.text("model_type"), reading.needed("config_overrides")
    if changed is None and kind == "gpt2":
        reading.option("model", "gpt2", "model_type")
    if changed is None:
        return kind == "gpt2"
    pairs = (pair.partition("=") for pair in str(changed.value).strip("'\"").split(","))
    keys = {key.strip(): value.strip() for key, _, value in pairs}
    if keys.get("gradient_checkpointing", "").lower() == "true":
        found = replace(changed, name="gradient_checkpointing", value=True, span=None)
        reading.settings.setdefault("gradient_checkpointing", found)
    if kind != "gpt2" or not all(keys.get(key, "1").isdigit() for key in _GPT2_KEYS):
        return False
    numbers = {key: int(keys.get(key, usual)) for key, usual in _GPT2_KEYS.items()}
    shaped_model(reading, _gpt2_shape(**numbers), "model_type", "config_overrides")
    return True


_GPT2_KEYS = {"n_layer": "12", "n_embd": "768", "n_head": "12", "n_positions": "1024"}
"""Keys of GPT2Config and its defaults (transformers, models/gpt2)."""


def _gpt2_shape(n_layer: int, n_embd: int, n_head: int, n_positions: int = 1024) -> dict[str, Any]:
    biases = dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "norm_bias"), True)
    return {
        "layers": n_layer, "hidden": n_embd, "heads": n_head, "ffn": 4 * n_embd, "gated": False, **biases,
        "tied_embeddings": True, "sequence": n_positions, "learned_positions": n_positions, "vocab": 50257,
    }  # fmt: skip


def known_model(name: str) -> tuple[str | None, bool]:
    """Return what gpuscale knows a model by, and whether that is guessed from a part of its name."""
    for guess in _guesses(name):
        made = _loaded(guess)
        sees = made is not None and "-vl-" in made.name and "vl" not in name.lower()  # short for one that sees images
        if made is not None and not sees:
            return (guess, False) if guess == name else (made.name, True)
    return None, False


_SUFFIX = re.compile(_KNOWN["suffix"], re.IGNORECASE)


def _guesses(name: str) -> Iterator[str]:
    """Yield a model's name, then without organisation and without what only says how it was tuned or stored."""
    yield name.removesuffix(".yaml")
    name = name.replace("\\", "/").replace("___", ".")  # ModelScope's folders
    last = name.removesuffix(".yaml").rstrip("/").rpartition("/")[2]
    shorter = ""
    while last != shorter:
        yield last
        if re.search(r"\d_\d", last):
            yield re.sub(r"(?<=\d)_(?=\d)", ".", last)
        shorter, last = last, _SUFFIX.sub("", last)
    if last.lower().startswith("meta-"):
        yield last[5:]


@cache
def _loaded(name: str) -> ModelSpec | None:
    try:
        return load_model(name)
    except InputError:
        return None


SHAPE_KEYS = {name: own for key, own in OURS.items() for name in (key, *SYNONYMS.get(key, ()))}
"""The same with other spellings of those keys."""


def changed_model(name: str, changes: Mapping[str, Any]) -> str:
    """Return a model of which a script changes keys of the configuration, as `model` takes it.

    Args:
        changes: key as in a config.json -> its value; those that are no shape are left out.
    """
    own = {SHAPE_KEYS[key]: value for key, value in changes.items() if key in SHAPE_KEYS}
    known, _ = known_model(name)
    return ",".join([known or name, model_line(own)]) if own else name


def configured_model(called: str, keys: Mapping[str, Any], place: str) -> str | None:
    """Return the model that a class of transformers builds from keywords (`LlamaConfig(hidden_size=...)`), as `model`
    takes it; None where there is no model type of that name.

    Raises:
        InputError: it is not modelled, or its shape is more than a line says.
    """
    word = called.removesuffix("Config").lower()
    model_type = next((one for one in class_defaults() if one.replace("_", "") == word), None)
    if model_type is None:
        return None
    usual = class_defaults()[model_type]
    stated = {name: usual[name] for key in STATED
              for name in (key, *SYNONYMS.get(key, ()))
              if name in usual and not {key, *SYNONYMS.get(key, ())} & keys.keys()}  # fmt: skip
    return named_spec(read_config(Config(place, {"model_type": model_type, **stated, **keys}, {}), "model"))


def shaped_model(reading: Reading, keys: Mapping[str, Any], *of: str) -> None:
    """Take a model from its shape, unless one is given beside.

    Args:
        keys: those of a model file.
        of: settings that say so.

    Raises:
        InputError: they make no model.
    """
    for name in of:
        reading.means("shape of the model", name)
    if reading.given.get("model"):
        return
    reading.option("model", named_shape(keys))
