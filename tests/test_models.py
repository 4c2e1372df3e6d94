"""Model files: the shipped ones against their own sources, names and paths, and mistakes in a user's file."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

import pytest
from jobs import MODELS

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.presets.files import preset_names
from gpuscale.presets.huggingface_families import FAMILIES
from gpuscale.presets.models import MODEL, TABLES, load_model, models_of_family

SHAPES = Path(__file__).parents[2] / "shared" / "validation" / "models.csv"

GOOD = """\
title = "Mine"
family = "mine"
source = "a test"
layers = 4
hidden = 64
vocab = 100
sequence = 128
tied_embeddings = false
heads = 4
ffn = 96
"""


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_preset_counts_what_it_says_is_published(model):
    params = model_parameters(model)
    if model.published_params is not None:
        assert params.total == model.published_params
    if published := model.published_active_params:  # rounded or cut off, with embedding and head or without
        counts = params.active, params.active - params.embedding, params.active - params.embedding - params.lm_head
        unit = next(unit for unit in (10**9, 10**8, 10**7) if published % unit == 0)
        assert any(-unit / 2 <= count - published < unit for count in counts)
    assert len(model.source) > 10
    assert model.layers == len(model.pattern)


def test_the_families_that_are_promised_are_there():
    promised = {
        "gpt3", "megatron", "llama2", "llama3", "llama4", "mistral", "mixtral", "qwen2", "qwen2.5", "qwen3", "deepseek",
        "gpt-oss", "nemotron4", "gemma2", "gemma3", "olmo2", "kimi", "glm4.5",
    }  # fmt: skip
    assert promised <= {model.family for model in MODELS}


@pytest.mark.parametrize("model", [m for m in MODELS if m.family in ("gpt3", "megatron")], ids=lambda m: m.name)
def test_size_in_the_name_is_the_size(model):
    """Table 1 of Narayanan et al. 2021 and table 2.1 of Brown et al. 2020 round to the size of the name."""
    text = model.name.removesuffix("-2024").split("-")[-1]
    named = float(text[:-1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[text[-1]]
    assert model_parameters(model).total == pytest.approx(named, rel=0.03)


def test_names_and_aliases_are_unique():
    names = [name.lower() for model in MODELS for name in (model.name, *model.aliases)]
    assert sorted(names) == sorted(set(names))
    assert [model.name for model in MODELS] == preset_names("models")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama3-70b", "llama3-70b"),
        ("LLAMA3-70B", "llama3-70b"),
        ("llama-3-70b", "llama3-70b"),
        ("Llama_3_70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/meta-llama-3-70b", "llama3-70b"),
        ("llama-3.1-70b", "llama3.1-70b"),
        ("gpt-175b", "megatron-175b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
    ],
)
def test_spellings_of_a_name(spelling, name):
    assert load_model(spelling).name == name


@pytest.mark.parametrize("name", ["", "nonesuch", "llama3-71b", "meta-llama/foo", "x" * 5000, "a\0b", "llama3-70b.tml"])
def test_unknown_name_is_refused_with_the_command_that_lists_all(name):
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert "gpuscale show models" in (caught.value.hint or "")


def test_nearest_names_are_offered():
    with pytest.raises(InputError, match="llama3-70b"):
        load_model("llama3-71b")


@pytest.mark.parametrize("path", ["/nonexistent/x.json", "./nonexistent.toml", "/nonexistent", "~/nonexistent"])
def test_missing_file_is_refused(path):
    with pytest.raises(InputError):
        load_model(path)


def load_text(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_model(str(path))


def test_minimal_file(tmp_path):
    model = load_text(tmp_path, GOOD)
    assert (model.name, model.layers, len(model.kinds)) == ("mine", 4, 1)
    attention = model.kinds[0].attention
    assert (attention.kv_heads, attention.head_dim, attention.window) == (4, 16, None)
    assert model.kinds[0].mlp is not None
    assert model.kinds[0].mlp.gated


def test_windows_and_experts_alternate_as_told(tmp_path):
    text = GOOD.replace("layers = 4", "layers = 8") + (
        "[window]\nlength = 16\nfull_every = 4\n[moe]\nexperts = 8\ntop_k = 2\nffn = 32\ndense_layers = 2\nevery = 2\n"
    )
    model = load_text(tmp_path, text)
    kinds = [model.kinds[index] for index in model.pattern]
    assert [kind.attention.window for kind in kinds] == [16, 16, 16, None, 16, 16, 16, None]
    assert [kind.moe is not None for kind in kinds] == [False, False, False, True, False, True, False, True]
    assert all((kind.mlp is None) == (kind.moe is not None) for kind in kinds)


def test_user_folder_goes_first(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama3-70b.toml").write_text(GOOD, encoding="utf-8")
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    assert load_model("llama3-70b").title == "Mine"
    assert load_model("llama3-8b").title == "Llama 3 8B"


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("hidden = 64", "hiden = 64", 5, "hiden"),
        ('source = "a test"\n', "", None, "source"),
        ("layers = 4", "layers = true", 4, "layers"),
        ("layers = 4", "layers = 0", 4, "layers"),
        ("layers = 4", "layers = 99999999", 4, "layers"),
        ("layers = 4", "layers = 4.0", 4, "layers"),
        ("layers = 4", 'layers = "4"', 4, "layers"),
        ("layers = 4", "layers = nan", 4, "layers"),
        ("vocab = 100", "vocab = -100", 6, "vocab"),
        ("heads = 4", "heads = 5", None, "head_dim"),
        ("heads = 4", "heads = 4\nkv_heads = 3", None, "kv_heads"),
        ("ffn = 96\n", "", None, "ffn"),
        ("ffn = 96", "ffn = 96\nqk_norm = 'both'", 11, "qk_norm"),
        ("ffn = 96", "ffn = 96\n[moe]\nexperts = 2\ntop_k = 3\nffn = 4", 11, "top_k"),
        ("ffn = 96", "ffn = 96\n[moe]\nexperts = 2\ntop_k = 1\nffn = 4\ntop_groups = 2", 11, "groups"),
        ("ffn = 96", "ffn = 96\n[moe]\nexperts = 2\ntop_k = 1\nffn = 4\ndense_layers = 4", None, "dense_layers"),
        ("ffn = 96", "ffn = 96\n[moe]\nexprts = 2", 12, "exprts"),
        (
            "ffn = 96",
            "ffn = 96\nkv_heads = 2\n[latent]\nkv_rank=8\nnope_dim=4\nrope_dim=4\nvalue_dim=4",
            None,
            "latent",
        ),
        ("ffn = 96", "ffn = 96\n[window]\nlength = 0", 12, "length"),
        ("heads = 4", "heads = [", None, "TOML"),
    ],
)
def test_mistake_is_reported_with_file_and_line(tmp_path, old, new, line, text):
    with pytest.raises(InputError) as caught:
        load_text(tmp_path, GOOD.replace(old, new, 1))
    assert "mine.toml" in str(caught.value.place)
    assert text in str(caught.value)
    if line is not None:
        assert str(caught.value.place).endswith(f"mine.toml:{line}")


def test_family_filter():
    assert {model.name for model in models_of_family("GPT-OSS")} == {"gpt-oss-20b", "gpt-oss-120b"}
    with pytest.raises(InputError, match="llama3"):
        models_of_family("lama3")


def _shapes():
    if not SHAPES.is_file():
        return []
    with SHAPES.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {name.lower() for model in MODELS for name in (model.name, *model.aliases)}
    return [row for row in rows if row["model"] in known and row["layers"]]


@pytest.mark.skipif(not SHAPES.is_file(), reason="the shared table of shapes is not here")
@pytest.mark.parametrize("row", _shapes(), ids=[row["model"] for row in _shapes()])
def test_shape_agrees_with_the_shared_table(row):
    model = load_model(row["model"])
    attention = model.attentions[0]
    found = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "vocab": model.vocab,
    }
    for key, value in found.items():
        if row[key] and not (row["model"] in ("gpt3-175b", "moonlight-16b-a3b") and key == "vocab"):  # padded there
            assert value == int(row[key]), key
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    mlp = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    if moe and row["experts"]:
        assert (moe.experts, moe.top_k, moe.ffn) == (int(row["experts"]), int(row["topk"]), int(row["moe_ffn"]))
    if mlp and row["ffn"]:
        assert mlp.ffn == int(row["ffn"])
    if row["tied_embeddings"]:
        assert model.tied_embeddings == (row["tied_embeddings"] == "yes")


CONFIGS = Path(__file__).parents[2] / "shared" / "formats" / "hf_configs"
OTHERS = {"llama3.1-8b", "deepseek-v2", "qwen-7b"}  # whose files there lack the rotary scaling, or cannot be read


def test_deepseek_v2_has_the_rotary_scaling_of_its_lite_model():
    """Both config.json: yarn of 4,096 tokens by 40, mscale 0.707."""
    scaled = [
        {name: value for name, value in asdict(load_model(one).numerics).items() if name.startswith(("rot", "scal"))}
        for one in ("deepseek-v2", "deepseek-v2-lite")
    ]
    assert scaled[0] == scaled[1]
    assert (scaled[0]["rotary_scaling"], scaled[0]["scaling_factor"], scaled[0]["scaling_mscale_all"]) == (
        "yarn", 40, 0.707)  # fmt: skip


@pytest.mark.parametrize("model", [one for one in MODELS if one.aliases], ids=lambda model: model.name)
def test_numerics_are_those_of_the_published_config(model):
    found = [path for one in model.aliases if (path := CONFIGS / f"{one.replace('/', '--')}.json").is_file()]
    if not found or model.name in OTHERS:
        pytest.skip("no config is here")
    config = asdict(load_model(str(found[0])).numerics)
    stated = {name: value for name, value in asdict(model.numerics).items() if value is not None}
    assert stated or set(config.values()) == {None}
    assert stated == {name: config[name] for name in stated}


DOCS = Path(__file__).parents[1] / "docs" / "models.md"


def test_docs_define_every_key_and_every_model_type():
    text = DOCS.read_text(encoding="utf-8")
    keys = {key for table in (MODEL, *TABLES.values()) for key in table.columns}
    assert [key for key in sorted(keys) if f"`{key}`" not in text and f"`[{key}]`" not in text] == []
    read = text.split("These `model_type`s are read: ")[1].split(".\n")[0].replace("\n", " ")
    assert [kind.strip() for kind in read.split(",")] == list(FAMILIES)


def test_example_of_the_docs_is_a_model(tmp_path):
    example = DOCS.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    model = load_text(tmp_path, example)
    assert model_parameters(model).total == 1_235_814_400  # the shape of Llama 3.2 1B
