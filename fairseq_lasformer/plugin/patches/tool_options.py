"""Options of fairseq's tools that are gone, end in a traceback or are needless: refused in one line, or ignored."""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options, utils

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subwords import SETTINGS
from fairseq_lasformer.plugin.patches import wrap

logger = logging.getLogger(__name__)

RETIRED = {
    "--cuda-graph-tokens": "leave it out; training steps are no longer captured",
    "--cuda-graph-memory": "leave it out; training steps are no longer captured",
    "--attention-length": "leave it out; parts with context do better beyond the training length",
    "--upsample-long": "leave it out; it lost more on usual documents than it won on longer ones",
    "--positions": "leave it out; with --own-lines, positions are counted from the beginning of each line",
    "--position-offset": "leave it out; parts with context do better beyond the training length",
    **dict.fromkeys(("--muon-momentum", "--muon-steps"), "leave it out; they are 0.95 and 5"),
    "--quantization-aware": "leave it out; models lost nothing in 8 bits without it",
}
"""What to use instead of options that no longer exist; for one release."""


def install(tools: bool) -> None:
    """Patch the parser and, in fairseq's own tools, fairseq-train. Repeated calls have no effect."""
    wrap(options, "parse_args_and_arch", _without_post_process)
    wrap(options, "parse_args_and_arch", _advise)
    if tools:
        from fairseq_cli import train

        wrap(train, "convert_namespace_to_omegaconf", _checked)
        wrap(train, "validate", _validated)


def _advise(original: Callable[..., Any], parser: Any, input_args: Sequence[str] | None = None, **more: Any) -> Any:
    for word in sys.argv[1:] if input_args is None else input_args:
        name = str(word).partition("=")[0]
        if name in RETIRED:
            raise InputError(f"{name}: no longer exists; {RETIRED[name]}")
    return original(parser, input_args=input_args, **more)


def _without_post_process(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Parse the options, without the removal of subwords where the task decodes whole lines.

    fairseq would join the subwords, and our task the words that are left, into one.
    """
    options = original(*args, **kwargs)
    known = options if isinstance(options, Namespace) else options[0]
    if getattr(known, "post_process", None) and getattr(known, "task", None) == "document_translation":
        folders = utils.split_paths(str(getattr(known, "data", "")))
        if folders and (Path(folders[0]) / SETTINGS).exists():
            logger.warning(
                "--remove-bpe (--post-process) is ignored: %s has its own subwords, and translations are text",
                folders[0],
            )
            known.post_process = None
    return options


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
