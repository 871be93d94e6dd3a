"""Models imported from Hugging Face's library, compared with CTranslate2 on the same folder.

Each is a random model of the size of OPUS-MT or of NLLB's 600 million parameters. Lines of random words, with
frequencies by Zipf's law, are translated to lines of as many words each, with a beam of 5. CTranslate2 runs in 8 bits
and sorts and batches by itself. With ``--shortlist``, both score only the same 200 frequent words and 50 translations
of each word.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import Row, in_turns
from benchmarks.to_ctranslate2 import to_ctranslate2
from fairseq_lasformer.apps.models.huggingface.importing import import_model
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.shortlist import Shortlist
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.documents.source import Source
from fairseq_lasformer.text.documents import Span

BASELINES = ("CTranslate2 int8",)
SIZES = {"opus": (6, 512, 2048, 8, 65001), "nllb": (12, 1024, 4096, 16, 256206), "opus-tiny": (2, 32, 64, 2, 1001)}
BEAM, LANGUAGES = 5, ("de", "fr")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["opus"], help="default: opus")
    parser.add_argument("--lines", type=int, default=96, help="default: %(default)s")
    parser.add_argument("--words", type=int, default=24, help="words per line (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=48, help="CTranslate2's lines per batch (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--shortlist", action="store_true")


def write_model(folder: Path, size: str) -> None:
    """Write a random model as its library does, with a vocabulary of made-up words."""
    from sentencepiece import SentencePieceTrainer
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer, MarianConfig, MarianMTModel

    layers, dim, inner, heads, n_words = SIZES[size]
    text = iter(" ".join(f"w{i * j % 997}" for i in range(1, 30)) for j in range(1, 300))
    SentencePieceTrainer.train(
        sentence_iterator=text, model_prefix=str(folder / "m"), vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    sizes: dict[str, Any] = {"d_model": dim, "scale_embedding": True, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads}
    torch.manual_seed(1)
    if size.startswith("opus"):
        words = ["</s>", "<unk>", *(f"w{i}" for i in range(n_words - 3)), "<pad>"]
        for name in ("source.spm", "target.spm"):
            (folder / name).write_bytes((folder / "m.model").read_bytes())
        (folder / "vocab.json").write_text(json.dumps({word: row for row, word in enumerate(words)}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
        pad = n_words - 1
        special = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0}
        MarianMTModel(
            MarianConfig(vocab_size=n_words, activation_function="swish", **special, **sizes)
        ).save_pretrained(folder)
        return
    words = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(n_words - 112))]
    (folder / "sentencepiece.bpe.model").write_bytes((folder / "m.model").read_bytes())
    (folder / "vocab.json").write_text(json.dumps({word: row for row, word in enumerate(words)}))
    paths = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    M2M100Tokenizer(*paths, src_lang=LANGUAGES[0], tgt_lang=LANGUAGES[1]).save_pretrained(folder)
    M2M100ForConditionalGeneration(
        M2M100Config(vocab_size=n_words, activation_function="relu", **sizes)
    ).save_pretrained(folder)


def ours(folder: Path, texts: torch.Tensor, dtype: str, listed: Shortlist | None) -> Callable[[], float]:
    """Return a function that translates all texts and returns the seconds."""
    model, n = load_model(folder, device="cpu", decode_dtype=dtype), texts.size(1)
    translator = model.translator(BEAM, max_len_a=0, max_len_b=n + bool(model.settings.target_tag), min_len=n)
    translator.generator.shortlist, translator.task.cfg.shortlist = listed, "given" if listed else ""
    document = Source(list(texts), [Span(0, i, 1) for i in range(len(texts))])

    def run() -> float:
        start = time.perf_counter()
        (lines,) = translator.translate([document], "cpu")
        seconds = time.perf_counter() - start
        if {len(line.tokens) for line in lines} - {n, n + 1}:
            raise InputError("the translations do not have the requested length")
        return seconds

    return run


def theirs(folder: Path, names: list[list[str]], tag: str, args: argparse.Namespace) -> Callable[[], float]:
    """Return the same for CTranslate2."""
    import ctranslate2

    n = args.words
    model = ctranslate2.Translator(str(folder), compute_type="int8", inter_threads=1, intra_threads=args.threads)
    prefix = [[tag]] * len(names) if tag else None

    def run() -> float:
        start = time.perf_counter()
        model.translate_batch(
            names,
            target_prefix=prefix,
            beam_size=BEAM,
            min_decoding_length=n,
            max_decoding_length=n,
            max_batch_size=args.batch,
            use_vmap=args.shortlist,
        )
        return time.perf_counter() - start

    return run


def _by_zipf(draw: np.random.Generator, n_words: int, size: int) -> np.ndarray:
    """Draw words with frequencies by Zipf's law, int64 [size]; no special ones and no tags."""
    odds = 1 / np.arange(1, n_words - 200)
    return draw.choice(np.arange(4, n_words - 197), size, p=odds / odds.sum())


def _list(n_words: int) -> Shortlist:
    """Return the most frequent words, and translations of each word."""
    draw = np.random.default_rng(7)
    starts = np.arange(n_words + 1) * 50
    words = _by_zipf(draw, n_words, n_words * 50)
    return Shortlist(np.arange(4, 204), starts, words, np.arange(n_words), n_words)


def measure(args: argparse.Namespace) -> Iterator[Row]:
    from ctranslate2.converters import TransformersConverter

    torch.set_num_threads(args.threads)
    for size in args.sizes:
        case = f"{size}, {args.lines} lines of {args.words} words" + (", shortlist" if args.shortlist else "")
        with tempfile.TemporaryDirectory() as top:
            original, made, converted = (Path(top, name) for name in ("original", "made", "converted"))
            original.mkdir()
            write_model(original, size)
            start = time.perf_counter()
            import_model(original, made, LANGUAGES, check=False)
            yield Row(case, "import", "seconds", time.perf_counter() - start, compared=False)
            if size.startswith("opus"):
                TransformersConverter(str(original)).convert(str(converted), quantization="int8")
            else:  # its converter does not find the languages in M2M-100 models written by transformers 5
                to_ctranslate2(made, converted, quantisation="int8")
            words = _by_zipf(np.random.default_rng(2), SIZES[size][-1], args.lines * args.words)
            texts = torch.from_numpy(words).view(args.lines, args.words)
            model = load_model(made, device="cpu")
            listed = _list(len(model.tgt_dict)) if args.shortlist else None
            tags = model.settings.tags
            names = [[*([tags[0]] if tags[0] else []), *(model.src_dict[int(i)] for i in row), "</s>"] for row in texts]
            if listed:
                known = model.tgt_dict.symbols
                lines = ["\t" + " ".join(known[i] for i in [*range(4), *listed.frequent] if known[i] != "<s>")]
                for row in {int(i) for text in texts for i in text}:
                    its = listed.words[listed.starts[row] : listed.starts[row + 1]]
                    lines.append(known[row] + "\t" + " ".join(known[i] for i in [row, *its]))
                (converted / "vmap.txt").write_text("\n".join(lines) + "\n")
            del model
            work = {
                "lasformer_dense int8": ours(made, texts, "int8", listed),
                "CTranslate2 int8": theirs(converted, names, tags[1], args),
                "lasformer_dense": ours(made, texts, "float32", listed),
            }
            for system, seconds in in_turns(work, args.repeat, case).items():
                yield Row(case, system, "words/s", args.lines * args.words / seconds)
