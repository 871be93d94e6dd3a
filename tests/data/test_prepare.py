"""Preparation on real files, as a user runs it: counts, resumption, refusals that leave no files."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers import SPLITS, read_split, run, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig, fingerprint
from fairseq_lasformer.data.subwords import DataConfig, SubwordCodec, tokenize
from fairseq_lasformer.text.documents import read_corpus, resolutions


def test_no_sentence_is_lost_on_the_way_to_binarised_data(prepared):
    raw = prepared.parent / "raw"
    codec = SubwordCodec(prepared, "none", "subword-nmt")
    for split, n in SPLITS.items():
        corpus = read_corpus(raw / f"{split}.xx", raw / f"{split}.yy")
        info = SplitInfo.load(prepared, split)
        assert (info.documents, info.sentences, info.dropped) == (n, corpus.sentences, 0)
        for side, language in enumerate(("xx", "yy")):
            lines = read_split(prepared, split, language)
            assert len(lines) == info.n_examples
            decoded = [[codec.decode(s, language) for s in line.split("<sep>")] for line in lines]
            if split == "train":
                assert sum(len(d) for d in decoded) > corpus.sentences
                continue
            joined = [[] for _ in range(n)]
            for (document, _, _), sentences in zip(info.examples, decoded):
                joined[document] += sentences
            assert joined == [d[side] for d in corpus.documents]
    assert SplitInfo.load(prepared, "test").n_cut > 0
    assert all(max(SplitInfo.load(prepared, s).longest) <= 25 for s in ("train", "valid"))


def test_the_mixture_holds_every_sentence_once_a_resolution(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 7, seed=3))
    infos = {}
    for how in ("mixture", "sentences", "documents"):
        config = PrepareConfig(
            "xx", "yy", (prefix,), (), (), tmp_path / how, "none", size=100, resolutions=how, workers=1
        )
        infos[how] = prepare(config).splits[0]
    lengths = [len(d.source) for d in read_corpus(prefix + ".xx", prefix + ".yy").documents]
    assert infos["documents"].n_examples == 7 and infos["sentences"].n_examples == sum(lengths)
    assert infos["mixture"].n_examples == sum(-(-n // size) for n in lengths for size in resolutions(n))


def test_a_finished_run_is_taken_up_and_another_one_refused(tmp_path, capfd):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    config = PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1)
    first = prepare(config)
    stamp = (config.out / "dict.xx.txt").stat().st_mtime_ns
    assert prepare(config) == first and (config.out / "dict.xx.txt").stat().st_mtime_ns == stamp
    other = PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=60, workers=1)
    with pytest.raises(InputError, match=r"\(size was 50, is 60\); .+--overwrite"):
        prepare(other)
    assert prepare(other, overwrite=True).splits[0].n_examples == first.splits[0].n_examples
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    with pytest.raises(InputError, match="choose another folder"):
        prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "mine", "none", workers=1), overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    config = PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1)
    import fairseq_lasformer.data.prepare as module

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "binarise", die)
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    assert not (config.out / "settings.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr(module, "transform", die)  # all of that is on disk already
    prepare(config)
    assert DataConfig.load(config.out).fingerprint == fingerprint(config.inputs(config.settings()))


def test_reused_data_shares_subwords_and_dictionary(prepared, tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 4, seed=9))
    config = PrepareConfig("xx", "yy", (), (), (prefix,), tmp_path / "out", "none", reuse=prepared, workers=1, limit=30)
    assert prepare(config).splits[0].documents == 4
    for name in ("bpe.codes", "dict.xx.txt", "dict.yy.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (prepared / name).read_bytes()


def test_kept_text_spares_another_preparation_the_encoding_and_changes_nothing(tmp_path, monkeypatch):
    import fairseq_lasformer.data.prepare as module

    prefix, kept = str(write_corpus(tmp_path, "raw", 5)), tmp_path / "text"
    first = PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "first", "none", size=50, workers=1, text=kept)
    prepare(first)

    def sentences(name: str, **options) -> PrepareConfig:
        return PrepareConfig(
            *("xx", "yy", (prefix,), (), (), tmp_path / name),
            resolutions="sentences",
            reuse=first.out,
            workers=1,
            **options,
        )

    prepare(sentences("alone"))
    monkeypatch.setattr(module, "transform", None)  # nothing left to do
    prepare(sentences("second", text=kept))
    for language in ("xx", "yy"):
        name = f"train.xx-yy.{language}.bin"
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_kept_text_of_other_subwords_is_not_taken(tmp_path):
    prefix, kept = str(write_corpus(tmp_path, "raw", 5)), tmp_path / "text"

    def settings(name: str, size: int, **options) -> PrepareConfig:
        return PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / name, "none", size=size, workers=1, **options)

    prepare(settings("large", 50, text=kept))
    prepare(settings("small", 10, text=kept))
    prepare(settings("alone", 10))
    for language in ("xx", "yy"):
        small, alone, large = (read_split(tmp_path / name, "train", language) for name in ("small", "alone", "large"))
        assert small == alone != large


def test_no_reference_decides_how_a_test_document_is_cut(tmp_path):
    """Its reference is three times as long as the limit; as training data the same document is cut."""
    (tmp_path / "raw.xx").write_text("ab ab\n" * 6)
    (tmp_path / "raw.yy").write_text("AB AB AB AB AB AB AB AB AB AB\n" * 6)
    prefix = (str(tmp_path / "raw"),)
    config = PrepareConfig("xx", "yy", prefix, prefix, prefix, tmp_path / "out", "none", size=500, limit=20, workers=1)
    found = {split.name: split for split in prepare(config).splits}
    assert (found["test"].n_examples, found["test"].n_cut) == (1, 0)
    assert found["valid"].n_examples > 1 and found["valid"].n_cut == 1
    assert found["test"].longest[1] > 50


def test_a_sentence_beyond_the_limit_is_refused_with_its_line(tmp_path):
    (tmp_path / "raw.xx").write_text("ab ab\n\nc\n" + "d " * 30 + "\n")
    (tmp_path / "raw.yy").write_text("ab ab\n\nc\nd\n")
    config = PrepareConfig(
        "xx", "yy", (str(tmp_path / "raw"),), (), (), tmp_path / "out", "none", size=5, limit=20, workers=1
    )
    with pytest.raises(InputError, match="raw.xx:4: the sentence has 31 tokens.*limit of 20"):
        prepare(config)
    assert not list((tmp_path / "out").glob("train.*")) and not (tmp_path / "out" / "settings.json").exists()


def test_bad_input_on_the_command_line_is_one_line_and_exit_code_one(tmp_path):
    write_corpus(tmp_path, "raw", 3)
    with open(tmp_path / "raw.yy", "a") as f:
        f.write("one more\n")
    names = {"SRC": "xx", "TGT": "yy", "TRAIN": str(tmp_path / "raw")}
    done = run("scripts/preprocess.sh", tmp_path / "out", check=False, **names)
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    errors = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
    assert len(errors) == 1 and errors[0].startswith("error: ") and "raw.yy:" in errors[0]


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece"])
def test_text_survives_encoding_and_decoding(tmp_path, bpe):
    from fairseq_lasformer.data.subwords import learn_subwords, subword_model

    text = ["Mr. Smith didn't buy the co-chaired car, did he?", 'He said: "No (not yet)."'] * 20
    learn_subwords(subword_model(tmp_path, bpe), [tokenize(s, "en", "moses") for s in text], bpe, 80)
    codec = SubwordCodec(tmp_path, "moses", bpe)
    for sentence in text[:2]:
        assert codec.decode(codec.encode(sentence, "en"), "en") == sentence


def test_chinese_through_sentencepiece(tmp_path):
    (tmp_path / "raw.zh").write_text("我们今天去学校。\n你好吗？\n\n他昨天来了。\n" * 30)
    (tmp_path / "raw.en").write_text("We go to school today.\nHow are you?\n\nHe came yesterday.\n" * 30)
    raw = str(tmp_path / "raw")
    config = PrepareConfig(
        "zh", "en", (raw,), (), (raw,), tmp_path / "out", "none", "sentencepiece", size=90, workers=1
    )
    train, test = prepare(config).splits
    assert train.sentences == test.sentences == 90 and train.documents == 31
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["bpe"] == "sentencepiece"
    codec = SubwordCodec(config.out, "none", "sentencepiece")
    assert codec.decode(codec.encode("你好吗？", "zh"), "zh") == "你好吗？"


def test_data_whose_examples_begin_with_a_memory_is_refused(prepared, tmp_path):
    data = shutil.copytree(prepared, tmp_path / "data")
    said = json.loads((data / "settings.json").read_text())
    (data / "settings.json").write_text(json.dumps(said | {"memory_tokens": 0}))  # as earlier versions write it
    assert DataConfig.load(data) == DataConfig.load(prepared)
    (data / "settings.json").write_text(json.dumps(said | {"memory_tokens": 256}))
    with pytest.raises(InputError, match="settings.json: damaged .memory_tokens is of versions up to"):
        DataConfig.load(data)
