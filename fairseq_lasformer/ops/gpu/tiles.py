"""Full passes on GPUs, in training and inference: tiles of all keys with a bitmask of the kept ones.

Definition: ``reference.select`` and ``reference.selected_attention``. Kernels: ``kernels.bits``, ``kernels.tiles``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops.attend import GradientOptions, gradient_options, selected_attention
from fairseq_lasformer.ops.backends import current, required_kernels
from fairseq_lasformer.ops.blocks import BLOCK_ELEMENTS, MINIMUM_ROWS
from fairseq_lasformer.ops.gpu.teacher import WORD, fits, mask_of, tiled_through_gradient
from fairseq_lasformer.ops.types import Attended, AttentionMask, DropoutMask, FunctionContext, StraightThrough


@torch.no_grad()
def topk_bitmask(sel_q: Tensor, sel_k: Tensor, mask: AttentionMask, kappa: int | Tensor) -> Tensor:
    """Select the kept keys of all queries (eq 1, 2) as a bitmask, without synchronising.

    Scores are sums in float32 of exact products, in every type of the projections.

    Args:
        sel_q: [B, Q, S].
        sel_k: [B, K, S].
        kappa: fraction of keys to keep, in millionths; as int64 [] on the device, a CUDA graph rereads it.

    Returns:
        int32 [B, Q, ceil(K / 32)]: bit j % 32 of word j // 32 is key j.
    """
    (n_batch, n_queries, _), n_keys, device = sel_q.shape, sel_k.size(1), sel_q.device
    dtype = sel_q.dtype if sel_q.dtype == sel_k.dtype and fits(sel_q[:, None]) else torch.float32
    queries, keys = sel_q.to(dtype).contiguous(), sel_k.to(dtype).contiguous()
    if not isinstance(kappa, Tensor):
        kappa = torch.full((), kappa, dtype=torch.int64, device=device)
    step = max(MINIMUM_ROWS, BLOCK_ELEMENTS.get(device.type, BLOCK_ELEMENTS["cpu"]) // (n_batch * n_keys))
    # a single block of rows writes all of their words
    make = torch.empty if n_queries <= step else torch.zeros
    bits = make(n_batch, n_queries, -(-n_keys // WORD), dtype=torch.int32, device=device)
    with current(queries):
        for start in range(0, n_queries, step):
            rows = slice(start, min(start + step, n_queries))
            required_kernels("bits").select_block(queries[:, rows], keys, mask, start, n_queries, kappa, bits[:, rows])
    return bits


def allowed_bitmask(mask: AttentionMask, q: Tensor, n_keys: int) -> Tensor:
    """Return all keys that a mask with padding allows as a bitmask, for attention over padded batches.

    Args:
        q: [B, H, Q, D].

    Returns:
        int32 [B, Q, ceil(K / 32)]; see :func:`topk_bitmask`.
    """
    n_queries, n_words, device = q.size(2), -(-n_keys // WORD), q.device
    padding = mask.key_padding
    padding = torch.zeros(q.size(0), n_keys, dtype=torch.bool, device=device) if padding is None else padding
    lanes = torch.arange(WORD, device=device)
    visible = F.pad(~padding, (0, n_words * WORD - n_keys)).view(-1, n_words, WORD)
    words = (visible.long() << lanes).sum(-1)[:, None].expand(-1, n_queries, -1)
    if mask.causal:
        seen = torch.arange(1 + n_keys - n_queries, 1 + n_keys, device=device)[:, None]
        seen = (seen - WORD * torch.arange(n_words, device=device)).clamp(0, WORD)
        words = words & ((1 << seen) - 1)
    return words.int()


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor,
    mask: AttentionMask,
    through: StraightThrough | None = None,
    dropout_p: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute attention over the keys of a bitmask (eq 3).

    Args:
        q, k, v: [B, H, Q or K, D].
        bits: bitmask of :func:`topk_bitmask`.
        mask: attention mask, a superset of the bits.
        through: receiver of the straight-through gradient; None: none.
        dropout_p: dropout probability of the attention weights.
        bias: b_h [H], with own lines, see ``reference.line_bias``.

    Returns:
        [B, H, Q, D] in q's dtype; 0 for rows without kept keys.
    """
    if not fits(q):
        keep = mask_of(bits, k.size(2))
        return selected_attention(q, k, v, keep, mask, through, dropout_p, bias)
    sel_q, sel_k, how = gradient_options(through, DropoutMask.drawn_on(q.device, dropout_p))
    shift = mask.shift(bias, q.size(2), k.size(2))
    return _TiledAttention.apply(q, k, v, shift, bits, mask, sel_q, sel_k, how)


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shift: Tensor | None,
        bits: Tensor,
        mask: AttentionMask,
        sel_q: Tensor | None,
        sel_k: Tensor | None,
        how: GradientOptions,
    ) -> Tensor:
        kernels = required_kernels("tiles")
        q, k, v = (kernels.laid(t) for t in (q, k, v))
        with current(q):
            lines = None if mask.own is None else mask.own.pairs
            out, lse = kernels.forward(q, k, v, bits, mask.causal, how.dropout, lines, shift)
        ctx.save_for_backward(q, k, v, bits, mask.key_padding, sel_q, sel_k, out, lse, shift)
        ctx.causal, ctx.how, ctx.own = mask.causal, how, mask.own
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bits, key_padding, sel_q, sel_k, out, lse, shift = ctx.saved_tensors
        bounded, sample, dropout = ctx.how
        kernels = required_kernels("tiles")
        attended = Attended(q, k, v, out, kernels.laid(d_out), lse, shift)
        with current(q):
            lines = None if ctx.own is None else ctx.own.pairs
            *gradients, delta = kernels.backward(attended, bits, ctx.causal, dropout, lines)
        learned: tuple[Tensor | None, Tensor | None] = None, None
        if sel_q is not None and (sel_q.requires_grad or sel_k.requires_grad):
            through = StraightThrough(sel_q, sel_k, bounded, sample)
            mask = AttentionMask(key_padding, ctx.causal, own=ctx.own)
            learned = tiled_through_gradient(attended, delta, mask, through, dropout)
        return (*gradients, None, None, *learned, None)
