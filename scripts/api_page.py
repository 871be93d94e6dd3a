#!/usr/bin/env python3
"""Generator of docs/api.md from docstrings, and of docs/commands.md from declared options; run by make docs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
COMMANDS_PAGE = ROOT / "docs" / "commands.md"
OVERVIEW = ROOT / "docs" / "architecture.md"
HEAD = """# Python API

<!-- made by scripts/api_page.py from the docstrings; do not edit -->

The API for your own programs. Shapes: B batch, H heads, Q queries, K keys, D head width, S selector width.

```python
from fairseq_lasformer.documents.hub import load_model

model = load_model("checkpoints/mine")
print(model.translate_documents(["A document.\\nOf two lines."], beam=5))
```
"""
COMMANDS_HEAD = """# Commands and their options

<!-- made by scripts/api_page.py from the options' declarations; do not edit -->

What an option *changes*: **text**, what is computed or written, so that work done with another value is not reused;
**speed**, only how fast; **nothing**, a place, a message or a permission. `--help` of a command has the same texts.
"""
EXCLUSIONS_HEAD = """
## What does not go together

Of fairseq-train, fairseq-generate and the commands above; each is refused in one line that says the same.

"""
PUBLIC = {
    "Loading and translating": {
        "plugin": ["register"],
        "documents.hub": [
            *("load_model", "from_pretrained", "TranslatedLine", "DocumentHubInterface"),
            *(f"DocumentHubInterface.translate_{what}" for what in ("documents", "lines")),
            "DocumentHubInterface.explain",
        ],
        "documents.explanation": ["Explanation", "Explained", "Cause"],
        "apps.files.file_translator": ["FileTranslator"],
        "search.glossary": ["Glossary"],
        "translation_memory.remembering": ["Memory"],
    },
    "Layers": {
        "nn.attentions": ["Attention", "AttentionOptions", "AttentionOutput", "SelectedAttention"],
        "nn.patterns": ["Pattern", "PatternCost"],
        "nn.patterns.positional": ["Positional", "Positional.positions"],
        "nn.patterns.learned": ["Selector"],
        "nn.sparsity": ["SparsityRule"],
        "nn.moe": ["MixtureOfExperts"],
    },
    "Operations": {
        "ops": [
            *("topk_mask", "selected_attention", "supervise", "choose", "topk_indices", "attend_kept"),
            *("AttentionMask", "KeptKeys", "KeyIndex", "RowSample", "StraightThrough", "Teachers", "Supervision"),
        ],
        "ops.reference": ["selected_attention", "supervise", "select", "keep_counts"],
    },
    "Running work": {"executors": ["Executor", "Executor.map", "Worker", "Resources"]},
}


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for title, modules in PUBLIC.items():
        parts.append(f"\n## {title}\n")
        for module, names in modules.items():
            holder = importlib.import_module(f"fairseq_lasformer.{module}")
            for name in names:
                thing: Any = holder
                for part in name.split("."):
                    thing = getattr(thing, part)
                parts.append(_entry(f"{module}.{name}", thing))
    return "".join(parts)


def commands_page() -> str:
    """Return the text of the page of all commands and their options."""
    from fairseq_lasformer.base.cannot import table
    from fairseq_lasformer.base.options import options_of
    from fairseq_lasformer.cli.main import GROUPS

    parts = [COMMANDS_HEAD]
    for title, commands in GROUPS.items():
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for name, command in commands.items():
            begins = "" if command.help.startswith("d-BLEU") else command.help[0].upper()
            parts.append(f"\n### lasformer {name}\n\n{begins}{command.help[len(begins) :]}.\n")
            declared = options_of(command.load(name)[1])
            shown = [one for one in declared if not (one.spec.given or one.spec.rest)]
            rows = [f"| {_flags(one)} | {_cell(one)} | {one.spec.changes} |\n" for one in shown]
            parts += ["\n| option | meaning | changes |\n|---|---|---|\n", *rows] if rows else []
            parts += [f"\n{one.help}\n" for one in declared if one.spec.rest]
    values = "line|no|cpu|int8|legacy_ddp|composite|expert_adam"
    quoted = re.sub(rf"(--[a-z][a-z0-9-]+(?: (?:{values})\b)?)", r"`\1`", table())
    return "".join([*parts, EXCLUSIONS_HEAD, quoted])


def _flags(one: Any) -> str:
    return ", ".join(f"`{name}`" for name in (one.spec.short, one.flag) if name)


def _cell(one: Any) -> str:
    choices = ", ".join(f"`{value}`" for value in one.choices or ())
    command = r"'(\w+ --[^']*)'"  # in quotes
    named = re.sub(rf"{command}|(?<!\w)(--[a-z][a-z-]+)", lambda m: f"`{m[1] or m[2]}`", one.help)
    text = named.replace("|", "\\|").replace("<", "&lt;")
    return f"{text}{': ' if text and choices else ''}{choices}"


def overview(text: str) -> str:
    """Return the page on architecture with its table of rooms renewed: the first sentence of each docstring."""
    package = ROOT / "fairseq_lasformer"
    faces = sorted(package.glob("*/__init__.py")) + sorted(package.glob("*/*/__init__.py"))
    rooms = {f"{face.parent.relative_to(package)}/": face for face in faces}
    files = {path.name: path for path in sorted(package.glob("*.py")) if not path.name.startswith("__")}
    rows = [f"| `{name}` | {_title(path)} |\n" for name, path in sorted(rooms.items()) + list(files.items())]
    table = "| room | contents |\n|---|---|\n" + "".join(rows)
    return re.sub(r"(<!-- rooms: .*? -->\n).*?(<!-- end of rooms -->)", rf"\1\n{table}\n\2", text, flags=re.S)


def _title(path: Path) -> str:
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return re.sub(r":(?:class|func|meth|mod|data):`~?([^`]+)`", r"`\1`", " ".join(paragraph.split())).replace("``", "`")


def _entry(name: str, thing: Any) -> str:
    kind = "class" if inspect.isclass(thing) else "def"
    fields = inspect.isclass(thing) and (issubclass(thing, tuple) or "__init__" not in vars(thing))
    signature = "" if fields else str(_signature(thing))
    shown = f"{kind} {name.rpartition('.')[2]}{signature}"
    text = re.sub(r":(?:class|func|meth|mod|data):`~?([^`]+)`", r"``\1``", inspect.getdoc(thing) or "")
    return f"\n### fairseq_lasformer.{name}\n\n```text\n{_wrapped(shown)}\n\n{text}\n```\n"


class _Plain(str):
    """An annotation, shown without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(thing: Any) -> inspect.Signature:
    signature = inspect.signature(thing)
    empty = inspect.Parameter.empty
    parameters = [
        p.replace(
            annotation=empty
            if p.annotation is empty
            else _Plain(getattr(p.annotation, "__forward_arg__", p.annotation)),
            default=_Plain(p.default.__name__) if inspect.isfunction(p.default) else p.default,
        )
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    returned = signature.return_annotation
    returned = empty if returned is empty or inspect.isclass(thing) else _Plain(returned)
    return signature.replace(parameters=parameters, return_annotation=returned)


def _wrapped(text: str) -> str:
    """Wrap a long signature to one parameter per line."""
    if len(text) <= 100:
        return text
    head, _, rest = text.partition("(")
    depth, parts, part = 1, [], ""
    for i, c in enumerate(rest):
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            return "\n    ".join([f"{head}(", *(f"{p.strip()}," for p in [*parts, part])]) + f"\n){rest[i + 1 :]}"
        if c == "," and depth == 1:
            parts.append(part)
            part = ""
        else:
            part += c
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")
    OVERVIEW.write_text(overview(OVERVIEW.read_text(encoding="utf-8")), encoding="utf-8")
