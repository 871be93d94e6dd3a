"""Parts of a text that are not language, and those that only look like it."""

from __future__ import annotations

import time

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.text import icu
from fairseq_lasformer.text.spans import has_language, spans

KEPT = {
    "address": [
        "https://shop.example.com/red-shoes?id=42&x=y",
        "https://de.wikipedia.org/wiki/Straße_(Ort)",
        "www.example.org",
        "anna.b+news@mail.example.org",
        "mailto:anna@example.org",
        "example.com",
        "docs.example.co.uk",
        "ftp://example.org/a.txt",
        "git+ssh://git@example.org/a",
    ],
    "file": [
        "/usr/local/bin",
        "~/.bashrc",
        "C:\\Users\\anna\\Bild.png",
        "src/main/App.java",
        "bridge_v2.tar.gz",
        "README.md",
        "../shared/data",
        "*.txt",
        "%APPDATA%\\tool",
    ],
    "name": ["@anna_b", "@scope/package", "#RedShoes", "#straße"],
    "version": ["v2.1", "1.2.3", "2.0.0-rc.1", "192.168.0.1", "10.4.1+build5"],
    "placeholder": [
        "{{ name }}",
        "{{{ body }}}",
        "{% if a > b %}",
        "{# a note #}",
        "<?php echo $a > 1; ?>",
        "<%= link %>",
        "{!! $html !!}",
        "@foreach ($a as $b)",
        "@lang('x.y')",
        "${count}",
        "{0}",
    ],
    "directive": ["%s", "%(count)d", "%1$s", "%name%", "<0/>"],
}


@pytest.mark.parametrize("kind, part", [(kind, part) for kind, parts in KEPT.items() for part in parts])
@pytest.mark.parametrize("sentence", ["see {} again", "{} is new", "read {}.", "(see {}), too", "is it {}?"])
def test_what_is_not_language_is_found_whole(kind, part, sentence):
    text = sentence.replace("{}", part)
    (found,) = spans(text)
    assert (text[found.start : found.end], found.kind) == (part, kind)
    assert has_language(text) and not has_language(part)


PROSE = [
    "The price is 3.5 % of 1.234.567, due on 31.12.2024 or 2024-01-31 at 10:30.",
    "and/or, he/she, km/h, w/o, 24/7, Yes/No, 1/2",
    "e.g. this, i.e. that, U.S. law, Mr.Smith, No.5, p.m., a.m.",
    "C# and F#, R&D, AT&T, #1, @ 5 pm, 100% of them, 50%off",
    "He left.Then she came. So it goes...",
    "Der Preis beträgt 3,50 €. Am 3.Mai kam er.",
    "« Bonjour ! » dit-il.",
    "这座桥很古老。我们去看看吧！",
    "{ this is text in braces } and [brackets]",
    "a < b and b > c",
    "'quoted' and 'plain'",
]


@pytest.mark.parametrize("text", PROSE)
def test_prose_has_no_such_parts(text):
    assert not spans(text) and has_language(text)


@pytest.mark.parametrize(
    "text",
    ["42", "17.5 %", "-----", "...", "♪ ♪", "2024-01-31", "😀", "👍🏽 🇩🇪", "ℹ️", "$5.99", "12:30", "– –", "", " "],
)
def test_nothing_without_a_letter_is_language(text):
    assert not has_language(text)


def texts(text: str) -> list[str]:
    return [text[a:b] for message in icu.messages(text) for a, b, _ in message.texts]


def test_messages_of_icu_are_read_by_their_texts():
    assert texts("{n, plural, offset:1 =0 {none} one {# file} other {{name} and # files}}") == [
        "none",
        "# file",
        "{name} and # files",
    ]
    assert texts("{who, select, male {He left} other {They left}} now") == ["He left", "They left"]
    nested = "{g, select, a {{n, plural, one {x} other {y}}} other {z}}"
    assert texts(nested) == ["{n, plural, one {x} other {y}}", "z"]
    assert texts("{n, plural, one {it's '{'one'}'} other {o''clock}}") == ["it's '{'one'}'", "o''clock"]
    assert texts("{n, number, percent} {d, date, short}") == [] and len(icu.messages("{n, number} {d, date, x}")) == 2
    for broken in ("{n, plural, one {x}", "{n, plural}", "{n, plural, one x}", "{a, b}", "{n, plural, one {x} y}"):
        assert texts(broken) == []


def test_messages_are_read_to_a_depth():
    """Thousands of levels of a stranger's message must not end the reading of a file."""
    nested = "x"
    for _ in range(5000):
        nested = f"{{a, select, b {{{nested}}}}}"
    assert len(icu.messages(nested)) <= 1 and has_language(nested)
    file = formats.read(nested.encode(), "text")
    assert file.write([block.segments for block in file.blocks]) == nested.encode()


HOSTILE = [
    "{",
    "{a,plural,",
    "a.",
    "@",
    "/a",
    "www.",
    "<%",
    "{#",
    "a@b.",
    "@a(",
    "a-",
    "'{",
    "{a,plural,one {",
    "v1.",
    "%(",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_linear_time(piece):
    """A bound far above what is needed; quadratic time would be minutes."""
    begun = time.process_time()
    spans(piece * (60_000 // len(piece)))
    assert time.process_time() - begun < 10


def test_endless_words_are_data_and_not_language():
    data = "QUJD/0+x" * 80
    (found,) = spans(f"Der Schlüssel {data} gilt bis 2026.")
    assert (found.start, found.end) == (14, 14 + 640) and not has_language(data)
    assert [s.kind for s in spans(f"https://example.org and {data} and {{name}}")] == ["address", "name", "placeholder"]
    for language in ("Donaudampfschifffahrtsgesellschaft" * 10, "\u6f22\u5b57" * 400, "a word " * 200):
        assert spans(language) == [] and has_language(language)
    begun = time.process_time()
    spans("ab" * 500_000)
    assert time.process_time() - begun < 5
