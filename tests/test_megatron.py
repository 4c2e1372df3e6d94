"""Megatron-LM and its relatives: models and jobs as arguments, as the frameworks' own classes take them."""

import contextlib
import csv
import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import yaml
from command import gpuscale
from round_trips import plans, predicted

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.export import exported
from gpuscale.launch.megatron import layout_sizes
from gpuscale.launch.megatron_models import layer_frequency, model_arguments, read_model
from gpuscale.launch.read import read_launch
from gpuscale.launch.settings import Reading, Setting, Source
from gpuscale.launch.shapes import same_shape
from gpuscale.launch.writing import Writing
from gpuscale.planning.jobs import OF_TUNING, build_job
from gpuscale.presets.files import preset_names
from gpuscale.presets.models import load_model
from gpuscale.request import JobOptions, declared, read

DATA = Path(__file__).parent / "data"
FAMILY = ("megatron-lm", "megatron-bridge", "nemo", "primus")


def stated(arguments, kind="command"):
    """A source that states arguments as a command line does."""
    said = {name: value for name, value in arguments.items() if value is not None and value is not False}
    return Source("run.sh", kind, {name: Setting(name, value, "run.sh", 1, name) for name, value in said.items()})


def test_models_are_the_same_as_arguments_or_refused_and_most_are_not_refused():
    options = {"model": "llama3-8b", "gpus": 8, "seq": 1024, "framework": "generic"}
    job, plan = build_job(read(JobOptions, options)), predicted(options, {}).plan
    refused = []
    for name in preset_names("models"):
        spec = load_model(name)
        made = Writing(job._replace(spec=dataclasses.replace(job.spec, model=spec)), plan)
        arguments = model_arguments(made)
        if made.refused:
            assert "no argument for" in made.refused["model"], name
            refused.append(name)
            continue
        reading = Reading([stated(arguments)])
        read_model(reading)
        assert same_shape(load_model(reading.options["model"]), spec), name
    assert len(refused) < len(preset_names("models")) / 3


@pytest.mark.parametrize(
    ("text", "layers", "has"),
    [
        ("2", 4, [1, 0, 1, 0]),
        ("([0]*3+[1]*2)", 5, [0, 0, 0, 1, 1]),
        ("[0,1]*2", 4, [0, 1, 0, 1]),
        ("[0]+[1]*3", 4, [0, 1, 1, 1]),
        ("([0]*3+[1]*9)", 5, None),
        ("__import__('os')", 5, None),
        ("[1]*99999", 5, None),
        ("0", 5, None),
    ],
)
def test_layers_with_experts_are_read_from_their_expression(text, layers, has):
    assert layer_frequency(text, layers) == has


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("Et*2|(tt|)*5t|tmL", [2, 2, 2, 2, 2, 2, 1, 2]),
        ("Et*5|t*6|t*5,L", [5, 6, 5]),
        ("Et|(tt|)*30,mL", [1, *[2] * 30, 1]),
        ([["embedding", "decoder"], ["decoder", "decoder"], ["loss"]], [1, 2, 0]),
        ("E|L", None),
        ("os.system", None),
        ("(((t|)*4096)*4096)*4096L", None),
    ],
)
def test_layouts_of_stages_are_read(text, sizes):
    found = layout_sizes(text)
    assert found == sizes or (sizes is None and (found is None or len(found) <= 200_000))


RUN = """torchrun --nproc_per_node 8 pretrain_gpt.py --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --vocab-size 50304 --num-layers {layers} \\
  --pipeline-model-parallel-size {pp} {more}
"""


def pipelined(tmp_path, layers, pp, more):
    path = tmp_path / "run.sh"
    path.write_text(RUN.format(layers=layers, pp=pp, more=more))
    return read_launch([path])


FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
WITH_EMBEDDING, WITH_LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
CHUNKED = "--num-virtual-stages-per-pipeline-rank 2"


@pytest.mark.parametrize(
    ("layers", "more", "predicted"),
    [  # an even split is 7, 8, 8, 7 of 30 layers, and 8, 8, 8, 7 of 31
        (30, f"{FIRST} 7 {LAST} 7", None),
        (31, f"{LAST} 7", None),
        (30, f"{FIRST} 6 {LAST} 8", "7, 8, 8, 7"),
        (30, f"{WITH_EMBEDDING} {WITH_LOSS}", None),
        (31, WITH_LOSS, None),
        (31, WITH_EMBEDDING, "8, 8, 8, 7"),
        (62, f"{WITH_EMBEDDING} {WITH_LOSS} {CHUNKED}", None),
        (64, f"{FIRST} 16 {CHUNKED}", None),
    ],
)
def test_stages_with_uneven_ends_are_predicted_as_stated_or_it_is_said(tmp_path, layers, more, predicted):
    assumed = " ".join(one.meaning for one in pipelined(tmp_path, layers, 4, more).assumed)
    assert ("stages are predicted" in assumed) is (predicted is not None)
    assert predicted is None or f"stages are predicted with {predicted} layers" in assumed


@pytest.mark.parametrize(("count", "vpp", "recompute"), [(2, 1, "full:2"), (2, 3, "full:6"), (4, 3, "full")])
def test_layers_to_recompute_are_counted_per_chunk(tmp_path, count, vpp, recompute):
    """`--recompute-num-layers` holds for each of the chunks of 12 layers."""
    more = f"--recompute-granularity full --recompute-method block --recompute-num-layers {count}"
    chunks = f" --num-virtual-stages-per-pipeline-rank {vpp}" if vpp > 1 else ""
    assert pipelined(tmp_path, 24, 2, more + chunks).layout["recompute"] == recompute


def test_an_export_writes_over_nothing_unless_told(tmp_path):
    options = ("--model", "llama3-8b", "--gpus", "8", "--tp", "1", "--pp", "1", "--cp", "1")
    assert gpuscale("plan", *options, "-o", str(tmp_path / "plan.toml")).code == 0
    export = ("export", str(tmp_path / "plan.toml"), "--to", "megatron-lm", "-o", str(tmp_path / "launch"))
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "run.sh").write_text("mine")
    refused = gpuscale(*export)
    assert refused.code == 2
    assert "run.sh would be written over" in refused.err
    assert (tmp_path / "launch" / "run.sh").read_text() == "mine"
    assert gpuscale(*export, "--force").code == 0
    assert "pretrain_gpt.py" in (tmp_path / "launch" / "run.sh").read_text()


# --- nothing is dropped

ELSEWHERE = {"calibration", "model", "gpus", "cluster", "set", "memory_limit_gib", "moe_imbalance", "framework",
             "tower", "packing", *OF_TUNING}  # fmt: skip
"""What no launch file holds, or what is another plan altogether."""

VALUES = {
    "seq": (4096, 8192), "gbs": (128, 256), "precision": ("bf16", "fp16"), "optimizer": ("adam", "sgd"),
    "grad_dtype": ("fp32", "bf16"), "master_dtype": ("fp32", "fp16"), "moment_dtype": ("fp32", "bf16"),
    "swiglu_input_dtype": ("bf16", "fp8"), "loss": ("standard", "fused"), "vocab_multiple": (64, 128),
    "gpus_per_node": (4, 8), "offload": ("none", "optimizer"), "cp_comm": ("p2p", "all_gather"),
    "axis_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"), "pipeline_split": ("even", "tapered"),
    "overlap": ("none", "dp"), "cuda_graphs": ("none", "full"), "dispatcher": ("alltoall", "deepep"),
    "routing": ("dropless", "dropping"), "transport": ("nvshmem", "uccl"), "reshard": (None, "always"),
    "grad_reduce": (None, "last"), "compile": (None, "on"), "attention": (None, "fa2"),
    "sharp": ("off", "on"), "nvls": ("on", "off"), "tune": ("full", "lora"), "method": ("sft", "dpo"),
    "lengths": (None, "512"), "optimizer_rank": (None, 64), "teacher": (None, "llama3-8b"),
}  # fmt: skip
"""Option -> two values of it that mean something else to the job below."""

LAYOUTS = {
    "tp": 4, "sp": False, "pp": 4, "vpp": 3, "cp": 4, "ep": 8, "etp": 2, "dp": 4, "zero": 0, "shard": 4,
    "micro_batch_size": 2, "recompute": "full", "schedule": "zb-h1",
}  # fmt: skip
JOB = {"model": "deepseek-v2-lite", "gpus": 64, "gbs": 128, "seq": 8192}
LAYOUT = {"tp": 2, "pp": 2, "cp": 2, "ep": 4, "etp": 1}


def text_of(target, options, layout):
    """All that is exported, or the refusal."""
    try:
        made = predicted({**JOB, "framework": target, **options}, {**LAYOUT, **layout})
        return "".join(one.text for one in exported(made, target).files)
    except (NoAnswerError, InputError) as error:
        return str(error)


@pytest.mark.parametrize("target", FAMILY)
def test_no_option_of_a_plan_is_dropped(target):
    assert set(VALUES) == set(declared(JobOptions)) - ELSEWHERE
    usual = text_of(target, {}, {})
    assert "cannot express" not in usual
    for name, values in VALUES.items():
        stages = {"pp": 8, "cp": 1} if name == "pipeline_split" else {}
        one, other = (text_of(target, {} if value is None else {name: value}, stages) for value in values)
        assert one != other, name
    for name, value in LAYOUTS.items():
        assert text_of(target, {}, {name: value}) != usual, name


@pytest.mark.parametrize(
    ("optimizer", "layout", "shown"),
    [
        ("muon", {"zero": 0}, "--optimizer muon"),
        ("muon", {"zero": 1}, "--optimizer dist_muon"),
        ("muon", {"zero": 2}, "Muon excludes the distributed optimizer"),
        ("muon", {"zero": 1, "shard": 4}, "Muon excludes the distributed optimizer"),
        ("adamw", {"zero": 2}, "--use-megatron-fsdp"),
        ("adamw", {"zero": 1, "shard": 4}, "--use-distributed-optimizer"),
    ],
)
def test_muon_shards_its_states_itself_over_all_replicas(optimizer, layout, shown):
    options = {"model": "llama3-8b", "gpus": 16, "gbs": 64, "framework": "megatron-lm", "optimizer": optimizer}
    try:
        text = "".join(one.text for one in exported(predicted(options, layout), "megatron-lm").files)
    except NoAnswerError as error:
        text = str(error)
    assert shown in text


# --- names, types and choices of Megatron-LM's own parser

WITH_VALUE = {
    "int": r"\d+", "float": r"\d+(\.\d+)?(e-?\d+)?", "ints": r"\d+( \d+)+", "window": r"\d+,\d+",
    "layout": r"[Etm|L(),*\d]+", "frequency": r"\(\[[01]\]\*\d+(\+\[[01]\]\*\d+)*\)", "text": r"\S+",
    "words": r"\S+( \S+)*", "flag": "",
}  # fmt: skip
"""Kind of an argument -> what its values look like."""


def arguments_of(run):
    """Arguments of a script, each with its values as one text."""
    lines = [line.strip().removesuffix("\\").strip() for line in run.splitlines()]
    words = [shlex.split(line) for line in lines if line.startswith("--")]
    return {line[0].removeprefix("--"): " ".join(line[1:]) for line in words}


def test_arguments_have_the_names_types_and_choices_of_megatron_lm():
    with (DATA / "megatron_lm_arguments.csv").open(encoding="utf-8") as file:
        known = {row["argument"]: row for row in csv.DictReader(file)}
    written = {}
    for options, layout in plans("megatron-lm", 60, 5):
        with contextlib.suppress(NoAnswerError):
            files = exported(predicted(options, layout), "megatron-lm").files
            written |= dict.fromkeys(arguments_of(files[0].text).items(), "")
    assert len({name for name, _ in written}) > 60
    for name, text in written:
        row = known[name]
        assert re.fullmatch(WITH_VALUE[row["kind"]], text), (name, text)
        assert not row["choices"] or set(text.split()) <= set(row["choices"].split()), (name, text)


@pytest.mark.parametrize(
    ("model", "recompute", "modules"),
    [
        ("deepseek-v2-lite", "none", "attn moe_router"),
        ("deepseek-v2-lite", "selective:moe", "attn"),  # moe may not be recomputed around a router in a graph
        ("llama3-8b", "none", "attn"),  # nor may a graph hold a router that there is not
    ],
)
def test_graphs_hold_no_router_that_is_recomputed_or_absent(model, recompute, modules):
    options = {**JOB, "model": model, "framework": "megatron-lm", "cuda_graphs": "partial"}
    made = predicted(options, {"tp": 2, "pp": 2, "recompute": recompute})
    assert arguments_of(exported(made, "megatron-lm").files[0].text)["cuda-graph-modules"] == modules


# --- the frameworks' own classes


def overrides(target, options, layout):
    """What an export overrides: section -> field -> value."""
    run = next(one.text for one in exported(predicted(options, layout), target).files if one.path == "run.sh")
    found = {}
    for word in shlex.split(run.replace("\\\n", " "), comments=True):
        name, equals, text = word.partition("=")
        section, dot, field = name.partition(".")
        if equals and dot and not word.startswith("-"):
            found.setdefault(section, {})[field] = text.strip("'")
    return found


SET_BY_RECIPES = {
    ("megatron-bridge", "deepseek-v2-lite"): {
        "model": "q_lora_rank mtp_num_layers moe_layer_freq moe_router_num_groups moe_router_group_topk "
        "moe_router_topk_scaling_factor moe_router_score_function moe_router_enable_expert_bias moe_aux_loss_coeff "
        "moe_router_pre_softmax moe_router_load_balancing_type moe_shared_expert_intermediate_size gated_linear_unit "
        "moe_router_dtype moe_shared_expert_overlap pipeline_model_parallel_layout add_bias_linear "
        "virtual_pipeline_model_parallel_size "
        "share_embeddings_and_output_weights moe_token_dispatcher_type normalization hidden_dropout qk_layernorm",
        "optimizer": "use_precision_aware_optimizer main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype",
        "ddp": "grad_reduce_in_fp32 overlap_grad_reduce overlap_param_gather use_distributed_optimizer",
    },
    ("nemo", "deepseek-v2-lite"): {
        "model": "mtp_num_layers moe_layer_freq moe_router_num_groups moe_router_group_topk moe_router_dtype "
        "moe_router_topk_scaling_factor moe_router_score_function moe_router_enable_expert_bias moe_aux_loss_coeff "
        "moe_router_pre_softmax moe_router_load_balancing_type moe_shared_expert_intermediate_size gated_linear_unit "
        "moe_shared_expert_overlap moe_enable_deepep recompute_granularity moe_token_dispatcher_type add_bias_linear",
        "trainer": "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage expert_model_parallel_size",
    },
    ("nemo", "llama2-7b"): {
        "model": "num_query_groups share_embeddings_and_output_weights add_bias_linear gated_linear_unit normalization "
        "position_embedding_type hidden_dropout",
    },
    ("primus", "gpt3-13b"): {"primus": "add_bias_linear swiglu untie_embeddings_and_output_weights"},
}  # fmt: skip
"""Target and model -> what the recipe that its export begins with has set, by section (at the commits of `basis`)."""


@pytest.mark.parametrize(("target", "model"), SET_BY_RECIPES)
def test_nothing_is_left_as_a_recipe_has_it(target, model):
    options, layout = {**JOB, "framework": target, "model": model, "seq": 2048}, {"tp": 1, "pp": 1}
    if target == "primus":
        made = exported(predicted(options, layout), target).files
        plan_file = yaml.safe_load(next(one.text for one in made if one.path == "plan.yaml"))
        found = {"primus": plan_file["modules"]["pre_trainer"]["overrides"]}
        assert found["primus"] | {"add_bias_linear": True, "swiglu": False} == found["primus"]
    else:
        sections = overrides(target, options, layout)
        found = {name: {key.rpartition(".")[2] for key in fields} for name, fields in sections.items()}
    for section, names in SET_BY_RECIPES[target, model].items():
        assert set(names.split()) <= set(found[section])


def test_a_plan_takes_back_what_its_recipe_sets():
    bridge = overrides("megatron-bridge", {**JOB, "framework": "megatron-bridge"}, {"tp": 1, "pp": 1})["model"]
    assert bridge["q_lora_rank"] == bridge["mtp_num_layers"] == bridge["moe_router_num_groups"] == "null"
    assert bridge["moe_layer_freq"] == f"[0{',1' * 26}]"
    nemo = overrides("nemo", {**JOB, "framework": "nemo", "model": "llama2-7b", "seq": 4096}, {"tp": 1, "pp": 1})
    assert nemo["model"]["config.num_query_groups"] == "32"
    assert "activation_func" not in str(nemo)


def value_of(text, torch):
    """What Hydra makes of a text."""
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    if text.startswith("["):
        return [int(one) if one.isdigit() else one for one in text.strip("[]").split(",")]
    plain = {"true": True, "false": False, "null": None}
    if text in plain:
        return plain[text]
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else int(text) if re.fullmatch(r"-?\d+", text) else text


OF_THE_PROVIDER = {
    "seq_length", "position_embedding_type", "share_embeddings_and_output_weights", "make_vocab_size_divisible_by",
}  # fmt: skip
"""Fields of Megatron-Bridge's own providers of models."""

NEWER = {"cuda_graph_modules", "full_iteration"}
"""Fields and values that the newest release of Megatron core in package indices lacks, and its source has."""


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_exports_are_taken_by_the_classes_of_megatron_core(monkeypatch):
    core = pytest.importorskip("megatron.core", reason="pip install 'gpuscale[frameworks]'")
    import torch  # noqa: PLC0415
    from megatron.core.distributed import DistributedDataParallelConfig  # noqa: PLC0415
    from megatron.core.optimizer import OptimizerConfig  # noqa: PLC0415
    from megatron.core.transformer import transformer_config as configs  # noqa: PLC0415

    assert core.__version__
    for module in (core.utils, configs):  # Transformer Engine takes a GPU to install
        monkeypatch.setattr(module, "is_te_min_version", lambda *_, **__: True, raising=False)
        monkeypatch.setattr(module, "get_te_version", lambda: core.utils.PkgVersion("2.9"), raising=False)
    known = {one.name for one in dataclasses.fields(configs.MLATransformerConfig)}
    taken = 0
    for options, layout in plans("megatron-bridge", 150, 1):
        try:
            found = overrides("megatron-bridge", options, layout)
        except NoAnswerError:
            continue
        model = {name: value_of(text, torch) for name, text in found["model"].items() if name not in OF_THE_PROVIDER}
        assert set(model) - known <= NEWER, set(model) - known
        if NEWER & {*model, *map(str, model.values())}:
            continue
        model["moe_permute_fusion"] = False  # a kernel of Transformer Engine
        gated = model.pop("activation_func", None)
        model["activation_func"] = torch.nn.functional.silu if gated else torch.nn.functional.gelu
        if isinstance(model.get("moe_layer_freq"), str):
            model["moe_layer_freq"] = layer_frequency(model["moe_layer_freq"], model["num_layers"])
        if "window_size" in model:
            model["window_size"] = tuple(map(int, str(model["window_size"]).split(",")))
        kind = configs.MLATransformerConfig if model.get("multi_latent_attention") else configs.TransformerConfig
        kind(**model)
        DistributedDataParallelConfig(**{name: value_of(text, torch) for name, text in found["ddp"].items()})
        states = {name: value_of(text, torch) for name, text in found["optimizer"].items()}
        fields = {one.name for one in dataclasses.fields(OptimizerConfig)}
        assert set(states) <= fields, set(states) - fields
        aware = ("use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype")  # takes Transformer Engine
        OptimizerConfig(**{name: value for name, value in states.items() if name not in aware and "exp_" not in name})
        taken += 1
    assert taken > 100
