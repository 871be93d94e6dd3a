"""Encodings from before Unicode: the language of the text decides between them."""

from __future__ import annotations

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError

TEXTS = {
    "en": ("cp1252", "The café – “naïve” – costs £5 at 20 °C.\n"),
    "de": ("cp1252", "Die Tür ist grün, sagte er – höflich.\n"),
    "fr": ("cp1252", "Au mois d'août, la forêt était déjà sèche.\n"),
    "pt": ("cp1252", "A água não é o único problema da região.\n"),
    "it": ("cp1252", "Perché è così? Non lo so più.\n"),
    "sv": ("cp1252", "Han åkte över ån på våren.\n"),
    "es": ("cp1252", "¿Dónde está el niño? Mañana vendrá.\n"),
    "nl": ("cp1252", "Eén café in België.\n"),
    "cs": ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy.\n"),
    "pl": ("cp1250", "Zażółć gęślą jaźń w środę rano.\n"),
    "ru": ("cp1251", "Это простое предложение на русском языке.\n"),
    "tr": ("cp1254", "Işığı söndürüp dışarı çıktı.\n"),
    "el": ("cp1253", "Η γάτα κάθεται στο τραπέζι.\n"),
    "ja": ("cp932", "これは日本語の文章です。\n"),
    "zh": ("gb18030", "这是一个中文句子。\n"),
    "ko": ("cp949", "이것은 한국어 문장입니다.\n"),
}


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_decides_between_encodings(language):
    encoding, text = TEXTS[language]
    file = formats.read(text.encode(encoding), "text", language=f"{language}_XX")
    assert file.blocks[0].text.strip() == text.strip() and "read as" in file.note
    assert file.write([block.segments for block in file.blocks]) == text.encode(encoding)


def test_other_usual_encodings_of_a_language_are_found():
    text = "Это простое предложение на русском языке, и оно не очень длинное.\n" * 3
    assert formats.read(text.encode("koi8_r"), "text", language="ru").blocks[0].text.strip() in text
    text = "これは日本語の文章です。もう一つの文があります。\n" * 3
    assert formats.read(text.encode("euc_jp"), "text", language="ja").blocks[0].text.strip() in text


def test_what_the_usual_encoding_lacks_is_guessed():
    """Byte 0x81 is no character of windows-1252."""
    file = formats.read("これは日本語の文章です。\n".encode("cp932"), "text", language="en")
    assert "read as" in file.note and "cp1252" not in file.note


def test_the_output_may_have_another_encoding():
    finishing = formats.Finishing(encoding="utf-8")
    file = formats.read("Perché è così?\n".encode("cp1252"), "text", finishing=finishing, language="it")
    assert file.write([block.segments for block in file.blocks]).decode("utf-8") == "Perché è così?\n"
    marked = formats.read("a\n".encode("utf-16"), "text", finishing=finishing)
    assert marked.write([block.segments for block in marked.blocks]) == b"a\n"
    page = b'<html><head><meta charset="iso-8859-1"></head><body><p>a</p></body></html>'
    with pytest.raises(InputError, match="states that its encoding is iso-8859-1"):
        formats.read(page, "html", finishing=finishing)
    formats.read(page, "html", finishing=formats.Finishing(encoding="latin-1"))
