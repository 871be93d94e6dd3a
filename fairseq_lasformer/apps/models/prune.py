"""``lasformer prune``: a smaller checkpoint, without some groups of layers, or without the heads that matter least."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fairseq_lasformer.apps.models.dense_start import options_of, words_of_options
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_writable
from fairseq_lasformer.checkpoints.loading import architecture, load, save
from fairseq_lasformer.documents.hub import from_pretrained
from fairseq_lasformer.evaluation.calibration import calibration, scored
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.build import without_keys
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, ModuleConfig, module_config
from fairseq_lasformer.plugin.placement import MODULES, group_starts, heads_of, named_heads

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel

    from fairseq_lasformer.documents.hub import DocumentHubInterface

PLACES = {
    "encoder": ("encoder", "self_attn"),
    "decoder": ("decoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
}
"""Side and name of an attention module."""


def prune(checkpoint: Path, out: Path, groups: str = "", heads: str = "", data: Path | None = None) -> str:
    """Write a smaller checkpoint.

    Args:
        checkpoint: checkpoint of ours.
        out: checkpoint to write.
        groups: groups of layers that remain, by number from 0, such as ``decoder.0``; unnamed sides keep all.
            A model trained with ``--group-drop`` can do without some.
        heads: number of heads that remain in attention modules, as ``encoder=6,cross=4``: those of each layer with the
            largest gradients (Michel et al. 2019, arXiv 1905.10650) on documents of ``data``.
        data: prepared folder; default: the one named in the checkpoint.

    Returns:
        a summary of what remains and its scores, for the terminal.
    """
    if out.resolve() == checkpoint.resolve():
        raise InputError(f"{out}: is the checkpoint to prune; choose another file")
    check_writable(out)
    state = load(checkpoint)
    register()
    if (kind := architecture(state)) not in ("lasformer", *PRESETS):
        raise InputError(f"{checkpoint}: is a checkpoint of {kind or 'an unknown kind'}, not one of ours")
    if not groups and not heads:
        raise InputError("nothing to prune: name --groups or --heads")
    settings = dict(state["cfg"])
    options = options_of(settings["model"])
    cfg = module_config(LasformerConfig(**options))
    if cfg.tie_groups or cfg.moe_experts or cfg.delight != "none":
        raise InputError(f"{checkpoint}: models with tied groups, mixtures of experts or DeLighT cannot be pruned")
    weights = dict(state["model"])
    if heads and (others := without_keys(cfg)):
        raise InputError(f"{checkpoint}: --heads: not with {', '.join(others)}, whose heads have more than projections")
    if heads:
        named_heads("--heads", heads, cfg)
        names = ",".join(filter(None, (cfg.fewer_heads, heads)))
        smaller = module_config(LasformerConfig(**options | {"fewer_heads": names}))
        if more := [m for m in MODULES if heads_of(smaller, m) > heads_of(cfg, m)]:
            raise InputError(f"--heads {heads}: {more[0]} has {heads_of(cfg, more[0])} heads")
        for place, scores in importance(checkpoint, data).items():
            _cut(weights, *place, scores, heads_of(smaller, _module(*place)))
        options["fewer_heads"] = ",".join(
            f"{m}={heads_of(smaller, m)}" for m in MODULES if heads_of(smaller, m) < heads_of(_whole(cfg), m)
        )
    if groups:
        options |= _keep(weights, cfg, groups)
    before = sum(value.numel() for value in state["model"].values())
    settings["model"] = options | {"_name": "lasformer", "arch": "lasformer"}
    state |= {"cfg": settings, "args": None, "model": weights, "last_optimizer_state": None, "extra_state": {}}
    save(state, out)
    folder = Path(str(settings["task"]["data"])) if data is None else data
    old, new = scored(checkpoint, folder), scored(out, folder)
    after = sum(value.numel() for value in weights.values())
    command = ["lasformer", "train", str(folder), "FOLDER", "--", "--finetune-from-model", str(out)]
    return (
        f"{out}: {after:,} of {before:,} numbers; {old.bits:.3f} bits per token before, {new.bits:.3f} after\n"
        f"next: {shlex.join([*command, *words_of_options(options)])}"
    )


def importance(checkpoint: Path, data: Path | None) -> dict[tuple[str, str, int], Tensor]:
    """Return how much the loss depends on each head, on the documents of :func:`calibration`.

    It is the mean over documents of |out_h . gradient of the loss by out_h|, the first-order effect of leaving the head
    out (arXiv 1905.10650, eq 3), by side, attention and layer.
    """
    hub: DocumentHubInterface = from_pretrained(checkpoint, data=data).eval()
    model, eos = hub.models[0].requires_grad_(True), hub.task.target_dictionary.eos()
    scores: dict[tuple[str, str, int], Tensor] = {}
    for source, target in calibration(hub.task):
        previous = torch.cat([target.new_tensor([eos]), target[:-1]])
        with _outputs(model) as outputs:
            logits = model(source[None], torch.tensor([len(source)]), previous[None])[0]
        nn.functional.cross_entropy(logits[0].float(), target).backward()
        for place, (out, heads) in outputs.items():
            assert out.grad is not None
            effect = (out * out.grad).unflatten(-1, (heads, -1)).sum((0, 1, 3)).abs()
            scores[place] = scores.get(place, torch.zeros(heads)) + effect.detach()
        model.zero_grad()
    return scores


@contextmanager
def _outputs(model: BaseFairseqModel) -> Iterator[dict[tuple[str, str, int], tuple[Tensor, int]]]:
    """Collect the outputs of all heads in a pass, [1, N, H * D], and their number, by side, attention and layer."""
    outputs: dict[tuple[str, str, int], tuple[Tensor, int]] = {}
    hooks = []
    for side, attention in PLACES.values():
        for i, layer in enumerate(getattr(model, side).layers):
            module = getattr(layer, attention)

            def keep(_: Any, args: Any, at: Any = (side, attention, i), heads: int = module.num_heads) -> None:
                args[0].retain_grad()
                outputs[at] = args[0], heads

            hooks.append(module.out_proj.register_forward_pre_hook(keep))
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _whole(cfg: ModuleConfig) -> ModuleConfig:
    whole = ModuleConfig()
    whole.encoder, whole.decoder = cfg.encoder, cfg.decoder
    return whole


def _module(side: str, attention: str, layer: int) -> str:
    return next(module for module, place in PLACES.items() if place == (side, attention))


def _cut(weights: dict[str, Tensor], side: str, attention: str, layer: int, scores: Tensor, n: int) -> None:
    """Keep the ``n`` heads of an attention with the highest scores, in their order."""
    stem, heads = f"{side}.layers.{layer}.{attention}", scores.topk(n).indices.sort().values
    for name in ("q_proj", "k_proj", "v_proj"):
        for part in ("weight", "bias"):
            value = weights[f"{stem}.{name}.{part}"]
            weights[f"{stem}.{name}.{part}"] = value.unflatten(0, (len(scores), -1))[heads].flatten(0, 1)
    if f"{stem}.line_bias" in weights:
        weights[f"{stem}.line_bias"] = weights[f"{stem}.line_bias"][heads]
    value = weights[f"{stem}.out_proj.weight"]
    weights[f"{stem}.out_proj.weight"] = value.unflatten(1, (len(scores), -1))[:, heads].flatten(1, 2).contiguous()


def _keep(weights: dict[str, Tensor], cfg: ModuleConfig, groups: str) -> dict[str, Any]:
    """Remove the groups that are not named, in place; return the options that change."""
    sizes = {"encoder": cfg.encoder.layers, "decoder": cfg.decoder.layers}
    chosen = _named(groups, {side: len(group_starts(cfg, side)) for side in sizes})
    changed: dict[str, Any] = {}
    starts: list[str] = []
    for side, n_layers in sizes.items():
        bounds = (*group_starts(cfg, side), n_layers)
        numbers: list[int] = []
        for group in chosen[side]:
            starts.append(f"{side}.{len(numbers)}")
            numbers += range(bounds[group], bounds[group + 1])
        old = {name: weights.pop(name) for name in list(weights) if name.startswith(f"{side}.layers.")}
        for name, value in old.items():
            layer = int(name.split(".")[2])
            if layer in numbers:
                weights[re.sub(r"\d+", str(numbers.index(layer)), name, count=1)] = value
        changed[f"{side}_layers"] = len(numbers)
    return changed | {"select_groups": ",".join(starts)}


def _named(groups: str, sizes: Mapping[str, int]) -> dict[str, Sequence[int]]:
    numbers: dict[str, list[int]] = {side: [] for side in sizes}
    for name in groups.split(","):
        side, _, number = name.strip().partition(".")
        if side not in sizes or not number.isdecimal() or int(number) >= sizes[side]:
            there = " and ".join(f"{s}.0 to {s}.{n - 1}" if n > 1 else f"{s}.0" for s, n in sizes.items())
            raise InputError(f"--groups {groups}: there is no group {name.strip()}, only {there}")
        numbers[side].append(int(number))
    return {side: sorted(set(indices)) or range(sizes[side]) for side, indices in numbers.items()}
