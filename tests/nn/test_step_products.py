"""Several projections as one product in a decoding step, against the projections one after another."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_beams_decode_alike, skip_unless_here, steps, tokens

from fairseq_lasformer.nn.decoding.cache import DecodingCache
from fairseq_lasformer.nn.decoding.step_products import Products, step_products


def joined(model):
    """Let a model's decoder compute products together, as on a GPU."""
    model.decoder.products = Products(step_products(model.decoder.layers), model.decoder._weights())
    return model


def widths_of(products) -> list[list[dict[str, int]]]:
    return [[dict(part.widths) for of in layer for part in of.joined] for layer in products]


def test_what_reads_the_same_inputs_is_one_product(build):
    first, above = {"query": 32, "key": 32, "value": 32}, [{"query": 32, "key": 32, "value": 32}]
    groups = widths_of(step_products(build(0.3, select_share=3).decoder.layers))
    selects = {"selector_query": 8, "selector_key": 8}
    assert groups[0] == [first | selects, {"query": 32, "selector_query": 8}]
    assert groups[1:] == [above] * 2  # its cross-attention has one projection of the newest inputs, the query's
    # a pattern that does not score keys, or attentions that read other inputs, keep what they read
    assert widths_of(step_products(build(0.3, select_pattern="reformer:buckets=4").decoder.layers))[0] == above
    other = build(0.3, select_pattern="luna:rows=4", select_modules="encoder,cross")
    assert all(not part for layer in step_products(other.decoder.layers) for part in layer[1].joined)


@pytest.mark.parametrize(
    "options",
    [
        *(
            {},
            {"select_modules": "none"},
            {"select_pattern": "window:3"},
            {"select_pattern": "reformer:buckets=4"},
        ),
        *({"own_lines": True}, {"decoder_normalize_before": True}),
    ],
    ids=str,
)
def test_steps_are_those_of_single_projections(build, options):
    src, prev = tokens(2, 30, pad_left=(0, 12)), tokens(2, 14)
    plain, model = (build(0.3, "reference", **options).double().eval() for _ in range(2))
    torch.testing.assert_close(steps(joined(model), src, prev, 2), steps(plain, src, prev, 2), rtol=1e-9, atol=1e-11)


def test_hypotheses_that_change_places_read_their_own(build, monkeypatch):
    monkeypatch.setattr("fairseq_lasformer.nn.decoding.cache.FIRST_POSITIONS", 2)  # storage grows during the test
    assert_beams_decode_alike(joined(build(0.2, "reference").eval()), build(0.2, "reference").eval(), within=1e-4)


def test_tritons_steps_write_the_cache_by_one_kernel(build, monkeypatch):
    skip_unless_here("triton")
    src, prev = tokens(1, 12), tokens(1, 3)
    plain, model = (build(0.3, backend, decoder_layers=2).eval() for backend in ("reference", "triton"))
    model.encoder = plain.encoder  # Triton's interpreter is slow
    expected = steps(plain, src, prev, 2)
    model.decoder.make_generation_fast_()
    assert model.decoder.products is not None and model.decoder.packed is None
    written: list[list[str]] = []
    together = DecodingCache.append_together
    monkeypatch.setattr(DecodingCache, "append_together", lambda *a: written.append([*a[1]]) or together(*a))
    monkeypatch.setattr(DecodingCache, "append", None)  # nothing is written on its own
    torch.testing.assert_close(steps(model, src, prev, 2), expected, rtol=1e-4, atol=1e-5)
    keys = [f"0.self.{what}" for what in ("key", "value", "selector_key")]
    assert written == [keys, ["1.self.key", "1.self.value"]] * 3


def test_weights_that_change_are_joined_again(build):
    skip_unless_here("triton")
    src, prev = tokens(1, 8), tokens(1, 2)
    model = build(1.0, "triton", decoder_layers=1).eval()
    model.encoder = build(1.0, "reference").encoder.eval()
    model.decoder.make_generation_fast_()
    before = steps(model, src, prev, 1)
    with torch.no_grad():
        model.decoder.layers[0].self_attn.q_proj.weight.mul_(4)
    changed = steps(model, src, prev, 1)
    model.decoder.products = None
    torch.testing.assert_close(changed, steps(model, src, prev, 1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, changed, rtol=1e-3)
    model.double().decoder.new_cache(1, torch.zeros(1, 8, 32).double())
    assert model.decoder.products is None  # no kernel has float64
