"""Translation of real pages: a model of pages, and a model of sentences here, in fairseq and in CTranslate2.

The model of sentences (``lasformer_dense``) has the same weights in all three; with --own-lines, a line alone needs
nothing of what other lines are read by. fairseq's transformer translates sorted batches of 4,096 tokens by its own
search, CTranslate2 batches by itself. Seconds include encoding, search and, for models of pages, repairs; not loading
and subwords.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator

from benchmarks.rows import Row, in_turns
from benchmarks.to_ctranslate2 import to_ctranslate2
from fairseq_lasformer.documents.hub import DocumentHubInterface, load_model
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.training.upcycling import FREQUENCY
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.text.documents import read_documents

BASELINES = ("fairseq, sentences", "CTranslate2 int8, sentences")
DTYPES = ("float32", "int8")
TOKENS = 4096
OF_OTHER_LINES = (".line_bias", FREQUENCY)
LONGEST = 2, 20
"""Maximum length of a sentence's translation, a n + b for n tokens of the source."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sentences", type=Path, required=True, help="checkpoint of a model of sentences")
    parser.add_argument("--pages", type=Path, nargs="+", required=True, help="checkpoints of models of pages")
    parser.add_argument("--source", type=Path, required=True, help="pages to translate, raw form")
    parser.add_argument("--every", type=int, default=4, help="translate every Nth page (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")


def ours(checkpoint: Path, pages: Sequence[str], dtype: str, beam: int) -> Callable[[], float]:
    """Return a function that translates all pages and returns the seconds."""
    model = load_model(checkpoint, device="cpu", decode_dtype=dtype)
    translator = model.translator(beam)
    sources = [model.source(Request.of(page), translator) for i, page in enumerate(pages)]
    return _timed(lambda: translator.translate(sources, "cpu"))


def fairseqs(hub: DocumentHubInterface, texts: Sequence[torch.Tensor], beam: int) -> Callable[[], float]:
    """Return the same for fairseq's transformer with a model's weights."""
    model, options = hub.models[0], TransformerConfig()
    options.encoder, options.decoder, options.quant_noise = options.encoder(), options.decoder(), options.quant_noise()
    for name in (field.name for field in fields(LasformerConfig)):
        side, _, rest = name.partition("_")
        holder, own = (getattr(options, side), rest) if side in ("encoder", "decoder") else (options, name)
        if hasattr(holder, own):
            setattr(holder, own, getattr(model.cfg, name))
    options.decoder.input_dim = options.decoder.output_dim = options.decoder.embed_dim
    task = SimpleNamespace(source_dictionary=hub.src_dict, target_dictionary=hub.tgt_dict)
    stock = TransformerModelBase.build_model(options, task).eval()
    weights = {name: value for name, value in model.state_dict().items() if not name.endswith(OF_OTHER_LINES)}
    stock.load_state_dict(weights, strict=True)
    stock.prepare_for_inference_(SimpleNamespace(generation=SimpleNamespace(beam=beam)))
    a, b = LONGEST
    search = SequenceGenerator([stock], hub.tgt_dict, beam_size=beam, max_len_a=a, max_len_b=b)
    lengths = list(map(len, texts))
    pad = hub.src_dict.pad()

    def run() -> None:
        for batch in batches(lengths, sorted(range(len(texts)), key=lambda i: lengths[i]), TOKENS):
            width = max(lengths[i] for i in batch)
            rows = torch.stack([torch.nn.functional.pad(texts[i], (width - lengths[i], 0), value=pad) for i in batch])
            of_batch = {"src_tokens": rows, "src_lengths": torch.tensor([lengths[i] for i in batch])}
            search.generate([stock], {"net_input": of_batch})

    return _timed(run)


def theirs(checkpoint: Path, names: Sequence[list[str]], dtype: str, args: argparse.Namespace) -> Callable[[], float]:
    """Return the same for CTranslate2."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "exported")
        to_ctranslate2(checkpoint, folder, quantisation=dtype)
        model = ctranslate2.Translator(str(folder), compute_type=dtype, inter_threads=1, intra_threads=args.threads)
    longest = LONGEST[0] * max(map(len, names)) + LONGEST[1]
    how = {"beam_size": args.beam, "max_decoding_length": longest, "batch_type": "tokens", "max_batch_size": TOKENS}
    return _timed(lambda: model.translate_batch(list(names), **how))


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def measure(args: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(args.threads)
    pages = ["\n".join(lines) for lines in read_documents(args.source)[:: args.every]]
    hub = load_model(args.sentences, device="cpu")
    sentences = [
        sentence for page in pages for sentence in hub.source(Request.of(page), hub.translator(args.beam)).sentences
    ]
    closed = [torch.cat([tokens, tokens.new_tensor([hub.src_dict.eos()])]) for tokens in sentences]
    names = [[hub.src_dict[int(token)] for token in tokens] for tokens in closed]
    work = {
        "fairseq, sentences": fairseqs(hub, closed, args.beam),
        **{f"CTranslate2 {dtype}, sentences": theirs(args.sentences, names, dtype, args) for dtype in DTYPES},
        **{f"lasformer_dense {dtype}, sentences": ours(args.sentences, pages, dtype, args.beam) for dtype in DTYPES},
    }
    for checkpoint in args.pages:
        for dtype in DTYPES:
            work[f"{checkpoint.parent.parent.name} {dtype}, pages"] = ours(checkpoint, pages, dtype, args.beam)
    n_tokens = sum(map(len, closed))
    case = f"{len(pages)} pages, {len(sentences)} lines, {n_tokens} tokens, beam {args.beam}"
    with torch.no_grad():
        for system, seconds in in_turns(work, args.repeat, case).items():
            yield Row(case, system, "source tokens/s", n_tokens / seconds)
