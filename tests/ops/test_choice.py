"""Choice of the implementation of a full pass, and its reasons."""

from __future__ import annotations

import logging

import pytest
import torch

from fairseq_lasformer.ops import AttentionMask, PassShape, backends, choose, cpu

LIKE, FREE = torch.zeros(2, 1, 4), AttentionMask(None, False)
LONG = PassShape(LIKE, 300, 300, 0.1, FREE)
READ = LONG._replace(teaches=False, dropout=False)
BETWEEN = AttentionMask(torch.zeros(2, 300).index_fill(1, torch.tensor([5]), 1.0).bool(), False)


@pytest.mark.skipif(cpu.kernels() is None, reason="no compiled kernels")
@pytest.mark.parametrize(
    ("full", "form", "reason"),
    [
        (LONG, "slots", "gather: gradients or dropout"),
        (READ, "gather", "bitmask: no Triton on cpu"),
        (READ._replace(mask=AttentionMask(None, True)), "slots", "gather: causal"),
        (READ._replace(share=0.4), "gather", ""),
        (LONG._replace(share=0.4), "mask", "slots: more than 25% of the keys"),
        (LONG._replace(n_queries=200), "mask", "slots: fewer than 256 queries"),
        (READ._replace(n_queries=200), "mask", "gather: fewer than 256 queries"),
        (READ._replace(dropout=True), "slots", "gather: gradients or dropout"),
        (LONG._replace(sampled=False), "mask", "slots: all queries teach"),
        (LONG._replace(like=LIKE.double()), "mask", "slots: type torch.float64"),
        (READ._replace(mask=BETWEEN), "mask", "gather: padding between keys; slots: padding between keys"),
        (LONG._replace(backend="reference"), "reference", ""),
        (READ._replace(backend="reference"), "reference", ""),
        (LONG._replace(backend="triton"), "bitmask", "reference: not requested"),
    ],
)
def test_the_first_that_takes_a_pass_is_chosen_and_the_log_says_why(full, form, reason, monkeypatch, caplog):
    monkeypatch.setattr(backends, "triton_kernels", lambda module: object())
    caplog.set_level(logging.DEBUG, "fairseq_lasformer.ops.choice")
    chosen = choose(full)
    assert chosen.form == form and reason in chosen.reason
    assert (chosen.keys is not None) == (form in ("gather", "slots"))
    assert f"{full.n_queries} queries, 300 keys, {100 * full.share:.1f}% kept: {form} (not " in caplog.text
    assert reason in caplog.text


@pytest.mark.skipif(cpu.kernels() is None, reason="no compiled kernels")
def test_positions_need_no_ranges_and_without_kernels_a_mask_is_used(monkeypatch):
    assert choose(LONG._replace(mask=BETWEEN), ranges=False) == ("slots", choose(LONG).reason, None)
    monkeypatch.setattr(cpu, "kernels", lambda: None)
    chosen = choose(LONG)
    assert chosen.form == "mask" and chosen.reason.endswith("slots: no compiled kernels")
