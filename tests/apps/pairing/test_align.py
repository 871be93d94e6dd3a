"""From two folders of files to a corpus: what is paired, what is left out, and that everything is counted."""

from __future__ import annotations

import itertools
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import run

from fairseq_lasformer.apps.pairing import align as aligning
from fairseq_lasformer.apps.pairing.align import align
from fairseq_lasformer.apps.pairing.evidence import learned_words
from fairseq_lasformer.apps.pairing.matching import match, match_sentences, monotone
from fairseq_lasformer.apps.pairing.splitting import AlignedDocument, divide
from fairseq_lasformer.apps.pairing.units import Reading, Unit, read_units
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.formats.sentences import splitter
from fairseq_lasformer.formats.word import WORD
from fairseq_lasformer.text.documents import read_corpus

SPLITTERS = splitter("en"), splitter("de")


def sentence(rng: random.Random) -> tuple[str, str]:
    """A sentence of words by Zipf's law, and its translation: a word for each, some of them in another place."""
    words = [int(1.5 ** (rng.random() * 16)) for _ in range(rng.randint(4, 14))]
    order = list(words)
    if len(order) > 5:
        i = rng.randrange(len(order) - 2)
        order[i], order[i + 2] = order[i + 2], order[i]
    return tuple(
        " ".join(f"{letter}{'oiua'[n % 4]}{letter}{n}" for n in side).capitalize() + "."
        for letter, side in (("b", words), ("k", order))
    )  # type: ignore[return-value]


def pages(n: int, seed: int = 0) -> list[list[tuple[str, str]]]:
    """Pages of paragraphs, each of one to three sentences."""
    rng = random.Random(seed)
    return [
        [
            tuple(" ".join(side) for side in zip(*(sentence(rng) for _ in range(rng.randint(1, 3)))))
            for _ in range(rng.randint(5, 20))
        ]
        for _ in range(n)
    ]  # type: ignore[misc]


def write_pages(folder: Path, documents: list[list[tuple[str, str]]], ids: bool = True) -> tuple[Path, Path]:
    folders = folder / "en", folder / "de"
    for side, place in enumerate(folders):
        for k, document in enumerate(documents):
            page = place / f"part{k % 3}/page{k}.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            body = "".join(f"<p{f' id=p{i}' if ids else ''}>{pair[side]}</p>\n" for i, pair in enumerate(document))
            page.write_text(f"<html><head><title>{['Help', 'Hilfe'][side]}</title></head><body>{body}</body></html>")
    return folders


def units(texts: list[str], keys: bool = False) -> Reading:
    return Reading([Unit(text, (text,), "p", str(i) if keys else "") for i, text in enumerate(texts)])


def units_of(path: Path, target: bool) -> Reading:
    return read_units(path, path.read_bytes(), target, SPLITTERS[target])


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def test_the_best_monotone_alignment_is_found():
    rng = np.random.default_rng(0)
    for n, m in itertools.product(range(5), range(5)):
        gain = rng.normal(size=(n, m))
        choices = (
            zip(rows, columns)
            for k in range(min(n, m) + 1)
            for rows in itertools.combinations(range(n), k)
            for columns in itertools.combinations(range(m), k)
        )
        best = max(sum(gain[pair] for pair in choice) for choice in choices)
        found = monotone({(1, 1): gain})
        assert sum(gain[bead[:2]] for bead in found) == pytest.approx(best)
        assert found == sorted(found) and len({bead.target for bead in found}) == len(found)


def test_two_sentences_that_are_one_in_the_other_language_stay_together():
    rng = random.Random(1)
    compare = learned_words(sentence(rng) for _ in range(2000))
    (a, x), (b, y), (c, z) = (sentence(rng) for _ in range(3))
    joined = match_sentences(Unit("", (a, b, c)), Unit("", (f"{x} {y}", z)), compare)
    assert joined.pairs == [(f"{a} {b}", f"{x} {y}"), (c, z)] and joined.left == ([], [])
    added = match_sentences(Unit("", (a, b, c)), Unit("", (x, z)), compare)
    assert added.pairs == [(a, x), (c, z)] and added.left == ([b], [])


def precision_and_recall(seed: int, damage: bool) -> tuple[float, float]:
    """Pair the paragraphs of pages without ids; with damage, a tenth is missing on each side and some are moved."""
    documents = pages(60, seed)
    compare = learned_words(pair for document in documents for pair in document)
    rng = random.Random(seed)
    right = wrong = possible = 0
    for document in documents:
        order = [list(range(len(document))), list(range(len(document)))]
        if damage:
            order = [[i for i in side if rng.random() > 0.1] for side in order]
            if len(order[1]) > 4:
                order[1].insert(0, order[1].pop())
        sides = [units([document[i][side] for i in order[side]]) for side in (0, 1)]
        found = match(sides[0], sides[1], compare)
        here = sum(order[0][i] == order[1][j] for i, j in found)
        right, wrong = right + here, wrong + len(found) - here
        possible += len({*order[0]} & {*order[1]})
    return right / (right + wrong), right / possible


@pytest.mark.parametrize(("damage", "least"), [(False, (0.99, 0.95)), (True, (0.99, 0.95))])
def test_paragraphs_without_ids_are_paired(damage, least):
    found = precision_and_recall(3, damage)
    assert found[0] >= least[0] and found[1] >= least[1], found


def test_ids_decide_before_words():
    a, b = units(["One two.", "Three four."], keys=True), units(["Acht.", "Neun zehn elf."], keys=True)
    compare = learned_words([("one", "eins")])
    swapped = Reading([b.units[1], b.units[0]])
    assert match(a, swapped, compare) == [(0, 1), (1, 0)]
    twice = Reading([b.units[0], b.units[0]._replace(text="Eine ganz andere lange Zeile, die zu nichts passt.")])
    assert match(a, twice, compare)[:1] != [(0, 0)] or match(a, Reading(twice.units[::-1]), compare)[:1] != [(0, 0)]


def test_a_partner_by_key_is_taken():
    rng = random.Random(4)
    pairs = [sentence(rng) for _ in range(300)]
    compare = learned_words(pairs)
    source = [Unit("X", ("X",), "p", "x"), *(Unit(a, (a,), "p") for a, _ in pairs[:20])]
    target = [Unit(b, (b,), "p") for _, b in pairs[:19]] + [Unit("Kein Wort davon.", (), "p")]
    target.append(Unit(pairs[19][1], (), "p", "x"))  # fits the last unit, but belongs to the first
    found = match(Reading(source), Reading(target), compare)
    assert (0, 20) in found and len({j for _, j in found}) == len(found)


def test_moved_paragraphs_are_found():
    rng = random.Random(5)
    compare = learned_words(sentence(rng) for _ in range(2000))
    pairs = [tuple(" ".join(side) for side in zip(*(sentence(rng) for _ in range(4)))) for _ in range(12)]
    order = [*range(4, 12), 2, 3, 0, 1]
    sides = units([pairs[i][0] for i in range(12)]), units([pairs[i][1] for i in order])
    assert sorted(match(*sides, compare)) == sorted((i, j) for j, i in enumerate(order))


def test_what_fits_another_better_is_not_paired():
    """Sections that are all alike, in another order: in this order, too, all texts share some words."""
    rng = random.Random(6)
    compare = learned_words(sentence(rng) for _ in range(2000))
    shared = [sentence(rng) for _ in range(12)]
    own = [[sentence(rng) for _ in range(3)] for _ in range(24)]
    texts = [tuple(" ".join(side) for side in zip(shared[i % 12], *own[i])) for i in range(24)]
    sides = units([text[0] for text in texts]), units([text[1] for text in [*texts[12:], *texts[:12]]])
    assert {(i, (i + 12) % 24) for i in range(24)} == set(match(*sides, compare))


def test_everything_read_is_in_a_pair_or_named(tmp_path):
    documents = pages(40)
    documents[7][0] = ("This text was left in English here.",) * 2
    documents[8][0] = ("LibreOffice Writer",) * 2
    folders = write_pages(tmp_path, documents)
    (folders[0] / "only.html").write_text("<p>Alone here.</p>")
    (folders[1] / "broken.odt").write_bytes(b"not a zip archive")
    (folders[1] / "picture.png").write_bytes(b"")
    first = folders[1] / "part0/page0.html"
    first.write_text(first.read_text().replace("<p id=p2>", "<p id=p2>Neu k99999. "))
    out = tmp_path / "raw"
    summary = align(folders, ("en", "de"), out, shares=(0.1, 0.1))
    rows, left = table(out / "alignment.tsv"), table(out / "left_out.tsv")
    for name, *numbers in rows:
        en, de, paired, _, left_en, left_de = map(int, numbers)
        assert (en, de) == (paired + left_en, paired + left_de), name
        blocks = [row[1] for row in left if row[0] == name and row[2] == "block"]
        assert (blocks.count("en"), blocks.count("de")) == (left_en, left_de), name
    assert ["part1/page7.html", "en", "pair", "untranslated", documents[7][0][0]] in left
    assert "LibreOffice Writer" in (out / "train.de").read_text()
    assert ["only.html", "en", "block", "no file", "Alone here."] in left
    assert any(row[2] == "file" and "broken.odt" in row[3] for row in left) and "not read: 1 files" in summary
    n_lines = 0
    for split in ("train", "dev", "test"):
        corpus = read_corpus(out / f"{split}.en", out / f"{split}.de")
        names = (out / f"{split}.names").read_text().split()
        assert len(names) == len(corpus.documents) > 0
        n_lines += corpus.sentences
        for name, document in zip(names, corpus.documents):
            whole = " ".join(text for text, _ in documents[int(Path(name).stem[4:])])
            assert " ".join(document.source).removeprefix("Help ") in whole, name
    assert n_lines > 900 and (out / "alignment.html").read_text().count("<h2>") == 10
    assert not (out / ".readings.jsonl").exists()
    with pytest.raises(InputError, match="already contains dev.de"):
        align(folders, ("en", "de"), out)


def test_no_line_of_dev_or_test_is_in_train():
    rng = random.Random(0)
    documents = [
        AlignedDocument(f"d{k}", [("Home", "Start"), *((f"s{n}", f"t{n}") for n in rng.sample(range(200), 20))])
        for k in range(60)
    ] + [AlignedDocument("same", [("X", "X"), ("s1", "t1")])]
    division = divide(documents, (0.1, 0.1))
    found = division.documents
    lines = {split: [pair for d in chosen for pair in d.pairs] for split, chosen in found.items()}
    held = {source for split in ("dev", "test") for source, _ in lines[split]}
    assert found["dev"] and found["test"] and not held & {source for source, _ in lines["train"]}
    assert division.repeated > 0 and sum(map(len, lines.values())) + division.repeated + division.frame + (
        division.equal
    ) == sum(len(d.pairs) for d in documents)
    # the frame of the pages stays in some of the training set, and nowhere else
    assert lines["train"].count(("Home", "Start")) == 20
    assert ("Home", "Start") not in lines["dev"] + lines["test"]
    again = divide(documents[::-1], (0.1, 0.1)).documents
    assert {d.name for d in again["test"]} == {d.name for d in found["test"]}


def test_equal_lines_are_no_translations_to_test():
    documents = [AlignedDocument(f"d{k}", [("X", "X"), (f"s{k}", f"t{k}")]) for k in range(10)]
    division = divide(documents, (0.2, 0.2))
    held = [pair for split in ("dev", "test") for d in division.documents[split] for pair in d.pairs]
    assert ("X", "X") not in held and division.equal == len(held) > 0
    assert any(("X", "X") in d.pairs for d in division.documents["train"])


def test_ids_and_anchors_of_pages_are_keys(tmp_path):
    page = '<h2 id="a">One</h2><p><a name="b"></a>Two</p><p>Three <i id="c">four</i></p><ul id="d"><li>Five</li></ul>'
    (tmp_path / "x.html").write_text(page)
    found = units_of(tmp_path / "x.html", False).units
    assert [(unit.kind, unit.key) for unit in found] == [("h2", "a"), ("p", "b"), ("p", ""), ("li", "")]


def test_office_documents_have_kinds_and_bookmarks(tmp_path):
    def archive(path: Path, name: str, text: str) -> list[tuple[str, str]]:
        with zipfile.ZipFile(path, "w") as made:
            made.writestr(name, text)
        return [(unit.kind, unit.key) for unit in units_of(path, False).units]

    def p(text: str, before: str = "") -> str:
        return f"<w:p>{before}<w:r><w:t>{text}</w:t></w:r></w:p>"

    mark = '<w:bookmarkStart w:id="0" w:name="{}"/>'
    item = '<w:pPr><w:numPr><w:ilvl w:val="0"/></w:numPr></w:pPr>'
    body = p("One", mark.format("a")) + p("Two", item) + p("Three", mark.format("_GoBack"))
    body += f"<w:tbl><w:tr><w:tc>{p('Four')}</w:tc></w:tr></w:tbl>" + p("Five")
    word = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    expected = [("p", "a"), ("li", ""), ("p", ""), ("td", ""), ("p", "")]
    assert archive(tmp_path / "x.docx", "word/document.xml", word) == expected
    body = '<text:h text:outline-level="2"><text:bookmark-start text:name="a"/>One</text:h>'
    body += "<text:list><text:list-item><text:p>Two</text:p></text:list-item></text:list><text:p>Three</text:p>"
    body += "<table:table-cell><text:p>Four</text:p></table:table-cell><text:p>Five</text:p>"
    spaces = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("text", "table"))
    expected[0] = ("h2", "a")
    assert archive(tmp_path / "x.odt", "content.xml", f"<office {spaces}>{body}</office>") == expected


def test_bilingual_files_bring_their_own_pairs(tmp_path):
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    for side, text in (
        ("en", 'msgid "open"\nmsgstr "Open the file."\n\nmsgid "Close it."\nmsgstr ""\n\nmsgid "new"\nmsgstr "New."\n'),
        ("de", 'msgid "Close it."\nmsgstr "Schließen."\n\nmsgid "open"\nmsgstr "Öffnen."\n\nmsgid "new"\nmsgstr ""\n'),
    ):
        (tmp_path / side).mkdir()
        (tmp_path / side / "x.po").write_text(head + text, encoding="utf-8")
    sides = [units_of(tmp_path / s / "x.po", bool(i)) for i, s in enumerate(("en", "de"))]
    found = match(sides[0], sides[1], learned_words([("a", "b")]))
    texts = {(sides[0].units[i].text, sides[1].units[j].text) for i, j in found}
    assert texts == {("Open the file.", "Öffnen."), ("Close it.", "Schließen.")}


def test_subtitles_are_paired_by_time(tmp_path):
    # by order and length alone, the first would be the partner of the first
    times = ("00:00:01,000 --> 00:00:02,000", "00:00:05,000 --> 00:00:06,000", "00:00:09,000 --> 00:00:10,000")
    for side, texts in (("en", ("Seven.", "Eight.", "Three.")), ("de", ("", "Acht.", "Drei."))):
        cues = [f"{i}\n{time}\n{text}\n" for i, (time, text) in enumerate(zip(times, texts), 1) if text]
        (tmp_path / f"{side}.srt").write_text("\n".join(cues))
    sides = [units_of(tmp_path / f"{s}.srt", bool(i)) for i, s in enumerate(("en", "de"))]
    assert match(sides[0], sides[1], learned_words([("a", "b")])) == [(1, 0), (2, 1)]


def test_a_killed_alignment_reads_only_the_rest(tmp_path, monkeypatch):
    folders = write_pages(tmp_path, pages(12))
    read: list[Path] = []
    real = aligning.read_units

    def counting(path, *args, **how):
        if len(read) == 7:
            raise KeyboardInterrupt
        read.append(path)
        return real(path, *args, **how)

    monkeypatch.setattr(aligning, "read_units", counting)
    out = tmp_path / "raw"
    with pytest.raises(KeyboardInterrupt):
        align(folders, ("en", "de"), out)
    assert not list(out.glob("train.*"))
    kept = out / ".readings.jsonl"
    kept.write_text(kept.read_text() + '["half a l')
    monkeypatch.setattr(
        aligning, "read_units", lambda path, *args, **how: (read.append(path), real(path, *args, **how))[1]
    )
    (out / "train.en").write_text("mine\n")
    with pytest.raises(InputError, match="already contains train.en"):
        align(folders, ("en", "de"), out)
    (out / "train.en").unlink()
    written = []

    def killed(path, text):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(path.name)
        atomic_write(path, text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_lasformer.apps.pairing.writing.atomic_write", killed)
        align(folders, ("en", "de"), out)
    assert {path.name for path in out.glob("*.*") if not path.name.startswith(".")} == {*written}
    align(folders, ("en", "de"), out)
    assert len(read) == 24 and len(set(read)) == 24
    whole = tmp_path / "whole"
    align(folders, ("en", "de"), whole)
    for name in ("train.en", "train.de", "test.de", "alignment.tsv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_names_may_differ(tmp_path):
    folders = write_pages(tmp_path, pages(10))
    for side, folder in zip(("en", "de"), folders):
        for page in list(folder.rglob("*.html")):
            page.rename(page.with_suffix(f".{side}.html"))
    with pytest.raises(InputError, match=r"no file of the same name .*--rename"):
        align(folders, ("en", "de"), tmp_path / "raw")
    source = next(folders[0].rglob("*.html"))
    (folders[1] / source.relative_to(folders[0])).write_text("<p>No partner, but the name of a source file.</p>")
    summary = align(folders, ("en", "de"), tmp_path / "raw", rename=(".en.", ".de."))
    assert summary.startswith("11 files")
    assert "No partner, but the name of a source file." in (tmp_path / "raw/left_out.tsv").read_text()


@pytest.mark.command
def test_the_command(tmp_path):
    folders = write_pages(tmp_path, pages(30), ids=False)
    options = ("-s", "en", "-t", "de", "-o", tmp_path / "raw")
    done = run("lasformer", "align", *folders, *options, "--split", "0.1,0.1")
    assert "30 files" in done.stdout and "train: " in done.stdout
    for wrong, said in (
        (("--split", "0.1"), "--split: expected two shares"),
        (("--split", "0.1,0.7"), "each below 0.5"),
        (("--rename", "x"), "--rename: expected SOURCE=TARGET"),
    ):
        shutil.rmtree(tmp_path / "raw", ignore_errors=True)
        refused = run("lasformer", "align", *folders, *options, *wrong, check=False)
        assert refused.returncode == 1 and said in refused.stderr and not list(tmp_path.glob("raw/*"))
