"""One process of ``lasformer generate``: translates shards of a split, one after another."""

from __future__ import annotations

import ast
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import beside, first_wins
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.checkpoints.loading import check_same
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.documents.source import Line
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.executors import Report, Worker
from fairseq_lasformer.jobs.prepared import documents_of
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.patches import compat
from fairseq_lasformer.translation_memory.remembering import Memory

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask
    from omegaconf import DictConfig


def parse(arguments: list[str]) -> Any:
    """Parse fairseq-generate's command line into its configuration."""
    parser = options.get_generation_parser()
    namespace: Namespace = options.parse_args_and_arch(parser, arguments)
    return convert_namespace_to_omegaconf(namespace)


def load_models(cfg: DictConfig, task: FairseqTask) -> tuple[list[Any], torch.device]:
    """Load the ensemble given by ``--path``, in evaluation mode, on the device that the options select."""
    overrides = ast.literal_eval(cfg.common_eval.model_overrides)
    models, _ = checkpoint_utils.load_model_ensemble(
        utils.split_paths(cfg.common_eval.path),
        arg_overrides=overrides,
        task=task,
        suffix=cfg.checkpoint.checkpoint_suffix,
        strict=cfg.checkpoint.checkpoint_shard_count == 1,
        num_shards=cfg.checkpoint.checkpoint_shard_count,
    )
    device = torch.device("cuda" if torch.cuda.is_available() and not cfg.common.cpu else "cpu")
    for model in models:
        if cfg.common.fp16:
            model.half()
        elif cfg.common.bf16:
            model.bfloat16()
        model.to(device)
        model.prepare_for_inference_(cfg)
    return models, device


def check_lengths(task: FairseqTask, split: str, cfg: DictConfig, models: list[Any]) -> None:
    """Reject a split with an example that the models or ``--max-tokens`` have no room for."""
    dataset = task.dataset(split)
    limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
    task.filter_indices_by_size(dataset.ordered_indices(), dataset, limits)
    task.check_max_tokens(dataset, cfg.dataset.max_tokens)


def text_of(task: FairseqTask, codec: ExampleCodec, sentence: Tensor) -> str:
    """Return the text of a sentence of the source, from its tokens."""
    return codec.subwords.decode(task.source_dictionary.string(sentence), codec.settings.source_lang)


def memory_of(task: FairseqTask) -> Memory | None:
    """Return the memory that the task names."""
    settings = DataConfig.load(task.folder)
    return Memory(task.cfg.memory, (settings.source_lang, settings.target_lang)) if task.cfg.memory else None


def required_terms(
    task: FairseqTask, translator: Translator, memory: Memory | None
) -> Callable[[Tensor], list[list[int]]] | None:
    """Return a function from a source sentence's tokens to those of its required terms; None without any."""
    codec = ExampleCodec.load(task.folder)
    required = translator.required_terms(task.cfg.glossary or None, memory, codec)
    return None if required is None else lambda sentence: required(text_of(task, codec, sentence))


def checked(path: Path) -> Path:
    """Return the file that marks a shard as translated twice."""
    return beside(path, ".checked")


class Unit(NamedTuple):
    """A piece of work."""

    shard: int  # number of the shard
    again: bool = False  # whether it is done a second time, for comparison


class ShardTranslator(Worker[Unit, Path]):
    """Worker that translates the shards of a split, each into a file with a line of JSON per document.

    The lines are ``{"document": …, "lines": [[tokens, score, repaired, flawed], …]}``. Where two workers translate a
    shard, the first one's file is kept; on CPUs, the second one's must be identical.

    Args:
        folder: folder of the files, which are named by the shards' numbers.
        model: hash of the checkpoint, which is compared with the worker's; empty for no comparison.
    """

    def __init__(self, arguments: list[str], folder: Path, model: str = "") -> None:
        self.arguments, self.folder, self.model = arguments, folder, model

    def begin(self) -> None:
        register()
        compat.errors_in_one_line()
        cfg = self.cfg = parse(self.arguments)
        check_same(Path(cfg.common_eval.path), self.model)
        utils.import_user_module(cfg.common)
        task = self.task = tasks.setup_task(cfg.task)
        split = cfg.dataset.gen_subset
        task.load_dataset(split, task_cfg=cfg.task)
        models, self.device = load_models(cfg, task)
        check_lengths(task, split, cfg, models)
        self.translator = Translator(task, models, cfg.generation)
        info = SplitInfo.load(task.folder, split)
        if info is None:
            raise InputError(f"{task.folder}: contains no manifest of {split}")
        separator = task.separator_in(task.source_dictionary)
        overlap = self.translator.overlap(cfg.task.overlap)
        memory = memory_of(task)
        whole, terms = self.translator.prefix_size > 0, required_terms(task, self.translator, memory)
        by_lines = self.translator.by_lines
        self.documents = documents_of(
            task.dataset(split), info, task.settings, separator, overlap, whole, terms, by_lines
        )
        self.groups = self.translator.groups(self.documents, cfg.dataset.max_tokens, cfg.dataset.batch_size)

    def __call__(self, item: Unit, report: Report) -> Path:
        cfg, path = self.cfg, self.folder / str(item.shard)
        if cfg.common.seed is not None and not cfg.generation.no_seed_provided:
            utils.set_torch_seed(cfg.common.seed)  # for --sampling: per shard, as if the shard were translated alone
        with first_wins(path, same=self.device.type == "cpu") as out:
            for group in self.groups[item.shard :: cfg.distributed_training.distributed_world_size]:
                documents = [self.documents[i] for i in group]
                for number, lines in zip(group, self.translator.translate(documents, self.device)):
                    record: Json = {"document": number, "lines": list(map(self._line, lines))}
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")
                    report(not item.again)
        if item.again:
            checked(path).touch()
        return path

    def _line(self, line: Line) -> tuple[str, float, bool, bool]:
        return self.task.target_dictionary.string(line.tokens), line.score, line.repaired, line.flawed
