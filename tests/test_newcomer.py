"""The way of somebody who uses the package for the first time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, run, write_corpus
from test_training import SIZES, train

import fairseq_lasformer
from fairseq_lasformer.cli import main
from fairseq_lasformer.documents import read_corpus
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses, write_hypotheses
from fairseq_lasformer.evaluation.scores import score, table
from fairseq_lasformer.prepare import Plan, prepare, summary
from fairseq_lasformer.text import Settings


def python(code: str, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean | env, capture_output=True, text=True)
    return done.stdout.strip() + done.stderr.strip()


# --- N1


def test_threads_wait_briefly_unless_the_user_has_chosen():
    ask = "import fairseq_lasformer, os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    assert python(ask) == "1000 None"
    assert python(ask, OMP_WAIT_POLICY="ACTIVE") == "None ACTIVE"
    assert python(ask, GOMP_SPINCOUNT="7") == "7 None"
    # torch reads it when it is loaded: afterwards it would only mislead
    assert python("import torch; " + ask) == "None None"
    assert "export GOMP_SPINCOUNT" in (ROOT / "scripts/train.sh").read_text()


# --- N2 and N10


def test_every_option_can_be_looked_up(capsys):
    assert main(["options"]) == 0
    text = capsys.readouterr().out
    for option in ("--select-gradient", "--sparsity-threshold", "--moe-experts", "--delight", "--word-dropout"):
        assert option in text
    assert "--selection-weight (default: 0.01)" in text and "--encoder--name" not in text
    assert main(["options", "sparsity"]) == 0
    text = capsys.readouterr().out
    assert "--sparsity-step" in text and "--encoder-layers" not in text
    assert main(["options", "nonsense"]) == 1


def test_the_version_and_the_module_form():
    assert run("lasformer", "--version").stdout.strip() == f"fairseq_lasformer {fairseq_lasformer.__version__}"
    assert run("python", "-m", "fairseq_lasformer", "--version").stdout.startswith("fairseq_lasformer ")


@pytest.mark.parametrize("missing", ["torch", "fairseq"])
def test_without_torch_or_fairseq_one_line_says_what_to_install(tmp_path, missing):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
    program = Path(sys.executable).with_name("lasformer")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith(f"error: fairseq_lasformer needs {missing}") and "scripts/setup.sh" in done.stderr


@pytest.mark.slow
def test_the_wheel_holds_configurations_licence_and_demo(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*pip, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for end in ("configs/demo_lasformer.yaml", "scripts/train.sh", "data/demo/generate.py", "LICENSE", "ops/cpu.cpp"):
        assert any(name.endswith(end) for name in names), end


# --- N4 and N6


def test_training_shows_its_first_updates_and_saves_them(prepared, tmp_path):
    settings = {"MAX_TOKENS": "200", "UPDATE_FREQ": "1", "MAX_UPDATE": "9", "SAVE_EVERY": "3", "LOG_EVERY": "2"}
    done = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--select-dim", 8, **settings)
    assert len(re.findall(r"\| train_inner \| ", done.stdout)) == 4
    assert "train_inner" in (tmp_path / "train.log").read_text()
    assert [p.name for p in sorted(tmp_path.glob("checkpoint_*"))] == [
        "checkpoint_1_9.pt",
        "checkpoint_best.pt",
        "checkpoint_last.pt",
    ]
    again = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--select-dim", 8, **settings)
    assert "training has finished: 9 of 9" in again.stdout


def test_half_precision_without_a_gpu_is_one_line(prepared, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("scripts/train.sh", prepared, tmp_path, *SIZES, "--fp16", MAX_TOKENS="200", check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode != 0 and last.startswith("error: there is no GPU here") and "--cpu" in last


def test_translating_is_quiet_and_counts_its_parts(prepared, tmp_path, capsys):
    train(prepared, tmp_path, "--max-update", 1, "--disable-validation")
    checkpoint = tmp_path / "checkpoint_last.pt"
    one = ["--shards", 1, "--", "--cpu", "--beam", 1]
    done = run("lasformer", "generate", prepared, checkpoint, tmp_path / "out", *one)
    lines = [line for line in re.split(r"[\r\n]+", done.stderr) if line.strip()]
    assert all(line.startswith("translating test") or "CPU kernels" in line for line in lines), lines
    assert re.search(r"100%.*\b(\d+)/\1 ", lines[-1]) and " parts" in lines[-1]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "raw", "--format", "raw", *one)
    assert read_hypotheses(tmp_path / "raw", True, 9) == [
        [s for s in d if s] for d in read_hypotheses(tmp_path / "out", True)
    ]
    for options, message in (
        (["--beam", "2"], "options of fairseq-generate and of models go behind --"),
        (["--", "--gen-subset", "valid"], "--gen-subset: is decided by lasformer generate"),
        (["--split", "train"], "the examples of train overlap"),
        (["--split", "nothing"], "holds no split nothing"),
    ):
        try:
            assert main(["generate", *map(str, (prepared, checkpoint, tmp_path / "o", *options))]) == 1
        except SystemExit as e:
            assert e.code == 2
        assert message in capsys.readouterr().err


# --- N5 and N9


def test_a_reused_folder_decides_how_text_is_encoded(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    options = {"tokenizer": "none", "bpe": "sentencepiece", "limit": 77, "separator": "<sep>"}
    prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "first", size=80, workers=1, **options))
    second = Plan("yy", "xx", (), (), (prefix,), tmp_path / "second", reuse=tmp_path / "first", workers=1)
    prepare(second)
    settings = Settings.load(tmp_path / "second")
    assert {name: getattr(settings, name) for name in options} == options
    for name, value in (("tokenizer", "moses"), ("bpe", "subword-nmt"), ("separator", "<s2>"), ("size", 9)):
        plan = Plan("xx", "yy", (), (), (prefix,), tmp_path / name, reuse=tmp_path / "first", **{name: value})
        with pytest.raises(InputError, match=f"--{name} {value}: "):
            prepare(plan)
        assert not (tmp_path / name).exists()
    with pytest.raises(InputError, match="was prepared for xx-yy, not for xx-zz"):
        prepare(Plan("xx", "zz", (), (), (prefix,), tmp_path / "other", reuse=tmp_path / "first"))


def test_a_test_set_needs_no_reference(prepared, tmp_path):
    write_corpus(tmp_path, "letter", 3, seed=5)
    (tmp_path / "letter.yy").unlink()
    plan = Plan("xx", "yy", (), (), (str(tmp_path / "letter"),), tmp_path / "data", reuse=prepared, workers=1)
    done = prepare(plan)
    assert not done.splits[0].reference and "; no reference" in summary(plan, done)
    train(prepared, tmp_path, "--max-update", 1, "--disable-validation")
    run(
        "lasformer",
        "generate",
        plan.out,
        tmp_path / "checkpoint_last.pt",
        tmp_path / "out",
        "--shards",
        1,
        "--",
        "--cpu",
    )
    assert len(read_hypotheses(tmp_path / "out", allow_empty=True)) == 3
    with pytest.raises(InputError, match="train.yy: cannot be read"):
        write_corpus(tmp_path, "train", 3)
        (tmp_path / "train.yy").unlink()
        prepare(Plan("xx", "yy", (str(tmp_path / "train"),), (), (), tmp_path / "no", workers=1))


def test_text_of_windows_and_control_characters_can_be_cleaned(tmp_path):
    (tmp_path / "raw.xx").write_bytes(b"\xef\xbb\xbfa\tb\r\nc\r\n\r\nd\x07e\r\n" * 3)
    (tmp_path / "raw.yy").write_bytes(b"A B\nC\n\nD E\n" * 3)
    with pytest.raises(InputError, match=r"raw.xx:1: control character TAB.*, and in \d+ more lines; .*--clean"):
        read_corpus(tmp_path / "raw.xx", tmp_path / "raw.yy")
    found = read_corpus(tmp_path / "raw.xx", tmp_path / "raw.yy", clean=True)
    assert found.documents[0].source == ["a b", "c"] and found.documents[1].source[0] == "d e"
    # Windows' byte order mark stands before every file that was joined, too
    assert found.cleaned == 12
    plan = Plan("xx", "yy", (str(tmp_path / "raw"),), (), (), tmp_path / "out", "none", size=9, clean=True, workers=1)
    assert "control characters taken for spaces in 12 lines" in summary(plan, prepare(plan))


def test_the_summary_tells_what_to_mind_and_what_comes_next(tmp_path):
    train_set, dev = (str(write_corpus(tmp_path, n, 9, seed=s)) for s, n in enumerate(("train", "dev")))
    with open(tmp_path / "dev.xx", "a") as x, open(tmp_path / "dev.yy", "a") as y:
        for file in (x, y):
            file.write("\nöä üß\n" * 20)
    plan = Plan("xx", "yy", (train_set,), (dev,), (), tmp_path / "out", "none", workers=1)
    text = summary(plan, prepare(plan))
    assert re.search(r"valid: 29 documents.*<unk>: \d+\.\d% of xx, \d+\.\d% of yy", text)
    assert "note: 32,000 merges were asked for" in text and "try --size 500" in text
    assert "note: more than 1% of the tokens are unknown" in text
    assert text.splitlines()[-1] == f"next: scripts/train.sh {tmp_path / 'out'} CHECKPOINTS"
    assert re.search(r"dictionary: \d+ subwords, \d+ merges learned", text)


def test_a_boundary_that_moved_is_not_dropped_as_an_empty_pair(tmp_path):
    source = ["one", "two words", "three words here", "and four words here", "a fifth sentence is longer than all", "x"]
    for moved in (3, 4, 5):
        target = [s.upper() for s in source]
        left = [*source[:1], "", *source[1:]]
        right = [*target[:moved], "", *target[moved:]]
        (tmp_path / "c.xx").write_text("\n".join(left) + "\n")
        (tmp_path / "c.yy").write_text("\n".join(right) + "\n")
        with pytest.raises(InputError, match="c.xx:2: a document ends here, but not in"):
            read_corpus(tmp_path / "c.xx", tmp_path / "c.yy", drop_empty=True)
    # pairs that really lack a side, on either side of one document, are dropped and counted
    (tmp_path / "c.xx").write_text("\n".join([*source[:1], "", *source[1:]]) + "\n")
    (tmp_path / "c.yy").write_text(
        "\n".join([*(s.upper() for s in source[:1]), "EXTRA", *(s.upper() for s in source[1:5]), ""]) + "\n"
    )
    found = read_corpus(tmp_path / "c.xx", tmp_path / "c.yy", drop_empty=True)
    assert found.dropped == 2 and [s.upper() for s in found.documents[0].source] == found.documents[0].target


# --- N7 and s-BLEU


def test_hypotheses_are_read_in_both_forms(tmp_path):
    documents = [["a b", "c"], ["d"], ["e", "f", "g"]]
    for form in ("lines", "raw"):
        write_hypotheses(tmp_path / form, documents, form)
        assert read_hypotheses(tmp_path / form, n_documents=3) == documents
    assert (tmp_path / "lines").read_text() == "a b\tc\nd\ne\tf\tg\n"
    assert (tmp_path / "raw").read_text() == "a b\nc\n\nd\n\ne\nf\ng\n"
    (tmp_path / "one").write_text("a\nb\n")
    assert read_hypotheses(tmp_path / "one", n_documents=1) == [["a", "b"]]
    with pytest.raises(InputError, match="no hypothesis for document.s. 3.*as many documents as the reference"):
        read_hypotheses(tmp_path / "raw", n_documents=5)


def test_a_system_without_boundaries_has_no_sentence_score():
    references = [["one whole sentence alone"], ["two of the", "sentences here"], ["and", "three here", "to be sure"]]
    joined = [[" ".join(d)] for d in references]
    scores = score(joined, references)
    assert scores["s_bleu"] is None and scores["s_bleu_documents"] == 0 and scores["d_bleu"] > 99
    assert "no s-BLEU, the hypotheses have no sentence boundaries" in table({"joined": scores})
    assert score(references, references)["s_bleu_documents"] == 3
    assert score(references[:1], references[:1])["s_bleu_documents"] == 1


# --- N11


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "DATA", "FOLDER", "o"], "is a folder; name the checkpoint in it"),
        (["cost", "FOLDER"], "is a folder; name the checkpoint in it"),
        (["cost", "TEXT"], "refused, not a checkpoint of torch"),
        (["score", "TEXT", "TEXT", "--tokenize", "foo"], "--tokenize foo: expected one of"),
        (["score", "--bootstrap", "TEXT", "TEXT"], "--bootstrap compares systems"),
        (["contrast", "FOLDER/checkpoint_last.pt", "set", "--cuda"], "--cuda: there is no GPU here"),
        (["cost", "FOLDER/checkpoint_last.pt", "--lengths", "1" + "0" * 400], "is not a number of tokens"),
        (["params", "--", "--encoder-layers", "-3"], "--encoder-layers -3: at least 1"),
        (["params", "--", "--encoder-attention-heads", "0"], "at least 1 is needed"),
        (["params", "--arch", "lasformer_delight", "--", "--delight-width", "nan"], "--delight-width at least 1"),
        (["params", "--", "--dropout", "nan"], "--dropout nan: expected a probability"),
        (["params", "--", "--help-me"], "--help-me: not an option of the model; lasformer options"),
        (["prepare", "o", "-s", "en", "-t", "en", "--train", "TEXT"], "the two languages must have different names"),
        (["prepare", "o", "-s", "x", "-t", "y", "--train", "TEXT", "--workers", "0"], "--workers 0"),
        (["prepare", "o:p", "-s", "x", "-t", "y", "--train", "TEXT"], "takes the colon for the end of a path"),
        (["prepare", "o,p", "-s", "x", "-t", "y", "--train", "TEXT", "--size", "0"], "--size 0: at least one merge"),
        (["ablate", "CONFIG", "--table", "7", "--reference", "TEXT", "--submit", ""], "names no command"),
        (["ablate", "CONFIG", "--table", "7", "--reference", "TEXT", "--submit", '"x'], '--submit "x'),
    ],
)
def test_mistakes_are_told_in_one_line(prepared, tmp_path, monkeypatch, capsys, arguments, message):
    import torch

    if "--cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one line of text\n")
    for language in ("x", "y"):
        (tmp_path / f"text.{language}").write_text("ab cd\n")
    folder = tmp_path / "folder"
    train(prepared, folder, "--max-update", 1, "--disable-validation") if "FOLDER" in " ".join(arguments) else None
    places = {"DATA": prepared, "FOLDER": folder, "TEXT": "text", "CONFIG": ROOT / "configs/demo_lasformer.yaml"}
    words = [re.sub("DATA|FOLDER|TEXT|CONFIG", lambda m: str(places[m[0]]), a) for a in arguments]
    assert main(words) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and message in error
