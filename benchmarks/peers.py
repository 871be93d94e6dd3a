"""CTranslate2 with the weights of fairseq's transformer, at its best: its own batching, packing where it packs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import VOCABULARY, build, shortlist

BEAM = 5
FITTED = 1024  # longest translation timed for a step's figure


@contextlib.contextmanager
def translator(compute_type: str, longest: int, listed: bool = False) -> Iterator[tuple[Any, list[str]]]:
    """A translator and the words by index.

    Args:
        compute_type: ``float32`` or ``int8``.
        longest: tokens of the longest text.
        listed: give it the shortlist (``vmap``).
    """
    import ctranslate2
    from ctranslate2.converters.fairseq import set_transformer_decoder, set_transformer_encoder

    spec = ctranslate2.specs.TransformerSpec.from_config(num_layers=(6, 6), num_heads=8, pre_norm=False)
    model = build("transformer").eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for side in (model.encoder, model.decoder):
        side.embed_positions.weights = side.embed_positions.get_embedding(longest + 8, 512, 1)
    set_transformer_encoder(spec.encoder, model.encoder)
    set_transformer_decoder(spec.decoder, model.decoder)
    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCABULARY))]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.optimize(quantization=None if compute_type == "float32" else compute_type)
        spec.save(folder)
        if listed:
            Path(folder, "vmap.txt").write_text(_vmap(names))
        del model, spec
        threads = torch.get_num_threads()
        yield ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=1, intra_threads=threads), names


def _vmap(names: list[str]) -> str:
    """Return the shortlist as CTranslate2 reads it: words on every list, then the translations of each word."""
    some = shortlist()
    lines = ["\t" + " ".join(names[word] for word in [*range(4), *some.frequent])]
    for word, (start, end) in enumerate(zip(some.starts, some.starts[1:])):
        lines.append(names[word] + "\t" + " ".join(names[its] for its in [word, *some.words[start:end]]))
    return "\n".join(lines) + "\n"


def decode_ctranslate2(compute_type: str, length: int, steps: int) -> list[float]:
    """Return the estimated seconds of ``steps`` steps after ``length`` tokens; see the benchmark's description."""
    with translator(compute_type, max(length, FITTED) + 2 * steps) as (model, names):
        text = [names[int(i)] for i in torch.randint(4, VOCABULARY, (length,))]

        def run(tokens: int) -> float:
            start = time.perf_counter()
            model.translate_batch(
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
    return [steps * (first + max(0.0, growth) * (length + steps / 2))]


def translate_ctranslate2(
    compute_type: str, texts: torch.Tensor, batch: int, repeat: int, listed: bool = False
) -> list[float]:
    """Return the seconds of ``repeat`` translations of all texts [M, n] to n tokens each."""
    n = texts.size(1) - 1  # it adds the end itself
    with translator(compute_type, n, listed) as (model, names):
        words = [[names[int(i)] for i in text[:-1]] for text in texts]
        seconds = []
        warm_up = len(words) > 1
        for turn in range(repeat + warm_up):
            start = time.perf_counter()
            model.translate_batch(
                words[:batch] if warm_up and turn == 0 else words,
                beam_size=BEAM,
                min_decoding_length=n,
                max_decoding_length=n,
                max_input_length=0,
                max_batch_size=batch,
                use_vmap=listed,
            )
            seconds.append(time.perf_counter() - start)
        return seconds[warm_up:]
