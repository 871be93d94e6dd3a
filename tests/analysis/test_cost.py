"""The cost of attention by the paper's equations and by torch's count."""

from __future__ import annotations

import pytest
import torch
from helpers import save_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lasformer.analysis import cost
from fairseq_lasformer.plugin.config import LasformerConfig, module_config


def module_cost(module: str, cfg, kappas: list[float], length: int) -> cost.Cost:
    return cost.module_cost(module, cfg, cost.module_patterns(module, cfg, kappas), length)


def test_the_cost_is_the_papers_ratio():
    cfg = module_config(LasformerConfig())
    paper = module_cost("encoder", cfg, [0.05, 0.05], 8192)
    assert paper.dense == 2 * 6 * 8192**2 * 512
    assert paper.ratio == pytest.approx(64 / (2 * 3 * 512) + 0.05) and round(paper.ratio, 3) == 0.071
    # the paper's 15 % at 8,000 tokens counts queries, keys and values; the output projection is extra
    assert round(paper.ratio_with_projections, 3) == 0.153 and round(paper.ratio_with_all_projections, 3) == 0.176
    window = module_cost("encoder", module_config(LasformerConfig(select_pattern="window:20")), [], 8192)
    assert window.ratio == window.kappa == 20 / 8192 and window.sparse_projections == window.dense_projections
    dense = module_cost("encoder", module_config(LasformerConfig(select_modules="none")), [], 512)
    assert dense.ratio == dense.kappa == 1.0 and dense.sparse_projections == dense.dense_projections
    # a short document keeps ten keys per query, whatever kappa is
    assert module_cost("cross", cfg, [0.01, 0.01], 100).ratio == pytest.approx(64 / 3072 + 0.1)


def test_own_lines_are_read_besides():
    """25 tokens of the own line, and of the other keys the share that is kept."""
    cfg = module_config(LasformerConfig(own_lines=True, source_context_only=True))
    alone, cross = module_cost("decoder", cfg, [], 1000), module_cost("cross", cfg, [0.05, 0.05], 1000)
    assert alone.ratio == pytest.approx(0.025) and alone.kappa == 0.0
    assert cross.ratio == pytest.approx(64 / 3072 + 0.025 + 0.05 * 0.975) and cross.kappa == 0.05
    full = module_config(LasformerConfig(own_lines=True, select_modules="none"))
    assert module_cost("cross", full, [], 1000).ratio == module_cost("cross", full, [], 7).ratio == 1.0


def test_the_cost_of_a_checkpoint_uses_the_kappa_it_holds(tmp_path, build):
    save_model(tmp_path / "c.pt", build, 0.2)
    costs = {c.module: c for c in cost.checkpoint_cost(tmp_path / "c.pt", [1000])}
    assert costs["cross"].ratio == pytest.approx(0.2 + 2 * 8 / (2 * 3 * 32))
    assert costs["all"].dense == sum(costs[m].dense for m in ("encoder", "decoder", "cross"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_embed_dim": 64, "share_all_embeddings": False},
        {"delight": "official", "embedding": "delight"},
        {"delight": "paper", "embedding": "define", "define_dim": 16, "define_expand": 64},
        {"moe_experts": 4, "moe_gating": "softmax"},
    ],
    ids=lambda o: "-".join(map(str, o.values())) or "lasformer",
)
def test_the_cost_of_a_model_is_what_torch_counts(tmp_path, build, options):
    model = save_model(tmp_path / "c.pt", build, 0.2, **options).eval()
    dense = build(select_modules="none", **options).eval()
    words = torch.randint(4, 64, (1, 40))
    # the fused kernel's products are not counted on a CPU; both count the causal mask's empty half
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        dense(words, torch.tensor([40]), words)
    costs = {c.module: c for c in cost.checkpoint_cost(tmp_path / "c.pt", [40])}
    assert costs["model"].dense == counted.get_total_flops() / 2
    selectors = sum(p.numel() for n, p in model.named_parameters() if ".selector." in n and p.dim() == 2)
    assert costs["model"].sparse - costs["model"].dense == pytest.approx(
        costs["all"].sparse - costs["all"].dense + 40 * selectors
    )


@pytest.mark.parametrize("share", [1, 2, 3, 6])
def test_what_every_layer_computes_is_counted_for_every_layer(share):
    """Linformer's E and F, and random features, belong to a layer; a selector belongs to a group."""
    of = lambda **options: module_cost("encoder", module_config(LasformerConfig(**options)), [1.0] * 6, 1024)  # noqa: E731
    linformer = of(select_pattern="linformer:rows=80,length=2048", select_modules="encoder", select_share=share)
    assert linformer.ratio == pytest.approx(80 / 1024 + 80 / 1024)  # attention, and the two projections
    performer = of(select_pattern="performer:features=64", select_share=share)
    features = 6 * 2 * 1024 * 64 * 512  # of queries and of keys
    assert performer.sparse_projections == performer.dense_projections + features
    learned = of(select_share=share)
    assert learned.ratio == pytest.approx(1 + 64 / (2 * share * 512))
