"""Positions and attention by line: a model of documents that begins as one of its sentences."""

from __future__ import annotations

import pytest
import torch
from helpers import steps

from fairseq_lasformer.nn.attentions.selected import LINE_BIAS_ALONE, LINE_BIAS_START, LINE_BIAS_UNIT
from fairseq_lasformer.nn.lines import SourceLines, TargetLines
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.rotary import near
from fairseq_lasformer.ops import AttentionMask, OwnLines
from fairseq_lasformer.ops.reference import line_bias, other_keys

EOS, PAD, SEP = 2, 1, 9
SOURCE = torch.tensor(
    [
        [PAD, PAD, 11, 12, SEP, 13, SEP, 14, 15, 16, EOS],
        [21, 22, 23, SEP, 24, 25, 26, 27, EOS, PAD, PAD],
    ]
)
TARGET = torch.tensor([[EOS, 31, 32, SEP, SEP, 33, 34, 35], [EOS, SEP, 41, 42, 43, SEP, 44, PAD]])


WIDE = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"embed_dim": 128, "attention_heads": 2}.items()
} | {"select_dim": 64}
"""Heads and selectors that have all pairs of rotated dimensions."""


@pytest.fixture
def by_lines(build, small_task, monkeypatch):
    """Model with positions and attention by line, and biases of the other lines' keys around ``bias``."""

    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: SEP, raising=False)

    def make(bias: float, packed: bool = False, **options):
        torch.manual_seed(2)
        model = build(**{"own_lines": True, **options}).eval()
        biases = [parameter for name, parameter in model.named_parameters() if name.endswith("line_bias")]
        for i, parameter in enumerate(biases):
            parameter.data.copy_((bias + torch.linspace(-0.5, 0.5, len(parameter)) - 0.1 * i) / LINE_BIAS_UNIT)
        if packed:
            model.make_generation_fast_()
            assert model.decoder.packed is not None
        return model

    return make


def brute(ends: torch.Tensor, padding: torch.Tensor) -> list[list[list[int]]]:
    """The tokens of each line of each item."""
    found = []
    for item, pads in zip(ends.tolist(), padding.tolist()):
        lines: list[list[int]] = [[]]
        for i, (end, pad) in enumerate(zip(item, pads)):
            if not pad:
                lines[-1].append(i)
                lines += [[]] * end
        found.append([line for line in lines if line])
    return found


def test_lines_of_sources_and_targets():
    ends, padding = (SOURCE == SEP) | (SOURCE == EOS), SOURCE == PAD
    lines = SourceLines.of(ends, padding)
    for b, own in enumerate(brute(ends, padding)):
        for number, tokens in enumerate(own):
            assert lines.line[b, tokens].tolist() == [number] * len(tokens)
            assert lines.places()[b, tokens].tolist() == list(range(len(tokens)))
            assert (lines.first[b, number], lines.n_tokens[b, number]) == (tokens[0], len(tokens))
    target = TargetLines.of((TARGET == SEP) | (TARGET == EOS))
    assert target.line[0].tolist() == [0, 0, 0, 1, 2, 2, 2, 2] and target.place[0].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert target.line[1].tolist() == [0, 1, 1, 1, 1, 2, 2, 2]
    kept = lines.own(target.line).slots().indices.view(*TARGET.shape, -1)
    assert [row[row >= 0].tolist() for row in kept[0]] == 3 * [[2, 3, 4]] + [[5, 6]] + 4 * [[7, 8, 9, 10]]
    # the second source has two lines: nothing is read for the third of the target
    assert [row[row >= 0].tolist() for row in kept[1]] == [[0, 1, 2, 3]] + 4 * [[4, 5, 6, 7, 8]] + 3 * [[]]
    own = target.own(TARGET == PAD).slots().indices.view(*TARGET.shape, -1)
    assert own[1, -1].tolist() == [-1] * own.size(2)  # none of padding
    assert [row[row >= 0].tolist() for row in own[0]] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [3],
        [4],
        [4, 5],
        [4, 5, 6],
        [4, 5, 6, 7],
    ]


@pytest.mark.parametrize("modules", ["none", "encoder,decoder,cross"])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_with_a_low_bias_every_line_is_translated_as_if_alone(by_lines, modules, pre_norm):
    norms = {f"{side}_normalize_before": pre_norm for side in ("encoder", "decoder")}
    model = by_lines(-60.0, select_modules=modules, **norms)
    with torch.no_grad():
        whole = model.decoder(TARGET[:1], encoder_out=model.encoder(SOURCE[:1], None))[0]
        for source, target in ((slice(2, 5), slice(0, 3)), (slice(5, 7), slice(3, 4)), (slice(7, 11), slice(4, 8))):
            alone = model.decoder(TARGET[:1, target], encoder_out=model.encoder(SOURCE[:1, source], None))[0]
            torch.testing.assert_close(whole[:, target], alone, rtol=1e-4, atol=1e-5)
        # with another bias, it is not so
        other = by_lines(1.0, select_modules=modules, **norms)
        changed = other.decoder(TARGET[:1], encoder_out=other.encoder(SOURCE[:1], None))[0]
        assert (changed - whole).abs().max() > 0.01


@pytest.mark.parametrize("modules", ["none", "encoder,decoder,cross"])
@pytest.mark.parametrize("n_beams", [1, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [{}, WIDE], ids=["small", "wide"])
def test_steps_are_a_full_pass(by_lines, modules, n_beams, packed, sizes):
    options = {"select_modules": modules, "kappa": 0.4} | sizes
    model = by_lines(0.5, **options)
    with torch.no_grad():
        full = model.decoder(TARGET, encoder_out=model.encoder(SOURCE, None))[0]
        model = by_lines(0.5, packed, **options)
        found = steps(model, SOURCE, TARGET, n_beams)
    full, words = (t.repeat_interleave(n_beams, 0) for t in (full, TARGET.ne(PAD)))
    torch.testing.assert_close(found[words], full[words], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_hypotheses_of_different_lines_change_places(by_lines, packed):
    model, order = by_lines(0.5, packed), torch.tensor([1, 0, 0])
    rows = torch.tensor([[EOS, 31, SEP, 33], [EOS, 31, 32, SEP], [EOS, SEP, 32, 33]])
    with torch.no_grad():
        encoder_out = model.encoder(SOURCE[:1], None)
        state: dict = {}
        out = model.encoder.reorder_encoder_out(encoder_out, torch.zeros(3, dtype=torch.long))
        for i in range(1, 5):
            model.decoder(rows[:, :i], out, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        after = torch.cat([rows[order], torch.tensor([[34], [35], [SEP]])], 1)
        found = model.decoder(after, out, incremental_state=state)[0][:, 0]
        memory = model.encoder(SOURCE[:1].expand(3, -1), None)
        torch.testing.assert_close(found, model.decoder(after, memory)[0][:, -1], rtol=1e-4, atol=1e-4)


def test_padded_batches_read_what_single_documents_do(by_lines):
    model = by_lines(0.5)
    with torch.no_grad():
        both = model.decoder(TARGET, encoder_out=model.encoder(SOURCE, None))[0]
        alone = model.decoder(TARGET[1:, :-1], encoder_out=model.encoder(SOURCE[1:, :-2], None))[0]
    torch.testing.assert_close(both[1:, :-1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "pattern, packed",
    [("window:3", False), ("window:3", True), ("bigbird:window=1,global=1", False), ("etc:window=2", False)],
)
def test_patterns_of_positions_keep_own_lines_besides(by_lines, pattern, packed):
    model = by_lines(0.5, select_pattern=pattern)
    with torch.no_grad():
        full = model.decoder(TARGET, encoder_out=model.encoder(SOURCE, None))[0]
        found = steps(by_lines(0.5, packed, select_pattern=pattern), SOURCE, TARGET, 2)
    full, words = (t.repeat_interleave(2, 0) for t in (full, TARGET.ne(PAD)))
    torch.testing.assert_close(found[words], full[words], rtol=1e-4, atol=1e-4)


def test_a_near_line_is_told_from_a_far_one_and_earlier_models_do_not_tell(by_lines):
    model = by_lines(2.0, **WIDE)
    line, other = [31, 32, SEP], [33, 34, SEP]
    near, far = (
        torch.tensor([[*line, *other, *([35, SEP] * 3), 36, EOS]]),
        torch.tensor([[*other, *line, *([35, SEP] * 3), 36, EOS]]),
    )
    with torch.no_grad():
        outs = [model.encoder(source, None)["encoder_out"][0][-1, 0] for source in (near, far)]
        assert (outs[0] - outs[1]).abs().max() > 1e-3
        weights = {name: value for name, value in model.state_dict().items() if not name.endswith("line_frequency")}
        model.load_state_dict(weights)
        outs = [model.encoder(source, None)["encoder_out"][0][-1, 0] for source in (near, far)]
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-4)
        assert not model.encoder.tells_lines and not model.decoder.line_frequency.any()


def test_selectors_of_earlier_models_have_no_biases(by_lines):
    model = by_lines(0.5, select_modules="encoder,decoder,cross", **WIDE)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    biases = [name for name in weights if ".selector." in name and name.endswith(".bias")]
    assert len(biases) == 2 * len(list(model.selectors())) and all(weights.pop(name).any() for name in biases)
    model.load_state_dict(weights)
    assert not any(model.state_dict()[name].any() for name in biases)


def test_selectors_of_a_model_without_own_lines_start_to_read_near_lines(by_lines, build):
    options = {"select_modules": "encoder,decoder,cross", **WIDE}
    weights = {name: value.clone() for name, value in build(**options).state_dict().items()}
    model, fresh = by_lines(0.5, **options), by_lines(0.5, **options)
    model.load_state_dict(dict(weights))
    for (_, selector), (_, initial) in zip(model.selectors(), fresh.selectors(), strict=True):
        assert selector.q_proj.bias.any() and torch.equal(selector.k_proj.bias, initial.k_proj.bias)
        assert not selector.q_proj.weight[:16].any() and selector.q_proj.weight[16:].any()
    (before, after) = (weights["encoder.layers.0.self_attn.q_proj.bias"], model.encoder.layers[0].self_attn.q_proj.bias)
    assert torch.allclose(after - before, near(2, 64), atol=1e-6) and near(2, 64).any()


@pytest.mark.parametrize("packed", [False, True])
def test_lines_that_are_left_out_leave_the_others_as_far_apart(by_lines, packed):
    model = by_lines(2.0, packed, **WIDE)
    source, target = torch.tensor([[31, 32, SEP, 33, 34, EOS]]), torch.tensor([[EOS, 41, SEP, 42, 43]])

    def scores(numbers):
        encoded = model.encoder(source, None, line_numbers=None if numbers is None else torch.tensor([numbers]))
        read = model.decoder.read(target, encoded) if packed else model.decoder.extract_features(target, encoded)[0]
        return model.decoder.output_layer(read)

    with torch.no_grad():
        torch.testing.assert_close(scores([5, 6]), scores(None), rtol=1e-4, atol=1e-4)
        assert (scores([5, 35]) - scores(None))[:, 2:].abs().max() > 1e-3


def test_more_lines_before_change_nothing_but_what_is_read_of_them(by_lines):
    """Distances count, not numbers: with nothing read of the first lines, the others are as without them."""
    model = by_lines(2.0, **WIDE)
    with torch.no_grad():
        model.decoder.embed_tokens.weight[PAD] = 0
        rotations = [model.encoder.rotations(torch.arange(4) + shift) for shift in (0, 40)]
        layer = model.encoder.layers[0].self_attn
        x = torch.randn(1, 4, 128)
        mask = AttentionMask(None, False, own=OwnLines(torch.arange(4)[None], torch.ones(1, 4, dtype=torch.long)))
        selection = layer.selector(Pass(x, x, mask)) if layer.selector is not None else None
        outs = [layer(Pass(x, x, mask, rotations=(r[None], r[None])), selection).out for r in rotations]
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(outs[0], layer(Pass(x, x, mask), selection).out, atol=1e-3)


def test_a_new_model_reads_other_lines_more_than_its_own(build):
    model = build(own_lines=True)
    biases = [p for name, p in model.named_parameters() if name.endswith("line_bias")]
    assert biases and all((p * LINE_BIAS_UNIT == LINE_BIAS_START).all() for p in biases)
    mask = AttentionMask(None, False, own=OwnLines(torch.arange(100)[None] // 10 * 10, torch.full((1, 100), 10)))
    allowed = mask.full(1, 100, 100, torch.device("cpu"))
    attention = line_bias(model.encoder.layers[0].self_attn.bias, mask, allowed).softmax(-1)
    assert (attention * other_keys(mask, allowed)[:, None]).sum(-1).min() > 0.8


def test_the_bias_learns_from_the_start(by_lines):
    model = by_lines(-2.0).train()
    out, _ = model(SOURCE, None, TARGET)
    out.log_softmax(-1)[..., 31].sum().backward()
    biases = [p for name, p in model.named_parameters() if name.endswith("line_bias")]
    assert len(biases) == sum(
        len(layer.attentions) for stack in (model.encoder, model.decoder) for layer in stack.layers
    )
    assert all(bias.grad.abs().max() > 0 for bias in biases)


def test_a_start_from_a_model_of_sentences_gives_the_separator_the_end_of_sentences_row(by_lines, build):
    model, sentences = by_lines(-1.0), build()
    weights = {name: value.clone() for name, value in sentences.state_dict().items()}
    model.load_state_dict(weights)
    for table in (model.encoder.embed_tokens.weight, model.decoder.output_projection.weight):
        assert torch.equal(table[SEP], table[EOS])
    assert not torch.equal(sentences.encoder.embed_tokens.weight[SEP], sentences.encoder.embed_tokens.weight[EOS])
    biases = [p for name, p in model.named_parameters() if name.endswith("line_bias")]
    assert LINE_BIAS_ALONE < 0 and all((p * LINE_BIAS_UNIT == LINE_BIAS_ALONE).all() for p in biases)
    with torch.no_grad():
        for parameter in biases:
            parameter.fill_(0.4)
        model.encoder.embed_tokens.weight[SEP] += 1
    again = by_lines(-0.1)
    again.load_state_dict(model.state_dict())  # a model of documents goes on as it is
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values()))


@pytest.mark.parametrize("learned", [False, True])
def test_positions_begin_anew_with_each_line(by_lines, learned):
    model = by_lines(-2.0, **{f"{side}_learned_pos": learned for side in ("encoder", "decoder")})
    tokens = torch.tensor([[31, 32, SEP, 31, 32, EOS]])
    x, _ = model.encoder.embed(tokens, lines=SourceLines.of((tokens == SEP) | (tokens == EOS), None))
    torch.testing.assert_close(x[:, :2], x[:, 3:5])
    long = torch.full((1, 3000 if not learned else 20), 31)
    assert torch.isfinite(model.encoder(long, None)["encoder_out"][0]).all()
    with torch.no_grad():
        full = model.decoder(TARGET, encoder_out=model.encoder(SOURCE, None))[0]
        found = steps(model, SOURCE, TARGET, 1).view_as(full)
    words = TARGET.ne(PAD)
    torch.testing.assert_close(found[words], full[words], rtol=1e-4, atol=1e-4)


def test_packed_layers_compute_the_same_for_a_row_alone(by_lines):
    """Every bit of a row is the same in any batch, with any padding, and in 8 bits nearly the same."""
    model = by_lines(-1.0, packed=True)
    with torch.no_grad():
        together = steps(model, SOURCE, TARGET, 1)
        alone = steps(model, SOURCE[1:, :-2], TARGET[1:], 1)
    assert torch.equal(together[1:], alone)
    exact = by_lines(-1.0)
    exact.decoder.run_options = exact.decoder.run_options._replace(int8=True)
    exact.make_generation_fast_()
    assert exact.decoder.packed is not None
    with torch.no_grad():
        near = steps(exact, SOURCE, TARGET, 1)
    words = TARGET.ne(PAD)
    torch.testing.assert_close(near[words], together[words], rtol=0.1, atol=0.1)
