"""Configuration files of strangers: one line each."""

from __future__ import annotations

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.experiments.run_config import RunConfig
from fairseq_lasformer.experiments.yaml_file import read_yaml

HEAD = "source: en\ntarget: de\ntrain: small\nout: o\n"
LAUGHS = ["&a0 [x,x,x,x,x,x,x,x,x,x]", *(f"&a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
HOSTILE = {
    "aliases": (f"{HEAD}fairseq: [{', '.join(LAUGHS)}]\n", "more than 10,000 names and values"),
    "aliases of names": (
        f"{HEAD}training: {{{', '.join(f'a{i}: {a}' for i, a in enumerate(LAUGHS))}}}\n",
        "more than 10,000",
    ),
    "a loop": (f"{HEAD}fairseq: &a [*a]\n", "more than 10,000 names and values"),
    "brackets": (f"{HEAD}fairseq: {'[' * 5000}{']' * 5000}\n", "too deep"),
    "maps": (f"{HEAD}training: {'{a: ' * 3000}1{'}' * 3000}\n", "too deep"),
    "digits": (f"{HEAD}training: {{max_update: {'9' * 5000}}}\n", "not YAML"),
    "a zero byte": (HEAD.replace("out: o", 'out: "o\\0"'), "contains a control character"),
    "an escape": (HEAD.replace("out: o", 'out: "o\\x1b]0;"'), "contains a control character"),
    "a surrogate": (HEAD.replace("out: o", 'out: "o\\ud800"'), ""),
    "nested words": (f"{HEAD}fairseq: [[--cpu]]\n", "expected a list of words"),
    "no word": (f"{HEAD}fairseq: [null]\n", "expected a list of words"),
    "Norwegian": (HEAD.replace("source: en", "source: no\nbaseline: false"), "source: expected a word (in quotes"),
    "a number": (HEAD.replace("out: o", "out: 5"), "out: expected a word"),
    "a list": (HEAD.replace("source: en", "source: [en]"), "source: expected a word"),
    "a start": (f"{HEAD}systems: {{a: {{start: [b]}}}}\n", "start: expected the name of a system"),
    "size": (f"{HEAD}# {'x' * (1 << 20)}\n", "larger than 1 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configurations_are_refused_in_one_line(name, tmp_path, capsys):
    text, message = HOSTILE[name]
    (tmp_path / "c.yaml").write_text(text)
    assert main(["run", str(tmp_path / "c.yaml")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and message in said and "c.yaml: " in said and "\x1b" not in said


def test_a_device_is_no_configuration(tmp_path):
    (tmp_path / "c.yaml").symlink_to("/dev/zero")
    for name in ("c.yaml", "none.yaml", ""):
        with pytest.raises(InputError, match="no such file; expected a configuration"):
            read_yaml(tmp_path / name)


def test_a_configuration_is_read(tmp_path):
    (tmp_path / "c.yaml").write_text(f"{HEAD}fairseq: [--clip-norm, 1.0, --own-lines]\n")
    assert RunConfig.read(tmp_path / "c.yaml").fairseq == ("--clip-norm", "1.0", "--own-lines")
