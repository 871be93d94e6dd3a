"""Options, declared once: parser, configuration files and keys know the same ones."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from fairseq_lasformer.apps.files.translate_options import Translate
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import (
    NOTHING,
    SPEED,
    TEXT,
    Option,
    argument,
    following,
    given,
    option,
    options_of,
    part,
    read_section,
    text_settings,
)
from fairseq_lasformer.cli.main import COMMANDS, main
from fairseq_lasformer.cli.parser import declare, make
from fairseq_lasformer.data.prepare_config import DEFAULTS, PrepareConfig, fingerprint
from fairseq_lasformer.experiments.settings import TrainOptions


@dataclass(frozen=True, kw_only=True)
class Base:
    width: int = option(3, "of something", minimum=1, maximum=9)
    speed: float = option(0.5, above=0, changes=SPEED)


@dataclass(frozen=True, kw_only=True)
class Everything(Base):
    place: Path = argument("a file")
    names: tuple[str, ...] = argument("names", ())
    needed: str = option(help="needed", short="-n")
    sets: tuple[str, ...] = option((), append=True, metavar="K=V")
    both: bool | None = option(None, "or not")
    plain: bool = option(False, changes=NOTHING)
    samples: int | None = option(None, bare=7)
    kind: str = option("a", "kind", flag="--from", choices=("a", "b"))
    more: tuple[str, ...] = following("After -- : more.")
    named: tuple[str, ...] = given()


def parsed(*words: str) -> Everything:
    parser = argparse.ArgumentParser()
    declare(parser, Everything)
    end = words.index("--") if "--" in words else len(words)
    return make(Everything, vars(parser.parse_intermixed_args(words[:end])), words[end + 1 :])


def test_a_parser_reads_what_a_class_declares():
    assert parsed("f", "-n", "x") == Everything(place=Path("f"), needed="x", named=("place", "needed"))
    words = ["f", "--needed", "x", "one", "--sets", "a=1", "--sets", "b=2", "--no-both", "--plain", "--from", "b"]
    found = parsed(*words, "two", "--samples", "--width", "9", "--", "--lenpen", "1")
    assert (found.place, found.names, found.sets, found.both) == (Path("f"), ("one", "two"), ("a=1", "b=2"), False)
    assert (found.plain, found.kind, found.samples, found.width, found.more) == (True, "b", 7, 9, ("--lenpen", "1"))
    assert part(Base, found) == Base(width=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "0"], "--width 0: expected at least 1 and at most 9"),
        (["--width", "10"], "--width 10: expected at least 1 and at most 9"),
        (["--speed", "0"], "--speed 0.0: expected more than 0"),
        (["--speed", "nan"], "--speed nan: expected more than 0"),
    ],
)
def test_numbers_beyond_their_limits_are_refused(words, message):
    with pytest.raises(InputError) as error:
        parsed("f", "-n", "x", *words)
    assert str(error.value) == message


def test_help_ends_with_the_default():
    parser = argparse.ArgumentParser()
    declare(parser, Everything)
    text = " ".join(parser.format_help().split())
    assert "of something (default: 3)" in text and "--both, --no-both or not" in text and "After -- : more." in text


def test_sections_of_a_file_have_the_types_of_the_options():
    names = [one.name for one in options_of(Everything)]
    found = read_section(Everything, {"width": 4, "speed": "2e-1", "kind": "b", "plain": True}, "f: s", names)
    assert found == {"width": 4, "speed": 0.2, "kind": "b", "plain": True}
    assert read_section(Everything, None, "f: s", names) == {} == read_section(Everything, {}, "f: s", names)
    assert read_section(Everything, {"both": None}, "f: s", names) == {"both": None}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ([1], "f: s: expected names and values"),
        ({"widht": 1}, "f: s.widht: unknown; is width meant?"),
        ({"width": 0.5}, "f: s.width: expected a whole number, not 0.5"),
        ({"width": 0}, "f: s.width 0: expected at least 1 and at most 9"),
        ({"width": None}, "f: s.width: expected a single value"),
        ({"speed": "fast"}, "f: s.speed: expected a number, not fast"),
        ({"plain": "yes"}, "f: s.plain: expected true or false"),
        ({"kind": "c"}, "f: s.kind c: expected one of a, b"),
        ({"kind": ["a"]}, "f: s.kind: expected a single value"),
    ],
)
def test_sections_that_are_wrong_are_refused(section, message):
    with pytest.raises(InputError) as error:
        read_section(Everything, section, "f: s", [one.name for one in options_of(Everything)])
    assert str(error.value) == message


def another(one: Option, tmp_path: Path) -> Any:
    """Return a value other than the default."""
    if one.base is Path:
        (tmp_path / "other").write_text("other")
        return tmp_path / "other"
    if one.base is bool:
        return not one.default
    if one.values:
        return next(value for value in one.values if value != one.default)
    return f"{one.default}x" if one.base is str else one.base((one.default or 0) + 1)


NEEDED: dict[type, dict[str, Any]] = {
    Translate: {"model": Path("m")},
}


@pytest.mark.parametrize("cls", NEEDED)
def test_the_key_of_a_run_knows_every_option_that_changes_its_text(cls, tmp_path):
    usual = text_settings(cls(**NEEDED[cls]))
    tried = set()
    for one in options_of(cls):
        if one.default is dataclasses.MISSING or one.many:
            continue
        changed = text_settings(cls(**NEEDED[cls], **{one.name: another(one, tmp_path)})) != usual
        assert changed == (one.spec.changes == TEXT and not one.spec.apart), one.name
        tried.add(one.name)
    assert tried >= {"beam", "shortlist", "encoding", "form", "memory", "device", "lines"}


def test_the_content_of_files_counts_not_their_name(tmp_path):
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(text)
    keys = [text_settings(Translate(model=Path("m"), glossary=tmp_path / name)) for name in "abc"]
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(InputError, match="none: cannot be read"):
        text_settings(Translate(model=Path("m"), glossary=tmp_path / "none"))


@pytest.mark.parametrize("cls", [Translate])
def test_what_is_not_in_a_key_is_compared_by_the_command_or_changes_nothing(cls):
    apart = {one.name for one in options_of(cls) if one.spec.apart}
    assert apart <= {"model", "data", "memory", "input", "since"}
    nothing = {one.name for one in options_of(cls) if one.spec.changes == NOTHING}
    assert nothing <= {"out", "report", "shard", "overwrite", "quiet", "verbose", "strict"}
    speed = {one.name for one in options_of(cls) if one.spec.changes == SPEED}
    assert speed <= {"device", "max_tokens", "jobs", "engine"}


def test_the_fingerprint_of_a_preparation_knows_every_option_that_changes_its_text(tmp_path):
    for name in ("p.xx", "p.yy"):
        (tmp_path / name).write_text("a b\n")
    prefix = (str(tmp_path / "p"),)
    config = PrepareConfig("xx", "yy", prefix, (), (), tmp_path / "out", mono=prefix)
    usual = fingerprint(config.inputs(config.settings()))
    for one in options_of(PrepareConfig):
        if one.default is dataclasses.MISSING or one.name in ("reuse", "mono", "train_sentences"):
            continue
        value = False if one.name == "joined_dictionary" else another(one, tmp_path)
        if one.name in ("size", "limit", "max_lines"):
            value = 77
        other = dataclasses.replace(config, **{one.name: value}, **({"mono": ()} if value is False else {}))
        changed = fingerprint(other.inputs(other.settings())) != usual
        assert changed == (one.spec.changes == TEXT) or value == DEFAULTS.get(one.name), one.name


def test_every_train_option_is_in_the_command_of_its_training(prepared, tmp_path):
    usual = TrainOptions().command(prepared, tmp_path)
    values = {
        **{"criterion": "cross_entropy", "optimizer": "muon", "precision": "fp32", "tie_embeddings": "none"},
        **{
            "arch": "lasformer_tiny",
            "max_tokens": 9000,
            "options": ("--seed", "2"),
            "dropout": 0.4,
            "word_dropout": 0.4,
        },
    }
    for one in options_of(TrainOptions):
        value = values.get(one.name, None if one.many else None) or another(one, tmp_path)
        assert TrainOptions(**{one.name: value}).command(prepared, tmp_path) != usual, one.name


def declarations() -> Iterator[tuple[str, str]]:
    """Yield class and name of every option that the package declares."""
    for path in sorted((ROOT / "fairseq_lasformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for line in node.body if isinstance(node, ast.ClassDef) else ():
                call = line.value if isinstance(line, ast.AnnAssign) else None
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("option", "argument"):
                    yield node.name, line.target.id


def test_parsers_are_made_from_declarations_alone():
    calls = [
        (path.name, node.lineno)
        for path in (ROOT / "fairseq_lasformer").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
    ]
    assert sorted(name for name, _ in calls) == ["main.py", "parser.py"]


def test_every_option_of_a_command_is_declared_by_one_class():
    for name, command in COMMANDS.items():
        cls = command.load(name)[1]
        for one in options_of(cls):
            owners = [base.__name__ for base in cls.__mro__ if one.name in inspect.get_annotations(base)]
            assert len(owners) == 1, (name, one.name, owners)


def test_every_option_says_what_it_does():
    unsaid = [place for place in declarations()]
    for name, command in COMMANDS.items():
        for one in options_of(command.load(name)[1]):
            assert one.help or one.spec.given or one.choices or one.spec.positional, (name, one.name)
    assert len(unsaid) > 200


def test_a_positional_argument_may_follow_options(capsys):
    with pytest.raises(SystemExit):
        main(["info", "--lengths", "5", "a", "b"])
    assert "unrecognised: b" in capsys.readouterr().err
