"""`check --from`: every fault that is planted into a good launch file is found, and the good ones raise no alarm."""

import csv
import json
import re
from pathlib import Path

import pytest
import round_trips
from command import assert_one_message, gpuscale

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.launch.check import check
from gpuscale.launch.export import exported, save_export
from gpuscale.launch.remarks import FOOTGUNS
from gpuscale.launch.switches import SWITCH_RULES
from gpuscale.launch.targets import targets

LAUNCH = Path(__file__).parent / "data" / "launch"
GOOD = {
    "dense.sh": {},
    "experts.sh": {},
    "titan.toml": {"gpus": 64},
    "primus.yaml": {"gpus": 8, "cluster": "mi300x"},
    "zero": {},
    "sharded": {},
}
"""File or folder -> what it does not state."""

UNEVEN = "--num-layers 32", "--num-layers 30"
CHUNKS = "--num-layers-per-virtual-pipeline-stage $VPP"
NO_CHUNKS = (CHUNKS, "")
NO_SP, NO_TP_OVERLAP = ("    --sequence-parallel\n", ""), ("    --tp-comm-overlap\n", "")


FAULTS = [
    # rules of the framework, from the layout
    ("dense.sh", [("TP=4", "TP=5"), ("NNODES=16", "NNODES=20")], "heads_not_divisible"),
    ("dense.sh", [("GBS=512", "GBS=500")], "batch_not_divisible_by_dp"),
    ("dense.sh", [("MBS=1", "MBS=3")], "batch_not_divisible"),
    ("dense.sh", [("GBS=512", "GBS=528")], "interleaving_needs_microbatches"),
    ("dense.sh", [("--sequence-parallel", "--sequence-parallel --context-parallel-size 3"), ("NNODES=16", "NNODES=24")],
     "sequence_not_divisible_by_cp"),
    ("dense.sh", [("--hidden-size 4096", "--hidden-size 4100")], "impossible_model"),
    ("dense.sh", [("--ffn-hidden-size 14336", "--ffn-hidden-size 14338")], "ffn_not_divisible"),
    ("dense.sh", [("--tp-comm-overlap", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params")],
     "zero_with_pp"),
    ("dense.sh", [("--bf16\n", "--bf16 --recompute-granularity selective --recompute-modules layernorm "
                   "--fp8-format hybrid --fp8-recipe delayed\n")], "recompute_with_delayed_scaling"),
    ("experts.sh", [("--expert-model-parallel-size 8", "--expert-model-parallel-size 16")], "experts_not_divisible"),
    ("experts.sh", [("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 2")], "ep_without_sp"),
    ("experts.sh", [("--num-experts 8", "--num-experts 12")], "experts_not_divisible"),
    ("experts.sh", [("--moe-permute-fusion", "--overlap-moe-expert-parallel-comm"),
                    ("--num-virtual-stages-per-pipeline-rank 8", "")],
     "ep_overlap_without_vpp"),
    # rules of the framework, from settings
    ("dense.sh", [UNEVEN], "uneven_layers"),
    ("experts.sh", [UNEVEN], "uneven_layers"),
    ("dense.sh", [("--num-layers-per-virtual-pipeline-stage $VPP", "--num-layers-per-virtual-pipeline-stage $VPP "
                   "--num-virtual-stages-per-pipeline-rank 4")], "several_chunk_options"),
    ("dense.sh", [("--seq-length 8192", "--seq-length 16384")], "sequence_beyond_positions"),
    ("dense.sh", [NO_SP], "tp_overlap_without_sp"),
    ("dense.sh", [("    --use-distributed-optimizer\n", "")], "param_gather_without_distopt"),
    ("dense.sh", [("    --overlap-grad-reduce\n", "")], "param_gather_without_grad_reduce"),
    ("dense.sh", [("--bf16\n", "--bf16 --fp16\n")], "bf16_and_fp16"),
    ("dense.sh", [("--bf16\n", "--bf16 --recompute-granularity full\n")], "recompute_settings"),
    ("dense.sh", [("--bf16\n", "--bf16 --recompute-granularity selective --recompute-method uniform\n")],
     "recompute_settings"),
    ("dense.sh", [("--bf16\n", "--bf16 --distribute-saved-activations\n")], "saved_activations_with_sp"),
    ("dense.sh", [("--bf16\n", "--bf16 --optimizer-cpu-offload\n")], "optimizer_offload_without_precision"),
    ("dense.sh", [("--bf16\n", "--bf16 --cpu-offloading-num-layers 4\n")], "layer_offload"),
    ("dense.sh", [("--bf16\n", "--bf16 --fp8-format hybrid --fp4-format e2m1\n")], "contradiction"),
    ("dense.sh", [("--bf16\n", "--bf16 --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 "
                   "--qk-pos-emb-head-dim 64 --v-head-dim 128\n")], "latent_and_grouped_attention"),
    ("experts.sh", [("--moe-router-topk 2", "--moe-router-topk 2 --moe-router-num-groups 3")], "impossible_model"),
    ("experts.sh", [("--moe-router-topk 2", "--moe-router-topk 9")], "impossible_model"),
    ("experts.sh", [("--moe-aux-loss-coeff 1e-2", "--moe-aux-loss-coeff -1e-2")], "balance_settings"),
    ("experts.sh", [("type aux_loss", "type auxiliary")], "balance_settings"),
    ("experts.sh", [("alltoall \\", "allgather --moe-expert-capacity-factor 1.0 \\")], "capacity_settings"),
    ("experts.sh", [("alltoall \\", "alltoall --moe-pad-expert-input-to-capacity \\")], "capacity_settings"),
    ("experts.sh", [("--moe-permute-fusion", "--delay-wgrad-compute")], "delayed_wgrad_without_overlap"),
    ("experts.sh", [("--moe-grouped-gemm", "--recompute-granularity selective --recompute-modules moe_act")],
     "moe_act_without_grouped_gemm"),
    ("experts.sh", [("--moe-permute-fusion", "--overlap-moe-expert-parallel-comm --moe-shared-expert-overlap")],
     "expert_overlap_settings"),
    ("experts.sh", [("--moe-permute-fusion", "--overlap-moe-expert-parallel-comm --mtp-num-layers 2")],
     "expert_overlap_settings"),
    # the environment
    ("dense.sh", [("MAX_CONNECTIONS=1", "MAX_CONNECTIONS=8")], "cuda_connections"),
    ("dense.sh", [("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "")], "cuda_connections"),
    ("dense.sh", [("export NCCL_SOCKET", "export NCCL_IB_DISABLE=1\nexport NCCL_SOCKET")], "ib_disabled"),
    ("dense.sh", [("export NCCL_SOCKET", "export NCCL_P2P_DISABLE=1\nexport NCCL_SOCKET")], "p2p_disabled"),
    ("dense.sh", [("export NCCL_SOCKET", "export CUDA_LAUNCH_BLOCKING=1\nexport NCCL_SOCKET")], "blocking_launches"),
    # what costs more than it has to
    ("dense.sh", [("TP=4", "TP=16"), ("PP=2", "PP=1"), NO_CHUNKS],
     "tp_across_nodes"),
    ("dense.sh", [("GBS=512", "GBS=32"), ("PP=2", "PP=4"), ("TP=4", "TP=2"), NO_CHUNKS], "few_microbatches"),
    ("dense.sh", [("GBS=512", "GBS=64"), ("PP=2", "PP=4"), NO_CHUNKS],
     "long_bubble"),
    ("dense.sh", [("--bf16\n", "--bf16 --recompute-granularity full --recompute-method uniform "
                   "--recompute-num-layers 1\n")], "needless_recompute"),
    ("dense.sh", [("--make-vocab-size-divisible-by 128", "--make-vocab-size-divisible-by 1")], "unpadded_vocabulary"),
    ("dense.sh", [NO_SP, NO_TP_OVERLAP], "tp_without_sp"),
    ("dense.sh", [NO_TP_OVERLAP], "tp_overlap_off"),
    ("dense.sh", [("    --overlap-grad-reduce\n    --overlap-param-gather\n", "")], "dp_overlap_off"),
    ("dense.sh", [("    --use-distributed-optimizer\n", ""), ("    --overlap-param-gather\n", "")],
     "replicated_optimizer"),
    ("experts.sh", [("--expert-tensor-parallel-size 1", "--expert-tensor-parallel-size 4"),
                    ("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 4 --sequence-parallel"),
                    ("--pipeline-model-parallel-size 4", ""), ("--num-virtual-stages-per-pipeline-rank 8", "")],
     "ep_over_slow_links"),
    ("dense.sh", [("export NCCL_SOCKET", "export NCCL_NVLS_ENABLE=0\nexport NCCL_SOCKET"), NO_SP, NO_TP_OVERLAP],
     "nvls_off"),
    # other frameworks
    ("titan.toml", [("tensor_parallel_degree = 1", "tensor_parallel_degree = 16")], "kv_heads_not_replicated"),
    ("titan.toml", [("context_parallel_degree = 1", "context_parallel_degree = 64"), ("8192", "8256")],
     "sequence_not_divisible_by_cp"),
    ("titan.toml", [("global_batch_size = 128", "global_batch_size = 100")], "batch_not_divisible_by_dp"),
    ("titan.toml", [("enable_async_tensor_parallel = false", "enable_async_tensor_parallel = true"),
                    ("enable = true", "enable = false")], "async_tp_without_compile"),
    ("titan.toml", [('mode = "none"', 'mode = "full"')], "needless_recompute"),
    ("titan.toml", [("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4"),
                    ("local_batch_size = 1", "local_batch_size = 16"), ("size = 128", "size = 256"),
                    ('"default"', '"always"')], "zero3_with_pp"),
    ("zero", [('"fp16": {\n    "enabled": false', '"fp16": {\n    "enabled": true')], "deepspeed_precisions"),
    ("zero", [('"gradient_clipping"', '"gradient_cliping"')], "misspelt_key"),
    ("zero", [('"overlap_comm": true', '"overlap_comm": false')], "dp_overlap_off"),
    ("zero", [('"stage": 2,', '"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5},')], "partial_offload"),
    ("zero", [('"stage": 2,', '"stage": 3,'), ('"train_batch_size": 128,', '"tensor_parallel": {"autotp_size": 2},')],
     "tp_with_zero_3"),
    ("zero", [('"stage": 2,', '"stage": 2, "offload_optimizer": {"device": "cpu"},'), ("THREADS=8", "THREADS=1")],
     "one_optimizer_thread"),
    ("zero", [('"stage": 2,', '"stage": 2, "offload_optimizer": {"device": "cpu"},'),
              ("export OMP_NUM_THREADS=8\n", "")], "one_optimizer_thread"),
    ("zero", [("--bf16 True", "--bf16 True --gradient_checkpointing True")], "needless_recompute"),
    ("sharded", [("activation_checkpointing: false", "activation_checkpointing: true")], "needless_recompute"),
    ("sharded", [("fsdp_offload_params: false", "fsdp_forward_prefetch: true")], "fsdp2_prefetch"),
    ("sharded", [("dp_shard_size: 16", "dp_shard_size: 8")], "mesh_and_processes"),
    ("sharded", [("dp_shard_size: 16", "dp_shard_size: 4"), ("cp_size: 1", "cp_size: 2"), ("sp_size: 1", "sp_size: 2")],
     "cp_and_sp"),
    ("primus.yaml", [("global_batch_size: 128", "global_batch_size: 100")], "batch_not_divisible_by_dp"),
    ("primus.yaml", [("seq_length: 8192", "seq_length: 262144")], "sequence_beyond_positions"),
    ("primus.yaml", [("granularity: null", "granularity: full")], "recompute_settings"),
    ("primus.yaml", [("overlap_grad_reduce: true", "overlap_grad_reduce: false")], "param_gather_without_grad_reduce"),
]  # fmt: skip
"""File, edits of it, and the rule that must find them."""


AT = {
    "heads_not_divisible": "tensor-model-parallel-size", "batch_not_divisible_by_dp": "global.batch.size",
    "batch_not_divisible": "global-batch-size", "interleaving_needs_microbatches": "virtual-pipeline",
    "sequence_not_divisible_by_cp": "context.parallel", "ffn_not_divisible": "tensor-model-parallel-size",
    "zero_with_pp": "use-(megatron-fsdp|distributed)", "uneven_layers": "layers", "tp_without_sp": "size",
    "experts_not_divisible": "expert-model-parallel-size", "several_chunk_options": "num-virtual-stages",
    "sequence_beyond_positions": "seq.length", "tp_overlap_without_sp": "tp-comm-overlap",
    "param_gather_without_distopt": "overlap.param.gather", "param_gather_without_grad_reduce": "overlap.param.gather",
    "recompute_settings": "recompute.granularity", "capacity_settings": "capacity", "balance_settings": "moe-aux",
    "cuda_connections": "CUDA_DEVICE_MAX", "ib_disabled": "NCCL_IB", "p2p_disabled": "NCCL_P2P", "nvls_off": "NVLS",
    "tp_across_nodes": "tensor-model-parallel-size", "few_microbatches": "global-batch-size",
    "long_bubble": "global-batch-size", "needless_recompute": "recompute|mode|checkpointing",
    "unpadded_vocabulary": "divisible-by",
    "tp_overlap_off": "overlap-", "dp_overlap_off": "overlap", "ep_over_slow_links": "expert-model-parallel-size",
    "kv_heads_not_replicated": "tensor_parallel", "async_tp_without_compile": "async", "zero3_with_pp": "reshard|degr",
}  # fmt: skip
"""Rule -> what stands in the line that it points at."""


def edited(name, edits, folder):
    """Copy a file or a folder, and change it; each edit is of the one file that has what it replaces."""
    files = [LAUNCH / name] if (LAUNCH / name).is_file() else sorted((LAUNCH / name).iterdir())
    texts = {path.name: path.read_text() for path in files}
    for old, new in edits:
        (own,) = [path for path, text in texts.items() if old in text]
        texts[own] = texts[own].replace(old, new, 1)
    for path, text in texts.items():
        (folder / path).write_text(text)
    return folder / name if (LAUNCH / name).is_file() else folder


def test_there_are_enough_faults_of_enough_kinds():
    rules = {rule for *_, rule in FAULTS}
    assert len(FAULTS) >= 60
    assert len(rules) >= 45
    assert set(AT) <= rules
    spoken = {one.code for one in (*FOOTGUNS, *SWITCH_RULES)}
    assert len(rules & spoken) >= 30


@pytest.mark.parametrize("name", GOOD)
def test_good_files_raise_no_alarm(name):
    result = check(launch_files=[LAUNCH / name], **GOOD[name])
    assert result.ok
    assert [one for one in result.findings if one.severity != "note"] == []


@pytest.mark.parametrize(
    ("name", "edits", "rule"), FAULTS, ids=[f"{index}-{one[2]}" for index, one in enumerate(FAULTS)]
)
def test_every_planted_fault_is_found_where_it_stands(name, edits, rule, tmp_path):
    path = edited(name, edits, tmp_path)
    result = check(launch_files=[path], **GOOD[name])
    found = next((one for one in result.findings if one.rule == rule), None)
    assert found, [one.rule for one in result.findings]
    assert path == Path(found.file) or path in Path(found.file).parents
    if found.line is not None and rule in AT:
        assert re.search(AT[rule], Path(found.file).read_text().splitlines()[found.line - 1])
    assert result.ok == all(one.severity != "error" for one in result.findings)


def test_one_layer_of_multi_token_prediction_goes_with_an_overlapped_exchange(tmp_path):
    """Megatron-LM transformer_config: `mtp_num_layers` is None or 1."""
    edits = [("--moe-permute-fusion", "--overlap-moe-expert-parallel-comm --mtp-num-layers 1")]
    found = check(launch_files=[edited("experts.sh", edits, tmp_path)]).findings
    assert "expert_overlap_settings" not in {one.rule for one in found}


def test_what_cannot_be_read_as_one_job_is_exit_2(tmp_path):
    path = edited("zero", [('"train_batch_size": 128', '"train_batch_size": 64')], tmp_path)
    assert_one_message(gpuscale("check", "--from", path), "train.sh:11", "")
    (tmp_path / "empty.sh").write_text("echo nothing\n")
    assert_one_message(gpuscale("check", "--from", tmp_path / "empty.sh"), "no training command", "")
    text = (LAUNCH / "dense.sh").read_text().replace("--nnodes $NNODES", "--nnodes $UNSAID")
    (tmp_path / "open.sh").write_text(text)
    assert gpuscale("check", "--from", tmp_path / "open.sh").code == 2
    assert gpuscale("check", "--from", tmp_path / "open.sh", "--var", "UNSAID=16").code == 0


def test_memory_that_is_tight_wants_expandable_segments(tmp_path):
    tight = {"memory_limit_gib": check(launch_files=[LAUNCH / "dense.sh"]).estimate.plan.memory_gib * 1.02}
    (one,) = check(launch_files=[LAUNCH / "dense.sh"], **tight).findings
    assert (one.rule, one.severity) == ("tight_memory", "note")
    path = edited("dense.sh", [('export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"\n', "")], tmp_path)
    rules = {one.rule: one.severity for one in check(launch_files=[path], **tight).findings}
    assert rules == {"expandable_segments_off": "warning", "tight_memory": "warning"}


def test_flags_beside_a_file_go_before_it():
    done = gpuscale("check", "--from", LAUNCH / "dense.sh", "--gbs", "500", "--json")
    (one,) = [one for one in json.loads(done.out)["findings"] if one["rule"] == "batch_not_divisible_by_dp"]
    assert (done.code, one["severity"]) == (1, "error")


REAL = Path(__file__).parents[2] / "shared" / "formats" / "launch"


@pytest.mark.skipif(not REAL.is_dir(), reason="the files of others are not here")
def test_real_files_that_launch_raise_no_alarm():
    held = 0
    for row in csv.DictReader((REAL / "index.csv").read_text().splitlines()):
        if row["expect"] != "ok":
            continue
        try:
            result = check(launch_files=[REAL / row["file"]], **(V100 if "bigscience" in row["file"] else {}))
        except InputError:  # a cluster or GPUs are missing, or no reader knows the framework
            continue
        held += 1
        alarms = [one for one in result.findings if one.severity != "note" and one.rule not in OF_THE_CLUSTER]
        assert alarms == [], row["file"]
    assert held >= 4


V100 = {"cluster": "dgx1-v100"}
OF_THE_CLUSTER = ("out_of_memory", "tight_memory", "contradiction", "needless_recompute")
"""What depends on the cluster, which no file states: the usual one is taken."""


def exported_errors(target, count, folder):
    """Errors of legal plans as they are exported, and read back; memory apart."""
    for number, (options, layout) in enumerate(round_trips.plans(target, count, "check")):
        try:
            made = exported(round_trips.predicted(options, layout), target)
        except NoAnswerError:  # the target cannot express it
            continue
        save_export(made, folder / str(number))
        result = check(launch_files=[folder / str(number)], **round_trips.unheld(options))
        for one in result.findings:
            if one.severity == "error" and not one.rule.startswith("out_of"):
                yield options, layout, one


WRITTEN = [name for name, one in targets().items() if one.write]


@pytest.mark.parametrize("target", WRITTEN)
def test_exports_of_legal_plans_break_no_rule(target, tmp_path):
    assert list(exported_errors(target, 4, tmp_path)) == []


@pytest.mark.parametrize(
    ("target", "options", "layout"),
    [
        (
            "nemo",
            {"model": "deepseek-v3", "gpus": 64, "gbs": 4},
            {"tp": 8, "cp": 4, "zero": 0},
        ),  # its recipe's are bf16
        ("megatron-bridge", {"model": "deepseek-v3", "gpus": 64, "gbs": 4}, {"tp": 8, "cp": 4, "zero": 0}),
        ("megatron-lm", {"model": "llama3-8b", "gpus": 1, "offload": "optimizer", "grad_dtype": "bf16"}, {}),
        ("primus", {"model": "llama3-8b", "gpus": 1, "offload": "optimizer"}, {}),
    ],
)
def test_states_of_exports_are_those_of_the_plan(target, options, layout, tmp_path):
    asked = {"seq": 4096, "gbs": 8, "framework": target, **options}
    save_export(exported(round_trips.predicted(asked, layout), target), tmp_path / "out")
    result = check(launch_files=[tmp_path / "out"])
    assert [one.rule for one in result.findings if one.severity == "error" and not one.rule.startswith("out_of")] == []


def test_megatron_keeps_only_adams_states_on_the_host():
    asked = {"model": "llama3-8b", "gpus": 8, "seq": 4096, "gbs": 8, "framework": "megatron-lm", "optimizer": "sgd"}
    assert exported(round_trips.predicted(asked, {"zero": 1}), "megatron-lm")
    with pytest.raises(NoAnswerError, match="use-precision-aware-optimizer"):
        exported(round_trips.predicted({**asked, "offload": "optimizer"}, {"zero": 1}), "megatron-lm")


@pytest.mark.full
@pytest.mark.parametrize("target", WRITTEN)
def test_exports_of_many_legal_plans_break_no_rule(target, tmp_path):
    assert list(exported_errors(target, 200, tmp_path)) == []
