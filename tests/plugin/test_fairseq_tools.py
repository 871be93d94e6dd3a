"""fairseq's own tools on prepared data."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, read_split, run

from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.text.documents import read_documents


def interactive(prepared, checkpoint, lines: list[str], *options: object, check: bool = True) -> list[str] | str:
    """Return what fairseq-interactive prints for lines of standard input: the translations, in order."""
    command = [
        Path(sys.executable).with_name("fairseq-interactive"),
        prepared,
        "--user-dir",
        ROOT / "fairseq_lasformer",
    ]
    command += ["--task", "document_translation", "--cpu", "--path", checkpoint, "--beam", 2, *options]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, cwd=ROOT)
    if not check:
        return done.stderr
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(re.findall(r"^D-(\d+)\t[^\t]*\t?(.*)$", done.stdout, re.M))
    return [found[str(i)] for i in range(len(lines))]


@pytest.mark.command
def test_interactive_translates_documents_as_generate_does(trained, prepared, tmp_path):
    checkpoint = trained[0] / "checkpoint_last.pt"
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "out", "--shards", 1, "--", "--cpu", "--beam", 2)
    info = SplitInfo.load(prepared, "test")
    raw = read_documents(prepared.parent / "raw" / "test.xx")
    whole = [i for i in range(len(raw)) if sum(d == i for d, _, _ in info.examples) == 1]
    expected = [(tmp_path / "out").read_text().split("\n")[i] for i in whole]
    lines = ["\t".join(raw[i]) for i in whole]
    # a blank line between two documents has a blank translation, not an invented one
    seen = interactive(prepared, checkpoint, [lines[0], "", *lines[1:]])
    assert seen == [expected[0], "", *expected[1:]]
    # the separator between two sentences does as well as a tab
    assert interactive(prepared, checkpoint, [" <sep> ".join(raw[whole[0]])]) == expected[:1]
    told = interactive(prepared, checkpoint, ["w1"], "--bpe", "subword_nmt", check=False)
    assert told.strip().splitlines()[-1].startswith("error: --bpe subword_nmt: the prepared data has its own tokeniser")


REAL = ROOT.parent / "shared" / "data" / "en-de"


@pytest.mark.command
@pytest.mark.skipif(not REAL.exists(), reason="the real test sets are not at ../shared/data/en-de")
def test_fairseqs_tools_see_the_tokens_of_the_training_data(tmp_path):
    """Token for token on two real test sets, where fairseq's own Moses form is wrong in every second line."""

    from fairseq_lasformer.data.prepare import PrepareConfig, prepare
    from fairseq_lasformer.plugin.task import DocumentTranslationTask
    from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

    tests = ("news16.test", "ted17.test")
    sets = tuple(str(REAL / name) for name in tests)
    for separator in ("", "<sep>"):
        out = tmp_path / f"data{separator}"
        train_set, cache = (str(REAL / "gnomeadmin"),), tmp_path / "text"
        prepare(
            PrepareConfig("en", "de", train_set, (), sets, out, size=500, limit=20000, separator=separator, text=cache)
        )
        cfg = DocumentTranslationConfig(data=str(out), source_lang="en", target_lang="de")
        task = DocumentTranslationTask.setup_task(cfg)
        codec, bpe = task.build_tokenizer(None), task.build_bpe(None)
        assert bpe is None
        for split, name in zip(("test", "test1"), tests):
            documents = read_documents(REAL / f"{name}.en")
            binarised = read_split(out, split, "en", "en-de")
            assert len(binarised) == len(documents)
            lines = ["\t".join(document) for document in documents]
            tokens, _ = task.get_interactive_tokens_and_lengths(lines, codec.encode)
            assert [task.src_dict.string(t) for t in tokens] == binarised
