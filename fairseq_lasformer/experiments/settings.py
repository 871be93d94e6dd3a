"""Options of training a model (``lasformer train``, ``run``), and of running a row of the paper (``reproduce``).

Every default of these commands is defined only here: their help, their pages and configuration files take it from here.
"""

import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import NOTHING, SPEED, check, following, option
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.base.shared_options import Beam, max_tokens, tokens_per_batch
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig

Tell = Callable[[str], object]
"""Receives each message of an experiment."""

OPTIMIZERS = ("adam", "muon")

TIED = {"auto": "", "all": "--share-all-embeddings", "decoder": "--share-decoder-input-output-embed", "none": ""}
"""Which embeddings share a table, and fairseq's option for it. ``auto`` is ``all`` with a joined dictionary, otherwise
``decoder``, its input and output."""

PRECISIONS = ("auto", "fp16", "bf16", "fp32")
"""``auto`` is bf16 on a GPU that has it, otherwise fp16; on a CPU, bf16 if the processor has instructions for it,
otherwise fp32. On a CPU, bf16 means that linear layers are multiplied in bfloat16."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of training. The defaults are the paper's base model (arXiv 2309.14174, 4.2) with common training."""

    arch: str = option("lasformer", "architecture, see docs/training.md")
    criterion: str | None = option(None, "loss (default: the one that goes with the architecture)")
    max_update: int = option(100_000, "number of updates", minimum=1)
    patience: int = option(10, "end after this many validations without improvement; 0: never", minimum=0)
    max_tokens: int | None = tokens_per_batch()
    update_freq: int = option(
        8, "batches per update; on a GPU, a quarter as many unless --max-tokens is given", minimum=1
    )
    lr: float = option(0.0007, "peak learning rate", above=0)
    warmup: int = option(4000, "updates until the peak", metavar="UPDATES", minimum=0)
    optimizer: str = option("adam", "adam, or muon: muon for matrices and Adam for the rest", values=OPTIMIZERS)
    dropout: float = option(0.1, "probability", minimum=0, maximum=1)
    word_dropout: float = option(0.1, "probability", minimum=0, maximum=1)
    subword_sampling: float = option(0.0, "draw new subwords in every epoch: 0.3 for sentencepiece, 0.1 for BPE")
    ema_decay: float = option(0.0, "keep a moving average of the weights, such as 0.999, and translate with it")
    save_every: int = option(500, "save and validate", metavar="UPDATES", minimum=1)
    save_minutes: float = option(10.0, "also save this often", metavar="MINUTES")
    log_every: int = option(10, "write a log line", metavar="UPDATES", minimum=1, changes=NOTHING)
    precision: str = option(
        "auto", "fp16 (GPU), bf16 (GPU; on a CPU, linear layers only), fp32, or auto: the fastest", values=PRECISIONS
    )
    tie_embeddings: str = option(
        "auto", "embeddings sharing a table: all, decoder (its input and output), none, or auto", values=tuple(TIED)
    )
    options: tuple[str, ...] = following(
        "After -- : further options of fairseq-train, such as --select-share 2; they take precedence."
    )

    def command(self, data: Path, out: Path) -> list[str]:
        """Return the command line of fairseq-train."""
        from fairseq_lasformer.plugin.config import PRESETS  # which loads fairseq

        settings, info = DataConfig.load(data), SplitInfo.load(data, "train")
        if info is None:
            raise InputError(f"{data}: contains no training set; prepare it with lasformer prepare --train")
        check(self)
        ours = self.arch.startswith(("lasformer", "delight"))
        known = ["lasformer", *PRESETS]
        like = difflib.get_close_matches(self.arch, known, 1, 0.7)
        if self.arch not in known and like and not self.arch.startswith("transformer"):  # fairseq's own
            raise InputError(f"--arch {self.arch}: unknown; did you mean {like[0]}?")
        longest = max(info.longest)
        device, on_gpu = self._device(), self._on_gpu()
        tokens = max(4096, longest) if self.max_tokens is None else self.max_tokens
        update_freq = self.update_freq
        if on_gpu and self.max_tokens is None and update_freq % GPU_BATCH == 0:
            tokens, update_freq = max(GPU_BATCH * 4096, longest), update_freq // GPU_BATCH
        criterion = self.criterion or (
            "label_smoothed_cross_entropy_with_selection" if ours else "label_smoothed_cross_entropy"
        )
        words: list[Any] = [str(data.resolve()), "--user-dir", Path(__file__).parents[1], "--save-dir", out]
        words += ["--task", "document_translation", "-s", settings.source_lang, "-t", settings.target_lang]
        usual = "all" if settings.joined_dictionary else "decoder"
        tied = TIED[usual if self.tie_embeddings == "auto" else self.tie_embeddings]
        words += ["--arch", self.arch, *([tied] if tied else []), "--dropout", self.dropout]
        words += ["--word-dropout", self.word_dropout, "--criterion", criterion, "--label-smoothing", 0.1]
        words += ["--optimizer", self.optimizer, "--adam-betas", "(0.9,0.98)", "--lr", self.lr]
        words += ["--subword-sampling", self.subword_sampling] if self.subword_sampling else []
        words += ["--store-ema", "--ema-decay", self.ema_decay] if self.ema_decay else []
        words += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", self.warmup]
        words += ["--max-tokens", tokens, "--update-freq", update_freq, "--max-update", self.max_update]
        words += ["--save-interval-updates", self.save_every, "--keep-interval-updates", 1, "--no-epoch-checkpoints"]
        words += ["--save-interval-minutes", self.save_minutes]
        words += ["--log-format", "json", "--log-interval", self.log_every]
        if SplitInfo.load(data, "valid") is None:
            words.append("--disable-validation")
        elif self.patience:
            words += ["--patience", self.patience]
        words += device
        return [str(Path(sys.executable).with_name("fairseq-train")), *map(str, words), *self.options]

    def _on_gpu(self) -> bool:
        import torch

        return torch.cuda.is_available() and "--cpu" not in self.options

    def _device(self) -> list[str]:
        from fairseq_lasformer.nn import bfloat16

        if any(option in self.options for option in ("--fp16", "--bf16")):
            return []
        if self._on_gpu():
            return self._half()
        if self.precision == "fp16":
            raise InputError("--precision fp16: there is no GPU here; leave it out, and the CPU trains without it")
        dtype = {"fp32": "float32", "bf16": "bfloat16"}.get(self.precision, "auto")
        bfloat16.chosen(
            dtype, f"--precision {self.precision}"
        )  # refuses what fairseq-train would, by the user's option
        return [*([] if "--cpu" in self.options else ["--cpu"]), "--linear-dtype", dtype]

    def _half(self) -> list[str]:
        import torch

        best = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        chosen = best if self.precision == "auto" else self.precision
        if chosen == "bf16" != best:
            raise InputError("--precision bf16: this GPU has no bfloat16; use fp16 or fp32")
        if chosen == "fp32":
            return []
        # fairseq would join all gradients to one vector, of which Muon cannot tell the matrices
        return [f"--{chosen}", *(["--fp16-no-flatten-grads"] if self.optimizer == "muon" else [])]


GPU_BATCH = 4
"""On a GPU, batches are this many times as large, and there are as many times fewer of them per update."""

SMALL_CORPUS = 50_000
"""Number of sentences below which a training set gets the defaults of :data:`SMALL`."""

SMALL: Json = {
    **{"arch": "lasformer_tiny", "max_update": 5000, "update_freq": 1, "warmup": 500},
    **{"lr": 0.002, "dropout": 0.2, "save_every": 250, "patience": 12},
}
"""Defaults for small corpora: a small model, few updates, a short warm-up, more dropout. Close to the demo's."""


PAPER_GPUS = 8
"""``configs/base/paper.yaml`` assumes eight GPUs (the paper does not say); with fewer, gradients are accumulated."""


@dataclass(frozen=True, kw_only=True)
class RowOptions(Beam):
    """Options of running a row."""

    gpus: int = option(1, "number of GPUs; 0 trains and translates on the CPU")
    precision: str = option("fp16", "fp16, bf16 or fp32, on GPUs")
    average: int = option(5, "checkpoints averaged with the last one")
    max_update: int | None = option(None, "number of updates (default: the configuration's)")
    max_tokens: int | None = max_tokens()
    limit: int | None = option(None, "tokens per example (default: the configuration's)")
    size: int = option(32000, "BPE merges")
    workers: int = option(2, "processes for the preparation", changes=SPEED)
    files: Path = option(Path("downloads"), "folder of the corpus files", changes=NOTHING)
    trust: bool = option(False, "as for lasformer corpus", flag="--trust-first-download", changes=NOTHING)
    overrides: tuple[str, ...] = option(
        (), "Hydra override of the training", flag="--set", append=True, metavar="KEY=VALUE"
    )

    def training(self, system: str) -> tuple[str, ...]:
        """Return the Hydra overrides of the training of a system."""
        steps = 1 if self.gpus > PAPER_GPUS else PAPER_GPUS // max(1, self.gpus)
        overrides = [f"optimization.update_freq=[{steps}]"]
        if self.max_update is not None:
            overrides.append(f"optimization.max_update={self.max_update}")
        if not self.gpus:
            overrides.append("common.cpu=true")
        else:
            overrides.append(f"distributed_training.distributed_world_size={self.gpus}")
            precision = "fp16" if self.precision == "auto" else self.precision
            overrides += [] if precision == "fp32" else [f"common.{precision}=true"]
            overrides += ["common.fp16_no_flatten_grads=true"] if (precision, system[-3:]) == ("fp16", "moe") else []
        return (*overrides, *self.overrides)

    def generation(self) -> tuple[str, ...]:
        """Return the options of fairseq-generate."""
        options = ["--beam", str(self.beam)] + ([] if self.gpus else ["--cpu"])
        return (*options, *(["--max-tokens", str(self.max_tokens)] if self.max_tokens else []))
