"""Decoding: lasformer, fairseq's transformer and CTranslate2, base size, beam 5, 8,000 words (--vocabulary).

Three kinds of work, each system in its own process, with the same number of threads and, for the dense systems, weights
of the same sizes. Systems: NAME decodes in float32, NAME_int8 in 8 bits with keys and values in float32,
NAME_int8_cache8 with these also in 8 bits. lasformer_unpacked runs a step layer by layer in PyTorch; NAME_graph replays
it from a CUDA graph. In lasformer_distinct the hypotheses share no prefix, the worst case for a cache that copies
nothing. NAME_list scores the words of a shortlist (CTranslate2: its vmap) of 50 translations of each source word and
200 frequent words.

document: the caches are filled to T tokens of random text on both sides; then STEPS steps are timed REPEAT times after
a warm-up, and the median is reported. A step consists of the decoder, the log-softmax, the best candidates of the beam,
and the reordering of the cache (fairseq's also of the source) by the same sequence of parents. CTranslate2 does not
accept an existing cache: it translates a source of T tokens to 1, 512 and 1,024 tokens; the time of a step is assumed
to grow linearly with its position, and evaluated at T. Beyond 1,024 its figure is extrapolated.

sentences (--sentences): 25 random tokens each, with frequencies by Zipf's law, translated to as many in batches of 32,
including encoder and search. end_to_end (--end-to-end): one document of such tokens, translated to as many, including
encoder and search.

On a GPU (--device cuda) the weights are in --dtype or in 8 bits, CTranslate2 is left out, a document's step takes
--rows rows (5 hypotheses of each of several documents), and peak memory is that of PyTorch's allocator.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from tqdm import tqdm

from benchmarks.devices import CPU, DTYPES, Place, add_place, place_of
from benchmarks.models import VOCABULARY, Task, build, by_zipf, shortlist
from benchmarks.peers import decode_ctranslate2, translate_ctranslate2
from benchmarks.rows import Row
from fairseq_lasformer import ops
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.decoding.cache import DecodingCache
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.beam_search import fast

BEAM = 5
BATCH = 32  # sentences
SENTENCE = 25  # tokens
KAPPA = 0.05
SYSTEMS = (
    *("transformer", "lasformer_dense", "lasformer_dense_int8", "lasformer", "lasformer_int8", "lasformer_int8_cache8"),
    *("lasformer_unpacked", "lasformer_distinct", "ctranslate2", "ctranslate2_int8"),
)
GPU_SYSTEMS = (*("transformer", "lasformer_dense", "lasformer_dense_graph", "lasformer", "lasformer_graph"),)
BASELINES = ("transformer", "ctranslate2_int8")
RATIOS = {"ratio_to_fairseq": "transformer", "ratio_to_ctranslate2_int8": "ctranslate2_int8"}


class System(NamedTuple):
    """A system, by its name.

    Attributes:
        architecture: of the model.
        int8: whether it decodes in 8 bits.
        cache8: whether keys and values are in 8 bits.
        packed: whether it is prepared for generation.
        distinct: whether hypotheses share no prefix.
        graph: whether steps are replayed from a CUDA graph.
        listed: whether a shortlist is used.
    """

    architecture: str
    int8: bool
    cache8: bool
    packed: bool
    distinct: bool
    graph: bool
    listed: bool

    @classmethod
    def named(cls, name: str) -> System:
        words = name.split("_")
        kinds = [word for word in words if word in ("int8", "cache8", "unpacked", "distinct", "graph", "list")]
        architecture = "_".join(word for word in words if word not in kinds)
        return cls(
            architecture,
            *("int8" in kinds, "cache8" in kinds),
            *("unpacked" not in kinds, "distinct" in kinds, "graph" in kinds, "list" in kinds),
        )

    def model(self, place: Place = CPU) -> Any:
        """Return the model, in evaluation mode."""
        model = build(
            self.architecture, KAPPA, run=RunOptions(int8=self.int8, int8_cache=self.cache8, cuda_graph=self.graph)
        ).eval()
        model = model.to(place.device, place.dtype)
        if self.packed:
            model.make_generation_fast_()
        return model


def fill(
    model: Any, length: int, n_documents: int, parents: Callable[[], torch.Tensor], place: Place
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return encoder output and decoding state as after ``length`` tokens on both sides, with random contents."""
    width, n_rows = model.decoder.embed_tokens.embedding_dim, n_documents * BEAM
    memory = torch.randn(length, n_documents, width, device=place.device, dtype=place.dtype)
    source = {
        "encoder_out": [memory],
        "encoder_padding_mask": [torch.zeros(n_documents, length, dtype=torch.bool, device=place.device)],
        "ends": [],
        "encoder_embedding": [],
        "encoder_states": [],
        "src_tokens": [],
        "src_lengths": [],
    }
    order = torch.arange(n_documents, device=place.device).repeat_interleave(BEAM)
    source = model.encoder.reorder_encoder_out(source, order)
    state: dict[str, Any] = {}
    if not hasattr(model, "selectors"):
        for layer in model.decoder.layers:
            shape = (n_rows, layer.self_attn.num_heads, length, layer.self_attn.head_dim)
            keys, values = (torch.randn(shape, device=place.device, dtype=place.dtype) for _ in range(2))
            held = {"prev_key": keys, "prev_value": values, "prev_key_padding_mask": None}
            layer.self_attn._set_input_buffer(state, held)
        return source, state
    cache = DecodingCache.of(state, lambda: model.decoder.new_cache(n_rows, memory.transpose(0, 1)))
    for _ in range(length):
        cache.advance()
        cache.reorder(parents())
    for layer in model.decoder.layers:
        name, selector = f"{layer.index}.self", layer.self_attn.selector
        widths = {"key": width, "value": width}
        if isinstance(selector, Selector):
            widths["selector_key"] = selector.k_proj.out_features
        for what, size in widths.items():
            numbers = torch.randn(cache.n_items, cache.used, size, device=place.device, dtype=place.dtype)
            eight = model.decoder.run_options.int8_cache and what != "selector_key"
            if eight:
                heads = layer.self_attn.num_heads
                numbers, scales = ops.quantise_heads(numbers, heads)
                cache.slots(f"{name}.{what}_scale", scales, heads)[:, : cache.used] = scales
            cache.slots(f"{name}.{what}", numbers, size)[:, : cache.used] = numbers
    return source, state


@torch.no_grad()
def decode(system: System, length: int, steps: int, repeat: int, n_documents: int, place: Place) -> list[float]:
    """Return the seconds of ``repeat`` runs of ``steps`` steps each."""
    model = system.model(place)
    # as in a real search, a hypothesis may continue any other, so all soon share a prefix; if distinct, none is
    # ever dropped
    first = torch.arange(n_documents, device=place.device)[:, None] * BEAM

    def parents() -> torch.Tensor:
        draw = torch.randperm(BEAM) if system.distinct else torch.randint(BEAM, (BEAM,))
        return (first + draw.to(place.device)).flatten()

    source, state = fill(model, length, n_documents, parents, place)
    own = system.architecture != "transformer"
    search: Any = BeamSearch(Task().target_dictionary)
    search = fast(search) if own and system.packed else search
    size = (n_documents * BEAM, length + 2 + steps * (repeat + 1))
    tokens = torch.randint(4, VOCABULARY, size, device=place.device)
    scores = torch.zeros(n_documents, BEAM, tokens.size(1), device=place.device)
    at = length + 1

    def run() -> None:
        nonlocal at, source
        for _ in range(steps):
            logits, _ = model.decoder(tokens[:, :at], encoder_out=source, incremental_state=state)
            lprobs = model.get_normalized_probs((logits, None), log_probs=True)[:, -1]
            _, best, _ = search.step(at, lprobs.view(n_documents, BEAM, -1), scores)
            tokens[:, at] = best[:, :BEAM].flatten()
            order = parents()
            model.decoder.reorder_incremental_state_scripting(state, order)
            if not own:  # fairseq's search does it in every step, ours when an item has ended
                source = model.encoder.reorder_encoder_out(source, order)
            at += 1

    return [place.seconds(run) for _ in range(repeat + 1)][1:]


@torch.no_grad()
def translate(system: System, texts: torch.Tensor, batch: int, repeat: int, place: Place) -> list[float]:
    """Return the seconds of ``repeat`` translations of all texts [M, n] to n tokens each, by beam search.

    One batch runs first as a warm-up, unless there is only one text: a long document.
    """
    model, n, texts = system.model(place), texts.size(1), texts.to(place.device)
    dictionary = Task().target_dictionary
    own = system.architecture != "transformer" and system.packed
    options: dict[str, Any] = {"beam_size": BEAM, "max_len_a": 0, "max_len_b": n - 1, "min_len": n - 1}
    if system.listed:
        options["shortlist"] = shortlist()
    generator = (BeamGenerator if own else SequenceGenerator)([model], dictionary, **options)
    seconds = []
    warm_up = texts.size(0) > 1
    for turn in range(repeat + warm_up):

        def run(some: torch.Tensor = texts[: batch if warm_up and turn == 0 else None]) -> None:
            for part in some.split(batch):
                net_input = {"src_tokens": part, "src_lengths": part.ne(1).sum(1)}
                found = generator.generate([model], {"net_input": net_input})
                assert all(hypotheses[0]["tokens"].numel() == n for hypotheses in found)

        seconds.append(place.seconds(run))
    return seconds[warm_up:]


def one(
    name: str, work: str, size: int, steps: int, repeat: int, n_documents: int = 1, place: Place = CPU
) -> tuple[float, float]:
    """Return the tokens per second of a system, and its peak resident memory in MiB.

    Args:
        name: one of :data:`SYSTEMS`.
        work: ``document``, ``sentences`` or ``end_to_end``.
        size: T of a document, or the number of sentences.
        steps, repeat: of a document; the others are repeated once.
        n_documents: number of documents whose steps are taken together.
        place: device and type of the weights.
    """
    shape = (size, SENTENCE) if work == "sentences" else (1, size)
    texts = torch.from_numpy(by_zipf(np.random.default_rng(1), math.prod(shape))).view(shape)
    texts[:, -1] = 2
    if name.startswith("ctranslate2"):
        kind = "int8" if "int8" in name else "float32"
        if work == "document":
            seconds = decode_ctranslate2(kind, size, steps)
        else:
            seconds = translate_ctranslate2(kind, texts, BATCH, repeat, name.endswith("list"))
    elif work == "document":
        seconds = decode(System.named(name), size, steps, repeat, n_documents, place)
    else:
        seconds = translate(System.named(name), texts, BATCH, repeat, place)
    tokens = steps * n_documents if work == "document" else texts.numel()
    return tokens / statistics.median(seconds), place.peak_mib()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="128,512,1024,2048,4096,8192", help="default: %(default)s")
    parser.add_argument(
        "--systems",
        help=f"default: {','.join(SYSTEMS)}; with --device cuda {','.join(GPU_SYSTEMS)}",
    )
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="words (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--sentences", type=int, default=512, help="0: leave them out (default: %(default)s)")
    parser.add_argument(
        "--end-to-end", type=int, default=2048, metavar="TOKENS", help="0: leave it out (default: 2048)"
    )
    add_place(parser, "of a document's step: a multiple of 5 (default: 5)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    place_of(args)
    systems = args.systems.split(",") if args.systems else (SYSTEMS if args.device == "cpu" else GPU_SYSTEMS)
    n_documents, over = divmod(args.rows or BEAM, BEAM)
    if over or not n_documents:
        raise InputError(f"--rows {args.rows}: expected a multiple of {BEAM}, the beam")
    works = [("document", int(t)) for t in args.lengths.split(",") if t]
    works += [(work, size) for work, size in (("sentences", args.sentences), ("end_to_end", args.end_to_end)) if size]
    for (work, size), system in (bar := tqdm([(w, s) for w in works for s in systems])):
        if work == "document" and system.endswith("_list"):
            continue  # a shortlist needs a source
        if work != "document" and system in ("lasformer_distinct", "lasformer_unpacked"):
            continue  # the histories are those of the search; the ratio of the steps is known
        case = f"T={size}" if work == "document" else f"{work}, {size}"
        if n_documents > 1 and work == "document":
            case = f"{args.rows} rows, {case}"
        if args.vocabulary != VOCABULARY:
            case = f"{args.vocabulary} words, {case}"
        if (case, system) in args.done:
            continue
        bar.set_description(f"{system} {work} {size}")
        repeat = args.repeat if work == "document" else 1
        of = (size, args.steps, repeat, n_documents, args.device, args.dtype)
        command = [sys.executable, "-m", "benchmarks.decoding", system, work, *map(str, of)]
        environment = {**os.environ, "BENCHMARK_VOCABULARY": str(args.vocabulary)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise InputError(f"{system}, {work} {size}: {done.stderr.strip().splitlines()[-1]}")
        speed, mib = json.loads(done.stdout.splitlines()[-1])
        about = {"dtype": "int8" if "int8" in system else args.dtype, "work": work}
        yield Row(case, system, "tokens_per_second", speed, about=about)
        yield Row(case, system, "peak MiB", mib, compared=False, about=about)


if __name__ == "__main__":
    where = Place(torch.device(sys.argv[7]), DTYPES[sys.argv[8]])
    print(json.dumps(one(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]), where)))
