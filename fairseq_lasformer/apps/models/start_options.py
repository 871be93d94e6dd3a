"""Options of the selectors that are added to a dense model, and of their training."""

from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.options import following, option
from fairseq_lasformer.base.shared_options import tokens_per_batch


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options for the selectors that are added to a dense model.

    The fewest groups of layers within ``share_loss`` are formed, unless ``groups`` names them. With ``modules`` as
    ``none``, the model stays dense.
    """

    modules: str = option("encoder,decoder,cross", "attention modules that select", flag="--select-modules")
    dim: int = option(64, "width of the selectors", flag="--select-dim")
    share_loss: float = option(0.01, "share of the attention that layers may lose by sharing a selection")
    groups: str = option(
        "", "lowest layers of groups, such as encoder.0,decoder.0 (default: by their attention)", flag="--select-groups"
    )
    words: Path | None = option(None, "folder of the model's dictionaries (default: as in the checkpoint)")


@dataclass(frozen=True, kw_only=True)
class UpcycleOptions:
    """Options of upcycling a dense model."""

    updates: int = option(500, "updates of only the selectors, with kappa at 1", minimum=1)
    budget: float = option(0.01, "bits per token that selecting may cost", above=0)
    calibration: int = option(64, "documents of the validation set on which the budget is measured", minimum=1)
    documents: int = option(0, "prior updates of all weights on the documents, for sentence-level models", minimum=0)
    lr: float = option(0.002, "peak learning rate of the selectors")
    documents_lr: float = option(0.0005, "peak learning rate of --documents")
    max_tokens: int | None = tokens_per_batch()
    options: tuple[str, ...] = following(
        "After -- : further options of fairseq-train, such as --seed 2; they take precedence."
    )
