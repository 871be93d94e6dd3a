"""Plain words: how docstrings open, where fields are explained, and turns of phrase that a reader stumbles over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from helpers import BUILT, ROOT

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
DOCS = [*({*(ROOT / "docs").rglob("*.md")} - BUILT), *ROOT.glob("*.md"), ROOT / "data/README.md"]


STATES = ("found", "made", "held", "told", "kept", "own")
"""Names that say how a value came about, not what it is; in ``nn`` and ``ops``, keys are kept and lines own them."""


def bound(node: ast.AST) -> str:
    """Return the name that a node binds; empty if none."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def test_variables_are_named_for_what_they_hold():
    count = dict.fromkeys(STATES, 0)
    for path in (ROOT / "fairseq_lasformer").rglob("*.py"):
        if path.relative_to(ROOT / "fairseq_lasformer").parts[0] not in ("nn", "ops"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if bound(node) in STATES:
                    count[bound(node)] += 1
    assert max(count.values()) < 40, count


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


def test_fields_of_records_are_explained_where_they_are():
    """By a comment; a list in the docstring would name each twice. The Python API's page is made from such lists."""
    public = ast.parse((ROOT / "scripts/api_page.py").read_text(encoding="utf-8"))
    listed = {one.value.rpartition(".")[2] for one in ast.walk(public) if isinstance(getattr(one, "value", 0), str)}
    twice = []
    for path in sorted((ROOT / "fairseq_lasformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name in listed:
                continue
            fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
            named = re.findall(r"^    ([\w, ]+): ", (ast.get_docstring(node) or "").partition("Attributes:")[2], re.M)
            twice += [f"{path}: {node.name}.{name}" for names in named for name in names.split(", ") if name in fields]
    assert not twice


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_of_no_native_speaker_are_gone(phrase):
    search = re.compile(rf"\b{phrase}" if phrase[0].isalpha() else phrase)
    texts = {place: text for place, text in docstrings()}
    texts |= {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCS}
    assert not {place: found[0] for place, text in texts.items() if (found := search.search(text))}, PHRASES[phrase]
