"""A translated file: its sentences, what happened to them, and the summary of that in words."""

import collections
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairseq_lasformer.documents.hub import TranslatedLine
from fairseq_lasformer.evaluation.doubts import Pair
from fairseq_lasformer.formats.block import Unread
from fairseq_lasformer.translation_memory.matching import Match

QUOTED = 3
"""Number of sentences that a summary quotes; of others, it gives the numbers."""

MANY_UNKNOWN = 0.1
"""Share of unknown tokens above which a file's language is doubted."""


class TranslatedSentence(NamedTuple):
    """A translated sentence."""

    line: TranslatedLine  # the sentence and its translation
    others: list[tuple[str, float]]  # other translations of it, best first, each with its score
    matches: Sequence[Match] = ()  # similar sentences of a memory, best first
    doubts: tuple[str, ...] = ()  # why it is doubtful, see `evaluation.doubts.doubts`; empty if it is not
    names: Mapping[str, str] = {}  # what its placeholders stand for, by name (`X1`)
    said: str = ""  # its translation as it is in the file, with placeholders; empty if that is the one above

    def shown(self, text: str) -> str:
        """Return a text with what its placeholders stand for."""
        if not self.names:
            return text
        return re.sub(rf"\b(?:{'|'.join(self.names)})\b", lambda name: self.names[name[0]], text)

    @property
    def source(self) -> str:
        """The sentence as a reader sees it."""
        return self.shown(self.line.source)

    @property
    def translation(self) -> str:
        """Its translation as a reader sees it."""
        return self.shown(self.said or self.line.translation)

    @property
    def pair(self) -> Pair:
        """The sentence as its checks see it."""
        return Pair(self.line.source, self.line.translation, self.line.repaired, self.line.flawed)


class SentenceCounts(NamedTuple):
    """Counts of a file's sentences, by what happened to them."""

    sentences: int
    repaired: int  # number that had gone wrong and were translated again
    # number, from 1, and source of each sentence that is doubtful, see `evaluation.doubts.doubts`
    doubtful: tuple[tuple[int, str], ...]
    cut: int  # number that were too long for the model and were translated in pieces
    cleaned: int  # number that contained control characters
    lost: int  # pieces of markup without a word of the translation; see `formats.compose.Composed`
    unknown: float = 0.0  # share of the source's tokens that the model does not know
    context: int = 0  # number of finished texts that were read as context
    exact: int = 0  # number found verbatim in a memory
    given: int = 0  # number whose translation was given
    # number, from 1, and source of each sentence with numbers that its translation lacks
    numberless: tuple[tuple[int, str], ...] = ()
    unread: tuple[Unread, ...] = ()  # text that was not understood, and stayed as it is
    units: int = 0  # number of cues that were understood; 0 for formats without cues
    guessed: int = 0  # tags, addresses and symbols that the translation lacked, and that are where their words went
    left_out: int = 0  # number of messages without a translation, because the format's programs would refuse it
    long: int = 0  # number of texts that are longer than the file has room for

    def summary(self) -> str:
        """Return the counts in words."""
        words = [f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"]
        if self.context:
            words.append(f"{self.context} unit{'' if self.context == 1 else 's'} kept, used as context")
        if self.given:
            words.append(f"{self.given} given")
        if self.exact:
            words.append(f"{self.exact} from the memory")
        if self.repaired:
            words.append(f"{self.repaired} translated again")
        for places, what in ((self.doubtful, "doubtful"), (self.numberless, "lacking a number of the source")):
            if places:
                words.append(f"{len(places)} {what} ({_quoted(places)})")
        if self.cut:
            words.append(f"{self.cut} too long and cut")
        if self.cleaned:
            words.append(f"{self.cleaned} with control characters, which were removed")
        if self.lost:
            words.append(f"{self.lost} mark{'' if self.lost == 1 else 's'} without words")
        if self.guessed:
            words.append(f"{self.guessed} tags, addresses or symbols placed by guess")
        if self.unknown > MANY_UNKNOWN:
            words.append(f"{self.unknown:.0%} of the words are unknown to the model: is this its source language?")
        if self.left_out:
            words.append(f"{self.left_out} left out, whose translation would not be valid")
        if self.long:
            words.append(f"{self.long} longer than the file allows")
        if self.unread:
            words.append(_unread(self.unread, self.units))
        return ", ".join(words)


def _unread(unread: Sequence[Unread], units: int) -> str:
    """Return what was not understood, by line or file of an archive."""
    kinds = collections.Counter(one.what for one in unread)
    named = " and ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in kinds.items())
    lines, files = sorted({one.line for one in unread if one.line}), sorted({one.place for one in unread if one.place})
    places = [f"line{'' if len(lines) == 1 else 's'} {_some(lines)}"] if lines else []
    places += [_some(files)] if files else []
    cues = f"; translated {units} of {units + len(unread)}" if units and set(kinds) == {"cue"} else ""
    verb = "was" if len(unread) == 1 else "were"
    return f"{named} {verb} not understood and not translated: {', '.join(places)}{cues}"


def _some(places: Sequence[object]) -> str:
    return ", ".join([*map(str, places[:10]), *(["…"] if len(places) > 10 else [])])


def _quoted(places: Sequence[tuple[int, str]]) -> str:
    """Return the numbers of some sentences, and the first words of a few: a file may not show numbers."""
    shown = [f"number {n}: “{textwrap.shorten(text, 40, placeholder=' …')}”" for n, text in places[:QUOTED]]
    more = [str(n) for n, _ in places[QUOTED:10]] + (["…"] if len(places) > 10 else [])
    return "; ".join([*shown, ", ".join(more)] if more else shown)


class TranslatedFile(NamedTuple):
    """A translated file."""

    data: bytes
    lines: list[TranslatedSentence]
    counts: SentenceCounts
