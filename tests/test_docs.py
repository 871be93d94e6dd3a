"""The documentation's pages: all of them can be found, and everything they name exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from helpers import BUILT

from fairseq_lasformer.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.rglob("*.md")} - BUILT)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def linked(page: Path) -> set[Path]:
    """Return the pages and pictures that a page links to."""
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text()) if "://" not in link}


def test_every_page_is_reached_from_the_first():
    seen: set[Path] = set()
    waiting = {DOCS / "index.md"}
    while waiting:
        page = waiting.pop()
        seen.add(page)
        waiting |= {other for other in linked(page) if other.suffix == ".md"} - seen
    assert set(PAGES) <= seen


def test_every_page_stands_in_the_navigation():
    named = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in {*PAGES, *BUILT})


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page):
    assert not [link for link in linked(page) if not link.exists()]


@pytest.mark.parametrize("page", [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split()
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    named = set(re.findall(r"`([\w/]+\.(?:py|cpp|h|sh|jsonl))`", prose))
    named = {re.sub(r".*/NAME", "NAME", name) for name in named}  # a recipe's new file
    assert named and not [
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in [*files, "NAME.py"])
    ]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts/api_page.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_of_the_python_api_explains_what_is_public(generator):
    page = generator.page()
    for modules in generator.PUBLIC.values():
        for name in (f"{module}.{name}" for module, names in modules.items() for name in names):
            entry = page.partition(f"### fairseq_lasformer.{name}\n")[2].partition("\n### ")[0]
            assert len(entry.split()) > 5, name


def test_the_page_of_the_commands_has_all_of_them_with_what_excludes_what(generator):
    page = generator.commands_page()
    assert re.findall(r"^### lasformer (.*)$", page, re.M) == [*COMMANDS]
    assert "| `--beam` | hypotheses per sentence" in page and "| `--reproducible` | several models" in page


def test_the_overview_lists_every_room_by_its_docstring(generator):
    overview = (DOCS / "architecture.md").read_text()
    assert overview == generator.overview(overview), "run make docs"
    top = [path for path in (ROOT / "fairseq_lasformer").iterdir() if not path.name.startswith((".", "__"))]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in top if path.is_dir() or path.suffix == ".py"]
    assert not [name for name in names if f"| `{name}" not in overview]
