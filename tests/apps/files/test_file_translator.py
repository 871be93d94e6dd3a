"""Files of any format, translated as documents: resumed, cut, counted, with alternatives."""

from __future__ import annotations

import io
import json
import re
import zipfile

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files import file_jobs
from fairseq_lasformer.apps.files.file_jobs import plan, translate_jobs
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.files.files_worker import Job, Options, Waiting
from fairseq_lasformer.apps.files.journal import Journal
from fairseq_lasformer.apps.files.outputs import present
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.documents.word_attention import word_alignment
from fairseq_lasformer.plugin.model import LasformerModel

TEXT = "w1 w2 w3. w4 w5!\n\n  w6 w7 w8 w9\r\nw2 w3. w5 w6. w7 w8.\n"


@pytest.fixture(scope="module")
def model(by_lines_folder):
    return LasformerModel.from_pretrained(by_lines_folder)


def opened(text: str, form: str = "text"):
    return formats.read(text.encode(), form)


def test_a_file_is_one_document(model):
    (done,) = FileTranslator(model, beam=2).translate([opened(TEXT)])
    sentences = ["w1 w2 w3.", "w4 w5!", "w6 w7 w8 w9", "w2 w3.", "w5 w6.", "w7 w8."]
    expected = model.translate_documents(["\n".join(sentences)], beam=2, progress=False)[0].split("\n")
    assert [line.line.source for line in done.lines] == sentences
    assert [line.line.translation for line in done.lines] == expected
    a, b, c, d, e, f = expected
    assert done.data.decode() == f"{a} {b}\n\n  {c}\r\n{d} {e} {f}\n"
    assert done.counts.sentences == 6 and [line.line.number for line in done.lines] == [1, 2, 3, 4, 5, 6]


def test_files_translated_together_are_those_translated_alone(model):
    translator = FileTranslator(model, beam=2)
    files = [opened(TEXT), opened(""), opened("w9\n"), opened("<p>w1 <b>w2</b> w3.</p>", "html")]
    together = translator.translate(files)
    assert [done.data for done in together] == [translator.translate([file])[0].data for file in files]
    assert together[1].data == b"" and together[1].lines == []
    assert together[3].data.startswith(b"<p>") and together[3].data.count(b"<b>") == 1


def test_a_file_whose_lines_cannot_be_told_apart_keeps_no_other_from_being_written(model, monkeypatch):
    translator = FileTranslator(model, beam=2, lines=True, align_sentences="no")
    files = [opened("w1 w2 w3.\nw4 w5!\n"), opened("w9 w8\n")]
    apart = translator.with_sources

    def one_too_few(document, lines, *rest):
        return apart(document, lines[:-1] if len(lines) > 1 else lines, *rest)

    monkeypatch.setattr(translator, "with_sources", one_too_few)
    found = dict(translator.translate_each(files))
    assert isinstance(found[0], InputError) and "2 sentences have 1 translation" in str(found[0])
    assert found[1].data == translator.translate(files[1:])[0].data


def test_each_line_may_be_a_sentence(model):
    (done,) = FileTranslator(model, beam=2, lines=True).translate([opened("w1. w2.\nw3. w4.\n")])
    assert [line.line.source for line in done.lines] == ["w1. w2.", "w3. w4."]


def test_sentences_beyond_the_limit_are_cut_and_counted(model):
    long = " ".join(f"w{i % 9 + 1}" for i in range(60)) + "."
    (done,) = FileTranslator(model, beam=1).translate([opened(f"w1 w2.\n{long}\n")])
    assert done.counts.cut >= 3 and "too long and cut" in done.counts.summary()
    assert " ".join(line.line.source for line in done.lines[1:]) == long
    assert done.data.decode().count("\n") == 2


def test_models_without_lines_translate_sentence_by_sentence(model):
    translator = FileTranslator(model, beam=2)
    translator.whole_documents = False
    (done,) = translator.translate([opened(TEXT)])
    alone = [model.translate_documents([line.line.source], beam=2, progress=False)[0] for line in done.lines]
    assert [line.line.translation for line in done.lines] == alone and len(alone) == 6


def test_alternatives_are_others(model):
    (done,) = FileTranslator(model, beam=2, alternatives=3).translate([opened(TEXT)])
    for line in done.lines:
        texts = [text for text, _ in line.others]
        assert 1 <= len(texts) <= 3 and len({line.line.translation, *texts}) == 1 + len(texts)
        assert sorted((score for _, score in line.others), reverse=True) == [score for _, score in line.others]
    rows = [json.loads(row) for row in present(done, "jsonl").decode().splitlines()]
    assert [row["source"] for row in rows] == [line.line.source for line in done.lines]
    assert rows[0]["alternatives"][0]["translation"] == done.lines[0].others[0][0]
    table = present(done, "tsv").decode().splitlines()
    assert [row.split("\t")[:2] for row in table] == [[line.line.source, line.line.translation] for line in done.lines]


def test_alternatives_are_refused_where_documents_are_one_sequence(trained_folder):
    with pytest.raises(InputError, match="alternatives: only where lines are searched side by side"):
        FileTranslator(LasformerModel.from_pretrained(trained_folder), beam=2, alternatives=1)


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "form, text, source",
    [
        ("text", "w1 {name} w2 https://a.b/X2 w3 w4", None),
        ("text", "w1 😀 w2 👩‍👩‍👧.", None),
        ("html", "<p>w1 <code>a &lt; b</code> w2 <b>w3</b></p>", "w1 a < b w2 w3"),
        ("markdown", "w1 `a\nb` w2 w3\n", "w1 `a b` w2 w3"),
    ],
)
def test_tables_have_what_placeholders_stand_for(model, form, text, source):
    (done,) = FileTranslator(model, beam=3, alternatives=2).translate([opened(text, form)])
    row = json.loads(present(done, "jsonl"))
    cells = present(done, "tsv").decode().removesuffix("\n").split("\t")
    assert row["source"] == cells[0] == (source or text) and row["translation"] == cells[1]
    assert not re.search(r"\bX1\b", str(row)) and [other["translation"] for other in row["alternatives"]] == cells[4::2]
    (line,) = done.lines
    named = next(iter(line.names.items()))
    other = done._replace(lines=[line._replace(others=[(f"w9 {named[0]}.", -1.0)])])
    assert json.loads(present(other, "jsonl"))["alternatives"][0]["translation"] == f"w9 {named[1]}."
    assert present(other, "tsv").decode().split("\t")[4] == f"w9 {named[1]}."
    in_file = re.sub(r"</?(?:p|b|code)>", "", done.data.decode()).replace("&lt;", "<")
    assert row["translation"].split() == in_file.split()


@pytest.mark.command
def test_a_killed_translation_resumes_after_its_last_part(model, tmp_path, monkeypatch):
    text = "\n".join(f"w{i % 9 + 1} w{i % 7 + 1} w3." for i in range(40)) + "\n"
    translator = FileTranslator(model, beam=1)
    whole = translator.translate([opened(text)])[0].data
    journal, seen = tmp_path / "lines", []

    def tick(n):
        seen.append(n)
        if len(seen) == 4:
            raise Killed

    with pytest.raises(Killed):
        translator.translate([opened(text)], tick, [journal])
    kept = len(Journal(journal).lines(40, 10**6))
    assert 0 < kept < 40
    with open(journal, "a") as file:
        file.write("[[[1, 2")  # a kill in the middle of a line
    parts = []
    original = Translator.translate_parts

    def watched(self, tasks, device, check=None):
        parts.extend(part.start for _, part, _ in tasks)
        return original(self, tasks, device, check)

    monkeypatch.setattr(Translator, "translate_parts", watched)
    counted = []
    assert translator.translate([opened(text)], counted.append, [journal])[0].data == whole
    assert parts[0] == kept and sum(counted) == 40


def test_words_that_are_the_same_belong_to_each_other(model):
    weights = word_alignment(model, "w1 w2 w3.", "w3 w1.").weights
    assert weights.shape == (3, 4)
    assert (
        weights[0].argmax() == 2 and weights[1].argmax() == 0 and float(weights[2].sum()) == pytest.approx(1, abs=1e-5)
    )


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "in"
    for name, text in {
        "a.txt": TEXT,
        "sub/b.md": "# w1\n\nw2 *w3*.\n",
        "c.html": "<p>w4</p>",
        ".hidden.txt": "w1",
    }.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "bad.txt").write_bytes(b"\x00\x01")
    (top / "picture.png").write_bytes(b"png")
    return top


def go(model, jobs, state, settings=("m",), **options):
    return list(translate_jobs(FileTranslator(model, beam=1), jobs, state, settings, **options))


def test_a_folder_is_translated_file_by_file(model, folder, tmp_path):
    out = tmp_path / "out"
    found = plan(folder, out)
    assert [job.source.name for job in found.jobs] == ["a.txt", "bad.txt", "c.html", "b.md"]
    assert [path.name for path in found.others] == ["picture.png"]
    results = go(model, found.jobs, out / ".state")
    assert {r.job.source.name: r.error for r in results if r.error} == {
        "bad.txt": "is not text (it contains zero bytes)"
    }
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file() and ".state" not in p.parts) == [
        "a.txt",
        "c.html",
        "sub/b.md",
    ]
    # only what has changed is repeated
    (folder / "c.html").write_text("<p>w5</p>")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.*") if p.is_file()}
    again = go(model, plan(folder, out).jobs, out / ".state")
    assert sorted(r.job.source.name for r in again if r.summary) == ["c.html"]
    assert {p.name for p in out.rglob("*.*") if p.is_file() and before.get(p) != p.stat().st_mtime_ns} == {
        "c.html",
        ".lasformer-done",
    }
    # other settings give a different translation
    assert all(r.summary or r.error for r in go(model, plan(folder, out).jobs, out / ".state", ("other",)))


def test_shards_are_the_whole(model, folder, tmp_path):
    (folder / "bad.txt").unlink()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    go(model, plan(folder, whole).jobs, whole / ".state")
    for i in range(2):
        go(model, plan(folder, parts).jobs[i::2], parts / f".state{i}")
    for name in ("a.txt", "c.html", "sub/b.md"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_one_of_several_files_fails_alone(model, tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("w1 w2\n")
    translator = FileTranslator(model, beam=1)
    original = FileTranslator.rendered

    def failing(self, document, lines):
        if document.file.blocks[0].text == "w9":
            raise InputError("cannot be")
        return original(self, document, lines)

    (tmp_path / "b.txt").write_text("w9\n")
    monkeypatch.setattr(FileTranslator, "rendered", failing)
    jobs = [Job(tmp_path / n, tmp_path / "out" / n, "text") for n in ("a.txt", "b.txt", "c.txt")]
    results = list(translate_jobs(translator, jobs, tmp_path / "state", ()))
    assert {r.job.source.name: r.error for r in results} == {"a.txt": "", "b.txt": "cannot be", "c.txt": ""}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.txt", "c.txt"]


def test_a_folder_is_not_translated_into_itself(folder, tmp_path):
    with pytest.raises(InputError, match="is the folder to translate"):
        plan(folder, folder)
    (folder / "out").mkdir()
    (folder / "out" / "x.txt").write_text("w1")
    assert "x.txt" not in [job.source.name for job in plan(folder, folder / "out").jobs]


DAMAGED = [b"no json\n", b"\xff\xfe\n", b"[[5]]\n", b"7\n", b"[[[99999], -1.0, false, false]]\n"]
DAMAGED += [b"[[[5], -1.0, false, false]]\n" * 9, b"[[[5], -1.0, 1, false]]\n", b"[" * 100_000 + b"\n", b"\0\n"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_state_is_begun_anew(model, tmp_path, capsys, monkeypatch, content):
    """Entries of a journal, or of the list of finished files, are not trusted if they do not parse or fit."""
    translator, state = FileTranslator(model, beam=1), tmp_path / "state"
    (tmp_path / "a.txt").write_text("w1 w2\nw3\n")
    jobs = [Job(tmp_path / "a.txt", tmp_path / "b.txt", "text")]
    list(translate_jobs(translator, jobs, tmp_path / "other", ("m",)))
    expected = (tmp_path / "b.txt").read_bytes()
    (tmp_path / "b.txt").unlink()
    state.mkdir()
    (state / file_jobs.DONE).write_bytes(content)
    monkeypatch.setattr(Waiting, "path", lambda *_: tmp_path / "journal")
    (tmp_path / "journal").write_bytes(content)
    (result,) = translate_jobs(translator, jobs, state, ("m",))
    assert not result.error and (tmp_path / "b.txt").read_bytes() == expected
    assert "damaged" in capsys.readouterr().err


def test_a_file_that_fails_fails_alone_wherever_it_does(model, tmp_path, monkeypatch):
    """When reading, translating or writing: the others are translated, and each failure is one line."""
    for name, text in {"1.txt": "w1\n", "2.txt": "w2 w3\n", "3.txt": "w4\n", "5.txt": "w5\n"}.items():
        (tmp_path / name).write_text(text)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("word/document.xml", "<w:document/>")
        archive.writestr("word/media/a.png", b"picture" * 9)
    place = packed.getvalue().index(b"picture")
    (tmp_path / "4.docx").write_bytes(packed.getvalue()[:place] + b"X" + packed.getvalue()[place + 1 :])
    read, search = formats.read, Translator.translate

    def failing(data, *rest):
        file = read(data, *rest)
        return file._replace(write=lambda segments: 1 / 0) if data == b"w1\n" else file

    def searching(self, documents, *rest):
        if any(len(document.sentences[0]) == 2 for document in documents):
            raise RuntimeError("out of luck")
        return search(self, documents, *rest)

    monkeypatch.setattr(formats, "read", failing)
    monkeypatch.setattr(Translator, "translate", searching)
    jobs = [Job(p, tmp_path / "out" / p.name, formats.check_format(p.name)) for p in sorted(tmp_path.glob("?.*"))]
    translator = FileTranslator(model, beam=1)
    errors = {r.job.source.name: r.error for r in translate_jobs(translator, jobs, tmp_path / "s", ())}
    assert "checksum of word/media/a.png" in errors["4.docx"]
    assert errors["2.txt"] == "cannot be translated (RuntimeError: out of luck)"
    assert "ZeroDivisionError" in errors["1.txt"] and not errors["3.txt"] and not errors["5.txt"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["3.txt", "5.txt"]


@pytest.mark.command
def test_each_file_is_written_when_it_is_done(model, tmp_path):
    """Without waiting until all files read with it are done."""
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("w1 w2 w3.\n" * 20)
    jobs = [Job(tmp_path / f"{i}.txt", tmp_path / "out" / f"{i}.txt", "text") for i in range(4)]
    translator = FileTranslator(model, beam=1, max_tokens=60)
    seen = [len(list((tmp_path / "out").glob("*"))) for _ in translate_jobs(translator, jobs, tmp_path / "s", ())]
    assert seen[0] < 4 and seen[-1] == 4


def test_nothing_is_overwritten_that_this_run_has_not_written(model, tmp_path):
    (tmp_path / "a.txt").write_text("w1\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("precious")
    jobs, translator = [Job(tmp_path / "a.txt", out / "a.txt", "text")], FileTranslator(model, beam=1)
    (result,) = translate_jobs(translator, jobs, out / ".s", ("m",))
    assert "exists already; --overwrite" in result.error and (out / "a.txt").read_text() == "precious"
    (result,) = translate_jobs(translator, jobs, out / ".s", ("m",), options=Options(overwrite=True))
    assert not result.error and (out / "a.txt").read_text() != "precious"
    (tmp_path / "a.txt").write_text("w2\n")  # what this run wrote, it may replace
    (result,) = translate_jobs(translator, jobs, out / ".s", ("m",))
    assert not result.error and result.summary
    (out / "a.txt").write_text("corrected by hand")
    for text, settings in (("w2\n", ("m",)), ("w3\n", ("m",)), ("w2\n", ("another",))):
        (tmp_path / "a.txt").write_text(text)
        (result,) = translate_jobs(translator, jobs, out / ".s", settings)
        changed = text != "w2\n" or settings != ("m",)
        assert ("has been changed since it was translated; --overwrite" in result.error) is changed
        assert (out / "a.txt").read_text() == "corrected by hand"
    (result,) = translate_jobs(translator, jobs, out / ".s", ("another",), options=Options(overwrite=True))
    assert not result.error and (out / "a.txt").read_text() != "corrected by hand"


def test_a_folder_within_the_output_is_translated(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.txt").write_text("w1")
    assert [job.target for job in plan(tmp_path / "a" / "b", tmp_path / "a").jobs] == [tmp_path / "a" / "x.txt"]


def test_files_in_other_languages_are_refused_unless_told_otherwise(model, tmp_path):
    (tmp_path / "a.po").write_text('msgid ""\nmsgstr ""\n"Language: it\\n"\n\nmsgid "w1"\nmsgstr ""\n')
    unit = "<trans-unit><source>w1</source></trans-unit></file></xliff>"
    for name, language in (("b.xlf", "fr"), ("c.xlf", "yy-YY")):
        (tmp_path / name).write_text(f'<xliff><file source-language="xx-XX" target-language="{language}">{unit}')
    jobs = [Job(p, tmp_path / "out" / p.name, formats.check_format(p.name)) for p in sorted(tmp_path.glob("?.*"))]
    translator = FileTranslator(model, beam=1)
    errors = {r.job.source.name: r.error for r in translate_jobs(translator, jobs, tmp_path / "s", ())}
    assert "into it, but the model translates into yy; --any-language" in errors["a.po"]
    assert "into fr" in errors["b.xlf"] and not errors["c.xlf"]
    options = Options(overwrite=True, any_language=True)
    results = list(translate_jobs(translator, jobs, tmp_path / "t", ("n",), options=options))
    assert [r.error for r in results] == ["", "", ""]


def test_a_language_that_the_model_does_not_know_is_doubted(model):
    (done,) = FileTranslator(model, beam=1).translate([opened("ж ш щ ю я ы w1\n")])
    assert done.counts.unknown > 0.5 and "unknown to the model" in done.counts.summary()
    (done,) = FileTranslator(model, beam=1).translate([opened("w1 w2\n")])
    assert done.counts.unknown == 0 and "unknown" not in done.counts.summary()
