"""Attentions of a layer. :class:`SelectedAttention` reads the keys of a pattern; others are in ``nn.others``."""

from fairseq_lasformer.nn.attentions.base import ATTENTIONS, Attention, AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.selected import SelectedAttention

__all__ = ["ATTENTIONS", "Attention", "AttentionOptions", "AttentionOutput", "SelectedAttention"]
