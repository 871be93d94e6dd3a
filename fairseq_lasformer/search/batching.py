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
    batches_of: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        if batches_of and longest * (len(batches_of[-1]) + 1) <= max_tokens and len(batches_of[-1]) != most:
            batches_of[-1].append(i)
        else:
            batches_of.append([i])
            longest = lengths[i]
    return batches_of
