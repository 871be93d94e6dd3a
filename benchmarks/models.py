"""Base-size models for the benchmarks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase

from fairseq_lasformer.data.shortlist import Shortlist
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

VOCABULARY = int(os.environ.get("BENCHMARK_VOCABULARY", 8000))
LONGEST = 16384
BEST, FREQUENT = 50, 200
IN_FULL = RunOptions()


class Task:
    """The parts of a task that are needed to build a model."""

    def __init__(self, run: RunOptions = IN_FULL) -> None:
        self.run_options = run
        self.source_dictionary = self.target_dictionary = Dictionary()
        for i in range(VOCABULARY - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{i}")


def batch_of(source: torch.Tensor, previous: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    """Return a fairseq batch of words and padding, int64 [B, K], [B, N] and [B, N]."""
    inputs = {"src_tokens": source, "src_lengths": source.ne(1).sum(1), "prev_output_tokens": previous}
    return {"net_input": inputs, "target": target, "ntokens": int(target.ne(1).sum())}


def by_zipf(draw: np.random.Generator, size: int) -> np.ndarray:
    """Draw words with frequencies by Zipf's law, int64 [size]; neither special nor the end."""
    odds = 1 / np.arange(1, VOCABULARY - 3)
    return draw.choice(np.arange(4, VOCABULARY), size, p=odds / odds.sum())


def shortlist() -> Shortlist:
    """Return the 200 most frequent words, and 50 translations of each word."""
    draw = np.random.default_rng(7)
    each = [np.unique(by_zipf(draw, 3 * BEST)) for _ in range(VOCABULARY)]
    each = [draw.permutation(words)[:BEST] for words in each]
    starts = np.cumsum([0, *map(len, each)])
    return Shortlist(np.arange(4, 4 + FREQUENT), starts, np.concatenate(each), np.arange(VOCABULARY), VOCABULARY)


def build(
    system: str,
    kappa: float = 1.0,
    supervise_rows: str = "auto",
    run: RunOptions = IN_FULL,
    task: Task | None = None,
    **more: str,
) -> torch.nn.Module:
    """Build a base-size model in training mode.

    Args:
        system: ``transformer`` (fairseq's), ``lasformer`` or one of its presets.
        kappa: kappa of every selector, a fraction.
        supervise_rows: see ``--supervise-rows``.
        run: options of a run, such as 8 bits in decoding.
        task: task to build it for (default: one with these options).
        more: further options of the model.
    """
    register()
    torch.manual_seed(1)
    if system == "transformer":
        cfg = TransformerConfig()
        cfg.encoder, cfg.decoder, cfg.quant_noise = cfg.encoder(), cfg.decoder(), cfg.quant_noise()
        cfg.share_all_embeddings, cfg.max_source_positions, cfg.max_target_positions = True, LONGEST, LONGEST
        return TransformerModelBase.build_model(cfg, Task()).train()
    options = {"share_all_embeddings": True, "max_source_positions": LONGEST, "max_target_positions": LONGEST}
    options |= {"supervise_rows": supervise_rows} | more
    cfg = LasformerConfig(**{**PRESETS.get(system, {}), **options})
    model = LasformerModel.build_model(cfg, task or Task(run)).train()
    for _, selector in model.selectors():
        selector.set_share(kappa)
    return model
