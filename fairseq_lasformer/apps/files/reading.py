"""A file as the document that a model reads: its sentences, and its finished and given translations."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.documents.given_lines import check_given, parse_given
from fairseq_lasformer.formats import OpenFile, plain, read
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Block, Finished, Markup
from fairseq_lasformer.formats.encoding import decode
from fairseq_lasformer.formats.sentences import Sentence, Splitter, sentences, splitter, trimmed, whole
from fairseq_lasformer.formats.symbols import Hidden, hidden
from fairseq_lasformer.text.lines import clean_line, split_lines, with_plain_letters

_PLACEHOLDERS = re.compile(rf"\b{PLACEHOLDER}\d+\b")

Blocks = Mapping[int, Block]
"""Translations of some blocks of a file, by their numbers, from 0."""


class Earlier(NamedTuple):
    """An earlier version of a file, and its translation, edited or not; see :meth:`FileReader.read`."""

    file: OpenFile
    translation: OpenFile


Given = Blocks | Earlier
"""What is known of a file's translation."""


class FileDocument(NamedTuple):
    """A file as a document."""

    file: OpenFile
    hidden: list[Hidden]  # its blocks as the model reads them
    sentences: list[list[Sentence]]  # sentences of each block
    cut: int  # number of cuts of sentences that were too long
    lines: list[str]  # the lines that the model reads: the sentences, and finished texts between them
    given: dict[int, str]  # translations of some lines, by line number, from 1
    own: list[int]  # numbers of the lines that are sentences, from 0
    # for blocks whose translation is given, the text of their segments; empty if it has other markup
    kept: dict[int, tuple[str, ...]]
    capitals: dict[int, str]  # lines that are in capitals in the file, as they are there, by line number, from 0
    exact: int = 0  # number of sentences found verbatim in a memory

    @property
    def n_context(self) -> int:
        """Number of finished texts read as context."""
        return len(self.lines) - len(self.own)


class FileReader:
    """A reader of files as documents.

    Args:
        lines: each line is one sentence; by default, sentences are detected.
        unreviewed: whether finished texts that need a review are also read.
        unknown: whether the model does not know some symbols.
        spelled: whether it would have to spell a name; None to hide no names.
    """

    def __init__(
        self,
        codec: ExampleCodec,
        lines: bool = False,
        unreviewed: bool = False,
        unknown: Callable[[str], bool] = lambda symbols: False,
        spelled: Callable[[str], bool] | None = None,
    ) -> None:
        languages = codec.settings.source_lang, codec.settings.target_lang
        self.codec, self.unreviewed, self.unknown, self.spelled = codec, unreviewed, unknown, spelled
        self.split, self.split_target = (whole if lines else splitter(language) for language in languages)

    def read(self, file: OpenFile, given: Given | None = None) -> FileDocument:
        """Read a file as a document; no sentence is longer than the model's limit.

        Args:
            given: translations of some blocks; or an earlier version, whose unchanged paragraphs and sentences keep
                their translation.
        """
        if not isinstance(given, Earlier):
            return self._read(file, given)
        old, translation = given
        if len(old.blocks) != len(translation.blocks):
            cues = ", or their sentences end in other cues: try --from cues" if old.units else ""
            raise InputError(
                f"--since: the old source has {len(old.blocks)} paragraphs, but its translation has "
                f"{len(translation.blocks)}; not versions of the same document{cues}"
            )
        same = unchanged([block.text for block in old.blocks], [block.text for block in file.blocks])
        known = {i: translation.blocks[j] for i, j in same.items() if old.blocks[j] == file.blocks[i]}
        before, now = self._read(old, dict(enumerate(translation.blocks))), self._read(file, known)
        for i, j in unchanged(before.lines, now.lines).items():  # sentences of changed paragraphs
            if j + 1 in before.given:
                now.given.setdefault(i + 1, before.given[j + 1])
        return now

    def _read(self, file: OpenFile, given: Blocks | None) -> FileDocument:
        cuts = [0]
        fitting = self._fitting(cuts)
        document = FileDocument(file, [], [], 0, [], {}, [], {}, {})
        waiting = list(file.finished)
        for i, block in enumerate(file.blocks):
            while waiting and waiting[0].before <= i:
                self._add_context(document, waiting.pop(0))
            known = (given or {}).get(i)
            if known is not None and not clean_line(known.text):
                known = None
            spelled = None if known is not None or in_capitals(block.text) else self.spelled
            shown, names = hidden(block, self.unknown, spelled), known
            if known is not None:
                its = hidden(known, self.unknown)
                alike = [s for s in its.symbols if s] == [s for s in shown.symbols if s]
                shown, known = (shown, its.block) if alike else (Hidden.nothing(block), known)
            document.hidden.append(shown)
            block = shown.block
            here = sentences(block, fitting)
            translations = [] if known is None else [s.text for s in sentences(known, self.split_target)]
            if known is not None and len(translations) != len(here):
                here = sentences(block, whole)
                translations = [clean_line(known.text)]
                if not all(self._fits(s.text) for s in here):
                    raise InputError("a translation is given for a paragraph that is too long; give it line by line")
            if names is not None:
                document.kept[i] = _between(names, file.blocks[i])
            here = [s._replace(text=with_plain_letters(s.text, self.unknown)) for s in here]
            document.sentences.append(here)
            for j, sentence in enumerate(here):
                document.own.append(len(document.lines))
                if not translations and in_capitals(sentence.text):
                    document.capitals[len(document.lines)] = sentence.text
                    document.lines.append(usual_case(sentence.text))
                else:
                    document.lines.append(sentence.text)
                if translations:
                    document.given[len(document.lines)] = translations[j]
        for one in waiting:
            self._add_context(document, one)
        return document._replace(cut=cuts[0])

    def _add_context(self, document: FileDocument, one: Finished) -> None:
        source, target = clean_line(one.source), clean_line(one.target)
        if source and target and (one.reviewed or self.unreviewed) and self._fits(source) and self._target_fits(target):
            document.lines.append(source)
            document.given[len(document.lines)] = target

    def _fits(self, text: str) -> bool:
        return self.codec.length(self.codec.encode_source(" ".join(text.split()))) <= self.codec.room

    def _target_fits(self, text: str) -> bool:
        return self.codec.length(self.codec.encode_target(text)) <= self.codec.room

    def _fitting(self, cuts: list[int]) -> Splitter:
        """Return the splitter, which also cuts sentences beyond the limit between words."""
        codec = self.codec

        def pieces(text: str, start: int, end: int) -> Iterable[tuple[int, int]]:
            # characters bound the subwords: most sentences need not be encoded twice
            if end - start < codec.limit // 2 or self._fits(text[start:end]) or end - start < 2:
                return [(start, end)]
            cuts[0] += 1
            middle = (start + end) // 2
            places = [i for i in range(start + 1, end) if text[i].isspace()]
            stops = [i for i in places if text[i - 1] in ",;:–—"]
            cut = min(stops or places or [middle], key=lambda i: abs(i - middle))
            return [*pieces(text, start, cut), *pieces(text, cut, end)]

        def split(text: str) -> list[tuple[int, int]]:
            return [
                place for span in self.split(text) for piece in pieces(text, *span) for place in trimmed(text, *piece)
            ]

        return split


def in_capitals(text: str) -> bool:
    """Return whether a text of several words is written in capitals."""
    return text.isupper() and len(re.findall(r"[^\W\d_]{2,}", _PLACEHOLDERS.sub(" ", text))) > 1


def usual_case(text: str) -> str:
    """Return a text in capitals as a sentence that a model has learned to read."""
    lower = re.sub(r"\bi\b", "I", text.lower())
    first = re.search(r"[^\W\d_]", lower)
    lower = lower if first is None else lower[: first.start()] + first[0].upper() + lower[first.end() :]
    return re.sub(rf"\b{PLACEHOLDER.lower()}(?=\d+\b)", PLACEHOLDER, lower)


def unchanged(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """Return the numbers of the texts that stay in order: those of the old ones, by those of the new ones."""
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return {run.b + i: run.a + i for run in blocks for i in range(run.size)}


def given_lines_of_text(
    data: bytes, known: bytes, form: str, encoding: str | None, name: str, languages: tuple[str, str] = ("", "")
) -> Blocks:
    """Return the blocks of a plain text translated in a table or in as many lines; see :func:`parse_given`.

    Args:
        data: the text.
        known: the given translations.
        encoding: encoding of the text.
        name: name of the file in errors.
        languages: of the text and its translation.
    """
    lines = split_lines(decode(data, encoding, language=languages[0]).text)
    parsed = parse_given(decode(known, None, language=languages[1]).text, len(lines), name)
    check_given(parsed, [i for i, line in enumerate(lines, 1) if line.strip()], name)
    blocks: dict[int, Block] = {}
    following = 0
    for number, line in enumerate(lines, 1):
        count = len(plain.read(line).blocks)
        if number in parsed:
            given = plain.read(parsed[number]).blocks
            if count == 1:
                blocks[following] = given[0] if len(given) == 1 else Block((parsed[number],))
            elif count and len(given) == count:
                blocks.update(enumerate(given, following))
            elif clean_line(parsed[number]) != clean_line(line):
                why = f"has {count} texts, unlike its translation" if count else "has no text that is translated"
                raise InputError(f"{name}: a translation is given for line {number}, which {why}")
        following += count
    return blocks


def given_blocks(
    data: bytes, known: bytes, form: str, encoding: str | None, name: str, languages: tuple[str, str] = ("", "")
) -> Blocks:
    """Return the blocks that a half-translated copy of a file has translated: those with a different text.

    Args:
        data: the file.
        known: the copy.
        languages: of the file and its translation.
    """
    if form in ("po", "xliff"):
        raise InputError(f"--given: not for {form}, whose finished units are given without it")
    files = zip((data, known), languages)
    source, copy = (read(content, form, encoding, language=spoken).blocks for content, spoken in files)
    if len(source) != len(copy):
        raise InputError(
            f"{name}: has {len(copy)} paragraphs or cues, but the source has {len(source)}; expected a copy of the "
            "source in which some are translated"
        )
    pairs = enumerate(zip(source, copy))
    return {i: b for i, (a, b) in pairs if clean_line(b.text) not in ("", clean_line(a.text))}


def _between(given: Block, block: Block) -> tuple[str, ...]:
    """Return the segments of a given translation between the markup of a block; empty if it has other markup.

    A line of subtitles may break elsewhere: a space takes the place of a break, and a break that of a space.
    """
    segments = list(given.segments)
    if [_is_empty(its) for its in given.markup] != [_is_empty(its) for its in block.markup]:
        return ()
    for i, (its, ours) in enumerate(zip(given.fills, block.fills)):
        before, after = segments[i : i + 2]
        if its == BREAK != ours and before[-1:].strip() and after[:1].strip():
            if block.segments[i][-1:].isspace():
                segments[i] += " "
            else:
                segments[i + 1] = f" {after}"
        elif ours == BREAK != its:
            segments[i], segments[i + 1] = before.removesuffix(" "), after.removeprefix(" ")
    return tuple(segments)


def _is_empty(markup: Markup) -> bool:
    """Return whether markup is a mere line break."""
    return not "".join(map(str, markup)).strip()
