"""Sums over the keys up to each query's position, for attentions whose weights are products."""

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
"""Queries per chunk: within a chunk a matrix is computed; earlier chunks enter as sums."""

LOWEST = -1e9
"""Replacement for log 0."""


def prefix_products(a: Tensor, b: Tensor, c: Tensor, log: Tensor | None = None) -> Tensor:
    """Return a_t sum_{j <= t} exp(log_j) b_j^T c_j, [B, H, N, E]; time and memory grow linearly with N.

    Args:
        a, b: [B, H, N, M].
        c: [B, H, N, E].
        log: [B, H, N, 1]; None for zeros. With it, a row lacks the factor exp(max_{j <= t} log_j), as in steps: with
            a common factor, the keys of an early query could underflow because of a later one.
    """
    n = c.size(2)
    if log is None:
        log = torch.zeros_like(c[..., :1])
    a, b, c = (pad(t, (0, 0, 0, -n % CHUNK)).unflatten(2, (-1, CHUNK)) for t in (a, b, c))
    log = pad(log, (0, 0, 0, -n % CHUNK), value=-torch.inf)
    largest = log.cummax(2).values.clamp_min(LOWEST).unflatten(2, (-1, CHUNK))
    log = log.unflatten(2, (-1, CHUNK))
    own = a @ b.transpose(3, 4) * (log.transpose(3, 4) - largest).exp().tril() @ c
    last = largest[..., -1:, :]
    sums = (b * (log - last).exp()).transpose(3, 4) @ c
    earlier, before = torch.zeros_like(sums[:, :, 0]), torch.full_like(last[:, :, 0], LOWEST)
    rows = []
    for i in range(c.size(2)):
        rows.append(own[:, :, i] + a[:, :, i] @ earlier * (before - largest[:, :, i]).exp())
        earlier, before = earlier * (before - last[:, :, i]).exp() + sums[:, :, i], last[:, :, i]
    return torch.cat(rows, 2)[:, :, :n]
