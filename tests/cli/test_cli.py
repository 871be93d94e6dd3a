"""The command line: options, versions, one-line errors."""

from __future__ import annotations

import json
import re

import pytest
import torch
from helpers import run

import fairseq_lasformer
from fairseq_lasformer.base.shared_options import FairseqDecoding
from fairseq_lasformer.cli.main import COMMANDS, GONE, RETIRED, main
from fairseq_lasformer.documents.hub import load_model


def test_the_version_and_the_module_form():
    assert run("lasformer", "--version").stdout.strip() == f"fairseq_lasformer {fairseq_lasformer.__version__}"
    assert run("python", "-m", "fairseq_lasformer", "--version").stdout.startswith("fairseq_lasformer ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["score", "none.de", "h"], "none.de: cannot be read"),
        (["info", "none.pt"], "none.pt: no such file or folder"),
        (["info", "none.pt", "--lengths", "a,b"], "--lengths a,b"),
        (["average", "o", "none.pt"], "none.pt: no such checkpoint"),
        (["generate", "nowhere", "none.pt", "o"], "was not prepared"),
        (["prepare", "o", "-s", "a", "-t", "b"], "nothing to prepare"),
    ],
)
def test_bad_arguments_end_in_one_line(arguments, message, capsys):
    from fairseq_lasformer.cli.main import main

    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith("error: ") and "\n" not in error


def test_missing_hypotheses_are_named(tmp_path, capsys):
    from fairseq_lasformer.cli.main import main

    (tmp_path / "ref").write_text("a b\n\nc d\n\ne f\n")
    (tmp_path / "hyp").write_text("a b\n")
    assert main(["score", str(tmp_path / "ref"), str(tmp_path / "hyp")]) == 1
    assert "no hypothesis for document(s) 2 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "option"), [(name, option) for name, its in RETIRED.items() for option in its])
def test_options_that_went_say_what_to_do_instead(command, option, capsys):
    needed = {
        "translate": ["m"],
        "generate": ["d", "c", "o"],
        "info": ["c"],
        "lasformer": [],
        "score": ["r", "h"],
        "report": ["r", "--document", "d"],
        "prepare": ["o", "-s", "en", "-t", "de", "--train", "p"],
        "explain": ["m", "f"],
        "ablate": ["c", "--table", "3", "--reference", "r"],
        "distil": ["t", "d", "s"],
        "upcycle": ["c", "d", "o"],
        "memory": ["find", "m"],
    }.get(command, ["x"])
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), *needed, option])
    told = f"{option} no longer exists: {RETIRED[command][option]}"
    assert ended.value.code == 2 and told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", GONE)
def test_commands_that_went_say_what_to_do_instead(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "x", "--y"])
    assert ended.value.code == 2 and f"{command}: no longer exists; {GONE[command]}" in capsys.readouterr().err


def test_device_beam_and_tokens_are_the_same_options_everywhere(capsys):
    meant = {}
    for command in ("translate", "serve", "generate", "ablate", "score contrast", "report"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for option in (
            "--device DEVICE cpu, cuda,",
            "--beam BEAM hypotheses per",
            "--max-tokens MAX_TOKENS tokens computed together",
        ):
            name = option.split()[0]
            assert (name in text) == (option in text), (command, option)
            meant.setdefault(name, []).append(name in text)
    assert all(meant["--device"]) and sum(meant["--beam"]) == 5 and sum(meant["--max-tokens"]) == 5


def test_the_device_of_generate_is_fairseqs():
    options = FairseqDecoding(device="cuda:1", beam=3, options=("--beam", "7"))
    assert options.fairseqs_options() == ["--device-id", "1", "--beam", "3", "--beam", "7"]
    assert FairseqDecoding(device="cpu", max_tokens=900).fairseqs_options() == ["--cpu", "--max-tokens", "900"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("tranlsate", "translate"), ("averge", "average"), ("contrasts", "score contrast")],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main([typed, "file"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f"there is no command {typed}; did you mean {meant}?" in said
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "did you mean" not in capsys.readouterr().err


def test_the_overview_has_every_command_under_a_heading(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    headings = re.findall(r"^([a-z ]+):$", text, re.M)
    assert headings == ["options", "translate", "train", "measure", "models", "the paper", "this installation"]
    commands = text[text.index("translate:") :]
    assert re.findall(r"^  ([a-z-]+(?: [a-z-]+)?)  ", commands, re.M) == [*COMMANDS]


def test_doctor_shows_what_is_here(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and all(line.startswith(("ok ", " ! ")) for line in lines)
    found = {line[4:].split()[0] for line in lines}
    assert found >= {"Python", "machine", "packages", "torch", "GPU", "disk"}
    assert torch.__version__ in "\n".join(lines)


def test_info_counts_what_a_checkpoint_holds(trained_folder, tmp_path, capsys):
    checkpoint = trained_folder / "checkpoint_last.pt"
    assert main(["info", str(trained_folder), "--lengths", "512"]) == 0
    told = capsys.readouterr().out
    model = load_model(checkpoint, device="cpu").models[0]
    total = sum(p.numel() for p in model.parameters())
    assert f"total{total:>29,}" in told and "ratio" in told
    state = torch.load(checkpoint, weights_only=False)
    state["model"] = {name: weight.clone() for name, weight in state["model"].items()}  # shared tables are copies now
    torch.save(state, tmp_path / "copies.pt")
    assert main(["info", str(tmp_path / "copies.pt"), "--lengths", "512"]) == 0
    assert f"total{total:>29,}" in capsys.readouterr().out


@pytest.mark.command
def test_explain_says_which_line_decided_what(trained_folder, tmp_path):
    """A table and JSON, of all sentences or of some, of the model's translation or of a given one."""
    (tmp_path / "a.txt").write_text("w1 w2 w3.\n\nw4 w5. w6 w7.\n")
    (tmp_path / "b.txt").write_text("W1 W2 W3.\n\nW4 W5. W6 W7.\n")
    model = load_model(trained_folder)
    command = ["lasformer", "explain", trained_folder, tmp_path / "a.txt"]
    done = run(*command, "--given", tmp_path / "b.txt", "--json", tmp_path / "out.json")
    expected = model.explain("w1 w2 w3.\nw4 w5.\nw6 w7.", "W1 W2 W3.\nW4 W5.\nW6 W7.")
    assert done.stdout == expected.table() + "\n"
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(expected.as_dict()))
    some = run(*command, "--given", tmp_path / "b.txt", "--line", 3).stdout
    assert some == model.explain("w1 w2 w3.\nw4 w5.\nw6 w7.", "W1 W2 W3.\nW4 W5.\nW6 W7.", [3]).table() + "\n"
    for more, message in ((("--line", 4), "--line 4: "), (("--from", "docx"), "not a .docx file")):
        refused = run(*command, *more, check=False)
        assert refused.returncode == 1 and message in refused.stderr and "Traceback" not in refused.stderr
