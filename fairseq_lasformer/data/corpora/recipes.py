"""The paper's corpora: where their files come from, how they are split, and their expected sizes."""

import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.download import RemoteFile, fetch
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, unpack
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.data.corpora.formats import marked, opus, pair, segments, talks, without_empty
from fairseq_lasformer.text.documents import (
    Document,
    Pair,
    join_documents,
    read_cleaned_lines,
    read_documents,
    split_documents,
)

_IWSLT = "https://huggingface.co/datasets/IWSLT/iwslt2017/resolve/c18a4f81a47ae6fa079fe9d32db288ddde38451d/data"
_OPUS = "https://object.pouta.csc.fi"
_MARUF = "https://raw.githubusercontent.com/sameenmaruf/selective-attn/1cb44c5ddd2cdf4f32ea74768a3389b52fc4db27/data"
_PDC = "https://raw.githubusercontent.com/sunzewei2715/Doc2Doc_NMT/a8f91838aae90fe514477a5de3dd7eeca7b5bbd8/testsets"

TED_TRAIN = RemoteFile("ted-train-en-de.zip", f"{_IWSLT}/2017-01-trnted/texts/en/de/en-de.zip")
_WIT3 = "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive/2017-01-ted-test/texts"
# each archive contains the source side of its direction: English in the first, German in the second
TED_TEST = (
    RemoteFile("ted-test-en-de.tgz", f"{_WIT3}/en/de/en-de.tgz", "b68e7097b179491f6c466ef41ad72b9b"),
    RemoteFile("ted-test-de-en.tgz", f"{_WIT3}/de/en/de-en.tgz", "e3f5b2a075a2da1a395c8b60bf1e9be1"),
)
WMT_DEV = RemoteFile(
    "wmt-dev.tgz",
    "http://data.statmt.org/wmt19/translation-task/dev.tgz",
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)
DEV_YEARS = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015")
TEST_YEARS = ("tst2016", "tst2017")
# Number of documents at the end of PDC's training set that serve as its development set; it comes without one.
PDC_DEV = 200
# Maximum unpacked size of an archive in bytes: several times the largest of the corpora.
LARGEST = 20 << 30
# Minimum length, in characters, of a sentence that can identify a document.
LONG = 40


class CorpusCounts(NamedTuple):
    documents: int
    sentences: int


Splits = dict[str, list[Pair]]


def _unpacked(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a separate folder and return that folder."""
    out = folder / archive.name.split(".")[0]
    progress = Progress(out, key_of("unpacked", archive.name))
    if not (progress.matches and progress.done("unpack")):
        out.mkdir(parents=True, exist_ok=True)
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as z:
                    _check_size(archive, sum(member.file_size for member in z.infolist()))
                    z.extractall(out)
            else:
                with tarfile.open(archive) as t:
                    _check_size(archive, sum(member.size for member in t))
                    for member in t:
                        unpack(t, member, out)
        except (zipfile.BadZipFile, zlib.error, tarfile.TarError, EOFError, OSError) as e:
            raise InputError(f"{archive}: damaged ({e}); remove it and try again") from e
        progress.begin()
        progress.finish("unpack")
    return out


def _check_size(archive: Path, size: int) -> None:
    if size > LARGEST:
        raise InputError(f"{archive}: would unpack to {size:,} bytes, more than any of these corpora; not unpacked")


def _one(folder: Path, name: str) -> Path:
    files = sorted(folder.rglob(name))
    if not files:
        raise InputError(f"{folder}: contains no file {name}")
    return files[0]


def _sides(read: Callable, folders: tuple[Path, Path], names: tuple[str, str]) -> list[Pair]:
    paths = [_one(folder, name) for folder, name in zip(folders, names)]
    return pair(read(paths[0]), read(paths[1]), (paths[0], paths[1]))


def ted(files: Path, trust: bool) -> Splits:
    """Read IWSLT 2017 talks: dev2010 and tst2010 to tst2015 for development, tst2016 and tst2017 for testing."""
    train = _unpacked(fetch(TED_TRAIN, files, trust), files)
    tests = [_unpacked(fetch(source, files, trust), files) for source in TED_TEST]

    def years(folders: tuple[Path, Path], names: Sequence[str], german: str) -> list[Pair]:
        ends = ("en-de.en.xml", f"{german}.de.xml")
        return [p for y in names for p in _sides(segments, folders, tuple(f"IWSLT17.TED.{y}.{end}" for end in ends))]  # type: ignore[arg-type]

    return {
        "train": _sides(talks, (train, train), ("train.tags.en-de.en", "train.tags.en-de.de")),
        "dev": years((train, train), DEV_YEARS, "en-de"),
        "test": years((tests[0], tests[1]), TEST_YEARS, "de-en"),
    }


def _opus(name: str, corpus: str, version: str, files: Path, trust: bool, by_speaker: bool) -> list[Pair]:
    """Read an OPUS corpus, English to German (the alignments are German to English)."""
    base = f"{_OPUS}/OPUS-{corpus}/{version}"
    links = fetch(RemoteFile(f"{name}-de-en.xml.gz", f"{base}/xml/de-en.xml.gz"), files, trust)
    german, english = (
        fetch(RemoteFile(f"{name}-{lang}.zip", f"{base}/raw/{lang}.zip"), files, trust) for lang in ("de", "en")
    )
    documents = opus(links, german, english, by_speaker)
    return [Pair(p.target, p.source) for p in progress_bar(documents, desc=f"reading {name}", unit=" documents")]


def news(files: Path, trust: bool) -> Splits:
    """Read News Commentary v11 by document; newstest2015 for development, newstest2016 for testing."""
    tests = _unpacked(fetch(WMT_DEV, files, trust), files)

    def newstest(year: int) -> list[Pair]:
        return _sides(segments, (tests, tests), (f"newstest{year}-ende-src.en.sgm", f"newstest{year}-ende-ref.de.sgm"))

    train = _opus("news", "News-Commentary", "v11", files, trust, by_speaker=False)
    return {"train": train, "dev": newstest(2015), "test": newstest(2016)}


def europarl(files: Path, trust: bool) -> Splits:
    """Read Europarl v7, one document per speaker's turn.

    The development and test sets are the documents drawn by Maruf et al. 2019, which are removed from the training set.
    """
    splits: Splits = {}
    for split in ("dev", "test"):
        sides = []
        for language in ("en", "de"):
            name = f"concatenated_en2de_{split}_{language}.txt"
            path = fetch(RemoteFile(f"europarl-{name}", f"{_MARUF}/Europarl7/{name}"), files, trust)
            sides.append((marked(path), path))
        splits[split] = pair(sides[0][0], sides[1][0], (sides[0][1], sides[1][1]))
    long = {s for pairs in splits.values() for p in pairs for s in p.source if len(s) >= LONG}
    everything = _opus("europarl", "Europarl", "v7", files, trust, by_speaker=True)
    train = []
    for p in everything:
        telling = [s for s in p.source if len(s) >= LONG]
        # a turn may have been cut or joined differently, so the majority of its longer sentences decides
        if not telling or 2 * sum(s in long for s in telling) < len(telling):
            train.append(p)
    seen = {s for p in everything for s in p.source}
    lost = sum(s not in seen for s in long)
    print(
        f"europarl: {len(everything) - len(train)} documents removed from train for the "
        f"{sum(map(len, splits.values()))} of the development and test sets; {lost} of the {len(long)} longer "
        "sentences of those sets do not occur in the corpus"
    )
    return {"train": train, **splits}


def pdc(files: Path, trust: bool) -> Splits:
    """Read PDC: the training set must be placed in ``files`` by hand; the test set is downloaded.

    The training set comes from its authors' page (``pdc.train.zh``, ``pdc.train.en``: one sentence per line, a blank
    line between documents); its last documents serve as development set.
    """
    train_paths = [files / f"pdc.train.{language}" for language in ("zh", "en")]
    for path in train_paths:
        if not path.is_file():
            raise InputError(f"{path}: put PDC's training set there (see data/README.md)")
    train = pair(read_documents(train_paths[0]), read_documents(train_paths[1]), (train_paths[0], train_paths[1]))
    if len(train) <= PDC_DEV:
        raise InputError(f"{train_paths[0]}: {len(train)} documents, but the last {PDC_DEV} are the development set")
    sides = [fetch(RemoteFile(f"pdc.test.{lang}", f"{_PDC}/del/{lang}"), files, trust) for lang in ("zh", "en")]
    for name in ("en.tok", "en.candidates"):
        fetch(RemoteFile(f"pdc.test.{name}", f"{_PDC}/doc/{name}"), files, trust)
    test = pair(read_documents(sides[0]), read_documents(sides[1]), (sides[0], sides[1]))
    return {"train": train[:-PDC_DEV], "dev": train[-PDC_DEV:], "test": test}


def tvsub(files: Path, trust: bool) -> Splits:
    """Read TVsub, whole television episodes: all files must be placed in ``files`` by hand.

    ``tvsub.{train,valid,test}.{zh,en}``, with or without ``.xz``: one sentence per line, a blank line between episodes.
    """
    splits: Splits = {}
    for split, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
        paths = [files / f"tvsub.{name}.{language}" for language in ("zh", "en")]
        splits[split] = pair(_documents(paths[0]), _documents(paths[1]), (paths[0], paths[1]))
    return splits


def _documents(path: Path) -> list[Document]:
    """Read the documents of a raw file that may be compressed (``.xz``); its tabs become spaces."""
    packed = path.with_name(f"{path.name}.xz")
    if path.is_file():
        return split_documents(read_cleaned_lines(path, clean=True)[0])
    if not packed.is_file():
        raise InputError(f"{path}: put it there, with or without .xz (see data/README.md)")
    with tempfile.TemporaryDirectory() as folder, lzma.open(packed) as data:
        unpacked = Path(folder) / path.name
        try:
            with open(unpacked, "wb") as out:
                for block in iter(lambda: data.read(1 << 20), b""):
                    out.write(block)
                    _check_size(packed, out.tell())
        except (lzma.LZMAError, EOFError) as e:
            raise InputError(f"{packed}: damaged ({e})") from e
        return split_documents(read_cleaned_lines(unpacked, clean=True)[0])


class Recipe(NamedTuple):
    """One corpus."""

    # builds its splits from the distribution's files; arguments: their folder, and `trust` as in `fetch`
    read: Callable[[Path, bool], Splits]
    languages: tuple[str, str]
    # sizes of the development and test sets in the paper (Maruf et al. 2019; Sun et al. 2022).
    expected: dict[str, CorpusCounts]
    annotations: tuple[str, str] | None = None  # files for the TCP score: candidates and tokenised reference
    # tokenizer, bpe: see `data.subwords.DataConfig`. Moses cannot split Chinese into words, and would replace its
    # punctuation.
    tokenizer: str = "moses"
    bpe: str = "subword-nmt"


CORPORA = {
    "ted": Recipe(ted, ("en", "de"), {"dev": CorpusCounts(93, 8967), "test": CorpusCounts(23, 2271)}),
    "news": Recipe(news, ("en", "de"), {"dev": CorpusCounts(81, 2169), "test": CorpusCounts(155, 2999)}),
    "europarl": Recipe(europarl, ("en", "de"), {"dev": CorpusCounts(240, 3587), "test": CorpusCounts(360, 5134)}),
    "pdc": Recipe(
        *(pdc, ("zh", "en"), {"test": CorpusCounts(148, 4858)}),
        annotations=("pdc.test.en.candidates", "pdc.test.en.tok"),
        tokenizer="none",
        bpe="sentencepiece",
    ),
    "tvsub": Recipe(tvsub, ("zh", "en"), {}, tokenizer="none", bpe="sentencepiece"),
}
"""The corpora in raw distributions, by their names on the command line."""

ELSEWHERE = {"libreoffice-help": "fairseq_lasformer.apps.pairing.libreoffice"}
"""Corpora that an app makes, with its `build`."""


def build(
    name: str, files: Path, out: Path, trust: bool = False, languages: tuple[str, str] | None = None
) -> list[str]:
    """Write ``OUT/{train,dev,test}.LANG`` in raw form; leave a finished corpus unchanged.

    Args:
        name: a key of :data:`CORPORA` or :data:`ELSEWHERE`.
        files: folder that contains the distribution's files, or to which they are downloaded.
        trust: see :func:`fetch`.
        languages: of a corpus in many of them; default: English and German.

    Returns:
        one line per split with the numbers of documents, of sentences and of pairs dropped because one side was empty;
        a single line if the corpus was already finished.
    """
    if name in ELSEWHERE:
        return import_module(ELSEWHERE[name]).build(files, out, languages or ("en", "de"))
    if languages is not None and languages != CORPORA[name].languages:
        raise InputError(f"--languages: {name} is {'-'.join(CORPORA[name].languages)}; leave it out")
    progress = Progress(out, key_of("corpus", name))
    files_of = [out / f"{split}.{lang}" for split in ("train", "dev", "test") for lang in CORPORA[name].languages]
    if progress.matches and progress.done("build") and all(path.exists() for path in files_of):
        return [f"{out}: {name} is already there"]
    recipe = CORPORA[name]
    lines, written = [], []
    for split, pairs in recipe.read(files, trust).items():
        pairs, dropped = without_empty(pairs)
        counts = CorpusCounts(len(pairs), sum(len(p.source) for p in pairs))
        expected = recipe.expected.get(split)
        if expected is not None and counts != expected:
            raise InputError(
                f"{name} {split}: {counts.documents} documents and {counts.sentences} sentences, but the paper's has "
                f"{expected.documents} and {expected.sentences}; check that {files} contains the right files"
            )
        written.append((split, pairs))
        known = " (as in the paper)" if expected else ""
        lines.append(
            f"{name} {split}: {counts.documents} documents, {counts.sentences} sentences{known}; {dropped} dropped"
        )
    for split, pairs in written:
        for side, language in enumerate(recipe.languages):
            atomic_write(out / f"{split}.{language}", join_documents(p[side] for p in pairs))
    progress.begin()
    progress.finish("build")
    return lines
