"""How many parameters an architecture has, by part."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass

from fairseq_lasformer.config import PRESETS, LasformerConfig
from fairseq_lasformer.documents import InputError
from fairseq_lasformer.model import LasformerModel


def _dictionary(words: int) -> Any:
    dictionary = Dictionary()
    while len(dictionary) < words:
        dictionary.add_symbol(f"w{len(dictionary)}")
    return dictionary


def build(arch: str, source_words: int, target_words: int, options: Sequence[str] = ()) -> LasformerModel:
    """A model without memory for its weights.

    Args:
        arch: ``lasformer`` or a named architecture. source_words, target_words: sizes of the dictionaries, special
            symbols included. options: further model options, as on fairseq-train's command line.

    Raises:
        InputError: no such architecture or option, or options that make no sense.
    """
    if min(source_words, target_words) < 4:
        raise InputError("--words: a dictionary has at least its four special symbols")
    if arch != "lasformer" and arch not in PRESETS:
        raise InputError(f"--arch {arch}: expected lasformer or one of {', '.join(PRESETS)}")
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False, exit_on_error=False)
    gen_parser_from_dataclass(parser, LasformerConfig())
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what is not given comes from the named architecture
    try:
        args, unknown = parser.parse_known_args(list(options))
    except (argparse.ArgumentError, SystemExit) as e:
        raise InputError(f"model options {' '.join(options)}: {e}") from e
    if unknown:
        raise InputError(f"{unknown[0]}: no option of the model")
    given = {**PRESETS.get(arch, {}), **vars(args), "max_source_positions": 1024, "max_target_positions": 1024}
    source = _dictionary(source_words)
    target = source if target_words == source_words else _dictionary(target_words)
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
    with torch.device("meta"):
        return LasformerModel.build_model(LasformerConfig(**given), task)


def parts(model: torch.nn.Module) -> dict[str, int]:
    """Parameters by part, shared ones once, where they come first; ``total`` last."""
    found = {"word tables": 0, "embedding units": 0, "encoder": 0, "decoder": 0, "output projection": 0}
    for name, p in model.named_parameters():
        side, _, rest = name.partition(".")
        part = side
        if rest.startswith("embed_tokens"):
            part = "embedding units" if ".unit." in rest else "word tables"
        elif rest.startswith("output_projection"):
            part = "output projection"
        found[part] += p.numel()
    return found | {"total": sum(found.values())}


def table(counts: dict[str, int]) -> str:
    """For a terminal."""
    return "\n".join(f"{name:<20}{n:>14,}" for name, n in counts.items())
