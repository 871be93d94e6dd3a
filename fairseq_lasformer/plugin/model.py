"""The model, and its registration with fairseq.

In training, the model returns the supervision of every pattern in ``net_output[1]["supervision"]``, by module and group
(``encoder.0``, ``decoder.0``, ``cross.0``, …), and the statistics of every mixture of experts in
``net_output[1]["router_stats"]``, by side and layer (``encoder.1``, …), for the criterion.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Iterator, Optional

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

import fairseq_lasformer
from fairseq_lasformer import ops
from fairseq_lasformer.base.cannot import MIXTURES, refuse
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.patterns.learned import Selector, learned
from fairseq_lasformer.plugin import build
from fairseq_lasformer.plugin.config import PRESETS, LasformerConfig, ModuleConfig, attention_widths, module_config
from fairseq_lasformer.plugin.decoder import LasformerDecoder
from fairseq_lasformer.plugin.encoder import LasformerEncoder
from fairseq_lasformer.plugin.placement import heads_of
from fairseq_lasformer.plugin.training.upcycling import complete

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.tasks import FairseqTask
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)


@register_model("lasformer", dataclass=LasformerConfig)
class LasformerModel(TransformerModelBase):
    """Document-level Transformer whose attention reads only the keys kept by a learned selector (arXiv 2309.14174).

    Attributes:
        adapted: whether the task adapts kappa (eq 7).
        num_updates: number of updates so far, from fairseq's trainer.
    """

    adapted = False
    num_updates = 0

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the flat configuration.

        TransformerModelBase's method would set every option to a value, so that presets would never apply.
        """
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: DictConfig, task: FairseqTask) -> LasformerModel:
        """Build the model for a task's dictionaries.

        Raises:
            InputError: an option has an invalid value, or the dictionaries cannot be shared as requested.
        """
        config, run = module_config(cfg), getattr(task, "run_options", RunOptions())
        _check_run(run)
        if config.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise InputError(
                "--share-all-embeddings (part of --arch lasformer_delight and delight_transformer): the two "
                "dictionaries differ; preprocess with a joined one, or use --arch lasformer with the preset's options"
            )
        source, target = cls._embeddings(config, task)
        separators = [_separator(task, d) for d in (task.source_dictionary, task.target_dictionary)]
        if run.cuda_graph:
            refuse("--cuda-graph", {MIXTURES: config.moe_experts})
        encoder = LasformerEncoder(config, task.source_dictionary, source, run, separators[0])
        decoder = LasformerDecoder(config, task.target_dictionary, target, run, separators[1])
        model = cls(config, encoder, decoder)
        if None in separators and (encoder.line_ends.read or decoder.line_ends.read):
            reader = "--own-lines" if config.own_lines else f"--select-pattern {config.select_pattern}"
            logger.warning(
                f"{reader} reads where lines end, but the data has no separators "
                "between lines: every text counts as one line; prepare the data with --separator"
            )
        model.adapted = bool(getattr(task, "adapts_sparsity", False))
        if config.select_only:
            _train_selectors_alone(model)
        return model

    @classmethod
    def _embeddings(cls, cfg: ModuleConfig, task: FairseqTask) -> tuple[Any, Any]:
        """Build the word embeddings of both sides; a single module if they are fully shared."""
        if cfg.merge_src_tgt_embed and not cfg.share_all_embeddings:
            task.src_dict.update(task.tgt_dict)
            task.tgt_dict = task.src_dict
        source = cls.build_embedding(cfg, task.source_dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path)
        if not (cfg.share_all_embeddings or cfg.merge_src_tgt_embed):
            target = cls.build_embedding(cfg, task.target_dictionary, cfg.decoder.embed_dim, cfg.decoder.embed_path)
            return source, target
        if cfg.decoder.embed_path and cfg.decoder.embed_path != cfg.encoder.embed_path:
            raise InputError("--decoder-embed-path: shared embeddings start from --encoder-embed-path; leave it out")
        cfg.share_decoder_input_output_embed = True
        return source, source.share_table() if cfg.embedding == "delight" else source

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a trained model for raw text; see :func:`fairseq_lasformer.from_pretrained`."""
        return fairseq_lasformer.from_pretrained(*args, **kwargs)

    @classmethod
    def build_embedding(
        cls, cfg: DictConfig, dictionary: Dictionary, embed_dim: int, path: Optional[str] = None
    ) -> Any:
        """Build the word embeddings of one side (``--embedding``)."""
        if cfg.embedding == "lookup":
            return super().build_embedding(cfg, dictionary, embed_dim, path)
        if path:
            raise InputError(f"--embedding {cfg.embedding} cannot start from pretrained embeddings ({path})")
        return build.embedding(cfg, len(dictionary), embed_dim, dictionary.pad())

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits [B, N, vocabulary] and extra outputs.

        These are ``kappa`` and, in training, ``supervision`` and ``router_stats``.
        """
        if self.training and not self.adapted:
            self.adapted = True  # warn only once
            if next(self.selectors(), None) is not None:
                logger.warning(
                    "this task does not adapt kappa: every selector keeps its initial share of keys, all of them "
                    "unless a checkpoint sets another; train with --task document_translation"
                )
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens, update=self.num_updates)
        out, extra = self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            update=self.num_updates,
        )
        return out, extra | {"kappa": {name: selector.kappa for name, selector in self.selectors()}}

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Allow a model to start from a dense checkpoint of the same sizes; see :func:`upcycling.complete`."""
        super().upgrade_state_dict_named(state_dict, name)
        sides = "encoder", "decoder"
        widths = {side: attention_widths(self.cfg, side).attention // heads_of(self.cfg, side) for side in sides}
        ends = {side: getattr(self, side).line_ends.words for side in sides}
        complete(state_dict, self.state_dict(), widths, ends)

    def set_num_updates(self, num_updates: int) -> None:
        """Store the number of updates; called by fairseq before every update."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def patterns(self) -> Iterator[tuple[str, Pattern]]:
        """Iterate over the patterns of all groups with their names, in a fixed order: encoder, decoder, cross."""
        yield from self.encoder.layers.patterns()
        yield from self.decoder.layers.patterns()

    def selectors(self) -> Iterator[tuple[str, Selector]]:
        """Iterate over the patterns whose kappa adapts, with their names, in the same order."""
        return learned(self.patterns())


def _train_selectors_alone(model: LasformerModel) -> None:
    """Exclude all weights except the selectors' from training.

    Raises:
        InputError: there are none.
    """
    if next(model.selectors(), None) is None:
        raise InputError("--select-only: no attention has a learned selector (--select-modules, --select-pattern)")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".selector." in name)


def _separator(task: FairseqTask, dictionary: Dictionary) -> int | None:
    """Return the index of the separator between lines; None if the data has none, as with fairseq's own tasks."""
    return task.separator_in(dictionary) if hasattr(task, "separator_in") else None


def _check_run(run: RunOptions) -> None:
    """Reject run options that this machine or this model does not support.

    Raises:
        InputError: names the option.
    """
    if run.cuda_graph and (not torch.cuda.is_available() or run.backend in ("reference", "cpu")):
        raise InputError("--cuda-graph requires a GPU and --attention-backend triton or auto")
    if run.backend in ("cpu", "triton"):  # requested explicitly: fail at the start if the kernels are missing
        try:
            ops.backend_for(torch.device("cpu" if run.backend == "cpu" else "cuda"), run.backend)
        except RuntimeError as e:
            raise InputError(f"--attention-backend {run.backend}: {e}") from e


def _register_preset(name: str) -> None:
    preset = PRESETS[name]

    @register_model_architecture("lasformer", name)
    def architecture(args: Namespace) -> None:
        for option, value in preset.items():
            setattr(args, option, getattr(args, option, value))


for _name in PRESETS:
    _register_preset(_name)
