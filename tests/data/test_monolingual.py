"""Documents in one language in the preparation: counts, tags, words, refusals."""

from __future__ import annotations

import pytest
from helpers import read_split, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.prepare import prepare, summary
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.text.documents import read_corpus


def config_of(folder, *mono, **more):
    prefix = str(folder / "train")
    options = {"out": folder / "data", "tokenizer": "none", "size": 60, "workers": 1} | more
    return PrepareConfig("xx", "yy", (prefix,), (), (), mono=tuple(map(str, mono)), **options)


@pytest.fixture
def raw(tmp_path):
    write_corpus(tmp_path, "train", 5, seed=1)
    more = write_corpus(tmp_path, "more", 7, seed=2)
    lines = more.with_name("more.yy").read_text()
    more.with_name("more.yy").write_text(lines + "\nQ77 Q78\n")  # one more document, with its own words
    return tmp_path


def test_both_languages_stand_on_both_sides_behind_their_tags(raw):
    config = config_of(raw, raw / "more")
    done = prepare(config)
    whole = read_corpus(raw / "more.xx", raw / "more.xx")
    counts = {info.name: (info.documents, info.sentences) for info in done.splits}
    assert counts["mono_source"] == (7, whole.sentences) and counts["mono_target"] == (8, whole.sentences + 1)
    assert "mono_target: 8 documents" in summary(config, done)
    for name, tag in (("mono_source", "<xx>"), ("mono_target", "<yy>")):
        sides = [read_split(config.out, name, language) for language in ("xx", "yy")]
        assert sides[0] == sides[1] and all(line.split()[0] == tag for line in sides[0])
        assert len(sides[0]) == SplitInfo.load(config.out, name).n_examples
    assert any("Q" in line for line in read_split(config.out, "mono_target", "xx")[-1:])
    assert not any("<unk>" in line for line in read_split(config.out, "mono_target", "yy"))
    for language in ("xx", "yy"):
        assert all(line.split()[0] == f"<{language}>" for line in read_split(config.out, "train", language))
    assert DataConfig.load(config.out).tags == ("<xx>", "<yy>")
    stamp = (config.out / "dict.xx.txt").stat().st_mtime_ns
    assert prepare(config) == done and (config.out / "dict.xx.txt").stat().st_mtime_ns == stamp
    (raw / "more.yy").write_text("Q1\n")
    with pytest.raises(InputError, match="prepared from other inputs"):
        prepare(config)


def test_one_file_is_enough_and_subwords_are_reused(raw):
    (raw / "more.xx").unlink()
    first = config_of(raw, raw / "more")
    prepare(first)
    assert not SplitInfo.file(first.out, "mono_source").exists()
    again = config_of(raw, raw / "more", out=raw / "again", reuse=first.out, tokenizer=None, size=None)
    prepare(again)
    assert read_split(again.out, "mono_target", "xx") == read_split(first.out, "mono_target", "xx")


def test_what_cannot_be_is_refused(raw):
    with pytest.raises(InputError, match="--mono .*none: neither .*none.xx nor .yy exists"):
        prepare(config_of(raw, raw / "none"))
    with pytest.raises(InputError, match="needs a dictionary for both languages"):
        prepare(config_of(raw, raw / "more", joined_dictionary=False))
    plain = config_of(raw, out=raw / "plain")
    prepare(plain)
    with pytest.raises(InputError, match="prepared without it, and has no language tags"):
        prepare(config_of(raw, raw / "more", reuse=plain.out, tokenizer=None, size=None))
    (raw / "more.yy").write_text("a\x07b\n")
    with pytest.raises(InputError, match=r"more.yy:1: control character"):
        prepare(config_of(raw, raw / "more"))
