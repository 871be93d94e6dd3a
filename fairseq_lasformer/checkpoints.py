"""Checkpoints: loaded restricted, averaged with kappa from the last, refused in one line when they are no use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.documents import InputError


def load(path: str | Path) -> dict[str, Any]:
    """A checkpoint's content on the CPU, under torch's ``weights_only`` restriction.

    Raises:
        InputError: missing, truncated, a pickle that holds anything else than tensors and plain settings, or a file
            that is no fairseq checkpoint.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # whatever the damage, the unpickler's own error is of no use to a user
        reason = (
            "it holds code, not only weights"
            if "Unsupported" in str(e)
            else (str(e) or type(e).__name__).split("\n")[0]
        )
        raise InputError(f"{path}: refused, truncated or not a checkpoint ({reason})") from e
    if not isinstance(state, dict) or "model" not in state:
        raise InputError(f"{path}: not a fairseq checkpoint (it holds no model)")
    return state


def architecture(state: dict[str, Any]) -> str:
    """The name of the architecture a checkpoint was trained with, empty if it does not tell."""
    model: Any = (state.get("cfg") or {}).get("model")
    if model is None:
        return str(getattr(state.get("args"), "arch", ""))
    # a dataclass model's settings are a plain dict, a stock architecture's a namespace
    return str((model.get("_name") if isinstance(model, dict) else getattr(model, "arch", "")) or "")


def average(paths: Sequence[str | Path], out: str | Path) -> None:
    """Writes the mean of the checkpoints' weights; everything that is no float (kappa above all) is the last one's.

    Args:
        paths: checkpoints of one run, the last one last.

    Raises:
        InputError: as :func:`load`, or the checkpoints are not of one architecture.
    """
    last = load(paths[-1])
    total = {name: t.double() if t.is_floating_point() else t for name, t in last["model"].items()}
    for path in paths[:-1]:
        weights = load(path)["model"]
        if weights.keys() != total.keys() or any(weights[n].shape != t.shape for n, t in total.items()):
            raise InputError(f"{path}: of another architecture than {paths[-1]}; average checkpoints of one run")
        for name, t in total.items():
            if t.is_floating_point():
                t += weights[name].double()
    last["model"] = {
        name: (t / len(paths)).to(last["model"][name].dtype) if t.is_floating_point() else t
        for name, t in total.items()
    }
    last["last_optimizer_state"] = None
    temporary = f"{out}.tmp"
    torch.save(last, temporary)
    os.replace(temporary, out)
