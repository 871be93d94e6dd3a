"""Groups of layers of a dense model that can share a selection."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import tokens

from fairseq_lasformer.apps.models.groups import _loss, attention_of_layers, choose_groups, fewest_groups


def attention(*places: int) -> torch.Tensor:
    """Return attention of layers to 10 neighbouring keys of 40 each, starting here: [layers, 6, 40]."""
    made = torch.full((len(places), 6, 40), 0.001)
    for layer, place in enumerate(places):
        made[layer, :, place : place + 10] = 0.1
    return made / made.sum(-1, keepdim=True)


def test_layers_that_look_at_the_same_keys_are_a_group():
    assert choose_groups([attention(0, 0, 20, 20, 20)], 2).starts == (0, 2)
    assert choose_groups([attention(0, 20, 20, 20)], 2).starts == (0, 1)
    found = choose_groups([attention(0, 0, 0)], 2)
    assert found.starts == (0, 1) and found.lost == 0
    assert choose_groups([attention(0, 20)], 1).lost > 0.3
    assert choose_groups([attention(0, 20, 30)], 9).starts == (0, 1, 2)


def test_no_more_groups_than_the_loss_asks_for():
    given = [attention(0, 0, 20, 21, 22)]
    assert fewest_groups(given, 1.0).starts == (0,)
    assert fewest_groups(given, 0.1).starts == (0, 2)
    assert fewest_groups(given, 0.0).starts == (0, 2, 3, 4)
    assert fewest_groups([attention(0, 20, 30)], -1.0).starts == (0, 1, 2)


@pytest.mark.parametrize("n_groups", [1, 2, 3, 5])
def test_no_partition_loses_less(n_groups):
    given = [torch.rand(6, 5, n).pow(4).softmax(-1) for n in (30, 50)]

    def lost(starts: tuple[int, ...]) -> float:
        return sum(_loss(given, start, end) for start, end in zip(starts, (*starts[1:], 6))) / 6

    best = min(lost((0, *rest)) for rest in itertools.combinations(range(1, 6), n_groups - 1))
    found = choose_groups(given, n_groups)
    assert len(found.starts) == n_groups and found.lost == pytest.approx(best) == pytest.approx(lost(found.starts))


def test_attention_is_what_the_layers_compute(build):
    model = build(select_modules="none").eval()
    source, target = tokens(1, 23)[0], tokens(1, 11)[0]
    found = attention_of_layers(model, [(source, target)], 2)
    assert {name: a[0].shape for name, a in found.items()} == {
        "encoder": (len(model.encoder.layers), 23, 23),
        "decoder": (len(model.decoder.layers), 11, 11),
        "cross": (len(model.decoder.layers), 11, 23),
    }
    for each in found.values():
        torch.testing.assert_close(each[0].sum(-1), torch.ones(each[0].shape[:2]))
    assert not found["decoder"][0].triu(1).any() and found["encoder"][0].triu(1).any()
    # the first layer again, by torch's own module
    layer, own = model.encoder.layers[0], model.encoder.layers[0].self_attn
    x = layer.before(layer.self_attn_layer_norm, model.encoder.embed(source[None])[0])
    parts = [own.q_proj, own.k_proj, own.v_proj]
    _, weights = torch.nn.functional.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3, own.embed_dim, own.num_heads, torch.cat([p.weight for p in parts]),
        torch.cat([p.bias for p in parts]), None, None, False, 0.0, own.out_proj.weight, own.out_proj.bias,
    )  # fmt: skip
    torch.testing.assert_close(found["encoder"][0][0], weights[0], rtol=1e-4, atol=1e-5)


def test_attention_with_own_lines_is_that_of_the_model(build, small_task, monkeypatch):
    """Biases of the other lines, and rotations by line numbers, decide what is read."""
    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: 10, raising=False)
    model = build(select_modules="none", own_lines=True).eval()
    source = tokens(1, 30)[0].masked_fill(torch.arange(30) % 10 == 9, 10)
    attention = model.encoder.layers[0].self_attn
    with torch.no_grad():
        attention.v_proj.weight.zero_()
        (found,) = attention_of_layers(model, [(source, source)], 2)["encoder"]
        # values that are 1 in one line and 0 elsewhere: what comes out is the attention to that line
        seen = {}
        attention.register_forward_pre_hook(lambda module, args: seen.update(full=args[0]))
        attention.out_proj.weight.copy_(torch.eye(32))
        attention.out_proj.bias.zero_()
        model.encoder(source[None], torch.tensor([30]))
        full = seen["full"]
        for line in range(3):
            of_line = ((torch.arange(30) // 10) == line).float()
            monkeypatch.setattr(
                attention.v_proj, "forward", lambda x, of_line=of_line: of_line[None, :, None].expand(1, 30, 32)
            )
            monkeypatch.setattr(
                "fairseq_lasformer.nn.attentions.projected.products",
                lambda x, *layers: [layer(x) for layer in layers],
            )
            out = attention(full, attention.selector(full)).out[0] if attention.selector else attention(full).out[0]
            torch.testing.assert_close(found[0] @ of_line, out.view(30, 4, 8).mean((1, 2)), rtol=1e-4, atol=1e-5)
