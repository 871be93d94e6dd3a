"""Parameter counts of a model, by part."""

from collections.abc import Iterable, Iterator, Mapping

import torch


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
    counts = {"word tables": 0, "embedding units": 0, "encoder": 0, "decoder": 0, "output projection": 0}
    for name, p in named:
        side, _, rest = name.partition(".")
        part = side
        if rest.startswith("embed_tokens"):
            part = "embedding units" if ".unit." in rest else "word tables"
        elif rest.startswith("output_projection"):
            part = "output projection"
        counts[part] += p.numel()
    return counts | {"total": sum(counts.values())}


def table(counts: dict[str, int]) -> str:
    """Format the counts for a terminal."""
    return "\n".join(f"{name:<20}{n:>14,}" for name, n in counts.items())
