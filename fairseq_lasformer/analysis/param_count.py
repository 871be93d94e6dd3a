"""Parameter counts of an architecture, by part, and the list of its options."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from fairseq_lasformer import quiet_fairseq  # noqa: F401

# isort: split

from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig
from fairseq_lasformer.plugin.criterion import SelectionCriterionConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig


def _dictionary(words: int) -> Any:
    dictionary = Dictionary()
    while len(dictionary) < words:
        dictionary.add_symbol(f"w{len(dictionary)}")
    return dictionary


def build(arch: str, source_words: int, target_words: int, options: Sequence[str] = ()) -> LasformerModel:
    """Build a model without allocating memory for its weights.

    Args:
        arch: ``lasformer`` or a named architecture.
        source_words, target_words: sizes of the dictionaries, special symbols included.
        options: further model options, as on fairseq-train's command line.

    Raises:
        InputError: the architecture or an option is unknown, or the options are invalid.
    """
    if min(source_words, target_words) < 4:
        raise InputError("--words: a dictionary has at least its four special symbols")
    if arch != "lasformer" and arch not in PRESETS:
        raise InputError(f"--arch {arch}: expected lasformer or one of {', '.join(PRESETS)}")
    parser = _parser(LasformerConfig())
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # options that are not set come from the named architecture
    try:
        args, unknown = parser.parse_known_args(list(options))
    except (argparse.ArgumentError, SystemExit) as e:
        raise InputError(f"model options {' '.join(options)}: {e}") from e
    if unknown:
        raise InputError(f"{unknown[0]}: not an option of the model; lasformer options lists them")
    given = {**PRESETS.get(arch, {}), **vars(args), "max_source_positions": 1024, "max_target_positions": 1024}
    source = _dictionary(source_words)
    target = source if target_words == source_words else _dictionary(target_words)
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
    with torch.device("meta"):
        return LasformerModel.build_model(LasformerConfig(**given), task)


def _parser(config: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        argument_default=argparse.SUPPRESS, allow_abbrev=False, exit_on_error=False, add_help=False
    )
    gen_parser_from_dataclass(parser, config)
    return parser


def options(pattern: str = "") -> str:
    """List the options of the model, the criterion and the task, with descriptions and defaults, for a terminal.

    fairseq-train's own ``--help`` is printed too early to include a plugin's options.

    Args:
        pattern: list only options whose name or description contains it.

    Raises:
        InputError: no option matches.
    """
    groups = (
        ("model (--arch lasformer and its variants)", LasformerConfig()),
        ("criterion (--criterion label_smoothed_cross_entropy_with_selection)", SelectionCriterionConfig()),
        ("task (--task document_translation)", DocumentTranslationConfig()),
    )
    lines = []
    for title, config in groups:
        found = []
        for action in _parser(config)._actions:
            if not action.option_strings:
                continue  # the data folder
            name, text = action.option_strings[0], " ".join((action.help or "").split())
            if pattern.lower() not in f"{name} {text}".lower():
                continue
            choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
            default = action.default
            known = default not in (None, "", argparse.SUPPRESS) and "${" not in str(default)
            default_of = f" (default: {default})" if known else ""
            found += [
                f"  {name}{choices}{default_of}",
                *textwrap.wrap(text, 96, initial_indent="      ", subsequent_indent="      "),
            ]
        if found:
            lines += [title, *found, ""]
    if not lines:
        raise InputError(f"{pattern}: no option of the model, the criterion or the task has this in its name or help")
    presets = ", ".join(PRESETS)
    return "\n".join([*lines, f"architectures: lasformer, {presets}"])


def stored(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters in a checkpoint; a shared table once, where it first occurs, even if it is stored twice."""
    tables: list[torch.Tensor] = []
    for name, weight in weights.items():
        if not weight.is_floating_point() or name.endswith(("_float_tensor", ".version")):
            continue
        if name.endswith(("embed_tokens.weight", "output_projection.weight")):
            if any(weight.shape == one.shape and torch.equal(weight, one) for one in tables):
                continue
            tables.append(weight)
        yield name, weight


def parts(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """Count parameters by part, with ``total`` last.

    Args:
        named: names and parameters, shared ones once.
    """
    found = {"word tables": 0, "embedding units": 0, "encoder": 0, "decoder": 0, "output projection": 0}
    for name, p in named:
        side, _, rest = name.partition(".")
        part = side
        if rest.startswith("embed_tokens"):
            part = "embedding units" if ".unit." in rest else "word tables"
        elif rest.startswith("output_projection"):
            part = "output projection"
        found[part] += p.numel()
    return found | {"total": sum(found.values())}


def table(counts: dict[str, int]) -> str:
    """Format the counts for a terminal."""
    return "\n".join(f"{name:<20}{n:>14,}" for name, n in counts.items())
