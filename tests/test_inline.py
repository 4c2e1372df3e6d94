"""A model in a line, and what is set of a cluster: the same as files that say it."""

import json

import pytest
from command import assert_one_message, gpuscale

from gpuscale.errors import InputError
from gpuscale.planning.plans import estimate
from gpuscale.presets.files import preset_names
from gpuscale.presets.frameworks import generations, load_framework
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.models import load_model
from gpuscale.presets.settings import with_settings

SHAPE = "layers=24,hidden=2048,heads=16,ffn=8192,vocab=50257"


def shape(model):
    return model.hidden, model.vocab, model.kinds, model.pattern, model.tied_embeddings, model.mtp


def test_a_model_in_a_line_is_what_a_file_says(tmp_path):
    file = tmp_path / "mine.toml"
    lines = SHAPE.replace(",", "\n").replace("=", " = ")
    file.write_text(
        f'title = "x"\nfamily = "x"\nsource = "the test"\nsequence = 4096\ntied_embeddings = false\n{lines}\n'
    )
    assert shape(load_model(SHAPE)) == shape(load_model(str(file)))


def test_a_long_line_is_called_by_its_first_keys():
    line = "layers=24,hidden=2048,heads=16,ffn=8192,gated=false,qkv_bias=true,vocab=50304"
    assert load_model(line).name == "layers=24,hidden=2048,heads=16,..."


def test_experts_stand_with_or_without_their_table():
    loose, dotted = (
        load_model(f"layers=4,hidden=512,heads=8,vocab=1000,{experts}")
        for experts in ("experts=8,topk=2,moe_ffn=1024", "moe.experts=8,moe.top_k=2,moe.ffn=1024")
    )
    assert shape(loose) == shape(dotted)
    assert loose.is_moe


def test_a_preset_is_changed_by_what_follows_its_name():
    whole, short = load_model("deepseek-v3"), load_model("deepseek-v3,layers=10,dense_layers=2,mtp_layers=0")
    assert (short.layers, short.hidden, short.mtp) == (10, whole.hidden, None)
    assert [short.kinds[kind].moe is None for kind in short.pattern] == [True] * 2 + [False] * 8
    assert shape(load_model("llama3-70b,layers=80")) == shape(load_model("llama3-70b"))
    assert load_model("nemotron-3-ultra,mtp_layers=0").mtp is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=24,hiden=2048", "unknown key 'hiden'"),
        ("layers=24,hidden", "'hidden' is not key=value"),
        ("layers=24", "missing"),
        ("lama3,layers=2", "unknown model 'lama3'"),
        (SHAPE.replace("layers=24", "layers=x"), "layers = 'x'"),
        (SHAPE.replace("layers=24", "layers=9999999"), "layers = 9999999"),
        (f"{SHAPE},layers=3", "key 'layers' is given twice"),
        ("nemotron-h-8b,layers=5", "pattern has 52 letters"),
    ],
)
def test_a_slip_in_a_line_is_named(text, message):
    assert_one_message(gpuscale("estimate", "--model", text, "--gpus", 8), message, "")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("fabric.link_gb_per_s=12.5", "link_bytes_per_s", 12.5e9),
        ("fabric.link_eff=0.5", "link_efficiency", 0.5),
        ("fabric.hop_latency_us=30,fabric.link_gb=7", "hop_latency_s", 30e-6),
        ("fabric.fabric=eni", "fabric", "eni"),
    ],
)
def test_what_is_set_changes_that_alone(text, name, value):
    before = load_cluster("aws-p5")
    after = with_settings(before, text)
    assert getattr(after.levels[1], name) == pytest.approx(value)
    assert after.levels[0] == before.levels[0]


def test_gpu_and_waiting_of_ranks_are_set_too():
    found = with_settings(load_cluster("aws-p5"), "gpu=h200-sxm-141gb,rank_overhead_us=12")
    assert (found.gpu.name, found.rank_overhead_s) == ("h200-sxm-141gb", pytest.approx(12e-6))


def test_a_power_cap_slows_the_clocks_of_long_runs_by_its_fourth_root():
    gpu = load_cluster("b200-hgx").gpu
    capped = with_settings(load_cluster("b200-hgx"), "gpu.power_w=700").gpu
    assert capped.power_w == 700
    for precision in ("bf16", "fp8"):
        assert capped.kernels.sustained(precision) == pytest.approx(gpu.kernels.sustained(precision) * 0.7**0.25)


def test_a_power_cap_holds_for_the_gpu_that_is_set_whatever_comes_first():
    cluster = load_cluster("aws-p5")
    one = with_settings(cluster, "gpu=h200-sxm-141gb,gpu.power_w=500")
    other = with_settings(cluster, "gpu.power_w=500,gpu=h200-sxm-141gb")
    assert (one.gpu.name, one.gpu.power_w) == ("h200-sxm-141gb", 500)
    assert other.gpu == one.gpu


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("leaf.link_gb_per_s=3", "sets nothing of a level", "write LEVEL.KEY=VALUE"),
        ("fabric.colour=3", "unknown key 'fabric.colour'", "known keys"),
        ("fabric.link_gb_per_s=-1", "should be at least 0.001", ""),
        ("fabric.link_gb_per_s=nan", "fabric.link_gb_per_s = 'nan' is not a number", "fabric.link_gb_per_s=50, or"),
        ("fabric.link_gb_per_s=inf", "fabric.link_gb_per_s = 'inf' is not a number", "fabric.link_gb_per_s=x1.5"),
        ("fabric.fabric=nan", "should be one of nvlink, xgmi", ""),
        ("fabric.in_network_reduction=nan", "should be true or false", ""),
        ("host.memory_gib=nan", "host.memory_gib = 'nan' is not a number", "write host.memory_gib=2048, or"),
        ("host.threads_per_gpu=x2", "is not stated, which leaves nothing to multiply", ""),
        ("host.threads_per_gpu=nan", "is not a number", "write host.threads_per_gpu=2, or"),
        ("fabric=3", "sets nothing of a level", "write LEVEL.KEY=VALUE"),
        ("gpu=b17", "unknown GPU 'b17'", ""),
        ("rank_overhead_us=-1", "rank_overhead_us = -1 is out of range", "0 to 100000 are possible"),
        ("gpu.power_w=0", "gpu.power_w = 0 is out of range", "10 to 10000 are possible"),
        ("gpu.power_w=nan", "gpu.power_w = 'nan' is not a number", "write gpu.power_w=700, or gpu.power_w=x1.5"),
        ("gpu.power_w=inf", "gpu.power_w = 'inf' is not a number", "write gpu.power_w=700, or gpu.power_w=x1.5"),
        ("gpu.power_w=3000", "gpu.power_w = 3000 is above the 700 W", ""),
    ],
)
def test_a_slip_in_what_is_set_is_named(text, message, hint):
    asked = ("estimate", "--model", "llama3-8b", "--gpus", 16, "--cluster", "aws-p5", "--set", text)
    assert_one_message(gpuscale(*asked), message, hint)


def test_a_wider_domain_is_taken_whole():
    wider = estimate("llama3-8b", 64, cluster="aws-p5", set="fabric.fabric=nvlink")
    assert "gpus_per_node" not in wider.assumptions


def test_settings_are_said_saved_and_read_again(tmp_path):
    plan = tmp_path / "plan.toml"
    job = ("--model", SHAPE, "--gpus", 16, "--cluster", "aws-p5")
    asked = (*job, "--set", "fabric.link_gb_per_s=5", "--set", "fabric.hop_latency_us=50")
    slow = json.loads(gpuscale("plan", *asked, "-o", plan, "--json").out)
    assert slow["assumptions"]["set"] == "fabric.link_gb_per_s=5,fabric.hop_latency_us=50"
    again = json.loads(gpuscale("estimate", plan, "--json").out)
    assert again["plan"]["step_time_s"] == slow["plans"][0]["step_time_s"]
    fast = json.loads(gpuscale("plan", *job, "--json").out)
    assert fast["plans"][0]["step_time_s"] < slow["plans"][0]["step_time_s"]


# -- generations of frameworks --


def test_a_month_chooses_the_generation():
    now, then = load_framework("megatron-lm"), load_framework("megatron-lm@2023-05")
    assert (then.name, then.runtime.attention, now.runtime.attention) == ("megatron-lm@2023-12", "unfused", "native")
    assert load_framework("nemo@2023-09").runtime.attention == "cudnn8"
    assert load_framework("nemo").states.gradient == 2.0
    assert load_framework("nemo@2023-07").states.gradient == load_framework("megatron-lm").states.gradient == 4.0
    assert load_framework("megatron-lm@2030-01").name == "megatron-lm"
    assert now.launch
    assert not then.launch


@pytest.mark.parametrize("name", preset_names("frameworks"))
def test_a_generation_goes_by_its_last_month(name):
    newest, *earlier = generations(name)
    assert newest == name
    for one in earlier:
        assert load_framework(one).name == one


@pytest.mark.parametrize("month", ["2024", "2024-13", "x", "2024-1", ""])
def test_what_is_no_month_is_refused(month):
    with pytest.raises(InputError, match="is not a month"):
        load_framework(f"nemo@{month}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('as = "mine"', "or on itself"),
        ('as = "megatron-ml"', "unknown framework 'megatron-ml'"),
        ('as = "megatron-lm"\nbefore = 3', "is not a list of tables"),
        ('as = "megatron-lm"\n[[before]]\ntitle = "x"', "states no month"),
        ('as = "megatron-lm"\nzero_stage = 7', "zero_stage = 7"),
    ],
)
def test_a_slip_in_a_profile_of_ones_own_is_named(text, message, tmp_path, monkeypatch):
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks" / "mine.toml").write_text(f'title = "x"\n{text}\n')
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    load_framework.cache_clear()
    with pytest.raises(InputError) as caught:
        load_framework("mine")
    assert message in caught.value.message


def test_a_fork_states_only_what_it_does_otherwise(tmp_path, monkeypatch):
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks" / "fork.toml").write_text('title = "x"\nas = "megatron-lm@2024-09"\nzero_stage = 0\n')
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    load_framework.cache_clear()
    own, base = load_framework("fork").runtime, load_framework("megatron-lm@2024-09").runtime
    assert (own.zero_stage, own.attention, own.rule_set) == (0, base.attention, base.rule_set)


def test_the_cpu_s_share_of_experts_is_counted_in_every_framework():
    for name in preset_names("frameworks"):
        assert load_framework(name).runtime.host_moe_s > 0, name


def test_compilation_is_an_option_where_a_compiler_fuses():
    on, off = (
        json.loads(gpuscale("estimate", "--model", "llama3-8b", "--gpus", 8, "--framework", "torchtitan",
                            "--compile", one, "--json").out)["plan"]["step_time_s"]
        for one in ("on", "off")
    )  # fmt: skip
    assert on < off
    assert estimate("llama3-8b", 8, framework="torchtitan", compile="on").assumptions["compile"] == "on"
    refused = gpuscale("estimate", "--model", "llama3-8b", "--gpus", 8, "--compile", "on")
    assert_one_message(refused, "megatron-lm has fused kernels of its own", "leave it out")


def test_resharding_after_the_forward_pass_is_zero_3_and_keeping_is_zero_2():
    asked = ("plan", "--model", "llama3-8b", "--gpus", 64, "--framework", "torchtitan", "--json")
    for reshard, without in (("always", 2), ("never", 3)):
        stages = {one["zero"] for one in json.loads(gpuscale(*asked, "--reshard", reshard, "--all").out)["plans"]}
        assert without not in stages
    layout = ("estimate", *asked[1:-1], "--json")
    stage = [json.loads(gpuscale(*layout, "--pp", pp).out)["plan"]["zero"] for pp in (1, 2)]
    assert stage == [3, 2]


def test_when_to_reduce_gradients_is_a_question_of_zero_2_and_3():
    asked = ("estimate", "--model", "llama3-8b", "--gpus", 8, "--grad-reduce", "last", "--zero")
    assert gpuscale(*asked, 2).code == 0
    assert_one_message(gpuscale(*asked, 1), "--grad-reduce has no effect with ZeRO-1", "")


def test_a_stage_that_contradicts_resharding_is_refused():
    asked = ("estimate", "--model", "llama3-8b", "--gpus", 8, "--framework", "torchtitan", "--reshard", "never")
    assert_one_message(gpuscale(*asked, "--zero", 3), "--reshard never and ZeRO-3 are mutually exclusive", "leave out")
    assert gpuscale(*asked).code == 0
