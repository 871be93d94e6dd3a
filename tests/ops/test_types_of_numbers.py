"""All Triton kernels in three types of numbers, by the check that a machine with a GPU runs (``benchmarks.gpu``)."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE

pytestmark = [pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed"), pytest.mark.triton]


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n_queries, n_keys, causal", [(24, 24, True), (9, 40, False)])
def test_kernels_are_as_exact_as_their_type(dtype, n_queries, n_keys, causal):
    from benchmarks.gpu import DTYPES, TOLERANCE, _errors

    errors = _errors(torch.empty(0).device, DTYPES[dtype], n_queries, n_keys, causal)
    assert len(errors) == 16 and max(errors.values()) <= TOLERANCE[dtype], errors


@pytest.mark.sweep
def test_gradients_of_zero_fail_the_check(monkeypatch):
    from benchmarks.gpu import TOLERANCE, _errors
    from fairseq_lasformer.ops.gpu.kernels import straight_through as triton_straight_through

    def nothing(q, k, norm, d_mean, into, *rest):
        into.dq.zero_()
        if not into.more:
            into.dk.zero_()

    monkeypatch.setattr(triton_straight_through, "softmax_gradient", nothing)
    errors = _errors(torch.empty(0).device, torch.bfloat16, 40, 40, False)
    wrong = {name for name, error in errors.items() if not error <= TOLERANCE["bfloat16"]}
    assert wrong == {"selector's dq", "selector's dk", "supervision's dq", "supervision's dk"}
