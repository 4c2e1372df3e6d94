"""Models by name: preset files, a user's TOML file, or a Hugging Face config.json, all turned into `ModelSpec`.

The keys of a model file are described in docs/models.md.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpuscale.errors import InputError, nearest, unknown_name
from gpuscale.presets.fields import RARE, Bounds, Rare
from gpuscale.presets.files import find_alias, find_preset, preset_names, read_toml, validate
from gpuscale.specs import (
    AttentionSpec,
    IndexerSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    MtpSpec,
    StateSpaceSpec,
    mtp_module,
)
from gpuscale.specs.model import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_MTP,
    MAX_SEQUENCE,
    MAX_VOCAB,
)

Layers = Annotated[int, Bounds(ge=1, le=MAX_LAYERS)]
Hidden = Annotated[int, Bounds(ge=1, le=MAX_HIDDEN)]
Heads = Annotated[int, Bounds(ge=1, le=MAX_HEADS)]
HeadDim = Annotated[int, Bounds(ge=1, le=MAX_HEAD_DIM)]
Ffn = Annotated[int, Bounds(ge=1, le=MAX_FFN)]
Experts = Annotated[int, Bounds(ge=1, le=MAX_EXPERTS)]
Tokens = Annotated[int, Bounds(ge=1, le=MAX_SEQUENCE)]
Params = Annotated[int, Bounds(ge=1, le=10**16)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _RareTable(_Table):
    model_config = RARE


class LatentTable(_RareTable):
    """`[latent]`: multi-head latent attention."""

    query_rank: Hidden | None = None
    kv_rank: Hidden
    nope_dim: HeadDim
    rope_dim: HeadDim
    value_dim: HeadDim


class WindowTable(_RareTable):
    """`[window]`: layers that attend to a window of `length` tokens, and those that do not."""

    length: Tokens
    chunked: bool = False
    full_every: Annotated[int, Bounds(ge=0, le=MAX_LAYERS)] = 0


class IndexerTable(_RareTable):
    """`[indexer]`: DeepSeek sparse attention."""

    heads: Heads
    head_dim: HeadDim
    top_k: Tokens
    every: Layers = 1
    leading: Annotated[int, Bounds(ge=0, le=MAX_LAYERS)] = 0

    def shared(self, index: int) -> bool:
        """Whether layer `index` (from 0) reuses the choice of an earlier layer."""
        return index >= self.leading and (index - self.leading) % self.every != self.every - 1


class StateSpaceTable(_RareTable):
    """`[state_space]`: Mamba-2, a gated delta net or Kimi delta attention."""

    kind: Literal["mamba2", "gdn", "kda"]
    heads: Heads
    head_dim: HeadDim
    groups: Heads
    state: HeadDim
    conv: Annotated[int, Bounds(ge=1, le=64)] = 4
    chunk: Annotated[int, Bounds(ge=1, le=65536)] = 128
    conv_bias: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(f"heads = {self.heads} is not a multiple of groups = {self.groups}")
        return self


class MtpTable(_RareTable):
    """`[mtp]`: multi-token-prediction modules."""

    depth: Annotated[int, Bounds(ge=1, le=MAX_MTP)]
    pattern: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[M*\-Ema]+$")] | None = None
    shared: bool = False
    trained: bool = True


class MoeTable(_RareTable):
    """`[moe]`: routed experts, and which layers have them."""

    experts: Experts
    top_k: Experts
    ffn: Ffn
    shared_ffn: Annotated[int, Bounds(ge=0, le=MAX_FFN)] = 0
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    groups: Experts = 1
    top_groups: Experts = 1
    latent: Annotated[int, Bounds(ge=0, le=MAX_HIDDEN)] = 0
    dense_layers: Annotated[int, Bounds(ge=0, le=MAX_LAYERS)] = 0
    every: Layers = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        if self.experts % self.groups or self.top_groups > self.groups:
            raise ValueError(f"groups = {self.groups} must divide experts = {self.experts} and be at least top_groups")
        return self


class ModelFile(_Table):
    """A model file: top-level keys, then the optional tables."""

    title: Text
    family: Annotated[str, Field(min_length=1, max_length=60)]
    source: Text
    aliases: Annotated[list[Annotated[str, Field(min_length=1, max_length=120)]], Field(max_length=50)] = []
    notes: Annotated[list[Text], Field(max_length=20)] = []
    published_params: Params | None = None
    published_active_params: Params | None = None

    layers: Layers
    hidden: Hidden
    vocab: Annotated[int, Bounds(ge=1, le=MAX_VOCAB)]
    sequence: Tokens
    tied_embeddings: bool
    learned_positions: Annotated[int, Bounds(ge=0, le=MAX_VOCAB)] = 0
    head_bias: bool = False
    norms_per_layer: Annotated[int, Bounds(ge=0, le=4)] = 2
    norm_bias: bool = False
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_LAYERS, pattern=r"^[M*\-Ema]+$")] | None = None
    mtp_layers: Annotated[int, Bounds(ge=0, le=MAX_MTP)] = 0

    heads: Heads
    kv_heads: Heads | None = None
    head_dim: HeadDim | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False
    output_gate: bool = False

    ffn: Ffn | None = None
    gated: bool = True
    mlp_bias: bool = False

    latent: Annotated[LatentTable, Rare()] | None = None
    window: Annotated[WindowTable, Rare()] | None = None
    moe: Annotated[MoeTable, Rare()] | None = None
    indexer: Annotated[IndexerTable, Rare()] | None = None
    state_space: Annotated[StateSpaceTable, Rare()] | None = None
    mtp: Annotated[MtpTable, Rare()] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_attention()
        self._check_pattern()
        if self.moe is not None and not any(self.has_experts(index) for index in range(self.layers)):
            raise ValueError(f"dense_layers and every leave none of the {self.layers} layers with experts")
        if self.ffn is None and not all(self._has_no_mlp(index) for index in range(self.layers)):
            raise ValueError("ffn, the width of the dense MLP, is missing")
        return self

    def _check_attention(self) -> None:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        if self.latent is not None and (self.head_dim or self.kv_heads or self.qk_norm != "none"):
            raise ValueError("head_dim, kv_heads and qk_norm follow from [latent]; leave them out")
        if self.head_dim is None and self.latent is None and self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}; give head_dim")

    def _check_pattern(self) -> None:
        if self.mtp is not None and self.mtp_layers:
            raise ValueError("mtp_layers and [mtp] say the same; give one of them")
        letters = set(self.pattern or "") | set((self.mtp.pattern if self.mtp else None) or "")
        if self.pattern is not None and len(self.pattern) != self.layers:
            raise ValueError(f"pattern has {len(self.pattern)} letters for layers = {self.layers}")
        if letters & {"M", "m"} and self.state_space is None:
            raise ValueError("pattern has state-space layers (M, m), but there is no [state_space]")
        if "E" in letters and self.moe is None:
            raise ValueError("pattern has expert layers (E), but there is no [moe]")
        if "-" in letters and self.ffn is None:
            raise ValueError("ffn, the width of the dense MLP, is missing")
        if self.state_space is not None and not letters & {"M", "m"}:
            raise ValueError("[state_space] needs a pattern that says which layers have it (M, m)")

    def letter(self, index: int) -> str:
        """What layer `index` (from 0) is, see docs/models.md; `a` without a pattern."""
        return self.pattern[index] if self.pattern else "a"

    def _has_no_mlp(self, index: int) -> bool:
        return self.letter(index) in "M*E" or self.has_experts(index)

    def has_experts(self, index: int) -> bool:
        """Whether layer `index` (from 0) has routed experts."""
        if self.letter(index) in "M*-E":
            return self.letter(index) == "E"
        return self.moe is not None and index >= self.moe.dense_layers and (index + 1) % self.moe.every == 0


def load_model(name_or_path: str) -> ModelSpec:
    """Load a model by preset name, alias, or path.

    Args:
        name_or_path: a preset's name (`llama3-70b`), one of its aliases (`meta-llama/Meta-Llama-3-70B`), the path of
            a model file (`my.toml`), of a Hugging Face `config.json`, or of a folder that holds one.

    Raises:
        InputError: unknown name (with the nearest names), or a file that cannot be used (file, line, key, hint).
    """
    preset = find_preset("models", name_or_path)
    if preset is not None:
        return _from_toml(preset)
    if _is_path(name_or_path):
        path = Path(name_or_path)
        if path.suffix.lower() == ".toml":
            return _from_toml(path)
        from gpuscale.presets.huggingface import load_config  # noqa: PLC0415 - presets start without it

        return load_config(path)
    found = _find_spelling(name_or_path) or find_alias("models", name_or_path)
    if found is None:
        raise unknown_name("model", name_or_path, preset_names("models"), "gpuscale models list")
    return _from_toml(found)


def all_models() -> list[ModelSpec]:
    """Load every preset model, in the order of their names."""
    paths = (find_preset("models", name) for name in preset_names("models"))
    return [_from_toml(path) for path in paths if path is not None]


def models_of_family(family: str | None) -> list[ModelSpec]:
    """Load the preset models of one family (any case), or all of them.

    Raises:
        InputError: no model is of that family; the hint lists the families.
    """
    models = all_models()
    if family is None:
        return models
    families = sorted({model.family for model in models})
    if family.lower() not in families:
        close = nearest(family[:60], families, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(
            f"unknown family {family[:60]!r}", field="family", hint=f"{hint}there are: {', '.join(families)}"
        )
    return [model for model in models if model.family == family.lower()]


def _is_path(text: str) -> bool:
    """Tell a path from a name: it looks like a path, or it is a file or a folder with a config.json."""
    if text.lower().endswith((".toml", ".json")) or text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return True
    try:
        return bool(text) and (Path(text).is_file() or (Path(text) / "config.json").is_file())
    except (OSError, ValueError):  # too long for a file name, or a NUL byte
        return False


def _find_spelling(name: str) -> Path | None:
    """Find the one preset whose name differs from `name` only in case, hyphens and underscores (`Llama-3-70B`)."""
    wanted = _bare(name[:200])
    close = [stem for stem in preset_names("models") if _bare(stem) == wanted]
    return find_preset("models", close[0]) if len(close) == 1 else None


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _from_toml(path: Path) -> ModelSpec:
    return to_spec(validate(read_toml(path), ModelFile), path.stem)


def to_spec(file: ModelFile, name: str) -> ModelSpec:
    """Turn a checked model file into a `ModelSpec`; equal layers share one kind."""
    traits = [_traits(file, index) for index in range(file.layers)]
    layers = {trait: _layer(file, traits.index(trait), trait[0]) for trait in dict.fromkeys(traits)}
    kinds = tuple(dict.fromkeys(layers.values()))
    places = {trait: kinds.index(layer) for trait, layer in layers.items()}
    return ModelSpec(
        name=name,
        title=file.title,
        family=file.family,
        hidden=file.hidden,
        vocab=file.vocab,
        kinds=kinds,
        pattern=tuple(places[trait] for trait in traits),
        tied_embeddings=file.tied_embeddings,
        learned_positions=file.learned_positions,
        max_sequence=file.sequence,
        mtp=_mtp(file),
        head_bias=file.head_bias,
        source=file.source,
        published_params=file.published_params,
        published_active_params=file.published_active_params,
        aliases=tuple(file.aliases),
        notes=tuple(file.notes),
    )


def _mtp(file: ModelFile) -> MtpSpec | None:
    """Multi-token prediction: the last layer again, or the layers of `[mtp]` pattern."""
    table = file.mtp or (MtpTable(depth=file.mtp_layers) if file.mtp_layers else None)
    if table is None:
        return None
    last = file.layers - 1
    module = tuple(_layer(file, last, letter) for letter in table.pattern or file.letter(last))
    return MtpSpec(table.depth, mtp_module(module), table.shared, table.trained)


def _traits(file: ModelFile, index: int) -> tuple[str, bool, bool, bool]:
    """What of a layer depends on where it stands; layers with equal traits are equal."""
    shares = file.indexer is not None and file.indexer.shared(index)
    return file.letter(index), file.has_experts(index), _is_full(file, index), shares


def _is_full(file: ModelFile, index: int) -> bool:
    """Whether layer `index` attends to all tokens, in a model most of whose layers attend to a window."""
    window = file.window
    return window is not None and window.full_every > 0 and (index + 1) % window.full_every == 0


def _layer(file: ModelFile, index: int, letter: str) -> LayerSpec:
    """One layer; a letter of a single block (M, *, -, E) leaves the other one out."""
    attention = _attention(file, index) if letter in "*a" else None
    routed = letter == "E" or (letter in "am" and file.has_experts(index))
    dense = letter == "-" or (letter in "am" and not routed)
    single = 1 if letter in "M*-E" else file.norms_per_layer
    return LayerSpec(
        attention=attention,
        mlp=MlpSpec(file.ffn, file.gated, file.mlp_bias) if dense and file.ffn else None,
        moe=_moe(file) if routed else None,
        norms=single,
        norm_bias=file.norm_bias,
        state_space=_state_space(file) if letter in "Mm" else None,
    )


def _state_space(file: ModelFile) -> StateSpaceSpec | None:
    return None if file.state_space is None else StateSpaceSpec(**file.state_space.model_dump())


def _attention(file: ModelFile, index: int) -> AttentionSpec:
    window = None if _is_full(file, index) else file.window
    latent, choice = file.latent, file.indexer
    indexer = IndexerSpec(choice.heads, choice.head_dim, choice.top_k, choice.shared(index)) if choice else None
    head_dim = latent.nope_dim + latent.rope_dim if latent else file.head_dim or file.hidden // file.heads
    return AttentionSpec(
        heads=file.heads,
        kv_heads=file.kv_heads or file.heads,
        head_dim=head_dim,
        value_head_dim=latent.value_dim if latent else head_dim,
        latent=LatentSpec(latent.query_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim) if latent else None,
        window=window.length if window else None,
        chunked=window.chunked if window else False,
        qkv_bias=file.qkv_bias,
        output_bias=file.output_bias,
        qk_norm=file.qk_norm,
        sinks=file.sinks,
        output_gate=file.output_gate,
        indexer=indexer,
    )


def _moe(file: ModelFile) -> MoeSpec | None:
    moe = file.moe
    if moe is None:
        return None
    return MoeSpec(
        experts=moe.experts,
        top_k=moe.top_k,
        ffn=moe.ffn,
        gated=file.gated,
        shared_ffn=moe.shared_ffn,
        shared_gate=moe.shared_gate,
        router_bias=moe.router_bias,
        correction_bias=moe.correction_bias,
        expert_bias=moe.expert_bias,
        groups=moe.groups,
        top_groups=moe.top_groups,
        latent=moe.latent,
    )
