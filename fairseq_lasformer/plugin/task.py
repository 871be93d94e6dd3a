"""The task ``document_translation``: fairseq's translation task for documents, with adaptive sparsity between updates.

Equations: arXiv 2309.14174.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.machine import keep_freed
from fairseq_lasformer.base.records import Log, Sample
from fairseq_lasformer.data.manifest import MONO, SplitInfo, check_binarised
from fairseq_lasformer.data.shortlist import hashes
from fairseq_lasformer.data.subword_sampling import sampler
from fairseq_lasformer.data.subwords import SETTINGS, DataConfig
from fairseq_lasformer.nn import bfloat16
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin import is_fairseqs_tool
from fairseq_lasformer.plugin.criterion import require_supervision
from fairseq_lasformer.plugin.datasets.denoising import MixedByTemperature, Noise, NoisySource, Symbols
from fairseq_lasformer.plugin.datasets.split_lines import SplitSide, share_at, split_lines
from fairseq_lasformer.plugin.datasets.subword_sampling import SampledSide, SampledSubwords
from fairseq_lasformer.plugin.datasets.word_dropout import drop_words, dropped_side
from fairseq_lasformer.plugin.generation import GenerationTask
from fairseq_lasformer.plugin.log_lines import COLUMNS, SELECTION, by_selector, empty_sums
from fairseq_lasformer.plugin.optimizers.muon import mark_embeddings
from fairseq_lasformer.plugin.patches.expert_parallel import make_expert_group
from fairseq_lasformer.plugin.patches.timed_checkpoints import interruption
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

if TYPE_CHECKING:
    from fairseq.criterions import FairseqCriterion
    from fairseq.data import Dictionary, FairseqDataset
    from fairseq.models import BaseFairseqModel
    from fairseq.optim import FairseqOptimizer
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)

DICTIONARIES = "dictionaries"


@register_task("document_translation", dataclass=DocumentTranslationConfig)
class DocumentTranslationTask(GenerationTask):
    """fairseq's translation task for examples that are sentences, chunks or whole documents.

    In addition, no sample is ever skipped because of its length (an error is raised instead), different words are
    dropped in every update, and kappa is adapted after every update to the mass over all micro-batches and workers
    (eq 7).
    """

    cfg: DocumentTranslationConfig
    adapts_sparsity = True

    def __init__(self, cfg: DocumentTranslationConfig, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        if not 0.0 <= cfg.word_dropout < 1.0:
            raise InputError(f"--word-dropout {cfg.word_dropout}: expected a probability in [0, 1)")
        if not 0.0 <= cfg.subword_sampling <= 1.0:
            raise InputError(f"--subword-sampling {cfg.subword_sampling}: expected a number from 0 to 1")
        if not 0 <= cfg.denoise_temperature < math.inf or 0 < cfg.denoise_temperature < 1:
            raise InputError(f"--denoise-temperature {cfg.denoise_temperature}: expected a number of at least 1, or 0")
        Noise(cfg.denoise_mask, cfg.denoise_span, cfg.denoise_permute).check()
        if not 0.0 <= cfg.split_lines <= 1.0:
            raise InputError(f"--split-lines {cfg.split_lines}: expected a share from 0 to 1")
        self.folder = Path(utils.split_paths(cfg.data)[0])
        self.settings = DataConfig.load(self.folder) if (self.folder / SETTINGS).exists() else None
        symbols = self.settings.symbols if self.settings else ()
        self.dropped_sides = (
            dropped_side("src_tokens", src_dict, symbols),
            dropped_side("prev_output_tokens", tgt_dict, symbols),
        )
        self.split_sides = self._split_sides() if cfg.split_lines else None
        self.sums: Tensor | None = None
        self.timed = False  # whether the first batch has been timed
        self.pad = tgt_dict.pad()
        int8, int8_cache = (str(dtype) == "int8" for dtype in (cfg.decode_dtype, cfg.cache_dtype))
        self.run_options = RunOptions(str(cfg.attention_backend), cfg.cuda_graph, int8=int8, int8_cache=int8_cache)
        self.run_options = self.run_options._replace(reproducible=cfg.reproducible)

    def eval_lm_dataloader(self, *args: Any, **kwargs: Any) -> None:
        raise InputError("fairseq-eval-lm is for language models; fairseq-validate measures this task's perplexity")

    def _split_sides(self) -> tuple[SplitSide, SplitSide]:
        separator = self.settings.separator if self.settings else ""
        if not separator:
            raise InputError("--split-lines: the data has no separator between lines; prepare it with --separator")
        cfg, dictionaries = self.cfg, (self.source_dictionary, self.target_dictionary)
        limits = cfg.max_source_positions, cfg.max_target_positions
        both = zip(dictionaries, limits, (cfg.left_pad_source, cfg.left_pad_target))
        source, target = (SplitSide.of(dictionary, separator, *how) for dictionary, *how in both)
        return source, target

    @classmethod
    def setup_task(cls, cfg: DocumentTranslationConfig, **kwargs: Any) -> DocumentTranslationTask:
        """Set up the task with the dictionaries and languages of the prepared folder.

        Raises:
            InputError: there is no prepared data, or its dictionaries are damaged.
        """
        folder = Path(utils.split_paths(cfg.data)[0])
        if not folder.is_dir():
            raise InputError(
                f"{folder}: no such folder; prepare the data first (lasformer prepare; for the demo, make demo)"
            )
        if (folder / SETTINGS).exists():
            settings = DataConfig.load(folder)
            cfg.source_lang = cfg.source_lang or settings.source_lang
            cfg.target_lang = cfg.target_lang or settings.target_lang
        try:
            return super().setup_task(cfg, **kwargs)
        except InputError:
            raise
        except Exception as e:  # fairseq has no specific exception for bad dictionaries
            raise InputError(f"{folder}: its dictionaries cannot be read ({e}); prepare the data again") from e

    def state_dict(self) -> dict[str, Any]:
        """Return fairseq's state and a hash of each dictionary, which ties a checkpoint to its vocabulary."""
        return {**super().state_dict(), DICTIONARIES: self._dictionaries()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state.

        Raises:
            InputError: the checkpoint was trained with other dictionaries.
        """
        state = dict(state_dict)
        trained = state.pop(DICTIONARIES, None)
        if trained is not None and trained != self._dictionaries():
            raise InputError(
                f"{self.folder}: its dictionaries differ from those of the checkpoint's training; use the data it was "
                "trained on, or prepare other text with its subwords (lasformer prepare --reuse)"
            )
        super().load_state_dict(state)

    def _dictionaries(self) -> list[str]:
        return hashes((self.source_dictionary, self.target_dictionary))

    def build_model(self, cfg: DictConfig, from_checkpoint: bool = False) -> Any:
        """Build the model; one loaded from a checkpoint has all its experts, however it was trained."""
        group = None
        if self.cfg.expert_parallel and not from_checkpoint:
            if self.cfg.eval_bleu:
                raise InputError(
                    "--expert-parallel: leave out --eval-bleu, which hangs if workers decode different numbers of steps"
                )
            group = make_expert_group(int(getattr(cfg, "moe_experts", 0)))
        self.run_options = self.run_options._replace(expert_group=group)
        model = super().build_model(cfg, from_checkpoint)
        mark_embeddings(model)
        dtype = str(self.cfg.linear_dtype)
        if not from_checkpoint and bfloat16.chosen(dtype, f"--linear-dtype {dtype}"):
            bfloat16.use_bfloat16(model)
        if self.cfg.eval_bleu and self.settings and self.cfg.eval_bleu_remove_bpe is None:
            self.tokenizer = self.build_tokenizer(None)  # --eval-bleu scores text, not subwords
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split and check it against its manifest, if preprocessing wrote one.

        Raises:
            InputError: the split is missing or damaged, or its number of examples differs from the manifest.
        """
        paths = utils.split_paths(self.cfg.data)
        data = paths[(epoch - 1) % len(paths)] if split == self.cfg.train_subset else paths[0]
        check_binarised(data, split, self.cfg.source_lang, self.cfg.target_lang)
        try:
            super().load_dataset(split, epoch=epoch, combine=combine, **kwargs)
        except (OSError, ValueError, AssertionError) as e:
            raise InputError(f"{data}: the split {split} cannot be read ({e}); prepare the data again") from e
        info = SplitInfo.load(data, split)
        alone = not (combine and SplitInfo.binarised(data, f"{split}1", self.cfg.source_lang, self.cfg.target_lang))
        if info is not None and alone and len(self.datasets[split]) != info.n_examples:
            raise InputError(
                f"{info.path}: lists {info.n_examples} examples, but the binarised split has "
                f"{len(self.datasets[split])}; prepare the data again"
            )
        if split != self.cfg.train_subset:
            return
        if self.cfg.subword_sampling:
            self.datasets[split] = self._sampled(self.datasets[split])
        if self.cfg.denoise_temperature:
            self._add_monolingual(split)

    def _add_monolingual(self, split: str) -> None:
        """Mix the monolingual documents, if the data has some, with the pairs."""
        cfg, mixed = self.cfg, [self.datasets[split]]
        noise = Noise(cfg.denoise_mask, cfg.denoise_span, cfg.denoise_permute)
        for name, side in MONO.items():
            if self.settings and SplitInfo.load(self.folder, name):
                self.load_dataset(name)
                of = Symbols.of(self.source_dictionary, self.settings.separator, self.settings.tags[side])
                mixed.append(NoisySource(self.datasets.pop(name), noise, of, cfg.seed + side))
        if len(mixed) > 1:
            self.datasets[split] = MixedByTemperature(mixed, cfg.denoise_temperature, cfg.seed)

    def _sampled(self, dataset: FairseqDataset) -> SampledSubwords:
        """Return a training set whose subwords are redrawn every epoch."""
        if self.settings is None:
            raise InputError(f"--subword-sampling: {self.folder} was not prepared by lasformer prepare")
        cfg, settings = self.cfg, self.settings

        def side(dictionary: Dictionary, language: str, tag: str, limit: int) -> SampledSide:
            draw = sampler(self.folder, settings, language, cfg.subword_sampling, dictionary)
            return SampledSide(draw, dictionary, settings.symbols, settings.separator, tag, limit)

        source = side(self.source_dictionary, cfg.source_lang, settings.source_tag, cfg.max_source_positions)
        target = side(self.target_dictionary, cfg.target_lang, settings.target_tag, cfg.max_target_positions)
        return SampledSubwords(dataset, (source, target), cfg.seed)

    def filter_indices_by_size(
        self,
        indices: np.ndarray,
        dataset: FairseqDataset,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
    ) -> Any:
        """Return all indices; a sample that is too long is an error of preparation and never dropped.

        Raises:
            InputError: a sample is too long.
        """
        fitting, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) > 0:
            sizes = [_lengths(dataset.size(i)) for i in ignored]
            raise InputError(
                f"{len(ignored)} of {len(indices)} examples are longer than {_lengths(max_positions)} tokens (source, "
                f"target); the longest has {max(sizes, key=max)}. Raise --max-source-positions and "
                "--max-target-positions, or preprocess with a smaller --limit"
            )
        return fitting

    def get_batch_iterator(self, dataset: FairseqDataset, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's batch iterator without dropping batches.

        With a required batch size multiple (8 by default), fairseq drops a last batch that is not a multiple of it. In
        training and generation, these would be the longest documents.

        Raises:
            InputError: an example is longer than ``--max-tokens``.
        """
        kwargs["required_batch_size_multiple"] = 1
        self.check_max_tokens(dataset, args[0] if args else kwargs.get("max_tokens"))
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def check_max_tokens(self, dataset: FairseqDataset, max_tokens: int | None) -> None:
        """Reject a dataset with an example that does not fit into a batch.

        Raises:
            InputError: an example is longer than ``--max-tokens``.
        """
        if max_tokens is not None and len(dataset):
            longest = int(dataset.num_tokens_vec(np.arange(len(dataset))).max())
            if longest > max_tokens:
                raise InputError(
                    f"--max-tokens {max_tokens}: the longest example has {longest} tokens, and every example must fit "
                    "into a batch; raise it, or preprocess with a smaller --limit"
                )

    def begin_epoch(self, epoch: int, model: BaseFairseqModel) -> None:
        """Begin an epoch; called by fairseq."""
        super().begin_epoch(epoch, model)
        if is_fairseqs_tool() and distributed_utils.get_data_parallel_world_size() == 1:
            interruption.listen()
        if next(model.parameters()).device.type == "cpu":
            keep_freed()

    def train_step(
        self,
        sample: Sample,
        model: BaseFairseqModel,
        criterion: FairseqCriterion,
        optimizer: FairseqOptimizer,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Any, Any, Log]:
        """Run one micro-batch: word dropout, forward, backward, and adding up the selectors' sums for the update."""
        if ignore_grad and self.run_options.expert_group is not None:
            # a worker that has run out of data takes part in every all-to-all, but its tokens must not be counted
            inputs = {
                k: torch.full_like(t, self.pad) if k.endswith("tokens") else t for k, t in sample["net_input"].items()
            }
            sample = {**sample, "net_input": inputs}
        require_supervision(model, criterion)
        if self.split_sides is not None:
            last = int(self.cfg.max_update or 0)
            share = share_at(self.cfg.split_lines, update_num, last)
            sample = split_lines(sample, share, self.split_sides, f"{self.cfg.seed} {update_num}")
        if self.cfg.word_dropout > 0:
            sample = drop_words(sample, self.cfg.word_dropout, self.dropped_sides)
        begun = time.monotonic()
        with self._abort_on_oom():
            result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if not self.timed:
            self.timed = True  # kernels are built in the first batch, so this is an upper bound
            logger.info("first batch: %.2f seconds, %d tokens", time.monotonic() - begun, sample["ntokens"])
        sums = result[2].get(SELECTION)
        if sums is not None and not ignore_grad:
            self.sums = sums.clone() if self.sums is None else self.sums + sums
        return result

    def valid_step(self, sample: Sample, model: BaseFairseqModel, criterion: FairseqCriterion) -> Any:
        with self._abort_on_oom():
            return super().valid_step(sample, model, criterion)

    @contextmanager
    def _abort_on_oom(self) -> Iterator[None]:
        """Abort the run if a worker that shares experts runs out of memory.

        fairseq would let that worker skip its batch, and the others would wait for it forever.
        """
        try:
            yield
        except RuntimeError as e:
            if self.run_options.expert_group is None or "out of memory" not in str(e):
                raise
            logger.error("--expert-parallel: a worker has too little memory for its batch; use a smaller --max-tokens")
            os._exit(1)  # an exception would be caught by fairseq, which then waits for the other workers

    def optimizer_step(self, optimizer: FairseqOptimizer, model: BaseFairseqModel, update_num: int) -> None:
        """Run the optimizer step, then adapt kappa (eq 7) identically on all workers, from masses summed over them.

        An update that is skipped because of an overflow in half precision does not adapt kappa; its masses, computed
        with the same weights, are added to those of the update that succeeds.
        """
        scale = _loss_scale(optimizer)
        super().optimizer_step(optimizer, model, update_num)
        if _loss_scale(optimizer) < scale:  # with --amp, this is also called for skipped updates
            return
        selectors = dict(model.selectors()) if hasattr(model, "selectors") else {}
        if not selectors:
            return
        sums, self.sums = self.sums, None
        if update_num < model.cfg.sparsity_warmup:
            return
        if sums is None:  # a worker without data
            sums = empty_sums(selectors, next(iter(selectors.values())).kappa.device)
        if distributed_utils.get_data_parallel_world_size() > 1:
            distributed_utils.all_reduce(sums, group=distributed_utils.get_data_parallel_group())
        mass = COLUMNS.index("mass" if str(model.cfg.sparsity_mass) == "selection" else "recall")
        for name, row in by_selector(sums.cpu()):
            read = float(row[COLUMNS.index("elsewhere")])
            if read > 0:
                selectors[name].adapt(float(row[mass]) / read)


def _lengths(size: Any) -> tuple[int, ...]:
    """Convert an example's length, or a limit, to plain integers: source and target, or one for both."""
    return tuple(int(n) for n in size) if isinstance(size, tuple) else (int(size),)


def _loss_scale(optimizer: FairseqOptimizer) -> float:
    """Return the loss scale of automatic mixed precision, which falls when an update is skipped; 1 without it."""
    scaler: Any = getattr(optimizer, "scaler", None)
    return float(scaler.get_scale()) if hasattr(scaler, "get_scale") else 1.0
