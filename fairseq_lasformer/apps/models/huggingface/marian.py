"""Marian's models, including OPUS-MT: post-norm, sentencepiece for each language, a bias on the word scores."""

import re
from collections.abc import Mapping

import torch

from fairseq_lasformer.apps.models.huggingface.family import (
    NEVER,
    Imported,
    check_start,
    order,
    renamed,
    reordered,
    sizes,
)
from fairseq_lasformer.apps.models.huggingface.folder import Folder
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subwords import DataConfig

_RULES = (
    (r"model\.(?:encoder|decoder)\.embed_positions\.weight", ""),  # sinusoids
    (r"model\.((?:encoder|decoder)\.(?:layers|embed_tokens|layernorm_embedding)\..+)", r"\1"),
    (r"(model\.shared|model\.decoder\.output_projection|lm_head)\.weight", ""),
    (r"(final_logits_bias)", r"\1"),
)


class Marian:
    """See :class:`Family`."""

    def convert(self, folder: Folder, languages: tuple[str, str]) -> Imported:
        config, n_words = folder.config, folder.number("vocab_size")
        if not config.get("share_encoder_decoder_embeddings", True):
            raise InputError(f"{folder.path}: an embedding table for each language cannot be imported")
        if config.get("normalize_before") or config.get("normalize_embedding"):
            raise InputError(f"{folder.path}: normalize_before and normalize_embedding cannot be imported")
        pad, end = folder.number("pad_token_id"), folder.number("eos_token_id")
        check_start(folder, pad)
        vocabulary = folder.vocabulary("vocab.json")
        special = {"<s>": None, "<pad>": pad, "</s>": end, "<unk>": vocabulary.get("<unk>")}
        words, rows = order(vocabulary, n_words, special)
        given = folder.weights()
        shared = given.get("model.shared.weight", given.get("model.encoder.embed_tokens.weight"))
        if shared is None or shared.size(0) != n_words:
            raise InputError(f"{folder.path}: has no embedding table of {n_words} words")
        weights = renamed(given, _RULES)
        bias = weights.pop("final_logits_bias", torch.zeros(1, n_words)).flatten()
        table = reordered(shared, rows)
        for side in ("encoder", "decoder"):
            weights[f"{side}.embed_tokens.weight"] = table
            weights[f"{side}.version"] = torch.tensor([3.0])
        weights["decoder.output_projection.weight"] = table
        weights["decoder.output_projection.bias"] = reordered(bias, rows, NEVER)
        longest = folder.number("max_position_embeddings")
        options = sizes(folder) | {
            "share_all_embeddings": True,
            "position_table": "vaswani",
            "zero_first_embedding": True,
            "output_bias": True,
            "max_source_positions": longest,
            "max_target_positions": longest,
        }
        data = DataConfig(
            *languages,
            "none",
            "sentencepiece",
            "",
            longest,
            "sentences",
            "",
            joined_dictionary=False,
            source_tag=_tag(folder, languages[1], vocabulary),
        )
        files = {
            f"sentencepiece.{language}.model": folder.file(f"{side}.spm")
            for language, side in zip(languages, ("source", "target"))
        }
        return Imported(options, weights, (words, words), (rows, rows), pad, data, files)


def _tag(folder: Folder, language: str, vocabulary: Mapping[str, int]) -> str:
    """Return the token for the target language of a model with several; empty for models with one."""
    named = [word for word in vocabulary if re.fullmatch(r">>.+<<", word)]
    tag = f">>{language}<<"
    if named and tag not in vocabulary:
        some = ", ".join(sorted(word[2:-2] for word in named)[:8])
        raise InputError(f"{folder.path}: does not write {language}; it writes {len(named)} languages: {some}, …")
    return tag if named else ""
