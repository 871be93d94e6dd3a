"""The documents of a prepared split, as input for the translator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.documents.source import Source
from fairseq_lasformer.text.documents import Span, parts

if TYPE_CHECKING:
    from fairseq.data import FairseqDataset


def documents_of(
    dataset: FairseqDataset,
    info: SplitInfo,
    settings: DataConfig,
    separator: int | None,
    overlap: int,
    whole_examples: bool,
    terms: Callable[[Tensor], Sequence[Sequence[int]]] | None = None,
    windows: bool = False,
) -> list[Source]:
    """Return the documents of a split, whose examples are in reading order.

    Args:
        dataset: fairseq's dataset of the split.
        settings: settings of the prepared folder.
        separator: index of the separator in the source dictionary; None if the data has none.
        overlap, windows: see :func:`text.documents.parts`.
        whole_examples: keep the examples as they were prepared, with their references.
        terms: returns the required terms of a sentence, as tokens; None for no glossary.
    """
    examples: dict[int, list[int]] = defaultdict(list)
    for i, span in enumerate(info.examples):
        examples[span[0]].append(i)
    documents = []
    for number in range(info.documents):
        indices = examples[number]
        read = [dataset[i] for i in indices]
        start = bool(settings.source_tag)
        sources = [example["source"][start:-1] for example in read]  # without tag and end of sentence
        if separator is None or whole_examples or settings.resolutions == "sentences":
            spans = [Span(number, i, 1) for i in range(len(sources))]
            references = [example["target"] for example in read] if whole_examples else None
            documents.append(Source(sources, spans, references))
            continue
        sentences = []
        for source in sources:
            sentences += [source[start:end] for start, end in line_spans(source.tolist(), separator)]
        lengths = [[len(sentence) + 1] for sentence in sentences]
        required = None if terms is None else [terms(sentence) for sentence in sentences]
        documents.append(Source(sentences, parts(number, lengths, settings.room, overlap, windows), terms=required))
    return documents
