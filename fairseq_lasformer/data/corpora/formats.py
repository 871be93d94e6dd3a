"""Parsers for the formats in which the corpora are distributed; each yields documents of sentences."""

import gzip
import html
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.documents import Document, Pair

_CONTROL = re.compile(r" *[\x00-\x1f\x7f-\x9f\u2028\u2029][\x00-\x20\x7f-\x9f\u2028\u2029]*")


def clean(text: str) -> str:
    """Put text on one line: control characters and line endings, with surrounding spaces, become one space each.

    Other runs of spaces are left unchanged, as in the published splits.
    """
    return _CONTROL.sub(" ", text).strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror or e})") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not valid UTF-8") from e


def pair(source: list[Document], target: list[Document], names: tuple[object, object]) -> list[Pair]:
    """Pair the documents of both sides.

    Args:
        names: names of the two sides, for error messages.
    """
    if len(source) != len(target):
        raise InputError(f"{names[0]}: {len(source)} documents, but {names[1]} has {len(target)}")
    for i, (s, t) in enumerate(zip(source, target), 1):
        if len(s) != len(t):
            raise InputError(f"{names[0]}: document {i} has {len(s)} sentences, but {len(t)} in {names[1]}")
    return [Pair(s, t) for s, t in zip(source, target) if s]


_SEGMENT = re.compile(r"<doc\b|<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


def segments(path: Path) -> list[Document]:
    """Read documents of IWSLT's evaluation XML and of WMT's SGML: ``<doc …> … <seg id="1"> text </seg>``.

    Both are parsed by their tags alone: WMT's files are not valid XML (they may contain bare ampersands).
    """
    documents: list[Document] = []
    for match in _SEGMENT.finditer("\n".join(_lines(path))):
        if match[1] is None:
            documents.append([])
        elif not documents:
            raise InputError(f"{path}: a <seg> precedes the first <doc>")
        else:
            documents[-1].append(clean(html.unescape(match[1])))
    if not any(documents):
        raise InputError(f"{path}: contains no <seg>")
    return documents


def talks(path: Path) -> list[Document]:
    """Read documents of IWSLT's ``train.tags.*``: plain lines between tagged ones; each talk begins with ``<url>``."""
    documents: list[Document] = []
    lines = _lines(path)
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        text = line.strip()
        if text.startswith("<url>"):
            documents.append([])
        elif text.startswith("<") and text.endswith(">"):
            continue
        elif not documents:
            raise InputError(f"{path}:{number}: text before the first <url>")
        else:
            documents[-1].append(clean(text))
    if not documents:
        raise InputError(f"{path}: contains no <url>; not a train.tags file of IWSLT")
    return documents


def marked(path: Path) -> list[Document]:
    """Read documents of one sentence per line, each beginning with a line ``<d>`` (the files of Maruf et al. 2019)."""
    documents: list[Document] = []
    lines = _lines(path)
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        text = clean(line)
        if text == "<d>":
            documents.append([])
        elif not documents:
            raise InputError(f"{path}:{number}: text before the first <d>")
        else:
            documents[-1].append(text)
    return documents


def without_empty(pairs: Iterable[Pair]) -> tuple[list[Pair], int]:
    """Return the pairs without sentences that are empty on one side, and the number of those sentences."""
    kept, dropped = [], 0
    for p in pairs:
        both = [(s, t) for s, t in zip(p.source, p.target) if s and t]
        dropped += len(p.source) - len(both)
        if both:
            kept.append(Pair([s for s, _ in both], [t for _, t in both]))
    return kept, dropped


class _Link(NamedTuple):
    documents: tuple[str, str]
    sentences: list[tuple[list[str], list[str]]]


def _links(path: Path) -> Iterator[_Link]:
    """Yield the alignments in an OPUS file (XCES), one document pair at a time."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as f:
        for _, element in ElementTree.iterparse(f):
            if element.tag != "linkGrp":
                continue
            links = []
            for link in element.iter("link"):
                first, _, second = link.get("xtargets", ";").partition(";")
                links.append((first.split(), second.split()))
            yield _Link((element.get("fromDoc", ""), element.get("toDoc", "")), links)
            element.clear()


def _opus_document(archive: zipfile.ZipFile, names: dict[str, str], name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the sentences of one document by id, and the speaker's turn of each (``0`` where none is marked)."""
    wanted = name.removesuffix(".gz")
    if wanted not in names:
        raise InputError(f"{archive.filename}: contains no {wanted}")
    content = archive.read(names[wanted])
    if names[wanted].endswith(".gz"):
        content = gzip.decompress(content)
    sentences, turns, turn = {}, {}, 0
    for event, element in ElementTree.iterparse(io.BytesIO(content), events=("start", "end")):
        if event == "start" and element.tag in ("SPEAKER", "CHAPTER"):
            turn += 1
        elif event == "end" and element.tag == "s":
            words = [w.text or "" for w in element.iter("w")]
            text = " ".join(words) if words else "".join(element.itertext())
            sentences[element.get("id", "")] = clean(text)
            turns[element.get("id", "")] = str(turn)
    return sentences, turns


def opus(links: Path, first: Path, second: Path, by_speaker: bool = False) -> Iterator[Pair]:
    """Read documents of an OPUS corpus.

    Links between several sentences join them; links with an empty side are skipped, as in OPUS's own text files.

    Args:
        first, second: archives of XML documents, one per language, in the order of the alignment.
        by_speaker: treat a speaker's turn (Europarl) instead of a file as a document.
    """
    try:
        yield from _opus_pairs(links, first, second, by_speaker)
    except (ElementTree.ParseError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as e:
        raise InputError(f"{links}, {first}, {second}: one of them is damaged ({e}); remove it and try again") from e


def _opus_pairs(links: Path, first: Path, second: Path, by_speaker: bool) -> Iterator[Pair]:
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
        names = [_names(archive) for archive in (a, b)]
        for group in _links(links):
            (source, turns), (target, _) = (
                _opus_document(archive, n, d) for archive, n, d in zip((a, b), names, group.documents)
            )
            documents: dict[str, Pair] = {}
            for left, right in group.sentences:
                if not left or not right:
                    continue
                try:
                    texts = " ".join(source[i] for i in left), " ".join(target[i] for i in right)
                except KeyError as e:
                    raise InputError(f"{links}: {group.documents[0]} has no sentence {e}") from e
                pair = documents.setdefault(turns[left[0]] if by_speaker else "", Pair([], []))
                pair.source.append(texts[0])
                pair.target.append(texts[1])
            yield from documents.values()


def _names(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return an archive's XML files by the names that alignments use, without the folders above the language's."""
    names: dict[str, str] = {}
    for name in archive.namelist():
        if name.endswith((".xml", ".xml.gz")):
            parts = name.split("/")
            for i in range(len(parts)):
                names.setdefault("/".join(parts[i:]).removesuffix(".gz"), name)
    return names
