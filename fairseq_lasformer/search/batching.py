"""Batches of similar length."""

from collections.abc import Iterable, Sequence


def batches(lengths: Sequence[int], order: Iterable[int], max_tokens: int, most: int | None = None) -> list[list[int]]:
    """Divide items, in a given order, into batches of at most ``max_tokens`` tokens, padding included.

    Args:
        lengths: tokens of each item; one that exceeds ``max_tokens`` forms its own batch.
        order: indices of the items.
        max_tokens: see above.
        most: maximum number of items per batch; None for any.
    """
    found: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        if found and longest * (len(found[-1]) + 1) <= max_tokens and len(found[-1]) != most:
            found[-1].append(i)
        else:
            found.append([i])
            longest = lengths[i]
    return found
