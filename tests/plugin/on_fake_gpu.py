"""A training step and a beam search on a fake GPU: devices, host synchronisations, values. Run by test_gpu.py."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from helpers import in_8_bits, tokens

from benchmarks.fake_gpu import FakeGpu, on_cpu, to_gpu
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.search.beam_loop import BeamGenerator

TRAININGS = {
    "learned": {},
    "no-gradient": {"select_gradient": "none"},
    "reverse": {"select_kl": "reverse"},
    "sampled": {"supervise_rows": "8"},
    "window": {"select_window": 7},
    "dense": {"select_modules": "none"},
    "recomputed": {"checkpoint_activations": True},
    "define": {"define_dim": 8},
    "mixtures": {"moe_experts": 4, "moe_layers": "decoder.1"},
    "gshard": {"moe_experts": 4, "moe_gating": "gshard-top2"},
}


def batch(n_source: int, n_target: int) -> dict:
    source, previous = tokens(2, n_source, pad_left=(0, 7)), tokens(2, n_target)
    return {
        "ntokens": previous.numel(),
        "target": previous.roll(-1, 1),
        "net_input": {
            "src_tokens": source,
            "src_lengths": source.ne(1).sum(1),
            "prev_output_tokens": previous,
        },
    }


def step(model, task, sample):
    torch.manual_seed(7)
    criterion = LabelSmoothedCrossEntropyWithSelection(task, False, 0.1, selection_weight=0.01)
    loss, _, log = criterion(model, sample)
    loss.backward()
    return loss, log


@pytest.mark.parametrize("options", TRAININGS.values(), ids=TRAININGS)
def test_a_training_step_is_the_cpus(build, small_task, monkeypatch, options):
    options = {"kappa": 0.3, "dropout": 0.0} | options
    monkeypatch.setattr("fairseq_lasformer.nn.options.SHORTEST", 1)
    sample = batch(20, 15)
    model = build(backend="reference", **options).train()
    expected, _ = step(model, small_task, sample)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    with FakeGpu() as gpu:
        model = to_gpu(build(**options).train())
        assert all(selector.share == options["kappa"] for _, selector in model.selectors())  # known from here on
        gpu.reset()
        loss, log = step(model, small_task, to_gpu(sample))
        assert not [name for name, value in log.items() if type(value) is torch.Tensor]
        torch.testing.assert_close(on_cpu(loss).detach(), expected.detach())
        for name, p in model.named_parameters():
            if gradients[name] is not None:
                torch.testing.assert_close(on_cpu(p.grad), gradients[name], rtol=1e-3, atol=1e-3, msg=name)
        assert gpu.totals["launches"] > 100
        if "moe_experts" not in options:  # routing tells the host how many tokens an expert gets
            assert gpu.totals["syncs"] <= 3 and gpu.totals["uploads"] == 0, (gpu.syncs, gpu.uploads)


def ending(model):
    """The model, with some hypotheses that end."""
    real = model.get_normalized_probs

    def with_ends(*args, **kwargs):
        scores = real(*args, **kwargs)
        best, words = scores.topk(5)
        scores[..., 2] = torch.where(words.sum(-1) % 16 == 0, best[..., 0], scores[..., 2])
        return scores

    model.get_normalized_probs = with_ends
    return model


LOOK_EVERY = 4


def difference(before, after):
    return {name: value - before[name] for name, value in after.items()}


SEARCHES = {
    "learned": {},
    "window": {"select_window": 7},
    "dense": {"select_modules": "none"},
    "graph": {"cuda_graph": True},
    "graph-all-keys": {"cuda_graph": True, "kappa": 1.0, "n_documents": 2},
    "eight-dense": {"eight": True, "select_modules": "none", "decoder_layers": 2},
    "eight-graph": {"eight": True, "cuda_graph": True, "decoder_layers": 2},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_a_search_is_the_cpus_and_its_steps_never_wait(build, small_task, monkeypatch, options):
    options = {"kappa": 0.3, "n_documents": 1, "cuda_graph": False, "eight": False} | options
    monkeypatch.setattr("fairseq_lasformer.nn.fixed_cache.FIRST_POSITIONS", 64)  # Triton's interpreter is slow
    n, cuda_graph, eight = (options.pop(name) for name in ("n_documents", "cuda_graph", "eight"))
    source = tokens(n, 24, pad_left=range(n))
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    settings = {"beam_size": 2, "max_len_a": 0.0, "max_len_b": 11}
    reference = ending(build(backend="reference", **options).eval())
    reference = in_8_bits(reference) if eight else reference
    expected = SequenceGenerator([reference], small_task.target_dictionary, **settings).generate([reference], sample)
    counts, bookkeeping = [], []
    near = 2e-3 if eight else 1e-4  # in 8 bits, a last bit may decide how a number is rounded
    with FakeGpu() as gpu:
        model = to_gpu(ending(build(**options).eval()))
        for module in model.modules():
            if isinstance(getattr(module, "run_options", None), RunOptions):
                module.run_options = module.run_options._replace(cuda_graph=cuda_graph, int8=eight, int8_cache=eight)
        model.make_generation_fast_()
        generator = BeamGenerator([model], small_task.target_dictionary, **settings)
        generator.look_every = LOOK_EVERY
        forward, before = generator.model.forward_decoder, None

        def counted(*args, **kwargs):
            nonlocal before
            start = gpu.totals
            if before is not None:
                bookkeeping.append(difference(before, start))
            out = forward(*args, **kwargs)
            before = gpu.totals
            counts.append(difference(start, before))
            return out

        monkeypatch.setattr(generator.model, "forward_decoder", counted)
        found = generator.generate([model], to_gpu(sample))
        assert [len(f) for f in found] == [len(e) for e in expected]
        for ours, theirs in zip(sum(found, []), sum(expected, [])):
            assert on_cpu(ours["tokens"]).tolist() == theirs["tokens"].tolist()
            torch.testing.assert_close(on_cpu(ours["score"]), theirs["score"], rtol=near, atol=near)
        assert len(counts) > 8
        # the first step learns what is constant: where the source is, how many keys are kept
        assert all(step["syncs"] == step["uploads"] == 0 for step in counts[1:]), gpu.syncs
        looks = bookkeeping[LOOK_EVERY - 1 :: LOOK_EVERY]
        others = [step for i, step in enumerate(bookkeeping) if (i + 1) % LOOK_EVERY]
        assert len(looks) >= 2 and all(step["syncs"] for step in looks)
        assert all(step["syncs"] == step["uploads"] == 0 and step["launches"] <= 36 for step in others), gpu.syncs
        assert gpu.launches["triton:_attend"] > 0
        assert (gpu.launches["triton:_linear"] > 0) == (gpu.launches["triton:_append"] > 0) == eight
        assert bool(gpu.graphs) == cuda_graph and all(graph.replays for graph in gpu.graphs)
        if cuda_graph and n > 1:  # a second batch captures nothing
            captured = len(gpu.graphs)
            again = generator.generate([model], to_gpu(sample))
            assert len(gpu.graphs) == captured
            assert [h["tokens"].tolist() for f in again for h in f] == [h["tokens"].tolist() for f in found for h in f]
