"""Training steps on a GPU, for ``python -m benchmarks.gpu``, and their time on the device.

Base size, beside ``lasformer_dense``, with the kernels that take most of the device's time. Kappa as in training: all
keys, what a decoder has after a while, and the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.devices import Place
from benchmarks.rows import Row
from benchmarks.training import model_of, step

SIZES = ((4, 4096), (32, 512))
KAPPAS = (0.05, 1.0, 0.25)
FIRST = 12  # kernels listed


def steps(place: Place, quick: bool) -> Iterator[Row]:
    """Yield milliseconds of steps, and of their kernels."""
    for n_batch, length in ((1, 32),) if quick else SIZES:
        case = f"step, {n_batch} x {length}"
        systems = {"lasformer_dense": ("lasformer_dense", 1.0)}
        systems |= {f"lasformer, kappa {kappa}": ("lasformer", kappa) for kappa in KAPPAS[: 1 if quick else None]}
        for name, (system, kappa) in systems.items():
            model = model_of(system, kappa, "auto", "float32").to(place.device, place.dtype)
            run = partial(step, model, length, n_batch, place)
            yield Row(case, name, "eager, ms", 1000 * _best(run, quick), compared=False)
            if place.device.type != "cuda":
                continue
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                run()
            kernels = {e.key: e.self_device_time_total / 1000 for e in profiled.key_averages()}
            kernels = {key: ms for key, ms in kernels.items() if ms > 0}
            yield Row(case, name, "on the device, ms", sum(kernels.values()), compared=False)
            for key in sorted(kernels, key=lambda key: -kernels[key])[:FIRST]:
                yield Row(case, name, f"{key[:60]}, ms", kernels[key], compared=False)
            del model, run
            torch.cuda.empty_cache()


def _best(work: partial[float], quick: bool) -> float:
    """Return the least seconds of three calls, after three others."""
    for _ in range(0 if quick else 3):
        work()
    return min(work() for _ in range(1 if quick else 3))
