"""Kernels run and timed with PyTorch, the only module that needs it.

Short kernels are replayed from a CUDA graph, so that no launch from the host shows, in bursts of a few milliseconds
after a pause, so that no power limit acts. What no graph takes is queued behind a kernel that waits.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from gpuscale.calibration.gpu_protocol import KernelCase, Machine, Measurement, label
from gpuscale.errors import InputError
from gpuscale.files import printable
from gpuscale.units import GIB, MIB, plural

INSTALL = "`pip install 'gpuscale[gpu]'` installs it; fitting to a recorded protocol does not need it: `recorded=FILE`"

BURST_S, PAUSE_S = 8e-3, 30e-3
"""Time of one burst, after which a power limit would begin to act, and of the pause before it."""

BURSTS = 5
MAX_LAUNCHES = 200
"""Launches in one burst; a queue takes about a thousand."""

SUSTAINED_S = 4.0
"""Time of a GEMM that is to reach its sustained clock; its second half is measured."""

STALL_CYCLES = 100_000_000
"""Clock cycles that a kernel waits while launches are queued behind it, some 50 ms."""

COLLECTIVE_SECONDS = 600.0


class Bench:
    """A GPU on which cases are run.

    Attributes:
        torch: the library.
        device: the device that it calls so.
        machine: what is known of it.
    """

    def __init__(self, index: int = 0) -> None:
        try:
            import torch  # noqa: PLC0415 - only where a GPU is measured
        except (ImportError, OSError) as error:  # OSError: one of its libraries
            missing = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded: {error}"
            raise InputError(f"measuring needs torch, which {missing[:200]}", hint=INSTALL) from None
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not 0 <= index < count:
            which = f"{plural(count, 'GPU')}, from 0 on, and none of number {index}" if count else "no GPU"
            hint = "`gpuscale doctor` says what is there; fitting to a recorded protocol needs no GPU: `recorded=FILE`"
            raise InputError(f"torch {torch.__version__} finds {which}", hint=hint)
        self.torch, self.device = torch, torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.machine = _machine(torch, index)

    def measure(self, one: KernelCase) -> Measurement:
        """Run and time one case; `error` says what the machine cannot run."""
        torch, sizes = self.torch, dict(one)
        try:
            if sizes["kind"] == "launch":
                return Measurement(one, self._launch_s(sizes["op"]))
            if sizes["kind"] == "attention":
                return Measurement(one, self._attention_s(sizes))
            run, in_graph = runner(torch, self.device, sizes)
            if sizes.get("regime") == "sustained":
                return Measurement(one, self._sustained_s(run))
            return Measurement(one, self._burst_s(run) if in_graph else self._queued_s(run))
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            said = printable(str(error).strip().split("\n", maxsplit=1)[0])[:200] or type(error).__name__
            if "CUDA error" in said or "HIP error" in said:  # after which the process can use the GPU no more
                hint = "the same command goes on; what was measured is kept"
                raise InputError(f"the GPU failed at {label(one)}: {said}", hint=hint) from None
            return Measurement(one, None, said)
        finally:
            torch.cuda.empty_cache()

    def measure_collectives(self, cases: Sequence[KernelCase]) -> Iterator[Measurement]:
        """Run collectives on several GPUs of this machine, a process for each."""
        for gpus in sorted({dict(one)["gpus"] for one in cases}):
            same = [one for one in cases if dict(one)["gpus"] == gpus]
            try:
                times = _collectives(gpus, [dict(one) for one in same])
            except (RuntimeError, OSError, InputError) as error:
                said = printable(str(error).strip().split("\n")[0])[:200] or type(error).__name__
                yield from (Measurement(one, None, said) for one in same)
                continue
            yield from (Measurement(one, time_s) for one, time_s in zip(same, times, strict=True))

    # --- time

    def _burst_s(self, run: Callable[[], Any]) -> float:
        """Time of one launch in short bursts, replayed from a CUDA graph."""
        torch = self.torch
        launches = self._warm(run, BURST_S)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                run()
        graph.replay()
        times = []
        for _ in range(BURSTS):
            torch.cuda.synchronize()
            time.sleep(PAUSE_S)
            torch.cuda._sleep(STALL_CYCLES // 50)  # until the graph is launched
            times.append(self._events_s(graph.replay))
        return median(times) / launches

    def _queued_s(self, run: Callable[[], Any], *, warm: bool = True) -> float:
        """Time of one launch in a full queue: all are queued behind a kernel that waits."""
        launches = self._warm(run, BURST_S) if warm else MAX_LAUNCHES
        times = []
        for _ in range(BURSTS):
            self.torch.cuda.synchronize()
            time.sleep(PAUSE_S)
            self.torch.cuda._sleep(STALL_CYCLES)  # as PyTorch's own benchmarks do
            times.append(self.repeated_s(run, launches))
        return median(times)

    def _sustained_s(self, run: Callable[[], Any]) -> float:
        launches = max(1, self._warm(run, 50e-3))
        times: list[float] = []
        spent = 0.0
        while spent < SUSTAINED_S and len(times) < 10_000:
            times.append(self.repeated_s(run, launches))
            spent += times[-1] * launches
        later = times[len(times) // 2 :]
        return sum(later) / len(later)

    def _warm(self, run: Callable[[], Any], budget_s: float) -> int:
        """Run it until it is warm, and return how many launches take the time given."""
        for _ in range(3):
            run()
        self.torch.cuda.synchronize()
        return max(1, min(MAX_LAUNCHES, int(budget_s / max(self._events_s(run), 1e-7))))

    def repeated_s(self, run: Callable[[], Any], launches: int) -> float:
        """Time of one of several launches in a row [s]."""
        return self._events_s(lambda: [run() for _ in range(launches)]) / launches

    def _events_s(self, run: Callable[[], Any]) -> float:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    # --- kinds that are run in their own way

    def _launch_s(self, op: str) -> float:
        number = self.torch.zeros(1, device=self.device)
        run: Callable[[], Any] = lambda: number.add_(1)  # noqa: E731
        return self._burst_s(run) if op == "graph" else self._queued_s(run, warm=False)

    def _attention_s(self, sizes: dict[str, Any]) -> float:
        """Time of the fastest fused kernel that the library has for the shape."""
        attention = self.torch.nn.attention
        found, said = [], "no fused kernel"
        for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            one = getattr(attention.SDPBackend, backend, None)
            if one is None:
                continue
            try:
                with attention.sdpa_kernel([one]):
                    run, in_graph = runner(self.torch, self.device, sizes)
                    found.append(self._burst_s(run) if in_graph else self._queued_s(run))
            except RuntimeError as error:
                said = str(error)
        if not found:
            raise RuntimeError(said)
        return min(found)


def _machine(torch: Any, index: int) -> Machine:
    properties = torch.cuda.get_device_properties(index)
    versions = {"torch": torch.__version__, "CUDA": torch.version.cuda, "ROCm": getattr(torch.version, "hip", None)}
    software = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return Machine(
        printable(str(properties.name))[:80],
        torch.cuda.device_count(),
        int(properties.multi_processor_count),
        _power_limit_w(index),
        software,
    )


def _power_limit_w(index: int) -> float:
    from gpuscale.doctor import list_gpus  # noqa: PLC0415 - only where a GPU is measured

    _, gpus = list_gpus([])
    return next((gpu.power_limit_w or 0.0 for gpu in gpus if gpu.index == index), 0.0)


# --- what is run


def runner(torch: Any, device: Any, sizes: dict[str, Any]) -> tuple[Callable[[], Any], bool]:
    """Return what runs a case once, and whether a CUDA graph takes it."""
    match sizes["kind"]:
        case "gemm":
            return _gemm(torch, device, sizes), True
        case "attention":
            return _attention(torch, device, sizes), not sizes["backward"]
        case _:
            return _stream(torch, device, sizes), sizes["op"] != "adam"


def _gemm(torch: Any, device: Any, sizes: dict[str, Any]) -> Callable[[], Any]:
    m, n, k, precision = sizes["m"], sizes["n"], sizes["k"], sizes["precision"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    one, other = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    if precision in {"fp32", "tf32"}:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if precision == "fp8":
        old = "gfx94" in str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
        eight = torch.float8_e4m3fnuz if old else torch.float8_e4m3fn
        one, other, unit = one.to(eight), other.to(eight), torch.ones((), device=device)
        return lambda: torch._scaled_mm(one, other.t(), unit, unit, out_dtype=torch.bfloat16)
    if precision == "fp4":
        raise NotImplementedError("4-bit GEMMs are not measured")
    one, other, out = one.to(dtype), other.to(dtype), torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(one, other.t(), out=out)


def _attention(torch: Any, device: Any, sizes: dict[str, Any]) -> Callable[[], Any]:
    shape = (sizes["sequences"], sizes["heads"], sizes["tokens"], sizes["head_dim"])
    dtype = torch.bfloat16 if device.type == "cpu" or torch.cuda.is_bf16_supported() else torch.float16
    inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=bool(sizes["backward"])) for _ in range(3)]
    attend = torch.nn.functional.scaled_dot_product_attention
    if not sizes["backward"]:
        return lambda: attend(*inputs, is_causal=True)
    out = attend(*inputs, is_causal=True)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _stream(torch: Any, device: Any, sizes: dict[str, Any]) -> Callable[[], Any]:
    """Run over ever other buffers, so that no cache holds them."""
    op, size = sizes["op"], sizes["bytes"]
    if op == "adam":  # reads weight, gradient and both moments, writes all but the gradient, 4 bytes each
        weight = torch.nn.Parameter(torch.randn(size // 28, device=device))
        weight.grad = torch.randn_like(weight)
        return torch.optim.AdamW([weight], fused=True).step
    tensors, width = {"copy": 2, "add": 3, "norm": 2}[op], 4096
    rows = max(1, size // (tensors * 2 * width))
    slots = max(1, min(MAX_LAUNCHES, GIB // max(size, MIB)))
    buffers = torch.randn(slots, tensors, rows, width, device=device, dtype=torch.bfloat16)
    turn = itertools.cycle([tuple(one) for one in buffers])

    def copy() -> None:
        to, one = next(turn)
        to.copy_(one)

    def add() -> None:
        to, one, other = next(turn)
        torch.add(one, other, out=to)

    def norm() -> None:
        torch.nn.functional.layer_norm(next(turn)[0], (width,))

    return {"copy": copy, "add": add, "norm": norm}[op]


# --- several GPUs


def _collectives(gpus: int, cases: list[dict[str, Any]]) -> list[float]:
    import torch.multiprocessing as processes  # noqa: PLC0415

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    context = processes.get_context("spawn")
    results = context.SimpleQueue()
    workers = [context.Process(target=_rank, args=(rank, gpus, address, cases, results)) for rank in range(gpus)]
    try:
        for worker in workers:
            worker.start()
        until = time.monotonic() + COLLECTIVE_SECONDS
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
        if any(worker.exitcode != 0 for worker in workers):
            raise RuntimeError("the collectives did not end: see the messages of NCCL above")
        found: list[float] = results.get()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
    return found


def _rank(rank: int, gpus: int, address: str, cases: list[dict[str, Any]], results: Any) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=gpus)
    bench = Bench(rank)
    times = []
    for sizes in cases:
        elements = max(gpus, sizes["bytes"] // 2)
        whole = torch.ones(elements - elements % gpus, device=bench.device, dtype=torch.bfloat16)
        part = torch.ones(elements // gpus, device=bench.device, dtype=torch.bfloat16)
        run: Callable[[], Any] = {
            "allreduce": partial(dist.all_reduce, whole),
            "allgather": partial(dist.all_gather_into_tensor, whole, part),
            "reducescatter": partial(dist.reduce_scatter_tensor, part, whole),
        }[sizes["op"]]
        bench.repeated_s(run, 5)
        dist.barrier()
        time_s = torch.tensor(bench.repeated_s(run, 20), device=bench.device)
        dist.all_reduce(time_s, op=dist.ReduceOp.MAX)
        times.append(float(time_s))
    if rank == 0:
        results.put(times)
    dist.destroy_process_group()
