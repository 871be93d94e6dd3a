"""Translation of a split: complete, in order, resumable, quiet."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from helpers import run, train

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.text.documents import read_documents
from fairseq_lasformer.text.hypotheses import NOTHING, read_hypotheses


@pytest.mark.command
def test_generation_is_whole_resumable_and_in_order(trained, prepared, tmp_path):
    checkpoint = trained[0] / "checkpoint_last.pt"
    options = ["--", "--cpu", "--beam", "3"]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "one", "--shards", 1, *options)
    # a run that was killed after its first shard: the rest is done, the first is not done again
    parts = tmp_path / "three.parts"
    code = """
import os, sys, fairseq_lasformer.jobs.generate as g
from pathlib import Path
from fairseq_lasformer.executors import Processes
real = Processes.map
def once(*args):
    for _ in real(*args):
        os._exit(9)
Processes.map = once
g.generate(*map(Path, sys.argv[1:4]), shards=3, options=["--cpu", "--beam", "3"])
"""
    assert run("python", "-c", code, prepared, checkpoint, tmp_path / "three", check=False).returncode == 9
    assert not (tmp_path / "three").exists() and {p.name for p in parts.iterdir() if p.suffix != ".tmp"} == {
        *("0", "0.err", "progress.jsonl")
    }
    whole = (parts / "0").read_text()
    resume = ["lasformer", "generate", prepared, checkpoint, tmp_path / "three", "--shards", 3, "--jobs", 2, *options]
    # the content of the first shard's file is used as it is, so the first shard was not done again
    mine = re.sub(r'^({"document": \d+, "lines": \[\[")[^"]*"', r'\1UNTOUCHED"', whole, count=1, flags=re.M)
    assert mine != whole
    (parts / "0").write_text(mine)
    saved = {p.name: p.read_bytes() for p in parts.iterdir()}
    done = run(*resume)
    assert "9 documents" in done.stdout and not parts.exists()
    assert (tmp_path / "three").read_text().count("UNTOUCHED") == 1
    parts.mkdir()
    for name, content in (saved | {"0": whole.encode()}).items():
        (parts / name).write_bytes(content)
    run(*resume)
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()
    # other options: nothing of it may be reused
    parts.mkdir()
    for name, content in saved.items():
        (parts / name).write_bytes(content)
    run(*resume, "--lenpen", 0.5)
    assert "UNTOUCHED" not in (tmp_path / "three").read_text()
    # more shards than batches
    one_batch = ["--max-tokens", 100000, *options[1:]]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "many", "--shards", 5, "--jobs", 2, "--", *one_batch)
    assert len((tmp_path / "many").read_text().splitlines()) == 9


def test_documents_are_not_cut_at_fairseqs_200_tokens(trained, prepared):
    """Without a given length, a document gets what it needs; a given length is kept."""
    from fairseq_lasformer.plugin.model import LasformerModel

    model = LasformerModel.from_pretrained(trained[0])
    for asked, expected in (({}, (1.5, 50)), ({"max_len_b": 30}, (0, 30)), ({"max_len_a": 2.0}, (2.0, 200))):
        args = SimpleNamespace(**{"beam": 1, "max_len_a": 0, "max_len_b": 200, **asked})
        generator = model.task.build_generator(model.models, args)
        assert (generator.max_len_a, generator.max_len_b) == expected
    with pytest.raises(InputError, match="--print-alignment: this model returns no attention weights"):
        model.task.build_generator(model.models, SimpleNamespace(print_alignment="hard"))
    with pytest.raises(InputError, match="--lenpen nan"):
        model.task.build_generator(model.models, SimpleNamespace(lenpen=float("nan")))
    with pytest.raises(InputError, match="--diverse-beam-groups 4: the beam, 6, is not a multiple of it"):
        model.task.build_generator(model.models, SimpleNamespace(beam=6, diverse_beam_groups=4))


@pytest.mark.command
def test_translating_is_quiet_and_counts_its_parts(prepared, tmp_path, capsys):
    train(prepared, tmp_path, "--max-update", 1, "--disable-validation")
    checkpoint = tmp_path / "checkpoint_last.pt"
    one = ["--shards", 1, "--", "--cpu", "--beam", 1]
    done = run("lasformer", "generate", prepared, checkpoint, tmp_path / "out", *one)
    lines = [line for line in re.split(r"[\r\n]+", done.stderr) if line.strip()]
    assert all(line.startswith("translating test") or "CPU kernels" in line for line in lines), lines
    assert re.search(r"100%.*\b(\d+)/\1 ", lines[-1]) and " documents" in lines[-1]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "raw", "--layout", "raw", *one)
    whole = read_hypotheses(tmp_path / "out", True)
    assert read_hypotheses(tmp_path / "raw", True, 9) == [[s or NOTHING for s in d] for d in whole]
    assert [len(d) for d in whole] == [len(d) for d in read_documents(prepared.parent / "raw" / "test.xx")]
    for options, message in (
        (["--lenpen", "2"], "further options of fairseq go after --"),
        (["--device", "tpu"], "--device tpu: expected cpu, cuda or cuda:N"),
        (["--beam", "0"], "--beam 0: expected at least 1"),
        (["--", "--gen-subset", "valid"], "--gen-subset: is set by lasformer generate"),
        (["--", "--nbest", "3"], "--nbest: lasformer generate writes one translation per document"),
        (["--split", "train"], "the examples of train overlap"),
        (["--split", "nothing"], "contains no split nothing"),
    ):
        try:
            assert main(["generate", *map(str, (prepared, checkpoint, tmp_path / "o", *options))]) == 1
        except SystemExit as e:
            assert e.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.command
def test_a_prefix_of_the_target_can_be_forced(trained, prepared, tmp_path):
    """fairseq-generate's --prefix-size; as long as the target, nothing is left to search for."""
    options = ["--layout", "raw", "--", "--cpu", "--beam", 2, "--prefix-size", 100, "--max-len-b", 100]
    run("lasformer", "generate", prepared, trained[0] / "checkpoint_last.pt", tmp_path / "out", *options)
    expected = read_documents(prepared.parent / "raw" / "test.yy")
    assert read_documents(tmp_path / "out") == expected


@pytest.mark.command
def test_shards_that_are_started_one_by_one_are_the_whole(trained, prepared, tmp_path, capsys):
    checkpoint = trained[0] / "checkpoint_last.pt"
    words = ["generate", str(prepared), str(checkpoint)]
    options = ["--", "--cpu", "--beam", "2"]
    assert main([*words, str(tmp_path / "whole"), "--shards", "1", *options]) == 0
    out = tmp_path / "out"
    assert main([*words, str(out), "--shard", "2/3", *options]) == 0
    assert "shard 2/3 is done" in capsys.readouterr().out and not out.exists()
    before = (tmp_path / "out.parts/1").stat().st_mtime_ns
    assert main([*words, str(out), "--shard", "2/3", *options]) == 0  # a restarted one does nothing twice
    assert (tmp_path / "out.parts/1").stat().st_mtime_ns == before
    assert main([*words, str(out), "--shard", "1/3", *options]) == 0
    assert main([*words, str(out), "--shard", "3/3", *options]) == 0
    assert "documents" in capsys.readouterr().out.splitlines()[-1]
    assert out.read_bytes() == (tmp_path / "whole").read_bytes() and not (tmp_path / "out.parts").exists()
    # nor does one restarted after the end, unless the translation is not the one that they made
    done = out.stat().st_mtime_ns
    assert main([*words, str(out), "--shard", "1/3", *options]) == 0
    assert out.stat().st_mtime_ns == done and not (tmp_path / "out.parts").exists()
    out.write_text("another\n")
    assert main([*words, str(out), "--shard", "1/3", *options]) == 0 and (tmp_path / "out.parts/0").exists()
    assert main([*words, str(out), "--shard", "4/3", *options]) == 1
    assert "expected I/N" in capsys.readouterr().err


@pytest.mark.command
def test_documents_are_translated_together_unless_shards_are_given(trained, prepared, tmp_path, monkeypatch):
    """In two groups, so that two workers have work; in as many as there are shards; the translation is the same."""
    from fairseq_lasformer.jobs import generate as jobs

    asked, real, written = [], jobs.ShardTranslator, {}
    monkeypatch.setattr(
        jobs, "ShardTranslator", lambda arguments, *more: asked.append(arguments) or real(arguments, *more)
    )
    for shards, together in ((None, 5), (1, 9), (3, 3)):
        out = tmp_path / f"out{shards}"
        jobs.generate(prepared, trained[0] / "checkpoint_last.pt", out, shards=shards, options=("--cpu",))
        assert asked[-1][asked[-1].index("--batch-size") + 1] == str(together)
        written[shards] = out.read_bytes()
    assert len(set(written.values())) == 1 and written[1].count(b"\n") == 9
