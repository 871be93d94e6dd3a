"""Shortlists: of a large vocabulary, the decoder scores only words that may translate the document at hand.

As in Marian and CTranslate2 (``use_vmap``), these are the frequent words and the most likely translations of each
source word. Here each document has its own list, so its translation does not depend on what is translated with it. The
list also contains the document's source words themselves (names and numbers are copied), the words of required terms
and those of a given beginning. Lines that go wrong are translated again with all words.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_writable, replacing
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.data.lexicon import Lexicon, LinePair, lexicon, line_pairs
from fairseq_lasformer.data.subwords import DataConfig

FILE = "shortlist.npz"
"""File name in a prepared folder."""

BEST, FREQUENT = 50, 200
"""Number of translations of a source word, and of frequent words."""

SPECIAL = 4
"""Number of special symbols in fairseq's dictionaries: beginning, padding, end, unknown."""

_LARGEST = 1 << 30
"""Maximum unpacked bytes of a file that is read."""


class Shortlist(NamedTuple):
    """Target words that may translate each source word."""

    frequent: np.ndarray  # int64, words that every list has
    # starts, words: int64; those of source word s are `words[starts[s]:starts[s + 1]]`
    starts: np.ndarray
    words: np.ndarray
    same: np.ndarray  # int64 [source words], the target word that is spelt alike; the unknown word where there is none
    n_words: int  # number of target words

    def allowed(self, source: np.ndarray, more: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the words on the lists of some documents, bool [N, V].

        Args:
            source: int [N, K], their tokens, padded.
            more: for each document, further words of its list.
        """
        words = np.zeros((len(source), self.n_words), dtype=bool)
        words[:, :SPECIAL] = words[:, self.frequent] = True
        for row, tokens, others in zip(words, source, more):
            there = np.unique(tokens[tokens >= SPECIAL])
            row[self.same[there]] = True
            for word in there:
                row[self.words[self.starts[word] : self.starts[word + 1]]] = True
            row[list(others)] = True
        return words


def hashes(dictionaries: Sequence[Any]) -> list[str]:
    """Hash fairseq's dictionaries."""
    return [hashlib.sha256("\n".join(d.symbols).encode()).hexdigest() for d in dictionaries]


def build(data: Path, out: Path, best: int = BEST, frequent: int = FREQUENT) -> str:
    """Write the shortlist of a prepared folder's training data; return a line that describes it.

    Args:
        data: prepared folder with a split ``train``.
        best, frequent: see :data:`BEST`.
    """
    from fairseq.data import Dictionary

    settings = DataConfig.load(data)
    check_writable(out)
    languages = settings.source_lang, settings.target_lang
    source, target = (Dictionary.load(str(data / f"dict.{language}.txt")) for language in languages)
    separators = tuple(d.index(settings.separator) if settings.separator else None for d in (source, target))
    lines = _lines(data, languages, separators)
    counts = np.zeros(len(target), np.int64)
    for _, side in lines:
        np.add.at(counts, side, 1)
    learned = lexicon(lines, (len(source), len(target)), best)
    always = np.argsort(-counts, kind="stable")[:frequent]
    always = np.union1d(always[counts[always] > 0], [s for s in separators if s is not None]).astype(np.int32)
    _save(out, learned, always, hashes((source, target)))
    known = int((np.diff(learned.starts) > 0).sum())
    read = "all" if learned.read == learned.lines else f"{learned.read:,}"
    return (
        f"{out}: {learned.words.size:,} translations of {known:,} of {len(source):,} source words, and {always.size} "
        f"frequent words, from {read} of {learned.lines:,} lines"
    )


def _lines(data: Path, languages: tuple[str, str], separators: tuple[int | None, ...]) -> list[LinePair]:
    """Return the line pairs of a prepared folder's training data: only single-line examples if there are any."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    prefix = data / f"train.{'-'.join(languages)}"
    if not Path(f"{prefix}.{languages[0]}.idx").exists():
        raise InputError(f"{data}: has no training data to make a shortlist from")
    sides = [MMapIndexedDataset(f"{prefix}.{language}") for language in languages]
    single: list[LinePair] = []
    joined: list[LinePair] = []
    for i in progress_bar(range(len(sides[0])), desc="reading examples", unit=" examples"):
        pairs = line_pairs(sides[0][i].numpy(), sides[1][i].numpy(), (separators[0], separators[1]))
        (single if len(pairs) == 1 else joined).extend(pairs)
    if not single and not joined:
        raise InputError(f"{data}: its training data has no aligned lines to make a shortlist from")
    return single or joined


def _save(path: Path, learned: Lexicon, frequent: np.ndarray, dictionaries: Sequence[str]) -> None:
    named = np.array(list(dictionaries))
    with replacing(path, "wb") as file:
        np.savez(file, starts=learned.starts, words=learned.words, frequent=frequent, dictionaries=named)


def load(path: str | Path, source: Any, target: Any) -> Shortlist:
    """Read a shortlist.

    Args:
        path: file that :func:`build` wrote.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST:
                raise InputError(f"{path}: too large to be a shortlist")
        with np.load(path, allow_pickle=False) as arrays:
            parts = {name: arrays[name] for name in ("starts", "words", "frequent", "dictionaries")}
        starts, words, frequent = (parts[name].astype(np.int64) for name in ("starts", "words", "frequent"))
        named = [str(name) for name in parts["dictionaries"]]
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; create one with lasformer shortlist") from None
    except Exception as e:  # zipfile and numpy raise many kinds for damaged files
        raise InputError(f"{path}: cannot be read as a shortlist ({e}); recreate it with lasformer shortlist") from e
    if named != hashes((source, target)):
        raise InputError(f"{path}: belongs to other dictionaries; recreate it with lasformer shortlist")
    within = all(a.ndim == 1 and (a.size == 0 or 0 <= a.min() <= a.max() < len(target)) for a in (words, frequent))
    if starts.shape != (len(source) + 1,) or starts[0] != 0 or starts[-1] != words.size or (np.diff(starts) < 0).any():
        within = False
    if not within:
        raise InputError(f"{path}: damaged; recreate it with lasformer shortlist")
    same = np.array([target.index(source[i]) for i in range(len(source))], dtype=np.int64)
    return Shortlist(frequent, starts, words, same, len(target))
