"""Glossaries: terms with prescribed translations, and the search that uses them.

A term is required in the line of the translation whose source line contains it. The search for a line is fairseq's
lexically constrained one (Post and Vilar, NAACL 2018; Hu et al., NAACL 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.token_generation_constraints import UnorderedConstraintState, pack_constraints
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor
from fairseq_lasformer.text.terms import parse_terms, read_terms, term_pattern

if TYPE_CHECKING:
    from fairseq.data import Dictionary

# Subtracted from the score of a hypothesis whose line reaches its limit without its terms: any with them is better.
_UNMET = 100.0

Terms = Sequence[Sequence[Sequence[int]]]
"""Required terms of a document: for each line, the tokens of each of its terms."""


class Glossary:
    """Terms and their translations.

    Args:
        entries: pairs of a source term and its translation. A term without capital letters matches any capitalisation,
            others only their own.

    Raises:
        InputError: a term has two translations.
    """

    def __init__(self, entries: Sequence[tuple[str, str]]) -> None:
        self.translations: dict[str, str] = {}
        for source, target in entries:
            if self.translations.setdefault(source, target) != target:
                raise InputError(f"glossary: {source} has two translations, {self.translations[source]} and {target}")
        # the longest first: "post office" is not an office
        self.patterns = [(term_pattern(term), term) for term in sorted(self.translations, key=len, reverse=True)]

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """Read the glossary in a file; see :func:`read_terms`."""
        return cls(read_terms(path))

    @classmethod
    def parse(cls, text: str, path: str) -> Glossary:
        """Parse the text of such a file; ``path`` names it in errors."""
        return cls(parse_terms(text, path))

    def required(self, sentence: str) -> list[str]:
        """Return the translations of the terms in a source sentence, each once."""
        terms = []
        for pattern, term in self.patterns:
            sentence, n = pattern.subn("\n", sentence)
            if n:
                terms.append(self.translations[term])
        return terms


def contains(line: Sequence[int], term: Sequence[int]) -> bool:
    """Return whether a line contains the tokens of a term, one after another."""
    return any(list(line[i : i + len(term)]) == list(term) for i in range(len(line) - len(term) + 1))


def met(line: Sequence[int], terms: Sequence[Sequence[int]]) -> bool:
    """Return whether a line contains all terms."""
    return all(contains(line, term) for term in terms)


class RequiredTerms(StepProcessor):
    """Rule that a line ends only when its terms are in it, or at its limit; tracks the progress of each hypothesis.

    Args:
        terms: for each line, the tokens of its terms.
        end: index of the end of sentence in the target dictionary.
    """

    def __init__(self, terms: Terms, end: int) -> None:
        self.terms, self.end = terms, end

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        packed = (pack_constraints([[torch.tensor(term) for term in terms]])[0] for terms in self.terms)
        self.states = [[UnorderedConstraintState.create(its)] * beam for its in packed]

    def step(self, scores: Scores) -> None:
        lprobs = scores.lprobs
        unfinished = (
            (i, j) for i, states in enumerate(self.states) for j, its in enumerate(states) if not its.finished
        )
        for i, j in unfinished:
            before = lprobs[i, j, self.end].clone()
            lprobs[i, j, self.end] = -math.inf
            if not bool((lprobs[i, j] > -math.inf).any()):
                lprobs[i, j, self.end] = before - _UNMET  # the line is at its limit

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        words, parents = candidates.words.gather(1, chosen).tolist(), candidates.parents.gather(1, chosen).tolist()
        self.states = [
            [states[parent].advance(word) for parent, word in zip(*of_item)]
            for states, *of_item in zip(self.states, parents, words)
        ]

    def prune(self, items: Tensor) -> None:
        self.states = [self.states[i] for i in items.tolist()]


class GlossarySearch(LexicallyConstrainedBeamSearch):
    """Beam search that keeps hypotheses with different numbers of terms met, as fairseq's does.

    Items all of whose hypotheses have met the terms of their lines are searched as without a glossary.

    Args:
        terms: progress of each hypothesis.
    """

    def __init__(self, dictionary: Dictionary, terms: RequiredTerms) -> None:
        super().__init__(dictionary, "unordered")
        self.terms = terms

    def init_constraints(self, batch_constraints: Tensor | None, beam_size: int) -> None:
        """Do nothing: the terms are the constraints, and fairseq's own are not used."""

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        """Do nothing: the terms' own states are pruned."""

    def update_constraints(self, active_hypos: Tensor) -> None:
        """Do nothing: the terms' own states are updated."""

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See fairseq's ``Search.step``."""
        n, beam, words = lprobs.shape
        wanted, self.num_cands = min(2 * beam, beam * words - 1), beam * words
        if step == 0:
            lprobs = lprobs[:, ::beam].contiguous()
        else:
            assert scores is not None
            lprobs = lprobs + scores[:, :, step - 1 : step]
        best, indices = torch.topk(lprobs.view(n, -1), wanted)
        beams = indices // words
        tokens = indices.fmod(words)
        for i, states in enumerate(self.terms.states):
            if all(state.finished for state in states):
                continue
            top, top_tokens = lprobs[i].max(1)
            by_bank = self.step_sentence(
                step,
                i,
                lprobs[i],
                states,
                torch.cat([beams[i], torch.arange(lprobs.size(1), device=lprobs.device)]),
                torch.cat([tokens[i], top_tokens]),
                torch.cat([best[i], top]),
            )
            # fairseq's order is by terms met; impossible candidates must not crowd out possible ones
            possible = (by_bank[0] == -math.inf).long().argsort(stable=True)[:wanted]
            best[i], tokens[i], beams[i] = (side[possible] for side in by_bank[:3])
        return best, tokens, beams
