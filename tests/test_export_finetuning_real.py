"""What is exported for tools of fine-tuning, parsed by their own classes; each is skipped where its tool is not.

Read so far with trl 1.16.0 and peft 0.21.2, axolotl 0.19.0, llamafactory 0.9.5, torchtune 0.6.1 on torchao 0.9.0 and
nemo-automodel 0.7.0, on PyTorch 2.13.0 without a GPU.
"""

import inspect
import re
import shlex

import pytest
import round_trips
from test_export_finetuning import EVERY
from test_launch_adapters import PLAN

from gpuscale.launch.export import exported
from gpuscale.launch.targets import targets

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]


def exports(target):
    """Files by name of each plan that is written for a target, and the plan."""
    for name, more, layout in EVERY:
        if name == target:
            states = ("master_dtype", "grad_dtype", "moment_dtype") if "tune" in more and target != "trl" else ()
            options = {"framework": targets()[name].frameworks[0], **PLAN, **more}
            options = {key: value for key, value in options.items() if key not in states}
            estimate = round_trips.predicted(options, layout)
            yield {one.path: one.text for one in exported(estimate, target).files}, options, estimate.plan


def arguments(files):
    """The words that a program is given."""
    line = files["run.sh"].replace("\\\n", " ").splitlines()[-1]
    words = shlex.split(re.sub(r'"\$\{\w+:?[-?]([^}]*)\}"', r"'\1'", line))
    return words[words.index("-m") + 2 :]


def test_trl_parses_every_export():
    trl = pytest.importorskip("trl")
    scripts = pytest.importorskip("trl.scripts.utils")
    parser = scripts.TrlParser((scripts.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    for files, options, plan in exports("trl"):
        words = [word for word in arguments(files) if word not in {"--deepspeed", "ds_config.json"}]
        words[words.index("--bf16") + 1] = "False"  # which a machine without a GPU refuses
        _, training, model = parser.parse_args_and_config(words)
        assert training.max_length == plan.sequence
        assert training.packing is True
        assert training.gradient_accumulation_steps == plan.num_microbatches
        config = trl.get_peft_config(model)
        assert (config is not None) is ("tune" in options)
        if config is not None:
            assert config.r == options["lora_rank"]
            assert model.load_in_4bit is (options["tune"] == "qlora")


def test_axolotl_takes_every_export():
    schemas = pytest.importorskip("axolotl.utils.schemas.config")
    yaml = pytest.importorskip("yaml")
    for files, options, plan in exports("axolotl"):
        config = yaml.safe_load(files["axolotl.yaml"])
        config.pop("deepspeed", None)  # the file of which its validation looks for
        made = schemas.AxolotlInputConfig(**config)
        assert made.sequence_len == plan.sequence
        assert made.micro_batch_size == plan.micro_batch_size
        assert (made.lora_r or 0) == options.get("lora_rank", 0)
        assert (made.adapter or "full") == options.get("tune", "full")
        own = {name for name in config if not name.startswith("liger_")}  # of its plugin
        unknown = own - set(schemas.AxolotlInputConfig.model_fields)
        assert not unknown, "axolotl ignores settings that it does not know"


def test_llama_factory_parses_every_export(monkeypatch):
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    parser = pytest.importorskip("llamafactory.hparams.parser")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.TrainingArguments, "__post_init__", lambda _: None)
    classes = (parser.ModelArguments, parser.DataArguments, transformers.TrainingArguments, parser.FinetuningArguments)
    for files, options, plan in exports("llama-factory"):
        _, data, _, tuning = transformers.HfArgumentParser(classes).parse_args_into_dataclasses(arguments(files))
        assert data.cutoff_len == plan.sequence - 1  # packing keeps one token for itself (hparams/data_args.py)
        assert tuning.finetuning_type == ("lora" if "tune" in options else "full")
        assert "tune" not in options or tuning.lora_rank == options["lora_rank"]


def test_swift_parses_every_export(monkeypatch):
    swift = pytest.importorskip("swift.arguments")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(swift.SftArguments, "__post_init__", lambda _: None)
    for files, options, plan in exports("ms-swift"):
        (made,) = transformers.HfArgumentParser((swift.SftArguments,)).parse_args_into_dataclasses(arguments(files))
        assert made.max_length == plan.sequence
        assert made.tuner_type == ("lora" if "tune" in options else "full")
        assert "tune" not in options or made.lora_rank == options["lora_rank"]


def test_torchtune_validates_every_export():
    config = pytest.importorskip("torchtune.config")
    omegaconf = pytest.importorskip("omegaconf")
    for files, options, plan in exports("torchtune"):
        made = omegaconf.OmegaConf.create(files["torchtune.yaml"])
        del made.tokenizer  # of which the component is the user's to say
        if "bitsandbytes" not in made.optimizer._component_:
            config.validate(made)
        assert made.batch_size == plan.micro_batch_size
        assert "tune" not in options or made.model.lora_rank == options["lora_rank"]


def test_torchtune_has_every_builder():
    getter = pytest.importorskip("torchtune.config._utils")
    torchtune = pytest.importorskip("gpuscale.launch.torchtune")
    for component in torchtune._components().values():
        table, _, builder = component.rpartition(".")
        assert callable(getter._get_component_from_path(component)), component
        found = getter._get_component_from_path(f"{table}.lora_{builder}")
        assert "quantize_base" in inspect.signature(found).parameters, component


def test_automodel_knows_the_fields_of_its_adapters():
    lora = pytest.importorskip("nemo_automodel.components._peft.lora")
    yaml = pytest.importorskip("yaml")
    for files, options, _ in exports("automodel"):
        peft = yaml.safe_load(files["automodel.yaml"]).get("peft")
        assert (peft is not None) is ("tune" in options)
        if peft is not None:
            assert peft.pop("_target_").endswith(".PeftConfig")
            assert lora.PeftConfig(**peft).dim == options["lora_rank"]


def test_a_wrong_name_is_refused():
    """The tests above can fail."""
    trl = pytest.importorskip("trl")
    scripts = pytest.importorskip("trl.scripts.utils")
    parser = scripts.TrlParser((scripts.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    with pytest.raises(ValueError, match="lora_rnk"):
        parser.parse_args_and_config(["--lora_rnk", "8", "--output_dir", "x", "--bf16", "False"])
