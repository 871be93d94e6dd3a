"""The comparison table: facts from checkpoints and logs, the best in a row, significance."""

from __future__ import annotations

import json

import pytest

from fairseq_lasformer.analysis import comparison, runs
from fairseq_lasformer.analysis.comparison import HIGHER, LOWER, NEAR_ONE, ComparisonRow, duration, parameters
from fairseq_lasformer.analysis.runs import Run, read_runs, read_start, started
from fairseq_lasformer.errors import InputError


@pytest.mark.parametrize(
    ("values", "better", "best"),
    [([1.0, 2.0, None], HIGHER, 1), ([1.0, 2.0], LOWER, 0), ([0.9, 1.05, 1.2], NEAR_ONE, 1),
     ([2.0, 2.0, 1.0], HIGHER, None), ([1.0, None], HIGHER, None), ([1.0, 2.0], "", None)],
)  # fmt: skip
def test_the_best_of_a_row_is_the_only_one(values, better, best):
    assert ComparisonRow("x", [str(v) for v in values], values, better).best == best


def of(name: str, d_bleu: float, **compared) -> Run:
    return Run(name, None, {}, {"d_bleu": d_bleu, "length_ratio": 1.0}, {}, compared)


def test_best_and_significance_are_marked():
    test = {"against": "base", "signature": "bs:1000"}
    base = of("base", 10, interval=0.5, p=None, **test)
    better, equal = of("<b>", 12, interval=0.25, p=0.01, **test), of("c", 10.1, interval=1, p=0.4, **test)
    shown = comparison.comparison([base, better, equal])
    assert "<td>10.00 ± 0.50</td><td class=best>12.00 ± 0.25*</td><td>10.10 ± 1.00</td>" in shown
    assert "differs from base (p &lt; 0.05, paired bootstrap over documents, bs:1000)" in shown
    assert "<th scope=col>&lt;b&gt;</th>" in shown and "<b>" not in shown
    assert "<td>1.000</td><td>1.000</td>" in shown  # equal: none is best
    plain = comparison.comparison([of("a", 1), of("b", 2)])
    assert "*" not in plain and "report --scores" in plain
    assert comparison.comparison([Run("a", None, {}, {})]) == ""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"moe_experts": 4},
        {"select_modules": "none"},
        {"delight": "both", "define_dim": 16},
        {"embedding": "define"},
    ],
    ids=str,
)
def test_shared_parameters_count_once(build, options):
    model = build(1.0, share_all_embeddings=True, **options)
    known = sum(p.numel() for p in model.parameters())
    state = model.state_dict()
    assert parameters(state) == known
    assert parameters({name: weight.clone() for name, weight in state.items()}) == known  # as a GPU's are saved


def test_durations():
    assert [duration(s) for s in (59, 61.2, 3600 * 5 + 125)] == ["59 s", "1 min 1 s", "5 h 2 min"]


def test_the_last_start_in_a_log_counts(tmp_path):
    log = tmp_path / "train.log"
    about = {"cpu": "Some processor", "cores": 2, "memory": 3.9, "gpu": None, "torch": "2.1"}
    first, last = started(["fairseq-train", "a"], {}), started(["fairseq-train", "b"], about)
    log.write_text(f"{first}epoch 1\n{last}[started] {{\n[started] {{}}\n")
    found = read_start(log)
    assert found["command"] == ["fairseq-train", "b"] and found["machine"] == about
    (tmp_path / "other").write_text("nothing")
    assert read_start(tmp_path / "other") == {}
    (row,) = (r for r in comparison._facts(read_runs([tmp_path]))[1] if r.label == "machine")
    assert row.cells == ["Some processor, 2 cores, 4 GiB, torch 2.1"]


def test_scores_of_several_runs_in_one_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").touch()
    (tmp_path / "a" / "scores.json").write_text('{"systems": {"a": {"d_bleu": 1}}}')
    tested = {"other": {"d_bleu": 4, "interval": 0.1, "p": None}, "a": {"d_bleu": 3, "interval": 0.2, "p": 0.5}}
    file = tmp_path / "all.json"
    file.write_text(
        json.dumps(
            {
                "systems": {"a": {"d_bleu": 3}, "other": {"d_bleu": 4}},
                "bootstrap": {"systems": tested, "signature": "s"},
            }
        )
    )
    found = read_runs([tmp_path / "a", tmp_path / "b"], file)
    assert [(r.name, r.scores.get("d_bleu")) for r in found] == [("a", 3), ("b", None), ("other", 4)]
    assert found[0].compared == {"d_bleu": 3, "interval": 0.2, "p": 0.5, "against": "other", "signature": "s"}
    file.write_text('{"systems": {"a": {}}, "bootstrap": {"systems": {"a": {"p": "low"}}}}')
    with pytest.raises(InputError, match="all.json: not scores"):
        runs.read_runs([tmp_path / "a"], file)
