"""Options of fairseq-train that end in a traceback: ``--bf16`` on a CPU, and figures that no validation has."""

from collections.abc import Callable
from typing import Any

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.patches import wrap


def install() -> None:
    """Patch fairseq-train. Repeated calls have no effect."""
    from fairseq_cli import train

    wrap(train, "convert_namespace_to_omegaconf", _checked)
    wrap(train, "validate", _validated)


def _checked(original: Callable[..., Any], args: Any, *more: Any, **named: Any) -> Any:
    if getattr(args, "bf16", False):
        if args.cpu or not torch.cuda.is_available():
            raise InputError("--bf16: needs a GPU; on a CPU, --linear-dtype auto computes linear layers in bfloat16")
        args.tpu = False  # fairseq takes --bf16 for a request to train on a TPU, and then finds none
    if getattr(args, "best_checkpoint_metric", "") == "bleu" and not getattr(args, "eval_bleu", False):
        raise InputError("--best-checkpoint-metric bleu: needs --eval-bleu")
    return original(args, *more, **named)


def _validated(original: Callable[..., Any], cfg: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(cfg, *args, **kwargs)
    except KeyError as e:
        metric = cfg.checkpoint.best_checkpoint_metric
        if e.args != (metric,):
            raise
        raise InputError(
            f"--best-checkpoint-metric {metric}: validation has no such figure (bleu needs --eval-bleu)"
        ) from e
