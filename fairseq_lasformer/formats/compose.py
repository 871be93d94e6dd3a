"""Composition of a block from the translations of its sentences."""

import collections
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Block
from fairseq_lasformer.formats.borders import tidied
from fairseq_lasformer.formats.projection import AlignedWords, by_place, place
from fairseq_lasformer.formats.sentences import Sentence, owners
from fairseq_lasformer.text.lines import visible
from fairseq_lasformer.text.units import units

_ANY = re.compile(rf"(?i)(?<![A-Za-z0-9_]){PLACEHOLDER}\d{{1,3}}")
_GLUED = re.compile(r"(?<=[a-zß-ÿ]{3})\d+(?!\w)")
_HOLDER = re.compile(rf" ?(?<![A-Za-z0-9_])({PLACEHOLDER}\d{{1,9}})[a-zß-ÿ]{{0,4}}(?![A-Za-z0-9_])")
"""A placeholder in a translation, to which a model may have added an ending, with the space before it."""

Align = Callable[[str, str], AlignedWords]


class Composed(NamedTuple):
    """The text of a translated block."""

    segments: list[str]
    sentences: list[str]  # the translation of each sentence with its placeholders, also those that were missing in it
    lost: int  # number of pieces of markup around whose place no word of the translation is
    guessed: int = 0  # number of placeholders that the translation lacks, which are where the words around them went


def compose(block: Block, sentences: Sequence[Sentence], translations: Sequence[str], align: Align) -> Composed:
    """Replace the sentences in a block's segments by their translations.

    Text between sentences stays. Markup within a sentence goes where the words around it went.

    Args:
        align: aligns a sentence and its translation; called only for sentences with markup.
    """
    text, owner = block.text, owners(block)
    pieces: list[list[str]] = [[] for _ in block.segments]
    position, lost, guessed, said = 0, 0, 0, list[str]()
    places = visible(text) if sentences else None
    shown = None if places is None else set(places)  # a direction mark means nothing without the other one

    def stays(start: int, end: int) -> None:
        for i in range(start, end):
            if owner[i] >= 0 and (shown is None or i in shown):
                pieces[owner[i]].append(text[i])

    for sentence, translation in zip(sentences, translations, strict=True):
        stays(position, sentence.start)
        position = sentence.end
        first, last = sentence.segments
        translation = _without_others(sentence.text, [block.fill(i) for i in range(first, last)], translation)
        if first == last:
            pieces[first].append(translation)
            said.append(translation)
            continue
        parts: list[list[str]] = [[] for _ in range(last - first + 1)]
        for i in range(sentence.start, sentence.end):
            if owner[i] >= 0:
                parts[owner[i] - first].append(text[i])
        texts = ["".join(part) for part in parts]
        placed, missing = _placed(block, sentence, texts, translation, align)
        states = block.states[first : last + 1] or ((),) * len(texts)
        placed = tidied(texts, placed, states, block.fills[first:last], block.markup[first:last])
        for i, piece in enumerate(placed, first):
            pieces[i].append(piece)
        said.append(_said(block, first, placed) if PLACEHOLDER in block.fills[first:last] else translation)
        guessed += missing
        lost += sum(_has_word(before) and not _has_word(after) for before, after in zip(texts, placed))
    stays(position, len(text))
    segments_of = ["".join(part) for part in pieces]
    return Composed(_spaced(block, 0, segments_of), said, lost, guessed)


def _spaced(block: Block, first: int, segments: Sequence[str]) -> list[str]:
    """Return segments, the block's from the first one on, with spaces around placeholders as in the source."""
    texts = list(segments)
    for n, i in enumerate(range(first, first + len(texts) - 1)):
        if block.fills[i] == PLACEHOLDER:
            if block.segments[i][-1:].isspace() and texts[n][-1:].isalnum():
                texts[n] += " "
            if block.segments[i + 1][:1].isspace() and texts[n + 1][:1].isalnum():
                texts[n + 1] = f" {texts[n + 1]}"
    return texts


def _said(block: Block, first: int, segments: Sequence[str]) -> str:
    """Return the text of a sentence whose first segment is given, with the fills of its markup."""
    texts = _spaced(block, first, segments)
    return "".join([texts[0], *(block.fill(first + n) + piece for n, piece in enumerate(texts[1:]))]).strip()


def _has_word(text: str) -> bool:
    return any(text[start].isalnum() for start, _ in units(text))


def _placed(
    block: Block, sentence: Sentence, texts: Sequence[str], translation: str, align: Align
) -> tuple[list[str], int]:
    """Return the text of each segment of a sentence, and the number of placeholders missing in its translation."""
    first, last = sentence.segments
    holders = [i for i in range(first, last) if block.fill(i).startswith(PLACEHOLDER)]
    names = [block.fill(i) for i in holders]
    sources, targets = _split(sentence.text, names), _split(translation, names)
    missing = 0
    if sources is None or targets is None:
        # misplaced ones are removed, and all go where the words around them went
        there = collections.Counter(holder[1] for holder in _HOLDER.finditer(translation))
        missing = sum(there[name] != 1 for name in names)
        names_of = {*names}
        translation = _HOLDER.sub(lambda holder: "" if holder[1] in names_of else holder[0], translation)
        holders, sources, targets = [], [(0, len(sentence.text))], [(0, len(translation))]
    aligned = align(sentence.text, translation).weights
    holder: list[str] = []
    rows, columns = units(translation), units(sentence.text)
    edges = [first, *(i + 1 for i in holders), last + 1]
    for n, (source, target) in enumerate(zip(sources, targets)):
        begin, end = edges[n], edges[n + 1]
        row, column = _within(rows, target), _within(columns, source)
        piece = translation[slice(*target)]
        if end - begin == 1:
            holder.append(piece)
            continue
        holder += place(
            texts[begin - first : end - first],
            block.states[begin:end],
            [fill == BREAK for fill in block.fills[begin : end - 1]],
            piece,
            _part(aligned[row, column], sentence.text[slice(*source)], piece),
        )
    return holder, missing


def _part(weights: np.ndarray, source: str, target: str) -> AlignedWords:
    """Return the alignment of a part; by place, if a word crosses its edge."""
    if weights.shape == (len(units(target)), len(units(source))):
        return AlignedWords(weights)
    return by_place(source, target)


def _within(spans: Sequence[tuple[int, int]], place: tuple[int, int]) -> slice:
    """Return the units that begin in a place."""
    inside = [i for i, (start, _) in enumerate(spans) if place[0] <= start < place[1]]
    return slice(inside[0], inside[-1] + 1) if inside else slice(0, 0)


def _without_others(sentence: str, names: Sequence[str], translation: str) -> str:
    """Return a translation without placeholders, and digits at the ends of words, that its source does not have."""
    names_of = {*names}
    known = names_of | {name.upper() for name in _ANY.findall(sentence)}
    translation = _HOLDER.sub(lambda holder: holder[0] if holder[1] in known else "", translation)
    said = _ANY.sub(lambda name: "" if name[0] in names_of else name[0], sentence)
    return translation if re.search(r"\d", said) else _GLUED.sub("", translation)


def _split(text: str, placeholders: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the start and end of each text between placeholders; None unless each occurs once, in order."""
    names = {*placeholders}
    holders = [one for one in _HOLDER.finditer(text) if one[1] in names]
    if [one[1] for one in holders] != list(placeholders):
        return None
    edges = [0]
    for one in holders:
        edges += [one.start(1), one.end()]
    edges.append(len(text))
    return list(zip(edges[::2], edges[1::2]))
