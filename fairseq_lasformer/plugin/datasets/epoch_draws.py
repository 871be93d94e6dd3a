"""Training data of which something is drawn anew in every epoch."""

from __future__ import annotations

from typing import Any

from fairseq.data import BaseWrapperDataset

from fairseq_lasformer.resume import key_of


class DrawnEveryEpoch(BaseWrapperDataset):
    """A dataset of pairs whose examples differ from epoch to epoch.

    What is drawn depends on seed, epoch and example alone, so that a resumed training continues as it would have.
    Batches are made by the usual lengths.

    Args:
        seed: fairseq's ``--seed``.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset)
        self.seed, self.epoch = seed, 1

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch = epoch

    def seed_of(self, index: int) -> str:
        """What all draws for an example of this epoch depend on."""
        return key_of(self.seed, self.epoch, int(index))

    def num_tokens_vec(self, indices: Any) -> Any:
        return self.dataset.num_tokens_vec(indices)
