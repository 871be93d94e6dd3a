"""Quantisation-aware training: losses and gradients of rounded weights, steps of the weights themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import batches, trainer_of

from fairseq_lasformer.ops.cpu.packed import pack_linear
from fairseq_lasformer.ops.reference import linear_int8
from fairseq_lasformer.plugin.training.quantisation_aware import in_eight_bits, rounded, rounded_weights


def test_rounded_weights_are_those_that_8_bits_decode_with():
    weight, x = torch.randn(40, 16), torch.randint(-127, 128, (5, 16)).float()
    x[:, 0] = 127  # such rows are exact in 8 bits
    torch.testing.assert_close(x @ rounded(weight).T, linear_int8(x, weight), rtol=1e-4, atol=1e-4)
    first, second = (pack_linear(w, int8=True) for w in (weight, rounded(weight)))
    assert torch.equal(first.weight, second.weight) and not torch.equal(weight, rounded(weight))


def test_selectors_and_embeddings_keep_their_weights(build):
    model = build(share_all_embeddings=False, share_decoder_input_output_embed=False)
    names = {name for name, p in model.named_parameters() for weight in rounded_weights(model) if weight is p}
    assert {"encoder.layers.0.fc1.weight", "decoder.layers.0.encoder_attn.k_proj.weight"} <= names
    assert "decoder.output_projection.weight" in names
    assert not any("selector" in name or "embed" in name or "norm" in name or "bias" in name for name in names)


def test_steps_are_those_of_rounded_weights_and_weights_stay_exact(prepared):
    plain, aware = trainer_of(prepared), trainer_of(prepared, "--quantization-aware")
    sample = batches(plain.task)[0]
    expected = copy.deepcopy(plain.model)
    for weight in rounded_weights(expected):
        weight.data = rounded(weight.data)
    plain.criterion.train()
    loss, _, _ = plain.criterion(expected, sample)
    loss.backward()
    before = {name: p.detach().clone() for name, p in aware.model.named_parameters()}
    got, _, _ = aware.task.train_step(sample, aware.model, aware.criterion, aware.optimizer, 0)
    assert float(got) == float(loss.detach())
    for (name, p), other in zip(aware.model.named_parameters(), expected.parameters()):
        assert torch.equal(p, before[name])
        if other.grad is not None:
            assert torch.equal(p.grad, other.grad), name
    unrounded, _, _ = plain.task.train_step(sample, plain.model, plain.criterion, plain.optimizer, 0)
    assert float(unrounded) != float(got)


def test_validation_is_in_8_bits_too(prepared):
    plain, aware = trainer_of(prepared), trainer_of(prepared, "--quantization-aware")
    sample = batches(plain.task)[0]
    losses = [float(t.task.valid_step(sample, t.model, t.criterion)[0]) for t in (plain, aware)]
    with in_eight_bits(plain.model):
        rounded_loss = float(plain.task.valid_step(sample, plain.model, plain.criterion)[0])
    assert losses[0] != losses[1] == rounded_loss


def test_weights_come_back_after_an_error(build):
    model = build()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(RuntimeError, match="no"), in_eight_bits(model):
        assert not torch.equal(model.encoder.layers[0].fc1.weight, before["encoder.layers.0.fc1.weight"])
        raise RuntimeError("no")
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
