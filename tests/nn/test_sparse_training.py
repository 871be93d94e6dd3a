"""Training with few kept keys: slots instead of masks, and selectors that learn from a sample of the queries."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE, tokens

from fairseq_lasformer.nn import options
from fairseq_lasformer.nn.forms import MaskSelection, SlotSelection
from fairseq_lasformer.nn.options import EVERY_QUERY, RowSampling
from fairseq_lasformer.ops import EVERY_ROW, choice
from fairseq_lasformer.plugin.build import sampling


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The examples of these tests count as long ones."""
    monkeypatch.setattr(options, "SHORTEST", 1)
    monkeypatch.setattr(choice, "TRAINING_FROM", 1)


def step(model, update=1, n_queries=90):
    """Return the translation loss and the supervision of a pass, and the gradient of every parameter."""
    torch.manual_seed(5)
    model.train()
    model.set_num_updates(update)
    source, target = tokens(2, n_queries, pad_left=(0, 13)), tokens(2, n_queries - 20)
    model.zero_grad()
    logits, extra = model(source, None, target)
    loss = logits.logsumexp(-1).sum()
    kl = sum(given.kl / given.queries for given in extra["supervision"].values())
    (loss + 100 * kl).backward()
    return (loss, kl, *(p.grad for p in model.parameters()))


def test_rows_are_drawn_by_update_and_only_where_it_pays(monkeypatch):
    monkeypatch.setattr(options, "SHORTEST", 256)
    drawn = RowSampling(512, 0.35)
    assert EVERY_QUERY.sample(1, 9000, 0.1) == EVERY_ROW
    assert drawn.sample(1, 4096, 0.4) == EVERY_ROW == drawn.sample(64, 255, 0.1) == drawn.sample(1, 1000, 0.1)
    strides = [drawn.sample(*shape, 0.1).stride for shape in ((1, 1024), (2, 1024), (1, 4096), (1, 100_000))]
    assert strides == [2, 4, 8, 32]
    offsets = [drawn._replace(update=i).sample(1, 4096, 0.1).offset for i in range(400)]
    assert set(offsets) == set(range(8)) and offsets == [
        drawn._replace(update=i).sample(1, 4096, 0.1).offset for i in range(400)
    ]
    assert min(map(offsets.count, range(8))) > 25
    few = drawn._replace(places=2)
    offsets = [few._replace(update=i).sample(1, 4096, 0.1).offset for i in range(100)]
    assert set(offsets) == {0, 4} and 25 < offsets.count(0) < 75
    assert few.sample(1, 512, 0.1) == EVERY_ROW


def test_on_a_gpu_a_sample_is_enough_at_every_kappa(build):
    cfg = build().cfg
    on = {name: sampling(cfg, 3, torch.device(name)) for name in ("cpu", "cuda")}
    assert on["cpu"].sample(4, 4096, 0.9) == EVERY_ROW and on["cuda"].sample(4, 4096, 0.9).stride == 32
    assert on["cpu"].sample(4, 4096, 0.3).stride == 32
    assert sampling(build(supervise_rows="all").cfg, 3, torch.device("cuda")).sample(4, 4096, 0.1) == EVERY_ROW


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels")
@pytest.mark.parametrize("gradient", ["bounded", "straight-through", "none"])
def test_slots_train_as_masks_do(build, gradient, monkeypatch):
    model = build(0.2, select_gradient=gradient, supervise_rows="40")
    forms = []
    for name, form in (("SlotSelection", SlotSelection), ("MaskSelection", MaskSelection)):
        real = form.attend
        monkeypatch.setattr(form, "attend", lambda *a, real=real, name=name: forms.append(name) or real(*a))
    slots = step(model)
    assert set(forms) == {"SlotSelection"}
    monkeypatch.setattr(choice, "TRAINING_FROM", 1000)
    masks = step(model)
    assert forms[-1] == "MaskSelection"
    for a, b in zip(slots, masks):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()) + 1e-5)


@pytest.mark.parametrize("kappa", [0.2, 0.3])
def test_steps_repeat_bit_for_bit_also_when_recomputed(build, kappa):
    model = build(kappa, supervise_rows="40")
    first, again = step(model, 3), step(model, 3)
    recomputed = step(build(kappa, supervise_rows="40", checkpoint_activations=True), 3)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert all(torch.equal(a, b) for a, b in zip(first, recomputed))
    others = [step(model, update)[1] for update in range(4, 12)]
    assert any(other != first[1] for other in others)  # a different sample


@pytest.mark.sweep
@pytest.mark.parametrize("gradient", ["bounded", "none"])
def test_no_selector_is_ever_without_gradient(build, gradient):
    model = build(0.2, select_gradient=gradient, supervise_rows="20")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for update in range(100):
        step(model, update, 60)
        for name, selector in model.selectors():
            for projection in (selector.q_proj, selector.k_proj):
                assert projection.weight.grad.norm() > 0, (update, name)
        optimizer.step()


def test_rows_that_are_asked_for_are_numbers(build):
    for rows in ("-1", "half", "0"):
        with pytest.raises(Exception, match="--supervise-rows"):
            build(supervise_rows=rows)
