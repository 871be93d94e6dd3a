"""What a person sees: no control characters of strangers, and bars only on a terminal."""

from __future__ import annotations

import io
import logging
import sys
import zipfile

import pytest
from helpers import ROOT

from fairseq_lasformer.base.terminal import clean, progress_bar
from fairseq_lasformer.cli.main import main


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_control_characters_are_shown_as_question_marks(stream, monkeypatch):
    seen = Terminal()
    monkeypatch.setattr(sys, stream, seen)
    with clean():
        print("a\x1b]0;title\x07b\x9bc\x7f\x00", file=getattr(sys, stream))
        print("evil\rgood\x08", file=getattr(sys, stream))
        print("\udcff", file=getattr(sys, stream))
        print("tab\tand umlaut ü, Ж, 漢", file=getattr(sys, stream))
        assert getattr(sys, stream).isatty()
    assert seen.getvalue() == "a?]0;title?b?c??\nevil?good?\n?\ntab\tand umlaut ü, Ж, 漢\n"
    assert getattr(sys, stream) is seen


def test_logs_of_libraries_are_clean(monkeypatch):
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    with clean():
        handler = logging.StreamHandler()
        logging.getLogger("strangers").addHandler(handler)
        logging.getLogger("strangers").warning("a \x1b[2J name")
        logging.getLogger("strangers").removeHandler(handler)
    assert seen.getvalue() == "a ?[2J name\n"


def test_a_terminal_has_a_bar_and_a_file_has_lines(monkeypatch):
    for kind, redrawn in ((Terminal, True), (io.StringIO, False)):
        seen = kind()
        monkeypatch.setattr(sys, "stderr", seen)
        with clean(), progress_bar(total=500, desc="working", mininterval=0.0) as bar:
            for _ in range(500):
                bar.update()
        text = seen.getvalue()
        assert ("\r" in text) == redrawn and "500/500" in text and "?" not in text.replace("<?, ?it", "")
        if not redrawn:
            assert [line[:8] for line in text.splitlines()] == ["working:"] * 2


def test_names_in_files_do_not_control_the_terminal(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "n.docx", "w") as made:
        made.writestr("[Content_Types].xml", "<Types/>")
        word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        made.writestr(
            "word/document.xml",
            f"<w:document {word}><w:body><w:p><w:r><w:t>Click the button.</w:t></w:r></w:p></w:body></w:document>",
        )
        made.writestr("word/diagrams/data\x1b]0;TITLE\x07.xml", "<a:t>Some text here</a:t>")
    model = ROOT / "data/models/help_en-de"
    assert main(["translate", str(model), str(tmp_path / "n.docx"), "-o", str(tmp_path / "n.de.docx")]) == 0
    said = capsys.readouterr().err
    assert "word/diagrams/data?]0;TITLE?.xml" in said and "\x1b" not in said
