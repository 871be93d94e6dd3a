"""``--bf16`` on a GPU: fairseq takes it for a request to train on a TPU, and then finds none."""

from collections.abc import Callable
from typing import Any

import torch

from fairseq_lasformer.plugin.patches import wrap


def install() -> None:
    """Patch the conversion of fairseq-train's options; without ``--bf16`` nothing changes."""
    from fairseq_cli import train

    wrap(train, "convert_namespace_to_omegaconf", _without_tpu)


def _without_tpu(original: Callable[..., Any], args: Any, *more: Any, **named: Any) -> Any:
    if getattr(args, "bf16", False) and torch.cuda.is_available():
        args.tpu = False
    return original(args, *more, **named)
