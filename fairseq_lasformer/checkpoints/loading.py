"""Checkpoints, treated as untrusted data: restricted loading, checks of the settings, averaging with the last kappa."""

import argparse
import collections
import errno
import os
import pickle
import re
import shutil
import socket
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_regular, file_hash, replacing
from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.settings import check_settings, check_version, drop_other_files
from fairseq_lasformer.checkpoints.sizes import too_large

CHECKPOINTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""File names tried when looking for the model in a folder, in order of preference."""

EIGHT_BITS = "eight_bits"
"""Key of a checkpoint whose value maps the names of weights in 8 bits to the scale of each of their rows."""

# What fairseq's own checkpoints contain besides tensors and plain containers: arguments of stock architectures, meters.
# Everything else is still rejected by torch's restricted loading.
SAFE_GLOBALS: list[Any] = [
    argparse.Namespace,
    collections.defaultdict,
    collections.OrderedDict,
    dict,
    list,
    int,
    np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    np._core.multiarray.scalar,  # type: ignore[attr-defined]
    np.ndarray,
    np.dtype,
    type(np.dtype("int64")),
    type(np.dtype("float64")),
]


_DTYPES = frozenset(
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool]
    + [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
)


TIED, _SMALL = 8, 1 << 20
"""How many times as large as what is stored of them weights may be, since they may be tied, and bytes beyond that."""

_FULL = 1 << 22  # free bytes below which a failed write means a full disk


def chosen(place: Path) -> Path:
    """Return the checkpoint in a folder, the first of :data:`CHECKPOINTS` that exists; or the checkpoint itself."""
    if place.is_file():
        return place
    if not place.is_dir():
        raise InputError(f"{place}: no such file or folder; expected a checkpoint, or the folder of one")
    checkpoint = next((place / name for name in CHECKPOINTS if (place / name).is_file()), None)
    if checkpoint is None:
        inside = sorted(d.name for d in place.iterdir() if d.is_dir() and any((d / n).is_file() for n in CHECKPOINTS))
        hint = f"; it contains {' and '.join(f'{name}/' for name in inside)}, which are models" if inside else ""
        raise InputError(f"{place}: contains none of {', '.join(CHECKPOINTS)}{hint or '; name the checkpoint'}")
    return checkpoint


def identity(checkpoint: Path) -> tuple[str, int, int]:
    """Return what identifies a checkpoint, for results that depend on it: its place, time and size."""
    stat = checkpoint.stat()
    return str(checkpoint.resolve()), stat.st_mtime_ns, stat.st_size


def check_same(checkpoint: Path, digest: str) -> None:
    """Check that a checkpoint is the same on this machine as on another.

    Args:
        digest: its SHA-256; empty for no comparison.
    """
    try:
        if digest and file_hash(checkpoint) != digest:
            raise InputError(f"{checkpoint}: on {socket.gethostname()}, this is a different model")
    except OSError as e:
        raise InputError(f"{checkpoint}: cannot be read on {socket.gethostname()} ({e.strerror})") from e


def load(path: str | Path) -> State:
    """Load a checkpoint to the CPU under torch's ``weights_only`` restriction, and check its settings."""
    path = Path(path)
    if path.is_dir():
        inside = [name for name in CHECKPOINTS if (path / name).is_file()]
        hint = f"name the checkpoint in it: {path / inside[0]}" if inside else "it contains no checkpoint"
        raise InputError(f"{path}: is a folder; {hint}")
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")
    check_regular(path, "; expected a checkpoint")
    state = unpickled(path)
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        raise InputError(f"{path}: not a fairseq checkpoint (it contains no model)")
    if state.get("cfg") is None and state.get("args") is None:
        raise InputError(f"{path}: not a fairseq checkpoint (it contains no settings)")
    check_settings(state, path)
    check_version(state, path)
    check_weights(state["model"], path)
    if problem := too_large(state):
        raise InputError(f"{path}: refused, {problem}")
    drop_other_files(state)
    if EIGHT_BITS in state:
        _expand(state, path)
    return state


def save(state: State, path: Path) -> None:
    """Write a checkpoint completely or not at all."""
    with replacing(path, "wb") as f:
        try:
            torch.save(state, f)
        except RuntimeError as e:  # torch's, about its own file format, where a write has failed
            full = shutil.disk_usage(path.resolve().parent).free < _FULL
            code = errno.ENOSPC if full else errno.EIO
            raise OSError(code, os.strerror(code)) from e


def _expand(state: State, path: Path) -> None:
    """Turn weights that ``lasformer pack`` rounded to 8 bits into float32."""
    scales, weights = state.pop(EIGHT_BITS), state["model"]
    if not isinstance(scales, Mapping):
        raise InputError(f"{path}: refused, its scales are no table")
    check_weights(scales, path)
    expanded: dict[tuple[object, ...], torch.Tensor] = {}  # tied weights stay one tensor
    for name, scale in scales.items():
        numbers = weights.get(name)
        if numbers is None or numbers.dtype != torch.int8 or scale.shape != (*numbers.shape[:1], 1):
            raise InputError(f"{path}: refused, the scale of {name} does not fit its weights")
        if not bool(torch.isfinite(scale.float() * 128).all()):
            raise InputError(f"{path}: refused, the scale of {name} is too large")
        which = (numbers.data_ptr(), numbers.shape, numbers.stride(), scale.data_ptr())
        if which not in expanded:
            expanded[which] = numbers.float() * scale.float()
        weights[name] = expanded[which]


def unpickled(path: Path) -> Any:
    """Load a torch file under its ``weights_only`` restriction."""
    if damage := damaged(path):
        raise InputError(f"{path}: refused, {damage}")
    try:
        with torch.serialization.safe_globals(SAFE_GLOBALS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as e:
        # torch's own message advises switching the restriction off
        code = re.search("unsupported|blocked", str(e), re.IGNORECASE)
        reason = "it contains code, not only weights" if code else "not a torch checkpoint"
        raise InputError(f"{path}: refused, {reason}") from e
    except Exception as e:  # the unpickler's own errors would not help the user
        if isinstance(e, MemoryError) or "allocate memory" in str(e):
            raise InputError(f"{path}: there is not enough memory to load it") from e
        raise InputError(f"{path}: refused, truncated or not a checkpoint ({type(e).__name__})") from e


def check_weights(weights: Mapping[str, Any], path: Path) -> None:
    """Refuse weights that are not tensors of finite numbers, or larger than what the file holds of them.

    Tied weights share a storage, so all together may be several times as large as what is stored.
    """
    stored, named = dict[int, int](), 0
    for name, weight in weights.items():
        plain = type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.layout == torch.strided
        if type(name) is not str or not plain or weight.dtype not in _DTYPES or weight.device.type != "cpu":
            raise InputError(f"{path}: refused, its weight {str(name)[:100]} is not a numeric tensor")
        if weight.untyped_storage().nbytes() < weight.numel() * weight.element_size():
            raise InputError(f"{path}: refused, its weight {name} is larger than what is stored of it")
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(f"{path}: {name} is not finite; the training has diverged, or the file is damaged")
        stored[weight.untyped_storage().data_ptr()] = weight.untyped_storage().nbytes()
        named += weight.numel() * weight.element_size()
    if named > TIED * sum(stored.values()) + _SMALL:
        raise InputError(f"{path}: refused, its weights are {TIED} times as large as what is stored of them, or more")


def moving_average(path: str | Path) -> State:
    """Load a checkpoint with the moving average of its training's weights, stored by ``--store-ema``, as weights."""
    state = load(path)
    weights = (state.get("extra_state") or {}).pop("ema", None)
    if weights is None:
        raise InputError(f"{path}: contains no moving average; train with --store-ema")
    if not isinstance(weights, Mapping) or weights.keys() != state["model"].keys():
        raise InputError(f"{path}: its moving average does not fit its weights")
    for name, weight in state["model"].items():
        average = weights[name]
        if type(average) not in (torch.Tensor, torch.nn.Parameter) or average.shape != weight.shape:
            raise InputError(f"{path}: its moving average does not fit its weights ({name})")
        if weight.is_floating_point() and not bool(torch.isfinite(average).all()):
            raise InputError(f"{path}: the moving average of {name} is not finite; the training has diverged")
    state["model"] = {name: weights[name].to(weight.dtype) for name, weight in state["model"].items()}
    return state


def damaged(path: Path) -> str:
    """Return why a file cannot be an intact checkpoint; empty if no damage is found."""
    try:
        with open(path, "rb") as f:
            magic = f.read(4)
        if magic[:2] == b"\x80\x02":
            return ""  # torch's format before 1.6 has no checksums
        if magic != b"PK\x03\x04":
            return "empty" if not magic else "not a torch checkpoint"
        with zipfile.ZipFile(path) as file:
            if sum(info.file_size for info in file.infolist()) > path.stat().st_size:
                return "larger inside than outside; torch compresses nothing"
            broken = file.testzip()
        return f"damaged (checksum of {broken})" if broken else ""
    except zipfile.BadZipFile:
        return "truncated"
    except Exception as e:  # zipfile passes on whatever zlib and codecs raise
        return f"damaged ({' '.join(str(e).split())})"


def architecture(state: State) -> str:
    """Return the name of the architecture a checkpoint was trained with; empty if it is not recorded."""
    model: Any = (state.get("cfg") or {}).get("model")
    if model is None:
        return str(getattr(state.get("args"), "arch", ""))
    # the settings of a dataclass model are a plain dict, those of a stock architecture a namespace
    return str((model.get("_name") if isinstance(model, Mapping) else getattr(model, "arch", "")) or "")


def updates(state: State) -> int:
    """Return the number of updates after which a checkpoint was saved."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def tied(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the first name of each weight: tied ones, such as the embeddings of both sides, are one tensor."""
    first: dict[tuple[object, ...], str] = {}
    return {
        name: first.setdefault((weight.data_ptr(), weight.shape, weight.stride(), weight.dtype), name)
        for name, weight in weights.items()
    }


def average(paths: Sequence[str | Path], out: str | Path, ema: bool = False, kappa: int | None = None) -> None:
    """Write the average of the checkpoints' weights.

    Everything that is not a floating-point tensor, kappa in particular, is taken from the last checkpoint.

    Args:
        paths: checkpoints of one run, ending with the last one.
        ema: average the moving averages in the checkpoints (fairseq's ``--store-ema``) instead of their weights.
        kappa: share of the keys that all selectors keep, in millionths, instead of the last checkpoint's.
    """
    read = moving_average if ema else load
    last = read(paths[-1])
    same = tied(last["model"])
    total = {
        name: t.double() if t.is_floating_point() else t for name, t in last["model"].items() if same[name] == name
    }
    for path in paths[:-1]:
        weights = read(path)["model"]
        if weights.keys() != same.keys() or any(weights[n].shape != t.shape for n, t in last["model"].items()):
            raise InputError(f"{path}: its architecture differs from {paths[-1]}; average checkpoints of one run")
        for name, t in total.items():
            if t.is_floating_point():
                t += weights[name].double()
    mean = {
        name: (t / len(paths)).to(last["model"][name].dtype) if t.is_floating_point() else t
        for name, t in total.items()
    }
    last["model"] = {name: mean[first] for name, first in same.items()}
    if kappa is not None:
        shares = [name for name in last["model"] if name.endswith(".selector.kappa")]
        if not shares:
            raise InputError(f"--kappa: {paths[-1]} selects nothing")
        last["model"] |= {name: torch.tensor(kappa) for name in shares}
    last["last_optimizer_state"] = None
    save(last, Path(out))
