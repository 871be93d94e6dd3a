"""Placement of features in layers and attention modules: shared selections, heads, mixtures of experts."""

from collections.abc import Mapping
from typing import Any, Protocol

from fairseq_lasformer.base.errors import InputError

MODULES = ("encoder", "decoder", "cross")
"""Attention modules: the encoder's and the decoder's self-attention, and the attention to the source."""


class PlacedOptions(Protocol):
    """The options that decide what is where; see ``options``. ``encoder`` and ``decoder`` have the sizes of a side."""

    encoder: Any
    decoder: Any
    fewer_heads: str
    select_groups: str
    select_share: int
    moe_experts: int
    moe_placement: Any
    moe_layers: str


def heads_of(cfg: PlacedOptions, module: str) -> int:
    """Return the number of heads of one of :data:`MODULES`.

    Raises:
        InputError: ``--fewer-heads`` cannot be read, or names more heads than there are.
    """
    fewer = named_heads("--fewer-heads", cfg.fewer_heads, cfg)
    return fewer.get(module, (cfg.encoder if module == "encoder" else cfg.decoder).attention_heads)


def named_heads(option: str, value: str, cfg: PlacedOptions) -> dict[str, int]:
    """Parse numbers of heads, such as ``encoder=6,cross=4``; return them by module.

    Raises:
        InputError: they cannot be read, or are more heads than there are.
    """
    heads = {}
    for part in filter(None, value.split(",")):
        name, _, number = part.strip().partition("=")
        side = cfg.encoder if name == "encoder" else cfg.decoder
        if name not in MODULES or not number.isdecimal() or not 1 <= int(number) <= side.attention_heads:
            raise InputError(
                f"{option} {value}: {part.strip()}: expected a module ({', '.join(MODULES)}) and a "
                "number of its heads, such as cross=4"
            )
        heads[name] = int(number)
    return heads


def group_starts(cfg: PlacedOptions, module: str) -> tuple[int, ...]:
    """Return the lowest layer of each group of layers that share a selection of one of :data:`MODULES`, from 0.

    Raises:
        InputError: ``--select-groups`` names a layer that does not exist, or leaves out a side's first layer.
    """
    sides = {"encoder": cfg.encoder.layers, "decoder": cfg.decoder.layers}
    side = "encoder" if module == "encoder" else "decoder"
    if not cfg.select_groups:
        return tuple(range(0, sides[side], cfg.select_share))
    starts = _named_layers("--select-groups", cfg.select_groups, sides)
    for name, layers in starts.items():
        if layers[:1] != (0,):
            raise InputError(f"--select-groups {cfg.select_groups}: lacks {name}.0, the start of the first group")
    return starts[side]


def _named_layers(option: str, value: str, sides: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Parse a list of layers, such as ``encoder.1,decoder.3``; return them in ascending order by side.

    Raises:
        InputError: it names a layer that does not exist.
    """
    numbers: dict[str, list[int]] = {side: [] for side in sides}
    for name in value.split(","):
        side, _, place = name.strip().partition(".")
        if side not in sides or not place.isdecimal() or int(place) >= sides[side]:
            raise InputError(f"{option} {value}: no layer {name.strip()}; expected e.g. encoder.1")
        numbers[side].append(int(place))
    return {side: tuple(sorted(set(layers))) for side, layers in numbers.items()}


def mixture_layers(cfg: PlacedOptions) -> dict[str, tuple[int, ...]]:
    """Return the layers that have a mixture of experts, from 0, by side.

    With ``--moe-placement shazeer``, these are the layers that the mixture follows.

    Raises:
        InputError: the options contradict each other, or name a layer that does not exist.
    """
    sides = {"encoder": cfg.encoder.layers, "decoder": cfg.decoder.layers}
    if not cfg.moe_experts:
        return {side: () for side in sides}
    if cfg.moe_placement == "shazeer":
        if "." in cfg.moe_layers:
            raise InputError("--moe-placement shazeer places its mixtures itself: leave out --moe-layers")
        return {"encoder": (max(0, sides["encoder"] - 2),), "decoder": (0,)}
    if "." in cfg.moe_layers:
        return _named_layers("--moe-layers", cfg.moe_layers, sides)
    every = [e.strip() for e in cfg.moe_layers.split(",")]
    if len(every) > 2 or not all(e.isdecimal() for e in every):
        raise InputError(f"--moe-layers {cfg.moe_layers}: expected N, N,M or layers such as encoder.1")
    steps = dict(zip(sides, (int(e) for e in every * (3 - len(every)))))
    return {side: tuple(range(steps[side] - 1, n, steps[side])) if steps[side] else () for side, n in sides.items()}
