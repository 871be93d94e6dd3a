"""A training step and a beam search on a fake GPU: devices, host synchronisations, values. Run by test_gpu.py."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from helpers import in_8_bits, tokens

from benchmarks.fake_gpu import FakeGpu, on_cpu, to_gpu
from fairseq_lasformer.nn.options import RowSampling, RunOptions
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.plugin.training.graphed import GraphedCriterion
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment

pytestmark = pytest.mark.sweep  # as test_gpu.py

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
    options = {"kappa": 0.3, "dropout": 0.0} | options
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
    "graph-all-keys": {"cuda_graph": True, "kappa": 1.0, "n_documents": 2},
    "eight-dense": {"eight": True, "select_modules": "none", "decoder_layers": 2},
    "eight-graph": {"eight": True, "cuda_graph": True, "decoder_layers": 2},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_a_search_is_the_cpus_and_its_steps_never_wait(build, small_task, monkeypatch, options):
    options = {"kappa": 0.3, "n_documents": 1, "cuda_graph": False, "eight": False} | options
    monkeypatch.setattr("fairseq_lasformer.nn.decoding.fixed_cache.FIRST_POSITIONS", 64)  # Triton's interpreter is slow
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
        assert all(step["syncs"] == step["uploads"] == 0 and step["launches"] <= 10 for step in others), gpu.syncs
        assert gpu.launches["triton:_attend"] > 0
        assert (gpu.launches["triton:_linear"] > 0) == (gpu.launches["triton:_append"] > 0) == eight
        assert bool(gpu.graphs) == cuda_graph and all(graph.replays for graph in gpu.graphs)
        if cuda_graph and n > 1:  # a second batch captures nothing
            captured = len(gpu.graphs)
            again = generator.generate([model], to_gpu(sample))
            assert len(gpu.graphs) == captured
            assert [h["tokens"].tolist() for f in again for h in f] == [h["tokens"].tolist() for f in found for h in f]


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
    alignment = Alignment((separator, separator), 0.5, 2.0, 0)

    def found(model, sample, prefix):
        generator = AlignedGenerator([model], small_task.target_dictionary, alignment=alignment, beam_size=3)
        generator.look_every = LOOK_EVERY
        return generator.generate([model], sample, prefix_tokens=prefix)

    expected = found(build(0.3, "reference", decoder_layers=1).eval(), sample, given)
    with FakeGpu() as gpu:
        model = to_gpu(build(0.3, decoder_layers=1).eval())
        model.make_generation_fast_()
        ours = found(model, to_gpu(sample), None if given is None else to_gpu(given))
        for kernel in ("_restrict_lines", "_count_lines", "_best_of_item", "_advance", "_log_softmax", "_write"):
            assert gpu.launches[f"triton:{kernel}"] > 0
        for mine, theirs in zip(sum(ours, []), sum(expected, []), strict=True):
            assert on_cpu(mine["tokens"]).tolist() == theirs["tokens"].tolist()
            torch.testing.assert_close(on_cpu(mine["score"]), theirs["score"], rtol=1e-4, atol=1e-4)
        lines = [on_cpu(f[0]["tokens"]).eq(separator).sum().item() + 1 for f in ours]
        assert lines == (source == separator).sum(1).add(1).tolist()


def passes(model, criterion, *samples):
    """Return the last loss, the sums of the gradients and the last log of some batches, on the host."""
    model.zero_grad(set_to_none=True)
    for sample in samples:
        loss, sample_size, log = criterion(model, sample)
        loss.backward()
    gradients = {name: on_cpu(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return on_cpu(loss).detach(), gradients, {name: on_cpu(value) for name, value in log.items()}, sample_size


def assert_same(ours, theirs):
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    for values, expected in zip(ours[1:3], theirs[1:3]):
        assert values.keys() == expected.keys()
        for name, value in values.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-3, msg=name)
    assert ours[3] == theirs[3]


CAPTURED = {
    "learned": {},
    "sampled": {"supervise_rows": "8"},
    "no-supervision": {"weight": 0.0, "select_gradient": "none"},
    "dense": {"select_modules": "none"},
    "half-dense": {"select_modules": "encoder"},
}


@pytest.mark.parametrize("options", CAPTURED.values(), ids=CAPTURED)
def test_captured_steps_follow_batches_weights_and_kappa(build, small_task, monkeypatch, options):
    """Check alternating batches of two shapes, with changing weights and kappa, against definitions without padding."""
    options = {"kappa": 0.9, "dropout": 0.0, "weight": 0.01, "encoder_layers": 1, "decoder_layers": 1} | options
    options |= {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    weight = options.pop("weight")
    # padding matters if queries are sampled: strides are made equal, and no source is moved
    sampled = "supervise_rows" in options
    sizes = (20 if sampled else 18, 15), (24 if sampled else 22, 12), (20, 16), (24, 11), (20 if sampled else 17, 15)
    monkeypatch.setattr("fairseq_lasformer.nn.options.SHORTEST", 1)
    monkeypatch.setattr("fairseq_lasformer.plugin.build.PLACES", 0)  # the CPU's queries teach
    drawn = RowSampling.sample
    monkeypatch.setattr(RowSampling, "sample", lambda self, n, length, kappa: drawn(self, 2, 16, 0.3))
    criterion = LabelSmoothedCrossEntropyWithSelection(small_task, False, 0.1, selection_weight=weight)
    plain = build(backend="reference", **options).train()
    with FakeGpu() as gpu:
        model = to_gpu(build(**options).train())
        steps = GraphedCriterion(criterion, 48, (1, 1), True)
        for update, size in enumerate(sizes):
            sample = batch(*size)
            for m in (model, plain):
                m.set_num_updates(2)
                for i, (_, selector) in enumerate(m.selectors()):
                    selector.kappa.fill_(700_000 - 90_000 * (update + i))
                    assert 0 < selector.share < 0.9  # known from here on
            gpu.reset()
            ours = passes(model, steps, to_gpu(sample))
            counted = gpu.totals
            assert_same(ours, passes(plain, criterion, sample))
            for m in (model, plain):
                with torch.no_grad():
                    for p in m.parameters():
                        if p.grad is not None:
                            p.sub_(p.grad, alpha=1e-3)
        assert counted["syncs"] == counted["uploads"] == 0 and counted["launches"] < 40, gpu.launches
        assert [graph.replays for graph in gpu.graphs] == [2, 2, 1, 1]  # two shapes, forward and backward
        gpu.reset()
        several = batch(20, 16), batch(24, 11), batch(20, 30)  # the last one has too many tokens
        assert_same(passes(model, steps, *map(to_gpu, several)), passes(plain, criterion, *several))
        assert [graph.replays for graph in gpu.graphs] == [3, 3, 2, 2] and gpu.totals["launches"] > 100
        assert len(steps.passes) == 2
        for m in (model, plain):
            m.set_num_updates(3)  # other queries teach, in a different graph
        assert_same(passes(model, steps, to_gpu(several[0])), passes(plain, criterion, several[0]))
        assert gpu.graphs[0].replays == (3 if sampled else 4)


def test_captured_steps_draw_dropout_anew_and_once_for_both_passes(build, small_task):
    options = {"kappa": 0.5, "dropout": 0.2, "attention_dropout": 0.3, "encoder_layers": 1, "decoder_layers": 1}
    criterion = LabelSmoothedCrossEntropyWithSelection(small_task, False, 0.1, selection_weight=0.01)
    sample, found = batch(10, 9), []
    with FakeGpu() as gpu:
        model = to_gpu(build(**options).train())
        assert all(selector.share == 0.5 for _, selector in model.selectors())
        steps = GraphedCriterion(criterion, 48, (1, 1), True)
        for seed in (7, 7, 8, 7):
            torch.manual_seed(seed)
            found.append(passes(model, steps, to_gpu(sample)))
        assert [graph.replays for graph in gpu.graphs] == [3, 3]
    assert_same(found[0], found[1])  # the first one was not captured
    assert_same(found[1], found[3])
    for one, other in ((found[2][0], found[1][0]), (found[2][2]["nll_loss"], found[1][2]["nll_loss"])):
        assert abs(float(one - other)) > 0.01


def test_captured_shapes_are_limited(build, small_task, monkeypatch):
    monkeypatch.setattr("fairseq_lasformer.plugin.training.graphed.MOST_GRAPHS", 1)
    criterion = LabelSmoothedCrossEntropyWithSelection(small_task, False, 0.1)
    with FakeGpu() as gpu:
        model = to_gpu(build(select_modules="none").train())
        steps = GraphedCriterion(criterion, 1000, (1, 1), True)
        for _ in range(2):
            for length in (8, 16):
                passes(model, steps, to_gpu(batch(length, length)))
        assert len(steps.passes) == len(steps.batches) == 1
        assert [graph.replays for graph in gpu.graphs] == [1, 1]
        (captured,) = steps.passes.values()
        tables = [side.embed_positions.weights for side in (model.encoder, model.decoder)]
        assert [t.data_ptr() for t in captured.tables] == [t.data_ptr() for t in tables]


def test_captured_graphs_share_their_memory_up_to_a_share_of_the_gpus(build, small_task, caplog):
    """Blocks of memory belong to the stream that they were allocated on: one stream for all graphs."""
    criterion = LabelSmoothedCrossEntropyWithSelection(small_task, False, 0.1)
    with FakeGpu() as gpu:
        model = to_gpu(build(select_modules="none", encoder_layers=1, decoder_layers=1).train())

        def reserved(lengths: tuple[int, ...], memory: float) -> tuple[int, int]:
            """Return the bytes of the graphs, and their number."""
            gpu.pools.clear()
            before, steps = len(gpu.graphs), GraphedCriterion(criterion, 1000, (1, 1), True, memory)
            for _ in range(3):
                for length in lengths:
                    passes(model, steps, to_gpu(batch(length, length)))
            return sum(gpu.pools.values()), len(gpu.graphs) - before

        large, _ = reserved((16,), 1.0)
        assert large > 0 and reserved((8, 16), 1.0) == (large, 4)
        gpu.memory = 1  # the first graph has more than its share
        with caplog.at_level("INFO"):
            assert reserved((16, 8), 0.25)[1] == 2
    (line,) = [r.getMessage() for r in caplog.records if "--cuda-graph-memory" in r.getMessage()]
    assert line.startswith("--cuda-graph-tokens: the graphs of 1 shapes take")
