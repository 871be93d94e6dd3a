"""File readers: growth of their time on pathological inputs, ``python -m benchmarks.readers``.

For every format and shape, the processor time to read an input and one twice as large; the ratio should be near 2.
Shapes are ordinary text and those that once made readers quadratic.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
import zipfile
from collections.abc import Callable

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.sentences import sentences, whole

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
TEXT = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'


def repeated(piece: str, before: str = "", after: str = "") -> Callable[[int], bytes]:
    return lambda size: (before + piece * (size // len(piece)) + after).encode()


def packed(name: str, piece: str, before: str, after: str, *others: str) -> Callable[[int], bytes]:
    def made(size: int) -> bytes:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, before + piece * (size // len(piece)) + after)
            for other in others:
                archive.writestr(other, "<a/>")
        return data.getvalue()

    return made


def prose(size: int) -> bytes:
    """Return words, sentences and paragraphs."""
    chosen = random.Random(1)
    words = ["bank", "house", "river", "and", "the", "old", "sees", "under", "a"]
    words += ["bridge,", "town.", "it!", "{x}", "%s"]
    text = io.StringIO()
    while text.tell() < size:
        text.write(chosen.choice(words) + ("\n\n" if chosen.random() < 0.02 else " "))
    return text.getvalue().encode()


def ticks(size: int) -> bytes:
    """Return growing runs of backticks."""
    cycle = "".join("`" * n + "x" for n in range(1, 61))
    return (cycle * (size // len(cycle) + 1))[:size].encode()


_P = f"<w:document {WORD}><w:body><w:p>", "</w:p></w:body></w:document>"
_O = f"<office {TEXT}><text:p>", "</text:p></office>"
_CUE = "1\n00:00:01,000 --> 00:00:02,000\n"
_ENTRY = 'msgid ""\nmsgstr ""\n\nmsgid "a"\nmsgstr ""\n'

SHAPES: dict[str, dict[str, Callable[[int], bytes]]] = {
    "text": {
        "prose": prose,
        "blank lines": repeated("\n"),
        "spaces": repeated(" ", "a", "b"),
        "braces": repeated("{"),
        "columns": repeated("a   b\n"),
        "options": repeated("--a -b `c` $D "),
    },
    "wrapped": {"prose": prose, "blank lines": repeated("\n "), "one paragraph": repeated("a b\n")},
    "html": {
        "prose": prose,
        "open elements": repeated("<b>x"),
        "half tags": repeated("<a "),
        "half tags and a bracket": repeated("<a ", "", ">"),
        "open quotation marks": repeated('<a b="c '),
        "comments": repeated("<!--"),
        "ends": repeated("</"),
        "instructions": repeated("<?"),
        "ampersands": repeated("&"),
        "entities": repeated("&amp;"),
        "code": repeated("<code>x</code> y "),
        "scripts": repeated("<script>"),
        "templates": repeated("{{ a }} {% if a > b %}x{% else %}y{% endif %} "),
        "half templates": repeated("{{ {% {# <% <?php @if ("),
        "regions": repeated("{% comment %}"),
        "half templates and an end": repeated("{{ {% {# ", "", "}} %} #}"),
        "templates in tags": repeated("<a {% if x %}b"),
        "matched elements": lambda size: b"<i>" * (size // 8) + b"x" + b"</i>" * (size // 8),
    },
    "markdown": {
        "prose": prose,
        "links": repeated("[a](b) "),
        "brackets": repeated("["),
        "pairs": repeated("[]"),
        "images": repeated("!["),
        "notes": repeated("[^"),
        "backticks": ticks,
        "stars": repeated("*a **b _c "),
        "formulas": repeated("\\( $a "),
        "code": repeated("`x` y "),
        "quotations": repeated("> "),
        "tags": repeated("<a <!-- "),
        "addresses": repeated("see https://a.b/c and d@e.fr or f_g.txt "),
        "half messages": repeated("{a, plural, one {"),
        "messages": repeated("{a, plural, one {# b} other {c}} "),
        "containers": repeated("::: a\n"),
        "alerts": repeated("> [!NOTE]\n> a\n\n"),
        "cells": repeated("| a \\| b | c |\n", "| a | b |\n|---|---|\n"),
        "headings": repeated("[a](#b)\n\n# b\n\n"),
        "expressions": repeated("{a.b} {x ? y : z} "),
        "front matter": repeated("title: a b\n", "---\n", "---\n\na\n"),
        "references": repeated("[a] [b][] ", "", "\n\n[a]: c\n[b]: d\n"),
    },
    "docx": {
        "runs": packed("word/document.xml", "<w:r><w:rPr><w:b/></w:rPr><w:t>a </w:t></w:r>", *_P),
        "paragraphs": packed("word/document.xml", "</w:p><w:p><w:r><w:t>a b</w:t></w:r>", *_P),
        "breaks": packed("word/document.xml", "<w:r><w:t>a</w:t><w:br/></w:r>", *_P),
        "fields": packed(
            "word/document.xml",
            '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>IF</w:instrText></w:r>',
            *_P,
        ),
    },
    "odt": {
        "spans": packed("content.xml", "<text:span>a </text:span>", *_O),
        "breaks": packed("content.xml", "a<text:tab/>", *_O),
    },
    "epub": {
        "paragraphs": packed("a.xhtml", "<p>a <b>b</b><sup>1</sup></p>", "<html>", "</html>", "META-INF/container.xml"),
        "contents": packed("a.ncx", "<text>a</text>", "<ncx>", "</ncx>", "META-INF/container.xml"),
    },
    "subtitles": {
        "repeated lines": repeated("1\n00:00:01,000 --> 00:00:01,100\na\nb\n\n"),
        "digits": repeated("1", "", "\n" + _CUE + "a\n"),
        "cues": repeated(_CUE + "a b\n\n"),
        "one cue": repeated("a b\n", _CUE),
        "open tags": repeated("<i>x ", _CUE),
        "half tags": repeated("<", _CUE),
    },
    "ass": {
        "dialogue": repeated("Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,a {\\i1}b{\\i0}\\Nc\n", "[Events]\n"),
        "one line": repeated("a\\N", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,"),
        "braces": repeated("{", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,"),
    },
    "po": {
        "entries": repeated('msgid "a %s b"\nmsgstr ""\n\n', _ENTRY),
        "one entry": repeated('"a %s b"\n', 'msgid ""\nmsgstr ""\n\nmsgid ""\n', 'msgstr ""\n'),
        "percent signs": repeated("%", 'msgid "', '"\nmsgstr ""\n'),
        "digits": repeated("0", 'msgid "%', '"\nmsgstr ""\n'),
        "brackets": repeated("<", 'msgid "', '"\nmsgstr ""\n'),
    },
    "xliff": {
        "units": repeated(
            "<trans-unit><source>a {{ x }} b</source></trans-unit>", "<xliff><file><body>", "</body></file></xliff>"
        ),
        "escaped elements": repeated(
            "&lt;b&gt;a&lt;/b&gt; ",
            "<xliff><file><body><trans-unit><source>",
            "</source></trans-unit></body></file></xliff>",
        ),
        "codes": repeated(
            "<x/>a ", "<xliff><file><body><trans-unit><source>", "</source></trans-unit></body></file></xliff>"
        ),
    },
}
SHAPES["cues"] = SHAPES["subtitles"]


def work(form: str, data: bytes) -> None:
    """Read a file, find its sentences, and write it back."""
    try:
        file = formats.read(data, form)
        for block in file.blocks:
            sentences(block, whole)
        file.write([block.segments for block in file.blocks])
    except InputError:
        pass


def seconds(form: str, make: Callable[[int], bytes], size: int) -> float:
    data, best = make(size), float("inf")
    for _ in range(3):
        begun = time.process_time()
        work(form, data)
        best = min(best, time.process_time() - begun)
        if best > 1:  # long enough to be measured once
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of the smaller input (default: %(default)s)")
    args = parser.parse_args()
    worst = 0.0
    print(f"{'format':10} {'shape':26} {f'{args.size >> 10} KiB, s':>14} {'twice, s':>10} {'ratio':>6}")
    for form, shapes in SHAPES.items():
        for shape, make in shapes.items():
            small, large = seconds(form, make, args.size), seconds(form, make, 2 * args.size)
            ratio = large / max(small, 1e-3)
            worst = max(worst, ratio)
            print(f"{form:10} {shape:26} {small:14.2f} {large:10.2f} {ratio:6.2f}", flush=True)
    sys.exit(worst > 2.6)


if __name__ == "__main__":
    main()
