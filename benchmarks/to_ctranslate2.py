"""Conversion of a model whose attention reads every key to CTranslate2, for comparisons with it on the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_new_folder, new_folder
from fairseq_lasformer.data.subwords import subword_model
from fairseq_lasformer.documents.hub import DocumentHubInterface, from_pretrained
from fairseq_lasformer.nn.patterns.full import Full
from fairseq_lasformer.nn.patterns.positional import OwnLine
from fairseq_lasformer.ops import KAPPA_ONE
from fairseq_lasformer.plugin.build import without_keys
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.plugin.placement import MODULES, heads_of

QUANTISATIONS = ("float32", "int8", "int8_float32", "int16", "float16")
LEARNED = 1
"""Row of fairseq's first learned position, counted from that of padding."""


def to_ctranslate2(checkpoint: Path, out: Path, data: Path | None = None, quantisation: str = "float32") -> str:
    """Write a model for CTranslate2, with its vocabularies and subwords; one with ``--own-lines`` for single lines.

    Args:
        checkpoint: a checkpoint, or the folder of one.
        out: folder to write; new or empty.
        data: its prepared folder; None for the one named in the checkpoint.
        quantisation: type of the weights, one of :data:`QUANTISATIONS`.

    Returns:
        a summary for the terminal.

    Raises:
        InputError: the model has something that CTranslate2 cannot have, or ``out`` is not empty.
    """
    import ctranslate2

    check_new_folder(out)
    model = from_pretrained(checkpoint, data=data).eval()
    spec = _spec(checkpoint, model)
    spec.validate()
    spec.optimize(quantization=None if quantisation == "float32" else quantisation)
    with new_folder(out) as place:
        spec.save(str(place))
        for language in model.settings.models_for:
            file = subword_model(model.task.folder, model.settings.bpe, language)
            shutil.copyfile(file, place / file.name)
    source_tag, tag = model.settings.tags
    told = f"{out}: for CTranslate2 {ctranslate2.__version__}, {quantisation}; sources: "
    told += f"{source_tag} words </s>".strip() + (
        f", lines joined by {model.settings.separator}" * bool(model.settings.separator)
    )
    return told + (f"; target_prefix: {tag}" if tag else "")


def check_reads_everything(checkpoint: Path, model: LasformerModel) -> None:
    """Refuse a model whose attention reads only some of the keys, or none."""
    if others := without_keys(model.cfg):
        raise InputError(f"{checkpoint}: {', '.join(others)} attend in a way that CTranslate2 cannot")
    selectors = [name for name, selector in model.selectors() if int(selector.kappa) == KAPPA_ONE]
    if partial := [
        n for n, pattern in model.patterns() if not isinstance(pattern, (Full, OwnLine)) and n not in selectors
    ]:
        raise InputError(
            f"{checkpoint}: {', '.join(partial)} read only some of the keys; only kappa 1 can be converted"
        )


def _spec(checkpoint: Path, hub: DocumentHubInterface) -> Any:
    """Return the model as CTranslate2 describes it."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    model, cfg = hub.models[0], hub.models[0].cfg
    check_reads_everything(checkpoint, model)
    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "swish": Activation.SWISH,
        "gelu_accurate": Activation.GELUTanh,
    }
    heads = {heads_of(cfg, module) for module in MODULES}
    for what, there in (
        ("mixtures of experts", cfg.moe_experts),
        (f"--embedding {cfg.embedding}", cfg.embedding != "lookup"),
        (f"--delight {cfg.delight}", cfg.delight != "none"),
        (f"--activation-fn {cfg.activation_fn}", cfg.activation_fn not in activations),
        ("different numbers of heads in encoder and decoder", len(heads) > 1),
        ("no positions", cfg.no_token_positional_embeddings),
        ("pre-norm on one side alone", cfg.encoder.normalize_before != cfg.decoder.normalize_before),
    ):
        if there:
            raise InputError(f"{checkpoint}: {what} cannot be converted")
    spec = TransformerSpec.from_config(
        (cfg.encoder.layers, cfg.decoder.layers),
        heads.pop(),
        pre_norm=cfg.encoder.normalize_before,
        activation=activations[cfg.activation_fn],
        layernorm_embedding=cfg.layernorm_embedding,
    )
    weights = {name: weight.detach().float().contiguous() for name, weight in model.state_dict().items()}
    for side, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        _side(part, getattr(model, side), weights, side)
    spec.decoder.start_from_zero_embedding = cfg.zero_first_embedding
    _linear(spec.decoder.projection, weights, "decoder.output_projection")
    spec.register_source_vocabulary(hub.src_dict.symbols)
    spec.register_target_vocabulary(hub.tgt_dict.symbols)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "</s>"
    return spec


def _side(spec: Any, module: Any, weights: dict[str, Any], side: str) -> None:
    """Fill in the encoder or the decoder."""
    (spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings).weight = weights[
        f"{side}.embed_tokens.weight"
    ].numpy()
    spec.scale_embeddings = float(module.embed_scale)
    positions = module.embed_positions
    table = positions.weight if isinstance(positions, torch.nn.Embedding) else positions.weights
    spec.position_encodings.encodings = table.detach().float()[positions.padding_idx + LEARNED :].contiguous().numpy()
    for name in ("layer_norm", "layernorm_embedding"):
        if f"{side}.{name}.weight" in weights:
            _norm(getattr(spec, name), weights, f"{side}.{name}")
    for i, layer in enumerate(spec.layer):
        name = f"{side}.layers.{i}"
        _attention(layer.self_attention, weights, f"{name}.self_attn", True)
        _norm(layer.self_attention.layer_norm, weights, f"{name}.self_attn_layer_norm")
        if side == "decoder":
            _attention(layer.attention, weights, f"{name}.encoder_attn", False)
            _norm(layer.attention.layer_norm, weights, f"{name}.encoder_attn_layer_norm")
        _linear(layer.ffn.linear_0, weights, f"{name}.fc1")
        _linear(layer.ffn.linear_1, weights, f"{name}.fc2")
        _norm(layer.ffn.layer_norm, weights, f"{name}.final_layer_norm")


def _attention(spec: Any, weights: dict[str, Any], name: str, of_itself: bool) -> None:
    from ctranslate2.converters.utils import fuse_linear
    from ctranslate2.specs.common_spec import LinearSpec

    parts = []
    for part in ("q_proj", "k_proj", "v_proj"):
        parts.append(LinearSpec())
        _linear(parts[-1], weights, f"{name}.{part}")
    if of_itself:
        fuse_linear(spec.linear[0], parts)
    else:
        fuse_linear(spec.linear[0], parts[:1])
        fuse_linear(spec.linear[1], parts[1:])
    _linear(spec.linear[-1], weights, f"{name}.out_proj")


def _linear(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.weight = weights[f"{name}.weight"].numpy()
    if f"{name}.bias" in weights:
        spec.bias = weights[f"{name}.bias"].numpy()


def _norm(spec: Any, weights: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"].numpy(), weights[f"{name}.bias"].numpy()
