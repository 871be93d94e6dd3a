"""The model against definitions: fairseq's own Transformer, causality, padding, incremental decoding."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from helpers import CUDA, SMALL, assert_beams_decode_alike, skip_unless_here, tokens
from tiers import thinned

from fairseq_lasformer import ops
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.options import Pass, RunOptions
from fairseq_lasformer.ops import AttentionMask, Teachers, choice, reference
from fairseq_lasformer.plugin.config import LasformerConfig, module_config, selected_modules
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.beam_loop import BeamGenerator


def fairseq_transformer(small_task):
    cfg = TransformerConfig()
    cfg.encoder, cfg.decoder, cfg.quant_noise = cfg.encoder(), cfg.decoder(), cfg.quant_noise()
    for side in (cfg.encoder, cfg.decoder):
        side.embed_dim, side.ffn_embed_dim, side.attention_heads, side.layers = 32, 48, 4, 3
    cfg.decoder.input_dim = cfg.decoder.output_dim = 32
    cfg.dropout, cfg.share_all_embeddings = 0.0, True
    return TransformerModelBase.build_model(cfg, small_task)


@pytest.mark.parametrize("modules", ["none", "encoder,decoder,cross"])
def test_dense_and_kappa_one_equal_fairseqs_transformer_with_its_weights(build, small_task, modules):
    theirs, ours = fairseq_transformer(small_task), build(select_modules=modules, select_gradient="none")
    ours.load_state_dict(theirs.state_dict())
    src, tgt = tokens(2, 19, pad_left=(0, 6)), tokens(2, 17, pad_right=(0, 5))
    outs = []
    for model in (theirs.train(), ours.train()):
        logits, _ = model(src, torch.tensor([19, 13]), tgt)
        outs.append(
            (logits, torch.autograd.grad(logits[tgt != 1].logsumexp(-1).sum(), model.encoder.layers[0].fc1.weight)[0])
        )
    torch.testing.assert_close(outs[0][0][tgt != 1], outs[1][0][tgt != 1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outs[0][1], outs[1][1], rtol=1e-3, atol=1e-4)


def test_a_future_target_token_changes_nothing(build):
    model = build(kappa=0.3).eval()
    src, tgt = tokens(1, 50), tokens(1, 40)
    changed = tgt.clone()
    changed[0, 25:] = tokens(15)
    with torch.no_grad():
        a, b = model(src, None, tgt)[0], model(src, None, changed)[0]
    assert torch.equal(a[:, :25], b[:, :25])
    assert not torch.allclose(a[:, 25:], b[:, 25:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(build, side):
    model = build(kappa=0.3).eval()
    src, tgt = tokens(1, 40), tokens(1, 33)
    padding = torch.full((1, 9), 1)
    wide_src = torch.cat([padding, src] if side == "left" else [src, padding], 1)
    wide_src = torch.cat([wide_src, tokens(1, 49)])
    wide_tgt = torch.cat([torch.cat([tgt, padding], 1), tokens(1, 42)])
    with torch.no_grad():
        alone, batched = model(src, None, tgt)[0], model(wide_src, None, wide_tgt)[0]
    torch.testing.assert_close(alone[0], batched[0, :33], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"select_modules": "cross"},
        {"select_share": 1},
    ],
    ids=str,
)
def test_incremental_decoding_equals_the_full_pass(build, options):
    model = build(kappa=0.25, **options).eval()
    src, tgt = tokens(3, 60, pad_left=(0, 9, 23)), tokens(3, 44)
    with torch.no_grad():
        encoder_out, state = model.encoder(src), {}
        steps = [model.decoder(tgt[:, : i + 1], encoder_out=encoder_out, incremental_state=state)[0] for i in range(44)]
        torch.testing.assert_close(torch.cat(steps, 1), model(src, None, tgt)[0], rtol=1e-4, atol=1e-5)


def test_beams_reordered_between_steps_continue_the_right_history(build):
    model = build(kappa=0.25).eval()
    src = tokens(2, 30).repeat_interleave(2, 0)
    tgt, order = tokens(4, 28), torch.tensor([1, 1, 3, 2])
    with torch.no_grad():
        encoder_out, state = model.encoder(src), {}
        for i in range(20):
            model.decoder(tgt[:, : i + 1], encoder_out=encoder_out, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        tgt = torch.cat([tgt[order, :20], tgt[:, 20:]], 1)
        step = model.decoder(tgt[:, :21], encoder_out=encoder_out, incremental_state=state)[0]
        torch.testing.assert_close(step[:, -1], model(src, None, tgt[:, :21])[0][:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cuda_graph_needs_a_gpu(small_task):
    task = SimpleNamespace(**vars(small_task), run_options=RunOptions(cuda_graph=True))
    with pytest.raises(InputError, match="--cuda-graph requires a GPU"):
        LasformerModel.build_model(LasformerConfig(**SMALL), task)


@pytest.mark.parametrize("backend", thinned(["cpu", "triton"]))
@pytest.mark.parametrize("padding", [(0, 0), (0, 31)], ids=["whole", "padded"])
def test_a_full_pass_without_gradients_equals_the_one_with(build, monkeypatch, backend, padding):
    """Reading only kept keys (CPU) and tiles with a mask of bits (Triton) against blocks with a mask."""
    skip_unless_here(backend)
    few = {"encoder_layers": 1, "decoder_layers": 2}  # Triton's interpreter is slow
    model, definition = build(0.3, backend, **few).eval(), build(0.3, "reference", **few).eval()
    monkeypatch.setattr(choice, "INFERENCE_FROM", 1)
    monkeypatch.setattr(choice, "INFERENCE_SHARE", 1.0)
    calls = []
    for name in ("topk_gather", "topk_bitmask"):
        real = getattr(ops, name)
        monkeypatch.setattr(f"fairseq_lasformer.ops.{name}", lambda *a, real=real: calls.append(a) or real(*a))
    src, tgt = tokens(2, 90, pad_left=padding), tokens(2, 70)
    expected = definition(src, None, tgt)[0]
    assert not calls
    with torch.no_grad():
        seen = model(src, None, tgt)[0]
    assert calls
    torch.testing.assert_close(seen, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", ["learned", "window:9", "full"])
def test_the_reference_backend_trains_and_decodes_on_the_definitions_alone(build, monkeypatch, pattern):
    """``--attention-backend reference``: no kernel of this package computes anything."""
    src, tgt = tokens(2, 300, pad_left=(0, 20)), tokens(2, 280)
    options = {"select_pattern": pattern, "supervise_rows": "64"}
    results = {}
    for backend in ("auto", "reference"):
        if backend == "reference":
            names = {"cpu": "kernels", "cpu.rows": "kernels", "attend": "query_blocks", "supervise": "query_blocks"}
            for module, name in names.items():
                place = importlib.import_module(f"fairseq_lasformer.ops.{module}")
                monkeypatch.setattr(place, name, lambda *_: pytest.fail("not the definition"))
        model = build(0.1, backend, **options).train()
        x, extra = model(src, None, tgt)
        loss = x.logsumexp(-1).sum() + sum(s.kl for s in extra["supervision"].values())
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results[backend] = [x.detach(), *gradients.values()]
    for ours, theirs in zip(results["auto"], results["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    generator = BeamGenerator([model.eval()], model.decoder.dictionary, beam_size=2, max_len_b=8, backend="reference")
    assert len(generator.generate([], {"net_input": {"src_tokens": src[:, -30:], "src_lengths": None}})) == 2


@pytest.mark.parametrize("backend", thinned(["reference", "cpu", "triton"], "reference", "cpu"))
def test_every_backend_decodes_beams_alike(build, backend):
    skip_unless_here(backend)
    model, definition = build(0.3, backend).eval(), build(0.3, "reference").eval()
    interpreted = backend == "triton" and not CUDA  # which is slow
    assert_beams_decode_alike(model, definition, *((24, 12) if interpreted else ()))


def loss_and_gradients(model, src, tgt):
    torch.manual_seed(7)
    model.train().zero_grad()
    logits, extra = model(src, None, tgt)
    loss = logits.logsumexp(-1).mean() + sum(s.kl / s.queries for s in extra["supervision"].values())
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_activation_checkpointing_gives_the_same_loss_and_every_gradient(build):
    src, tgt = tokens(2, 33, pad_left=(0, 4)), tokens(2, 29)
    plain = loss_and_gradients(build(kappa=0.4, dropout=0.1), src, tgt)
    saved = loss_and_gradients(build(kappa=0.4, dropout=0.1, checkpoint_activations=True), src, tgt)
    torch.testing.assert_close(plain[0], saved[0])
    assert plain[1].keys() == saved[1].keys() and any("selector" in n for n in plain[1])
    for name, gradient in plain[1].items():
        torch.testing.assert_close(gradient, saved[1][name], msg=name)


def test_the_translation_loss_reaches_the_selectors_only_straight_through(build):
    src, tgt = tokens(2, 40), tokens(2, 40)
    for gradient, reached in (("straight-through", True), ("bounded", True), ("none", False)):
        model = build(kappa=0.4, select_gradient=gradient).train()
        model(src, None, tgt)[0].logsumexp(-1).sum().backward()
        for _, selector in model.selectors():
            assert (selector.q_proj.weight.grad is not None) == reached


@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("target", ["live", "detached"])
def test_the_model_supervises_as_its_options_say(build, kl, target):
    """--select-kl and --select-target, from the model's output down to the definition."""
    model = build(kappa=0.4, select_kl=kl, select_target=target, select_share=3).train()
    src, tgt = tokens(2, 30, pad_left=(0, 6)), tokens(2, 20)
    attended = []
    for layer in model.encoder.layers:
        layer.self_attn.register_forward_hook(lambda _m, _i, out: attended.append(out))
    given = model(src, None, tgt)[1]["supervision"]["encoder.0"]
    selection = attended[0].selection
    queries, keys = ([getattr(a, side) for a in attended] for side in ("query", "key"))
    selector = selection.teaching[:2]
    teachers = Teachers(queries, keys, src.eq(1), kl, target)
    expected = reference.supervise(*selector, teachers, selection.keep_mask, AttentionMask(src.eq(1), False))
    for name, value in expected._asdict().items():
        torch.testing.assert_close(getattr(given, name), value, rtol=1e-4, atol=1e-4, msg=name)
    weight = model.encoder.layers[2].self_attn.q_proj.weight
    (taught,) = torch.autograd.grad(given.kl, weight, allow_unused=True)
    assert (taught is None or not taught.any()) == (target == "detached")


def test_a_fixed_window_has_no_selector_to_learn_or_to_supervise(build):
    model, plain = build(select_pattern="window:7").train(), build(select_modules="none").train()
    assert dict(model.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    assert not list(model.selectors()) and not [k for k in model.state_dict() if "selector" in k]
    src, tgt = tokens(2, 30), tokens(2, 20)
    out, extra = model(src, None, tgt)
    assert extra["supervision"] == {} and extra["kappa"] == {}
    # the gradients are exactly those of attention with the window's mask
    weight = model.encoder.layers[0].self_attn.q_proj.weight
    hidden = model.encoder.embed(src)[0]
    attention = model.encoder.layers[0].self_attn
    seen = attention(Pass(states := hidden.detach(), states, AttentionMask(None, False))).out
    place = torch.arange(30)
    first = (place - 3).clamp(0, 30 - 7)
    mask = (place[None] >= first[:, None]) & (place[None] < first[:, None] + 7)
    q, k, v = (
        p(hidden.detach()).view(2, 30, 4, 8).transpose(1, 2)
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    masked = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    expected = attention.out_proj(masked.transpose(1, 2).reshape(2, 30, 32))
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
    probe = torch.randn_like(seen)
    for a, b in zip(*(torch.autograd.grad(t, weight, probe) for t in (seen, expected))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    old = build(kappa=0.5).state_dict()  # a window's checkpoint from before it went without selectors
    model.load_state_dict(old)
    only = {"select_modules": "decoder"}
    build(select_pattern="window:7", **only).load_state_dict(build(kappa=0.5, **only).state_dict())


def test_dropout_is_kept_in_generation_where_it_is_asked_for(build):
    """--retain-dropout reaches the attention's own dropout, in full passes and in decoding steps."""
    model = build(kappa=0.3, attention_dropout=0.4).eval()
    src, tgt = tokens(2, 40), tokens(2, 30)

    def twice() -> list[bool]:
        same = []
        with torch.no_grad():
            for part in ("encoder", "step"):
                outs = []
                for seed in (1, 2):
                    torch.manual_seed(1 if part == "step" else seed)
                    encoded, state = model.encoder(src), {}
                    if part == "encoder":
                        outs.append(encoded["encoder_out"][0])
                        continue
                    torch.manual_seed(seed)
                    outs.append([model.decoder(tgt[:, : i + 1], encoded, state)[0] for i in range(12)][-1])
                same.append(torch.equal(*outs))
        return same

    assert twice() == [True, True]
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=None)
    assert twice() == [False, False]


def test_a_task_that_does_not_move_kappa_is_warned_about_once(build, small_task, caplog):
    model = build().train()
    for _ in range(2):
        model(tokens(1, 9), None, tokens(1, 9))
    assert [r.message for r in caplog.records if "does not adapt kappa" in r.message][1:] == []
    assert any("--task document_translation" in r.message for r in caplog.records)
    caplog.clear()
    quiet = LasformerModel.build_model(
        LasformerConfig(**SMALL), SimpleNamespace(**vars(small_task), adapts_sparsity=True)
    )
    for one in (quiet.train(), build(select_modules="none").train()):
        one(tokens(1, 9), None, tokens(1, 9))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_kappa_stops_at_the_smallest_one_asked_for(build):
    model = build(kappa=0.4, sparsity_min=0.31, sparsity_step=0.05)
    for name, selector in model.selectors():
        for _ in range(5):
            selector.adapt(1.0)
        assert int(selector.kappa) == 310_000, name


def test_one_selector_a_group_in_every_module(build):
    model = build()
    assert [n for n, _ in model.selectors()] == [
        "encoder.0",
        "encoder.1",
        "decoder.0",
        "decoder.1",
        "cross.0",
        "cross.1",
    ]
    assert list(model(tokens(1, 9), None, tokens(1, 9))[1]["supervision"]) == [
        "encoder.0",
        "encoder.1",
        "decoder.0",
        "cross.0",
        "decoder.1",
        "cross.1",
    ]
    assert model.eval()(tokens(1, 9), None, tokens(1, 9))[1]["supervision"] == {}
    assert not list(build(select_modules="none").selectors())


def test_a_dense_checkpoint_starts_a_selecting_model(build):
    dense, model = build(select_modules="none"), build(kappa=0.2)
    model.load_state_dict(dense.state_dict())
    assert torch.equal(model.encoder.layers[1].fc1.weight, dense.encoder.layers[1].fc1.weight)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"select_modules": "encoder,foo"}, "--select-modules encoder,foo"),
        ({"select_modules": ""}, "--select-modules"),
        ({"sparsity_threshold": 1.5}, "--sparsity-threshold 1.5"),
        ({"sparsity_step": 0.0}, "--sparsity-step 0.0"),
        ({"select_share": 0}, "--select-share"),
        ({"encoder_attention_heads": 5}, "--encoder-attention-heads 5"),
    ],
)
def test_senseless_options_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        module_config(LasformerConfig(**(SMALL | options)))


def test_modules_are_read_in_any_order():
    assert selected_modules(LasformerConfig(select_modules="cross, encoder")) == ("encoder", "cross")


def test_run_options_reach_every_module(build):
    model = build(0.3, "reference")
    backends = [module.backend for module in model.modules() if hasattr(module, "backend")]
    assert len(backends) > 9 and set(backends) == {"reference"}
