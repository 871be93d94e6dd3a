"""A training that diverges ends in one line: at which update, and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.patches import wrap


def install() -> None:
    """Name what to do, and let fairseq search for the first NaN. Repeated calls have no effect."""
    wrap(Trainer, "train_step", _said)
    wrap(NanDetector, "__init__", _forward_alone)


def _said(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    except FloatingPointError as e:
        if "inconsistent" in str(e):  # between workers
            raise
        last = Path(self.cfg.checkpoint.save_dir) / "checkpoint_last.pt"
        again = f"resume with {last}" if last.exists() else "begin again: nothing was saved"
        why = " ".join(str(e).split("\n")[0].split()).rstrip(".")
        raise InputError(
            f"the training diverged at update {self.get_num_updates() + 1} ({why}): choose a lower --lr than "
            f"{self.cfg.optimization.lr[0]:g}, or more --warmup-updates, and {again}"
        ) from e


def _forward_alone(
    original: Callable[..., Any], self: Any, model: Any, forward: bool = True, backward: bool = True
) -> None:
    # torch's backward hooks want a tensor first in what each module returns; fairseq logs all gradients anyway
    original(self, model, forward, False)
