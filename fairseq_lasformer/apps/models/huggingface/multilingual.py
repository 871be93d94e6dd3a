"""M2M-100 and NLLB: pre-norm, fairseq's order of words, a token for the language on both sides."""

import torch

from fairseq_lasformer.apps.models.huggingface.family import Imported, check_start, order, renamed, sizes
from fairseq_lasformer.apps.models.huggingface.folder import TOKENIZER_CONFIG, Folder
from fairseq_lasformer.apps.models.huggingface.languages import added_tokens, m2m_tokens, tag_of
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subwords import DataConfig, subword_model

PIECES, WORDS = "sentencepiece.bpe.model", "vocab.json"

_SIDES = r"model\.((?:encoder|decoder)\.(?:layers\..+|layer_norm\..+))"
_TABLE = (r"(?:model\.shared|model\.(?:encoder|decoder)\.embed_tokens|lm_head)\.weight", "")
_BIAS = (r"final_logits_bias", "")  # always zero
_SINUSOIDS = (r"model\.(?:encoder|decoder)\.embed_positions\.weights?", "")
_RULES = ((_SIDES, r"\1"), _TABLE, _BIAS, _SINUSOIDS)


class M2M100:
    """M2M-100, and the dense models of NLLB, which have no ``vocab.json``."""

    def convert(self, folder: Folder, languages: tuple[str, str]) -> Imported:
        """See :class:`Family`."""
        if folder.optional(TOKENIZER_CONFIG).get("legacy_behaviour"):
            raise InputError(
                f"{folder.path}: legacy_behaviour (the language after the end of sentence) cannot be imported"
            )
        n_words = folder.number("vocab_size")
        special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        check_start(folder, special["</s>"])
        if (folder.path / WORDS).is_file():
            vocabulary = folder.vocabulary(WORDS)
            added = m2m_tokens(folder, len(vocabulary)) | added_tokens(folder, len(vocabulary))
        else:  # sentencepiece has no padding, and the others in a different order
            vocabulary = special | {piece: i + 1 for i, piece in enumerate(folder.pieces(PIECES)) if i >= 3}
            added = added_tokens(folder, len(vocabulary))
        if {word: vocabulary.get(word) for word in special} != special:
            raise InputError(f"{folder.path}: its vocabulary does not begin with {', '.join(special)}")
        tags = [
            tag_of(folder, language, {t: r for t, r in added.items() if t not in special}) for language in languages
        ]
        words, rows = order(vocabulary | added, n_words, special)
        given = folder.weights()
        table = given.get("model.shared.weight", given.get("model.encoder.embed_tokens.weight"))
        if table is None or table.size(0) != n_words:
            raise InputError(f"{folder.path}: has no embedding table of {n_words} words")
        weights = renamed(given, _RULES)
        table = table[rows]
        for side in ("encoder", "decoder"):
            weights[f"{side}.embed_tokens.weight"] = table
            weights[f"{side}.version"] = torch.tensor([3.0])
        weights["decoder.output_projection.weight"] = table
        longest = folder.number("max_position_embeddings")
        options = sizes(folder)
        options |= dict.fromkeys(("share_all_embeddings", "encoder_normalize_before", "decoder_normalize_before"), True)
        options |= {"max_source_positions": longest, "max_target_positions": longest}
        data = DataConfig(
            *languages, "none", "sentencepiece", "", longest, "sentences", "", source_tag=tags[0], target_tag=tags[1]
        )
        files = {subword_model("", "sentencepiece").name: folder.file(PIECES)}
        return Imported(options, weights, (words, words), (rows, rows), special["</s>"], data, files)
