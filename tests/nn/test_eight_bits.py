"""Decoding in 8 bits as on a GPU, by the definitions and by Triton's kernels, against the CPU's and float32."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_beams_decode_alike, in_8_bits, skip_unless_here, steps, tokens
from tiers import thinned

from fairseq_lasformer.nn.cache import DecodingCache
from fairseq_lasformer.nn.decoding.packed_modules import PackedProjection, Unsupported
from fairseq_lasformer.nn.decoding.step_weights import EightBits, eight_bits
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import cpu

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


CASES = [("reference", 0.3, {}), ("reference", 1.0, {}), ("reference", 0.3, {"select_modules": "none"})]


@pytest.mark.parametrize("backend, kappa, options", thinned([*CASES, ("triton", 0.3, {"decoder_layers": 2})], *CASES))
def test_steps_are_those_of_a_cpu_in_8_bits(build, backend, kappa, options):
    skip_unless_here(backend)
    length = 16 if backend == "reference" else 5  # its interpreter is slow
    src, prev = tokens(2, 30, pad_left=(0, 12)), tokens(2, length)
    plain, packed = build(kappa, "reference", **options).eval(), build(kappa, **options).eval()
    packed.decoder.run_options = RunOptions(int8=True, int8_cache=True)
    packed.decoder.make_generation_fast_()
    exact, theirs = steps(plain, src, prev, 2), steps(packed, src, prev, 2)
    model = in_8_bits(build(kappa, backend, **options).eval())
    model.encoder = plain.encoder
    ours = steps(model, src, prev, 2)
    assert 1e-3 < apart(theirs, exact) < 0.05
    assert apart(ours, theirs) < apart(theirs, exact) / 4  # a last bit may decide how a number is rounded


@pytest.mark.parametrize("kappa", [0.2, 1.0])
def test_hypotheses_that_change_places_read_their_own(build, kappa, monkeypatch):
    monkeypatch.setattr("fairseq_lasformer.nn.cache.FIRST_POSITIONS", 2)  # storage grows during the test
    model = in_8_bits(build(kappa, "reference").eval())
    assert_beams_decode_alike(model, build(kappa, "reference").eval(), within=0.1)


@torch.no_grad()
def test_a_beginning_that_is_read_at_once_is_kept_as_by_steps(build):
    model = in_8_bits(build(0.3, "reference").eval())
    src, prev = tokens(1, 30), tokens(1, 24)
    encoded = model.encoder(src, src.ne(1).sum(1))
    states: list[dict] = [{}, {}]
    model.decoder.read_beginning(prev[:, :20], encoded, states[0], beam=1)
    for i in range(20):
        model.decoder(prev[:, : i + 1], encoded, incremental_state=states[1])
    at_once, by_steps = (
        next(value for value in state.values() if isinstance(value, DecodingCache)).generated for state in states
    )
    kept = {name for name, store in at_once.items() if store.dtype == torch.int8}
    assert kept == {f"{layer}.self.{what}" for layer in range(3) for what in ("key", "value")}
    for name in kept:
        for found, expected in ((at_once[n][:, :20], by_steps[n][:, :20]) for n in (name, f"{name}_scale")):
            if name.startswith("0."):  # the pass itself attends over keys before they are rounded
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert apart(found.float(), expected.float()) < 0.05
    after = [model.decoder(prev[:, : i + 1], encoded, incremental_state=states[0])[0][:, 0] for i in range(20, 24)]
    assert apart(torch.stack(after, 1), steps(model, src, prev, 1)[:, 20:]) < 0.02


def test_what_no_kernel_computes_is_refused(build):
    run = RunOptions("triton", int8=True, int8_cache=True)
    plain, projection = build(), build().decoder.output_projection
    with pytest.raises(Unsupported, match="a GPU without Triton's kernels"):
        eight_bits(plain.decoder.layers, projection, run._replace(backend="reference"), False)
    skip_unless_here("triton")
    with pytest.raises(Unsupported, match="--retain-dropout"):
        eight_bits(plain.decoder.layers, projection, run, True)
    mixture = build(moe_experts=4, moe_layers="decoder.1")
    with pytest.raises(Unsupported, match="mixtures of experts"):
        eight_bits(mixture.decoder.layers, projection, run, False)
    assert not any(isinstance(m, PackedProjection) for m in mixture.modules())
    assert eight_bits(plain.decoder.layers, projection, run._replace(int8=False), False) == EightBits(None, True)
    assert not any(isinstance(m, PackedProjection) for m in plain.modules())
    assert eight_bits(plain.decoder.layers, projection, run, False).output is not None
    changed = {name for name, m in plain.decoder.named_modules() if isinstance(m, PackedProjection)}
    assert len(changed) == 3 * 10 and not any("selector" in name for name in changed)
