"""A fake GPU: tensors with CPU data that report ``cuda:0``, to see without a GPU what a real one would do.

Within ``with FakeGpu() as gpu:`` every operator is checked as a GPU would check it, then computed on the CPU, so values
are right. It counts:

* ``launches``: operators that start at least one kernel, by name;
* ``syncs``: operators that make the host wait for the device, by the lines of the project that asked for them;
* ``uploads``: copies from the host's memory, likewise;
* ``bytes``: what the operators read and write, each argument and result once.

An operator with tensors of both devices raises :class:`DeviceMismatch`. Triton's kernels run in its interpreter
(``TRITON_INTERPRET=1``) and refuse CPU tensors. ``torch.cuda.CUDAGraph`` is emulated: operators that synchronise in a
capture raise, and a replay runs the captured operators again on the same memory.
"""

from __future__ import annotations

import collections
import contextlib
import math
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)


class _Backend(torch.utils.backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


# autograd needs a guard for the device of its tensors, and a CPU build of PyTorch has none for CUDA
torch.utils.backend_registration._setup_privateuseone_for_python_backend("fakegpu", backend_module=_Backend())
BENEATH = torch.device("fakegpu", 0)
aten = torch.ops.aten

SYNCS = {  # the host needs a value that only the device has
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten.unique_consecutive.default, aten._unique2.default, aten.unique_dim.default, aten.bincount.default),
    *(aten.repeat_interleave.Tensor, aten.is_nonzero.default, aten.nonzero_numpy.default, aten.allclose.default),
}
NO_KERNEL = {
    *(aten.detach.default, aten.alias.default, aten.view.default, aten._unsafe_view.default, aten.lift_fresh.default),
    *(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default),
    *(aten.new_empty_strided.default, aten.resize_.default, aten._reshape_alias.default, aten.set_.source_Storage),
    *(aten.sym_size.int, aten.is_pinned.default, aten.result_type.Tensor, aten.is_same_size.default),
    *(aten._has_compatible_shallow_copy_type.default, aten._local_scalar_dense.default),
}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class DeviceMismatch(RuntimeError):
    """Tensors of the host and of the device meet in an operator."""


class Cuda(torch.Tensor):
    """A CPU tensor that reports being on the GPU."""

    data_on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Cuda:
        layout = {"strides": data.stride(), "storage_offset": data.storage_offset()}
        self = torch.Tensor._make_wrapper_subclass(cls, data.size(), **layout, dtype=data.dtype, device=BENEATH)
        self.data_on_cpu = data
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Cuda({self.data_on_cpu!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    def tolist(self) -> Any:
        FakeGpu.current().count_sync(aten._local_scalar_dense.default)
        return self.data_on_cpu.tolist()

    def data_ptr(self) -> int:  # type: ignore[override]
        return self.data_on_cpu.data_ptr()

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_list_on_gpu(index), value)

    def __getitem__(self, index: Any) -> torch.Tensor:  # type: ignore[override]
        return super().__getitem__(_list_on_gpu(index))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FakeGpu.current().handle(func, args, kwargs or {})


def _list_on_gpu(index: Any) -> Any:
    """Return an index; a list becomes a tensor on the device, which is an upload."""
    if not isinstance(index, list):
        return index
    FakeGpu.current().count_upload(aten.index.Tensor)
    with _disable_current_modes():
        return Cuda(torch.tensor(index))


def on_cpu(x: Any) -> Any:
    """Return the data of a tensor of the fake GPU; anything else as it is."""
    return x.data_on_cpu if isinstance(x, Cuda) else x


def _n_bytes(t: torch.Tensor) -> int:
    """Return the bytes of a tensor in memory; an expanded dimension counts once."""
    return t.element_size() * math.prod(n for n, stride in zip(t.shape, t.stride()) if stride != 0)


_sdpa = torch.nn.functional.scaled_dot_product_attention


class _Fused(torch.autograd.Function):
    """``scaled_dot_product_attention``: one launch forward, two backward, which read and write only their arguments."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
        ctx.saved, ctx.options = (q, k, v), options
        gpu, given = FakeGpu.current(), tuple(map(on_cpu, (q, k, v)))
        plain = {name: on_cpu(x) for name, x in options.items()}
        with _disable_current_modes(), torch.no_grad():
            out = _sdpa(*given, **plain)
        gpu.count_launch("sdpa", (q, k, v, options.get("attn_mask")), (out,))
        if gpu.capturing is not None:
            gpu.capturing.calls.append(lambda: out.copy_(_sdpa(*given, **plain)))
        return Cuda(out)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        gpu, given = FakeGpu.current(), on_cpu(grad)

        def run() -> tuple[torch.Tensor, ...]:
            with _disable_current_modes(), torch.enable_grad():
                leaves = [on_cpu(t).detach().requires_grad_() for t in ctx.saved]
                out = _sdpa(*leaves, **{name: on_cpu(x) for name, x in ctx.options.items()})
                return torch.autograd.grad(out, leaves, given)

        grads = run()
        gpu.count_launch("sdpa_backward", (*ctx.saved, given, given), grads, n=2)
        if gpu.capturing is not None:
            gpu.capturing.calls.append(lambda: [old.copy_(new) for old, new in zip(grads, run())])
        return *map(Cuda, grads), None


def _scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                                  is_causal: bool = False, scale: Any = None, **_: Any) -> Any:  # fmt: skip
    if not isinstance(query, Cuda):
        return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale}  # no dropout: the draws differ anyway
    return _Fused.apply(query, key, value, options)


class Graph:
    """A substitute for ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with _disable_current_modes(), torch.no_grad():
            for call in self.calls:
                call()


class FakeGpu(TorchDispatchMode):
    """A fake GPU; see the module's description.

    Args:
        package: host synchronisations and uploads are reported by line of the files with this in their path.
        interpret: whether Triton's kernels are run, in their interpreter, which is slow; or the names of those that
            are. Otherwise they are only counted, and their results are whatever was in memory.
    """

    active: FakeGpu | None = None

    def __init__(self, package: str = "fairseq", interpret: bool | frozenset[str] = True) -> None:
        super().__init__()
        self.package, self.interpret = package, interpret
        self.graphs: list[Graph] = []
        self.capturing: Graph | None = None
        self.guarded: list[Any] = []
        self.memory, self.allocated = 80 << 30, 0
        self.pools: collections.Counter[Any] = collections.Counter()  # bytes of graphs by the stream of their capture
        self.reset()

    @staticmethod
    def current() -> FakeGpu:
        assert FakeGpu.active is not None, "the fake GPU is gone"
        return FakeGpu.active

    def reset(self) -> None:
        """Set all counts to 0."""
        self.launches: collections.Counter[str] = collections.Counter()
        self.syncs: collections.Counter[str] = collections.Counter()
        self.uploads: collections.Counter[str] = collections.Counter()
        self.traffic: collections.Counter[str] = collections.Counter()

    @property
    def totals(self) -> dict[str, int]:
        """Return launches, host synchronisations, uploads and bytes so far."""
        counted = {"launches": self.launches, "syncs": self.syncs, "uploads": self.uploads, "bytes": self.traffic}
        return {name: sum(counter.values()) for name, counter in counted.items()}

    # ------------------------------------------------------------------------------------------- entering and leaving

    def __enter__(self) -> FakeGpu:
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        for name, value in {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "is_current_stream_capturing": lambda: self.capturing is not None,
            "device_count": lambda: 1,
            "synchronize": lambda *a: None,
            "_initialized": True,
            "get_rng_state": lambda *a: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *a: None,
            "CUDAGraph": Graph,
            "graph": self._capture,
            "graph_pool_handle": lambda: None,
            "device": self._guard,
            "Stream": lambda *a: object(),
            "memory_reserved": lambda *a: sum(self.pools.values()),
            "get_device_capability": lambda *a: (9, 0),
            "get_device_properties": lambda *a: SimpleNamespace(
                shared_memory_per_block_optin=232_448, total_memory=self.memory
            ),
        }.items():
            self._patch(torch.cuda, name, value)
        make, real = torch.tensor, torch.Generator

        class Generator(real):  # type: ignore[misc,valid-type]
            def __new__(cls, device: Any = "cpu") -> Any:
                return real(device="cpu")

        def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            if device is None or torch.device(device).type != "cuda":
                return make(data, *args, device=device, **kwargs)
            self.count_upload(aten._to_copy.default)
            with _disable_current_modes():
                return Cuda(make(data, *args, **kwargs))

        self._patch(torch, "tensor", tensor)
        self._patch(torch, "Generator", Generator)
        self._patch(torch.nn.functional, "scaled_dot_product_attention", _scaled_dot_product_attention)
        with contextlib.suppress(ImportError):
            from triton.runtime import interpreter

            call = interpreter.GridExecutor.__call__
            self._patch(interpreter.GridExecutor, "__call__", lambda *a, **kw: self._launch_triton(call, *a, **kw))
        FakeGpu.active = self
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        FakeGpu.active = None
        self.stack.close()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self.stack.callback(setattr, owner, name, before)

    @contextlib.contextmanager
    def _capture(self, graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
        # the memory of a stream's graphs is that of the largest: blocks that one frees are there for the next
        self.capturing, self.allocated = graph, 0
        self.graphs.append(graph)
        state = torch.random.get_rng_state()
        try:
            yield
        finally:
            self.capturing = None
            self.pools[stream] = max(self.pools[stream], self.allocated)
            torch.random.set_rng_state(state)  # a real capture draws nothing: the operators only run in replays

    @contextlib.contextmanager
    def _guard(self, device: Any) -> Iterator[None]:
        self.guarded.append(device)
        try:
            yield
        finally:
            self.guarded.pop()

    # ------------------------------------------------------------------------------------------------- one operator

    def _launch_triton(self, call: Callable, kernel: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        if any(isinstance(a, torch.Tensor) and not isinstance(a, Cuda) for a in given):
            raise DeviceMismatch(f"{kernel.fn.__name__}: Pointer argument cannot be accessed from Triton (cpu tensor?)")
        if not self.guarded:
            raise DeviceMismatch(f"{kernel.fn.__name__}: starts on the current device, whatever that is")
        plain, named = tree_map(on_cpu, args), tree_map(on_cpu, kwargs)

        def run() -> None:
            with _disable_current_modes():
                call(kernel, *plain, **named)

        runs = self.interpret is True or (self.interpret and kernel.fn.__name__ in self.interpret)
        if runs:
            run()
        self.count_launch(f"triton:{kernel.fn.__name__}", given, ())
        if self.capturing is not None and runs:
            self.capturing.calls.append(run)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(func, args, kwargs or {})

    def handle(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Check an operator, count it, and compute it on the CPU."""
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_gpu = [t for t in tensors if isinstance(t, Cuda)]
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted).type
        if not on_gpu and wanted not in ("cuda", "fakegpu"):
            return func(*args, **kwargs)
        if not self._copies(func, args, on_gpu, wanted):
            for t in tensors:
                if isinstance(t, Cuda) or t.dim() == 0:
                    continue
                if func not in INDEXED:
                    raise DeviceMismatch(f"{func}: cpu {tuple(t.shape)} next to cuda tensors; {self._where()}")
                self.count_upload(func)
        masks = func in INDEXED and any(
            isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1]
        )
        if func in SYNCS or masks:
            self.count_sync(func)
        plain_args, plain_kwargs = tree_map(on_cpu, args), tree_map(on_cpu, kwargs)
        if wanted is not None:
            plain_kwargs["device"] = torch.device("cpu")
        with _disable_current_modes():
            out = func(*plain_args, **plain_kwargs)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if func not in NO_KERNEL and not view:
            self.count_launch(str(func.overloadpacket).removeprefix("aten."), on_gpu, tree_leaves(out))
            if self.capturing is not None:
                self.capturing.calls.append(_again(func, plain_args, plain_kwargs, out))
        known = {id(t.data_on_cpu): t for t in on_gpu}

        def wrap(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or wanted == "cpu":
                return x
            if id(x) not in known and self.capturing is not None:
                self.allocated += _n_bytes(x)
            return known[id(x)] if id(x) in known else Cuda(x)

        return out if func is aten.copy_.default and not isinstance(args[0], Cuda) else tree_map(wrap, out)

    def _copies(self, func: Any, args: tuple, on_gpu: list[Cuda], wanted: str | None) -> bool:
        """Return whether an operator copies between host and device, or would be allowed to; count the copy."""
        if func is aten._to_copy.default:
            if wanted == "cpu":
                self.count_sync(func)
            elif wanted is not None and not on_gpu:
                self.count_upload(func)
            return True
        if func is aten.copy_.default:
            if not isinstance(args[1], Cuda):
                self.count_upload(func)
            elif not isinstance(args[0], Cuda):
                self.count_sync(func)
            return True
        return False

    # ----------------------------------------------------------------------------------------------------- counting

    def _where(self) -> str:
        frames = [f for f in traceback.extract_stack()[:-3] if self.package in f.filename and __file__ != f.filename]
        return " < ".join(f"{f.filename.split('/')[-1]}:{f.lineno} {f.line}" for f in frames[-1:-3:-1])

    def count_launch(self, name: str, read: Any, written: Any, n: int = 1) -> None:
        self.launches[name] += n
        self.traffic[name] += sum(_n_bytes(on_cpu(t)) for t in (*read, *written) if isinstance(t, torch.Tensor))

    def count_sync(self, func: Any) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}; {self._where()}")
        self.syncs[f"{func.overloadpacket}: {self._where()}"] += 1

    def count_upload(self, func: Any) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"copy from pageable memory when stream is capturing: {func}; {self._where()}")
        self.uploads[f"{func.overloadpacket}: {self._where()}"] += 1


def _again(func: Any, args: Any, kwargs: Any, out: Any) -> Callable[[], None]:
    """Return a call that computes an operator again into the same results."""
    results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]

    def call() -> None:
        for old, new in zip(results, [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor)]):
            if old is not new:
                old.copy_(new)

    return call


def to_gpu(x: Any) -> Any:
    """Move the tensors of a nest to the fake GPU; a module's parameters and buffers in place, shared ones once."""
    if not isinstance(x, torch.nn.Module):
        return tree_map(lambda t: Cuda(t) if isinstance(t, torch.Tensor) and not isinstance(t, Cuda) else t, x)
    moved: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in x.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and not isinstance(p.data, Cuda):
                if p not in moved:
                    moved[p] = torch.nn.Parameter(Cuda(p.data), requires_grad=p.requires_grad)
                    vars(moved[p]).update(vars(p))
                module._parameters[name] = moved[p]
        for name, b in list(module._buffers.items()):
            if b is not None and not isinstance(b, Cuda):
                module._buffers[name] = Cuda(b)
    return x
