"""fairseq's beam search with kernels that find the best continuations in one pass over the words."""

from functools import cached_property

import torch
from fairseq.search import BeamSearch, Search
from torch import Tensor

from fairseq_lasformer.ops import backend_for, top_candidates


class FastBeamSearch(BeamSearch):
    """fairseq's ``BeamSearch`` with the same candidates; ties go to the lower hypothesis and word.

    ``backend`` is one of :data:`ops.BACKENDS`.
    """

    backend = "auto"

    @cached_property
    def on_cpu(self) -> str:
        """The backend of steps on a CPU, looked up once instead of in every step."""
        return backend_for(torch.device("cpu"), self.backend)

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
        candidate_multiple: int = 2,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See fairseq's ``Search.step``."""
        backend = self.on_cpu if lprobs.device.type == "cpu" else backend_for(lprobs.device, self.backend)
        if lprobs.dtype != torch.float32 or backend == "reference":
            return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs, candidate_multiple)
        n_items, beam, n_words = lprobs.shape
        past = None
        if step == 0:
            lprobs = lprobs[:, ::beam]  # all hypotheses are alike
        else:
            assert scores is not None
            past = scores[:, :, step - 1]
        k = min(candidate_multiple * beam, lprobs.size(1) * n_words - 1)  # padding is never among them
        if backend == "triton":
            return top_candidates(lprobs, past, k, backend)
        best, places = torch.ops.fairseq_lasformer.top_candidates(lprobs, past, k)
        return best, places % n_words, places // n_words


def fast(search: Search, backend: str = "auto") -> Search:
    """Return a search that finds what the given one finds, faster if that is plain beam search."""
    if type(search) is BeamSearch:
        search.__class__ = FastBeamSearch
        search.backend = backend  # type: ignore[attr-defined]
    return search
