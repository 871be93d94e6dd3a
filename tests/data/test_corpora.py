"""The paper's corpora: parsers on small files in the real formats, downloads, recipes, a row of the main table."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from html import escape
from pathlib import Path

import pytest
from helpers import ROOT

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.corpora import formats, recipes
from fairseq_lasformer.text.documents import Pair, join_documents, read_documents

SHARED = ROOT.parent / "shared" / "data"


def text_of(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


TALKS = """<url>http://www.ted.com/talks/one</url>
<keywords>talks, one</keywords>
<speaker>A. Speaker</speaker>
<talkid>1</talkid>
<title>One & all</title>
<description>TED Talk Subtitles and Transcript: about</description>
Thank you <em>so</em> much.
 It's 5 < 7.
<reviewer></reviewer>
<url>http://www.ted.com/talks/two</url>
<talkid>2</talkid>

Second\u2028talk.
"""


def test_talks_begin_with_their_address_and_keep_line_by_line(tmp_path):
    found = formats.talks(text_of(tmp_path / "t", TALKS))
    assert found == [["Thank you <em>so</em> much.", "It's 5 < 7."], ["", "Second talk."]]
    with pytest.raises(InputError, match="t:1: text before the first <url>"):
        formats.talks(text_of(tmp_path / "t", "text\n"))
    pairs, dropped = formats.without_empty([Pair(["a", ""], ["b", "c"]), Pair([""], ["d"])])
    assert pairs == [Pair(["a"], ["b"])] and dropped == 2


def test_segments_of_xml_and_of_sgml(tmp_path):
    xml = '<?xml version="1.0"?>\n<mteval><srcset setid="x">\n<doc docid="1" genre="lectures">\n<title>No</title>\n'
    xml += '<seg id="1"> A &amp; B </seg>\n<seg id="2">C\n D</seg></doc>\n'
    xml += '<doc docid="2"><seg id="1">E</seg></doc></srcset>'
    sgml = '<srcset setid="newstest2015" srclang="any">\n<doc sysid="ref" docid="1-x" genre="news">\n<p>\n'
    sgml += '<seg id="1">Q & A</seg>\n</p>\n<p>\n<seg id="2">Zwei</seg>\n</p>\n</doc>\n'
    sgml += '<DOC><SEG id="1">&quot;x&quot;</SEG></DOC></srcset>'
    assert formats.segments(text_of(tmp_path / "x", xml)) == [["A & B", "C D"], ["E"]]
    assert formats.segments(text_of(tmp_path / "s", sgml)) == [["Q & A", "Zwei"], ['"x"']]
    with pytest.raises(InputError, match="contains no <seg>"):
        formats.segments(text_of(tmp_path / "n", "<doc></doc>"))


def test_sides_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="a: 1 documents, but b has 2"):
        formats.pair([["x"]], [["y"], ["z"]], ("a", "b"))
    with pytest.raises(InputError, match="a: document 1 has 1 sentences, but 2 in b"):
        formats.pair([["x"]], [["y", "z"]], ("a", "b"))


def zipped(path: Path, files: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as z:
        for name, content in files.items():
            z.writestr(name, content)
    return path


OPUS_DE = """<text><CHAPTER ID="1"><P id="1"><s id="1">Guten Tag.</s></P>
<SPEAKER ID="1" NAME="A"><P id="2"><s id="2">Ich</s><s id="3">bin da.</s></P></SPEAKER>
<SPEAKER ID="2"><s id="4"><w id="4.1">Ja</w> <w id="4.2">.</w></s></SPEAKER></CHAPTER></text>"""


OPUS_EN = """<text><CHAPTER ID="1"><P id="1"><s id="1">Good day.</s></P>
<SPEAKER ID="1"><s id="2">I am here.</s></SPEAKER><SPEAKER ID="2"><s id="3">Yes.</s></SPEAKER></CHAPTER></text>"""


OPUS_LINKS = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE cesAlign PUBLIC "-//CES//DTD XML cesAlign//EN" "">
<cesAlign version="1.0">
<linkGrp targType="s" fromDoc="de/a.xml.gz" toDoc="en/a.xml.gz">
<link xtargets="1;1" id="SL1"/><link xtargets="2 3;2" id="SL2"/>
<link xtargets=";3" id="SL3"/><link xtargets="4;3" id="SL4"/>
</linkGrp></cesAlign>"""


def test_opus_alignments_by_document_and_by_speaker(tmp_path):
    links = tmp_path / "links.xml.gz"
    links.write_bytes(gzip.compress(OPUS_LINKS.encode()))
    de = zipped(tmp_path / "de.zip", {"Corpus/raw/de/a.xml": OPUS_DE})
    en = zipped(tmp_path / "en.zip", {"Corpus/raw/en/a.xml": OPUS_EN})
    whole = [Pair(["Guten Tag.", "Ich bin da.", "Ja ."], ["Good day.", "I am here.", "Yes."])]
    assert list(formats.opus(links, de, en)) == whole
    by_speaker = [(len(p.source), p.target[0]) for p in formats.opus(links, de, en, by_speaker=True)]
    assert by_speaker == [(1, "Good day."), (1, "I am here."), (1, "Yes.")]
    with pytest.raises(InputError, match="contains no en/a.xml"):
        list(formats.opus(links, de, zipped(tmp_path / "no.zip", {"raw/en/b.xml": OPUS_EN})))


@pytest.mark.parametrize("damage", ["links", "no gzip", "archive", "entity"])
def test_damaged_opus_files_are_named(tmp_path, damage):
    links = tmp_path / "links.xml.gz"
    text = OPUS_LINKS.encode() if damage != "links" else OPUS_LINKS.encode()[:-40]
    links.write_bytes(b"no gzip" if damage == "no gzip" else gzip.compress(text))
    de = zipped(
        tmp_path / "de.zip",
        {"raw/de/a.xml": OPUS_DE.replace("Guten", "&undefined;") if damage == "entity" else OPUS_DE},
    )
    en = zipped(tmp_path / "en.zip", {"raw/en/a.xml": OPUS_EN})
    if damage == "archive":
        en.write_bytes(en.read_bytes()[:30])
    with pytest.raises(InputError, match="one of them is damaged"):
        list(formats.opus(links, de, en))


def test_archives_larger_than_any_corpus_are_not_unpacked(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "a.zip", {"x": "y" * 1000})
    monkeypatch.setattr(recipes, "LARGEST", 999)
    with pytest.raises(InputError, match="would unpack to 1,000 bytes"):
        recipes._unpacked(archive, tmp_path)
    assert not (tmp_path / "a" / "x").exists()


def xml(documents: list[list[str]]) -> str:
    """Return documents in IWSLT's evaluation format."""
    segs = ["".join(f'<seg id="{i}"> {escape(s, quote=False)} </seg>\n' for i, s in enumerate(d, 1)) for d in documents]
    return "".join(f'<doc docid="{i}">\n{s}</doc>\n' for i, s in enumerate(segs, 1))


def shared(name: str) -> dict[str, list[list[str]]]:
    return {language: read_documents(SHARED / "en-de" / f"{name}.{language}") for language in ("en", "de")}


@pytest.mark.skipif(not SHARED.exists(), reason="the development and test sets are not at ../shared/data")
def test_ted_comes_out_as_the_papers_development_and_test_sets(tmp_path, monkeypatch):
    dev, test = shared("ted17.dev"), shared("ted17.test")
    train, tests = {}, {}
    for language in ("en", "de"):
        train[f"en-de/train.tags.en-de.{language}"] = TALKS
        for i, year in enumerate(recipes.DEV_YEARS):
            stop = None if i == 6 else 13 * i + 13
            train[f"en-de/IWSLT17.TED.{year}.en-de.{language}.xml"] = xml(dev[language][13 * i : stop])
        pair = "en-de" if language == "en" else "de-en"
        for year, part in zip(recipes.TEST_YEARS, (test[language][:13], test[language][13:])):
            tests[f"{pair}/IWSLT17.TED.{year}.{pair}.{language}.xml"] = xml(part)
    zipped(tmp_path / "files" / recipes.TED_TRAIN.name, train)
    for source in recipes.TED_TEST:
        with tarfile.open(tmp_path / "files" / source.name, "w:gz") as t:
            for name, content in tests.items():
                if source.name.removeprefix("ted-test-").startswith(name[:5]):
                    info = tarfile.TarInfo(name)
                    info.size = len(content.encode())
                    t.addfile(info, io.BytesIO(content.encode()))
    with pytest.raises(InputError, match="ted-test-en-de.tgz: its md5 is .* expected b68e"):  # not the published files
        recipes.build("ted", tmp_path / "files", tmp_path / "raw")
    monkeypatch.setattr(recipes, "TED_TEST", tuple(s._replace(checksum="") for s in recipes.TED_TEST))
    lines = recipes.build("ted", tmp_path / "files", tmp_path / "raw")
    assert lines[1] == "ted dev: 93 documents, 8967 sentences (as in the paper); 0 dropped"
    assert lines[0] == "ted train: 2 documents, 3 sentences; 1 dropped"
    for split, expected in (("dev", dev), ("test", test)):
        for language in ("en", "de"):
            assert read_documents(tmp_path / "raw" / f"{split}.{language}") == expected[language]
    shutil.rmtree(tmp_path / "raw")
    (next((tmp_path / "files").rglob("IWSLT17.TED.tst2017.de-en.de.xml"))).unlink()
    with pytest.raises(InputError, match="contains no file IWSLT17.TED.tst2017.de-en.de.xml"):
        recipes.build("ted", tmp_path / "files", tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def opus_files(files: Path, name: str) -> None:
    files.mkdir(parents=True, exist_ok=True)
    (files / f"{name}-de-en.xml.gz").write_bytes(gzip.compress(OPUS_LINKS.encode()))
    zipped(files / f"{name}-de.zip", {"raw/de/a.xml": OPUS_DE})
    zipped(files / f"{name}-en.zip", {"raw/en/a.xml": OPUS_EN})


@pytest.mark.skipif(not SHARED.exists(), reason="the development and test sets are not at ../shared/data")
def test_news_and_europarl_come_out_as_the_papers_sets(tmp_path, monkeypatch):
    opus_files(tmp_path, "news")
    with tarfile.open(tmp_path / "wmt-dev.tgz", "w:gz") as t:
        for year, name in ((2015, "news16.dev"), (2016, "news16.test")):
            for language, kind in (("en", "src"), ("de", "ref")):
                content = xml(shared(name)[language]).encode()
                info = tarfile.TarInfo(f"dev/newstest{year}-ende-{kind}.{language}.sgm")
                info.size = len(content)
                t.addfile(info, io.BytesIO(content))
    with pytest.raises(InputError, match="wmt-dev.tgz: its sha256 is"):  # not the published file
        recipes.build("news", tmp_path, tmp_path / "raw")
    monkeypatch.setattr(recipes, "WMT_DEV", recipes.WMT_DEV._replace(checksum=""))
    lines = recipes.build("news", tmp_path, tmp_path / "raw")
    assert lines[0].startswith("news train: 1 documents, 3 sentences") and "(as in the paper)" in lines[2]
    assert read_documents(tmp_path / "raw" / "test.de") == shared("news16.test")["de"]
    assert read_documents(tmp_path / "raw" / "train.en") == [["Good day.", "I am here.", "Yes."]]

    opus_files(tmp_path, "europarl")
    for split in ("dev", "test"):
        for language, documents in shared(f"europarl7.{split}").items():
            marked = "".join("<d>\n" + "".join(f"{s}\n" for s in d) for d in documents)
            text_of(tmp_path / f"europarl-concatenated_en2de_{split}_{language}.txt", marked)
    lines = recipes.build("europarl", tmp_path, tmp_path / "ep")
    assert lines[0].startswith("europarl train: 3 documents, 3 sentences") and "360 documents, 5134" in lines[2]
    assert read_documents(tmp_path / "ep" / "dev.en") == shared("europarl7.dev")["en"]


def test_documents_of_europarls_test_set_are_taken_out_of_its_training_set(tmp_path, monkeypatch, capsys):
    opus_files(tmp_path, "europarl")
    monkeypatch.setattr(recipes, "LONG", 4)
    for split, words in (("dev", ("Yes.", "Ja.")), ("test", ("Else.", "Sonst."))):
        for language, sentence in zip(("en", "de"), words):
            text_of(tmp_path / f"europarl-concatenated_en2de_{split}_{language}.txt", f"<d>\n{sentence}\n")
    monkeypatch.setattr(recipes, "CORPORA", {n: r._replace(expected={}) for n, r in recipes.CORPORA.items()})
    lines = recipes.build("europarl", tmp_path, tmp_path / "ep")
    assert lines[0].startswith("europarl train: 2 documents")
    assert (
        "1 documents removed from train for the 2 " in (told := capsys.readouterr().out)
        and "1 of the 2 longer sentences" in told
    )
    wrong = recipes.CORPORA["europarl"]._replace(expected={"dev": recipes.CorpusCounts(2, 2)})
    monkeypatch.setitem(recipes.CORPORA, "europarl", wrong)
    with pytest.raises(InputError, match="europarl dev: 1 documents and 1 sentences, but the paper's has 2 and 2"):
        recipes.build("europarl", tmp_path, tmp_path / "again")


def test_pdc_holds_out_its_last_documents(tmp_path, monkeypatch):
    documents = [[f"s{i}", f"t{i}"] for i in range(230)]
    for language in ("zh", "en"):
        text_of(tmp_path / f"pdc.train.{language}", join_documents(documents))
        text_of(tmp_path / f"pdc.test.{language}", "a\nb\n\nc\n")
    for name in ("en.tok", "en.candidates"):
        text_of(tmp_path / f"pdc.test.{name}", "x\n")
    monkeypatch.setattr(recipes, "CORPORA", {n: r._replace(expected={}) for n, r in recipes.CORPORA.items()})
    lines = recipes.build("pdc", tmp_path, tmp_path / "raw")
    assert [line.split(",")[0] for line in lines] == [
        f"pdc {s} documents" for s in ("train: 30", "dev: 200", "test: 2")
    ]
    (tmp_path / "pdc.train.zh").unlink()
    assert recipes.build("pdc", tmp_path, tmp_path / "raw") == [f"{tmp_path / 'raw'}: pdc is already there"]
    with pytest.raises(InputError, match="put PDC's training set there"):
        recipes.build("pdc", tmp_path, tmp_path / "again")
