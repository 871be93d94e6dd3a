"""All measurements on a machine with a GPU, in one call: ``python -m benchmarks.gpu`` (scripts/gpu.sh).

Sections, what matters most first: facts; correct (each kernel against its definition, in three types of numbers at a
time); operations and steps of training; decoding (160 rows); starts (trainings from an empty cache); search (beam
search, eager and in a CUDA graph, against plain PyTorch); kernels (of decoding, and a full pass beside flex_attention);
and the benchmarks one_document, training, sentences, prefill and moe, each in its own process. At the end, figures are
held to their bars (``bars``). A failing section leaves its error in OUT/gpu.json, and the next one runs. The file is
rewritten with every row, and what is left when ``--seconds`` are over is named.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.bars import judged
from benchmarks.devices import DTYPES, Place
from benchmarks.interpreter import exact_bfloat16
from benchmarks.models import VOCABULARY, Task, build
from benchmarks.operations import BEAM, HEAD_DIM, HEADS, KAPPA, SELECT_DIM, operations, step_selection
from benchmarks.rows import Row, table
from benchmarks.starts import starts
from benchmarks.steps import steps
from fairseq_lasformer import ops
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.machine import machine
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import AttentionMask, KeyIndex, reference
from fairseq_lasformer.search.beam_loop import BeamGenerator

# largest relative error, by the norm: about five times that of PyTorch's own attention in the type
TOLERANCE = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}

BENCHMARKS = {
    "training": ("training --lengths 1024,4096 --kappas 0.2,0.05 --repeat 3", "--lengths 32 --kappas 0.05 --repeat 1"),
    "sentences": ("training --lengths 32 --rows 128 --kappas 1.0,0.05 --repeat 3", ""),
    "decoding": (
        "decoding --lengths 4096,1024,16384 --rows 160 --steps 32 --repeat 2 --sentences 0 --end-to-end 0",
        "decoding --lengths 32 --steps 2 --repeat 1 --sentences 0 --end-to-end 0 --systems transformer,lasformer",
    ),
    "one_document": (
        "decoding --lengths 4096,128,1024,16384 --steps 32 --repeat 2 --sentences 96 --end-to-end 1024",
        "",
    ),
    "prefill": ("prefill --lengths 1024,4096,8192 --kappas 0.05 --repeat 3", ""),
    "moe": ("moe --tokens 4096 --repeat 3", ""),
}


def facts(place: Place, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine()}
    if place.device.type == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {"gpu": about.name, "capability": f"{about.major}.{about.minor}", "bytes": about.total_memory}
        found["processors"] = about.multi_processor_count
        target = torch.empty(2**28, device=place.device)
        source = torch.empty_like(target)
        seconds = min(place.seconds(lambda: target.copy_(source)) for _ in range(5))
        found["copy GB/s"] = 2 * target.numel() * 4 / seconds / 1e9
    return found


def correct(place: Place, quick: bool) -> Iterator[Row]:
    """Yield the errors of the kernels, one process per type of numbers; raise if one is too large."""
    wrong: list[str] = []
    with ProcessPoolExecutor(len(DTYPES), get_context("spawn")) as pool:
        for rows, of_type in pool.map(partial(_correct_in, str(place.device), quick), DTYPES):
            yield from rows
            wrong += of_type
    if wrong:
        raise ArithmeticError("; ".join(wrong))


def _correct_in(device: str, quick: bool, dtype: str) -> tuple[list[Row], list[str]]:
    """Return the errors in one type of numbers, and which of them are too large."""
    if device == "cpu":
        exact_bfloat16()
    rows, wrong = [], []
    for n_queries, n_keys in ((40, 40),) if quick else ((1, 1), (63, 111), (129, 129), (1000, 1000), (64, 2200)):
        for causal in (False, n_queries == n_keys):
            for name, error in _errors(torch.device(device), DTYPES[dtype], n_queries, n_keys, causal).items():
                case = f"{dtype}, {n_queries} x {n_keys}{', causal' if causal else ''}"
                rows.append(Row(case, name, "error", error, compared=False))
                if not error <= TOLERANCE[dtype]:
                    wrong.append(f"{name}, {case}: {error:.2g}")
    return rows, wrong


def _errors(device: torch.device, dtype: torch.dtype, n_queries: int, n_keys: int, causal: bool) -> dict[str, float]:
    torch.manual_seed(n_keys)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    projections = [random(2, 3, n, HEAD_DIM) for n in (n_queries, n_keys, n_keys)]
    sel_q, sel_k = random(2, n_queries, SELECT_DIM), random(2, n_keys, SELECT_DIM)
    errors: dict[str, float] = {}
    padding = torch.zeros(2, n_keys, dtype=torch.bool, device=device)
    padding[1, : n_keys // 4] = True
    mask = AttentionMask(padding, causal)
    whole = AttentionMask(None, causal)  # without padding, numbers of keys come from the host
    for name, some, kappa in (("bits, all kept", whole, 1_000_000), ("bits, half kept", whole, 500_000)):
        kept = ops.mask_of(ops.topk_bitmask(sel_q, sel_k, some, kappa), n_keys)
        n_allowed = some.full(2, n_queries, n_keys, device).sum(-1)
        errors[name] = float((kept.sum(-1) != reference.keep_counts(n_allowed, kappa)).sum())
    bits = ops.topk_bitmask(sel_q, sel_k, mask, 200_000)
    keep, full = ops.mask_of(bits, n_keys), mask.full(2, n_queries, n_keys, device)
    chosen = reference.keep_counts(full.sum(-1), 200_000)
    errors["bits"] = float((keep.sum(-1) != chosen).sum() + (keep & ~full).sum())
    leaves = [*projections, sel_q, sel_k]
    exact = [p.detach().float().requires_grad_() for p in leaves]
    q, k, v, *selectors = exact
    expected = reference.selected_attention(q, k, v, keep, mask, ops.StraightThrough(*selectors))
    found = ops.tiled_attention(*projections, bits, mask, ops.StraightThrough(sel_q, sel_k))
    d_out = torch.randn_like(expected)
    pairs = {"forward": (found, expected)}
    names = ("dq", "dk", "dv", "selector's dq", "selector's dk")
    gradients = zip(
        torch.autograd.grad(found, leaves, d_out.to(dtype)), torch.autograd.grad(expected, exact, d_out), strict=True
    )
    pairs |= dict(zip(names, gradients, strict=True))
    lesson = reference.supervise(*selectors, ops.Teachers([q], [k]), keep, mask)
    taught = ops.tiled_supervise(sel_q, sel_k, ops.Teachers([leaves[0]], [leaves[1]]), bits, mask)
    pairs["supervision"] = (taught.kl / taught.queries, lesson.kl / lesson.queries)
    pairs["kept mass"] = (taught.mass / taught.queries, lesson.mass / lesson.queries)
    chosen_leaves = (0, 1, 3, 4)
    theirs = torch.autograd.grad(lesson.kl, [exact[i] for i in chosen_leaves])
    ours = torch.autograd.grad(taught.kl, [leaves[i] for i in chosen_leaves])
    for i, mine, yours in zip(chosen_leaves, ours, theirs, strict=True):
        pairs[f"supervision's {names[i]}"] = (mine, yours)
    start, count = torch.zeros(2, dtype=torch.long, device=device), (~padding).sum(1)
    index = KeyIndex(None, padding.sum(1) + start, count, n_keys)
    keys, values = (random(2, n_keys, HEADS * HEAD_DIM).detach() for _ in range(2))
    step = random(2 * BEAM, HEADS * HEAD_DIM).detach()
    kept = ops.topk_indices(random(2 * BEAM, SELECT_DIM).detach(), sel_k.detach(), index, 200_000, "triton")
    if kept is not None:
        own = reference.attend_kept(step.float(), keys.float(), values.float(), kept, HEADS)
        pairs["step"] = (ops.attend_kept(step, keys, values, None, kept, HEADS, "triton"), own)
    of_values = float(pairs["dv"][1].norm())
    for name, (ours, theirs) in pairs.items():
        expected = theirs.detach().float()
        if name in ("dq", "dk") and float(expected.norm()) < 1e-5 * of_values:
            # 0 by the formula, as of a single key: dO . V - dO . O is noise, at most a share of the values' gradient
            most = (1e-5 if dtype == torch.float32 else 2e-2) * of_values
            errors[name] = TOLERANCE[str(dtype).removeprefix("torch.")] * float(ours.detach().norm()) / most
            continue
        # a loss of a single key is 0, but for rounding
        tiny = 1e-6 if dtype == torch.float32 and name != "supervision" else 1e-3
        least = tiny * expected.numel() ** 0.5
        errors[name] = float((ours.detach().float() - expected).norm() / expected.norm().clamp(min=least))
    return errors


@torch.no_grad()
def search(place: Place, quick: bool) -> list[Row]:
    """Translate by kernels, eager and in a graph, and by plain PyTorch; raise if the translations differ."""
    source = torch.randint(4, VOCABULARY, (2, 8 if quick else 200), device=place.device)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    found = {}
    for name, run in {
        "reference": RunOptions("reference"),
        "triton": RunOptions("triton"),
        **({"graph": RunOptions("triton", cuda_graph=True)} if place.device.type == "cuda" else {}),
    }.items():
        model = build("lasformer", 0.2, run=run).eval().to(place.device)
        generator = BeamGenerator(
            [model], Task().target_dictionary, beam_size=2, max_len_a=0, max_len_b=6 if quick else 100
        )
        found[name] = [h[0]["tokens"].tolist() for h in generator.generate([model], sample)]
    first = None if quick else 20  # untrained weights: a near tie may go either way later on
    same = {
        name: sum(a[:first] == b[:first] for a, b in zip(tokens, found["reference"])) for name, tokens in found.items()
    }
    if set(same.values()) != {2}:
        raise ArithmeticError(f"documents translated as by plain PyTorch, of 2: {same}")
    return [Row("search", name, "documents alike", n, compared=False) for name, n in same.items()]


def linears(place: Place, quick: bool) -> list[Row]:
    """Return the milliseconds of a linear layer of few rows."""
    rows = []
    for inputs, outputs in ((64, 64),) if quick else ((512, 512), (512, 2048), (2048, 512), (512, 32000)):
        weight = torch.randn(outputs, inputs, device=place.device, dtype=place.dtype)
        for n_rows in (5,) if quick else (5, 40, 160):
            x = torch.randn(n_rows, inputs, device=place.device, dtype=place.dtype)
            seconds = _median(place, partial(F.linear, x, weight))
            rows.append(Row(f"{n_rows} x {inputs} x {outputs}", "linear", "ms", 1000 * seconds, compared=False))
    return rows


def kernels(place: Place, quick: bool) -> list[Row]:
    """Return the milliseconds of the kernels of a step, and of a full pass next to ``scaled_dot_product_attention``."""
    rows = linears(place, quick)
    device, dtype, width = place.device, place.dtype, HEADS * HEAD_DIM
    for n_rows in (5,) if quick else (5, 40, 160, 320):
        for length in (64,) if quick else (1024, 4096, 16384):
            n_items, case = n_rows // BEAM, f"step, {n_rows} rows, T={length}"
            select = step_selection(place, n_rows, length)
            kept = select()
            assert kept is not None
            store = torch.randn(n_items, length, width, device=device, dtype=dtype)
            query = torch.randn(n_rows, width, device=device, dtype=dtype)
            attend = partial(ops.attend_kept, query, store, store, None, kept, HEADS, "triton")
            size = store.element_size()
            moved = {
                "select": n_items * length * SELECT_DIM * size,
                "attend": 2 * n_rows * int(kept.counts[0]) * width * size,
            }
            for name, work in (("select", select), ("attend", attend)):
                rows.append(Row(case, name, "ms", 1000 * _median(place, work), compared=False))
                rows.append(Row(case, name, "MB to move", moved[name] / 1e6, compared=False))
    for length in (64,) if quick else (1024, 4096, 8192):
        q = torch.randn(1, HEADS, length, HEAD_DIM, device=device, dtype=dtype, requires_grad=True)
        selectors = torch.randn(2, 1, length, SELECT_DIM, device=device, dtype=dtype)
        mask = AttentionMask(None, True)
        bits = ops.topk_bitmask(*selectors, mask, KAPPA)
        kept = ops.mask_of(bits, length)
        systems: dict[str, Callable[[], torch.Tensor]] = {
            "tiles": partial(ops.tiled_attention, q, q, q, bits, mask),
            "flex_attention, the same keys": flexible(q, kept),
            "sdpa": partial(F.scaled_dot_product_attention, q, q, q, is_causal=True),
        }
        preparations: dict[str, Callable[[], object]] = {
            "select": partial(ops.topk_bitmask, *selectors, mask, KAPPA),
            "block mask of flex_attention": partial(block_mask, kept),
        }
        for name, prepare in preparations.items():
            rows.append(Row(f"full pass, T={length}", name, "ms", 1000 * _median(place, prepare), compared=False))
        for name, work in systems.items():
            rows.append(Row(f"full pass, T={length}", name, "ms", 1000 * _median(place, work), compared=False))
            out = work()
            if not out.requires_grad:
                continue
            both = partial(torch.autograd.grad, out, q, torch.randn_like(out), retain_graph=True)
            rows.append(
                Row(f"full pass, T={length}", f"{name} backward", "ms", 1000 * _median(place, both), compared=False)
            )
    return rows


def block_mask(kept: torch.Tensor) -> BlockMask:
    """Return the kept keys, bool [1, T, T], in the form of PyTorch's flex_attention, without blocks that have none."""
    length = kept.size(-1)
    return create_block_mask(lambda b, h, i, j: kept[0, i, j], None, None, length, length, device=str(kept.device))


def flexible(q: torch.Tensor, kept: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return flex_attention over the kept keys: compiled, as intended, but not on a CPU, where it has no gradients."""
    attention: Any = torch.compile(flex_attention, dynamic=False)
    if q.device.type == "cpu":
        attention, q = flex_attention, q.detach()
    return partial(attention, q, q, q, block_mask=block_mask(kept))


def _median(place: Place, work: Callable[[], object], repeat: int = 20) -> float:
    if place.device.type == "cpu":
        return place.seconds(work)
    for _ in range(3):
        work()
    return sorted(place.seconds(work) for _ in range(repeat))[repeat // 2]


def benchmark(name: str, options: argparse.Namespace, seconds: float) -> Iterator[Row]:
    """Run a benchmark in a process of its own; yield its rows, then raise if it failed or was cut off."""
    full, quick = BENCHMARKS[name]
    words = (f"{full.split()[0]} {quick.removeprefix(full.split()[0])}" if options.quick else full).split()
    out = options.out / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks", *words, "--device", options.device, "--out", str(out)]
    command += ["--dtype", "float32" if options.device == "cpu" else "bfloat16"]
    out.unlink(missing_ok=True)
    # a separate session: benchmarks start processes, which would stay on the GPU
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = f"cut off after {seconds:.0f} seconds"
    for r in json.loads(out.read_text())["rows"] if out.exists() else []:
        yield Row(r["case"], r["system"], r["metric"], r["value"])
    if process.returncode:
        raise RuntimeError("\n".join(said.strip().splitlines()[-5:]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--seconds", type=float, default=145, help="seconds for all sections (default: 145)")
    parser.add_argument("--quick", action="store_true", help="use the smallest sizes, to try the script")
    parser.add_argument("--sections", default=",".join(ORDER))
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # otherwise, importing fairseq shows the log lines of all libraries
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no GPU; DEVICE=cpu QUICK=1 tries the script without one")
    if options.device == "cpu":
        exact_bfloat16()
    place = Place(torch.device(options.device), torch.float32 if options.device == "cpu" else torch.bfloat16)
    started, results, failed = time.monotonic(), {}, []
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.sections.split(","):
        left = options.seconds - (time.monotonic() - started)
        if name in BENCHMARKS and options.quick and not BENCHMARKS[name][1]:
            continue
        print(f"== {name}", flush=True)
        begin, rows = time.monotonic(), []
        try:
            for found in section(name, place, options, left):
                if isinstance(found, Row):
                    rows.append(found)
                    results[name] = {"rows": [vars(row) for row in rows]}
                else:
                    results[name] = found
                    print(json.dumps(found, indent=1))
                written(options.out, results)
                if time.monotonic() - begin > left:
                    raise TimeoutError(f"cut off: {options.seconds:.0f} seconds are over")
        except Exception as e:
            failed.append(name)
            results[name] = {"error": traceback.format_exc(), "rows": [vars(row) for row in rows]}
            print(f"FAILED: {type(e).__name__}: {str(e)[:2000]}", flush=True)
        if rows:
            print(table(rows, ("transformer", "dense")))
        results.setdefault("seconds", {})[name] = math.ceil(time.monotonic() - begin)
        written(options.out, results)
    print("== bars", *judged(results), sep="\n")
    print("failed: " + ", ".join(failed) if failed else f"all sections ran; {options.out}/gpu.json")
    return bool(failed)


def section(name: str, place: Place, options: argparse.Namespace, left: float) -> Iterator[Any]:
    """Yield the rows of a section, or the facts."""
    if left < 1:
        raise TimeoutError(f"{options.seconds:.0f} seconds are over")
    if name in BENCHMARKS:
        yield from benchmark(name, options, left)
        return
    found = SECTIONS[name](place, options.quick)
    yield from [found] if isinstance(found, dict) else found


def written(out: Path, results: dict[str, Any]) -> None:
    """Write what has been found so far."""
    atomic_write(out / "gpu.json", json.dumps(results, indent=1, default=dict) + "\n")


SECTIONS: dict[str, Callable[[Place, bool], Any]] = {
    "facts": facts,
    "correct": correct,
    "operations": operations,
    "steps": steps,
    "starts": starts,
    "search": search,
    "kernels": kernels,
}
ORDER = ["facts", "correct", "operations", "steps", "decoding", "starts", "search", "kernels"]
ORDER += [name for name in BENCHMARKS if name not in ORDER]

if __name__ == "__main__":
    sys.exit(main())
