"""Start checkpoint of a selecting model, made from a dense one: the same scores, with selectors at kappa 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_lasformer.apps.models.groups import attention_of_layers, fewest_groups
from fairseq_lasformer.apps.models.start_options import StartOptions
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.loading import architecture, load, save
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.shortlist import hashes
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.evaluation.calibration import calibration
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.task import DICTIONARIES, DocumentTranslationTask
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask

_WORDS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
_BIAS = "decoder.output_projection.bias"


def write_start(checkpoint: Path, data: Path, out: Path, options: StartOptions) -> str:
    """Write the checkpoint.

    Args:
        checkpoint: dense checkpoint of ours.
        data: prepared folder, whose dictionaries contain the model's words, and a separator that may be new to it.
        out: file to write.

    Returns:
        what was done, for the terminal: one line per change.
    """
    state = load(checkpoint)
    register()
    kind = architecture(state)
    if kind not in ("lasformer", *PRESETS):
        raise InputError(
            f"{checkpoint}: is a checkpoint of {kind or 'an unknown kind'}; make it one of ours with lasformer convert"
        )
    if any(".selector." in name for name in state["model"]):
        raise InputError(f"{checkpoint}: has selectors already; continue with lasformer train --finetune-from-model")
    cfg = dict(state["cfg"])
    notes: list[str] = []
    settings = DataConfig.load(data)
    longest = max(settings.limit, *(n for info in _splits(data) for n in info.longest))
    task = _task(cfg["task"], data, settings, longest)
    weights = dict(state["model"])
    if not _same_words(state, _dictionaries(task)):
        notes += _other_words(checkpoint, cfg["task"], weights, task, settings, options.words)
    model_options = options_of(cfg["model"])
    if str(model_options.get("select_modules", "")) != "none":
        raise InputError(f"{checkpoint}: attends by {model_options.get('select_pattern')}, not to all keys")
    for side, name in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        before = int(model_options.get(name) or 0)
        if longest > before:
            model_options[name] = longest
            learned = model_options.get(f"{side}_learned_pos")
            how = "the learned positions are stretched" if learned else "sinusoidal positions extend by themselves"
            notes.append(f"{side}: {before} positions become {longest}; {how}")
    torch.manual_seed(1)
    dense = _built(model_options, task, weights, checkpoint)
    chosen, model = model_options, dense
    if options.modules != "none":
        chosen = model_options | {"select_modules": options.modules, "select_dim": options.dim}
        chosen["select_groups"] = options.groups
        if not options.groups:
            chosen["select_groups"], line = _groups(dense, task, options)
            notes.append(line)
        model = _built(chosen, task, dense.state_dict(), checkpoint)
    cfg["model"] = chosen | {"_name": "lasformer", "arch": "lasformer"}
    limits = {"max_source_positions": longest, "max_target_positions": longest}
    names = {"source_lang": settings.source_lang, "target_lang": settings.target_lang}
    cfg["task"] = {**cfg["task"], "_name": "document_translation", "data": str(data.resolve()), **limits, **names}
    state |= {"cfg": cfg, "args": None, "model": model.state_dict(), "last_optimizer_state": None, "extra_state": {}}
    state["task_state"] = {DICTIONARIES: hashes(_dictionaries(task))}
    save(state, out)
    return "\n".join(notes)


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model among the settings of a checkpoint."""
    known = {field.name for field in dataclasses.fields(LasformerConfig) if not field.name.startswith("_")}
    return {name: value for name, value in settings.items() if name in known}


def words_of_options(chosen: Mapping[str, Any]) -> list[str]:
    """Return the words of fairseq-train's command line for a model's options."""
    words: list[str] = []
    for field in dataclasses.fields(LasformerConfig):
        value = chosen.get(field.name)
        value = value.value if isinstance(value, Enum) else value
        default = None if field.default is dataclasses.MISSING else field.default
        if field.name.startswith("_") or value is None or value == default or value == "":
            continue
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name[2:]}")
        else:
            words += [name, str(value)]
    return words


def _splits(data: Path) -> list[SplitInfo]:
    splits = [SplitInfo.load(data, name) for name in ("train", "valid")]
    if splits[0] is None:
        raise InputError(f"{data}: contains no training set; prepare it with lasformer prepare --train")
    return [info for info in splits if info is not None]


def _task(trained: State, data: Path, settings: DataConfig, longest: int) -> DocumentTranslationTask:
    cfg = DocumentTranslationConfig(
        data=str(data),
        source_lang=settings.source_lang,
        target_lang=settings.target_lang,
        max_source_positions=longest,
        max_target_positions=longest,
        left_pad_source=bool(trained.get("left_pad_source", True)),
        train_subset="train",
        dataset_impl=None,
        seed=1,
    )
    cfg.required_seq_len_multiple = 1
    return DocumentTranslationTask.setup_task(cfg)


def _dictionaries(task: FairseqTask) -> tuple[Any, Any]:
    return task.source_dictionary, task.target_dictionary


def _same_words(state: State, dictionaries: tuple[Any, Any]) -> bool:
    """Return whether a checkpoint knows the words of these dictionaries, as far as can be determined."""
    trained = (state.get("task_state") or {}).get(DICTIONARIES)
    if trained is not None:
        return bool(trained == hashes(dictionaries))
    tables = [state["model"].get(name) for name in _WORDS[:2]]  # a checkpoint of fairseq's own task
    return all(table is None or len(table) == len(words) for table, words in zip(tables, dictionaries))


def _other_words(
    checkpoint: Path,
    trained: State,
    weights: dict[str, Tensor],
    task: FairseqTask,
    settings: DataConfig,
    folder: Path | None,
) -> list[str]:
    """Reorder the rows of words as in the data's dictionaries; initialise a separator from end-of-sentence."""
    place = Path(str(trained.get("data", ""))) if folder is None else folder
    notes = []
    moved: dict[str, Tensor] = {}
    for side, dictionary in zip(("encoder", "decoder"), _dictionaries(task)):
        language = settings.source_lang if side == "encoder" else settings.target_lang
        try:
            old = Dictionary.load(str(place / f"dict.{language}.txt"))
        except Exception as e:  # fairseq has no specific exception for bad dictionaries
            raise InputError(
                f"{place}/dict.{language}.txt: the model's dictionary cannot be read; name its folder with --words"
            ) from e
        unknown = [word for word in dictionary.symbols if word not in old.indices and word != settings.separator]
        if unknown:
            raise InputError(
                f"{task.folder}: {len(unknown)} of its words are not in the model ({', '.join(unknown[:3])}); prepare "
                f"it with lasformer prepare --reuse {place}"
            )
        rows = torch.tensor([old.indices.get(word, old.eos()) for word in dictionary.symbols])
        for name in (*_WORDS, _BIAS):
            table = weights.get(name)
            if table is None or not name.startswith(side):
                continue
            if len(table) != len(old):
                raise InputError(f"{checkpoint}: its {name} has {len(table)} rows, {place} has {len(old)} words")
            moved[name] = table[rows]
        if settings.separator and settings.separator not in old.indices:
            notes.append(f"{language}: {settings.separator} is added, initialised from end-of-sentence")
    if not moved:
        raise InputError(f"{checkpoint}: words can be added only to embedding tables, not to compact embeddings")
    weights.update(moved)
    return notes


def _built(
    options: Mapping[str, Any], task: FairseqTask, weights: Mapping[str, Tensor], checkpoint: Path
) -> LasformerModel:
    model = LasformerModel.build_model(LasformerConfig(**options), task).eval()
    given = dict(weights)
    try:
        model.upgrade_state_dict(given)
        model.load_state_dict(given)
    except RuntimeError as e:
        raise InputError(f"{checkpoint}: its weights do not fit ({str(e).splitlines()[0]})") from e
    return model


def _groups(dense: LasformerModel, task: FairseqTask, options: StartOptions) -> tuple[str, str]:
    """Return the groups in the form of ``--select-groups``, and a description of what they lose."""
    sides = {"encoder": ("encoder",), "decoder": ("decoder", "cross")}
    layers = {"encoder": len(dense.encoder.layers), "decoder": len(dense.decoder.layers)}
    attention = attention_of_layers(dense, calibration(task), task.target_dictionary.eos())
    names, notes = [], []
    for side, modules in sides.items():
        selecting = [module for module in modules if module in options.modules] or modules
        groups = fewest_groups([each for module in selecting for each in attention[module]], options.share_loss)
        names += [f"{side}.{start}" for start in groups.starts]
        ends = (*groups.starts[1:], layers[side])
        spans = [
            f"{start + 1}" if end - start == 1 else f"{start + 1}-{end}" for start, end in zip(groups.starts, ends)
        ]
        notes.append(f"{side} {', '.join(spans)} (loses {groups.lost:.1%} of the attention)")
    return ",".join(names), f"layers that share a selection: {'; '.join(notes)}"
