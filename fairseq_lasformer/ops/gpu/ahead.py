"""Compilation of a training's Triton kernels before the first batch, in parallel processes.

A kernel takes up to a second to compile, and a training needs some twenty. A helper, begun while the training loads its
libraries' other parts and its data, runs the launch code on tensors without data, under a driver that knows the GPU's
architecture and no device. Several processes each compile a share of what it would launch, and leave it in Triton's
cache on disk, where the training finds it. If any of this fails, the training compiles when it first launches a kernel.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.gpu.teacher import tiled_supervise
from fairseq_lasformer.ops.gpu.tiles import allowed_bitmask, tiled_attention, topk_bitmask
from fairseq_lasformer.ops.types import AttentionMask, RowSample, StraightThrough, Teachers

SHAPES = ((2, 64), (64, 256), (16, 512), (8, 1024), (4, 2048), (2, 4096), (1, 8192))
"""Examples and tokens per example: one shape for each variant of a kernel."""
ENOUGH = 16
"""Processes at most: there are not many more kernels."""


class Attentions(NamedTuple):
    """Properties of a model's attentions that its kernels depend on, beside the shapes of batches.

    Attributes:
        heads, width: number of heads, and width of each.
        select: width of the selectors' projections; 0 if none is learned.
        dtype: type of the projections, such as ``bfloat16``.
        dropout: of the attention weights.
        through: whether the translation loss teaches the selectors.
        bounded: see :class:`ops.StraightThrough`.
        kl, live: see :class:`ops.Teachers`.
    """

    heads: int
    width: int
    select: int
    dtype: str
    dropout: float = 0.0
    through: bool = True
    bounded: bool = True
    kl: str = "forward"
    live: bool = True


class Target(NamedTuple):
    """A GPU that is compiled for.

    Attributes:
        arch: its architecture, such as 90.
        shared: bytes of shared memory that a program may use.
    """

    arch: int
    shared: int

    @classmethod
    def of(cls, device: torch.device) -> Target:
        about: Any = torch.cuda.get_device_properties(device)
        return cls(10 * about.major + about.minor, int(about.shared_memory_per_block_optin))


class _NoDevice:
    """A driver with a target and without a device: enough to compile, not to launch."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", target.arch, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> str:
        return f"sm_{self.target.arch}"

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


Launch = Callable[..., Any]
"""A launch as it would have been: Triton's function to compile it, the kernel, its arguments by place and by name."""


@contextlib.contextmanager
def without_device(target: Target, launch: Launch) -> Iterator[None]:
    """Let a function do what is to be done instead of launching kernels, for a GPU that need not be there."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    tiles: Any = importlib.import_module("fairseq_lasformer.ops.gpu.kernels.tiles")
    real, asked, before = JITFunction.run, tiles.shared_memory, None

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(real, function, args, {**kwargs, "grid": grid, "warmup": True})

    with contextlib.suppress(RuntimeError):  # there is no driver without a GPU
        before = driver.active
    JITFunction.run, tiles.shared_memory = run, lambda device: target.shared
    driver.set_active(_NoDevice(target))
    try:
        yield
    finally:
        JITFunction.run, tiles.shared_memory = real, asked
        driver.set_active(before)


def training_passes(of: Attentions, longest: int) -> None:
    """Run forward and backward passes of all variants on tensors without data; see :func:`without_device`."""
    device = torch.device("meta")
    kappa = torch.empty((), dtype=torch.int64, device=device)
    dtype = getattr(torch, of.dtype)
    for n_batch, length in SHAPES:
        if length > 2 * longest:
            break
        new = torch.empty(n_batch, length, of.heads * of.width, dtype=dtype, device=device)
        q, k, v = (torch.empty_like(new).unflatten(2, (of.heads, -1)).transpose(1, 2) for _ in range(3))
        for t in (q, k, v):
            t.requires_grad_()
        mask = AttentionMask(torch.empty(n_batch, length, dtype=torch.bool, device=device), True)
        if not of.select:
            _backward(tiled_attention(q, k, v, allowed_bitmask(mask, q, length), mask, None, of.dropout))
            continue
        selector = [torch.empty(n_batch, length, of.select, dtype=dtype, device=device) for _ in range(2)]
        sel_q, sel_k = (t.requires_grad_() for t in selector)
        bits = topk_bitmask(sel_q, sel_k, mask, kappa)
        for stride in {1, max(1, min(32, n_batch * length // 512))}:
            sample = RowSample(0, stride)
            through = StraightThrough(sel_q, sel_k, of.bounded, sample) if of.through else None
            _backward(tiled_attention(q, k, v, bits, mask, through, of.dropout))
            teachers = Teachers([q, q], [k, k], mask.key_padding, of.kl, "live" if of.live else "detached")
            _backward(tiled_supervise(sel_q, sel_k, teachers, bits, mask, sample).kl)


def _backward(out: Tensor) -> None:
    out.backward(torch.empty_like(out))


class Helper:
    """A process that compiles kernels, begun before it is known which.

    Meanwhile, it loads what it needs, and compiles the two that are tried out first (``kernels.decode``).
    """

    def __init__(self, target: Target) -> None:
        self.started = time.monotonic()
        root = str(Path(__file__).parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from fairseq_lasformer.ops.gpu.ahead import serve; serve()", *map(str, target)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def compile(self, of: Sequence[Attentions], longest: int, n_processes: int) -> None:
        """Say what to compile: for the attentions of a model, each once, and examples of at most ``longest`` tokens."""
        with contextlib.suppress(OSError):  # it has ended
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps([list(map(list, of)), longest, n_processes]) + "\n")
            self.process.stdin.flush()

    def wait(self, seconds: float) -> tuple[int, float] | None:
        """Return the number of kernels, and the seconds since the helper began; None if it failed or takes longer."""
        try:
            said, _ = self.process.communicate(timeout=seconds)
            return int(said), time.monotonic() - self.started
        except (subprocess.TimeoutExpired, ValueError, OSError):
            self.end()
            return None

    def end(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.wait()


def processes(n_cores: int) -> int:
    """Return how many processes to start: two cores stay with the training."""
    return max(1, min(ENOUGH, n_cores - 2))


def serve() -> None:
    """Compile what a line of standard input says, and print how many kernels that were; arguments: the target."""
    torch.set_num_threads(1)
    target = Target(*map(int, sys.argv[1:]))
    decode: Any = importlib.import_module("fairseq_lasformer.ops.gpu.kernels.decode")
    first = jobs(lambda: decode.smallest_step(torch.device("meta")), target)
    started = _started(first, target, len(first))
    _build_launcher(None)
    jobs(lambda: training_passes(Attentions(1, 64, 64, "bfloat16"), 64), target)  # loads what is needed
    line = sys.stdin.readline()
    if not line:
        return
    attentions, longest, n = json.loads(line)

    def run() -> None:
        for of in attentions:
            training_passes(Attentions(*of), longest)

    found = jobs(run, target)
    started += _started(found, target, n)
    if not any([os.waitpid(child, 0)[1] for child in started]):
        print(len(first) + len(found), flush=True)


Job = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A kernel, its arguments by place and by name."""


def jobs(run: Callable[[], object], target: Target) -> list[Job]:
    """Return what a function would launch, each kernel once."""
    found: dict[Any, Job] = {}

    def launch(real: Any, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        constants = sorted((name, value) for name, value in named.items() if name != "grid")
        types = tuple(a.dtype for a in args if isinstance(a, Tensor))
        found.setdefault((function.fn.__name__, types, tuple(constants)), (function, args, named))

    with without_device(target, launch):
        run()
    return list(found.values())


def _started(found: list[Job], target: Target, n: int) -> list[int]:
    """Start n processes that compile; return their numbers."""
    children = []
    for rank in range(min(n, len(found))):
        child = os.fork()
        if not child:
            _compile(found[rank::n], target)
        children.append(child)
    return children


def _compile(share: list[Job], target: Target) -> None:
    """Compile kernels, and end the process."""
    failed = 1
    with contextlib.suppress(Exception), without_device(target, lambda real, f, args, named: real(f, *args, **named)):
        for function, args, named in share:
            _build_launcher(function.run(*args, **{**named, "warmup": True}))
        failed = 0
    os._exit(failed)


def _build_launcher(kernel: Any | None) -> None:
    """Build the C function that launches a kernel, which Triton before 3.9 compiles for each signature.

    Args:
        kernel: None for Triton's own functions, which it compiles as well.
    """
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        with contextlib.suppress(Exception):  # the training will say what is missing
            driver.CudaUtils() if kernel is None else driver.CudaLauncher(kernel.src, kernel.metadata)
