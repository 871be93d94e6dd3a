"""Linear layers in bfloat16: near float32 where they are used, float32 to the bit where they are not."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import batches, trainer_of
from torch import nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.nn import bfloat16
from fairseq_lasformer.nn.bfloat16 import BFloat16Linear, products, some_rows, use_bfloat16


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(bfloat16, "LEAST", 1)


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether the error is that of 8 bits of mantissa: 2 ** -8 of the largest number, at most."""
    return found.dtype == expected.dtype and bool((found - expected).abs().max() <= expected.abs().max() / 128)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 1025, 4095, 4096, 70_001])
def test_rows_are_rounded_up_to_few_numbers(n):
    assert n <= some_rows(n) <= max(n + 63, n * 1.125)
    assert some_rows(some_rows(n)) == some_rows(n)
    assert len({some_rows(m) for m in range(2048, 4096)}) <= 9


@pytest.mark.parametrize("shape", [(65,), (3, 50), (2, 4, 16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("narrow", [True, False])
def test_results_and_gradients_are_near_those_of_float32(shape, bias, narrow, of_any_size):
    torch.manual_seed(1)
    plain = nn.Linear(24, 40, bias=bias)
    other = copy.deepcopy(plain)
    other.__class__, other.narrow = BFloat16Linear, narrow
    x, weight = torch.randn(*shape, 24), torch.randn(*shape, 40)
    outcomes = []
    for layer in (plain, other):
        own = x.clone().requires_grad_()
        y = layer(own)
        assert y.dtype == (torch.bfloat16 if layer is other and narrow else torch.float32)
        grads = torch.autograd.grad((y.float() * weight).sum(), (own, *layer.parameters()))
        outcomes.append((y.float(), *grads))
    assert all(near(a, b) for a, b in zip(outcomes[1], outcomes[0]))
    assert not torch.equal(outcomes[0][0], outcomes[1][0])
    plain.eval(), other.eval()
    assert torch.equal(plain(x), other(x))


def test_layers_with_one_input_are_multiplied_at_once(of_any_size, monkeypatch):
    layers = [nn.Linear(24, n) for n in (8, 40, 16)]
    expected = [layer(x := torch.ones(3, 50, 24) / 3) for layer in layers]
    own = x.clone().requires_grad_()
    for layer in layers:
        layer.__class__, layer.narrow = BFloat16Linear, True
    found = products(own, *layers)
    assert [y.shape[-1] for y in found] == [8, 40, 16] and all(near(a.float(), b) for a, b in zip(found, expected))
    sum(y.float().pow(2).sum() for y in found).backward()
    single = x.clone().requires_grad_()
    sum(layer(single).float().pow(2).sum() for layer in layers).backward()
    assert near(own.grad, single.grad)
    monkeypatch.setattr(bfloat16, "LEAST", 1 << 30)
    assert all(torch.equal(a, b) for a, b in zip(products(x, *layers), expected))


def test_selectors_stay_and_short_inputs_too(build):
    model, x = build(select_modules="encoder,decoder,cross"), torch.randn(4, 64)
    plain = copy.deepcopy(model)
    use_bfloat16(model)
    kinds = {name: type(module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert {kind for name, kind in kinds.items() if "selector" in name} == {nn.Linear}
    assert {kind for name, kind in kinds.items() if "selector" not in name} == {BFloat16Linear}
    assert [*model.state_dict()] == [*plain.state_dict()]
    layer = BFloat16Linear(64, 64)
    assert layer(x).dtype == torch.float32 and torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("options", [(), ("--checkpoint-activations",), ("--activation-dropout", "0.1")])
def test_a_models_loss_and_gradients_are_near_those_of_float32(prepared, options, of_any_size, monkeypatch):
    monkeypatch.setattr(bfloat16, "available", lambda: True)
    outcomes = []
    for dtype in ("float32", "bfloat16"):
        trainer = trainer_of(prepared, "--linear-dtype", dtype, *options)
        assert isinstance(trainer.model.encoder.layers[0].fc1, BFloat16Linear) == (dtype == "bfloat16")
        trainer.criterion.train(), trainer.model.train()
        torch.manual_seed(1)
        loss, _, _ = trainer.criterion(trainer.model, batches(trainer.task)[0])
        loss.backward()
        outcomes.append((loss.detach(), torch.cat([p.grad.flatten() for p in trainer.model.parameters()])))
    (loss, gradient), (other, narrow) = outcomes
    assert abs(other / loss - 1) < 0.003 and not torch.equal(loss, other)
    assert torch.nn.functional.cosine_similarity(gradient, narrow, 0) > 0.99


def test_a_processor_without_instructions_refuses_in_one_line(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(bfloat16, "available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="^--linear-dtype bfloat16: this processor multiplies no matrices in bfloat16"):
        trainer_of(prepared, "--linear-dtype", "bfloat16")
    with pytest.raises(InputError, match="^--precision bf16: this processor"):
        TrainOptions(precision="bf16").command(prepared, tmp_path)
    assert type(trainer_of(prepared, "--linear-dtype", "auto").model.encoder.layers[0].fc1) is nn.Linear


@pytest.mark.parametrize("precision, dtype", [("auto", "auto"), ("bf16", "bfloat16"), ("fp32", "float32")])
@pytest.mark.parametrize("options", [(), ("--cpu",)])
def test_lasformer_train_passes_the_type_on(prepared, tmp_path, precision, dtype, options, monkeypatch):
    monkeypatch.setattr(bfloat16, "available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(options))
    words = TrainOptions(precision=precision, options=options).command(prepared, tmp_path)
    assert words.count("--cpu") == 1 and words[words.index("--linear-dtype") + 1] == dtype
