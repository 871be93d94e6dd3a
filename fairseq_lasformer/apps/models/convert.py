"""Conversion of fairseq's Transformer checkpoints to ``lasformer_dense``: the same translations, our decoder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModelBase
from omegaconf import OmegaConf

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_writable
from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.loading import architecture, save
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.patches.compat import load_checkpoint_to_cpu
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Features of fairseq's Transformer that ours cannot have, and the value of each that means "absent".
_ABSENT = {
    "adaptive_input": False,
    "adaptive_softmax_cutoff": None,
    "char_inputs": False,
    "no_cross_attention": False,
    "cross_self_attention": False,
    "base_layers": 0,
}

_KINDS = ("transformer", "transformer_align")
_TASKS = ("translation", "document_translation")
CLOSE = 1e-4  # float32 rounds differently in a different order of operations


def convert(checkpoint: Path, out: Path, keep: tuple[str | None, str | None] = (None, None)) -> str:
    """Convert a checkpoint of fairseq's ``transformer``, and compare both models on the same tokens.

    Args:
        checkpoint: checkpoint of an architecture of fairseq's ``transformer``.
        out: checkpoint to write, of ``lasformer_dense``.
        keep: the encoder's and the decoder's layers that remain of a model trained with layer drop, such as
            ``"0,2,4"``; None for all, or for what the checkpoint says.

    Returns:
        a summary for the terminal.
    """
    if out.resolve() == checkpoint.resolve():
        raise InputError(f"{out}: is the checkpoint to convert; choose another file")
    check_writable(out)
    given = {f"{side}_layers_to_keep": layers for side, layers in zip(("encoder", "decoder"), keep) if layers}
    state = load_checkpoint_to_cpu(str(checkpoint), given)
    kind = architecture(state) or str(getattr(state.get("cfg", {}).get("model"), "arch", ""))
    name = models.ARCH_MODEL_NAME_REGISTRY.get(kind, kind)
    if name == "lasformer":
        raise InputError(f"{checkpoint}: is a checkpoint of {kind} already")
    if name not in _KINDS:
        raise InputError(
            f"{checkpoint}: is a checkpoint of {kind or 'an unknown kind'}; expected fairseq's transformer"
        )
    if not state["cfg"].get("task"):
        raise InputError(f"{checkpoint}: does not say what it was trained for (its settings contain no task)")
    task = _settings(state["cfg"]["task"])
    task_name = task.get("_name") or task.get("task")
    if task_name not in _TASKS:
        raise InputError(f"{checkpoint}: its task is {task_name}; expected translation")
    stock, options, dictionaries = _stock(checkpoint, state)
    ours = LasformerModel.build_model(LasformerConfig(**options), dictionaries).eval()
    ours.load_state_dict(stock.state_dict(), strict=True)
    difference = _difference(stock, ours)
    if not difference < CLOSE:
        raise InputError(f"{checkpoint}: the converted model's scores differ (difference {difference:.1g})")
    known = {f.name for f in fields(DocumentTranslationConfig)}
    cfg = OmegaConf.to_container(state["cfg"]) if OmegaConf.is_config(state["cfg"]) else dict(state["cfg"])
    assert isinstance(cfg, dict)
    cfg["model"] = options | {"_name": "lasformer", "arch": "lasformer_dense"}
    cfg["task"] = {k: v for k, v in task.items() if k in known} | {"_name": "document_translation"}
    state |= {"cfg": cfg, "args": None, "model": ours.state_dict(), "last_optimizer_state": None}
    save(state, out)
    layers = f"{stock.cfg.encoder.layers}+{stock.cfg.decoder.layers} layers of {stock.cfg.encoder.embed_dim}"
    return (
        f"{out}: lasformer_dense, {layers}; largest relative difference to {kind} on random tokens {difference:.1g}\n"
        f"next: fairseq-generate DATA --user-dir fairseq_lasformer --task document_translation --path {out} --cpu"
    )


def _settings(part: Any) -> dict[str, Any]:
    """Return a part of a checkpoint's settings, which fairseq saves in one of three forms."""
    if isinstance(part, Namespace):
        return dict(vars(part))
    settings = OmegaConf.to_container(part) if OmegaConf.is_config(part) else part
    assert isinstance(settings, Mapping)
    return {str(key): value for key, value in settings.items()}


def _stock(checkpoint: Path, state: State) -> tuple[Any, dict[str, Any], SimpleNamespace]:
    """Return fairseq's own model with the checkpoint's weights, our options for it, and the dictionaries it has."""
    weights = state["model"]
    sizes = [weights.get(f"{side}.embed_tokens.weight", torch.empty(0)).size(0) for side in ("encoder", "decoder")]
    if not all(sizes):
        raise InputError(f"{checkpoint}: has no embedding table; it cannot be converted")
    source = _dictionary(sizes[0])
    target = source if sizes[0] == sizes[1] else _dictionary(sizes[1])
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
    cfg = state["cfg"]["model"]
    try:
        stock = models.build_model(cfg, task)
        assert isinstance(stock, TransformerModelBase)
        options = _options(checkpoint, stock.cfg)
        stock.load_state_dict(weights, strict=True, model_cfg=cfg)
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError, AssertionError) as e:
        raise InputError(f"{checkpoint}: fairseq cannot build it ({str(e).splitlines()[0] if str(e) else e!r})") from e
    return stock.float().eval(), options, task


def _dictionary(size: int) -> Any:
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return dictionary


def _options(checkpoint: Path, cfg: DictConfig) -> dict[str, Any]:
    """Return our options for one of fairseq's models."""
    for name, absent in _ABSENT.items():
        value = getattr(cfg, name, absent)
        if value not in (absent, None, "", False, 0):
            raise InputError(f"{checkpoint}: --{name.replace('_', '-')} {value} cannot be converted")
    widths = {cfg.decoder.embed_dim, cfg.decoder.input_dim, cfg.decoder.output_dim}
    if len(widths) > 1:
        raise InputError(f"{checkpoint}: --decoder-input-dim and --decoder-output-dim cannot be converted")
    options: dict[str, Any] = {}
    for field in fields(LasformerConfig):
        side, _, name = field.name.partition("_")
        holder, name = (getattr(cfg, side), name) if side in ("encoder", "decoder") else (cfg, field.name)
        if not field.name.startswith("_") and hasattr(holder, name):
            value = getattr(holder, name)
            options[field.name] = value.value if isinstance(value, Enum) else value
    return options | {"select_modules": "none"}


@torch.no_grad()
def _difference(stock: Any, ours: LasformerModel) -> float:
    """Return the largest difference of two models' scores on the same tokens, relative to the largest score."""
    generator = torch.Generator().manual_seed(1)
    n = min(24, *(limit for limit in stock.max_positions() if limit))
    words = min(len(stock.encoder.dictionary), len(stock.decoder.dictionary))
    first = stock.encoder.dictionary.nspecial
    if words <= first:
        return float("nan")
    source, target = torch.randint(first, words, (2, 2, n), generator=generator)
    source[0, : n // 3] = stock.encoder.padding_idx
    expected, converted = stock(source, None, target)[0], ours(source, None, target)[0]
    return float((expected - converted).abs().max() / expected.abs().max())
