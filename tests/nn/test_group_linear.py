"""Group linear transformations and expand-reduce units against literal definitions and published sizes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from helpers import SMALL, assert_steps_are_a_full_pass, run, tokens, train
from torch import nn

from fairseq_lasformer.analysis.cost import parts
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.compact import group_linear as glt
from fairseq_lasformer.nn.compact.embedding import define_sizes
from fairseq_lasformer.plugin.build import embedding as build_embedding
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, module_config
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.text.hypotheses import read_hypotheses


def parts_of(model):
    return parts(model.named_parameters())


def sized(arch: str, source_words: int, target_words: int, **options) -> LasformerModel:
    """Build a named architecture without memory for its weights."""
    dictionaries = [Dictionary() for _ in range(1 + (source_words != target_words))]
    for dictionary, words in zip(dictionaries, (source_words, target_words)):
        for i in range(words - len(dictionary)):
            dictionary.add_symbol(f"w{i}")
    task = SimpleNamespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[-1])
    longest = {"max_source_positions": 1024, "max_target_positions": 1024}
    with torch.device("meta"):
        return LasformerModel.build_model(LasformerConfig(**(PRESETS.get(arch, {}) | options | longest)), task)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_one_group_is_a_linear_layer_and_groups_do_not_see_each_other():
    x = torch.randn(2, 5, 12)
    one = glt.GroupLinear(12, 8, 1)
    torch.testing.assert_close(one(x), x @ one.weight[0] + one.bias)
    many = glt.GroupLinear(12, 8, 4)
    nn.init.normal_(many.bias)
    parts = [x[..., 3 * i : 3 * i + 3] @ many.weight[i] + many.bias[2 * i : 2 * i + 2] for i in range(4)]
    torch.testing.assert_close(many(x), torch.cat(parts, -1))
    assert count(many) == 12 * 8 // 4 + 8
    with pytest.raises(ValueError, match="12 and 9 features do not divide into 4 groups"):
        glt.GroupLinear(12, 9, 4)


def test_shuffle_and_mixer_are_wired_as_in_a_literal_loop():
    x, y = torch.arange(12.0), 100 + torch.arange(8.0)
    shuffled = glt.shuffle(x, 4)
    for group in range(4):
        for j in range(3):
            assert shuffled[j * 4 + group] == x[group * 3 + j]
    mixed = []
    for group in range(4):
        mixed += x[3 * group : 3 * group + 3].tolist() + y[2 * group : 2 * group + 2].tolist()
    assert glt.mix(x, y, 4).tolist() == mixed
    assert glt.mix(x, y, 1).tolist() == [*x.tolist(), *y.tolist()] and torch.equal(glt.shuffle(x, 1), x)


UNITS = {
    "official": glt.UnitSizes(8, (16, 16, 8), (2, 4, 2), 8, shuffles=True, norms=True),
    "paper": glt.UnitSizes(0, (16, 24, 8), (1, 2, 1), 0, shuffles=True, norms=True),
    "define": define_sizes(12, 32, 8, 3, 4),
    "all linear": define_sizes(12, 32, 8, 3, 1),
    "constant groups": glt.UnitSizes(0, (16, 24, 8), (4, 4, 4), 8, shuffles=False, norms=False),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_the_loop_of_its_definition(name):
    sizes = UNITS[name]
    unit = glt.ExpandReduce(12, sizes).double()
    for p in unit.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 12).double()
    first = torch.nn.functional.silu(unit.enter_norm(unit.enter(x))) if sizes.enter else x
    y = None
    for layer, norm, groups in zip(unit.layers, unit.norms, sizes.groups):
        given = first if y is None else glt.mix(first, y, groups)
        width = given.size(-1) // groups
        out = (
            torch.cat([given[:, width * g : width * (g + 1)] @ layer.weight[g] for g in range(groups)], -1) + layer.bias
        )
        if name == "all linear":  # one group: plain linear layers over both inputs
            joined = first if y is None else torch.cat([first, y], -1)
            torch.testing.assert_close(out, torch.nn.functional.linear(joined, layer.weight[0].T, layer.bias))
        if sizes.norms:
            out = glt.shuffle(out, groups)
            per = out.size(-1) // groups
            out = torch.cat([norm(out[:, per * g : per * (g + 1)]) for g in range(groups)], -1)
        y = torch.nn.functional.silu(out)
    if sizes.leave:
        y = unit.leave(torch.cat([first, y], -1))
        if sizes.norms:
            y = unit.leave_norm(y)
        if name in ("official", "constant groups"):
            y = torch.nn.functional.silu(y)
    torch.testing.assert_close(unit(x), y)
    assert sizes.depth == {"official": 5, "paper": 3}.get(name, 4)


@pytest.mark.parametrize(
    ("d", "n", "w", "g", "total"),
    [(512, 4, 2, 16, 923_136), (512, 5, 2.286, 16, 919_422), (640, 8, 3, 32, 2_234_480), (256, 7, 2.857, 8, 335_316)],
)
def test_units_have_the_official_numbers_of_parameters(d, n, w, g, total):
    assert glt.max_groups(d, official=True) == g
    assert count(glt.ExpandReduce(d, glt.official_sizes(d, d // 2, d // 2, n, w, g))) == total


@pytest.mark.parametrize(
    ("d", "total"), [(128, 85_696), (256, 215_680), (384, 407_104), (512, 659_968), (640, 974_272)]
)
def test_embedding_units_have_the_official_numbers_of_parameters(d, total):
    assert count(glt.ExpandReduce(128, glt.official_sizes(128, d // 2, d, 4, 2, glt.max_groups(128, True)))) == total


def test_blocks_scale_from_the_input_to_the_output():
    sizes = glt.block_sizes(4, 8, 2, 8)
    assert [n for n, _ in sizes] == [4, 4, 5, 5, 6, 6, 7, 8]
    assert [w for _, w in sizes] == [2.0, 2.143, 2.286, 2.429, 2.571, 2.714, 2.857, 3.0]
    assert glt.block_sizes(4, 8, 2, 1) == [(4, 2.0)]
    for b, (n, w) in enumerate(glt.block_sizes(3, 9, 1.5, 5)):
        assert n == math.floor(3 + 6 * b / 4) and w == pytest.approx(1.5 + 6 * b / (3 * 4))
    assert glt.max_groups(640, official=False) == 20 and glt.max_groups(640, official=True) == 32


@pytest.mark.parametrize(("variant", "more"), [("paper", 0), ("official", 2)])
def test_a_block_of_n_transformations_is_n_plus_4_layers_deep(build, variant, more):
    """A path goes through the transformations, keys (or queries, or values), the output and the two of the network."""
    model = build(delight=variant, select_modules="none", encoder_embed_dim=64, decoder_embed_dim=64)
    depths = []
    for layer in model.encoder.layers:
        linear = [m for m in layer.modules() if isinstance(m, (nn.Linear, glt.GroupLinear))]
        depths.append(len(linear) - 2)  # of keys, queries and values one lies on a path
    assert depths == [n + 4 + more for n, _ in glt.block_sizes(4, 8, 2.0, 3)] == [8 + more, 10 + more, 12 + more]


def test_words_of_a_define_embedding_begin_as_far_apart_as_those_of_a_scaled_table(build):
    module = module_config(LasformerConfig(embedding="define", define_dim=32, define_expand=256))
    words = build_embedding(module, 1000, 128, 1)(torch.arange(4, 1000))
    assert (words - words.mean(0)).std().item() == pytest.approx(1.0, rel=0.02)
    for name in ("define", "official"):
        model = build(**MODELS[name])
        assert model.encoder.embed_scale == model.decoder.embed_scale == 1.0


def test_mixtures_in_delight_blocks_are_warned_of(caplog):
    module_config(LasformerConfig(delight="official", moe_experts=4))
    assert "--delight with --moe-experts" in caplog.text


def test_define_units_halve_their_groups_and_have_the_papers_size():
    sizes = define_sizes(128, 1024, 512, 3, 4)
    assert sizes.widths == (428, 726, 1024) and sizes.groups == (4, 2, 1)
    assert count(glt.ExpandReduce(128, sizes)) == 1_682_534
    with pytest.raises(InputError, match="--embedding define: .* do not divide"):
        module = module_config(LasformerConfig(embedding="define", define_dim=126))
        build_embedding(module, 50, 64, 1)


OFFICIAL = {
    43_736: {128: 8_094_432, 256: 13_788_584, 384: 23_246_072, 512: 36_763_788, 640: 54_036_236},
    44_512: {128: 8_193_760, 256: 13_887_912, 384: 23_345_400, 512: 36_863_116, 640: 54_135_564},
    34_976: {128: 6_973_152, 256: 12_667_304, 384: 22_124_792},
}


@pytest.mark.parametrize(("words", "dim"), [(w, d) for w, sizes in OFFICIAL.items() for d in sizes])
def test_the_official_presets_have_the_published_totals(words, dim):
    found = parts_of(sized("delight_transformer", words, words, encoder_embed_dim=dim, decoder_embed_dim=dim))
    assert found["total"] == OFFICIAL[words][dim]


def test_define_saves_a_quarter_of_transformer_base():
    tied = {"share_decoder_input_output_embed": True}
    base = parts_of(sized("lasformer_dense", 32_000, 32_001, **tied))["total"]
    compact = parts_of(sized("lasformer_dense", 32_000, 32_001, **tied, embedding="define"))
    assert 0.25 < 1 - compact["total"] / base < 0.29


MODELS = {
    "official": {"delight": "official", "embedding": "delight", "encoder_embed_dim": 64, "decoder_embed_dim": 64},
    "paper": {"delight": "paper", "encoder_embed_dim": 64, "decoder_embed_dim": 64, "encoder_normalize_before": True},
    "define": {"embedding": "define", "define_dim": 16, "define_expand": 64, "share_all_embeddings": False},
    "mixtures": {"delight": "paper", "encoder_embed_dim": 64, "decoder_embed_dim": 64, "moe_experts": 4},
    "joint": {"embedding": "define", "define_dim": 16, "define_expand": 64},
    "dense": {"delight": "official", "select_modules": "none", "encoder_embed_dim": 64, "decoder_embed_dim": 64},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_and_decode_step_by_step(build, name):
    model = build(0.4, **MODELS[name])
    src, prev = tokens(3, 17, pad_left=(0, 4, 6)), tokens(3, 13)
    model.train()
    out, extra = model(src, src.ne(1).sum(1), prev)
    assert out.shape == (3, 13, 64)
    (out.square().mean() + sum(s.kl for s in extra["supervision"].values())).backward()
    for parameter, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), parameter
    model.eval()
    full = assert_steps_are_a_full_pass(model, src, prev)
    with torch.no_grad():
        model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
        again = model.decoder(prev, model.encoder(src, src.ne(1).sum(1)))[0]
        torch.testing.assert_close(again, full, rtol=1e-4, atol=1e-5)
    other = build(0.4, **MODELS[name]).eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(src, src.ne(1).sum(1), prev)[0], full, rtol=1e-4, atol=1e-5)


def test_a_define_model_has_tables_for_two_vocabularies(small_task):
    target = Dictionary()
    for i in range(30):
        target.add_symbol(f"t{i}")
    task = SimpleNamespace(source_dictionary=small_task.source_dictionary, target_dictionary=target)
    options = SMALL | {"share_all_embeddings": False, "embedding": "define", "define_dim": 16, "define_expand": 64}
    for tied in (False, True):
        model = LasformerModel.build_model(LasformerConfig(**options, share_decoder_input_output_embed=tied), task)
        tables = {
            n: p.shape
            for n, p in model.named_parameters()
            if p.size(0) in (64, 34) and p.dim() == 2 and p.size(1) == 16
        }
        assert tables["encoder.embed_tokens.embedding.weight"] == (64, 16)
        assert tables["decoder.embed_tokens.embedding.weight"] == (34, 16)
        assert (model.decoder.output_projection.weight is model.decoder.embed_tokens.weight) == tied
        model.eval()
        full = assert_steps_are_a_full_pass(model, tokens(2, 11), torch.randint(4, 34, (2, 9)))
        assert full.shape == (2, 9, 34)


@pytest.mark.parametrize(("variant", "refused"), [("official", 328), ("paper", 104)])
def test_widths_build_or_are_refused_by_name(variant, refused):
    def of(dim: int) -> dict:
        return {"delight": variant, "encoder_embed_dim": dim, "decoder_embed_dim": dim, "select_dim": 16}

    for dim in (*range(64, 1025, 64), 96, 160, 224):
        model = sized("lasformer", 50, 50, **of(dim))
        assert model.encoder.layers[0].self_attn.embed_dim == dim // 2
    with pytest.raises(InputError, match=f"--delight {variant} with --encoder-embed-dim {refused}: .* multiple of 64"):
        sized("lasformer", 50, 50, **of(refused), delight_min_depth=8)


@pytest.mark.parametrize("arch", ["lasformer", *PRESETS])
def test_every_architecture_can_be_counted(arch):
    assert parts_of(sized(arch, 100, 100))["total"] > 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "define", "define_dim": 0}, "--define-dim"),
        ({"embedding": "define", "define_expand": 64}, "--define-expand 64"),
        ({"embedding": "define", "define_depth": 0}, "--define-depth"),
        ({"embedding": "delight", "delight_min_depth": 0}, "--delight-min-depth"),
        ({"delight": "paper", "delight_width": 0.5}, "--delight-width"),
        ({"delight": "paper", "select_dim": 256}, "--select-dim 256: .* 256 wide"),
        ({"delight": "paper", "encoder_embed_dim": 100}, "multiples of 8"),
    ],
)
def test_senseless_sizes_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        module_config(LasformerConfig(**options))
    wide = {"delight": "paper", "encoder_embed_dim": 64, "select_modules": "decoder"}
    module_config(LasformerConfig(**wide))  # the narrower encoder does not select


def test_dictionaries_that_differ_are_no_use_to_the_presets():
    with pytest.raises(InputError, match="part of --arch lasformer_delight"):
        sized("lasformer_delight", 50, 60)
    with pytest.raises(InputError, match="the same --encoder-embed-dim and --decoder-embed-dim"):
        sized("lasformer_delight", 50, 50, encoder_embed_dim=256)


def test_rows_computed_for_inference_are_forgotten_by_training():
    module = module_config(LasformerConfig(embedding="define", define_dim=16, define_expand=64))
    embedding = build_embedding(module, 50, 64, 1).eval()
    words = torch.arange(50)
    live = embedding(words)
    embedding.make_generation_fast_()
    assert embedding.table is not None and not embedding(words).requires_grad
    torch.testing.assert_close(embedding(words), live)
    embedding.train()
    embedding.eval()
    assert embedding.table is None and embedding(words).requires_grad


def test_delight_is_one_head_in_half_the_width_and_its_depth_counts():
    config = module_config(
        LasformerConfig(delight="paper", encoder_embed_dim=256, decoder_embed_dim=256, select_dim=32)
    )
    assert config.encoder.attention_heads == 1 and config.encoder.ffn_embed_dim == 64
    for n in range(2, 9):
        sizes = glt.paper_sizes(256, 128, n, 2.0, 8)
        assert sizes.depth + 4 == n + 4 and sizes.widths[-1] == 128 and max(sizes.widths) == 512
        assert list(sizes.groups) == list(reversed(sizes.groups)) and sizes.groups[0] == 1
        unit = glt.ExpandReduce(256, sizes)
        assert unit(torch.randn(2, 256)).shape == (2, 128)
    with pytest.raises(InputError, match="saves nothing; use at most 64"):
        module_config(LasformerConfig(delight="official", encoder_embed_dim=256, decoder_embed_dim=256, select_dim=128))


@pytest.mark.sweep
def test_both_commands_of_a_delight_model_run(prepared, tmp_path):
    sizes = ["--encoder-embed-dim", 64, "--decoder-embed-dim", 64, "--encoder-layers", 2, "--decoder-layers", 2]
    arch = ["--arch", "lasformer_delight", *sizes, "--select-dim", 8, "--define-dim", 16]
    arch += ["--embedding", "define", "--define-expand", 32]  # the preset's own embedding is tested above
    train(prepared, tmp_path, "--max-update", 3, "--disable-validation", model=arch)
    checkpoint = tmp_path / "checkpoint_last.pt"
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "out", "--shards", 1, "--", "--cpu", "--beam", 2)
    assert len(read_hypotheses(tmp_path / "out", allow_empty=True)) == 9
    run("lasformer", "info", checkpoint)
