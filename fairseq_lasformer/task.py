"""The task ``document_translation``: fairseq's translation on documents, and what happens between updates."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_lasformer.criterion import selector_sums
from fairseq_lasformer.dataset import SplitInfo, drop_words, dropped_side
from fairseq_lasformer.documents import InputError
from fairseq_lasformer.moe import ExpertWorkers
from fairseq_lasformer.moe.workers import all_workers
from fairseq_lasformer.task_config import DocumentTranslationConfig
from fairseq_lasformer.text import SETTINGS, Settings

logger = logging.getLogger(__name__)


@register_task("document_translation", dataclass=DocumentTranslationConfig)
class DocumentTranslationTask(TranslationTask):
    """fairseq's translation task for examples that are sentences, chunks or whole documents.

    Beyond it: no sample is ever skipped for its length (a clear error instead), words are dropped anew every update,
    and kappa moves after every update by the mass of all its micro-batches and workers (eq 7).
    """

    cfg: DocumentTranslationConfig

    def __init__(self, cfg: DocumentTranslationConfig, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        if not 0.0 <= cfg.word_dropout < 1.0:
            raise InputError(f"--word-dropout {cfg.word_dropout}: expected a probability in [0, 1)")
        data = Path(utils.split_paths(cfg.data)[0])
        separator = Settings.load(data).separator if (data / SETTINGS).exists() else ""
        self.dropped_sides = (
            dropped_side("src_tokens", src_dict, separator),
            dropped_side("prev_output_tokens", tgt_dict, separator),
        )
        self.masses: dict[str, Tensor] = {}
        self.pad = tgt_dict.pad()
        self.expert_workers: ExpertWorkers | None = None

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The model; a loaded one holds all its experts, however it was trained."""
        self.expert_workers = None
        if self.cfg.expert_parallel and not from_checkpoint:
            if self.cfg.eval_bleu:
                raise InputError(
                    "--expert-parallel: workers take different numbers of decoding steps, --eval-bleu hangs"
                )
            self.expert_workers = all_workers(int(getattr(cfg, "moe_experts", 0)))
        return super().build_model(cfg, from_checkpoint)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Loads a split, and checks it against its manifest where the preprocessing left one."""
        super().load_dataset(split, epoch=epoch, combine=combine, **kwargs)
        info = SplitInfo.load(utils.split_paths(self.cfg.data)[0], split)
        if info is not None and len(self.datasets[split]) != info.n_examples:
            raise InputError(
                f"{info.path}: lists {info.n_examples} examples, but the binarised split holds "
                f"{len(self.datasets[split])}; run the preprocessing again"
            )

    def filter_indices_by_size(
        self, indices: Any, dataset: Any, max_positions: Any = None, ignore_invalid_inputs: bool = False
    ) -> Any:
        """All indices, or an error: a sample that is too long is a mistake in the preparation, never dropped."""
        kept, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) > 0:
            longest = max((dataset.size(i) for i in ignored), key=lambda s: max(s) if isinstance(s, tuple) else s)
            raise InputError(
                f"{len(ignored)} of {len(indices)} examples are longer than {max_positions} tokens (source, target); "
                f"the longest has {longest}. Raise --max-source-positions and --max-target-positions, or preprocess "
                "with a smaller --limit"
            )
        return kept

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """fairseq's batches, all of them.

        With a required batch size multiple (its default is 8), fairseq drops the last batch if it is no multiple: the
        longest documents, in training and in generation alike.
        """
        kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def build_dataset_for_inference(self, src_tokens: Any, src_lengths: Any, constraints: Any = None) -> Any:
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, constraints=constraints)
        dataset.left_pad_source = self.cfg.left_pad_source
        return dataset

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> tuple[Any, Any, dict[str, Any]]:
        """One micro-batch: words dropped, then forward and backward; its kept mass is added up for the update."""
        if ignore_grad and self.expert_workers is not None:
            # a worker that has run out of data takes part in every exchange, but no token of it may count
            inputs = {
                k: torch.full_like(t, self.pad) if k.endswith("tokens") else t for k, t in sample["net_input"].items()
            }
            sample = {**sample, "net_input": inputs}
        if self.cfg.word_dropout > 0:
            sample = drop_words(sample, self.cfg.word_dropout, self.dropped_sides)
        with self._together():
            result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if not ignore_grad:
            statistic = "mass" if self._mass_of(model) == "selection" else "recall"
            queries = selector_sums(result[2], "queries")
            for name, mass in selector_sums(result[2], statistic).items():
                both = torch.stack([mass.double(), queries[name].double()])
                self.masses[name] = self.masses[name] + both if name in self.masses else both
        return result

    def valid_step(self, sample: Any, model: Any, criterion: Any) -> Any:
        with self._together():
            return super().valid_step(sample, model, criterion)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Ends the run where workers that share experts cannot go on: fairseq would let one skip a batch for want of
        memory, and the others wait for it for ever."""
        try:
            yield
        except RuntimeError as e:
            if self.expert_workers is None or "out of memory" not in str(e):
                raise
            logger.error("--expert-parallel: a worker has too little memory for its batch; use a smaller --max-tokens")
            os._exit(1)  # an exception would be caught by fairseq, which then waits for the other workers

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """The optimizer's step, then eq 7's: the same on every worker, since the masses are summed over all of them.

        An update that half precision throws away never comes here; its masses, taken from the same weights, count
        with the repeated one's.
        """
        super().optimizer_step(optimizer, model, update_num)
        selectors = dict(model.selectors()) if hasattr(model, "selectors") else {}
        if not selectors:
            return
        device = next(iter(selectors.values())).kappa.device
        sums = torch.stack([self.masses.get(name, torch.zeros(2)).to(device, torch.float64) for name in selectors])
        if distributed_utils.get_data_parallel_world_size() > 1:
            distributed_utils.all_reduce(sums, group=distributed_utils.get_data_parallel_group())
        self.masses = {}
        for selector, (mass, queries) in zip(selectors.values(), sums.tolist()):
            if queries > 0:
                selector.adapt(mass / queries)

    @staticmethod
    def _mass_of(model: Any) -> str:
        return str(getattr(getattr(model, "cfg", None), "sparsity_mass", "selection"))
