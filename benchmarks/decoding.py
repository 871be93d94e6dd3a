"""Decoding steps per second on long documents: lasformer, fairseq's transformer and CTranslate2, base size.

One document, beam 5, float32, 8,000 words, the same weights for the dense systems, random text. The caches are filled
to T tokens on both sides; then STEPS steps are timed REPEAT times after a warm-up, and the median is reported. A step
consists of the decoder, the log-softmax, the top 10 of the beam, and the reordering of cache and source by the same
sequence of parents. The systems run one after another, each in its own process, with the same number of threads.
lasformer_distinct: the hypotheses share no prefix, the worst case for a cache that copies nothing.

CTranslate2 does not accept an existing cache and processes a prefix token by token. It therefore translates a source of
T tokens to 1, 512 and 1,024 tokens; the time of a step is assumed to grow linearly with its position, and evaluated at
T. Beyond 1,024 its figure is extrapolated. Finally, fairseq-generate is timed on one document (--end-to-end).
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.models import VOCABULARY, build
from benchmarks.rows import Row
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference.checkpoints import load
from fairseq_lasformer.nn.cache import DecodingCache
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.ops import KAPPA_ONE

ROOT = Path(__file__).resolve().parent.parent
BEAM = 5
KAPPA = 0.05
FITTED = 1024  # maximum target length at which CTranslate2 is timed
DISTINCT = "lasformer_distinct"  # lasformer with hypotheses that share no prefix
SYSTEMS = ("transformer", "lasformer_dense", "lasformer", DISTINCT, "ctranslate2", "ctranslate2_int8")
WHOLE = ("transformer", "lasformer_dense", "lasformer")  # systems of --end-to-end
BASELINES = ("transformer", "ctranslate2")


def fill(model: Any, length: int, parents: Callable[[], torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return encoder output and decoding state as after ``length`` tokens on both sides, with random contents."""
    width = model.decoder.embed_tokens.embedding_dim
    source = {
        "encoder_out": [torch.randn(length, 1, width)],
        "encoder_padding_mask": [torch.zeros(1, length, dtype=torch.bool)],
        "encoder_embedding": [],
        "encoder_states": [],
        "src_tokens": [],
        "src_lengths": [],
    }
    source = model.encoder.reorder_encoder_out(source, torch.zeros(BEAM, dtype=torch.long))
    state: dict[str, Any] = {}
    if not hasattr(model, "selectors"):
        for layer in model.decoder.layers:
            shape = (BEAM, layer.self_attn.num_heads, length, layer.self_attn.head_dim)
            held = {"prev_key": torch.randn(shape), "prev_value": torch.randn(shape), "prev_key_padding_mask": None}
            layer.self_attn._set_input_buffer(state, held)
        return source, state
    cache = DecodingCache.of(state, BEAM, 1, torch.device("cpu"))
    for _ in range(length):
        cache.advance()
        cache.reorder(parents())
    for layer in model.decoder.layers:
        name, selector = f"{layer.index}.self", layer.self_attn.selector
        widths = {"key": width, "value": width}
        if isinstance(selector, Selector):
            widths["selector_key"] = selector.k_proj.out_features
        for what, size in widths.items():
            store = torch.empty(1, cache.capacity, size)
            store[:, : cache.used].normal_()
            cache.generated[f"{name}.{what}"] = store
    return source, state


@torch.no_grad()
def decode(system: str, length: int, steps: int, repeat: int, history: str = "beam") -> tuple[list[float], float]:
    """Return the seconds of ``repeat`` runs of ``steps`` steps each, and the peak resident memory in MiB."""
    model = build(system, KAPPA).eval()
    # "beam": as in a real search, a hypothesis may continue any other, so that all soon share a prefix; "distinct":
    # none is ever dropped and they share nothing, the worst case for a cache that copies nothing
    parents = (lambda: torch.randint(BEAM, (BEAM,))) if history == "beam" else (lambda: torch.randperm(BEAM))
    source, state = fill(model, length, parents)
    tokens = torch.randint(4, VOCABULARY, (BEAM, length + 2 + steps * (repeat + 1)))
    seconds, at = [], length + 1
    for _ in range(repeat + 1):
        start = time.perf_counter()
        for _ in range(steps):
            logits, _ = model.decoder(tokens[:, :at], encoder_out=source, incremental_state=state)
            scores = logits[:, -1].log_softmax(-1)
            _, best = scores.view(-1).topk(2 * BEAM)
            tokens[:, at] = best[:BEAM] % VOCABULARY
            order = parents()
            model.decoder.reorder_incremental_state_scripting(state, order)
            source = model.encoder.reorder_encoder_out(source, order)
            at += 1
        seconds.append(time.perf_counter() - start)
    return seconds[1:], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def decode_ctranslate2(compute_type: str, length: int, steps: int, repeat: int) -> tuple[list[float], float]:
    """The same for CTranslate2 with the weights of fairseq's transformer; the module docstring explains how."""
    import ctranslate2
    from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder

    spec = ctranslate2.specs.TransformerSpec.from_config(num_layers=(6, 6), num_heads=8, pre_norm=False)
    model = build("transformer", KAPPA).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    words = [f"w{i}" for i in range(VOCABULARY)]
    for side in (model.encoder, model.decoder):
        side.embed_positions.weights = side.embed_positions.get_embedding(length + 2 * steps + 8, 512, 1)
    set_transformer_encoder(spec.encoder, model.encoder)
    set_transformer_decoder(spec.decoder, model.decoder)
    names = ["<s>", "<pad>", "</s>", "<unk>", *words[4:]]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.optimize(quantization=None if compute_type == "float32" else compute_type)
        spec.save(folder)
        del model, spec
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=1, intra_threads=threads)
        text = [names[int(i)] for i in torch.randint(4, VOCABULARY, (length,))]

        def run(tokens: int) -> float:
            start = time.perf_counter()
            translator.translate_batch(
                [text],
                beam_size=BEAM,
                min_decoding_length=tokens,
                max_decoding_length=tokens,
                max_input_length=0,
            )
            return time.perf_counter() - start

        run(2)
        encoding, half, whole = (run(n) for n in (1, FITTED // 2, FITTED))
    growth = 4 * (whole - 2 * half + encoding) / FITTED**2
    first = (half - encoding) / (FITTED // 2) - growth * FITTED / 4
    seconds = [steps * (first + max(0.0, growth) * (length + steps / 2))]
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(system: str, length: int, steps: int, repeat: int) -> tuple[float, float]:
    """Return the steps per second of a system, and its peak resident memory in MiB."""
    work: Callable[..., Any] = decode
    name = system
    if system.startswith("ctranslate2"):
        work, name = decode_ctranslate2, "int8" if system.endswith("int8") else "float32"
    if system == DISTINCT:
        work, name = partial(decode, history="distinct"), "lasformer"
    seconds, rss = work(name, length, steps, repeat)
    return steps / statistics.median(seconds), rss


def end_to_end(length: int, systems: Sequence[str]) -> list[Row]:
    """Time fairseq-generate on one document of ``length`` random tokens per side.

    The output length is forced and the weights are random. The seconds are those that fairseq reports: reading,
    encoder, search and detokenisation, without start-up.
    """
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [f"w{i}" for i in range(4, VOCABULARY)]
        text = [words[int(i)] for i in torch.randint(len(words), (length - 1,))]
        for side in ("en", "de"):
            (folder / f"test.{side}").write_text(" ".join(text) + "\n")
            (folder / f"train.{side}").write_text("".join(f"{w}\n" for w in words))
        fairseq("preprocess", "-s", "en", "-t", "de", "--testpref", folder / "test", "--trainpref", folder / "train",
                "--joined-dictionary", "--destdir", folder / "data")  # fmt: skip
        common = [folder / "data", "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"]
        common += ["-s", "en", "-t", "de", "--max-source-positions", 8192, "--max-target-positions", 8192]
        for system in (s for s in systems if s in WHOLE):
            fairseq("train", *common, "--arch", system, "--share-all-embeddings",
                    "--criterion", "label_smoothed_cross_entropy_with_selection", "--optimizer", "sgd", "--lr", 0.0,
                    "--max-update", 1, "--batch-size", 2, "--disable-validation", "--no-epoch-checkpoints",
                    "--save-dir", folder / system)  # fmt: skip
            path = folder / system / "checkpoint_last.pt"
            state = load(path)
            for key, value in state["model"].items():
                if key.endswith(".selector.kappa"):
                    value.fill_(round(KAPPA * KAPPA_ONE))
            torch.save(state, path)
            forced = ["--min-len", length - 1, "--max-len-a", 0, "--max-len-b", length - 1]
            log = fairseq("generate", *common, "--path", path, "--beam", BEAM, *forced, "--max-tokens", length)
            tokens, seconds = re.search(r"\(([\d,]+) tokens\) in ([\d.]+)s", log).groups()  # type: ignore[union-attr]
            n_tokens = int(tokens.replace(",", ""))
            found.append(Row(f"fairseq-generate, {n_tokens} tokens", system, "seconds", float(seconds)))
    return found


def fairseq(tool: str, *arguments: object) -> str:
    """Run one of fairseq's tools; return its output."""
    command = [sys.executable, "-m", f"fairseq_cli.{tool}", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"error: fairseq-{tool}: {done.stdout.strip().splitlines()[-1]}")
    return done.stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="1024,2048,4096,8192", help="default: %(default)s")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--end-to-end", type=int, default=2048, metavar="TOKENS", help="0: leave fairseq-generate out (default: 2048)"
    )


def measure(args: argparse.Namespace) -> list[Row]:
    cases = [(int(t), system) for t in args.lengths.split(",") for system in args.systems.split(",")]
    rows: list[Row] = []
    for length, system in (bar := tqdm(cases)):
        bar.set_description(f"{system} {length}")
        command = [sys.executable, "-m", "benchmarks.decoding", system, str(length), str(args.steps), str(args.repeat)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise InputError(f"{system} at {length}: {done.stderr.strip().splitlines()[-1]}")
        steps, mib = json.loads(done.stdout.splitlines()[-1])
        rows.append(Row(f"T={length}", system, "steps/s", steps))
        rows.append(Row(f"T={length}", system, "peak MiB", mib, compared=False))
    return rows + (end_to_end(args.end_to_end, args.systems.split(",")) if args.end_to_end else [])


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:5]))))
