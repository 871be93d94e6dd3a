"""Walls between the rooms of the package: which may import which, read from the import statements."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers import ROOT

PACKAGE = ROOT / "fairseq_lasformer"
BELOW_PLUGIN = ("ops", "nn", "text", "formats", "translation_memory", "data", "search", "checkpoints", "executors")
# a room (or a room and those imported when it is), and what none of its files may import
ROOMS = tuple(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
WALLS = {
    "base": tuple(f"fairseq_lasformer.{room}" for room in ROOMS if room != "base"),
    "nn": ("fairseq", "fairseq_cli", *(f"fairseq_lasformer.{room}" for room in ("data", "documents", "search"))),
    "ops": ("fairseq", "fairseq_lasformer.nn"),
    "text": ("torch", "fairseq", "fairseq_lasformer.data", "fairseq_lasformer.formats"),
    "formats": ("torch", "fairseq", "fairseq_lasformer.data"),
    "translation_memory": ("fairseq", "fairseq_lasformer.data"),
    "plugin": ("fairseq_lasformer.documents", "fairseq_lasformer.jobs"),
    "checkpoints": ("fairseq_lasformer.nn", "fairseq_lasformer.ops"),
}
AT_IMPORT = {"data": ("torch", "fairseq")}
APPS = tuple(path.parent.name for path in (PACKAGE / "apps").glob("*/__init__.py"))
OF_OTHERS = {"server": ("files",)}
"""Apps that an app may import: all know the core, which finds them by their names alone (commands, corpora)."""
ONE_DOOR = ("ops.reference", "ops.cpu", "ops")
"""What files outside of ``ops`` may import of it: the door, the definitions, and which kernels are there."""


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imported(tree: ast.AST, modules: frozenset[str] = frozenset(), late: bool = True) -> Iterator[str]:
    """Dotted names of what is imported; with ``late``, inside functions and for type checkers, too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif late or not (
            isinstance(node, (ast.FunctionDef, ast.Lambda))
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ):
            yield from imported(node, modules, late)


@cache
def files() -> dict[str, Path]:
    """The files of the package, by module."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, late: bool = True) -> set[str]:
    tree = ast.parse(files()[module].read_text(encoding="utf-8"))
    return set(imported(tree, frozenset(files()), late))


def breaches(room: str, forbidden: tuple[str, ...], late: bool = True) -> list[str]:
    inside = [module for module in files() if is_within(module, f"fairseq_lasformer.{room}")]
    assert inside, f"no room {room}"
    return [
        f"{module} imports {name}"
        for module in inside
        for name in imports_of(module, late)
        if any(is_within(name, other) for other in forbidden)
    ]


@pytest.mark.parametrize("room", WALLS)
def test_rooms_keep_their_walls(room):
    assert breaches(room, WALLS[room]) == []


@pytest.mark.parametrize("room", BELOW_PLUGIN)
def test_nothing_below_the_plugin_imports_it(room):
    assert breaches(room, ("fairseq_lasformer.plugin",)) == []


@pytest.mark.parametrize("room", AT_IMPORT)
def test_what_loads_without_torch(room):
    assert breaches(room, AT_IMPORT[room], late=False) == []


def test_the_core_knows_no_app():
    core = [module for module in files() if not is_within(module, "fairseq_lasformer.apps")]
    apps = {m: {n for n in imports_of(m) if is_within(n, "fairseq_lasformer.apps")} for m in core}
    assert len(APPS) > 4 and not {module: names for module, names in apps.items() if names}


@pytest.mark.parametrize("app", APPS)
def test_apps_know_the_core_and_not_each_other(app):
    others = tuple(f"fairseq_lasformer.apps.{one}" for one in {*APPS} - {app, *OF_OTHERS.get(app, ())})
    assert breaches(f"apps.{app}", others) == []


def test_operations_have_one_door():
    allowed = {f"fairseq_lasformer.{name}" for name in ONE_DOOR}
    through_walls = [
        f"{module} imports {name}"
        for module in files()
        if not is_within(module, "fairseq_lasformer.ops")
        for name in imports_of(module)
        if is_within(name, "fairseq_lasformer.ops") and name not in allowed
    ]
    assert through_walls == []


def test_files_import_each_other_in_no_circle():
    """Of what is imported when a file is; a package's own face is left out, as Python enters through it."""
    arrows = {
        module: {name for name in imports_of(module, late=False) if name in files() and not is_within(module, name)}
        for module in files()
    }
    while leaves := [module for module, names in arrows.items() if not names & arrows.keys()]:
        for leaf in leaves:
            del arrows[leaf]
    circle = [module for module in arrows if any(module in names for names in arrows.values())]
    assert circle == []


def test_most_types_are_named():
    """Lines with ``Any`` stay below 500: fairseq's dictionaries have names in ``records``, objects their classes."""
    lines = [line for path in files().values() for line in path.read_text(encoding="utf-8").splitlines()]
    assert 0 < sum("Any" in re.findall(r"\w+", line) for line in lines) <= 500


def names_of(node: ast.stmt) -> Iterator[str]:
    """Names that a statement binds in its own scope."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def doubles(tree: ast.Module) -> list[str]:
    """Names that a module or class binds twice: the second hides the first. ``_`` may recur."""
    found = []
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, ast.ClassDef)):
            names = [name for node in scope.body for name in names_of(node)]
            found += [name for name in {*names} - {"_"} if names.count(name) > 1]
    return found


def test_no_name_is_bound_twice():
    assert len(doubles(ast.parse("A = 1\nclass B:\n    c: int = 1\n    def c(self): ...\nA: int = 2\n_ = _ = 1"))) == 2
    folders = ("fairseq_lasformer", "benchmarks", "scripts", "tests", "examples", "data")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert not {str(path): found for path in sources if (found := doubles(ast.parse(path.read_text("utf-8"))))}


def test_no_script_hides_a_module_of_python():
    """A script's own folder comes first where modules are searched for; ``compression`` is new in Python 3.14."""
    names = sys.stdlib_module_names | {"annotationlib", "compression"}
    scripts = [path for folder in ("data", "examples", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(scripts) > 5 and not [str(path) for path in scripts if path.stem in names]
