"""Towers of multimodal models: what is not modelled is counted exactly where it can be, said with every answer, and
refused where it is what is trained.

Counts are those of the models as Hugging Face has them (`metadata.total_size` of their safetensors, or the class in
the transformers library) less those of their language models.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command import assert_one_message, gpuscale
from jobs import job
from test_cli_general import WALKED

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import InputError
from gpuscale.launch.export import export
from gpuscale.layouts.stages import FIRST, LAST
from gpuscale.planning.layouts import fixed_layout
from gpuscale.presets.huggingface import Config, read_config
from gpuscale.presets.models import load_model
from gpuscale.presets.towers import FROZEN, sums
from gpuscale.request import JobOptions, declared
from gpuscale.search.evaluation import memory_of, time_of
from gpuscale.training.checkpoints import checkpoint_of

DATA = Path(__file__).parent / "data"
TEXT = {
    "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
CLIP = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14, "image_size": 336}
SIGLIP = {
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 896,
    "vision_use_head": False,
}
LLAMA4 = {
    **CLIP, "num_hidden_layers": 34, "hidden_size": 1408, "intermediate_size": 5632, "projector_input_dim": 4096,
    "projector_output_dim": 4096, "vision_output_dim": 4096,
}  # fmt: skip
QWEN2 = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "patch_size": 14}
QWEN2_5 = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584, "patch_size": 14}
QWEN3 = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048, "patch_size": 16,
    "temporal_patch_size": 2, "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
KIMI = {
    "vt_num_hidden_layers": 27, "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "patch_size": 14,
    "init_pos_emb_height": 64, "init_pos_emb_width": 64,
}  # fmt: skip
WHISPER = {
    "encoder_layers": 32, "d_model": 1280, "encoder_ffn_dim": 5120, "num_mel_bins": 128, "max_source_positions": 1500,
}  # fmt: skip
MOONVIT = {
    "model_type": "moonvit", "num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14,
    "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
}  # fmt: skip
INTERN = {
    **CLIP, "image_size": 448, "qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm",
    "model_type": "intern_vit_6b",
}  # fmt: skip
COUNTED = {
    "gemma3": ("gemma3_text", 5376, "vision", SIGLIP, 27_432_406_640 - 27_009_346_304),
    "llama4": ("llama4_text", 5120, "vision", LLAMA4, 108_641_793_536 - 107_769_861_120),
    "llava": ("llama", 4096, "vision", CLIP, 7_063_427_072 - 6_738_939_904),
    "mistral3": ("mistral", 5120, "vision", CLIP | {"image_size": 1540}, 24_011_361_280 - 23_572_403_200),
    "qwen2_vl": ("qwen2", 3584, "vision", QWEN2, 8_291_375_616 - 7_615_616_512),
    "qwen2_5_vl": ("qwen2", 3584, "vision", QWEN2_5, 8_292_166_656 - 7_615_616_512),
    "qwen3_vl": ("qwen3", 2048, "vision", QWEN3, 2_127_532_032 - 1_720_574_976),
    "kimi_vl": ("llama", 7168, "vision", MOONVIT, 471_143_920),
    "kimi_k25": ("llama", 7168, "vision", KIMI, 471_143_920),
    "qwen2_audio": ("qwen2", 4096, "audio", WHISPER, 8_397_094_912 - 7_754_878_976),
    "internvl_chat": ("internlm2", 4096, "vision", INTERN, 8_075_365_376 - 7_737_782_272),
}
"""Model type -> that of its language model, whose width, the tower, its config, and the published parameters."""


def read(config):
    return read_config(Config("config.json", config, {}), "test")


def test_every_model_type_whose_towers_are_counted_is_in_the_manual():
    manual = (DATA.parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    counted_types = manual.partition("are counted with what")[2].partition("`presets/families/towers.toml`")[0]
    assert {*re.findall(r"\w+", counted_types)} >= {*sums()["models"]}


def counted(config):
    """Parameters of a language model and its towers; fails where a tower is not counted."""
    model = read(config)
    return model_parameters(model).total + sum(one.parameters for one in model.towers)


@pytest.mark.parametrize(
    "case", json.loads((DATA / "tower_counts.json").read_text("utf-8")), ids=lambda case: case["config"]["model_type"]
)
def test_towers_and_language_model_are_all_that_the_class_has(case):
    assert counted(case["config"]) == case["params"]


@pytest.mark.parametrize("model_type", COUNTED)
def test_parameters_of_a_tower_are_those_of_the_published_model(model_type):
    text_type, hidden, kind, tower, published = COUNTED[model_type]
    text = {**TEXT, "model_type": text_type, "hidden_size": hidden, "head_dim": 128}
    model = read({"model_type": model_type, "text_config": text, f"{kind}_config": tower})
    assert [(one.kind, one.parameters) for one in model.towers] == [(kind, published)]
    assert f"{kind} tower ({published / 1e6:,.0f} M parameters)" in model.caveats[0]


@pytest.mark.parametrize("wrong", [None, "x", -1, True, 2**40, [1]])
def test_a_tower_whose_config_says_too_little_is_named_without_a_count(wrong):
    for key in ("patch_size", "hidden_size"):
        tower = {**SIGLIP, key: wrong}
        model = read({"model_type": "gemma3", "text_config": {**TEXT, "model_type": "llama"}, "vision_config": tower})
        [one] = model.towers
        assert (one.kind, one.parameters) == ("vision", None)
        assert "text only: the vision tower" in model.caveats[0]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "qwen2_vl", **TEXT}, ["vision"]),
        ({"model_type": "mistral3", "text_config": {**TEXT, "model_type": "mistral"}}, ["vision"]),
        ({"model_type": "own", "text_config": {**TEXT, "model_type": "llama"}}, ["multimodal"]),
        ({"model_type": "llama", **TEXT, "mm_vision_tower": "openai/clip-vit-large-patch14"}, ["vision"]),
        ({"model_type": "llama", **TEXT, "vision_config": {"depth": 2}, "audio_config": {"a": 1}}, ["vision", "audio"]),
        ({"model_type": "llama", **TEXT, "audio_config": None, "image_token_id": 7}, []),
        (
            {"model_type": "omni", "talker_config": {"a": 1},
             "thinker_config": {"text_config": {**TEXT, "model_type": "qwen3"}, "audio_config": {"a": 1},
                                "vision_config": {"a": 1}}},
            ["speech", "audio", "vision"],
        ),
    ],
)  # fmt: skip
def test_what_a_config_has_beside_its_language_model_is_found(config, kinds):
    assert [one.kind for one in read(config).towers] == kinds


@pytest.mark.parametrize("name", ["gemma3-27b", "llama4-scout", "llama4-maverick", "qwen3.5-35b-a3b"])
def test_presets_of_multimodal_models_have_their_towers_also_when_they_are_changed(name):
    assert load_model(name).caveats == load_model(f"{name},vocab=64000").caveats != ()
    assert load_model("gemma3-1b").caveats == load_model("llama3-8b").caveats == ()


CONFIG = {"model_type": "qwen2_vl", **TEXT, "vision_config": QWEN2 | {"hidden_size": 2048}}
NOTE = (
    "the vision tower (668 M parameters): in memory as trained, on the first stage and whole on each TP rank; time and "
    "activations of images are not in these numbers"
)
TEXT_ONLY = "text only: the vision tower (668 M parameters) and its images are not in these numbers"
JOB = ("--model", "MODEL", "--gpus", "16")
STUDY = '[study]\ntask = "estimate"\n[[questions]]\nmodel = ["{}"]\ngpus = [16]\ntp = [2]\n'
RUNS = "id,framework,gpu,gpus,model,precision,gbs,seq,tp,step_s\na-1,megatron-lm,h100-sxm-80gb,16,{},bf16,64,4096,2,9\n"
ANSWERS = {
    "plan": ("plan", *JOB),
    "estimate": ("estimate", *JOB, "--tp", "2"),
    "explain": ("explain", *JOB, "--tp", "2"),
    "compare": ("compare", "--model MODEL --gpus 16", "--model MODEL --gpus 16 --tp 2"),
    "train-time": ("train-time", *JOB, "--tokens", "1T"),
    "fleet": ("fleet", "--model", "MODEL", "--cluster", "FLEET"),
    "size batch": ("size", "batch", *JOB, "--tokens", "1T", "--gbs", "128"),
    "size": ("size", "--model", "MODEL", "--tokens", "20B", "--days", "30"),
    "check": ("check", *JOB, "--tp", "2"),
    "export": ("export", "PLAN", "--to", "megatron-lm"),
    "memory": ("memory", *JOB, "--tp", "2"),
    "explain checklist": ("explain", "checklist", *JOB, "--tp", "2"),
    "reliability": ("reliability", *JOB, "--tp", "2"),
    "reliability stragglers": ("reliability", "stragglers", *JOB, "--tp", "2"),
    "sweep": ("sweep", "STUDY"),
    "sweep show": ("sweep", "show", "ROWS"),
    "placement": ("placement", *JOB, "--tp", "2", "--best"),
    "schedule": ("schedule", *JOB, "--pp", "2"),
    "roofline": ("roofline", "--model", "MODEL"),
    "validate": ("validate", "RUNS"),
    "calibrate run": ("calibrate", "run", "LOG", *JOB, "--gbs", "128"),
    "show models": ("show", "models", "MODEL"),
}
OF_TEXT = {"roofline", "show models", "validate"}
"""Commands whose numbers are of no memory, or of runs on text."""

OF_NO_MODEL = {
    "collective", "doctor", "calibrate", "calibrate nccl", "show", "bench",  # of how fast plans are found
    "mcp", "tune",  # whose answers are those of other commands; a table of trials
}  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Files by the words that stand for them."""
    folder = tmp_path_factory.mktemp("towers")
    names = {"MODEL": "vl.json", "PLAN": "plan.toml", "STUDY": "study.toml", "RUNS": "runs.csv", "ROWS": "rows.csv"}
    files = {word: folder / name for word, name in names.items()}
    files["MODEL"].write_text(json.dumps(CONFIG), encoding="utf-8")
    files["STUDY"].write_text(STUDY.format(files["MODEL"]), encoding="utf-8")
    files["RUNS"].write_text(RUNS.format("gemma3-4b"), encoding="utf-8")
    files |= {"FLEET": DATA / "fleet.toml", "LOG": DATA / "example_training.log"}
    assert gpuscale("plan", "--model", files["MODEL"], "--gpus", "16", "-o", files["PLAN"]).code == 0
    assert gpuscale("sweep", files["STUDY"], "-o", files["ROWS"]).code == 0
    return files


def told(arguments, named):
    for word, path in named.items():
        arguments = [one.replace(word, str(path)) for one in arguments]
    return gpuscale(*arguments)


def test_every_command_is_of_a_model_or_of_none():
    groups = {name for name, command in WALKED.items() if getattr(command, "commands", None)}
    assert {*ANSWERS, *OF_NO_MODEL} >= {*WALKED} - {name for name in WALKED if name.split()[0] in groups}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", ANSWERS)
def test_every_answer_says_what_is_not_in_it(command, form, named):
    done = told([*ANSWERS[command], *(["--json"] if form == "json" else [])], named)
    note = TEXT_ONLY if command in OF_TEXT else NOTE
    note = note.replace("668", "420") if command == "validate" else note
    assert done.code in {0, 1}, done.err
    assert note in " ".join(done.out.split())
    if form == "json":
        json.loads(done.out)


@pytest.mark.parametrize(
    "command", ["plan", "explain", "compare", "train-time", "reliability", "validate", "sweep show"]
)
def test_every_page_says_so_too(command, named, tmp_path):
    page = tmp_path / "page.html"
    assert told([*ANSWERS[command], "--html", str(page)], named).code == 0
    assert (TEXT_ONLY[:27] if command in OF_TEXT else NOTE[:40]) in page.read_text(encoding="utf-8")


def test_scripts_checks_and_markdown_say_so_too(named, tmp_path):
    assert NOTE in export(named["PLAN"], "megatron-lm").warnings
    assert told([*ANSWERS["export"], "-o", str(tmp_path / "out")], named).code == 0
    assert f"# {NOTE}\n" in (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")
    for form in ("github", "junit", "sarif"):
        assert NOTE in told([*ANSWERS["check"], "--format", form], named).out
    assert NOTE in told([*ANSWERS["explain checklist"], "--markdown"], named).out
    assert NOTE in " ".join(told([*ANSWERS["explain"], "--traffic"], named).out.split())
    assert NOTE in " ".join(told([*ANSWERS["memory"], "--timeline"], named).out.split())
    assert f"note: {NOTE}" in told([*ANSWERS["plan"], "--csv"], named).err
    assert "these files build the language model alone" in export(named["PLAN"], "megatron-lm").warnings[1]


@pytest.mark.parametrize("kind", ["siglip_vision_model", "clip_vision_model", "intern_vit_6b", "qwen2_5_vl_vision"])
def test_a_tower_alone_is_refused(kind, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SIGLIP, "model_type": kind}), encoding="utf-8")
    done = gpuscale("plan", "--model", file, "--gpus", 8)
    assert_one_message(done, "a tower for images or sounds alone, and no language model", "write a model file")


@pytest.mark.parametrize("name", FROZEN)
def test_every_switch_that_freezes_the_language_model_is_known_in_a_config(name):
    with pytest.raises(InputError, match="the language model is not trained"):
        read({**CONFIG, name: FROZEN[name]})
    assert read({**CONFIG, name: not FROZEN[name]}).towers


def test_the_names_of_frameworks_for_it_are_among_them():
    off = {"freeze_llm", "freeze_lm", "freeze_language_model", "freeze_backbone", "tune_mm_mlp_adapter"}
    on = {"tune_mm_llm", "tune_llm", "tune_language_model", "train_llm"}
    assert off | {"train_mm_proj_only"} <= {name for name, value in FROZEN.items() if value}
    assert on == {name for name, value in FROZEN.items() if not value}


def test_a_config_that_freezes_its_language_model_is_refused():
    with pytest.raises(InputError, match="tune_mm_mlp_adapter is true: the language model is not trained"):
        read({**CONFIG, "tune_mm_mlp_adapter": True})
    assert read({**CONFIG, "tune_mm_mlp_adapter": False, "freeze_vision_tower": True}).towers


TRAINER = """torchrun --nproc-per-node 8 train.py --model_name_or_path llama3-8b --deepspeed ds.json --bf16 True \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_seq_length 4096 {}
"""
MEGATRON = """torchrun --nproc-per-node 8 pretrain_vlm.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --vocab-size 32000 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 {}
"""


@pytest.mark.parametrize(
    ("script", "frozen", "trained"),
    [
        (TRAINER, "--freeze_llm True", "--freeze_llm False"),
        (TRAINER, "--tune_mm_mlp_adapter True", "--tune_mm_mlp_adapter False"),
        (TRAINER, "--tune_mm_llm False --tune_mm_vision True", "--tune_mm_llm True --tune_mm_vision False"),
        (TRAINER, "--train_mm_proj_only true", ""),
        (MEGATRON, "--freeze-LM", "--freeze-ViT"),
        (MEGATRON, "--freeze-LM --bf16", "--bf16"),
    ],
)
def test_a_launch_that_trains_a_tower_alone_is_refused_where_it_says_so(script, frozen, trained, tmp_path):
    file = tmp_path / "run.sh"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    file.write_text(script.format(frozen), encoding="utf-8")
    done = gpuscale("estimate", "--from", file)
    assert_one_message(
        done, "the language model is not trained, but towers beside it", "training of the language model"
    )
    assert f"{file}:" in done.err
    file.write_text(script.format(trained), encoding="utf-8")
    assert gpuscale("estimate", "--from", file, "--model", "llama2-7b").code == 0


def test_a_file_of_llama_factory_that_freezes_the_language_model_is_refused(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    job = (
        "model_name_or_path: llama3-8b\nstage: sft\ndo_train: true\nfinetuning_type: full\ndeepspeed: ds.json\n"
        "cutoff_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
        "freeze_vision_tower: {}\nfreeze_multi_modal_projector: {}\nfreeze_language_model: {}\n"
    )
    file = tmp_path / "sft.yaml"
    file.write_text(job.format("false", "false", "true"), encoding="utf-8")
    done = gpuscale("estimate", "--from", file, "--gpus", 8)
    assert_one_message(done, "the language model is not trained", "")
    file.write_text(job.format("true", "true", "false"), encoding="utf-8")
    assert gpuscale("estimate", "--from", file, "--gpus", 8).code == 0


# --- what towers take

TOWER = 419_816_304
"""Parameters of gemma3-4b's, as its preset has them."""
STATES = {"weights": 2, "gradients": 4, "master_weights": 4, "optimizer_state": 8}


def memory(tower, framework="megatron-lm", **options):
    """Bytes by component of the states on the first and the last stage, and the job."""
    own = {name: value for name, value in options.items() if name in declared(JobOptions)}
    layout = {name: value for name, value in options.items() if name not in own}
    spec = job("gemma3-4b", 16, framework=framework, tower=tower, **own)
    found = memory_of(fixed_layout(spec, layout), spec)
    shape = found.by_stage.shape
    return {name: np.broadcast_to(getattr(found, name), shape)[[FIRST, LAST], 0] for name in STATES}


def beyond(tower, **options):
    """By how much states take more than without a tower, per parameter of the tower."""
    one, other = memory(tower, **options), memory("none", **options)
    return {name: pytest.approx(((one[name] - other[name]) / TOWER).tolist(), abs=1e-6) for name in STATES}


@pytest.mark.parametrize(("layout", "shards"), [
    ({"zero": 0}, (1, 1, 1, 1)), ({"zero": 1}, (1, 1, 16, 16)), ({"zero": 1, "tp": 4}, (1, 1, 4, 4)),
    ({"zero": 1, "pp": 2, "tp": 2}, (1, 1, 4, 4)), ({"zero": 2, "framework": "deepspeed"}, (1, 16, 16, 16)),
    ({"zero": 3, "framework": "deepspeed"}, (16, 16, 16, 16)),
])  # fmt: skip
def test_a_trained_tower_has_all_states_whole_on_the_tp_ranks_of_the_first_stage(layout, shards):
    last = layout.get("pp", 1) == 1
    states = dict(zip(STATES, shards, strict=True))
    own = STATES if layout.get("framework") != "deepspeed" else {**STATES, "gradients": 2}
    assert beyond("trained", **layout) == {
        name: [size / states[name], last * size / states[name]] for name, size in own.items()
    }


@pytest.mark.parametrize(("layout", "bytes_each"), [
    ({"zero": 0}, 2), ({"zero": 1, "tp": 4}, 2), ({"zero": 2, "framework": "deepspeed"}, 2),
    ({"zero": 3, "framework": "deepspeed"}, 2 / 16), ({"zero": 3, "framework": "torchtitan"}, 4 / 16),
    ({"zero": 2, "framework": "torchtitan"}, 4 / 16), ({"zero": 0, "framework": "torchtitan"}, 4),
    ({"zero": 3, "framework": "deepspeed", "offload": "optimizer+parameters"}, 0), ({"zero": 1, "pp": 2}, 2),
])  # fmt: skip
def test_a_frozen_tower_has_its_weights_alone(layout, bytes_each):
    last = layout.get("pp", 1) == 1
    assert beyond("frozen", **layout) == {
        name: [bytes_each, last * bytes_each] if name == "weights" else [0, 0] for name in STATES
    }


@pytest.mark.parametrize(("framework", "zero"), [
    ("megatron-lm", 0), ("megatron-lm", 1), ("torchtitan", 0), ("torchtitan", 2), ("torchtitan", 3), ("accelerate", 0),
    ("accelerate", 2), ("accelerate", 3), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3),
])  # fmt: skip
def test_frozen_is_between_none_and_trained(framework, zero):
    made = {}
    for tower in ("none", "frozen", "trained"):
        spec = job("gemma3-4b", 16, framework=framework, tower=tower)
        rows = fixed_layout(spec, {"zero": zero})
        made[tower] = (float(memory_of(rows, spec).peak_bytes[0]), float(time_of(rows, spec).step_time_s[0]))
    assert made["none"][0] < made["frozen"][0] < made["trained"][0]
    assert made["none"][1] <= made["frozen"][1] <= made["trained"][1]


@pytest.mark.parametrize("tower", ["trained", "frozen"])
def test_the_tree_of_the_memory_has_the_tower_and_adds_up(tower):
    arguments = ("explain", "--model", "gemma3-4b", "--gpus", 16, "--tp", 2, "--pp", 2, "--tower", tower, "--json")
    found = json.loads(gpuscale(*arguments).out)
    trees = found["memory"]
    assert max(tree["value"] for tree in trees) == pytest.approx(found["plan"]["memory_gib"] * 2**30)
    assert "towers for images and sounds" in json.dumps(trees[0])
    assert "towers for images and sounds" not in json.dumps(trees[1])


def test_a_checkpoint_has_the_states_of_a_trained_tower():
    specs = [job("gemma3-4b", 16, tower=tower) for tower in ("none", "frozen", "trained")]
    none, frozen, trained = (checkpoint_of("sync", fixed_layout(spec, {}), spec, 1e9).bytes for spec in specs)
    assert (frozen - none, trained - none) == (0, 14 * TOWER)


@pytest.mark.parametrize(("model", "message"), [
    ("llama3-8b", "llama3-8b has no tower"), ("own.json", "own has no tower whose parameters are counted"),
])  # fmt: skip
def test_a_tower_that_there_is_not_or_that_is_not_counted_is_refused_by_name(model, message, tmp_path):
    config = {"model_type": "molmo9", "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {"depth": 2}}
    (tmp_path / "own.json").write_text(json.dumps(config), encoding="utf-8")
    named = tmp_path / model if model.endswith("json") else model
    done = gpuscale("estimate", "--model", named, "--gpus", 8, "--tower", "frozen")
    assert_one_message(done, message, "leave it out" if named == model else "state them in a model file")
    assert gpuscale("estimate", "--model", named, "--gpus", 8, "--tower", "none").code == 0
    if named != model:
        said = " ".join(gpuscale("estimate", "--model", named, "--gpus", 8).out.split())
        assert "text only: the vision tower (parameters of molmo9 are not counted) and its images are not" in said


@pytest.mark.parametrize(("line", "tower"), [
    ("", "frozen"), ("freeze_vision_tower: false", "trained"), ("freeze_vision_tower: true", "frozen"),
])  # fmt: skip
def test_a_file_of_llama_factory_says_whether_towers_are_trained(line, tower, tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: gemma3-4b\nstage: sft\ndo_train: true\nfinetuning_type: full\ndeepspeed: ds.json\n"
        f"cutoff_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n{line}\n"
    )
    cases = [((), "gemma3-4b", tower), (("--model", "gemma3-12b"), "gemma3-12b", tower)]
    cases += [(("--tower", "none"), "gemma3-4b", "none"), (("--model", "llama3-8b"), "llama3-8b", None)]
    for more, model, expected in cases:
        done = gpuscale("estimate", "--from", tmp_path / "sft.yaml", "--gpus", 8, "--json", *more)
        found = json.loads(done.out)["job"]
        assert (found["model"], found.get("tower")) == (model, expected)


@pytest.mark.parametrize("framework", ["accelerate", "megatron-lm"])
def test_beside_adapters_towers_are_frozen_unless_told(framework):
    usual, frozen, trained = (
        job("gemma3-4b", 8, framework=framework, tune="lora", **own)
        for own in ({}, {"tower": "frozen"}, {"tower": "trained"})
    )
    assert usual == frozen
    held = [memory_of(fixed_layout(spec, {}), spec) for spec in (usual, trained)]
    moments = [float(np.broadcast_to(one.optimizer_state, one.by_stage.shape)[FIRST, 0]) for one in held]
    assert moments[1] - moments[0] > 0.9 * TOWER
