"""A training step and a beam search on a fake GPU: devices, host synchronisations, values. Run by test_gpu.py."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from helpers import tokens

from benchmarks.fake_gpu import FakeGpu, on_cpu, to_gpu
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment
from fairseq_lasformer.search.line_search import LineOf, LineSearch

pytestmark = pytest.mark.sweep  # as test_gpu.py

# Triton's interpreter takes a second per kernel: as few layers as share a selection
FEW = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
TRAININGS = {
    "learned": {},
    "no-gradient": {"select_gradient": "none"},
    "reverse": {"select_kl": "reverse"},
    "sampled": {"supervise_rows": "8"},
    "window": {"select_pattern": "window:7"},
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
    options = {"kappa": 0.3, "dropout": 0.0} | FEW | options
    monkeypatch.setattr("fairseq_lasformer.nn.options.SHORTEST", 1)
    monkeypatch.setattr("fairseq_lasformer.plugin.build.PLACES", 0)  # the CPU's queries teach
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
    """Return the model, with some hypotheses that end."""
    real = model.get_normalized_probs

    def with_ends(*args, **kwargs):
        scores = real(*args, **kwargs)
        best, words = scores.topk(5)
        ends = best[..., 0] - 0.01  # of equal scores, one or the other may come first
        scores[..., 2] = torch.where(words.sum(-1) % 16 == 0, ends, scores[..., 2])
        return scores

    model.get_normalized_probs = with_ends
    return model


LOOK_EVERY = 4


def difference(before, after):
    return {name: value - before[name] for name, value in after.items()}


SEARCHES = {
    "learned": {},
    "window": {"select_pattern": "window:7"},
    "dense": {"select_modules": "none"},
    "graph": {"cuda_graph": True},
    "own lines": {"own_lines": True, "n_documents": 2},
    "graph-own-lines": {"cuda_graph": True, "own_lines": True, "n_documents": 2},
    "graph-all-keys": {"cuda_graph": True, "kappa": 1.0, "n_documents": 2},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_a_search_is_the_cpus_and_its_steps_never_wait(build, small_task, monkeypatch, options):
    options = {"kappa": 0.3, "n_documents": 1, "cuda_graph": False} | FEW | options
    monkeypatch.setattr("fairseq_lasformer.nn.decoding.fixed_cache.FIRST_POSITIONS", 64)  # Triton's interpreter is slow
    n, cuda_graph = (options.pop(name) for name in ("n_documents", "cuda_graph"))
    source = tokens(n, 24, pad_left=range(n))
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    settings = {"beam_size": 2, "max_len_a": 0.0, "max_len_b": 11}
    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: 10, raising=False)
    reference = ending(build(backend="reference", **options).eval())
    expected = SequenceGenerator([reference], small_task.target_dictionary, **settings).generate([reference], sample)
    counts, bookkeeping = [], []
    with FakeGpu() as gpu:
        model = to_gpu(ending(build(**options).eval()))
        for module in model.modules():
            if isinstance(getattr(module, "run_options", None), RunOptions):
                module.run_options = module.run_options._replace(cuda_graph=cuda_graph)
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
            torch.testing.assert_close(on_cpu(ours["score"]), theirs["score"], rtol=1e-4, atol=1e-4)
        assert len(counts) > 8
        # the first step learns what is constant: where the source is, how many keys are kept
        assert all(step["syncs"] == step["uploads"] == 0 for step in counts[1:]), gpu.syncs
        looks = bookkeeping[LOOK_EVERY - 1 :: LOOK_EVERY]
        others = [step for i, step in enumerate(bookkeeping) if (i + 1) % LOOK_EVERY]
        assert len(looks) >= 2 and all(step["syncs"] for step in looks)
        assert all(step["syncs"] == step["uploads"] == 0 and step["launches"] <= 10 for step in others), gpu.syncs
        assert gpu.launches["triton:_attend"] > 0
        assert bool(gpu.graphs) == cuda_graph and all(graph.replays for graph in gpu.graphs)
        if cuda_graph and n > 1:  # a second batch captures nothing
            captured = len(gpu.graphs)
            again = generator.generate([model], to_gpu(sample))
            assert len(gpu.graphs) == captured
            assert [h["tokens"].tolist() for f in again for h in f] == [h["tokens"].tolist() for f in found for h in f]


def test_a_search_of_lines_side_by_side_is_the_cpus(build, small_task, monkeypatch):
    separator, n = 10, (4, 2)
    drawn = torch.Generator().manual_seed(1)
    sources = [torch.randint(11, 40, (sum(n) + len(n),), generator=drawn) for _ in range(2)]
    ends = torch.tensor(n).add(1).cumsum(0)
    for source in sources:
        source[ends[:-1] - 1], source[-1] = separator, 2
    lines = [
        LineOf(i, int(end) - size - 1, size + 1, 4, at == 0, at == len(n) - 1)
        for i in range(2)
        for at, (end, size) in enumerate(zip(ends, n))
    ]
    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: separator, raising=False)
    options, settings = (
        {"kappa": 0.3, "own_lines": True, "source_context_only": True} | FEW,
        {"beam_size": 2, "max_len_b": 20},
    )
    reference = ending(build(backend="reference", **options).eval())
    generator = BeamGenerator([reference], small_task.target_dictionary, **settings)
    expected = dict(LineSearch(generator, separator, sources).search(lines))
    with FakeGpu() as gpu:
        model = to_gpu(ending(build(**options).eval()))
        model.make_generation_fast_()
        generator = BeamGenerator([model], small_task.target_dictionary, **settings)
        generator.look_every = LOOK_EVERY
        found = dict(LineSearch(generator, separator, [to_gpu(source) for source in sources]).search(lines))
        for i, theirs in expected.items():
            assert [on_cpu(h["tokens"]).tolist() for h in found[i]] == [h["tokens"].tolist() for h in theirs]
        assert gpu.launches["triton:_attend"] > 0


@pytest.mark.parametrize("prefix", [False, True], ids=["free", "given beginning"])
def test_a_search_with_as_many_lines_is_the_cpus(build, small_task, monkeypatch, prefix):
    monkeypatch.setattr("fairseq_lasformer.nn.decoding.fixed_cache.FIRST_POSITIONS", 64)
    separator, source = 10, tokens(2, 16, pad_left=range(2))
    source[source == separator] = separator + 1
    source[0, 5::5] = separator
    source[1, 9] = separator
    net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
    sample = {"id": torch.arange(2), "net_input": net_input}
    given = torch.tensor([[20, 21], [22, 1]]) if prefix else None
    alignment, one = Alignment((separator, separator), 0.5, 2.0, 0), FEW | {"decoder_layers": 1}

    def found(model, sample, prefix):
        generator = AlignedGenerator([model], small_task.target_dictionary, alignment=alignment, beam_size=3)
        generator.look_every = LOOK_EVERY
        return generator.generate([model], sample, prefix_tokens=prefix)

    expected = found(build(0.3, "reference", **one).eval(), sample, given)
    with FakeGpu() as gpu:
        model = to_gpu(build(0.3, **one).eval())
        model.make_generation_fast_()
        ours = found(model, to_gpu(sample), None if given is None else to_gpu(given))
        for kernel in ("_restrict_lines", "_count_lines", "_best_of_item", "_advance", "_log_softmax", "_write"):
            assert gpu.launches[f"triton:{kernel}"] > 0
        for mine, theirs in zip(sum(ours, []), sum(expected, []), strict=True):
            assert on_cpu(mine["tokens"]).tolist() == theirs["tokens"].tolist()
            torch.testing.assert_close(on_cpu(mine["score"]), theirs["score"], rtol=1e-4, atol=1e-4)
        lines = [on_cpu(f[0]["tokens"]).eq(separator).sum().item() + 1 for f in ours]
        assert lines == (source == separator).sum(1).add(1).tolist()
