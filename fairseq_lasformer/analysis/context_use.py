"""Use of context by a model: conditional cross-mutual information (CXMI), arXiv 2105.03482, equation 3.

CXMI is the log probability of each reference line given the lines before it on both sides, less that of the line alone:
the bits that the context is worth to the model. It needs no translation and no annotation.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fairseq_lasformer.analysis.contrast import target_scores
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.documents.forced import ForcedDocument
from fairseq_lasformer.documents.hub import DocumentHubInterface
from fairseq_lasformer.text.documents import Pair


class Place(NamedTuple):
    """A line of a document: the document's number, and the line's."""

    document: int
    line: int


def places(documents: Sequence[Pair], most: int | None) -> list[Place]:
    """Return lines to score, spread evenly over all; the first of a document has no context, and is left out.

    Args:
        most: approximate number of lines; None for all.
    """
    places_of_lines = [Place(d, i) for d, pair in enumerate(documents) for i in range(1, len(pair.source))]
    step = 1 if most is None else max(1, math.ceil(len(places_of_lines) / most))
    return places_of_lines[step // 2 :: step]


class ContextUse:
    """Scorer of lines with different amounts of context.

    Args:
        hub: the model with its data, which must have been prepared with a separator.
        documents: source and reference.
    """

    def __init__(self, hub: DocumentHubInterface, documents: Sequence[Pair]) -> None:
        self.hub, self.codec, self.documents = hub, hub.codec, documents
        if not self.codec.separator:
            raise InputError("the model's data has no separator between lines, so a line cannot be scored alone")
        self.source: list[list[str]] = []
        self.target: list[list[str]] = []
        for pair in progress_bar(documents, desc="encoding", unit=" documents"):
            self.source.append([self.codec.encode_source(s) for s in pair.source])
            self.target.append([self.codec.encode_target(s) for s in pair.target])

    def example(self, place: Place, lines: int, tokens: int | None = None) -> tuple[Tensor, Tensor, int]:
        """Return source, target, and the target position at which the line itself begins.

        Args:
            lines: maximum number of context lines; fewer at the start of a document, or at the model's limit.
            tokens: maximum number of context tokens on either side.
        """
        document, line = place
        source, target = self.source[document], self.target[document]
        first, limit = line, self.codec.room
        filled = [self.codec.length(side[line]) for side in (source, target)]
        filled_in = list(filled)
        while first > max(0, line - lines):
            more = [f + self.codec.length(side[first - 1]) for f, side in zip(filled, (source, target))]
            if max(more) > limit or tokens is not None and max(m - o for m, o in zip(more, filled_in)) > tokens:
                break
            filled, first = more, first - 1
        encoded = self.hub.tgt_dict.encode_line(self.codec.join(target[first : line + 1], 1), add_if_not_exist=False)
        start = bool(self.codec.tags[1]) + sum(map(self.codec.length, target[first:line]))
        return self.hub.binarize(self.codec.join(source[first : line + 1], 0)), encoded.long(), start

    def bits(self, chosen: Sequence[Place], lines: int, tokens: int | None, max_tokens: int, what: str) -> list[float]:
        """Return the bits of each line, its end included; see :meth:`example`."""
        examples = [self.example(place, lines, tokens) for place in chosen]
        scores = target_scores(self.hub, examples, max_tokens, what, unit=" lines")
        return [-float(line.sum()) / math.log(2) for line in scores]


def set_kappa(hub: DocumentHubInterface, share: float) -> None:
    """Make all selectors of a model keep this share of the keys."""
    selectors = list(hub.models[0].selectors())
    if not selectors:
        raise InputError(f"--kappa {share}: the model selects nothing")
    for _, selector in selectors:
        selector.set_share(share)


def evaluate(use: ContextUse, chosen: Sequence[Place], tokens: Sequence[int], max_tokens: int = 4096) -> Scores:
    """Return the bits per token of the lines, alone and with more and more context.

    Args:
        tokens: maximum numbers of tokens of context, ascending.
        max_tokens: maximum number of tokens per batch, padding included.

    Returns:
        ``lines``, ``target_tokens``; ``alone``: bits per token without context; ``rows``: for each number of tokens,
        ``tokens``, ``bits`` per token, ``cxmi`` per token, its standard error ``error`` over lines, and ``more``: the
        bits added by the tokens beyond those of the row before, with its error ``more_error``.
    """
    lengths = [use.codec.length(use.target[p.document][p.line]) for p in chosen]
    total = sum(lengths)
    alone = use.bits(chosen, 0, None, max_tokens, "no context")
    before, rows = alone, []
    for most in tokens:
        bits = use.bits(chosen, 10**9, most, max_tokens, f"{most} tokens")
        rows.append(
            {
                "tokens": most,
                "bits": sum(bits) / total,
                "cxmi": (sum(alone) - sum(bits)) / total,
                "error": _error(alone, bits, lengths),
                "more": (sum(before) - sum(bits)) / total,
                "more_error": _error(before, bits, lengths),
            }
        )
        before = bits
    return {"lines": len(chosen), "target_tokens": total, "alone": sum(alone) / total, "rows": rows}


def evaluate_whole(use: ContextUse, chosen: Sequence[Place]) -> dict[str, float]:
    """Return the bits per token that whole documents are worth: of the lines after one, the source is known as well.

    The lines are scored without their ends in their documents, or in the parts of them in which they are translated;
    see :class:`ForcedDocument`. An :class:`Explanation` has the same bits.
    """
    documents = {
        d: ForcedDocument(use.hub, *use.documents[d]) for d in dict.fromkeys(place.document for place in chosen)
    }
    bits = [
        documents[place.document].bits(place.line)
        for place in progress_bar(chosen, desc="whole documents", unit=" lines")
    ]
    lengths = [len(documents[place.document].targets[place.line]) for place in chosen]
    return {"cxmi": sum(bits) / max(1, sum(lengths)), "error": _error(bits, [0.0] * len(bits), lengths)}


def _error(before: Sequence[float], after: Sequence[float], lengths: Sequence[int]) -> float:
    """Return the standard error of the difference in bits per token: a ratio of sums, over lines."""
    n, total = len(lengths), sum(lengths)
    ratio = (sum(before) - sum(after)) / total
    spread = sum((b - a - ratio * k) ** 2 for b, a, k in zip(before, after, lengths))
    return math.sqrt(spread * n / max(1, n - 1)) / total


def table(scores: Scores) -> str:
    """Format the result for a terminal."""
    lines = [
        f"{scores['lines']:,} lines, {scores['target_tokens']:,} tokens; bits per token without context: "
        f"{scores['alone']:.4f}",
        f"{'context':>14}{'bits':>9}{'CXMI':>9}{'+-':>8}{'more':>9}{'+-':>8}",
    ]
    for row in scores["rows"]:
        what = f"{row['tokens']:,} tokens"
        numbers = (
            f"{row['bits']:>9.4f}{row['cxmi']:>9.4f}{row['error']:>8.4f}{row['more']:>9.4f}{row['more_error']:>8.4f}"
        )
        lines.append(f"{what:>14}{numbers}")
    if whole := scores.get("whole"):
        lines.append(f"{'the document':>14}{'':>9}{whole['cxmi']:>9.4f}{whole['error']:>8.4f}")
    return "\n".join([*lines, "more: bits added by the tokens beyond those of the line above; +-: standard errors"])
