"""Scores, the probe, the cost and the averaging of checkpoints."""

from __future__ import annotations

import json

import pytest
import sacrebleu
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_lasformer import checkpoints, cost
from fairseq_lasformer.config import LasformerConfig, module_config
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses, write_hypotheses
from fairseq_lasformer.evaluation.probe import Probe, accuracy, judge
from fairseq_lasformer.evaluation.scores import score, table

REFERENCES = [["Der Hund bellt.", "Er ist laut."], ["Das ist gut, sagte sie."]]


def test_the_reference_scores_a_hundred_and_case_counts_where_said():
    assert score(REFERENCES, REFERENCES)["d_bleu_cased"] == pytest.approx(100)
    lowered = score([[s.lower() for s in d] for d in REFERENCES], REFERENCES)
    assert lowered["d_bleu"] == pytest.approx(100) and lowered["d_bleu_cased"] < 90
    assert lowered["s_bleu"] == pytest.approx(100) and lowered["s_bleu_documents"] == 2


def test_d_bleu_takes_documents_and_s_bleu_sentences():
    hypotheses = [["Der Hund bellt.", "Sie ist laut."], ["Das ist nicht gut, sagte er."]]
    seen = score(hypotheses, REFERENCES)
    joined = [[" ".join(d) for d in side] for side in (hypotheses, REFERENCES)]
    flat = [[s for d in side for s in d] for side in (hypotheses, REFERENCES)]
    assert seen["d_bleu"] == sacrebleu.corpus_bleu(joined[0], [joined[1]], lowercase=True).score
    assert seen["s_bleu"] == sacrebleu.corpus_bleu(flat[0], [flat[1]], lowercase=True).score
    assert seen["chrf"] == sacrebleu.corpus_chrf(joined[0], [joined[1]]).score
    assert "nrefs:1" in seen["signatures"]["d_bleu"]


def test_s_bleu_is_over_the_documents_that_agree():
    references = [*REFERENCES, ["Noch eins.", "Und Schluss."]]
    seen = score([["Der Hund bellt. Er ist laut."], REFERENCES[1], references[2]], references)
    assert seen["s_bleu_documents"] == 2 and seen["s_bleu"] == pytest.approx(100)
    assert "sentence counts differ in 1 documents" in table({"x": seen})
    assert score([["x"], ["y", "z"]], REFERENCES)["s_bleu"] is None


def test_no_document_may_be_missing(tmp_path):
    with pytest.raises(InputError, match="1 hypotheses for 2 .* document\\(s\\) 2 to 2"):
        score(REFERENCES[:1], REFERENCES)
    write_hypotheses(tmp_path / "h", [["a", "b"], [""]])
    with pytest.raises(InputError, match="h:2: no hypothesis for document\\(s\\) 2"):
        read_hypotheses(tmp_path / "h")
    assert read_hypotheses(tmp_path / "h", allow_empty=True) == [["a", "b"], [""]]


def test_the_probe_finds_words_by_alignment_and_sorts_them():
    references = [["Eine Lampe kommt.", "Sie ist alt.", "Sie ist neu."]]
    probes = [
        Probe(0, 1, 0, "pronoun", "Sie", ["Er", "Es"], 3, True),
        Probe(0, 2, 0, "pronoun", "Sie", ["Er", "Es"], 200, False),
        Probe(0, 0, 1, "ambiguity", "Lampe", ["Leuchte"], 0, True),
    ]
    right = judge(probes, [["Eine kleine Lampe kommt . Sie ist alt .", "Er ist neu."]], references)
    assert right == [True, False, True]
    report = accuracy(probes, right)
    assert report["accuracy"] == {"all": 0.5, "pronoun": 0.5}
    assert report["by_distance"] == {"1-30": 1.0, "101-300": 0.0}
    assert report["same_sentence"] == 1.0 and report["first"] == 1.0
    assert report["chance"]["pronoun"] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="sentence 9"):
        judge([probes[0]._replace(sentence=9)], references, references)


def test_the_cost_is_the_papers_ratio():
    cfg = module_config(LasformerConfig())
    paper = cost.module_cost("encoder", cfg, [0.05, 0.05], 8192)
    assert paper.dense == 2 * 6 * 8192**2 * 512
    assert paper.ratio == pytest.approx(64 / (2 * 3 * 512) + 0.05) and round(paper.ratio, 3) == 0.071
    # the paper's 15 % at 8,000 tokens counts queries, keys and values; the output projection is beside it
    assert round(paper.ratio_with_projections, 3) == 0.153 and round(paper.ratio_with_all_projections, 3) == 0.176
    window = cost.module_cost("encoder", module_config(LasformerConfig(select_window=20)), [], 8192)
    assert window.ratio == window.kappa == 20 / 8192 and window.sparse_projections == window.dense_projections
    assert cost.module_cost("encoder", cfg, [], 512).ratio == 1.0
    # a short document keeps ten keys a query whatever kappa is
    assert cost.module_cost("cross", cfg, [0.01, 0.01], 100).ratio == pytest.approx(64 / 3072 + 0.1)


def save(path, build, kappa: float, shift: float = 0.0, **options):
    model = build(kappa=kappa, **options)
    with torch.no_grad():
        model.decoder.embed_tokens.weight.add_(shift)
    cfg = {k: v for k, v in vars(model.cfg).items() if isinstance(v, (str, int, float, bool))}
    flat = {
        f"{p}_{k}": v
        for p in ("encoder", "decoder")
        for k, v in vars(getattr(model.cfg, p)).items()
        if isinstance(v, (str, int, float))
    }
    torch.save({"model": model.state_dict(), "cfg": {"model": {"_name": "lasformer"} | cfg | flat}}, path)
    return model


def test_averaging_takes_the_mean_of_the_weights_and_the_last_kappa(tmp_path, build):
    first, last = save(tmp_path / "1.pt", build, 0.5, 0.0), save(tmp_path / "2.pt", build, 0.3, 1.0)
    checkpoints.average([tmp_path / "1.pt", tmp_path / "2.pt"], tmp_path / "mean.pt")
    mean = checkpoints.load(tmp_path / "mean.pt")["model"]
    name = "decoder.embed_tokens.weight"
    torch.testing.assert_close(mean[name], (first.state_dict()[name] + last.state_dict()[name]) / 2)
    assert cost.kappas(mean) == {m: [0.3, 0.3] for m in ("encoder", "decoder", "cross")}


def test_the_cost_of_a_checkpoint_uses_the_kappa_it_holds(tmp_path, build):
    save(tmp_path / "c.pt", build, 0.2)
    costs = {c.module: c for c in cost.checkpoint_cost(tmp_path / "c.pt", [1000])}
    assert costs["cross"].ratio == pytest.approx(0.2 + 2 * 8 / (2 * 3 * 32))
    assert costs["all"].dense == sum(costs[m].dense for m in ("encoder", "decoder", "cross"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_embed_dim": 64, "share_all_embeddings": False},
        {"delight": "official", "embedding": "delight"},
        {"delight": "paper", "embedding": "define", "define_dim": 16, "define_expand": 64},
        {"moe_experts": 4, "moe_gating": "softmax"},
    ],
    ids=lambda o: "-".join(map(str, o.values())) or "lasformer",
)
def test_the_cost_of_a_model_is_what_torch_counts(tmp_path, build, options):
    model = save(tmp_path / "c.pt", build, 0.2, **options).eval()
    dense = build(select_modules="none", **options).eval()
    words = torch.randint(4, 64, (1, 40))
    # the fused kernel's products are not counted on a CPU; both count the causal mask's empty half
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        dense(words, torch.tensor([40]), words)
    costs = {c.module: c for c in cost.checkpoint_cost(tmp_path / "c.pt", [40])}
    assert costs["model"].dense == counted.get_total_flops() / 2
    selectors = sum(p.numel() for n, p in model.named_parameters() if ".selector." in n and p.dim() == 2)
    assert costs["model"].sparse - costs["model"].dense == pytest.approx(
        costs["all"].sparse - costs["all"].dense + 40 * selectors
    )


class Foreign:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_useless_checkpoints_are_refused_in_one_line(tmp_path, build, capsys):
    save(tmp_path / "good.pt", build, 0.2)
    data = (tmp_path / "good.pt").read_bytes()
    (tmp_path / "short.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save({"model": Foreign()}, tmp_path / "foreign.pt")
    torch.save({"weights": 1}, tmp_path / "other.pt")
    torch.save({"model": {}, "cfg": {"model": {"_name": "transformer"}}}, tmp_path / "transformer.pt")
    for name in ("short", "empty", "foreign", "other", "none"):
        with pytest.raises(InputError, match=f"{name}.pt") as caught:
            checkpoints.load(tmp_path / f"{name}.pt")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="of architecture transformer"):
        cost.checkpoint_cost(tmp_path / "transformer.pt", [100])
    assert "this must never run" not in capsys.readouterr().out


def test_manifest_damage_is_told(tmp_path):
    from fairseq_lasformer.dataset import SplitInfo

    (tmp_path / "documents.test.json").write_text(json.dumps({"documents": 1}))
    with pytest.raises(InputError, match="documents.test.json"):
        SplitInfo.load(tmp_path, "test")
