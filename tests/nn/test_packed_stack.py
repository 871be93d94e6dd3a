"""A packed decoder against the layers in PyTorch: beams, padding, patterns, norms; in 8 bits, close to them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, skip_unless_here, steps, tokens

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.cpu import packed

pytestmark = [
    pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels"),
    pytest.mark.usefixtures("instructions"),
]

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}

MODELS = {
    "learned": {},
    "pre-norm": PRE_NORM,
    "share": {"select_share": 1},
    "cross": {"select_modules": "cross"},
    "dense": {"select_modules": "none"},
    "window": {"select_pattern": "window:7"},
    "window-self": {"select_pattern": "window:7", "select_modules": "decoder"},
    "separate-words": {"share_decoder_input_output_embed": False},
}


def build_with(build, run: RunOptions, kappa: float = 0.2, **options):
    model = build(kappa, backend=run.backend, **options).eval()
    model.decoder.run_options = run
    return model


def packed_model(build, kappa: float = 0.2, int8: bool = False, int8_cache: bool = False, **options):
    model = build_with(build, RunOptions(int8=int8, int8_cache=int8_cache), kappa, **options)
    model.make_generation_fast_()
    return model


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("kappa", [0.2, 1.0])
def test_a_packed_decoder_decodes_as_its_layers_do(build, options, kappa):
    model = packed_model(build, kappa, **options)
    assert model.decoder.packed is not None
    assert_beams_decode_alike(model, build(kappa, **options).eval())
    assert_steps_are_a_full_pass(model, tokens(2, 40, pad_left=(0, 12)), tokens(2, 70))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gelu", "gelu_accurate", "swish", "linear"])
@pytest.mark.parametrize("size", [1.0, 200.0])
def test_activations_are_those_of_pytorch(build, name, size):
    """Also far from 0, where exponentials would overflow."""
    models = [build(0.2, activation_fn=name).eval() for _ in range(2)]
    for layer in (layer for model in models for layer in model.decoder.layers):
        layer.fc1.weight *= size
        layer.fc2.weight /= size
    models[0].make_generation_fast_()
    assert models[0].decoder.packed is not None
    assert_beams_decode_alike(*models)
    models[0].decoder.layers[1].fc1.bias[3] = float("nan")
    models[0].make_generation_fast_()
    assert steps(models[0], tokens(1, 9), tokens(1, 4), 2).isnan().all()


@torch.no_grad()
def test_8_bits_are_close_and_change_no_selector(build):
    src, prev = tokens(2, 40), tokens(2, 30)
    exact, rounded = packed_model(build), packed_model(build, int8=True)
    difference = (steps(rounded, src, prev, 3) - steps(exact, src, prev, 3)).norm() / steps(exact, src, prev, 3).norm()
    assert 1e-5 < difference < 0.05
    linears = list(zip(exact.decoder.packed.stack.linears[::4], rounded.decoder.packed.stack.linears[::4]))
    kinds = [(e.dtype, r.dtype) for e, r in linears if e.numel()]
    assert kinds.count((torch.float32, torch.int8)) == 6 * len(exact.decoder.layers)
    selectors = [(e, r) for e, r in linears if e.numel() and r.dtype == torch.float32]
    assert selectors and all(torch.equal(e, r) for e, r in selectors)


@torch.no_grad()
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("kappa", [0.2, 1.0])
def test_keys_and_values_in_8_bits_are_close(build, options, kappa, monkeypatch):
    src, prev = tokens(2, 40, pad_left=(0, 12)), tokens(2, 30)
    exact, rounded = (packed_model(build, kappa, int8_cache=eight, **options) for eight in (False, True))
    first = steps(exact, src, prev, 3)
    assert 1e-6 < (steps(rounded, src, prev, 3) - first).norm() / first.norm() < 0.02
    # a scale that is lost or of a different slot is detected: hypotheses that change places read their own
    monkeypatch.setattr("fairseq_lasformer.nn.decoding.cache.FIRST_POSITIONS", 2)  # storage grows on the way
    assert_beams_decode_alike(rounded, build(kappa, **options).eval(), within=0.05)


@torch.no_grad()
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_threads_that_decode_at_the_same_time_do_not_meet(build, int8):
    model = packed_model(build, int8=int8, int8_cache=int8)
    documents = [(tokens(1 + i % 2, 40 + 9 * i), tokens(1 + i % 2, 20 + i)) for i in range(6)]
    alone = [steps(model, *document, 3) for document in documents]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            together = pool.map(lambda document: steps(model, *document, 3), documents)
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@torch.no_grad()
def test_the_same_states_keep_the_same_keys_in_8_bits(build, monkeypatch):
    """The input of a first layer's selectors does not depend on the type of the weights."""
    src, prev = tokens(1, 40), tokens(1, 30)
    stores = []
    run, place = packed.decode_step, "fairseq_lasformer.nn.decoding.packed_stack.decode_step"
    monkeypatch.setattr(place, lambda *a: stores.append(a[3]) or run(*a))
    for int8 in (False, True):
        model = packed_model(build, int8=int8, select_share=1)
        model.encoder = build(0.2, select_share=1).eval().encoder
        steps(model, src, prev, 1)
    exact, rounded = stores[29], stores[-1]
    torch.testing.assert_close(exact[2][:, :30], rounded[2][:, :30], rtol=0, atol=0)  # the selector's keys of layer 0
    torch.testing.assert_close(exact[5], rounded[5], rtol=0, atol=0)  # those of the source
    assert not torch.equal(exact[0][:, :30], rounded[0][:, :30])


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("option", ["int8", "int8_cache"])
def test_8_bits_on_a_cpu_are_not_for_other_backends(build, backend, option):
    skip_unless_here(backend)
    with pytest.raises(InputError, match="int8: not with a device or backend without these kernels"):
        build_with(build, RunOptions(backend, **{option: True})).make_generation_fast_()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"moe_experts": 4, "moe_layers": "decoder.1"}, "mixtures of experts"),
        ({"activation_fn": "tanh"}, "this activation"),
    ],
)
def test_what_has_no_kernel_decodes_in_pytorch_and_is_refused_in_8_bits(build, options, reason):
    model = packed_model(build, **options)
    assert model.decoder.packed is None
    assert_steps_are_a_full_pass(model, tokens(2, 20)[:1], tokens(2, 12)[:1])
    with pytest.raises(InputError, match=f"--decode-dtype int8: not with {reason}"):
        packed_model(build, int8=True, **options)
    with pytest.raises(InputError, match=f"--cache-dtype int8: not with {reason}"):
        packed_model(build, int8_cache=True, **options)


def test_plain_pytorch_stays_plain(build):
    model = build(0.2, backend="reference").eval()
    model.make_generation_fast_()
    assert model.decoder.packed is None


def test_retained_dropout_is_not_skipped(build):
    model = build(0.2, dropout=0.5).eval()
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=None)
    assert model.decoder.packed is None
