"""Models by name: preset files, a user's TOML file (docs/models.md), a Hugging Face config.json (by its path, or by the
model's id in the hub's cache), or a shape in a line, all turned into `ModelSpec`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gpuscale.arguments import public
from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import is_file, read_text, reads
from gpuscale.presets.files import (
    MAX_FILE_BYTES,
    Document,
    find_preset,
    named_preset,
    preset_files,
    read_toml,
    remembered,
    settled,
)
from gpuscale.presets.hub import cached_config, is_id
from gpuscale.presets.tables import Table, made, stated_value
from gpuscale.specs import model as specs

Layers = Annotated[int, Field(ge=1, le=specs.MAX_LAYERS)]
LayersOrNone = Annotated[int, Field(ge=0, le=specs.MAX_LAYERS)]
Tower = Annotated[int, Field(ge=0, le=specs.MAX_PARAMS)]
_LETTERS = r"^[M*\-Ema]+$"

TABLES = {
    "latent": Table(specs.LatentSpec, optional=("query_rank",), value_dim=(specs.HeadDim, ...)),
    "window": Table(length=(specs.Tokens, ...), chunked=(bool, False), full_every=(LayersOrNone, 0)),
    "moe": Table(specs.MoeSpec, without=("gated",), dense_layers=(LayersOrNone, 0), every=(Layers, 1)),
    "indexer": Table(specs.IndexerSpec, without=("shared", "weighted"), every=(Layers, 1), leading=(LayersOrNone, 0)),
    "state_space": Table(specs.StateSpaceSpec),
    "sixteen_bit": Table(mtp=(bool, False), fp4_attention=(bool, False), fp4_last_layers=(LayersOrNone, 0)),
    "numerics": Table(specs.NumericsSpec),
    "towers": Table(vision=(Tower, None), audio=(Tower, None)),
    "mtp": Table(specs.MtpSpec, pattern=(Annotated[str, Field(min_length=1, max_length=64, pattern=_LETTERS)], None)),
}
"""Tables that a model file may have."""

MODEL = Table(
    specs.ModelSpec,
    specs.AttentionSpec,
    specs.LayerSpec,
    specs.MlpSpec,
    without=(
        "name",
        "value_head_dim",
        "window",
        "chunked",
        "joins_embedding",
        "wide_under",
        "reused",
        "keys",
        "input_width",
        "query_rank",
        "output_rank",
        "output_groups",
        "compression",
    ),
    optional=("kv_heads", "head_dim", "ffn"),
    required=("source",),
    unless={"ffn": ("moe", "pattern")},
    inner=TABLES,
    layers=(Layers, ...),
    pattern=(Annotated[str, Field(min_length=1, max_length=specs.MAX_LAYERS, pattern=_LETTERS)], None),
    mtp_layers=(Annotated[int, Field(ge=0, le=specs.MAX_MTP)], 0),
    **dict.fromkeys(TABLES, (dict[str, Any], None)),
)

File = dict[str, Any]
"""What a model file states by the names of spec fields; tables that it lacks are None. `letters` says what each layer
is, see docs/models.md: `a` without a pattern."""


@public
@reads("model", "config")
def load_model(name_or_path: str | Path | specs.ModelSpec) -> specs.ModelSpec:
    """Load a model by preset name, alias, or path; a model is returned as it is.

    Args:
        name_or_path: a preset's name (`llama3-70b`), one of its aliases (`meta-llama/Meta-Llama-3-70B`) or what can
            only mean one (`llama405b`); the id of a model in the cache of the Hugging Face hub (`org/name`); the path
            of a model file (`my.toml`), of a model's YAML of MaxText, of a Hugging Face `config.json`, or of a folder
            that holds one; or keys of a model file, `layers=24,hidden=2048,heads=16`, after a preset's name where they
            change it: `llama3-70b,layers=40`.

    Raises:
        InputError: unknown name (with the nearest names; of an id where it was looked for), or a file that cannot be
            used (file, line, key, hint).
    """
    if isinstance(name_or_path, specs.ModelSpec):
        return name_or_path
    name = str(name_or_path)
    if (preset := find_preset("models", name)) is not None:
        model = _from_toml(preset)
    elif is_path(name) and Path(name).suffix.lower() in {".yml", ".yaml"}:
        model = replace(_from_document(_of_keys(maxtext_keys(Path(name))), Path(name).stem), title=Path(name).stem)
    elif is_path(name):
        model = _from_toml(Path(name)) if Path(name).suffix.lower() == ".toml" else _from_config(Path(name))
    elif "=" in name:
        whole_keys = name[:36].rfind(",") + 1 or 36
        title = name if len(name) <= 60 else f"{name[:whole_keys]}..."
        model = _from_document(_stated(name), title)
    elif is_id(name) and settled("models", name)[0] == name:  # no preset has this alias
        model = _from_config(cached_config(name))
    else:
        model = _from_toml(named_preset("models", name))
    return remembered(name, model)


def _of_keys(keys: dict[str, Any]) -> Document:
    return _stated(",".join(f"{key}={str(value).lower()}" for key, value in keys.items()))


MAX_STATED = 64


def _stated(text: str) -> Document:
    """Read `key=value,...` as the model file that it stands for, changing a preset where its name comes first. A key of
    a table stands after the table's name (`latent.kv_rank`); those of experts may stand alone (`top_k`)."""
    name, *rest = (part.strip() for part in text.split(",", MAX_STATED + 1))
    if "=" in name:
        name, rest = "", [name, *rest]
    own = {"title": "model in a line", "sequence": specs.MAX_SEQUENCE, "tied_embeddings": False}
    data: dict[str, Any] = read_toml(named_preset("models", name)).data if name else own
    data |= {"family": "none", "source": "stated by the user"}
    for key in ("aliases", "notes", "published_params", "published_active_params"):
        data.pop(key, None)
    places: dict[str, tuple[str, ...]] = {key: ("moe", key) for key in TABLES["moe"].columns}
    places |= {key: (key,) for key in MODEL.columns if key not in TABLES}
    places |= {f"{table}.{key}": (table, key) for table, one in TABLES.items() for key in one.columns}
    places |= {"moe_ffn": ("moe", "ffn"), "topk": ("moe", "top_k")}
    given: set[tuple[str, ...]] = set()
    for item in rest:
        key, equals, value = (part.strip() for part in item.partition("="))
        key = key.lower()
        if not equals or not value:
            raise InputError(f"{item[:40]!r} is not key=value", field="model", hint="write layers=24,hidden=2048")
        if key not in places:
            hint = f"{did_you_mean(key, places, count=3)}keys are those of a model file, docs/models.md"
            raise InputError(f"unknown key {key[:40]!r}", field="model", hint=hint)
        if places[key] in given:
            raise InputError(f"key {key!r} is given twice", field="model", hint="give each key once")
        given.add(places[key])
        *table, last = places[key]
        inside = data.setdefault(table[0], {}) if table else data
        inside[last] = stated_value(value)
    if "mtp" in data and "mtp_layers" in data:  # of a preset that has the table
        module, depth = data.pop("mtp"), data.pop("mtp_layers")
        data |= {"mtp": {**module, "depth": depth, "trained": True}} if depth else {}
    return Document(Path("model"), data)


@public
def all_models() -> list[specs.ModelSpec]:
    """Load every preset model, in the order of their names."""
    return [_from_toml(path) for path in preset_files("models").values()]


def models_of_family(family: str | None) -> list[specs.ModelSpec]:
    """Load the preset models of one family (any case), or all of them."""
    models = all_models()
    if family is None:
        return models
    families = sorted({model.family for model in models})
    if family.lower() not in families:
        hint = did_you_mean(family, families, "there are:")
        raise InputError(f"unknown family {family[:60]!r}", field="family", hint=hint)
    return [model for model in models if model.family == family.lower()]


def is_path(text: str) -> bool:
    """Tell a path from a name: by its look, or a file or a folder with a config.json."""
    if (
        text.lower().endswith((".toml", ".json", ".yml", ".yaml"))
        or text.startswith(("/", "./", "../", "~"))
        or text in (".", "..")
    ):
        return True
    return bool(text) and (is_file(Path(text)) or is_file(Path(text) / "config.json"))


def _from_config(path: Path) -> specs.ModelSpec:
    from gpuscale.presets.huggingface import load_config  # noqa: PLC0415 - presets start without it

    return load_config(path)


def _from_toml(path: Path) -> specs.ModelSpec:
    return _from_document(read_toml(path), path.stem)


def _from_document(document: Document, name: str) -> specs.ModelSpec:
    file = MODEL.read(document)
    for key, table in TABLES.items():
        file[key] = table.read(document, (key,)) if key in file else None
    file["letters"] = file.get("pattern") or "a" * file["layers"]
    _check(document, file)
    traits = [  # what of a layer depends on where it stands: layers with equal traits are equal
        (
            file["letters"][index], _has_experts(file, index), _is_full(file, index), _shares_choice(file, index),
            _wide_under(file, index),
        )
        for index in range(file["layers"])
    ]  # fmt: skip
    layers = {trait: _layer(file, traits.index(trait)) for trait in dict.fromkeys(traits)}
    kinds = tuple(dict.fromkeys(layers.values()))
    pattern = tuple(kinds.index(layers[trait]) for trait in traits)
    extra = file["mtp"] or ({"depth": file["mtp_layers"]} if file["mtp_layers"] else None)
    mtp = None
    if extra:  # the last layer again, or the layers of its pattern
        last = file["layers"] - 1
        module = tuple(_layer(file, last, letter) for letter in extra.get("pattern") or file["letters"][last])
        wide = ("fp8", "fp4") if _sixteen_bit(file)["mtp"] else ()
        module = tuple(replace(layer, wide_under=wide) for layer in module)
        mtp = made(specs.MtpSpec, extra, layers=specs.mtp_module(module))
    numerics = made(specs.NumericsSpec, file["numerics"] or {})
    towers = tuple(specs.TowerSpec(kind, count or None) for kind, count in (file["towers"] or {}).items())
    layers_of = {"kinds": kinds, "pattern": pattern, "mtp": mtp}
    return made(specs.ModelSpec, file, name=name, **layers_of, numerics=numerics, towers=towers)


def _check(document: Document, file: File) -> None:
    heads, hidden, kv_heads = file["heads"], file["hidden"], file.get("kv_heads", file["heads"])
    pattern, mtp, layers, latent = file.get("pattern", ""), file["mtp"] or {}, file["layers"], file["latent"]
    letters = {*pattern, *mtp.get("pattern", "")}
    own_heads, state_space = {"head_dim", "kv_heads"} & set(file), bool(file["state_space"])
    wide = _sixteen_bit(file)
    slips = {
        f"heads = {heads} is not a multiple of kv_heads = {kv_heads}": heads % kv_heads > 0,
        "head_dim, kv_heads and qk_norm follow from [latent]; leave them out": bool(latent)
        and (bool(own_heads) or file.get("qk_norm", "none") != "none"),
        f"hidden = {hidden} is not a multiple of heads = {heads}; give head_dim": "head_dim" not in file
        and not latent
        and hidden % heads > 0,
        "mtp_layers and [mtp] say the same; give one of them": bool(mtp and file["mtp_layers"]),
        f"pattern has {len(pattern)} letters for layers = {layers}": bool(pattern) and len(pattern) != layers,
        "pattern has state-space layers (M, m), but there is no [state_space]": bool(letters & {"M", "m"})
        and not state_space,
        "pattern has expert layers (E), but there is no [moe]": "E" in letters and not file["moe"],
        "ffn, the width of the dense MLP, is missing": "-" in letters and "ffn" not in file,
        "[state_space] needs a pattern that says which layers have it (M, m)": state_space and not letters & {"M", "m"},
        "fp4_attention needs a pattern with layers of attention alone (*)": wide["fp4_attention"]
        and "*" not in pattern,
        f"fp4_last_layers = {wide['fp4_last_layers']} of layers = {layers}": wide["fp4_last_layers"] > layers,
    }
    slip = next((text for text, wrong in slips.items() if wrong), None)
    if slip:
        raise document.error((), slip)
    space, moe, every = file["state_space"], file["moe"], range(layers)
    if space and space["heads"] % space["groups"]:
        message = f"heads = {space['heads']} is not a multiple of groups = {space['groups']}"
        raise document.error(("state_space",), message)
    if moe and moe["top_k"] > moe["experts"]:
        raise document.error(("moe",), f"top_k = {moe['top_k']} is more than experts = {moe['experts']}")
    if moe and (moe["experts"] % moe.get("groups", 1) or moe.get("top_groups", 1) > moe.get("groups", 1)):
        message = f"groups = {moe.get('groups', 1)} must divide experts = {moe['experts']} and be at least top_groups"
        raise document.error(("moe",), message)
    if moe and not any(_has_experts(file, index) for index in every):
        raise document.error((), f"dense_layers and every leave none of the {layers} layers with experts")
    if "ffn" not in file and not all(file["letters"][one] in "M*E" or _has_experts(file, one) for one in every):
        raise document.error((), "ffn, the width of the dense MLP, is missing")


def _has_experts(file: File, index: int) -> bool:
    letter, moe = file["letters"][index], file["moe"]
    if letter in "M*-E":
        return letter == "E"
    return moe is not None and index >= moe["dense_layers"] and (index + 1) % moe["every"] == 0


def _is_full(file: File, index: int) -> bool:
    """Whether a layer attends to all tokens, in a model most of whose layers attend to a window."""
    every = file["window"]["full_every"] if file["window"] else 0
    return every > 0 and (index + 1) % every == 0


def _shares_choice(file: File, index: int) -> bool:
    """Whether a layer reuses the keys that an earlier layer's indexer chose."""
    indexer = file["indexer"]
    if indexer is None:
        return False
    leading, every = indexer["leading"], indexer["every"]
    return index >= leading and (index - leading) % every != every - 1


def _sixteen_bit(file: File) -> File:
    return file["sixteen_bit"] or {"mtp": False, "fp4_attention": False, "fp4_last_layers": 0}


def _wide_under(file: File, index: int) -> tuple[str, ...]:
    """Precisions under which a layer stays in 16 bits."""
    wide = _sixteen_bit(file)
    attends = wide["fp4_attention"] and file["letters"][index] == "*"
    return ("fp4",) if attends or index >= file["layers"] - wide["fp4_last_layers"] else ()


def _layer(file: File, index: int, letter: str = "") -> specs.LayerSpec:
    """One layer; a letter of a single block (M, *, -, E) leaves the other one out."""
    letter = letter or file["letters"][index]
    routed = letter == "E" or (letter in "am" and _has_experts(file, index))
    dense = (letter == "-" or (letter in "am" and not routed)) and "ffn" in file
    shape = {**file, "norms": 1} if letter in "M*-E" else file
    return made(
        specs.LayerSpec,
        shape,
        attention=_attention(file, index) if letter in "*a" else None,
        mlp=made(specs.MlpSpec, file) if dense else None,
        moe=made(specs.MoeSpec, file["moe"], gated=file.get("gated", True)) if routed else None,
        state_space=specs.StateSpaceSpec(**file["state_space"]) if letter in "Mm" else None,
        wide_under=_wide_under(file, index),
    )


def _attention(file: File, index: int) -> specs.AttentionSpec:
    window = {} if _is_full(file, index) else file["window"] or {}
    latent, indexer = file["latent"], file["indexer"]
    head_dim = file.get("head_dim") or file["hidden"] // file["heads"]
    if latent:
        head_dim = latent["nope_dim"] + latent["rope_dim"]
    return made(
        specs.AttentionSpec,
        file,
        kv_heads=file.get("kv_heads", file["heads"]),
        head_dim=head_dim,
        value_head_dim=latent["value_dim"] if latent else head_dim,
        latent=made(specs.LatentSpec, {"query_rank": None, **latent}) if latent else None,
        window=window.get("length"),
        chunked=window.get("chunked", False),
        indexer=made(specs.IndexerSpec, indexer, shared=_shares_choice(file, index)) if indexer else None,
    )


# -- A model file of MaxText (src/maxtext/configs/models/*.yml): flat keys and values, as the keys of a model file. --
#
# What a file leaves to base.yml is as it stands there (AI-Hypercomputer/maxtext, configs/base.yml, 2025).

MAXTEXT_SIZES = {
    "layers": "base_num_decoder_layers", "hidden": "base_emb_dim", "heads": "base_num_query_heads",
    "kv_heads": "base_num_kv_heads", "head_dim": "head_dim", "ffn": "base_mlp_dim", "vocab": "vocab_size",
}  # fmt: skip

MAXTEXT_EXPERTS = {"experts": "num_experts", "top_k": "num_experts_per_tok", "ffn": "base_moe_mlp_dim"}

MAXTEXT_BLOCKS = ("default", "llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "simple")
"""`decoder_block` whose layers are all alike, with the attention of Llama."""

_MAXTEXT_LINE = re.compile(r"([A-Za-z_]\w{0,63}):[ \t]+([^#\n]{0,200}?)[ \t]*(?:#.*)?")


def maxtext_keys(path: Path) -> dict[str, Any]:
    """Return the keys of a model file that a YAML of MaxText stands for."""
    text = read_text(path, MAX_FILE_BYTES, "a model file of MaxText")
    found = (_MAXTEXT_LINE.fullmatch(line.rstrip("\r")) for line in text.split("\n")[:5000])
    data = {one[1]: one[2].strip("'\"") for one in found if one}
    if not {"base_emb_dim", "base_num_decoder_layers"} <= data.keys():
        hint = "give a TOML model file, a config.json, or a YAML of MaxText with its base_emb_dim"
        raise InputError("not a model that is known", place=str(path), hint=hint)
    return maxtext_shape(data, str(path))


def maxtext_shape(data: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the keys of a model file that settings of MaxText stand for, those of them that are stated.

    Raises:
        InputError: blocks that are not read.
    """
    block, kind = data.get("decoder_block", "llama2").lower(), data.get("attention_type", "global").lower()
    scale = data.get("global_parameter_scale", "1")
    if block not in MAXTEXT_BLOCKS or kind != "global" or scale != "1":
        message = f"layers of {block[:40]} with attention {kind[:40]}, scaled by {scale[:9]}, are not read here"
        raise InputError(message, place=place, hint="give the model by name, or its config.json")
    keys: dict[str, Any] = {
        key: int(data[name]) for key, name in MAXTEXT_SIZES.items() if data.get(name, "").isdecimal()
    }
    activations = data.get("mlp_activations", "silu, linear")
    keys |= {
        "gated": "linear" in activations and "," in activations, "tied_embeddings": _on(data, "logits_via_embedding"),
        "qk_norm": "head" if _on(data, "use_qk_norm") else "none", "qkv_bias": _on(data, "attention_bias"),
        "norm_bias": False,
    }  # fmt: skip
    experts = {key: int(data[name]) for key, name in MAXTEXT_EXPERTS.items() if data.get(name, "").isdecimal()}
    if experts.get("experts", 1) > 1:
        experts.setdefault("ffn", keys.get("ffn", 0))
        keys |= {f"moe.{key}": value for key, value in experts.items()}
    return keys


def _on(data: Mapping[str, str], name: str) -> bool:
    return data.get(name, "false").lower() == "true"
