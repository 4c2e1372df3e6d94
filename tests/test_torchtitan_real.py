"""Exports for torchtitan, parsed and checked by torchtitan itself, on the CPU.

Needs the extra `frameworks`; run with torchtitan 0.3.0 and torch 2.13.
"""

import shlex
import sys
from contextlib import suppress

import pytest
from round_trips import PRESETS, plans, predicted

from gpuscale.architecture.parameters import model_parameters
from gpuscale.errors import NoAnswerError
from gpuscale.launch.export import exported, save_export
from gpuscale.layouts.stages import stage_sizes
from gpuscale.presets.tools import load_tool

pytest.importorskip("torchtitan")
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


FUNCTIONS = load_tool("torchtitan").configs


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """A function that exports a plan and returns it as torchtitan's own parser does."""
    from torchtitan.components.quantization import float8, mx, nvfp4  # noqa: PLC0415
    from torchtitan.config.manager import ConfigManager  # noqa: PLC0415

    for module in (float8, mx, nvfp4):
        monkeypatch.setattr(module, "has_cuda_capability", lambda *_: True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def parse(estimate):
        result = exported(estimate, "torchtitan")
        save_export(result, tmp_path, force=True)
        sys.modules.pop("plan_config", None)
        sys.path_importer_cache.clear()
        words = shlex.split((tmp_path / "run.sh").read_text().replace("\\\n", " "), comments=True)
        with suppress(FileNotFoundError):
            (tmp_path / "__pycache__").rename(tmp_path / f"old{len(list(tmp_path.iterdir()))}")
        return ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])

    return parse


def _some(count):
    found = 0
    for options, layout in plans("torchtitan", 20 * count, "real"):
        estimate = predicted(options, layout)
        try:
            exported(estimate, "torchtitan")
        except NoAnswerError:
            continue
        yield estimate
        found += 1
        if found == count:
            return


def test_plans_pass_the_checks_of_torchtitan(parsed):
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class  # noqa: PLC0415
    from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: PLC0415
    from torchtitan.distributed.pipeline_parallel import (  # noqa: PLC0415
        _generate_llm_fqn_per_model_part,
        _get_pipeline_metadata,
    )

    checked = 0
    for estimate in _some(60):
        config, plan = parsed(estimate), estimate.plan
        dims = ParallelDims.from_config(config.parallelism, estimate.gpus)
        assert (dims.tp, dims.pp, dims.cp, dims.ep) == (plan.tp, plan.pp, plan.cp, plan.ep)
        assert dims.dp_replicate * dims.dp_shard == plan.dp
        training = config.training
        assert (training.seq_len, training.global_batch_size) == (plan.sequence, plan.global_batch_size)
        assert training.global_batch_size % (training.local_batch_size * plan.dp) == 0
        model = config.model_spec.model
        model.update_from_config(config=config)
        assert len(model.layers) == PRESETS.model(estimate.job["model"]).layers
        if plan.pp > 1:
            schedule = get_schedule_class(config.parallelism.pipeline_parallel_schedule)
            assert issubclass(schedule, PipelineScheduleMulti) == (plan.vpp > 1)
            parts = config.parallelism.module_fqns_per_model_part
            if parts is None:
                parts = _generate_llm_fqn_per_model_part(*_get_pipeline_metadata(dims, config.parallelism, model))
            sizes = [sum(name.startswith("layers.") for name in part) for part in parts]
            split = estimate.job.get("pipeline_split", "even")
            assert tuple(sizes) == stage_sizes(PRESETS.model(estimate.job["model"]), plan.pp, plan.vpp, split)
        checked += 1
    assert checked == 60


SHAPES = (
    "llama3-8b", "llama2-70b", "mistral-nemo-12b", "llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b",
    "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3", "moonlight-16b-a3b",
)  # fmt: skip


@pytest.mark.parametrize("model", SHAPES)
def test_models_have_the_parameters_that_are_predicted(parsed, model):
    import torch  # noqa: PLC0415

    estimate = predicted({"model": model, "gpus": 8, "framework": "torchtitan", "gbs": 8}, {})
    config = parsed(estimate)
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        built = config.model_spec.model.build()
    own = sum(one.numel() for one in {id(one): one for one in built.parameters()}.values())
    mtp = model_parameters(PRESETS.model(model)).mtp
    assert own == model_parameters(PRESETS.model(model)).total + mtp


@pytest.mark.parametrize("name", FUNCTIONS)
def test_config_functions_are_what_the_reader_takes_them_for(parsed, name):
    import importlib  # noqa: PLC0415

    said = FUNCTIONS[name]
    registry = importlib.import_module(f"torchtitan.models.{said['model.name']}.config_registry")
    config = getattr(registry, name)()
    assert (config.model_spec.name, config.model_spec.flavor) == (said["model.name"], said["model.flavor"])
    kind = type(config.activation_checkpoint).__qualname__
    assert kind == {"selective": "SelectiveAC.Config", "full": "FullAC.Config"}[said["activation_checkpoint.mode"]]
    for key, value in said.items():
        section, _, field = key.partition(".")
        if section in {"training", "parallelism", "compile"}:
            assert getattr(getattr(config, section), field) == value, key
    for section in ("training", "parallelism", "compile"):
        given, usual = getattr(config, section), type(getattr(config, section))()
        names = [one for one in usual.__dataclass_fields__ if getattr(given, one) != getattr(usual, one)]
        assert [one for one in names if f"{section}.{one}" not in said and one != "steps"] == []
