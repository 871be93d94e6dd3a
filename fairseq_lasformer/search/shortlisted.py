"""Search among the words of a shortlist (:mod:`data.shortlist`).

A batch is searched in the joint list of its documents, whose words are renumbered; the words of other documents' lists
are impossible. Special symbols keep their numbers, as they come first.

Shapes: N documents, R rows of the search, V words, U words of the joint list, K source tokens, P tokens of a prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq.sequence_generator import EnsembleModel
from torch import Tensor

from fairseq_lasformer.base.records import Hypothesis
from fairseq_lasformer.data.shortlist import Shortlist


class JointList(NamedTuple):
    """The words of a batch, renumbered for the search."""

    words: Tensor  # int64 [U], ascending
    penalty: Tensor  # float32 [N, U], added to log odds: 0 for words on a document's list, otherwise -inf

    @classmethod
    def of(
        cls,
        shortlist: Shortlist,
        source: Tensor,
        prefix: Tensor | None = None,
        needed: Sequence[Sequence[Sequence[int]]] = (),
        beam: int = 1,
    ) -> JointList:
        """Build the joint list of some documents.

        Args:
            source: int64 [N, K], padded.
            prefix: int64 [N, P], padded, the beginnings of the translations.
            needed: for each document, sequences of words that must be possible: required terms, given lines.
            beam: beam size; the search takes twice as many candidates, possible or not.
        """
        more: list[list[int]] = [[] for _ in range(source.size(0))]
        for i, its in enumerate(more):
            its += [] if prefix is None else prefix[i].tolist()
            its += [word for words in needed[i] for word in words] if needed else []
        allowed = torch.from_numpy(shortlist.allowed(source.cpu().numpy(), more)).to(source.device)
        wanted = allowed.any(0)
        wanted[: 2 * beam + 1] = True
        words = wanted.nonzero()[:, 0]
        return cls(words, torch.zeros(1).to(source.device).masked_fill(~allowed[:, words], -math.inf))

    def numbers(self, words: Tensor) -> Tensor:
        """Return the new numbers of words, all of which are on the list."""
        return torch.searchsorted(self.words, words)

    def number(self, word: int) -> int:
        """Return the new number of one word."""
        return int(self.numbers(self.words.new_tensor([word])))

    def widened(self, per_sentence: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Convert hypotheses to the numbers of the dictionary, in place."""
        for hypothesis in (h for hypotheses in per_sentence for h in hypotheses):
            hypothesis["tokens"] = self.words[hypothesis["tokens"]]
        return per_sentence

    def numbered(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Convert sequences of words, such as required terms, to new numbers."""
        return [self.numbers(self.words.new_tensor(list(words))).tolist() for words in sequences]


class Encoded(NamedTuple):
    """The encoders' outputs, and the document of each row, int64 [R]."""

    outputs: Any
    documents: Tensor


class ListedEnsemble(EnsembleModel):
    """fairseq's ensemble for the words of a list: its tokens and scores use the list's numbers.

    Args:
        models: the models; their decoders are :class:`LasformerDecoder`.
    """

    def __init__(self, models: Sequence[Any], joint: JointList) -> None:
        super().__init__(models)
        self.joint = joint
        self.outputs = [model.decoder.output_of(joint.words) for model in models]

    def forward_encoder(self, net_input: dict[str, Tensor]) -> Encoded:
        """See fairseq's ``EnsembleModel``."""
        n, device = self.joint.penalty.size(0), self.joint.words.device
        return Encoded(super().forward_encoder(net_input), torch.arange(n, device=device))

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> Encoded:
        """See fairseq's ``EnsembleModel``."""
        outputs = super().reorder_encoder_out(encoder_outs.outputs, new_order)
        return Encoded(outputs, encoder_outs.documents[new_order])

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: Any, incremental_states: Any, temperature: float = 1.0
    ) -> tuple[Tensor, None]:
        """Return log probabilities of the list's words, [R, U]; see fairseq's ``EnsembleModel``."""
        # the decoder reads only the newest words and their number
        so_far = self.joint.words[tokens[:, -1:]].expand(tokens.shape)
        outputs = []
        for model, output, encoded, state in zip(self.models, self.outputs, encoder_outs.outputs, incremental_states):
            x, _ = model.decoder(so_far, encoder_out=encoded, incremental_state=state, features_only=True)
            scores = output(x[:, -1]).float().div_(temperature)
            scores += self.joint.penalty.index_select(0, encoder_outs.documents)
            outputs.append(scores.log_softmax(-1))
        if len(outputs) == 1:
            return outputs[0], None
        return torch.logsumexp(torch.stack(outputs), 0) - math.log(len(outputs)), None
