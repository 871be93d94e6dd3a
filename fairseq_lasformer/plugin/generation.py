"""The generation side of the task: text to tokens and back, and the search."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq.tasks.translation import TranslationTask

from fairseq_lasformer.base.cannot import FAIRSEQS, refuse
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Sample
from fairseq_lasformer.data.examples import ExampleCodec, LineCodec
from fairseq_lasformer.data.shortlist import Shortlist, load
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.task_config import MAX_LEN, DocumentTranslationConfig
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairseq.data import Dictionary
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.models import BaseFairseqModel


class GenerationTask(TranslationTask):
    """fairseq's translation task for generating documents."""

    cfg: DocumentTranslationConfig
    folder: Path
    settings: DataConfig | None  # settings of the prepared data; None if this package did not prepare it

    def separator_in(self, dictionary: Dictionary) -> int | None:
        """Return the index of the separator between sentences in a dictionary; None if the data has none.

        Raises:
            InputError: the dictionary lacks it.
        """
        return self._index(dictionary, "separator", self.settings.separator if self.settings else "")

    def tag_in(self, dictionary: Dictionary, side: int) -> int | None:
        """Return the index of the tag of a side, 0 for the source and 1 for the target; None if the data has none.

        Raises:
            InputError: the dictionary lacks it.
        """
        return self._index(dictionary, "tag", self.settings.tags[side] if self.settings else "")

    def _index(self, dictionary: Dictionary, what: str, symbol: str) -> int | None:
        index = int(dictionary.index(symbol)) if symbol else None
        if index == dictionary.unk():
            raise InputError(f"{self.folder}: its dictionaries lack the {what} {symbol}; prepare the data again")
        return index

    def build_tokenizer(self, args: GenerationConfig) -> Any:
        """Return the conversion between text and tokens with which the data was prepared.

        fairseq's tools need no ``--tokenizer`` or ``--bpe``.

        Raises:
            InputError: a tokenizer is requested for prepared data.
        """
        if self.settings is None:
            return super().build_tokenizer(args)
        _refuse("--tokenizer", args)
        return LineCodec(ExampleCodec(self.folder, self.settings))

    def build_bpe(self, args: GenerationConfig) -> Any:
        """Return None for prepared data, whose subwords are handled by :meth:`build_tokenizer`.

        Raises:
            InputError: a subword encoding is requested for prepared data.
        """
        if self.settings is None:
            return super().build_bpe(args)
        _refuse("--bpe", args)
        return None

    def build_generator(
        self,
        models: Sequence[BaseFairseqModel],
        args: GenerationConfig,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """Build a generator: aligned by sentence where the data has a separator, otherwise fairseq's.

        The default length limit is that of documents instead of fairseq's 200 tokens.

        Raises:
            InputError: ``--print-alignment`` with a model that returns no attention, a non-finite option, groups into
                which the beam cannot be divided, or ``--align-sentences`` or ``--shortlist`` where it is not possible.
        """
        if getattr(args, "print_alignment", None) and any(isinstance(m, LasformerModel) for m in models):
            raise InputError("--print-alignment: this model returns no attention weights; leave out the option")
        for name in ("lenpen", "unkpen", "temperature", "max_len_a"):
            if not math.isfinite(float(getattr(args, name, 1.0))):
                raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected a number")
        least, most = getattr(args, "min_len", 1), min(model.max_decoder_positions() for model in models)
        if least >= most:
            raise InputError(f"--min-len {least}: more than the {most} tokens that a translation may have")
        beam, groups = int(getattr(args, "beam", 1)), getattr(args, "diverse_beam_groups", -1)
        if groups > 0 and beam % groups:  # fairseq finds this in its first step
            raise InputError(f"--diverse-beam-groups {groups}: the beam, {beam}, is not a multiple of it")
        if self.cfg.reproducible:
            self._check_reproducible(models, args)
        own_length = (getattr(args, "max_len_a", 0), getattr(args, "max_len_b", 200)) != (0, 200)
        if not own_length:
            args = copy.copy(args)
            args.max_len_a, args.max_len_b = MAX_LEN
        alignment = self.alignment(args, prefix_allowed_tokens_fn) if seq_gen_cls is None else None
        if alignment is not None and self.cfg.reproducible:
            refuse("--reproducible", {"--max-len-a": own_length and float(getattr(args, "max_len_a", 0)) != 0})
        if alignment is not None:
            options = {"alignment": alignment, "own_length": own_length, "backend": self.cfg.attention_backend}
            seq_gen_cls = functools.partial(AlignedGenerator, **options)
        elif seq_gen_cls is None and not getattr(args, "print_alignment", None):
            limits = bool(self.cfg.reproducible)
            seq_gen_cls = functools.partial(BeamGenerator, backend=self.cfg.attention_backend, own_limits=limits)
        elif self.settings and self.settings.target_tag:
            raise InputError("--print-alignment: not supported for models whose translations begin with a tag")
        tag = self.tag_in(self.target_dictionary, 1)
        if tag is not None and not getattr(args, "score_reference", False):
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "tag": tag, "symbols_to_strip_from_output": {tag}}
        if self.cfg.shortlist and not getattr(args, "score_reference", False):
            _check_shortlist(models, args, prefix_allowed_tokens_fn)
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "shortlist": self.shortlist}
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)

    def _check_reproducible(self, models: Sequence[BaseFairseqModel], args: GenerationConfig) -> None:
        """Reject models and options that do not allow reproducible translations.

        Raises:
            InputError: names it.
        """
        options = {
            "several models": len(models) > 1,
            FAIRSEQS: not all(isinstance(m, LasformerModel) for m in models),
            "a GPU": any(p.device.type != "cpu" for m in models for p in m.parameters()),
            "--shortlist": bool(self.cfg.shortlist),
            **{f"--{name.replace('_', '-')}": bool(getattr(args, name, None)) for name in ("sampling", "lm_path")},
        }
        refuse("--reproducible", options)

    @functools.cached_property
    def shortlist(self) -> Shortlist:
        """The shortlist of ``--shortlist``; raises InputError if it cannot be used."""
        return load(self.cfg.shortlist, self.source_dictionary, self.target_dictionary)

    def alignment(self, args: GenerationConfig, prefix_allowed_tokens_fn: Any = None) -> Alignment | None:
        """Return how sentences are aligned in generation; None for translations of any number of lines.

        Args:
            prefix_allowed_tokens_fn: fairseq's function that prescribes the translation, if there is one.

        Raises:
            InputError: alignment is requested but not possible, or has invalid options.
        """
        asked = str(getattr(args, "align_sentences", self.cfg.align_sentences))
        if asked == "no":
            return None
        if getattr(args, "score_reference", False) or getattr(args, "constraints", None):
            return None  # there is no search, or fairseq's constraints decide
        source, target = self.separator_in(self.source_dictionary), self.separator_in(self.target_dictionary)
        if source is None or target is None:
            if asked == "yes":
                raise InputError(
                    f"--align-sentences yes: the data in {self.folder} has no separator between sentences, so "
                    "translations have no lines; prepare it with one (lasformer prepare --separator) and train on it"
                )
            return None
        prescribed = getattr(args, "match_source_len", False) or prefix_allowed_tokens_fn is not None
        refuse("--align-sentences", {"--match-source-len": prescribed})
        a, b = float(self.cfg.sentence_max_len_a), float(self.cfg.sentence_max_len_b)
        if not (0 <= a < math.inf and 0 <= b < math.inf and a + b >= 1):
            raise InputError(f"--sentence-max-len-a {a}, --sentence-max-len-b {b}: allow no tokens at all")
        if self.cfg.repair < 0:
            raise InputError(f"--repair {self.cfg.repair}: expected a number of times, at least 0")
        return Alignment((source, target), a, b, int(self.cfg.repair))

    def inference_step(
        self, generator: Any, models: Sequence[BaseFairseqModel], sample: Sample, *args: Any, **kwargs: Any
    ) -> Any:
        """Run fairseq's inference step; an empty source gets an empty translation."""
        hypotheses = super().inference_step(generator, models, sample, *args, **kwargs)
        source = sample["net_input"]["src_tokens"]
        none = self.source_dictionary.pad(), self.source_dictionary.eos(), self.tag_in(self.source_dictionary, 0)
        words = torch.stack([source != symbol for symbol in none if symbol is not None]).all(0)
        for i in (~words.any(1)).nonzero()[:, 0].tolist():
            for hypothesis in hypotheses[i]:
                hypothesis["tokens"] = hypothesis["tokens"].new_tensor([self.target_dictionary.eos()])
                hypothesis["positional_scores"] = hypothesis["positional_scores"].new_zeros(1)
                hypothesis["score"] = torch.zeros_like(torch.as_tensor(hypothesis["score"]))
        return hypotheses

    def build_dataset_for_inference(self, src_tokens: Any, src_lengths: Any, constraints: Any = None) -> Any:
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, constraints=constraints)
        dataset.left_pad_source = self.cfg.left_pad_source
        return dataset


def _check_shortlist(models: Sequence[BaseFairseqModel], args: GenerationConfig, prefix_allowed_tokens_fn: Any) -> None:
    """Reject models and options that do not support a shortlist.

    Raises:
        InputError: names them.
    """
    others = {
        f"--{name.replace('_', '-')}": getattr(args, name, None)
        for name in ("constraints", "lm_path", "print_alignment")
    }
    others[FAIRSEQS] = not all(isinstance(model, LasformerModel) for model in models)
    others["a prescribed translation"] = prefix_allowed_tokens_fn is not None
    refuse("--shortlist", others)


def _refuse(option: str, args: GenerationConfig) -> None:
    name = getattr(args, "_name", args)
    if name is not None:
        raise InputError(
            f"{option} {name}: the prepared data has its own tokeniser and subwords, which are used automatically; "
            "leave out the option"
        )
