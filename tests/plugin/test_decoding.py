"""Beam search with the cache, with a captured step, and without either."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from helpers import BACKENDS, CUDA, tokens
from torch.fx.experimental.proxy_tensor import make_fx

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.decoding import fixed_cache
from fairseq_lasformer.nn.decoding.cuda_graph import CudaGraphStep
from fairseq_lasformer.nn.decoding.fixed_cache import FixedCache
from fairseq_lasformer.ops import KAPPA_ONE

# without one, plugin/on_fake_gpu.py compares such searches
ON_GPU = pytest.mark.skipif(not CUDA, reason="Triton's interpreter is slow")


def ending(model):
    """Return the model with an end symbol that is as likely as the most likely word after every fourth prefix on
    average: from 10 words on where a source has no padding, and 14 more for each padding symbol. However the model is
    drawn, hypotheses and documents finish at different steps."""
    probabilities, decode = model.get_normalized_probs, model.decoder.forward
    ends: list[torch.Tensor] = []

    def forward(prev, encoder_out, **kwargs):
        padding = encoder_out["encoder_padding_mask"][0].sum(1)
        long_enough = prev.size(1) > 10 + 14 * padding.repeat_interleave(prev.size(0) // padding.size(0))
        ends[:] = [(long_enough & ((prev[:, -1] + prev.size(1)) % 4 == 0)).unsqueeze(1)]
        return decode(prev, encoder_out, **kwargs)

    def with_ends(net_output, log_probs, sample=None):
        scores = probabilities(net_output, log_probs, sample)
        scores[..., 2] = torch.where(ends[0], scores.amax(-1), scores[..., 2])
        return scores

    model.decoder.forward, model.get_normalized_probs = forward, with_ends
    return model


@pytest.mark.sweep
@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_beam_search_finds_what_it_finds_without_any_cache(build, small_task, kappa):
    """Hypotheses and scores on 50 documents, in batches whose documents finish at different steps."""
    model = ending(build(kappa=kappa).eval())
    generator = SequenceGenerator([model], small_task.target_dictionary, beam_size=4, max_len_a=1.0, max_len_b=20)
    batches = [tokens(10, 12 + 7 * i, pad_left=tuple(range(10))) for i in range(5)]

    def search() -> list:
        found = []
        for src in batches:
            sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(1).sum(1)}}
            found += generator.generate([model], sample)
        return found

    cached = search()
    history: list[torch.Tensor] = []
    real = model.decoder.extract_features

    def extract(prev, *args, **kwargs):
        history.append(prev)
        return real(prev, *args, **kwargs)

    def whole(embedded, ends, encoder_out, *cached):
        """Compute the step without a cache: all positions again, the source repeated for every hypothesis."""
        beam = history[-1].size(0) // encoder_out["encoder_out"][0].size(1)
        own = encoder_out | {
            "encoder_out": [t.repeat_interleave(beam, 1) for t in encoder_out["encoder_out"]],
            "encoder_padding_mask": [t.repeat_interleave(beam, 0) for t in encoder_out["encoder_padding_mask"]],
        }
        out, extra = real(history[-1], own)
        return out[:, -1:], extra

    model.decoder.extract_features, model.decoder._step = extract, whole
    uncached = search()
    assert len(cached) == len(uncached) == 50 and history
    for a, b in zip(cached, uncached):
        assert [h["tokens"].tolist() for h in a] == [h["tokens"].tolist() for h in b]
        for x, y in zip(a, b):
            torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=1e-4, atol=1e-5)


class TracedStep(CudaGraphStep):
    """Recorder of a step without a GPU: PyTorch operations, with all else frozen and no tensor's value read."""

    trace = None
    replays = 0

    def __call__(self, function, x, n_rows, eager=False):
        if eager or self.x is None:
            return super().__call__(function, x, n_rows, eager)
        if self.trace is None:
            self.trace = make_fx(function)(self.x)
        self.replays += 1
        return super().__call__(self.trace, x, n_rows)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("backend", "kappa", "step", "n_documents", "options"),
    [
        ("cpu", 0.3, TracedStep, 10, {}),
        ("cpu", 0.3, TracedStep, 10, {"own_lines": True}),
        ("cpu", 1.0, CudaGraphStep, 10, {}),
        pytest.param("triton", 0.3, CudaGraphStep, 10, {}, marks=ON_GPU),
    ],
)
def test_a_recorded_step_finds_the_same_translations(
    build, small_task, monkeypatch, backend, kappa, step, n_documents, options
):
    """A CUDA graph replays fixed tensors, with no decision on the host. Storage, table and sentences change."""
    if backend not in BACKENDS:
        pytest.skip(f"no {backend} kernels here")
    steps: list[CudaGraphStep] = []
    monkeypatch.setattr(fixed_cache, "FIRST_POSITIONS", 48)
    monkeypatch.setattr(fixed_cache, "CudaGraphStep", lambda: steps.append(step()) or steps[-1])
    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: 10, raising=False)
    model = ending(build(kappa=kappa, **options).eval())
    for module in model.modules():
        if hasattr(module, "backend"):
            module.backend = backend
    device = "cuda" if backend == "triton" and CUDA else "cpu"
    generator = SequenceGenerator([model], small_task.target_dictionary, beam_size=3, max_len_a=0.0, max_len_b=140)
    src = tokens(n_documents, 33, pad_left=tuple(range(n_documents))).to(device)
    model.to(device)
    sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(1).sum(1)}}
    regular = generator.generate([model], sample)
    model.decoder.run_options = model.decoder.run_options._replace(cuda_graph=True)
    sizes = set()
    advance = FixedCache.advance

    def counted(cache):
        paths = advance(cache)
        sizes.add(cache.buffers.size)
        return paths

    monkeypatch.setattr(FixedCache, "advance", counted)
    n_steps = 0
    # the second batch replays what the first has recorded
    for order in slice(None), range(n_documents)[::-1]:
        own = {name: x[order] for name, x in sample["net_input"].items()}
        recorded = generator.generate([model], {"net_input": own})
        expected = regular[order] if isinstance(order, slice) else regular[::-1]
        for a, b in zip(expected, recorded, strict=True):
            assert [h["tokens"].tolist() for h in a] == [h["tokens"].tolist() for h in b]
            for x, y in zip(a, b):
                torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=1e-4, atol=1e-5)
        n_steps = n_steps or len(steps)
        assert len(steps) == n_steps <= len(sizes) + 1
    assert len({size.capacity for size in sizes}) > 1 and len({size.n_items for size in sizes}) > 1
    if step is TracedStep:
        assert sum(s.replays for s in steps) > 180
    assert 0 < len(model.decoder.pool.free) <= fixed_cache.KEPT_BUFFERS
    sizes.clear()
    for _, selector in model.selectors():
        selector.kappa.fill_(KAPPA_ONE // 2)  # recorded steps keep as many keys as before
    again = generator.generate([model], sample)
    assert n_steps < len(steps) and len(again) == n_documents
    assert not any(buffers.size in sizes for buffers in model.decoder.pool.free if buffers.step in steps[:n_steps])
    model.half()  # moves the parameters, which the recorded steps read where they were
    assert not model.decoder.pool.free


@pytest.mark.parametrize(("options", "named"), [({"int8": True}, "decode"), ({"int8_cache": True}, "cache")])
def test_8_bits_are_refused_on_other_devices_than_cpus(build, options, named):
    model = build().to("meta").eval()
    model.decoder.run_options = model.decoder.run_options._replace(**options)
    with pytest.raises(InputError, match=f"--{named}-dtype int8: not with a GPU; use float32"):
        model.make_generation_fast_()
