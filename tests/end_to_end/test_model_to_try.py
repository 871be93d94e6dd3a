"""The models in ``data/models``: small, as their MODEL.md say, and they translate what they should, to the letter."""

from __future__ import annotations

import json
import re

import pytest
from helpers import ROOT, run

from fairseq_lasformer import from_pretrained
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import file_hash
from fairseq_lasformer.base.published import model_path
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.formats import read
from fairseq_lasformer.ops import cpu

MODELS = ROOT / "data/models"
NAME = "help_en-de"
FOLDER = MODELS / NAME
NAMES = (NAME, "help_en-fr")

# the source, and its translation by each model
LINES = [line.split("\t") for line in (ROOT / "tests/end_to_end/model_to_try.tsv").read_text().splitlines()]


def test_no_model_goes_untested():
    assert sorted(path.name for path in MODELS.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_described(name):
    folder = MODELS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000_000
    about = (folder / "MODEL.md").read_text(encoding="utf-8")
    assert file_hash(folder / "model.pt") in about and "MPL-2.0" in about
    for command in ("lasformer corpus libreoffice-help", "lasformer run ", "examples/help.yaml", "lasformer pack"):
        assert command in about


def translated(name: str) -> list[str]:
    model = load_model(name, device="cpu", reproducible=True)
    (document,) = model.translate_documents(["\n".join(source for source, *_ in LINES)])
    return document.split("\n")


@pytest.mark.parametrize("name", NAMES)
def test_it_translates_a_document_to_the_letter(name):
    assert translated(name) == [line[1 + NAMES.index(name)] for line in LINES]


@pytest.mark.command  # plain instructions take 10 seconds on CI
@pytest.mark.parametrize("name", NAMES)
def test_it_translates_a_document_to_the_letter_on_plain_instructions(name):
    cpu.use_instructions("plain")
    try:
        assert translated(name) == [line[1 + NAMES.index(name)] for line in LINES]
    finally:
        cpu.use_instructions()


def test_names_are_those_of_models_that_come_with_the_clone(tmp_path, monkeypatch):
    assert model_path(NAME) == FOLDER and model_path(FOLDER) == FOLDER
    assert str(model_path("no_such")) == "no_such" and str(model_path(f"x/{NAME}")) == f"x/{NAME}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert str(model_path(NAME)) == NAME  # a folder of the user's comes first
    with pytest.raises(InputError, match=f"{NAME}: contains none of model.pt"):
        from_pretrained(NAME)


@pytest.mark.command
def test_a_page_is_translated_by_one_command(tmp_path):
    page = tmp_path / "seite.html"
    done = run("lasformer", "translate", NAME, ROOT / "examples/page.html", "-o", page)
    source, target = (read(p.read_bytes(), "html").blocks for p in (ROOT / "examples/page.html", page))
    assert len(source) == len(target) and "sentences" in done.stderr
    assert "<b>" in page.read_text() and re.search(r"Etikett", page.read_text())
    shown = run("python", "examples/show.py").stdout
    assert "Printing Labels" in shown and "looked at line" in shown


@pytest.mark.parametrize("name", NAMES)
def test_its_card_has_the_hash_of_every_file(name):
    card = json.loads((MODELS / name / "model.json").read_text(encoding="utf-8"))
    paths = [path for path in (MODELS / name).iterdir() if path.name != "model.json"]
    files = {path.name: (path.stat().st_size, file_hash(path)) for path in paths}
    assert {file["name"]: (file["size"], file["sha256"]) for file in card["files"]} == files
    assert (card["name"], f"help_{card['source']}-{card['target']}", card["licence"]) == (name, name, "MPL-2.0")
    assert card["measured"]["tokens_per_second"] > 0 and card["measured"]["memory_mib"] > 0
