"""Word-level knowledge distillation: a student learns a teacher's most likely words and their probabilities.

Hinton et al. 2015 (arXiv 1503.02531), word by word as in Kim and Rush 2016 (arXiv 1606.07947, eq 6). Only the most
likely words are used: the rest of the distribution is mostly noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fairseq import checkpoint_utils
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Sample

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask


class Teacher:
    """A trained model whose distributions a student learns. It is not a module, so no checkpoint contains it.

    Args:
        checkpoint: checkpoint of a model with the task's dictionaries.
        task: fairseq's training task.
        top: number of words of each distribution.

    Raises:
        InputError: the checkpoint is unusable, or has other dictionaries.
    """

    def __init__(self, checkpoint: str, task: FairseqTask, top: int) -> None:
        if top < 1:
            raise InputError(f"--distil-top {top}: expected a number of words, at least 1")
        if not Path(checkpoint).is_file():
            raise InputError(f"--distil-from {checkpoint}: no such checkpoint")
        models, _, trained = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint], arg_overrides={"data": task.cfg.data, "attention_backend": "auto"}
        )
        for name in ("source_dictionary", "target_dictionary"):
            if getattr(trained, name) != getattr(task, name):
                raise InputError(f"--distil-from {checkpoint}: its dictionaries differ from those of {task.cfg.data}")
        self.model, self.top = models[0], min(top, len(task.target_dictionary))
        self.model.eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def most_likely(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Return the teacher's most likely words after every prefix, and their probabilities, which sum to 1.

        Args:
            sample: fairseq's batch.

        Returns:
            probabilities and words, both [B, N, top].
        """
        tokens = sample["net_input"]["src_tokens"]
        if next(self.model.parameters()).device != tokens.device:
            self.model.to(tokens.device)
        scores, words = self.model(**sample["net_input"])[0].float().topk(self.top)
        return scores.softmax(-1), words

    def loss(self, log_probabilities: Tensor, sample: Sample, pad: int) -> Tensor:
        """Return the student's cross-entropy with the teacher's most likely words, summed over the target's tokens.

        Args:
            log_probabilities: the student's [B, N, vocabulary].
            pad: padding index of the target; padding does not count.
        """
        probabilities, words = self.most_likely(sample)
        entropies = -(probabilities * log_probabilities.gather(-1, words)).sum(-1)
        return entropies.masked_fill(sample["target"] == pad, 0.0).sum()
