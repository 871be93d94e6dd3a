"""An attention that selects nothing, as a contributor would write one: linear attention (arXiv 2006.16236)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_beams_decode_alike, tokens
from torch import Tensor, nn

from fairseq_lasformer.analysis import cost
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.attentions import ATTENTIONS, Attention, AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.patterns import PatternCost
from fairseq_lasformer.plugin.config import LasformerConfig, module_config


class Linear(Attention):
    """phi(Q) (phi(K)^T V) / phi(Q) sum phi(K), phi = elu + 1; in a step, the two sums are the state."""

    name = usage = "linear"

    def __init__(self, options: AttentionOptions) -> None:
        super().__init__()
        self.heads, width = options.num_heads, options.embed_dim
        self.q_proj, self.k_proj = nn.Linear(options.query_dim, width), nn.Linear(options.key_dim, width)
        self.v_proj, self.out_proj = nn.Linear(options.key_dim, width), nn.Linear(width, options.out_dim)

    @classmethod
    def build(cls, argument: str, options: AttentionOptions) -> Linear:
        if argument:
            raise ValueError("linear takes no argument")
        return cls(options)

    def forward(self, full, selection=None) -> AttentionOutput:
        x, mask = full.query, full.mask
        q, k, v = self._heads(self.q_proj(x)), *self._keys(full.key)
        allowed = mask.full(q.size(0), q.size(1), k.size(1), x.device)
        weights = torch.einsum("bqhd,bkhd->bhqk", F.elu(q) + 1, k) * allowed[:, None]
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v) / weights.sum(-1).transpose(1, 2)[..., None].clamp_min(1e-9)
        return AttentionOutput(self.out_proj(out.flatten(2)))

    def step(self, x, keys, kept=None) -> AttentionOutput:
        q, width = F.elu(self._heads(self.q_proj(x))) + 1, self.out_proj.in_features // self.heads
        if keys.memory is None:
            products, sums = keys.state("products", self.heads, width, width), keys.state("sums", self.heads, width)
            k, v = self._keys(x)
            products += k[..., None] * v[..., None, :]
            sums += k
        else:
            k, v = (self._heads(keys.project(name, lambda m, i=i: self._keys(m)[i].flatten(2))) for i, name in _SIDES)
            k = k * keys.key_index.allowed()[..., None, None]
            beam = q.size(0) // k.size(0)
            products = torch.einsum("nkhd,nkhe->nhde", k, v).repeat_interleave(beam, 0)
            sums = k.sum(1).repeat_interleave(beam, 0)
        out = torch.einsum("rhd,rhde->rhe", q, products) / (q * sums).sum(-1, keepdim=True).clamp_min(1e-9)
        return AttentionOutput(self.out_proj(out.flatten(1)))

    def cost(self, length: int) -> PatternCost:
        return PatternCost(self.out_proj.in_features / self.heads / length)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.elu(self._heads(self.k_proj(x))) + 1, self._heads(self.v_proj(x))


_SIDES = (0, "key"), (1, "value")
ATTENTIONS.pop("linear")  # known only in these tests


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "linear", Linear)


def test_it_decodes_beams_as_it_reads_them(build):
    model = build(select_pattern="linear").eval()
    assert not list(model.patterns())
    assert_beams_decode_alike(model, model)
    model.make_generation_fast_()
    assert model.decoder.packed is None


def test_it_trains_beside_selected_attention(build):
    model = build(select_pattern="linear", select_modules="encoder,decoder").train()  # cross-attention is full
    assert [name for name, _ in model.patterns()] == ["cross.0", "cross.1"]
    x, extra = model(tokens(2, 30, pad_left=(0, 9)), None, tokens(2, 20))
    x.logsumexp(-1).sum().backward()
    assert extra["supervision"] == {} and torch.isfinite(x).all()
    assert all(float(p.grad.abs().max()) > 0 for n, p in model.named_parameters() if "self_attn.v_proj" in n)


def test_it_has_a_cost_and_mistakes_are_told_in_one_line(build):
    cfg = module_config(LasformerConfig(select_pattern="linear"))
    own = cost.module_cost("encoder", cfg, cost.module_patterns("encoder", cfg, []), 4096)
    assert own.ratio == own.kappa == 64 / 4096
    with pytest.raises(InputError, match="--select-pattern linear:7: linear takes no argument"):
        build(select_pattern="linear:7")
    model = build(select_pattern="linear")
    model.decoder.run_options = RunOptions(int8=True)
    with pytest.raises(InputError, match="--decode-dtype int8: not with the attention linear"):
        model.decoder.make_generation_fast_()
