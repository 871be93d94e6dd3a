"""Training data with random draws that change every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairseq.data import BaseWrapperDataset

from fairseq_lasformer.base.resume import key_of

if TYPE_CHECKING:
    import numpy as np
    from fairseq.data import FairseqDataset


class DrawnEveryEpoch(BaseWrapperDataset):
    """A dataset of pairs whose examples differ from epoch to epoch.

    The draws depend only on seed, epoch and example, so a resumed training continues as if uninterrupted. Batches are
    made by the original lengths.

    Args:
        seed: fairseq's ``--seed``.
    """

    def __init__(self, dataset: FairseqDataset, seed: int) -> None:
        super().__init__(dataset)
        self.seed, self.epoch = seed, 1

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch = epoch

    def seed_of(self, index: int) -> str:
        """Return the seed of all draws for an example in this epoch."""
        return key_of(self.seed, self.epoch, int(index))

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.dataset.num_tokens_vec(indices)
