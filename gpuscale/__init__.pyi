"""What `gpuscale` has, for type checkers and editors. Made by tests/update_stub.py."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from gpuscale.planning.jobs import Presets
from pathlib import Path
from typing import Any
from gpuscale.calibration.calibrate import Calibration as Calibration, calibrate as calibrate
from gpuscale.collectives.estimate import CollectiveEstimate as CollectiveEstimate, Siblings as Siblings, price_collective as price_collective
from gpuscale.doctor import Checkup as Checkup, check_up as check_up
from gpuscale.errors import GpuscaleError as GpuscaleError, InputError as InputError, NoAnswerError as NoAnswerError
from gpuscale.explain.advice import Advice as Advice, Decisions as Decisions, advise as advise
from gpuscale.explain.budget import MemoryBudget as MemoryBudget, MemoryTimeline as MemoryTimeline, memory_budget as memory_budget, memory_timeline as memory_timeline
from gpuscale.explain.choice import PlanComparison as PlanComparison, compare as compare
from gpuscale.explain.explanation import Explanation as Explanation
from gpuscale.explain.schedule import Schedule as Schedule, schedule as schedule, schedule_of_durations as schedule_of_durations
from gpuscale.explain.traffic import TrafficReport as TrafficReport, traffic_of as traffic_of
from gpuscale.fleets.ways import FleetResult as FleetResult
from gpuscale.gpubench.calibrate import Calibrated as Calibrated, calibrate_gpu as calibrate_gpu
from gpuscale.importers.assemble import ImportedCluster as ImportedCluster, import_cluster as import_cluster
from gpuscale.launch.check import CheckResult as CheckResult, Finding as Finding
from gpuscale.launch.diagnosis import Diagnosis as Diagnosis
from gpuscale.launch.export import Export as Export, export as export
from gpuscale.launch.read import read_launch as read_launch
from gpuscale.launch.settings import LaunchJob as LaunchJob
from gpuscale.launch.subject import LaunchEstimate as LaunchEstimate, Subject as Subject, estimate_file as estimate_file
from gpuscale.planning.calibrating import CalibratedRun as CalibratedRun, save_site as save_site
from gpuscale.planning.placement import Placement as Placement
from gpuscale.planning.plans import BenchResult as BenchResult, bench as bench
from gpuscale.planning.recipes import Recipe as Recipe, all_recipes as all_recipes, find_recipe as find_recipe
from gpuscale.presets.hardware import all_clusters as all_clusters, all_gpus as all_gpus, load_cluster as load_cluster, load_gpu as load_gpu
from gpuscale.presets.models import all_models as all_models, load_model as load_model
from gpuscale.render.answers import report as report
from gpuscale.results import Estimate as Estimate, PlanResult as PlanResult, PlanRow as PlanRow
from gpuscale.rooflines import Roofline as Roofline, roofline as roofline
from gpuscale.scaling.batches import BatchSize as BatchSize
from gpuscale.scaling.sizing import Size as Size
from gpuscale.specs.cluster import ClusterSpec as ClusterSpec
from gpuscale.specs.failures import Study as Study
from gpuscale.specs.gpu import GpuSpec as GpuSpec
from gpuscale.specs.model import ModelSpec as ModelSpec
from gpuscale.studies.answers import Answered as Answered
from gpuscale.studies.query import read_results as read_results
from gpuscale.studies.run import sweep as sweep
from gpuscale.training.failures import all_studies as all_studies, load_study as load_study
from gpuscale.training.goodput import Goodput as Goodput
from gpuscale.training.stragglers import Stragglers as Stragglers
from gpuscale.training.totals import TrainTime as TrainTime
from gpuscale.trials import Tuning as Tuning, tune as tune
from gpuscale.validation.scores import Validation as Validation, validate as validate
from gpuscale.version import __version__ as __version__

def batch_size(
    model: str | Path | ModelSpec | None = None, gpus: int | str | Sequence[int] | None = None, tokens: Any = None, *,
    noise_scale: float | str | None = None, gradient_norm: Any = None, layout: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    cluster: str | Path | ClusterSpec | Sequence[str | Path | ClusterSpec] = 'dgx-h100-superpod',
    seq: int | str | Sequence[int | str] | None = None, gbs: int | str | Sequence[int | str] | None = None,
    set: str | Sequence[str] | None = None, framework: str | Sequence[str] = 'megatron-lm',
    precision: str | Sequence[str] | None = None, tune: str = 'full', method: str = 'sft', teacher: str | None = None,
    lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str | Sequence[str] = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | Sequence[str] | None = None,
    cp_comm: str | Sequence[str] | None = None, axis_order: str | Sequence[str] | None = None,
    pipeline_split: str | Sequence[str] | None = None, overlap: str | Sequence[str] | None = None,
    cuda_graphs: str | Sequence[str] | None = None, dispatcher: str | Sequence[str] | None = None,
    routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | Sequence[str] | None = None, attention: str | None = None, compile: str | None = None,
    tower: str | None = None, sharp: str = 'off', nvls: str = 'on', calibration: str | Path | None = None,
    tp: int | str | Sequence[int] | None = None, sp: bool | str | None = None,
    pp: int | str | Sequence[int] | None = None, vpp: int | str | Sequence[int] | None = None,
    cp: int | str | Sequence[int] | None = None, ep: int | str | Sequence[int] | None = None,
    etp: int | str | Sequence[int] | None = None, dp: int | str | Sequence[int] | None = None,
    zero: int | str | Sequence[int] | None = None, shard: int | str | Sequence[int] | None = None,
    micro_batch_size: int | str | Sequence[int] | None = None, recompute: str | Sequence[str] | None = None,
    schedule: str | Sequence[str] | None = None, space: str = 'default', objective: str | None = None,
    gpu_hour_price: float | str | Mapping[str, float] | Sequence[str] | None = None,
    train_tokens: float | str | None = None, price_term: str | None = None,
    rate: str | Mapping[str, float] | Sequence[str] | None = None, max_memory: float | str | None = None,
    min_mfu: float | str | None = None, max_step_time: float | str | None = None, max_days: float | str | None = None,
    max_cost: float | str | None = None, tight: bool = False, failure_rate: float | str | None = None,
    checkpoint: str = 'async', checkpoint_interval: float | str | None = None,
    checkpoint_bandwidth: float | str | None = None, detection_time: float | str | None = None,
    restart_time: float | str | None = None, repair_time: float | str | None = None, spares: int | None = None,
    elastic: bool = False,
) -> BatchSize:
    """Return up to which batch a training wastes few tokens, and what batches around it take, each with its best plan.

    Args:
        model, gpus: as in `plan`; several GPU counts are compared.
        tokens: tokens that the training takes with tiny batches, such as `15e12` or `"15T"`.
        noise_scale: the gradient noise scale that was measured, in tokens, in place of a law.
        gradient_norm: two pairs of a batch in tokens and the norm of its gradient, `{"512k": 0.9, "4M": 0.5}` or
            `["512k=0.9", "4M=0.5"]`, of which it is worked out.
        layout: `tp`, `pp` and the like in one piece: name -> values that the plans may have.
        progress: told before each plan: how many are done, how many there are, and its batch.
        options: `gbs` names the batches to look at.

    Raises:
        InputError: unusable input.
        NoAnswerError: no batch has a plan.
    """

def calibrate_run(
    logs: Sequence[Path], model: str | Path | ModelSpec, gpus: int, layout: Mapping[str, Any] | None = None, *,
    calibration: str | Path | None = None, cluster: str | Path | ClusterSpec = 'dgx-h100-superpod',
    seq: int | str | None = None, gbs: int | str | None = None, set: str | Sequence[str] | None = None,
    framework: str = 'megatron-lm', precision: str | None = None, tune: str = 'full', method: str = 'sft',
    teacher: str | None = None, lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | None = None, cp_comm: str | None = None,
    axis_order: str | None = None, pipeline_split: str | None = None, overlap: str | None = None,
    cuda_graphs: str | None = None, dispatcher: str | None = None, routing: str | None = None,
    transport: str | None = None, reshard: str | None = None, grad_reduce: str | None = None,
    attention: str | None = None, compile: str | None = None, tower: str | None = None, sharp: str = 'off',
    nvls: str = 'on', tp: int = 1, sp: bool | None = None, pp: int = 1, vpp: int | None = None, cp: int = 1,
    ep: int = 1, etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int = 1, recompute: str = 'none', schedule: str = '1f1b',
) -> CalibratedRun:
    """Fit a site's factors to logs of one job; `save_site` writes them.

    Args:
        logs: logs of training runs, or traces of PyTorch's profiler.
        model, gpus, layout, options: what ran, as `estimate` takes it.
        calibration: an earlier calibration, to whose runs these are added.

    Raises:
        InputError: a log that cannot be read or contradicts the job, or unusable options.
    """

def check(
    plan_file: str | Path | None = None, *, launch_files: Sequence[str | Path] = (),
    variables: Mapping[str, str] | None = None, layout: Mapping[str, Any] | None = None,
    baseline: str | Path | None = None, max_memory: float | str | None = None, min_mfu: float | str | None = None,
    max_step_time: float | str | None = None, max_regression: float | str | None = None,
    model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> CheckResult:
    """Say whether a job may launch.

    Args:
        plan_file: a plan file, as `gpuscale plan -o` writes it; without one `model` and `gpus` are needed, or the
            baseline itself is checked.
        launch_files, variables: as `read_launch` takes them; the job that they state is checked.
        layout: `tp`, `pp` and the like in one piece, by name.
        baseline: a plan file whose prediction this one is held against.
        max_memory: of a GPU: `70GiB`, or `90%` of what it has; a number is in GiB.
        min_mfu: `38%`, or 38.
        max_step_time: `12s`, or 12.
        max_regression: by which time per token or memory may exceed the baseline's; `5%` where nothing is said.
        options: they go before those of the file.

    Raises:
        InputError: a file that cannot be read, or unusable input.
    """

def decide(
    *, model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None,
) -> Decisions:
    """Return the tables by which one decides before there is a plan, judged as far as the job is known.

    Args:
        options: of the job; without a model only its GPUs and cluster.

    Raises:
        InputError: options of a job without a model, or unusable input.
    """

def diagnose(
    text: str, plan_file: str | Path | None = None, *, launch_files: Sequence[str | Path] = (),
    variables: Mapping[str, str] | None = None, layout: Mapping[str, Any] | None = None,
    spelled: Callable[[str, Mapping[str, Any]], Sequence[str]] | None = None,
    model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> Diagnosis:
    """Say what an error text of a framework means, and what a job would need so as not to have it.

    Args:
        text: what was printed, with or without what stands around it; of at most 1 MiB.
        plan_file, launch_files, variables, layout, options: the job that failed, as `check` takes it; without them
            only the numbers of the text are known.
        spelled: from a command and options that change to its arguments for this job; without it no command is said.

    Raises:
        InputError: a text too long, files that cannot be read, or unusable options.
    """

def estimate(
    model: str | Path | ModelSpec, gpus: int, layout: Mapping[str, Any] | None = None, *, despite_rules: bool = False,
    cluster: str | Path | ClusterSpec = 'dgx-h100-superpod', seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str = 'megatron-lm', precision: str | None = None,
    tune: str = 'full', method: str = 'sft', teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str = 'adam', optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str = 'fp32', moment_dtype: str = 'fp32',
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str = 'off', nvls: str = 'on', calibration: str | Path | None = None, tp: int = 1, sp: bool | None = None,
    pp: int = 1, vpp: int | None = None, cp: int = 1, ep: int = 1, etp: int | None = None, dp: int | None = None,
    zero: int | None = None, shard: int | None = None, micro_batch_size: int = 1, recompute: str = 'none',
    schedule: str = '1f1b',
) -> Estimate:
    """Evaluate one layout.

    Args:
        layout: `tp`, `pp`, `micro_batch_size`, `recompute` and the like in one piece, by name.
        despite_rules: also one that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: unusable input, or a layout that breaks a rule; the message names every rule it breaks.
    """

def estimate_launch(
    launch_files: Sequence[str | Path], options: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None, variables: Mapping[str, str] | None = None, *, despite_rules: bool = False,
    texts: Mapping[str, str] | None = None, model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> LaunchEstimate:
    """Evaluate the job that launch files state.

    Args:
        launch_files, variables, texts: as in `read_launch`.
        options, layout: options of the job, and of the layout, in one piece each, by name; they and `more` replace
            what the files say.
        despite_rules: also a layout that the framework's rules refuse.

    Raises:
        InputError: as `read_launch` and `estimate` raise it; degrees that contradict the GPUs.
    """

def explain_plan(
    plan_file: str | Path | None = None, *, layout: Mapping[str, Any] | None = None,
    launch_files: Sequence[str | Path] | None = None, variables: Mapping[str, str] | None = None,
    despite_rules: bool = False, model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> Explanation:
    """Explain one plan: of a file, of launch files, or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        layout: `tp`, `pp` and the like in one piece, by name.
        launch_files, variables: as in `gpuscale.estimate_launch`.
        despite_rules: also a layout that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: two sources of a plan, none, unusable input, or a layout that breaks a rule.
    """

def fleet(
    model: str | Path | ModelSpec, cluster: str | Path | ClusterSpec, *, pins: Mapping[str, Any] | None = None,
    seq: int | str | None = None, gbs: int | str | None = None, set: str | Sequence[str] | None = None,
    framework: str = 'megatron-lm', precision: str | None = None, tune: str = 'full', method: str = 'sft',
    teacher: str | None = None, lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | None = None, cp_comm: str | None = None,
    axis_order: str | None = None, pipeline_split: str | None = None, overlap: str | None = None,
    cuda_graphs: str | None = None, dispatcher: str | None = None, routing: str | None = None,
    transport: str | None = None, reshard: str | None = None, grad_reduce: str | None = None,
    attention: str | None = None, compile: str | None = None, tower: str | None = None, sharp: str = 'off',
    nvls: str = 'on', calibration: str | Path | None = None, tp: int | str | Sequence[int] | None = None,
    sp: bool | str | None = None, pp: int | str | Sequence[int] | None = None,
    vpp: int | str | Sequence[int] | None = None, cp: int | str | Sequence[int] | None = None,
    ep: int | str | Sequence[int] | None = None, etp: int | str | Sequence[int] | None = None,
    dp: int | str | Sequence[int] | None = None, zero: int | str | Sequence[int] | None = None,
    shard: int | str | Sequence[int] | None = None, micro_batch_size: int | str | Sequence[int] | None = None,
    recompute: str | Sequence[str] | None = None, schedule: str | Sequence[str] | None = None,
    gpu_hour_price: float | str | Mapping[str, float] | Sequence[str] | None = None, price_term: str | None = None,
    rate: str | Mapping[str, float] | Sequence[str] | None = None, tight: bool = False, inner_steps: int = 100,
    outer_bits: int = 16, fragments: int | None = None, outer_delay: int = 1,
) -> FleetResult:
    """Compare the ways to train `model` on a cluster of unlike nodes.

    Args:
        model: as in `plan`.
        cluster: a cluster file with `[[pools]]`; all of its GPUs are there to be used.
        pins: `tp`, `pp` and the like in one piece, as in `plan`; they hold for every pool.
        options: a price may name a pool: `gpu_hour_price="h100=2.5"`; `inner_steps`, `outer_bits`, `fragments` and
            `outer_delay` are of pools that long lines join.

    Raises:
        InputError: unusable input, or a cluster without pools.
        NoAnswerError: nothing fits, in no way.
    """

def goodput(
    subject: Subject, *, run_days: float | str | None = None, rates: Mapping[str, float] | None = None,
    failure_rate: float | str | None = None, checkpoint: str = 'async', checkpoint_interval: float | str | None = None,
    checkpoint_bandwidth: float | str | None = None, detection_time: float | str | None = None,
    restart_time: float | str | None = None, repair_time: float | str | None = None, spares: int | None = None,
    elastic: bool = False,
) -> Goodput:
    """Find how often to write checkpoints, and which share of the time counts then.

    Args:
        subject: a plan, as `gpuscale.read_subject` reads it.
        run_days: length of the training; 30 by default.
        rates: rates of `presets/rates/recovery.toml` to replace, by name.

    Raises:
        InputError: unusable options.
        NoAnswerError: the job fails before it gets anywhere.
    """

def place_ranks(
    gpus: int | None = None, layout: Mapping[str, Any] | None = None, *, plan_file: str | Path | None = None,
    best: bool = False, model: str | Path | ModelSpec | None = None, hosts: str | Path | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> Placement:
    """Place the ranks of a layout on a cluster: where the groups of each axis lie, and what they share.

    Args:
        gpus: GPUs of the job; may be left out with a plan file.
        layout: degrees by name (`tp`, `pp`, `cp`, `ep`, `etp`, `dp`, and for `best` any that `estimate` knows).
        plan_file: a plan file, as `gpuscale plan -o` writes it; what else is given replaces its entries.
        best: look for a better order; with a model, or a plan file, by its step time.
        model: name or path of a model; used for `best` alone.
        hosts: file with one name of a machine per line.
        options: those of `gpuscale.request.PLACING` (orders left out are those of the plan file, or else the usual
            one), and for `best` all of `JobOptions` that the step time depends on.

    Raises:
        InputError: unusable input: degrees that do not multiply to the GPUs, an unknown axis, too few hosts, or what
            only the step-time model reads without one.
    """

def plan(
    model: str | Path | ModelSpec | None = None, gpus: int | str | Sequence[int] | None = None, *,
    pins: Mapping[str, Any] | None = None, presets: Presets | None = None,
    cluster: str | Path | ClusterSpec | Sequence[str | Path | ClusterSpec] = 'dgx-h100-superpod',
    seq: int | str | Sequence[int | str] | None = None, gbs: int | str | Sequence[int | str] | None = None,
    set: str | Sequence[str] | None = None, framework: str | Sequence[str] = 'megatron-lm',
    precision: str | Sequence[str] | None = None, tune: str = 'full', method: str = 'sft', teacher: str | None = None,
    lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str | Sequence[str] = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | Sequence[str] | None = None,
    cp_comm: str | Sequence[str] | None = None, axis_order: str | Sequence[str] | None = None,
    pipeline_split: str | Sequence[str] | None = None, overlap: str | Sequence[str] | None = None,
    cuda_graphs: str | Sequence[str] | None = None, dispatcher: str | Sequence[str] | None = None,
    routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | Sequence[str] | None = None, attention: str | None = None, compile: str | None = None,
    tower: str | None = None, sharp: str = 'off', nvls: str = 'on', calibration: str | Path | None = None,
    tp: int | str | Sequence[int] | None = None, sp: bool | str | None = None,
    pp: int | str | Sequence[int] | None = None, vpp: int | str | Sequence[int] | None = None,
    cp: int | str | Sequence[int] | None = None, ep: int | str | Sequence[int] | None = None,
    etp: int | str | Sequence[int] | None = None, dp: int | str | Sequence[int] | None = None,
    zero: int | str | Sequence[int] | None = None, shard: int | str | Sequence[int] | None = None,
    micro_batch_size: int | str | Sequence[int] | None = None, recompute: str | Sequence[str] | None = None,
    schedule: str | Sequence[str] | None = None, space: str = 'default', objective: str | None = None,
    pareto: str | Sequence[str] | None = None,
    gpu_hour_price: float | str | Mapping[str, float] | Sequence[str] | None = None,
    train_tokens: float | str | None = None, price_term: str | None = None,
    rate: str | Mapping[str, float] | Sequence[str] | None = None, max_memory: float | str | None = None,
    min_mfu: float | str | None = None, max_step_time: float | str | None = None, max_days: float | str | None = None,
    max_cost: float | str | None = None, find: str | None = None, top: int | None = None, unfold: bool = False,
    risk: float | None = None, tight: bool = False, why: str | Mapping[str, Any] | None = None,
    recipe: str | None = None,
) -> PlanResult:
    """Find the best ways to train `model` on `gpus` GPUs.

    Args:
        model: name of a preset, path of a model file, or path of a Hugging Face `config.json` or its folder; a `recipe`
            has one, and `gpus`.
        gpus: GPUs of the job; a list (`"256,512"`, `[256, 512]`) or a range (`"256..1024"`) compares several.
        pins: `tp`, `pp` and the like in one piece: name -> values that it may take.
        presets: what was read for other questions.
        options: of the layout the values that it may have: `tp=8`, `pp="4..8"`, `ep=[1, 8]`, `cp="!16"`. Of options
            that take several values all combinations are searched. None is not given.

    Raises:
        InputError: unusable input, or pins that contradict each other or every rule.
        NoAnswerError: legal layouts, none of which fits in memory or meets the constraints; the message names the
            nearest miss.
    """

def read_subject(
    plan_file: Path | None = None, options: Mapping[str, Any] | None = None, layout: Mapping[str, Any] | None = None,
    launch_files: Sequence[str | Path] | None = None, variables: Mapping[str, str] | None = None, *,
    despite_rules: bool = False, model: str | Path | ModelSpec | None = None, gpus: int | None = None,
    cluster: str | Path | ClusterSpec | None = None, seq: int | str | None = None, gbs: int | str | None = None,
    set: str | Sequence[str] | None = None, framework: str | None = None, precision: str | None = None,
    tune: str | None = None, method: str | None = None, teacher: str | None = None, lengths: str | None = None,
    packing: bool | None = None, lora_rank: int | None = None, lora_targets: str | Sequence[str] | None = None,
    lora_experts: bool | None = None, lora_dropout: bool | None = None, train: str | Sequence[str] | None = None,
    base_dtype: str | None = None, optimizer: str | None = None, optimizer_rank: int | None = None,
    grad_dtype: str | None = None, master_dtype: str | None = None, moment_dtype: str | None = None,
    swiglu_input_dtype: str | None = None, loss: str | None = None, vocab_multiple: int | None = None,
    memory_limit_gib: float | str | None = None, moe_imbalance: float | None = None, gpus_per_node: int | None = None,
    offload: str | None = None, cp_comm: str | None = None, axis_order: str | None = None,
    pipeline_split: str | None = None, overlap: str | None = None, cuda_graphs: str | None = None,
    dispatcher: str | None = None, routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | None = None, attention: str | None = None, compile: str | None = None, tower: str | None = None,
    sharp: str | None = None, nvls: str | None = None, calibration: str | Path | None = None, tp: int | None = None,
    sp: bool | None = None, pp: int | None = None, vpp: int | None = None, cp: int | None = None, ep: int | None = None,
    etp: int | None = None, dp: int | None = None, zero: int | None = None, shard: int | None = None,
    micro_batch_size: int | None = None, recompute: str | None = None, schedule: str | None = None,
) -> Subject:
    """Return the plan of a file, of launch files or of arguments, which replace what a file says.

    Args:
        plan_file: as `gpuscale plan -o` writes it.
        options, layout: options of the job, and of the layout, in one piece each, by name.
        launch_files, variables: as in `gpuscale.estimate_launch`.
        despite_rules: also a layout that the framework's rules refuse, as a fork of it may run.

    Raises:
        InputError: two sources, none, or unusable input.
    """

def size(
    model: str | Path | ModelSpec | None = None, gpus: int | None = None, tokens: Any = None, *,
    days: float | str | None = None, budget: float | str | None = None, layout: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None, cluster: str | Path | ClusterSpec = 'dgx-h100-superpod',
    seq: int | str | None = None, gbs: int | str | None = None, set: str | Sequence[str] | None = None,
    framework: str = 'megatron-lm', precision: str | None = None, tune: str = 'full', method: str = 'sft',
    teacher: str | None = None, lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | None = None, cp_comm: str | None = None,
    axis_order: str | None = None, pipeline_split: str | None = None, overlap: str | None = None,
    cuda_graphs: str | None = None, dispatcher: str | None = None, routing: str | None = None,
    transport: str | None = None, reshard: str | None = None, grad_reduce: str | None = None,
    attention: str | None = None, compile: str | None = None, tower: str | None = None, sharp: str = 'off',
    nvls: str = 'on', calibration: str | Path | None = None, tp: int | str | Sequence[int] | None = None,
    sp: bool | str | None = None, pp: int | str | Sequence[int] | None = None,
    vpp: int | str | Sequence[int] | None = None, cp: int | str | Sequence[int] | None = None,
    ep: int | str | Sequence[int] | None = None, etp: int | str | Sequence[int] | None = None,
    dp: int | str | Sequence[int] | None = None, zero: int | str | Sequence[int] | None = None,
    shard: int | str | Sequence[int] | None = None, micro_batch_size: int | str | Sequence[int] | None = None,
    recompute: str | Sequence[str] | None = None, schedule: str | Sequence[str] | None = None, space: str = 'default',
    objective: str | None = None, gpu_hour_price: float | str | Mapping[str, float] | Sequence[str] | None = None,
    train_tokens: float | str | None = None, price_term: str | None = None,
    rate: str | Mapping[str, float] | Sequence[str] | None = None, max_memory: float | str | None = None,
    min_mfu: float | str | None = None, max_step_time: float | str | None = None, max_days: float | str | None = None,
    max_cost: float | str | None = None, tight: bool = False, failure_rate: float | str | None = None,
    checkpoint: str = 'async', checkpoint_interval: float | str | None = None,
    checkpoint_bandwidth: float | str | None = None, detection_time: float | str | None = None,
    restart_time: float | str | None = None, repair_time: float | str | None = None, spares: int | None = None,
    elastic: bool = False,
) -> Size:
    """Return which model GPUs train in a time or for a budget; or the fewest GPUs that train a model by a deadline.

    Args:
        model, tokens: what is trained, where GPUs are asked for; `days` is the deadline then, failures included.
        gpus: GPUs that are there, where a model is asked for.
        days: wall time.
        budget: money [USD], in place of the GPUs or of the days.
        layout: `tp`, `pp` and the like in one piece: name -> values that the plans may have.
        progress: told before each plan: how many are done, about how many there are, and what it is of.
        options: without `gbs` the batch is at most the one that costs 20 % more tokens (`batch_size`).

    Raises:
        InputError: unusable input, or none of the combinations above.
        NoAnswerError: nothing fits into the GPUs, the time or the budget.
    """

def stragglers(
    subject: Subject, *, restart_time: float | None = None, slow_gpu: float | str | None = None,
    slow_node: float | str | None = None, slow_host: float | str | None = None, slow_rail: float | str | None = None,
    packet_loss: float | str | None = None, power_cap: float | str | None = None,
) -> Stragglers:
    """Say what slow parts cost a plan, and whether it is cheaper to leave them out.

    Args:
        subject: a plan, as `gpuscale.read_subject` reads it.
        restart_time: seconds of a restart, after which a spare has taken the place of a slow node.
        options: what is slow; a usual selection where none is given.

    Raises:
        InputError: unusable options.
    """

def train_time(
    model: str | Path | ModelSpec | None = None, gpus: int | str | Sequence[int] | None = None, tokens: Any = None, *,
    days: float | str | None = None, layout: Mapping[str, Any] | None = None, as_given: bool = False,
    plan_file: Path | None = None, launch_files: Sequence[str | Path] | None = None,
    variables: Mapping[str, str] | None = None, despite_rules: bool = False,
    progress: Callable[[int, int, str], None] | None = None, presets: Presets | None = None,
    cluster: str | Path | ClusterSpec | Sequence[str | Path | ClusterSpec] = 'dgx-h100-superpod',
    seq: int | str | Sequence[int | str] | None = None, gbs: int | str | Sequence[int | str] | None = None,
    set: str | Sequence[str] | None = None, framework: str | Sequence[str] = 'megatron-lm',
    precision: str | Sequence[str] | None = None, tune: str = 'full', method: str = 'sft', teacher: str | None = None,
    lengths: str | None = None, packing: bool | None = None, lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None, lora_experts: bool | None = None, lora_dropout: bool | None = None,
    train: str | Sequence[str] | None = None, base_dtype: str | None = None, optimizer: str = 'adam',
    optimizer_rank: int | None = None, grad_dtype: str | None = None, master_dtype: str = 'fp32',
    moment_dtype: str | Sequence[str] = 'fp32', swiglu_input_dtype: str | None = None, loss: str | None = None,
    vocab_multiple: int | None = None, memory_limit_gib: float | str | None = None, moe_imbalance: float = 1.0,
    gpus_per_node: int | None = None, offload: str | Sequence[str] | None = None,
    cp_comm: str | Sequence[str] | None = None, axis_order: str | Sequence[str] | None = None,
    pipeline_split: str | Sequence[str] | None = None, overlap: str | Sequence[str] | None = None,
    cuda_graphs: str | Sequence[str] | None = None, dispatcher: str | Sequence[str] | None = None,
    routing: str | None = None, transport: str | None = None, reshard: str | None = None,
    grad_reduce: str | Sequence[str] | None = None, attention: str | None = None, compile: str | None = None,
    tower: str | None = None, sharp: str = 'off', nvls: str = 'on', calibration: str | Path | None = None,
    tp: int | str | Sequence[int] | None = None, sp: bool | str | None = None,
    pp: int | str | Sequence[int] | None = None, vpp: int | str | Sequence[int] | None = None,
    cp: int | str | Sequence[int] | None = None, ep: int | str | Sequence[int] | None = None,
    etp: int | str | Sequence[int] | None = None, dp: int | str | Sequence[int] | None = None,
    zero: int | str | Sequence[int] | None = None, shard: int | str | Sequence[int] | None = None,
    micro_batch_size: int | str | Sequence[int] | None = None, recompute: str | Sequence[str] | None = None,
    schedule: str | Sequence[str] | None = None, space: str = 'default', objective: str | None = None,
    gpu_hour_price: float | str | Mapping[str, float] | Sequence[str] | None = None,
    train_tokens: float | str | None = None, price_term: str | None = None,
    rate: str | Mapping[str, float] | Sequence[str] | None = None, max_memory: float | str | None = None,
    min_mfu: float | str | None = None, max_step_time: float | str | None = None, max_days: float | str | None = None,
    max_cost: float | str | None = None, risk: float | None = None, tight: bool = False,
    failure_rate: float | str | None = None, checkpoint: str = 'async', checkpoint_interval: float | str | None = None,
    checkpoint_bandwidth: float | str | None = None, detection_time: float | str | None = None,
    restart_time: float | str | None = None, repair_time: float | str | None = None, spares: int | None = None,
    elastic: bool = False,
) -> TrainTime:
    """Return what a whole training takes: time, GPU-hours, money, energy, carbon.

    Args:
        model, gpus: as in `plan`; a plan file or launch files may state them instead.
        tokens: tokens of the training, such as `15e12` or `"15T"`.
        days: the wall time instead, in which as many tokens are trained as fit.
        layout: `tp`, `pp` and the like in one piece, by name; of a search the values that they may have.
        as_given: take the layout as `estimate` does, what is left out at its default, instead of searching.
        plan_file: a plan, or a training of several phases (docs/train-time.md), each of which is searched for.
        launch_files, variables: where job and layout stand; nothing is searched then.
        despite_rules: also a layout that the framework's rules refuse; nothing is searched then.
        progress: told before each phase: how many are done, how many there are, and its name.
        presets: what was read for other searches.

    Raises:
        InputError: unusable input, or neither or both of `tokens` and `days`.
        NoAnswerError: no layout fits, as in `plan`; or the job fails before it gets anywhere.
    """
