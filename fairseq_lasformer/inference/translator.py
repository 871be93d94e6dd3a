"""Translates examples with a model in memory: the translator shared by :mod:`hub` and ``lasformer generate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fairseq import utils
from torch import Tensor


class Translator:
    """Beam search over a dataset.

    Args:
        task: a translation task that has been set up.
        models: loaded models, in evaluation mode, on the device used for translation.
        generation: fairseq's ``generation`` options.
    """

    def __init__(self, task: Any, models: Sequence[Any], generation: Any) -> None:
        self.task, self.models = task, list(models)
        self.prefix_size = int(getattr(generation, "prefix_size", 0))
        self.generator = task.build_generator(self.models, generation)

    def batches(self, dataset: Any, **options: Any) -> Any:
        """The batches of a dataset, as fairseq's epoch iterator.

        Args:
            dataset: fairseq dataset.
            options: options of ``task.get_batch_iterator``: ``max_tokens``, ``max_sentences``, ``max_positions``,
                ``num_shards``, ``shard_id``, …
        """
        return self.task.get_batch_iterator(dataset=dataset, disable_iterator_cache=True, **options)

    @torch.no_grad()
    def translate(self, batches: Any, device: torch.device | str) -> Iterator[tuple[int, Tensor]]:
        """Yields the number of every example and the tokens of its best translation, end of sentence included."""
        for batch in batches.next_epoch_itr(shuffle=False):
            if "net_input" not in batch:
                continue
            batch = utils.apply_to_sample(lambda t: t.to(device), batch)
            prefix = batch["target"][:, : self.prefix_size] if self.prefix_size else None
            found = self.task.inference_step(self.generator, self.models, batch, prefix_tokens=prefix)
            for i, hypotheses in zip(batch["id"].tolist(), found):
                yield i, hypotheses[0]["tokens"]
