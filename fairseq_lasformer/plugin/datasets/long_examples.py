"""Training data in which long examples are drawn more often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from fairseq.data import BaseWrapperDataset

if TYPE_CHECKING:
    from fairseq.data import FairseqDataset


class LongExamplesOften(BaseWrapperDataset):
    """A dataset whose long examples occur several times per epoch.

    An example is long if it has at least half as many tokens as the longest one. Every repetition is a separate pass
    over the long examples, so no batch contains an example twice.

    Args:
        times: how often a long example occurs per epoch.
    """

    def __init__(self, dataset: FairseqDataset, times: int) -> None:
        super().__init__(dataset)
        self.times = times

    def ordered_indices(self) -> np.ndarray:
        """Return the indices of all examples by length, then those of the long ones ``times`` - 1 times."""
        indices = super().ordered_indices()
        lengths = self.num_tokens_vec(indices)
        long = indices[2 * lengths >= lengths.max()]
        return np.concatenate([indices, *[long] * (self.times - 1)])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.dataset.num_tokens_vec(indices)
