"""Calibration documents, on which layers and heads are compared and checkpoints are scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.documents.hub import from_pretrained
from fairseq_lasformer.documents.scoring import log_probabilities

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask

    from fairseq_lasformer.documents.hub import DocumentHubInterface

DOCUMENTS = 16  # enough to compare layers and heads; measuring the cost of words takes more


class Scores(NamedTuple):
    """Scores of a checkpoint."""

    bits: float  # bits per token of the references
    documents: int  # number of documents
    kappas: dict[str, float]  # kappa of each selector, as a share

    @property
    def mean_kappa(self) -> float:
        return sum(self.kappas.values()) / max(1, len(self.kappas))


def calibration(task: FairseqTask, split: str = "", documents: int = DOCUMENTS) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the longest examples of a split, source and target; by default, of the validation or training split."""
    split = split or ("valid" if SplitInfo.load(task.folder, "valid") is not None else "train")
    if split not in task.datasets:
        task.load_dataset(split)
    dataset = task.datasets[split]
    order = sorted(range(len(dataset)), key=lambda i: (-int(dataset.num_tokens(i)), i))
    for i in order[:documents]:
        yield dataset[i]["source"], dataset[i]["target"]


def bits_per_token(hub: DocumentHubInterface, examples: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the bits that a loaded model needs per token of the targets."""
    tokens = max(4096, *(max(map(len, example)) for example in examples))
    scores = log_probabilities(hub.models[0], hub.task.target_dictionary, examples, tokens, "cpu")
    return float(-torch.cat(scores).double().mean()) / math.log(2)


def scored(checkpoint: Path, data: Path, documents: int = DOCUMENTS) -> Scores:
    """Score a checkpoint on the documents of :func:`calibration`."""
    hub: DocumentHubInterface = from_pretrained(checkpoint, data=data).eval()
    examples = list(calibration(hub.task, documents=documents))
    return Scores(
        bits_per_token(hub, examples),
        len(examples),
        {name: selector.share for name, selector in hub.models[0].selectors()},
    )
