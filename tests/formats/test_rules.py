"""Each format by its own rules: what is read, and what comes out. Every input once came out wrong."""

from __future__ import annotations

import io
import re
import zipfile

import pytest
from test_every_letter import MAIN, packed, shown

from fairseq_lasformer import formats
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.formats.projection import by_place
from fairseq_lasformer.formats.sentences import sentences, splitter
from fairseq_lasformer.formats.word import WORD


def through(data: bytes | str, form: str, change=str.upper, **options) -> tuple[list[str], str]:
    """Return the sentences that are read, and the file with changed ones."""
    content = packed(form, data) if isinstance(data, str) else data
    file = formats.read(content, form, language="en", target="de", **options)
    seen, segments = [], []
    for block in file.blocks:
        found = sentences(block, splitter("en"))
        seen += [sentence.text for sentence in found]
        segments.append(compose(block, found, [change(s.text) for s in found], by_place).segments)
    made = file.write(segments)
    return seen, shown(form, made) if form in MAIN else made.decode("utf-8", "surrogateescape")


def xliff(units: str, version: str = "1.2") -> str:
    said = 'source-language="en" target-language="de"' if version == "1.2" else ""
    inner = f'<file original="a" {said}><body>{units}</body></file>'
    if version != "1.2":
        inner = f'<file id="f"><unit id="u">{units}</unit></file>'
    return f'<xliff version="{version}"{"" if version == "1.2" else " srcLang=" + chr(34) + "en" + chr(34)}>{inner}</xliff>'


def word(paragraphs: str) -> str:
    return f"<w:document xmlns:w='{WORD}'><w:body>{paragraphs}</w:body></w:document>"


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def field(instruction: str, result: str) -> str:
    char = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'.format
    said = f"<w:r><w:instrText>{instruction}</w:instrText></w:r>"
    return char("begin") + said + char("separate") + run(result) + char("end")


PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'

CASES = [
    # XLIFF
    (
        "xliff",
        xliff('<trans-unit id="1"><source>a b</source><target state="final"><![CDATA[von <b>Hand</b>]]></target></trans-unit>'),
        [],
        ['<target state="final"><![CDATA[von <b>Hand</b>]]></target>'],
    ),
    (
        "xliff",
        xliff('<trans-unit id="1"><source><![CDATA[one <b>two</b> &amp; three]]></source></trans-unit>'),
        ["one two & three"],
        ["<target", "<![CDATA[ONE <b>TWO</b> &amp; THREE]]>"],
    ),
    (
        "xliff",
        xliff("<segment><source>one</source></segment>", "2.0"),
        ["one"],
        ['trgLang="de"', "<target>ONE</target>"],
    ),
    (
        "xliff",
        xliff(
            '<trans-unit id="1"><source>One. Two.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk> '
            '<mrk mtype="seg" mid="1">Two.</mrk></seg-source><target><mrk mtype="seg" mid="0">Eins.</mrk> '
            '<mrk mtype="seg" mid="1"/></target></trans-unit>'
        ),
        ["Two."],
        ['<mrk mtype="seg" mid="0">Eins.</mrk> <mrk mtype="seg" mid="1">TWO.</mrk></target>'],
    ),
    (
        "xliff",
        xliff("<segment><source>the <mrk id='m' translate='no'>Acme red</mrk> is new</source></segment>", "2.0"),
        ["the X1 is new"],
        ["THE <mrk id='m' translate='no'>Acme red</mrk> IS NEW"],
    ),
    (
        "xliff",
        xliff("<trans-unit id='1'><source>one.&#13;&#10;two.</source></trans-unit>"),
        ["one.", "two."],
        ["ONE.&#13;&#10;TWO.</target>"],
    ),
    (
        "xliff",
        xliff("<trans-unit id='1'><source>{n, plural, one {<x id='1'/> file} other {# files}}</source></trans-unit>"),
        ["X1 file", "X1 files"],
        ["{n, plural, one {<x id='1'/> FILE} other {# FILES}}</target>"],
    ),
    # Word and OpenDocument
    ("docx", word(f"<w:p>{run('see page ')}{field('PAGEREF _x', '23')}{run(' now')}</w:p>"), ["see page X1 now"], [">23<"]),
    ("docx", word(f"<w:p>{run('read ')}{field('HYPERLINK ', 'our page')}</w:p>"), ["read our page"], ["OUR PAGE"]),
    (
        "docx",
        word(f"<w:p>{field('TOC ', 'One')}{run(' x')}</w:p>").replace("One", f"Chapter </w:t></w:r>{field('PAGEREF', '7')}<w:r><w:t>"),
        ["Chapter X1 x"],
        [">7<"],
    ),
    ("docx", word("<w:p><w:r><w:t>twenty</w:t><w:noBreakHyphen/><w:t>one men</w:t></w:r></w:p>"), ["twenty\u2011one men"], []),
    ("docx", word("<w:p><w:r><w:t>buy</w:t><w:sym w:char='F0'/><w:t>now</w:t></w:r></w:p>"), ["buy now"], ["<w:sym"]),
    ("docx", word("<w:p><w:r><w:t>soft</w:t><w:softHyphen/><w:t>ly said</w:t></w:r></w:p>"), ["softly said"], []),
    # HTML
    ("html", "<ul><li class=notranslate>Acme<li>one<li>two</ul>", ["one", "two"], ["notranslate>Acme<li>ONE<li>TWO"]),
    ("html", "<p translate=no>Acme<div>one</div>", ["one"], ["Acme<div>ONE"]),
    ("html", "<table><tr><th translate=no>Acme<td>one<tr><td>two</table>", ["one", "two"], ["Acme<td>ONE"]),
    ("html", "<p class=notranslate>Acme <em translate=yes>one</em> B</p>", ["one"], ["Acme <em translate=yes>ONE</em> B"]),
    ("html", "<title>one &amp; two</title>", ["one & two"], ["<title>ONE &amp; TWO</title>"]),
    ("html", "<p>say <ruby>one<rp>(</rp><rt>eins</rt><rp>)</rp></ruby></p>", ["say one"], ["ONE<rp>(</rp><rt>eins</rt>"]),
    ("html", "<pre class=a/>code</pre><p>one</p>", ["one"], [">code</pre>"]),
    ("html", "<?php if ($a > 1) { echo '<b>x</b>'; } ?><p>one</p>", ["one"], ["echo '<b>x</b>'; } ?>"]),
    ("html", "<option <?= $a > 1 ? 'selected' : '' ?> value='x'>one</option>", ["one"], ["'' ?> value='x'>ONE"]),
    ("html", "<p><%= f(a > b) %> one</p>", ["X1 one"], ["<%= f(a > b) %> ONE"]),
    ("html", '<html lang="en-US"><p lang=fr>un</p><p xml:lang="en">one</p>', ["one"], ['lang="de"', "lang=fr", 'xml:lang="de"']),
    # gettext
    ("po", PO + 'msgid "_Open"\nmsgstr ""\n\nmsgid "E_xit now"\nmsgstr ""\n', ["Open", "Exit now"], ['"_OPEN"', '"E_XIT NOW"']),
    ("po", PO + 'msgid "&Save As"\nmsgstr ""\n\nmsgid "R&D and Q&A"\nmsgstr ""\n', ["Save As", "R&D and Q&A"], ['"&SAVE AS"', '"R&D AND Q&A"']),
    ("po", PO + 'msgid "one\u2028two\x0cthree"\nmsgstr ""\n', ["one", "two three"], ['msgstr "ONE\u2028TWO THREE"']),
    ("po", PO + 'msgid "translator-credits"\nmsgstr ""\n', [], ['msgid "translator-credits"\nmsgstr ""']),
    (
        "po",
        PO + 'msgid "{n, plural,\\n one {# cat}\\n other {# cats}}"\nmsgstr ""\n',
        ["X1 cat", "X1 cats"],
        ['msgstr "{n, plural,\\n one {# CAT}\\n other {# CATS}}"'],
    ),
    # Markdown
    ("markdown", "> [!WARNING] Be careful\n> one\n> two\n", ["Be careful", "one two"], ["> [!WARNING] BE CAREFUL\n> ONE\n> TWO"]),
    ("markdown", "::: tip Know this\none\n:::\n", ["Know this", "one"], ["::: tip KNOW THIS\nONE\n:::"]),
    ("markdown", '!!! note "Know this"\n\n    one\n\n    two\n', ["Know this", "one", "two"], ['!!! note "KNOW THIS"\n\n    ONE']),
    ("markdown", '=== "C"\n\n    one\n', ["C", "one"], ['=== "C"\n\n    ONE']),
    ("markdown", "1. [x] one\n2. [ ] two\n", ["one", "two"], ["1. [x] ONE\n2. [ ] TWO"]),
    ("markdown", "- [/] one\n- [>] two\n- [-] three\n", ["one", "two", "three"], ["- [/] ONE\n- [>] TWO\n- [-] THREE"]),
    ("markdown", "> [!note|left] Be careful\n> one\n", ["Be careful", "one"], ["> [!note|left] BE CAREFUL\n> ONE"]),
    ("markdown", "| a | y |\n|---|---|\n| one \\| two | y |\n", ["a", "y", "one | two", "y"], ["| ONE \\| TWO | Y |"]),
    ("markdown", "one $$x^2$$ two\n", ["one X1 two"], ["ONE $$x^2$$ TWO"]),
    ("markdown", "\\begin{equation}\na\n\\end{equation}\n\none\n", ["one"], ["\\begin{equation}\na\n\\end{equation}\n\nONE"]),
    ("markdown", '{\n "title": "x"\n}\n\none\n', ["one"], ['"title": "x"\n}\n\nONE']),
    ("markdown", "one &lt;b&gt; &copy; two\\\nthree\n", ["one X1 © two three"], ["ONE &lt;b&gt;", "\\\nTHREE"]),
    ("markdown", "# one {#anchor}\n\n{: .lead }\n", ["one"], ["# ONE {#anchor}\n\n{: .lead }"]),
    ("markdown", "see [[a page]] and [[b|that one]] :smile:\n", ["see X1 and that one X2"], ["[[a page]]", "[[b|THAT ONE]] :smile:"]),
    # subtitles
    ("subtitles", "1\n0:00:01.5 --> 0:00:02\none\n\n2\n00:00:03,00 -> 00:00:04,50\ntwo\n", ["one two"], ["ONE", "TWO"]),
    ("subtitles", "1\n00:00:01,000 --> 00:00:02,000\none.\n\ntwo.\n\n2\n00:00:03,000 --> 00:00:04,000\nthree.\n", ["one.", "two.", "three."], ["ONE.\nTWO.\n\n2\n"]),
    ("subtitles", "1\n00:00:01,000 --> 00:00:09,000\n{\\an8}sign\n\n2\n00:00:02,000 --> 00:00:03,000\nsaid\n", ["sign", "said"], ["{\\an8}SIGN"]),
    ("subtitles", "1\n00:00:01,000 --> 00:00:02,000\none\\Ntwo\\hthree\n", ["one two three"], ["\\N", "\\h"]),
    ("subtitles", "WEBVTT\nLanguage: en-US\n\n00:01.000 --> 00:02.000\n<v Anna>one\n<v Bob>two &gt; &lrm;\n", ["one", "two >"], ["Language: de\n", "TWO &gt;"]),
    # found by trying more inputs of the same kinds
    ("text", "Saved as {name}_{id}.txt\n", ["Saved as X1"], ["SAVED AS {name}_{id}.txt"]),
    ("text", "{n, plural,\n  one {# cat}\n  other {# cats}}\nmore\n", ["X1 cat", "X1 cats", "more"], ["{n, plural,\n  one {# CAT}\n  other {# CATS}}\nMORE"]),
    ("po", PO + 'msgid "{n, plural, one {<b>#</b> cat} other {it\'\'s #}}"\nmsgstr ""\n', ["X1 cat", "it's X1"], ["{n, plural, one {<b>#</b> CAT} other {IT'S #}}"]),
    ("po", PO + 'msgid "Look into C:\\\\new now"\nmsgstr ""\n', ["Look into X1 now"], ['msgstr "LOOK INTO C:\\\\new NOW"']),
    ("po", PO + 'msgid "Tom &amp; Jerry&nbsp;go"\nmsgstr ""\n', ["Tom & Jerry go"], ['msgstr "TOM &amp; JERRY GO"']),
    ("po", PO + 'msgid "a &lt; b"\nmsgstr ""\n\nmsgid "{n, plural, other {c > d}}"\nmsgstr ""\n', ["a < b", "c > d"], ['"A &lt; B"', "{C > D}"]),
    ("po", PO + 'msgid "%{a}here%{b} %L1"\nmsgstr ""\n', ["here X3"], ['msgstr "%{a}HERE%{b} %L1"']),
    ("html", '<a href="<?php echo u("/"); ?>" class="x">one</a>', ["one"], ['<a href="<?php echo u("/"); ?>" class="x">ONE']),
    ("html", '<a {% if x > 1 %}class="a"{% endif %} href="x">one</a>', ["one"], ['{% endif %} href="x">ONE']),
    ("html", "<p>{% if n > 1 %}many{% else %}one{% endif %}</p>", ["many", "one"], ["%}MANY{% else %}ONE{%"]),
    ("html", "<p>{# <b>a</b>\n note #}one {{\n name\n}}</p>", ["one X1"], ["{# <b>a</b>\n note #}ONE {{\n name\n}}"]),
    ("html", "<p>{n, plural, one {# cat} other {#}}<p>one<p>{n, plural, other {#}}", ["X1 cat", "one"], ["{# CAT} other {#}}<p>ONE"]),
    ("html", "<script>if (a) {{ b</script><p>one }} two", ["one }} two"], ["{{ b</script><p>ONE }} TWO"]),
    ("html", "<h1 class=notranslate>a<h2>one</h2><a translate=no>b<a href=y>two</a>", ["one", "two"], ["a<h2>ONE"]),
    ("html", '<html lang=en><meta property="og:locale" content="en_US"><p>one', ["one"], ['content="de_DE"', "lang=de"]),
    ("xliff", xliff("<trans-unit id='1'><source><![CDATA[<script>a</script><p>one</p><p class=notranslate>b</p>]]></source></trans-unit>"), ["one"], ["<![CDATA[<script>a</script><p>ONE</p><p class=notranslate>b</p>]]></target>"]),
    ("xliff", xliff("<trans-unit id='1'><source>&lt;p&gt;one &lt;b&gt;two&lt;/b&gt;&lt;/p&gt;</source></trans-unit>"), ["one two"], ["&lt;p&gt;ONE &lt;b&gt;TWO&lt;/b&gt;&lt;/p&gt;</target>"]),
    ("xliff", xliff("<trans-unit id='1'><source>One. Two.</source><seg-source><mrk mtype='seg' mid='a'>One.</mrk> <mrk mtype='seg' mid='b'>Two.</mrk></seg-source><target state='final'><mrk mtype='seg' mid='a'>Eins.</mrk></target></trans-unit>"), ["Two."], ['<target state="needs-review-translation">', '<mrk mtype="seg" mid="b">TWO.</mrk></target>']),
    ("docx", word(f"<w:p>{run('one ')}<w:r><w:fldChar w:fldCharType='begin'/></w:r></w:p><w:p>{run('two')}</w:p>"), ["one", "two"], ["TWO"]),
    ("docx", word(f"<w:p>{field('FORMTEXT', 'your name')}</w:p>"), ["your name"], ["YOUR NAME"]),
    ("markdown", "one<br>two [three]({{ page.url }}) [a](</my uri>)\n", ["one two three a"], ["ONE<br>TWO [THREE]({{ page.url }}) [A](</my uri>)"]),
    ("markdown", "# one { .hide }\n\n[two](u){ .button data-x=y }\n", ["one", "two"], ["# ONE { .hide }", "[TWO](u){ .button data-x=y }"]),
    ("markdown", "see [the docs] and [API][]\n\n[the docs]: a.md\n[API]: b.md\n", ["see the docs and API"], ["SEE [THE DOCS][the docs] AND [API][API]"]),
    ("markdown", "see [the\ndocs]\n\n[the docs]: a.md\n", ["see the docs"], ["SEE [THE\nDOCS][the docs]"]),
    ("markdown", "---\n\n# one\n\ntwo\n\n---\n", ["one", "two"], ["---\n\n# ONE\n\nTWO\n\n---"]),
    ("markdown", "{% highlight ruby %}\nputs a\n{% endhighlight %}\n\none\n", ["one"], ["puts a"]),
    ("markdown", "for A$AP fans it costs $5 to $10 today\n", ["for A$AP fans it costs $5 to $10 today"], []),
    ("markdown", ":::{note}\n:class: tip\none\n:::\n\n(my-target)=\n## two\n", ["one", "two"], [":class: tip\nONE", "(my-target)=\n## TWO"]),
    ("subtitles", "1\n00:00:01,000 --> 00:00:02,000\nOne\n\n2\n\n00:00:03,000 --> 00:00:04,000\nTwo A < B and C > D\n", ["One Two A < B and C > D"], ["ONE", "\n2\n\n00:00:03"]),
    ("subtitles", "WEBVTT\n\n00:01.000 --> 00:02.000\n \n&lrm;- One &eacute;\n&lrm;- Two\n", ["One é", "Two"], ["ONE É"]),
    ("xliff", '<xliff version="1.2"><file source-language="en"><trans-unit id="1"><source/></trans-unit><trans-unit id="2"><source>one</source></trans-unit></file></xliff>', ["one"], ['<trans-unit id="1"><source/></trans-unit>', ">ONE</target>"]),
    ("ass", "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{TL note: x}- One\\N- Two\n", ["One", "Two"], ["{TL note: x}- ONE\\N- TWO"]),
]  # fmt: skip


@pytest.mark.parametrize("form, text, expected, contained", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_what_is_read_and_what_comes_out(form, text, expected, contained):
    seen, made = through(text, form)
    assert seen == expected
    for piece in contained:
        assert piece in made, made


@pytest.mark.parametrize(
    "page, source, target, expected",
    [
        ('<html lang="en"><p>one', "en", "ar", '<html dir="rtl" lang="ar"><p>one'),
        ("<html><body dir=ltr><p>one", "en", "he", '<html dir="rtl"><body dir=rtl><p>one'),
        ("<html dir='rtl' lang=\"fa\"><p>one", "fa", "en", "<html dir='ltr' lang=\"en\"><p>one"),
        ("<p dir=ltr lang=fr>un</p><p lang=en>one", "en", "ur", '<p dir=ltr lang=fr>un</p><p dir="rtl" lang=ur>one'),
        ("<body><p>one", "en", "ar", "<body><p>one"),
        ('<html lang="ar"><p>one', "ar", "fa", '<html lang="fa"><p>one'),
        ('<html lang="en"><p>one', "en", "de", '<html lang="de"><p>one'),
    ],
)
def test_a_page_says_the_direction_of_its_text(page, source, target, expected):
    file = formats.read(page.encode(), "html", language=source, target=target)
    assert file.write([b.segments for b in file.blocks]).decode() == expected


def test_the_target_of_a_unit_follows_its_segments():
    units = '<trans-unit id="1"><source>One.</source><seg-source><mrk mtype="seg" mid="0">One.</mrk></seg-source><note>n</note></trans-unit>'
    made = through(xliff(units), "xliff")[1]
    order = re.findall(r"<(source|seg-source|target|note)\b", made)
    assert order == ["source", "seg-source", "target", "note"]


@pytest.mark.parametrize(
    "said, expected", [("ISO-8859-1", "ISO-8859-1"), ("CHARSET", "UTF-8"), ("ASCII", "UTF-8"), ("KOI8-R", "UTF-8")]
)
def test_the_charset_of_a_catalogue_is_true(said, expected):
    """The declared one if it has every letter of the translation, otherwise UTF-8; msgfmt reads it by its name."""
    data = PO.replace("UTF-8", said).encode() + b'msgid "one"\nmsgstr ""\n'
    file = formats.read(data, "po", language="en", target="de")
    made = file.write([["Grüße"]])
    assert f"charset={expected}" in made.decode(expected) and 'msgstr "Grüße"' in made.decode(expected)


def test_a_catalogue_in_another_charset_than_it_says_says_the_right_one():
    data = PO.encode() + 'msgid "caf\xe9 noir"\nmsgstr ""\n'.encode("latin-1")
    made = formats.read(data, "po", language="fr", target="de").write([["schwarz"]])
    assert b"charset=CP1252" in made and b"caf\xe9" in made


@pytest.mark.parametrize(
    "name, byte, letter",
    [("iso-8859-1", b"\x80", "€"), ("us-ascii", b"\x92", "’"), ("gb2312", "镕".encode("gbk"), "镕")],
)
def test_a_page_is_in_the_encoding_that_browsers_take(name, byte, letter):
    page = b'<meta charset="' + name.encode() + b'"><p>a ' + byte + b"</p>"
    file = formats.read(page, "html")
    assert file.blocks[0].text == f"a {letter}" and file.write([b.segments for b in file.blocks]) == page


def test_a_template_names_the_language_that_it_is_translated_into():
    data = PO.replace('"Content', '"Language: \\n"\n"Content').encode() + b'msgid "one"\nmsgstr ""\n'
    assert '"Language: de\\n"' in through(data, "po")[1]


@pytest.mark.parametrize("where", ["word/document.xml", "styles"])
def test_a_document_of_word_is_in_the_target_language(where):
    made = io.BytesIO()
    language = '<w:rPr><w:lang w:val="en-US" w:eastAsia="ja-JP"/></w:rPr>'
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("word/document.xml", word(f"<w:p><w:r>{language}<w:t>one</w:t></w:r></w:p>"))
        archive.writestr("word/styles.xml", f"<w:styles xmlns:w='{WORD}'>{language}</w:styles>")
    file = formats.read(made.getvalue(), "docx", language="en", target="de")
    name = "word/styles.xml" if where == "styles" else where
    with zipfile.ZipFile(io.BytesIO(file.write([block.segments for block in file.blocks]))) as archive:
        assert '<w:lang w:val="de-DE" w:eastAsia="ja-JP"/>' in archive.read(name).decode()


def test_the_main_part_of_a_document_may_have_any_name():
    made = io.BytesIO()
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(
            "_rels/.rels", f'<Relationships><Relationship Type="{kind}" Target="/word/document2.xml"/></Relationships>'
        )
        archive.writestr("word/document2.xml", word(f"<w:p>{run('one')}</w:p>"))
        archive.writestr("word/diagrams/data1.xml", "<d xmlns:a='x'><a:t>a red bridge</a:t></d>")
        archive.writestr("word/charts/chart1.xml", "<d xmlns:c='x'><c:v>17</c:v></d>")
    file = formats.read(made.getvalue(), "docx")
    assert [block.text for block in file.blocks] == ["one"]
    assert [(one.what, one.place) for one in file.unread] == [("diagram", "word/diagrams/data1.xml")]


def test_a_text_with_wrapped_lines_gets_a_hint():
    wrapped = "The friendly man will speak about a bridge that is\nvery long, and about the teacher who crosses it on\neach day.\n"
    assert "--from wrapped" in formats.read(wrapped.encode(), "text").note
    assert not formats.read(b"One line is a sentence.\nThe next is as well.\nand a third one\n", "text").note
