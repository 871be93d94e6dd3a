"""Untrusted files: readers take linear time and memory, and raise only InputError, whatever a file contains."""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import sys
import zipfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from benchmarks.readers import SHAPES, WORD, work
from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError

SIZE = 120_000
"""Bytes of an input: readers in quadratic time took minutes here, and some ran for hours."""

BOUND = 20
"""Limit per input in seconds of processor time and, times 100, in MiB; linear readers take at most one."""


@pytest.mark.command
@pytest.mark.parametrize("form", SHAPES)
def test_readers_are_linear(form):
    """Each shape in a child process that the system kills if it takes too much: a bound, not a measurement."""
    for shape, make in SHAPES[form].items():
        data = make(SIZE)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + BOUND
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + BOUND * (100 << 20),) * 2)
            try:
                work(form, data)
            except BaseException as e:
                print(f"{type(e).__name__}: {e}"[:500], file=sys.__stderr__)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"{form}, {shape}: {os.waitstatus_to_exitcode(status)}"


def archive(name: str, text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, text)
    return made.getvalue()


@pytest.mark.parametrize(
    "form, data, message",
    [
        ("docx", archive("word/document.xml", f"<w:document {WORD}>" + "<w:p>" * 1500 + "</w:p>" * 1500), "nested"),
        ("odt", archive("content.xml", "<office>" + "<text:p>" * 5000), "nested"),
        ("xliff", b"<xliff>" + b"<g>" * 5000, "nested"),
        ("html", b'<meta charset="undefined"><p>a\xff', "undefined: not a text encoding"),
        ("xliff", b'<?xml version="1.0" encoding="punycode"?><xliff/>' + b"\xff", "punycode"),
        (
            "xliff",
            b"<xliff><trans-unit><source>a</source><trans-unit><source>b</source></trans-unit></trans-unit></xliff>",
            "within another unit",
        ),
    ],
)
def test_what_a_reader_stumbled_over_is_one_line(form, data, message):
    with pytest.raises(InputError, match=message) as caught:
        formats.read(data, form)
    assert "\n" not in str(caught.value)


def test_two_files_of_one_name_in_an_archive_are_refused():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file, pytest.warns(UserWarning):
        file.writestr("word/document.xml", "<w:document/>")
        file.writestr("word/document.xml", "<w:document/>")
    with pytest.raises(InputError, match="the same name twice"):
        formats.read(made.getvalue(), "docx")


PIECES = [
    "<",
    ">",
    "</",
    "<b>",
    "</b>",
    "<!--",
    "-->",
    "&",
    "&amp;",
    "&#1;",
    "[",
    "](",
    ")",
    "`",
    "**",
    "_",
    "\\",
    "%s",
]
PIECES += [
    "{{",
    "}}",
    "%",
    "msgid ",
    'msgstr ""',
    '"',
    "\n",
    "\r",
    "\n\n",
    "1\n00:00:01,000 --> 00:00:02,000\n",
    "-->",
    "a",
]
PIECES += [
    "b. ",
    " ",
    "\t",
    "<x/>",
    "<source>",
    "</source>",
    "<target/>",
    "#, c-format\n",
    "msgid_plural ",
    "msgstr[0] ",
    "é",
]


@hypothesis.settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", 150)), deadline=None, derandomize=True)
@hypothesis.given(
    form=strategies.sampled_from(sorted(formats.FORMATS)),
    pieces=strategies.lists(strategies.sampled_from(PIECES), max_size=60),
    inside=strategies.booleans(),
)
def test_any_file_is_read_and_written_or_refused(form, pieces, inside):
    """Plain text comes back byte for byte; other formats write what they have read."""
    text = "".join(pieces)
    if form == "xliff" and inside:
        text = f"<xliff><file><trans-unit><source>{text}</source></trans-unit></file></xliff>"
    data = text.encode()
    if form in ("docx", "odt"):
        name = "word/document.xml" if form == "docx" else "content.xml"
        data = archive(name, f"<w:document {WORD}><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:document>")
    try:
        file = formats.read(data, form, None, formats.Finishing(mark=False, width=0))
        made = file.write([block.segments for block in file.blocks])
    except InputError as e:
        assert "Error:" not in str(e), e  # refused for a reason, not because a reader stumbled
        return
    if form in ("text", "wrapped"):
        assert made == data


def test_hostile_bytes_are_read_or_refused():
    chosen = random.Random(5)
    for form in formats.FORMATS:
        for _ in range(60):
            data = bytes(chosen.randrange(256) for _ in range(chosen.randrange(200)))
            try:
                formats.read(data, form)
            except InputError as e:
                assert "Error:" not in str(e), (form, data, e)


def test_text_that_unpacks_to_more_than_the_limit_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(zipfile.ZipFile, "testzip", None)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", f"<!--{'x' * (65 << 20)}-->")
    assert len(made.getvalue()) < 1 << 17 < 65 << 20 < formats.size(made.getvalue(), "docx")
    with pytest.raises(InputError, match="its text takes up more than 64 MiB, unpacked"):
        formats.read(made.getvalue(), "docx")
    assert formats.size(b"no archive", "docx") == formats.size(b"no archive", "text") == 10
