"""Plain words: how docstrings open, and turns of phrase that a reader would stumble over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from helpers import ROOT

QUESTIONS = ("What", "Who", "Which", "Whether", "How", "That", "When", "Where")
REPORTS = ("Returns", "Translates", "Writes", "Reads", "Runs", "Makes", "Checks", "Builds", "Raises", "Yields", "Adds")
PHRASES = {
    "anew": "again, or re-",
    ", too[.;:)]": "also",
    "is no [a-z]+ of": "is not a",
    "another one": "different",
    "likeliest": "most likely",
    "what became of": "the result of",
}
DOCS = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "data/README.md"]


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every docstring of the package."""
    for path in sorted((ROOT / "fairseq_lasformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}", text


def test_docstrings_open_with_a_noun_or_a_command():
    opened = {place: text.split()[0].rstrip(",.:") for place, text in docstrings()}
    assert len(opened) > 1500
    assert not {place: word for place, word in opened.items() if word in QUESTIONS}
    modules = ": the module"  # "Checks of ...", "Runs of ..." are nouns there
    assert not {p: word for p, word in opened.items() if word in REPORTS and not p.endswith(modules)}


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_of_no_native_speaker_are_gone(phrase):
    search = re.compile(rf"\b{phrase}" if phrase[0].isalpha() else phrase)
    texts = {place: text for place, text in docstrings()}
    texts |= {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCS}
    assert not {place: found[0] for place, text in texts.items() if (found := search.search(text))}, PHRASES[phrase]
