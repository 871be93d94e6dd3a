"""Mixtures of experts on one worker: gates, losses, dispatch, hierarchy, optimizer, and the model around them."""

from __future__ import annotations

import pytest
import torch
from helpers import mixture
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lasformer.nn.moe import MixtureOfExperts, gating
from fairseq_lasformer.nn.moe.experts import Experts
from fairseq_lasformer.nn.moe.metrics import router_metrics
from fairseq_lasformer.nn.moe.routing import cv_squared
from fairseq_lasformer.plugin.optimizers.expert_adam import ExpertAdam

GATES = ["noisy-topk", "softmax", "batchwise", "gshard-top2"]


def every_expert(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """Return E_i(x) for all i, [T, n, d]."""
    hidden = torch.einsum("td,ndh->tnh", x, layer.experts.w1).relu()
    return torch.einsum("tnh,nhd->tnd", hidden, layer.experts.w2)


def test_the_chance_of_being_chosen_is_the_share_of_draws_that_choose():
    clean, std = torch.tensor([[0.5, -0.2, 0.1, -1.5]]), torch.tensor([[0.7, 0.3, 0.9, 0.6]])
    draw = torch.randn(1, 4)
    scores = clean + draw * std
    for k in (1, 2, 3):
        chance = gating.chance_in_top_k(scores, clean, std, scores.topk(k + 1).values, k)
        for i in range(4):
            again = scores.repeat(200_000, 1)
            again[:, i] = clean[0, i] + torch.randn(200_000) * std[0, i]
            chosen = (again.topk(k).indices == i).any(1).float().mean()
            assert float(chance[0, i]) == pytest.approx(float(chosen), abs=0.005)
    assert (gating.chance_in_top_k(scores, clean, std, scores.topk(4).values, 4) == 1).all()


def test_gate_weights_follow_the_equations():
    layer = mixture(moe_top_k=2).eval()
    x = torch.randn(7, 6, dtype=torch.float64)
    routing = layer.gate(x).routing
    scores = x @ layer.gate.gate
    for t in range(7):
        kept = torch.full((4,), -torch.inf, dtype=torch.float64)
        best = scores[t].topk(2).indices
        kept[best] = scores[t, best]
        seen = torch.zeros(4, dtype=torch.float64)
        seen[routing.expert[routing.token == t]] = routing.weight[routing.token == t]
        torch.testing.assert_close(seen, kept.softmax(0))


@pytest.mark.parametrize("gate", ["noisy-topk", "hierarchical"])
def test_balance_losses_have_the_gradients_of_their_value(gate):
    groups = 3 if gate == "hierarchical" else 0
    layer = mixture(moe_experts=9, moe_groups=groups, moe_importance_weight=0.3, moe_load_weight=0.7)
    x = torch.randn(11, 6, dtype=torch.float64)
    noise = layer.gate.sample_noise(11, x.device, None).double()
    names = [n for n, _ in layer.gate.named_parameters()]

    def loss(*weights):
        found = torch.func.functional_call(layer.gate, dict(zip(names, weights)), (x, noise))
        return layer.gate.balance(found.sums)

    weights = tuple(p.detach().requires_grad_() for p in layer.gate.parameters())
    assert torch.autograd.gradcheck(loss, weights, eps=1e-7, atol=1e-5)
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(loss(*weights), weights))


def test_coefficient_of_variation_is_the_populations():
    assert float(cv_squared(torch.tensor([1.0, 3.0]))) == 0.25
    assert float(cv_squared(torch.zeros(4))) == 0.0


@pytest.mark.parametrize("n_experts", [1, 5])
def test_dispatch_equals_the_sum_over_all_experts(n_experts):
    for k in range(1, n_experts + 1):
        layer = mixture(moe_experts=n_experts, moe_top_k=k)
        x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
        padding = torch.zeros(3, 5, dtype=torch.bool)
        padding[0, :2] = padding[2] = True
        noise = torch.randn(8, n_experts, dtype=torch.float64)
        out, balance = layer(x, padding, noise)
        flat = x[~padding]
        routing = layer.gate(flat, noise).routing
        weight = torch.zeros(8, n_experts, dtype=torch.float64).index_put(
            (routing.token, routing.expert), routing.weight
        )
        expected = torch.zeros_like(x).masked_scatter(
            ~padding[..., None], (every_expert(layer, flat) * weight[..., None]).sum(1)
        )
        torch.testing.assert_close(out, expected)
        assert (out[padding] == 0).all() and float(balance.tokens) == 8 and float(balance.load.sum()) == 8 * k
        grads = [
            torch.autograd.grad(o.square().sum(), [x, *layer.experts.parameters()], retain_graph=True)
            for o in (out, expected)
        ]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("gate", GATES)
def test_padding_is_neither_routed_nor_counted(gate):
    layer = mixture(moe_gating=gate)
    x = torch.randn(2, 6, 6, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [True] * 2 + [False] * 4])
    noise = layer.gate.sample_noise(10, x.device, None)
    out, balance = layer(x, padding, noise)
    other = x.masked_fill(padding[..., None], 1e3)
    again, same = layer(other, padding, noise)
    assert torch.equal(out, again) and torch.equal(balance.load, same.load)
    nothing, empty = layer(x, torch.ones(2, 6, dtype=torch.bool))
    assert (nothing == 0).all() and float(empty.load.sum()) == 0 and float(empty.loss) == 0
    empty.loss.backward() if empty.loss.requires_grad else None


def test_a_hierarchical_mixture_is_a_flat_one_with_product_gates():
    layer = mixture(moe_experts=12, moe_groups=4)
    x = torch.randn(9, 6, dtype=torch.float64)
    noise = torch.randn(9, 16, dtype=torch.float64)
    out, balance = layer(x, None, noise)
    gate = layer.gate
    expected, importance, load = torch.zeros_like(x), torch.zeros(12).double(), torch.zeros(12).double()
    experts = every_expert(layer, x)
    primary = gate.primary(x, noise[:, :4])
    for i in range(4):
        routing = primary.routing
        inside = routing.expert == i
        here, above = routing.token[inside], routing.weight[inside]
        for t, g in zip(here.tolist(), above):
            std = torch.nn.functional.softplus(x[t] @ gate.noise[i]) + gate.noise_floor
            clean = x[t] @ gate.gate[i]
            scores = clean + noise[t, 4 + 3 * i : 7 + 3 * i] * std
            top = scores.topk(3)
            weight = top.values[:2].softmax(0)
            for j, w in zip(top.indices[:2].tolist(), weight):
                expected[t] += g * w * experts[t, 3 * i + j]
                importance[3 * i + j] += g * w
            chance = gating.chance_in_top_k(scores[None], clean[None], std[None], top.values[None], 2)[0]
            load[3 * i : 3 * i + 3] += chance * primary.sums["load"][i] / len(here)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(balance.importance, importance.detach())
    loss = 0.01 * cv_squared(importance) + 0.01 * cv_squared(load)
    torch.testing.assert_close(balance.loss, loss)
    assert torch.autograd.grad(balance.loss, gate.primary.gate)[0].abs().max() > 0


def test_batchwise_gating_gives_every_expert_the_same_number_of_tokens():
    for n_tokens in (8, 50, 64):
        layer = mixture(moe_experts=8, moe_gating="batchwise")
        _, balance = layer(torch.randn(n_tokens, 6, dtype=torch.float64), None)
        assert balance.load.tolist() == [round(2 * n_tokens / 8)] * 8


def test_the_batchwise_threshold_is_learned_until_it_decides_as_the_batch_does():
    layer = mixture(moe_experts=8, moe_gating="batchwise")
    x = torch.randn(64, 6, dtype=torch.float64)
    gates = (x @ layer.gate.gate).softmax(1).detach()
    top = gates.sort(0, descending=True).values
    with torch.no_grad():
        layer.gate.threshold.copy_((top[15] + top[16]) / 2)
    right = layer.gate(x)
    assert float(right.own_loss) == 0 and float(right.sums["threshold_gap"].sum()) == 0
    for wrong in (0.0, 1.0):
        torch.nn.init.constant_(layer.gate.threshold, wrong)
        found = layer.gate(x)
        assert float(found.own_loss) > 0 and found.sums["threshold_gap"].sum() > 0
        grads = torch.autograd.grad(found.own_loss, [layer.gate.threshold, layer.gate.gate], allow_unused=True)
        assert grads[0].abs().max() > 0 and grads[1] is None
    optimizer = torch.optim.SGD([layer.gate.threshold], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        layer.gate(x).own_loss.backward()
        optimizer.step()
    assert float(layer.gate(x).sums["threshold_gap"].sum()) < 0.1 * 64 * 2
    layer.eval()
    inferred = layer.gate(x).routing
    assert 90 < inferred.token.numel() < 170  # 128 of the batch's


def test_gshard_uses_the_second_expert_in_proportion_to_its_weight():
    layer = mixture(moe_gating="gshard-top2", moe_load_weight=1.0)
    x = torch.randn(1, 6, dtype=torch.float64).expand(20_000, 6)
    gates = (x[0] @ layer.gate.gate).softmax(0).topk(2).values
    second = float(gates[1] / gates.sum())
    found = layer.gate(x, layer.gate.sample_noise(20_000, x.device, None))
    counts = torch.bincount(found.routing.expert, minlength=4).sort(descending=True).values
    assert int(counts[0]) == 20_000 and float(counts[1]) / 20_000 == pytest.approx(min(1.0, 2 * second), abs=0.02)
    even = {"first": torch.full((4,), 5.0), "mean_gate": torch.full((4,), 5.0)}
    assert float(layer.gate.balance(even)) == 1.0
    layer.eval()
    assert layer.gate(x[:3]).routing.token.numel() == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [[5, 0, 3, 8], [0, 0, 0, 0], [16, 0, 0, 0]])
def test_grouped_products_and_recomputation_change_nothing(dtype, sizes):
    rows = torch.randn(sum(sizes), 16, dtype=dtype)
    results = []
    for backend, recompute in (("loop", False), ("grouped", False), ("loop", True), ("grouped", True)):
        torch.manual_seed(4)
        experts = Experts(16, 24, 4, backend=backend, recompute=recompute).to(dtype)
        x = rows.clone().requires_grad_()
        out = experts(x, torch.tensor(sizes))
        out.sum().backward()  # an expanded gradient, which PyTorch's grouped product refuses
        results.append([out, x.grad, experts.w1.grad, experts.w2.grad])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


def test_recomputation_keeps_no_hidden_activations():
    kept = []
    for recompute in (False, True):
        layer = mixture(dim=16, ffn_dim=512, dtype=torch.float32, moe_recompute=recompute)
        held: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, h=held: h.append(t.numel()) or t, lambda t: t):
            layer(torch.randn(100, 16), None)
        kept.append(max(held))
    assert kept[0] > 50 * 512 and kept[1] <= 4 * 16 * 512


def test_operations_do_not_depend_on_the_number_of_experts():
    counts = []
    for n in (4, 32):
        layer = mixture(dim=16, ffn_dim=64, dtype=torch.float32, moe_experts=n).eval()
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(200, 16), None)
        gate = 2 * 2 * 200 * 16 * n
        counts.append(counter.get_total_flops() - gate)
    assert counts[0] == counts[1] == 2 * 2 * 200 * 2 * 16 * 64


@pytest.mark.parametrize("gate", [*GATES, "hierarchical"])
def test_automatic_mixed_precision_leaves_mixtures_alone(gate):
    groups = {"moe_groups": 2} if gate == "hierarchical" else {"moe_gating": gate}
    layer = mixture(dtype=torch.float32, **groups)
    x = torch.randn(9, 6)
    noise = layer.gate.sample_noise(9, x.device, None)
    expected, _ = layer(x, None, noise)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, balance = layer(x, None, noise)
    torch.testing.assert_close(out, expected)
    (out.square().sum() + balance.loss).backward()


def test_one_workers_experts_alone_are_no_checkpoint():
    part, other = Experts(4, 6, 4, first=0, n_local=2), Experts(4, 6, 4, first=2, n_local=2)
    with pytest.raises(RuntimeError, match="contains 2 of 4 experts: not a complete checkpoint"):
        other.load_state_dict(part.state_dict())


def test_experts_are_the_same_however_they_are_spread():
    torch.manual_seed(5)
    whole = Experts(4, 6, 4)
    for rank in range(2):
        torch.manual_seed(5)
        part = Experts(4, 6, 4, first=2 * rank, n_local=2)
        assert torch.equal(part.w1, whole.w1[2 * rank : 2 * rank + 2])
        torch.nn.init.zeros_(part.w2)
        part.load_state_dict(whole.state_dict())
        assert torch.equal(part.w2, whole.w2[2 * rank : 2 * rank + 2])
    assert not torch.equal(whole.w1[0], whole.w1[1]) and float(whole.w1.abs().max()) <= 0.5


def test_the_expert_optimizer_is_adam_without_beta1_where_squares_are_of_rank_one():
    rank_one = torch.rand(3, 5, 1) @ torch.rand(3, 1, 7)
    expert, other = torch.nn.Parameter(torch.randn(3, 5, 7)), torch.nn.Parameter(torch.randn(4))
    plain = torch.nn.Parameter(expert.detach().clone())
    expert.param_group = "expert"
    ours = ExpertAdam([other, expert], lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    adam = torch.optim.Adam([plain], lr=0.1, betas=(0.0, 0.98), eps=1e-9)
    for step in range(4):
        expert.grad = rank_one.sqrt() * (-1) ** step * (step + 1)
        plain.grad, other.grad = expert.grad.clone(), torch.ones(4)
        ours.step()
        adam.step()
        torch.testing.assert_close(expert, plain, rtol=1e-4, atol=1e-5)
    state = ours.state[expert]
    assert sum(t.numel() for t in state.values() if isinstance(t, torch.Tensor)) == 3 * (5 + 7)
    assert {"exp_avg", "exp_avg_sq"} <= ours.state[other].keys()
    v = state["row"][..., None] * state["column"][:, None] / state["row"].mean(-1)[:, None, None]
    torch.testing.assert_close(v.mean(-1), state["row"])
    torch.testing.assert_close(v.mean(-2), state["column"])


def test_statistics_tell_uneven_use():
    zero = torch.zeros(())
    sums = {
        "importance": torch.tensor([1.0, 3.0, 0.0, 0.0]),
        "load": torch.tensor([4.0, 4.0, 0.0, 0.0]),
        "received": torch.tensor([6.0, 2.0]),
        "entropy": zero + 8.0,
        "tokens": zero + 4.0,
        "threshold_gap": torch.tensor([2.0, 0.0, 0.0, 0.0]),
    }
    found = router_metrics(sums)
    assert found["load_max_over_mean"] == 2 and found["unused"] == 2 and found["load_cv"] == 1
    assert found["received_rows"] == 4 and found["received_max_over_mean"] == 1.5
    assert found["gate_entropy"] == 2 and found["threshold_gap"] == 0.125


@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1)])
def test_losses_keep_experts_evenly_used(weights):
    """The direction of table 6: without losses, an uneven gate stays uneven; with either loss, it becomes even."""
    torch.manual_seed(0)
    importance, load = weights
    layer = mixture(16, 32, torch.float32, moe_experts=8, moe_importance_weight=importance, moe_load_weight=load)
    function, mean = torch.nn.Linear(16, 16), torch.randn(16)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(200):
        tokens = torch.randn(256, 16) + mean
        out, stats = layer(tokens, None)
        optimizer.zero_grad()
        ((out - function(tokens).detach()).square().mean() + stats.loss).backward()
        optimizer.step()
    uneven = router_metrics(stats._asdict())["load_max_over_mean"]
    assert uneven < 1.5 if any(weights) else uneven > 2


def test_noise_has_the_papers_standard_deviation_and_stays_finite():
    """Equation 4 to the letter, without a floor; and gradients where softplus underflows to 0."""
    x, w = torch.randn(50, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    _, _, std = gating.noisy_scores(x, w, w, None)
    assert torch.equal(std, torch.nn.functional.softplus(x @ w))
    assert torch.equal(gating.noisy_scores(x, w, w, None, 0.01)[2], std + 0.01)
    gate = gating.NoisyTopKGate(6, 4, 2, 0.01, 0.01)
    with torch.no_grad():
        gate.noise.fill_(-100.0)
    found = gate(torch.ones(9, 6), torch.randn(9, 4))  # all experts tie
    found.sums["load"].square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in (gate.gate, gate.noise)) and found.sums["load"].isfinite().all()


def test_the_floor_is_an_option():
    layer = mixture(moe_noise_floor=0.01)
    assert layer.gate.noise_floor == 0.01 and mixture(moe_groups=2).gate.primary.noise_floor == 0.0
