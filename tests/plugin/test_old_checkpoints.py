"""Checkpoints of commit 722e47e: the same names in the same order, and the same scores from the same weights."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
import torch
from helpers import ROOT, SMALL

from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

# written by that commit: options, names of the state (where given), scores of a few words, and the best words
MODELS = [json.loads(line) for line in (ROOT / "tests/models_722e47e.jsonl").read_text().splitlines()]


def weights(name: str, like: torch.Tensor) -> torch.Tensor:
    """Return weights that depend only on their name and shape."""
    if name.endswith("kappa"):
        return torch.tensor(300_000)
    if not like.is_floating_point() or name.endswith("version") or "_float_tensor" in name:
        return like
    drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.2 - 0.1
    if "norm" in name and name.endswith("weight"):
        return drawn + 1
    return drawn * 4 if "embed_tokens" in name else drawn


@pytest.mark.parametrize("stored", MODELS, ids=[m["name"] for m in MODELS])
def test_a_checkpoint_of_722e47e_loads_and_scores_as_it_did(small_task, stored: dict[str, Any]):
    model = LasformerModel.build_model(LasformerConfig(**(SMALL | stored["options"])), small_task).eval()
    state = {name: weights(name, value) for name, value in model.state_dict().items()}
    if stored["state"] is not None:  # optimizers know parameters only by their order
        assert list(state) == stored["state"]
    model.load_state_dict(state)
    src = (torch.arange(2 * 30).view(2, 30) * 7) % 60 + 4
    src[1, :5] = 1
    prev = (torch.arange(2 * 20).view(2, 20) * 11) % 60 + 4
    with torch.no_grad():
        out = model(src, None, prev)[0]
    seen = torch.stack([out[b, i, :6] for b, i in ((0, 0), (0, 19), (1, 7))])
    torch.testing.assert_close(seen, torch.tensor(stored["scores"]), rtol=1e-4, atol=1e-4)
    assert out.argmax(-1).tolist() == stored["best"]
