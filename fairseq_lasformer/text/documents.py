"""Documents: reading, checking, cutting at several resolutions and counting.

Raw form: one sentence per line, a blank line between documents, the two sides of a corpus aligned line by line.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.lines import BREAKS, CONTROL, clean_line

Document = list[str]

RESOLUTIONS = ("mixture", "sentences", "documents")


class Pair(NamedTuple):
    """One document of a parallel corpus: as many source sentences as target sentences."""

    source: Document
    target: Document


class Corpus(NamedTuple):
    """A checked parallel corpus."""

    documents: list[Pair]  # the documents, in reading order
    lines: list[list[int]]  # line number of every sentence, counted from 1, by document
    dropped: int  # number of pairs left out because one side was empty
    source: str
    target: str
    cleaned: int = 0  # number of lines in which control characters were replaced with spaces
    n_lines: int = 0  # number of lines of each file, including blank ones

    @property
    def blanks(self) -> list[int]:
        """Number of lines without a sentence before each document, and after the last."""
        ends = [0, *(numbers[-1] for numbers in self.lines)]
        starts = [*(numbers[0] for numbers in self.lines), self.n_lines + 1]
        return [start - end - 1 for end, start in zip(ends, starts)]

    @property
    def sentences(self) -> int:
        return sum(len(d.source) for d in self.documents)


class Span(NamedTuple):
    """Sentences ``start`` to ``start + size`` of a document, read with ``context`` before and ``after`` after them."""

    document: int
    start: int
    size: int
    context: int = 0
    after: int = 0


_CONTROL = re.compile(f"[{CONTROL}\t]")
_BREAK = re.compile(f"[{BREAKS}]")


def read_lines(path: str | Path, clean: bool = False) -> list[str]:
    """Read the lines of a UTF-8 text file, without line endings (see :mod:`text.lines`); a byte order mark is skipped.

    Args:
        clean: replace control characters (tabs, …) with spaces instead of rejecting them.

    Raises:
        InputError: the file is missing or not UTF-8, or a line contains a control character.
    """
    return read_cleaned_lines(path, clean)[0]


def read_cleaned_lines(path: str | Path, clean: bool) -> tuple[list[str], int]:
    """Return the lines of :func:`read_lines`, and the number of lines in which spaces replaced something."""
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    text: list[str] = []
    refused: list[str] = []
    cleaned = 0
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise InputError(
                f"{path}:{number}: not valid UTF-8 (byte {e.start + 1} of the line); convert it first"
            ) from e
        if number == 1:
            line = line.removeprefix("\ufeff")
        line, breaks = _BREAK.subn(" ", line.removesuffix("\r"))
        cleaned += bool(breaks)
        if match := _CONTROL.search(line):
            name = "TAB" if match[0] == "\t" else unicodedata.name(match[0], f"U+{ord(match[0]):04X}")
            refused.append(f"{path}:{number}: control character {name} in column {match.start() + 1}")
            cleaned += not breaks
            line = _CONTROL.sub(" ", line)
        text.append(line.strip() if clean_line(line) else "")
    if refused and not clean:
        others = f", and in {len(refused) - 1} more lines" if len(refused) > 1 else ""
        raise InputError(
            f"{refused[0]}{others}; remove them, or let lasformer prepare --clean replace them with spaces"
        )
    return text, cleaned


def split_documents(lines: Iterable[str]) -> list[Document]:
    """Split raw lines into documents; any number of blank lines is one boundary."""
    documents: list[Document] = [[]]
    for line in lines:
        if line:
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return [d for d in documents if d]


def join_documents(documents: Iterable[Document], blanks: Sequence[int] = ()) -> str:
    """Join documents in raw form; the inverse of :func:`split_documents` for documents without empty sentences.

    Args:
        blanks: number of blank lines before each of them, and after the last; default: one between two of them.
    """
    texts = ["".join(sentence + "\n" for sentence in document) for document in documents]
    if len(blanks) != len(texts) + 1:
        return "\n".join(texts)
    return "".join("\n" * before + text for before, text in zip(blanks, [*texts, ""]))


def read_documents(path: str | Path) -> list[Document]:
    """Read one side of a corpus. Raises InputError like :func:`read_lines`, or if the file contains no sentence."""
    documents = split_documents(read_lines(path))
    if not documents:
        raise InputError(
            f"{path}: contains no sentence; expected one sentence per line, a blank line between documents"
        )
    return documents


def sides(prefix: Path, source: str, target: str) -> tuple[Path, Path]:
    """Return the raw files ``PREFIX.SOURCE`` and ``PREFIX.TARGET``."""
    return prefix.with_name(f"{prefix.name}.{source}"), prefix.with_name(f"{prefix.name}.{target}")


def read_corpus(source: str | Path, target: str | Path, drop_empty: bool = False, clean: bool = False) -> Corpus:
    """Read a parallel corpus in raw form and check it line by line.

    Args:
        drop_empty: drop (and count) pairs with an empty side instead of rejecting them.
        clean: see :func:`read_lines`.

    Raises:
        InputError: as :func:`read_lines`; or the sides differ in length or in document boundaries, one side of a pair
            is empty, or there is no sentence. The message names file and line.
    """
    (src, cleaned), (tgt, more) = read_cleaned_lines(source, clean), read_cleaned_lines(target, clean)
    if len(src) != len(tgt):
        longer = source if len(src) > len(tgt) else target
        raise InputError(
            f"{longer}:{min(len(src), len(tgt)) + 1}: the two sides differ in length: {source} has {len(src)} lines, "
            f"{target} has {len(tgt)}; align them line by line"
        )
    alone = {i for i, (s, t) in enumerate(zip(src, tgt)) if bool(s) != bool(t)}
    moved = _moved_boundaries(src, tgt, sorted(alone))
    for i in sorted(alone):
        empty, other = (source, target) if not src[i] else (target, source)
        if i in moved:
            raise InputError(f"{empty}:{i + 1}: a document ends here, but not in {other}; the boundaries must agree")
        if not drop_empty:
            raise InputError(
                f"{empty}:{i + 1}: empty, but {other} has a sentence there; complete the pair (or the boundary), or "
                "drop such pairs with --drop-empty"
            )
    numbers = [i for i in range(len(src)) if i not in alone]
    sources = split_documents(src[i] for i in numbers)
    targets = split_documents(tgt[i] for i in numbers)
    lines = split_documents(str(i + 1) if src[i] else "" for i in numbers)
    if not sources:
        raise InputError(
            f"{source}: the corpus is empty; expected one sentence per line, a blank line between documents"
        )
    return Corpus(
        [Pair(s, t) for s, t in zip(sources, targets)],
        [[int(n) for n in document] for document in lines],
        len(alone),
        str(source),
        str(target),
        cleaned + more,
        len(src),
    )


def single_sentences(corpus: Corpus) -> Corpus:
    """Return a corpus in which every sentence is a document of its own."""
    pairs = [Pair([s], [t]) for document in corpus.documents for s, t in zip(*document)]
    return corpus._replace(documents=pairs, lines=[[number] for lines in corpus.lines for number in lines])


def _moved_boundaries(src: Sequence[str], tgt: Sequence[str], alone: Sequence[int]) -> set[int]:
    """Find the lines, empty on one side only, that are document boundaries which the other side has elsewhere.

    Two empty lines, one on each side and close together, are a single shifted boundary if the lines between them match
    better when shifted by one line: unshifted, they are not translations of each other.

    Args:
        src, tgt: lines of the two sides.
        alone: indices of the lines that are empty on one side only, in order.
    """
    moved: set[int] = set()
    for i, j in zip(alone, alone[1:]):
        if bool(src[i]) == bool(src[j]):
            continue
        if j - i <= 2:
            moved.add(i)
            continue
        if any(not src[k] for k in range(i + 1, j)):
            continue  # there is a boundary on both sides between them
        early, late = (tgt, src) if not src[i] else (src, tgt)  # early has a sentence at i, late has one at j
        as_it_is = sum(_misfit(src[k], tgt[k]) for k in range(i + 1, j))
        shifted = sum(_misfit(early[k], late[k + 1]) for k in range(i, j))
        if shifted / (j - i) < 0.7 * as_it_is / (j - i - 1):
            moved.add(i)
    return moved


def _misfit(source: str, target: str) -> float:
    """Measure how badly the lengths of two sentences match; 0 if they have the same number of characters."""
    return abs(math.log((len(source) + 10) / (len(target) + 10)))


def read_source(path: str | Path, target: str | Path, clean: bool = False) -> Corpus:
    """Read a test set without a reference: its documents with empty translations.

    Raises:
        InputError: as :func:`read_lines`, or there is no sentence.
    """
    lines, cleaned = read_cleaned_lines(path, clean)
    documents = split_documents(lines)
    if not documents:
        raise InputError(f"{path}: the corpus is empty; expected one sentence per line, a blank line between documents")
    numbers = split_documents(str(i) if line else "" for i, line in enumerate(lines, 1))
    pairs = [Pair(document, [""] * len(document)) for document in documents]
    return Corpus(
        pairs, [[int(n) for n in document] for document in numbers], 0, str(path), str(target), cleaned, len(lines)
    )


def resolutions(n_sentences: int) -> list[int]:
    """Return the chunk sizes of a document in the multi-resolution mixture: n, n//2, … 1 (Sun et al. 2022)."""
    sizes = []
    while n_sentences:
        sizes.append(n_sentences)
        n_sentences //= 2
    return sizes


def cut(lengths: Sequence[Sequence[int]], limit: int) -> list[int]:
    """Cut a document at sentence boundaries into the fewest parts of ``limit`` tokens; return their sizes.

    Among the cuts with the fewest parts, one that minimises the longest part is chosen.

    Args:
        lengths: for each sentence, its number of tokens on every side that counts; none exceeds ``limit``.
        limit: maximum number of tokens per part.
    """

    def greedy(most: int) -> list[int]:
        counts, filled = [0], [0] * len(lengths[0])
        for sides in lengths:
            filled = [f + n for f, n in zip(filled, sides)]
            if counts[-1] and max(filled) > most:
                counts.append(0)
                filled = list(sides)
            counts[-1] += 1
        return counts

    fewest = len(greedy(limit))
    low, high = max(max(sides) for sides in lengths), limit
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(greedy(middle)) <= fewest else (middle + 1, high)
    return greedy(high)


def parts(
    document: int, lengths: Sequence[Sequence[int]], limit: int, overlap: int = 0, windows: bool = False
) -> list[Span]:
    """Return the parts of a document under the token limit, in order; a document that fits is a single part.

    Args:
        document: its number.
        lengths: see :func:`cut`.
        limit: see :func:`cut`.
        overlap: number of sentences of the previous part that each further part begins with, as context; fewer where
            they do not fit.
        windows: whether parts are also read with as many sentences after them.
    """
    longest = [max(sides) for sides in lengths]
    room = limit
    if overlap and sum(longest) > limit:
        widest = max(sum(longest[i : i + overlap]) for i in range(len(longest)))
        room = max(limit - (1 + windows) * widest, limit // 2, *longest)
    spans, start = [], 0
    for count in cut(lengths, room):
        end, context, after = start + count, 0, 0
        filled = sum(longest[start:end])
        for _ in range(overlap):  # one before, one after
            if context < start and filled + longest[start - context - 1] <= limit:
                context += 1
                filled += longest[start - context]
            if windows and end + after < len(longest) and filled + longest[end + after] <= limit:
                filled += longest[end + after]
                after += 1
        spans.append(Span(document, start, count, context, after))
        start = end
    return spans


def chunks(part: Span, how: str) -> Iterator[Span]:
    """Yield the training examples of one part: the whole part, its sentences, or chunks at every resolution.

    The last chunk of a resolution may be shorter.

    Args:
        how: ``documents``, ``sentences`` or ``mixture``.
    """
    sizes = {"documents": [part.size], "sentences": [1], "mixture": resolutions(part.size)}[how]
    for size in sizes:
        for start in range(0, part.size, size):
            yield Span(part.document, part.start + start, min(size, part.size - start))
