"""Error texts of frameworks: each is known by its own words, and no two claim the same one."""

import json
import random
import re
import time

import pytest
from command import assert_one_message, gpuscale

from gpuscale import diagnose
from gpuscale.errors import InputError
from gpuscale.launch import diagnosis
from gpuscale.launch.diagnosis import ERRORS, KINDS, Divides, find_errors, nearest_legal
from gpuscale.launch.switches import SWITCH_RULES
from gpuscale.rules.check import BY_CODE

OF_CHECK = {
    "world_size", "impossible_model", "contradiction", "out_of_memory", "tight_memory", "out_of_host_memory",
}  # fmt: skip
"""Rules that `check` finds by itself."""

EXAMPLES = {  # error: a text that it is known by, its numbers
    "world_size_of_model": (
        "AssertionError: world size (24) is not divisible by total_model_size (total_model_size=16)",
        {"gpus": 24, "model_size": 16},
    ),
    "world_size_of_degrees": (
        "world size (24) is not divisible by tensor parallel size (8) times pipeline parallel size (2)",
        {"gpus": 24, "tp": 8, "pp": 2},
    ),
    "world_size_of_groups": ("RuntimeError: world_size (24) is not divisible by 16", {"gpus": 24, "model_size": 16}),
    "expert_grid": (
        "RuntimeError: decoder world_size (24) is not divisible by expert_tensor_model_pipeline_parallel size (16)",
        {"gpus": 24, "expert_size": 16},
    ),
    "mesh": (
        "Invalid parallel dims: dp_replicate(1) * dp_shard(4) * cp(1) * tp(8) * pp(2) != WORLD_SIZE(32)",
        {"dp_replicate": 1, "dp_shard": 4, "cp": 1, "tp": 8, "pp": 2, "gpus": 32},
    ),
    "degree_below_one": ("Parallelism degree should be >= 1, except for dp_shard", {}),
    "mesh_beyond_world": (
        "RuntimeError: Mesh should not be bigger than default world size 8, but found 16 ranks!",
        {"gpus": 8, "model_size": 16},
    ),
    "processes": (
        "ValueError: ParallelismConfig total_size (16) does not match num_processes (8). Please adjust",
        {"model_size": 16, "gpus": 8},
    ),
    "stages_and_world": ("num_stages (3) must divide distributed world size (8)", {"pp": 3, "gpus": 8}),
    "heads": (
        "num_attention_heads (40) must be a multiple of tensor_model_parallel_size (16).",
        {"heads": 40, "tp": 16},
    ),
    "kv_heads": (
        "num_query_groups (8) must be a multiple or divisor of tensor_model_parallel_size (12).",
        {"kv_heads": 8, "tp": 12},
    ),
    "heads_over_sequence": (
        "ValueError: Attention head count 40 is not divisible by SP size 16",
        {"heads": 40, "cp": 16},
    ),
    "kv_heads_over_sequence": (
        "ValueError: KV attention head count 8 is not divisible by SP size 12 or vice versa",
        {"kv_heads": 8, "cp": 12},
    ),
    "heads_over_context": ("AssertionError: The number of attention heads needs to be divisible by CP size!", {}),
    "window_over_context": ("The context parallel running configs cannot support sliding window attention!", {}),
    "no_attention": ("ValueError: No dot product attention backend is available for the provided inputs.", {}),
    "sequence_over_context": (
        "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1.",
        {},
    ),
    "sequence_over_mesh": (
        "Sequence length 4100 must be divisible by the product of TP degree\n  (8) and 2 * CP degree (4).",
        {"seq": 4100, "tp": 8, "cp": 4},
    ),
    "sequence_beyond_positions": (
        "max_position_embeddings (2048) must be greater than or equal to seq_length (4096).",
        {"positions": 2048, "seq": 4096},
    ),
    "sequence_slices": (
        "AssertionError: First dimension of the tensor should be divisible by tensor parallel size",
        {},
    ),
    "sequence_parallel_alone": ("ValueError: Can not use sequence paralllelism without tensor parallelism", {}),
    "linear_attention_heads": (
        "self.linear_num_key_heads=16 must be a multiple of linear_head_parallel_size=32 for x",
        {"heads": 16, "ranks": 32},
    ),
    "state_space_groups": ("AssertionError: ngroups must be evenly divisible by tp_size", {}),
    "stages": ("AssertionError: Number of layers should be divisible by the pipeline-model-parallel size", {}),
    "chunks": (
        "num_layers_per_pipeline_rank 20             should be divisible by vp_size 3",
        {"stage_layers": 20, "vpp": 3},
    ),
    "uneven_ends": ("ValueError: number of layers at middle stage: 50 must be divisible bythe middle pipeline", {}),
    "layout_of_stages": (
        "The length of pipeline_model_parallel_layout must be divisible by pipeline_model_parallel_size "
        "(num_stages=10, args.pipeline_model_parallel_size=4)",
        {"stages": 10, "pp": 4},
    ),
    "chunks_without_pipeline": (
        "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1",
        {},
    ),
    "ways_to_chunk": ("No more than one of the following arguments can be set at the same time: --num-layers-per-", {}),
    "interleaving": (
        "number of microbatches (10) is not divisible by pipeline-model-parallel-size (4) when using "
        "interleaved schedule",
        {"microbatches": 10, "pp": 4},
    ),
    "batch": (
        "global batch size (100) is not divisible by micro batch size (2) times data parallel size (8)",
        {"gbs": 100, "micro_batch_size": 2, "dp": 8},
    ),
    "batch_growth": (
        "expected global batch size interval (100) to be divisible by global batch size increment (32)",
        {},
    ),
    "batch_over_mesh": (
        "global batch size must be multiple of local batch size times data-parallel degree (100 % (2 * 8) != 0)",
        {"gbs": 100, "micro_batch_size": 2, "dp": 8},
    ),
    "batch_of_config": (
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 256 != 4 * 8 * 6",
        {"gbs": 256, "micro_batch_size": 4, "accumulation": 8, "dp": 6},
    ),
    "batch_missing": ("AssertionError: Gradient accumulation steps: 0 has to be greater than 0", {}),
    "batch_of_devices": (
        "Global batch size 510 is not divisible by 8 as a result, the batch size would be truncated",
        {"gbs": 510, "dp": 8},
    ),
    "batch_of_two_files": (
        "Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
        "- ds train_batch_size=64 vs hf train_batch_size (calculated)=32",
        {"gbs": 64, "calculated": 32},
    ),
    "experts": ("AssertionError: Number of experts should be a multiple of expert model parallel_size.", {}),
    "experts_of_layer": (
        "Number of experts (60) should be divisible by expert parallel size (8)",
        {"experts": 60, "ep": 8},
    ),
    "no_experts": ("ValueError: num_moe_experts must be non None to use expert-parallel.", {}),
    "experts_without_sp": (
        "During training, performance may degrade if MoE and tensor parallelismare enabled without also "
        "enabling sequence parallelism.",
        {},
    ),
    "experts_in_fp16": ("Expert parallelism is not supported with fp16 training.", {}),
    "expert_overlap": ("overlap_moe_expert_parallel_comm is only supported with expert model parallelism", {}),
    "delayed_wgrad": ("Delaying wgrad compute is only supported with transformer_engine implementation", {}),
    "expert_capacity": ("moe_expert_capacity_factor must be set to use moe_pad_expert_input_to_capacity", {}),
    "expert_balance": ("moe_expert_capacity_factor only works with aux_loss, seq_aux_loss, none load balancing", {}),
    "expert_tensor_parallel": ("AssertionError: Currently we only support ETP=TP or ETP=1", {}),
    "optimizer_instances": ("Data parallel size should be divisible by partial DistOpt shard factor", {}),
    "gather_without_optimizer": (
        "--overlap-param-gather only supported with distributed optimizer or megatron fsdp",
        {},
    ),
    "gather_without_reduce": ("Must use --overlap-param-gather with --overlap-grad-reduce", {}),
    "gather_with_step": (
        "--overlap-param-gather-with-optimizer-step only supported with interleaved pipeline parallelism",
        {},
    ),
    "fsdp2": ("--use-torch-fsdp2 is not supported with pipeline parallelism", {}),
    "fsdp_checkpoint": ("Megatron FSDP only supports fsdp_dtensor checkpoint format", {}),
    "muon_sharded": ("Muon optimizer does not support distributed optimizer for now.", {}),
    "stages_of_zero": ("AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism", {}),
    "zero_stage": ("DeepSpeedConfig: Maximum supported ZeRO stage is 3", {}),
    "tensor_parallel_zero3": ("the compatibility between 'autotp' and 'zero_stage = 3' has not been validated", {}),
    "states_in_bf16": ("bf16_optimizer_states is only supported with ZeRO Stage 1, 2, or 3.", {}),
    "partial_offload": ("Partial offloading only supported for ZeRO Stage 3.", {}),
    "untested_optimizer": (
        'You are using an untested ZeRO Optimizer. Please add <"zero_allow_untested_optimizer": true>',
        {},
    ),
    "zero3_and_device_map": ("DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True`", {}),
    "device_map": ("a model that has been loaded with `device_map='auto'` in any distributed mode.", {}),
    "flat_dtypes": ("ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32", {}),
    "flat_gradients": (
        "ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`",
        {},
    ),
    "hybrid_groups": (
        "ShardingStrategy.HYBRID_SHARD requires explicit specification of process group or device_mesh.",
        {},
    ),
    "recompute_settings": (
        "When using recompute_granularity: full recompute_num_layers must be between 1 and "
        "num_layers_per_pipeline_rank: 20",
        {"stage_layers": 20},
    ),
    "distributed_activations": ("can distribute recomputed activations only across tensor model parallel groups", {}),
    "recompute_expert_activation": ("moe_act in recompute_modules is only supported with moe_grouped_gemm.", {}),
    "recompute_projection": ("mla_up_proj in recompute_modules is only supported with multi_latent_attention.", {}),
    "recompute_modules": ("Invalid choices for recompute_modules: {'attn'}. Allowed modules are: {'mlp'}", {}),
    "recompute_delayed": ("Delayed scaling does not support moe_act and layernorm recompute for fp8.", {}),
    "recompute_shared": ("shared_experts recompute cannot work with --moe-shared-expert-overlap.", {}),
    "offloaded_layers": ("Currently there is no support for Pipeline parallelism with CPU offloading", {}),
    "offloaded_optimizer": (
        "The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`",
        {},
    ),
    "two_offloads": ("fine_grained_activation_offloading cannot be enabled with cpu_offloading.", {}),
    "two_precisions": ("ValueError: Only one of self.fp16: True and self.bf16 True should be True.", {}),
    "two_precisions_of_config": ("bfloat16 and fp16 modes cannot be simultaneously enabled", {}),
    "two_low_precisions": ("--fp4-format and --fp8-format cannot be used simultaneously. Please choose one.", {}),
    "gathered_in_fp8": ("--fp8-param-gather only supported with distributed optimizer, torch fsdp2", {}),
    "no_fp8": (
        "AssertionError: Device compute capability 8.9 or higher required for FP8 execution.",
        {"capability": "8.9"},
    ),
    "no_mxfp8": ("Device compute capability 10.0 or higher required for MXFP8 execution.", {}),
    "fp8_shapes": ("FP8 execution requires the product of all dimensions except the last to be divisible by 8", {}),
    "fp8_blocks": ("FP8 block scaled GEMM requires Hopper and CUDA >= 12.9.", {}),
    "no_bf16": ("ValueError: Your setup doesn't support bf16/gpu.", {}),
    "attention_dtype": ("RuntimeError: FlashAttention only support fp16 and bf16 data type", {}),
    "loss_scale": (
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        {},
    ),
    "tp_overlap": (
        "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled",
        {},
    ),
    "one_connection": (
        "Using tensor model parallelism or context parallelism require setting the environment variable "
        "CUDA_DEVICE_MAX_CONNECTIONS to 1",
        {},
    ),
    "several_connections": ("FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS value large than one", {}),
    "hierarchical_context": ("--hierarchical-context-parallel-sizes must be set when a2a+p2p is used in cp comm", {}),
    "graphs_and_segments": (
        "expandable_segments:True may not be safe when using CUDA Graphs with some specific settings",
        {},
    ),
    "graphs_and_recompute": ("recompute_granularity must not be full when CUDA Graphs are enabled.", {}),
    "async_tp": ("RuntimeError: Async TP requires 'model' in --compile.components and --compile.enable", {}),
    "argument_missing": ("AssertionError: num_layers argument is None", {}),
    "argument_renamed": ("--batch-size argument is no longer valid, use --micro-batch-size instead", {}),
    "not_divisible": ("AssertionError: 152064 is not divisible by 20", {"whole": 152064, "part": 20}),
    "out_of_memory": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", {}),
    "out_of_memory_outside": ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", {}),
    "out_of_memory_of_jax": ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12884901888 bytes.", {}),
    "out_of_host_memory": ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0", {}),
    "device_assert": ("RuntimeError: CUDA error: device-side assert triggered", {}),
    "illegal_access": ("CUDA error: an illegal memory access was encountered", {}),
    "ecc": ("CUDA error: uncorrectable ECC error encountered", {}),
    "no_kernel": ("CUDA error: no kernel image is available for execution on the device", {}),
    "fabric_manager": ("RuntimeError: Error 802: system not yet initialized", {}),
    "timeout": (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)",
        {"operation": "ALLREDUCE"},
    ),
    "heartbeat": ("[PG ID 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds", {}),
    "remote_error": ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", {}),
    "mismatch": ("Detected mismatch between collectives on ranks. Rank 0 is running collective: ALLREDUCE", {}),
    "system_error": ("ncclSystemError: System call (e.g. socket, malloc) failed", {}),
    "cuda_error": ("ncclUnhandledCudaError: Call to CUDA function failed.", {}),
    "internal_error": ("ncclInternalError: Internal check failed.", {}),
    "usage": ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", {}),
    "same_gpu": ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", {"rank": 1, "other": 0}),
    "infiniband": ("NET/IB : Got completion from peer 10.0.0.1<4791> with status=12 opcode=0", {"status": 12}),
    "registration": ("Call to ibv_reg_mr failed with error Cannot allocate memory", {}),
    "no_interface": ("Bootstrap : no socket interface found", {}),
    "connection": ("socketStartConnect: Connect to 10.0.0.1<3000> failed : Connection refused", {}),
    "shared_memory": ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", {}),
    "nvls": ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152", {}),
    "rendezvous": ("The client socket has timed out after 1800000ms while trying to connect to (node0, 29500).", {}),
    "port": ("The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", {}),
    "sharding_of_arrays": (
        "implies that the global size of its dimension 0 should be divisible by 8, but it is equal to 20",
        {"dimension": 0, "part": 8, "whole": 20},
    ),
    "backward_optimizer": ("NotImplementedError: Optimizers in backward is not supported with Expert Parallel.", {}),
    "tied_weights": ("Weight tying is not supported with Pipeline Parallel.", {}),
    "checkpoint_shapes": ("size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096])", {}),
    "several_devices": (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices",
        {},
    ),
    "no_gradient": ("element 0 of tensors does not require grad and does not have a grad_fn", {}),
    "unused_parameters": ("Expected to have finished reduction in the prior iteration before starting a new one.", {}),
    "ready_twice": ("RuntimeError: Expected to mark a variable ready only once.", {}),
    "meta_weights": ("NotImplementedError: Cannot copy out of meta tensor; no data!", {}),
    "gathered_parameters": ("assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()", {}),
    "sharded_module": (
        "ValueError: expected to be in states [<TrainingState.FORWARD_BACKWARD: 2>] but current state is IDLE",
        {},
    ),
    "adapted_modules": ("ValueError: Target modules {'q', 'v'} not found in the base model.", {}),
    "not_a_number": ("AssertionError: Rank 5: found NaN in local grad norm in backward pass", {}),
    "mpi": ("*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort)", {}),
    "flash_attention_gpu": ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", {}),
    "extension": ("RuntimeError: Error building extension 'fused_adam'", {}),
    "library_call": ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", {}),
    "segmentation_fault": ("Signal 11 (SIGSEGV) received by PID 77", {}),
    "device_number": ("RuntimeError: CUDA error: invalid device ordinal", {}),
    "no_driver": ("RuntimeError: Found no NVIDIA driver on your system.", {}),
    "disk": ("OSError: [Errno 28] No space left on device", {}),
    "scheduler": ("slurmstepd: error: *** JOB 7 ON node0 CANCELLED AT 2026-03-02 DUE TO TIME LIMIT ***", {}),
    "interleaving_group": (
        "The number of contiguous micro-batches in a virtual pipeline stageshould range in [PP=6 , M=3]",
        {"pp": 6, "microbatches": 3},
    ),
    "microbatches_of_torch": ("ValueError: Expecting 4 arg_mbs but got 2", {"microbatches": 4, "got": 2}),
    "pipeline_dtype": ("pipeline_dtype must be specified when using pipeline parallelism", {}),
    "chunks_of_program": ("AssertionError: vp_stage must be a kwarg in the provider when using vpp", {}),
    "checkpoint_arguments": (
        "pipeline_model_parallel_size value from checkpoint (1) is not equal to the input argument value (2).",
        {"written": 1, "asked": 2},
    ),
    "recomputed_otherwise": ("Recomputed values for the following tensors have different metadata than before", {}),
    "no_groups": ("ValueError: Default process group has not been initialized, please make sure to call it.", {}),
    "mesh_in_words": ("KeyError: \"Invalid mesh_dim_names ('a',) specified.\"", {}),
    "model_in_words": ("hidden_size (100) must be divisible by num_heads (12)", {"whole": 100, "part": 12}),
    "expert_groups_in_words": ("expert_parallel_size 6 must evenly divide the GPUs", {"ep": 6}),
    "exclusion_in_words": ("The fused loss is not compatible with Pipeline Parallelism", {"parallelism": "Pipeline"}),
    "shapes_in_words": ("RuntimeError: shape '[2, 128]' is invalid for input of size 300", {}),
    "cuda_call": ("RuntimeError: Triton Error [CUDA]: invalid argument", {}),
    "checked_arguments": ('File "/a/training/arguments.py", line 9, in validate_args\nAssertionError', {}),
    "vocabulary_in_words": ("vocab_size 32001 is not divisible by tensor parallel size 4", {"vocab": 32001, "tp": 4}),
    "kv_heads_in_words": ("number of key/value heads (8) must be divisible by tp_size (16)", {"kv_heads": 8, "tp": 16}),
    "heads_over_context_in_words": ("num_heads=40 must be divisible by ulysses size 16", {"heads": 40, "cp": 16}),
    "heads_in_words": (
        "The number of attention heads (40) should be a multiple of the tensor parallel size: 16",
        {"heads": 40, "tp": 16},
    ),
    "width_in_words": ("hidden_size 4097 must be divisible by tp 2", {"width": 4097, "tp": 2}),
    "layers_in_words": ("num_layers (30) must be divisible by the number of stages (4)", {"layers": 30, "pp": 4}),
    "experts_in_words": ("num_experts=60 must be divisible by self.ep_size=8", {"experts": 60, "ep": 8}),
    "sequence_in_words": ("seq_len 4100 must be evenly divided by sp_size 8", {"seq": 4100, "cp": 8}),
    "batch_in_words": ("batch_size 100 must be divisible by the number of GPUs 8", {"gbs": 100, "dp": 8}),
    "world_in_words": ("world_size 24 must be divisible by tp x pp = 16", {"gpus": 24, "model_size": 16}),
    "parts_of_stages": ("AssertionError: Embedding must be specified exactly once", {}),
    "chunks_of_uneven_ends": ("AssertionError: Not enough layers in the first virtual pipeline stage", {}),
    "dispatcher": ("ValueError: DeepEP backend is only supported with flex token dispatcher.", {}),
    "router": (
        "AssertionError: num_moe_experts (60) should be divisible by moe_router_num_groups (8).",
        {"experts": 60, "groups": 8},
    ),
    "expert_bias": ("AssertionError: Bias in Moe is only supported when ETP==1", {}),
    "grouped_gemm": ("AssertionError: Currently GroupedGEMM for MoE only supports bf16 dtype.", {}),
    "experts_in_zero3": ("AssertionError: MoE not supported with Stage 3", {}),
    "low_moments": ("AssertionError: exp_avg_dtype can only be fp32 when not using precision-aware optimizer", {}),
    "accumulation_fusion": ("the custom CUDA extension fused_weight_gradient_mlp_cuda module is not found.", {}),
    "tp_overlap_without_multicast": (
        "AssertionError: toolkit version does not support comm+GEMM overlap with CUDA Multicast.",
        {},
    ),
    "context_attention": ("AssertionError: Context parallelism is only supported by TEDotProductAttention!", {}),
    "graph_settings": ("AssertionError: cuda_graph_scope must not contain both moe and moe_router.", {}),
    "vocabulary_of_ranks": (
        "line 9, in vocab_range_from_global_vocab_size\nAssertionError: 32001 is not divisible by 4",
        {"vocab": 32001, "tp": 4},
    ),
    "heads_of_ranks": (
        "self.num_attention_heads_per_partition = divide(x, y)\nAssertionError: 40 is not divisible by 16",
        {"heads": 40, "tp": 16},
    ),
    "kv_heads_of_ranks": (
        "self.num_query_groups_per_partition = divide(x, y)\nAssertionError: 8 is not divisible by 16",
        {"kv_heads": 8, "tp": 16},
    ),
    "checkpoint_of_other_ranks": (
        "The checkpoint being loaded used a DP world size of 8 but the current world size is 16.",
        {"written": 8, "asked": 16},
    ),
    "checkpoint_keys": ("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.x", {}),
    "checkpoint_file": ("safetensors_rust.SafetensorError: Error while deserializing header: header too large", {}),
    "unsafe_weights": ("_pickle.UnpicklingError: Weights only load failed.", {}),
    "missing_model": ("OSError: x/y is not a local folder and is not a valid model identifier", {}),
    "new_architecture": ("model type `zzz` but Transformers does not recognize this architecture", {}),
    "saved_tensors": ("RuntimeError: Some tensors share memory, this will lead to duplicates", {}),
    "moments_on_host": (
        "CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled 'offload_optimizer': 'cpu'",
        {},
    ),
    "settings_of_config": ("ValueError: invalid literal for int() with base 10: 'auto'", {}),
    "zero3_weights": ("`stage3_gather_16bit_weights_on_model_save` in DeepSpeed config is False.", {}),
    "trace_of_parameters": ("RuntimeError: tracing error at step 42: module id: 7", {}),
    "reduced_twice": ("AssertionError: The parameter 7 has already been reduced.", {}),
    "unused_under_zero": ("this module has parameters that were not used in producing loss", {}),
    "hostfile": ("ValueError: Hostfile is empty or not formatted correctly", {}),
    "dtypes_differ": (
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16",
        {},
    ),
    "scaled_weights": ("ValueError: Attempting to unscale FP16 gradients.", {}),
    "changed_in_place": ("a variable needed for gradient computation has been modified by an inplace operation", {}),
    "wrapped_layers": ("Exception: Could not find the transformer layer class to wrap in the model.", {}),
    "uneven_shards": (
        "dimension 0 (size 30) is not evenly divisible by mesh dimension 0 (size 8).",
        {"whole": 30, "part": 8},
    ),
    "sharded_tensors": ("aten.mm.default: got mixed torch.Tensor and DTensor, need to convert", {}),
    "changed_graph": ("torch._dynamo.exc.Unsupported: call_function", {}),
    "forked_process": ("RuntimeError: Cannot re-initialize CUDA in forked subprocess.", {}),
    "fsdp_arguments": ("ValueError: Using --fsdp xxx together with --deepspeed is not possible", {}),
    "mesh_of_config": ("ValueError: TP cannot be used with pure data parallelism", {}),
    "batch_of_loaders": (
        "the batch size (10) needs to be a round multiple of the number of processes (4).",
        {"gbs": 10, "dp": 4},
    ),
    "generations": (
        "generation_batch_size (12) must be divisible by num_generations (8).",
        {"batch": 12, "generations": 8},
    ),
    "microbatches_of_stage": (
        "ValueError: Batch size 10 must be divisible by microbatch_size 4.",
        {"batch": 10, "microbatch": 4},
    ),
    "quantised_device": ("a model that has been loaded in 8-bit or 4-bit precision on a different device than", {}),
    "quantised_alone": ("ValueError: You cannot perform fine-tuning on purely quantized models.", {}),
    "quantised_moved": ("ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models.", {}),
    "quantised_shapes": ("mat1 and mat2 shapes cannot be multiplied (512x4096 and 1x8388608)", {}),
    "quantised_spread": ("ValueError: Some modules are dispatched on the CPU or the disk.", {}),
    "bitsandbytes": ("RuntimeError: CUDA Setup failed despite GPU being available.", {}),
    "head_width": ("RuntimeError: FlashAttention forward only supports head dimension at most 256", {}),
    "flash_attention_missing": ("the package flash_attn seems to be not installed.", {}),
    "kernel_memory": (
        "out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
        {"required_bytes": 147456, "limit_bytes": 101376},
    ),
    "tasks": (
        "`devices=8`, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` does not match.",
        {},
    ),
    "no_backend": ("RuntimeError: Distributed package doesn't have NCCL built in", {}),
    "no_environment": ("env:// rendezvous: environment variable RANK expected, but not set", {}),
    "argument_of_launcher": ("train.py: error: unrecognized arguments: --local-rank=0", {}),
    "peer_access": ("RuntimeError: CUDA error: peer access is not supported between these two devices", {}),
    "argument_unknown": ("train.py: error: unrecognized arguments: --use-magic", {}),
    "ragged_batch": ("RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0", {}),
    "synchronised_gradients": ("AssertionError: no_sync context manager is incompatible with partitioning", {}),
    "nothing_trained": ("AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'backward'", {}),
    "samples_of_epochs": ("AssertionError: last epoch number of samples exceeded max value.", {}),
    "optimizer_of_config": ("Found `optimizer` configured in the DeepSpeed config, but no `scheduler`.", {}),
    "nothing_there": ("AttributeError: 'NoneType' object has no attribute 'size'", {}),
    "stages_of_mesh": (
        "Number of virtual stages (10) must be divisible by pipeline parallel size (4).",
        {"stages": 10, "pp": 4},
    ),
    "microbatches_of_dualpipe": ("ValueError: DualPipeV needs at least 2 * 4 micro-batches, got 7", {}),
    "packages": ("ModuleNotFoundError: No module named 'apex'", {"name": "apex"}),
    "signatures": ("TypeError: f() got an unexpected keyword argument 'y'", {"name": "y"}),
    "program": ("KeyError: 'optimizer'", {}),
    "ended": ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", {}),
}


def test_every_error_has_an_example_and_a_rule_of_ours():
    codes = [one.code for one in ERRORS]
    assert set(codes) == set(EXAMPLES)
    assert len(codes) == len(set(codes)) >= 60
    known = {*BY_CODE, *(rule.code for rule in SWITCH_RULES), *OF_CHECK}
    for one in ERRORS:
        assert set(one.rules) <= known, one.code
        assert one.says or one.rules[0] in BY_CODE, one.code
        assert one.where, one.code
        assert one.kind in KINDS, one.code
        assert all(key == key.lower() for key in one.keys), one.code


@pytest.mark.parametrize("code", EXAMPLES)
def test_each_error_is_known_by_its_own_words_and_by_no_other(code):
    text, numbers = EXAMPLES[code]
    (found,) = find_errors(f'Traceback (most recent call last):\n  File "x.py", line 7\n{text}\n')
    assert (found.known.code, found.line, found.numbers) == (code, 3, numbers)


IN_OTHER_TEXTS = (
    "the parallel mesh requires 16 processes, but world_size is 8",
    "global batch size (7) is not divisible by micro-batch-size (2) times data parallel size (2)",
    "flash_attn: Flash Attention 2 is not available", "weights_only=True: WeightsUnpickler error",
    "Input type (float) and bias type (c10::BFloat16) should be the same", "found dtype Half but expected Float",
    "Data types for parameters must match when outside of autocasted region. Found input dtype: torch.float32",
)  # fmt: skip
"""Texts of words for which those of the example do not stand."""


@pytest.mark.parametrize("one", ERRORS, ids=lambda one: one.code)
def test_each_of_its_words_is_enough(one):
    """Alone, in the place of those of the example, whose numbers it may need, or in a text of its own."""
    example = " ".join(EXAMPLES[one.code][0].split())
    own = [key for key in one.keys if key in example.lower()]
    assert own
    for key in one.keys:
        instead = (re.sub(re.escape(word), lambda _, key=key: key, example, flags=re.IGNORECASE) for word in own)
        texts = [key, *instead, *(text for text in IN_OTHER_TEXTS if key in text.lower())]
        assert any(one.code in [match.known.code for match in find_errors(text)] for text in texts), key


@pytest.mark.parametrize("wrap", [
    "[rank3]: {}", "12: {}", "(TaskRunner pid=77) {}", "\x1b[31m{}\x1b[0m", "E       {}", "   {}\r", "[default7]:{}",
])  # fmt: skip
def test_what_launchers_put_before_a_message_does_not_matter(wrap):
    text = "Sequence length 4100 must be divisible by the product of TP degree\n(8) and 2 * CP degree (4)."
    (found,) = find_errors("\n".join(wrap.format(line) for line in text.split("\n")))
    assert (found.known.code, found.numbers["seq"]) == ("sequence_over_mesh", 4100)


def test_the_cause_stands_before_what_follows_from_it():
    text = "\n".join(EXAMPLES[code][0] for code in ("timeout", "remote_error", "out_of_memory", "batch"))
    assert [one.known.code for one in find_errors(text)] == ["batch", "out_of_memory", "timeout", "remote_error"]


@pytest.mark.parametrize(
    ("rule", "numbers", "near"),
    [
        (Divides("gbs", ("steps", "mbs"), "steps", equal=True), {"gbs": 16, "steps": 1, "mbs": 2}, {"steps": (8,)}),
        (Divides("gbs", ("steps", "mbs"), "steps", equal=True), {"gbs": 16, "steps": 1, "mbs": 3}, {}),
        (Divides("heads", ("tp",), "tp"), {"heads": 40, "tp": 16}, {"tp": (20, 10)}),
        (Divides("gbs", ("mbs", "dp"), "gbs"), {"gbs": 100, "mbs": 2, "dp": 8}, {"gbs": (96, 112)}),
        (Divides("seq", ("tp", "cp"), "seq", factor=2), {"seq": 4100, "tp": 8, "cp": 4}, {"seq": (4096, 4160)}),
        (Divides("kv_heads", ("cp",), "cp", either=True), {"kv_heads": 4, "cp": 6}, {"cp": (8, 4)}),
        (Divides("gpus", ("model_size",), "gpus"), {"gpus": 8, "model_size": 16}, {"gpus": (16,)}),
        (Divides("vocab", ("tp",), "vocab", grows=True), {"vocab": 32001, "tp": 4}, {"vocab": (32004,)}),
        (Divides("heads", ("tp",), "tp"), {"heads": 40}, {}),
        (Divides("heads", ("tp",), "tp"), {"heads": 40, "tp": 0}, {}),
        (Divides("heads", ("tp",), "tp"), {"heads": 10**12, "tp": 7}, {}),
    ],
)  # fmt: skip
def test_nearest_legal_values_follow_from_the_numbers_of_the_text(rule, numbers, near):
    assert nearest_legal(rule, numbers) == near


NEAR = {
    "model_size": (("world_size_of_model", "world_size_of_groups", "world_in_words"), {"gpus": (16, 32)}),
    "tp and pp": (("world_size_of_degrees", "expert_grid"), {"gpus": (16, 32)}),
    "shards": (("mesh",), {"dp_shard": (2,)}),
    "stages": (("stages_and_world",), {"pp": (4, 2)}),
    "heads": (("heads", "heads_in_words", "heads_of_ranks"), {"tp": (20, 10)}),
    "kv_heads": (("kv_heads", "kv_heads_in_words", "kv_heads_of_ranks"), {"tp": (8, 4)}),
    "heads over cp": (("heads_over_sequence", "heads_over_context_in_words"), {"cp": (20, 10)}),
    "kv_heads over cp": (("kv_heads_over_sequence",), {"cp": (16, 8)}),
    "sequence over tp and 2 cp": (("sequence_over_mesh",), {"seq": (4096, 4160)}),
    "sequence": (("sequence_in_words",), {"seq": (4096, 4104)}),
    "chunks": (("chunks",), {"vpp": (4, 2)}),
    "microbatches": (("interleaving",), {"microbatches": (8, 12)}),
    "batch of 2 x 8": (("batch", "batch_over_mesh"), {"gbs": (96, 112)}),
    "batch of 4 x 6": (("batch_of_config",), {}),
    "batch of 8": (("batch_of_devices",), {"gbs": (512, 504)}),
    "batch of 4": (("batch_of_loaders",), {"gbs": (8, 12)}),
    "batch in words": (("batch_in_words",), {"gbs": (96, 104)}),
    "answers": (("generations",), {"generations": (6, 12)}),
    "microbatch": (("microbatches_of_stage",), {"microbatch": (5, 2)}),
    "virtual stages": (("stages_of_mesh",), {"pp": (5, 2)}),
    "experts": (("experts_of_layer", "experts_in_words"), {"ep": (10, 6)}),
    "groups of experts": (("router",), {"groups": (10, 6)}),
    "array": (("sharding_of_arrays",), {"whole": (16, 24)}),
    "shard": (("uneven_shards",), {"part": (10, 6)}),
    "sizes": (("model_in_words",), {"part": (10, 20)}),
    "any": (("not_divisible",), {"part": (22, 18)}),
    "vocabulary": (("vocabulary_in_words", "vocabulary_of_ranks"), {"vocab": (32004,)}),
    "width": (("width_in_words",), {"tp": (1, 17)}),
    "layers": (("layers_in_words",), {"pp": (5, 3)}),
}
"""What is divided -> errors whose example says so, and the nearest values that do without it."""


def test_each_error_of_a_division_suggests_the_nearest_values_for_its_example():
    near = {code: values for codes, values in NEAR.values() for code in codes}
    divided = {one.code: one.divides for one in ERRORS if one.divides}
    assert {code: nearest_legal(one, EXAMPLES[code][1]) for code, one in divided.items()} == near


KINDS_OF_FEW = {
    "memory": {"quantised_spread", "out_of_memory", "out_of_memory_outside", "out_of_memory_of_jax",
               "out_of_host_memory"},
    "machine": {"no_driver", "disk", "scheduler", "ecc", "fabric_manager", "cuda_error", "peer_access", "registration",
                "shared_memory", "nvls", "port", "cuda_call"},
    "network": {"hostfile", "system_error", "internal_error", "infiniband", "no_interface", "connection", "rendezvous"},
    "consequence": {"timeout", "heartbeat", "remote_error", "ended"},
}  # fmt: skip
WITHOUT_A_RULE = {"vocabulary_in_words", "vocabulary_of_ranks", "checked_arguments"}


def test_an_error_is_of_the_kind_of_what_mends_it():
    """Of the job where a rule says so; its software otherwise, but for those named."""
    for one in ERRORS:
        few = next((kind for kind, codes in KINDS_OF_FEW.items() if one.code in codes), None)
        assert one.kind == (few or ("job" if one.rules or one.code in WITHOUT_A_RULE else "software")), one.code


def test_a_job_says_its_own_numbers_and_the_command_to_go_on_with(tmp_path):
    path = tmp_path / "error.txt"
    path.write_text(EXAMPLES["heads"][0])
    job = ("--model", "qwen3-14b", "--gpus", "64", "--tp", "16")
    done = gpuscale("check", "--error", path, *job, "--json")
    document = json.loads(done.out)
    assert (done.code, document["schema"], document["recognised"]) == (0, "gpuscale.check-error/1", True)
    (error,) = document["errors"]
    assert (error["rule"], error["numbers"]) == ("heads_not_divisible", {"heads": 40, "tp": 16})
    assert "tp 16, heads 40" in error["here"][0]
    assert error["legal"] == {"tp": [8, 4]}
    assert error["command"] == "gpuscale check --model qwen3-14b --gpus 64 --tp 8"
    assert gpuscale(*error["command"].split()[1:]).code == 0
    alone = json.loads(gpuscale("check", "--error", path, "--json").out)["errors"][0]
    assert (alone["here"], alone["legal"], alone["command"]) == (None, {"tp": [20, 10]}, None)
    kept = json.loads(gpuscale("check", "--error", path, *job[:-1], "8", "--json").out)["errors"][0]
    assert kept["here"] == []


def test_a_script_says_its_own_numbers(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 100 --bf16 "
        "--tensor-model-parallel-size 1 --overlap-param-gather --vocab-size 32000\n"
    )
    text = f"{EXAMPLES['batch'][0]}\n{EXAMPLES['gather_without_optimizer'][0]}"
    found = diagnose(text, launch_files=[script], gpus=8)
    by_code = {one.error: one for one in found.errors}
    assert "gbs 100" in by_code["batch"].here[0]
    assert set(by_code["batch"].legal) == {"gbs"}
    assert by_code["gather_without_optimizer"].rule == "param_gather_without_distopt"
    assert "overlap_param_gather needs" in by_code["gather_without_optimizer"].here[0]


def test_degrees_that_make_no_job_are_said_where_the_text_is_of_them():
    text, _ = EXAMPLES["world_size_of_model"]
    (error,) = diagnose(text, model="llama3-8b", gpus=24, layout={"tp": 16}).errors
    assert error.here
    with pytest.raises(InputError):
        diagnose(EXAMPLES["heads"][0], model="llama3-8b", gpus=24, layout={"tp": 16})


FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.21 GiB is free."
    " Including non-PyTorch memory, this process has 70.00 GiB memory in use. Of the allocated memory 60.10 GiB is "
    "allocated by PyTorch, and 5.30 GiB is reserved by PyTorch but unallocated."
)  # fmt: skip
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 22.10 GiB already allocated; "
    "14.69 MiB free; 22.40 GiB reserved in total by PyTorch)"
)


def test_what_was_asked_and_free_is_read_of_new_and_old_wordings():
    new, old = diagnose(FULL).memory, diagnose(OLD).memory
    assert (new.asked_gib, new.free_gib, new.total_gib, new.in_use_gib) == (2.0, 1.21, 79.11, 70.0)
    assert (new.allocated_gib, new.idle_gib) == (60.1, 5.3)
    assert (old.asked_gib, old.free_gib) == (round(20 / 1024, 3), round(14.69 / 1024, 3))
    assert (old.total_gib, old.allocated_gib, old.in_use_gib, old.idle_gib) == (23.65, 22.1, 22.4, None)
    assert diagnose(EXAMPLES["out_of_memory_of_jax"][0]).memory.asked_gib == 12.0
    asynchronous = diagnose(
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 22.10 GiB\n"
        "Requested               : 896.00 MiB\nDevice limit            : 23.65 GiB\nFree (according to CUDA): 26.81 MiB"
    ).memory
    assert (asynchronous.asked_gib, asynchronous.total_gib, asynchronous.allocated_gib) == (0.875, 23.65, 22.1)
    assert asynchronous.free_gib == round(26.81 / 1024, 3)
    assert diagnose(f"CUDA out of memory. Tried to allocate {'9' * 20} bytes.").memory.asked_gib is None


def test_memory_that_was_free_is_said_where_the_job_is_not_too_large():
    """PyTorch until 1.3 said what it held beside what it had given out; this GPU had more free than was asked for."""
    text = (
        "CUDA out of memory. Tried to allocate 85.00 MiB (GPU 0; 4.00 GiB total capacity; 1.04 GiB already allocated; "
    )
    found = diagnose(f"{text}2.50 GiB free; 15.31 MiB cached)")
    assert (found.memory.idle_gib, found.memory.in_use_gib) == (round(15.31 / 1024, 3), None)
    assert "2.5 GiB were free, more than was asked for" in " ".join(found.errors[0].advice)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("TypeError: f() takes 1 positional argument but 2 were given\nChildFailedError:", ["signatures"]),
        ("ChildFailedError:", ["ended"]),
        ("{timeout}\nKeyError: 'x'", ["program", "timeout"]),
        ("{timeout}\nChildFailedError:", ["timeout"]),
        ("{heads}\nKeyError: 'x'", ["heads"]),
        ("40 is not divisible by 12", ["not_divisible"]),
        ("    assert config.num_attention_heads % self.tp_size == 0\nAssertionError", ["heads_in_words"]),
        ("Attention heads must divide evenly across TP ranks", ["heads_in_words"]),
        ("--ckpt-format torch_dcp is not tested with that", ["exclusion_in_words"]),
        ("residuals must be used with --one-option", ["exclusion_in_words"]),
        ("WARNING: --one-option is not supported with that\nTypeError: f() takes 1 argument", ["program"]),
        ("{heads}\nmat1 and mat2 shapes cannot be multiplied", ["heads"]),
        ("UserWarning: `use_cache=True` is incompatible with gradient checkpointing", []),
        ("ValueError: fp4_param must be used together with fp4 mode.", ["exclusion_in_words"]),
        ("ValueError: I need you to set a pad_token", []),
        ('  172     raise RuntimeError("{heads}")\n--> 174     return f()\nKeyError: 1', ["program"]),
        ('| 41 |   f"{heads}"\nKeyError: 1', ["program"]),
        ("it says '{heads}'", ["heads"]),
        ("KeyError: 'a'\nWARNING: --one-option is not supported with that", ["program"]),
        ("{not_divisible}\n" + "--a-switch is supported\n" * 9 + "TypeError: f()", ["program"]),
        ("[INFO] [config.py:978:print]   zero_allow_untested_optimizer  False", []),
        ("Installed CUDA version 12.2 does not match the version torch was compiled with 12.1 but is accepted", []),
        ("Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes, but it is torch.float32.", []),
        ("[WARNING]  async_io requires the dev libaio .so object and headers", []),
        ("NCCL INFO NET/OFI Using aws-ofi-nccl 1.7.4aws\nthe values 3 and 4 should be the same", []),
        ("the heads must be divisible by the tensor parallel size, got 40 and 12", ["heads_in_words"]),
    ],
)  # fmt: skip
def test_what_is_known_by_words_alone_counts_where_nothing_else_is_the_cause(text, codes):
    text = text.format(**{code: example for code, (example, _) in EXAMPLES.items()})
    assert [one.known.code for one in find_errors(text)] == codes


def test_a_job_out_of_memory_gets_its_prediction_and_the_cheapest_remedies(tmp_path):
    job = {"model": "llama3-70b", "gpus": 64, "layout": {"tp": 4}}
    found = diagnose(FULL, **job)
    memory = found.memory
    assert memory.fit == "no"
    assert memory.predicted_gib > memory.limit_gib
    assert memory.remedies
    assert memory.remedies[0].fit == "fits"
    advice = " ".join(found.errors[0].advice)
    assert "expandable_segments" in advice
    assert "other processes hold 7.9 GiB" in advice
    path = tmp_path / "error.txt"
    path.write_text(FULL)
    done = gpuscale("check", "--error", path, "--model", "llama3-70b", "--gpus", "64", "--tp", "4")
    assert done.code == 0
    assert "gpuscale estimate --model llama3-70b --gpus 64" in done.out
    assert all(len(line) <= 100 for line in done.lines if "gpuscale " not in line)


def test_what_the_prediction_leaves_out_is_said():
    found = diagnose(FULL, model="gemma3-27b", gpus=64, layout={"tp": 4})
    assert "vision tower" in found.notes[0]
    assert diagnose(FULL).notes == ()


def test_a_job_that_breaks_a_rule_has_no_remedies():
    found = diagnose(FULL, model="llama3-8b", gpus=48, layout={"tp": 12})
    assert found.memory.remedies == ()
    assert found.memory.predicted_gib > 0


def test_a_text_that_is_not_known_says_what_comes_closest(tmp_path):
    path = tmp_path / "error.txt"
    path.write_text("a multiple of heads and tensor_model_parallel_size it must be, somehow")
    done = gpuscale("check", "--error", path)
    assert done.code == 1
    assert "no error that is known" in done.err
    assert "heads (Megatron-LM)" in done.out
    path.write_text("it did not work")
    document = json.loads(gpuscale("check", "--error", path, "--json").out)
    assert (document["recognised"], document["errors"], document["closest"]) == (False, [], [])


def test_unusable_texts_and_limits_are_refused(tmp_path):
    path = tmp_path / "error.txt"
    path.write_bytes(b"x" * (2**20 + 1))
    assert_one_message(gpuscale("check", "--error", path), "larger than 1 MiB", "tail -n 500")
    assert_one_message(gpuscale("check", "--error", tmp_path / "none.txt"), "no such file", "save the output")
    path.write_text(FULL)
    assert_one_message(gpuscale("check", "--error", path, "--min-mfu", "38%"), "has no effect", "without")
    assert_one_message(gpuscale("check", "--error", path, "--format", "sarif"), "has no effect", "without")


def test_nothing_of_a_text_is_printed_raw(tmp_path):
    path = tmp_path / "error.txt"
    path.write_bytes(b"\x1b]0;title\x07\x1b[2J rm -rf / $(id) \xff\x00" + FULL.encode() + b"\x1b[2J=cmd()")
    done = gpuscale("check", "--error", path)
    assert done.code == 0
    assert not any(piece in done.out + done.err for piece in ("\x1b", "title", "rm -rf", "cmd()", "$(id)"))


def test_no_text_is_slow_or_breaks_the_reader():
    """Texts of pieces of all messages, mixed, cut and repeated up to the limit."""
    draw = random.Random(11)
    keys = [key for one in ERRORS for key in one.keys]
    for turn in range(60):
        pieces = draw.choices([*keys, "(", "\x1b[31m", "9" * 30, "\n[rank0]: ", "=", " ", "GiB", "\u0130"], k=200)
        text = "".join(piece[: draw.randrange(1, len(piece) + 1)] for piece in pieces)
        assert diagnose(text).recognised in {True, False}, turn
    start = time.process_time()
    for piece in (
        "world_size (",
        "out of memory tried to allocate 9",
        "(9) is not divisible by ",
        "\n" * 9,
        "[rank0]:",
    ):
        diagnose((piece * diagnosis.MAX_TEXT_BYTES)[: diagnosis.MAX_TEXT_BYTES])
    assert time.process_time() - start < 30
