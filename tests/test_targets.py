"""Before anything is written: no two outputs in one place, and none over an input."""

from __future__ import annotations

import itertools
import os

import pytest
from helpers import ROOT

from fairseq_lasformer.base import targets
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.targets import check_page, check_targets
from fairseq_lasformer.cli.main import main

HELP = str(ROOT / "data/models/help_en-de")


def test_no_two_outputs_are_in_one_place_by_any_name(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a").write_text("")
    (tmp_path / "soft").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "hard")
    (tmp_path / "there").symlink_to("folder")
    same = ["a", "soft", "hard", "folder/../a", "there/../a"]
    for one, other in itertools.permutations(same, 2):
        with pytest.raises(InputError, match="would be the first .+ and the second; choose another"):
            check_targets([(tmp_path / one, "the first"), (tmp_path / other, "the second")])
    with pytest.raises(InputError, match="new: would be the first and the second"):
        check_targets([(tmp_path / "folder/new", "the first"), (tmp_path / "folder/new", "the second")])
    with pytest.raises(InputError, match="the same file"):
        check_targets([(tmp_path / "there/new", "the first"), (tmp_path / "folder/new", "the second")])
    check_targets([(tmp_path / name, name) for name in ("a", "b", "folder/a", "folder", "/dev/null", "/dev/stdout")])


def test_no_output_is_an_input(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(InputError, match="link: links to a file that is read"):
        check_targets([(tmp_path / "link", "the report")], [tmp_path / "a"])
    with pytest.raises(InputError, match="a: is a file that is read"):
        check_targets([(tmp_path / "a", "the report")], [tmp_path / "link"])


def test_capitals_count_where_the_file_system_tells_them_apart(tmp_path, monkeypatch):
    pair = [(tmp_path / "A.txt", "the first"), (tmp_path / "a.txt", "the second")]
    check_targets(pair)
    monkeypatch.setattr(targets, "_folds_case", lambda folder: True)
    with pytest.raises(InputError, match="the same file"):
        check_targets(pair)


def test_whether_capitals_count_is_told_by_the_names_of_folders(tmp_path):
    assert not targets._folds_case(str(tmp_path / "not yet"))
    (tmp_path / "Folder").mkdir()
    (tmp_path / "fOLDER").symlink_to("Folder")  # what it looks like where they do not count
    assert targets._folds_case(str(tmp_path / "Folder" / "not yet"))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder of two files, and an empty one for their translations."""
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in" / name).write_text("Click the button.\n")


@pytest.mark.parametrize("report", ["out/a.txt", "out/./b.txt", "in/a.txt", "out/link.txt"])
def test_a_report_is_no_translation_and_no_input(folders, tmp_path, capsys, report):
    (tmp_path / "out/link.txt").symlink_to("b.txt")
    inputs = {path: path.read_bytes() for path in (tmp_path / "in").iterdir()}
    for words in (["in"], ["in/a.txt", "in/b.txt"]):
        assert main(["translate", HELP, *words, "-o", "out", "--report", report, "--overwrite"]) == 1
        assert "choose another" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["link.txt"]
    assert inputs == {path: path.read_bytes() for path in (tmp_path / "in").iterdir()}


def test_a_link_among_the_outputs_joins_no_two_translations(folders, tmp_path, capsys):
    (tmp_path / "out/b.txt").symlink_to("a.txt")
    assert main(["translate", HELP, "in", "-o", "out"]) == 1
    assert "would be the translation of in/a.txt (out/a.txt, the same file)" in capsys.readouterr().err
    assert not (tmp_path / "out/a.txt").exists()


def test_pages_of_others_stay(tmp_path):
    (tmp_path / "report.html").write_text("<html><title>mine")
    with pytest.raises(InputError, match="not a report of lasformer"):
        check_page(tmp_path / "report.html")
    check_page(tmp_path / "none.html")
