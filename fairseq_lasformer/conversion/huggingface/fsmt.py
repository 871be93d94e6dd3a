"""FSMT, fairseq's models of WMT 2019: post-norm, Moses and BPE, one vocabulary per language."""

from __future__ import annotations

import torch

from fairseq_lasformer.conversion.huggingface.family import Imported, check_start, order, renamed, sizes
from fairseq_lasformer.conversion.huggingface.folder import TOKENIZER_CONFIG, Folder
from fairseq_lasformer.data.subwords import DataConfig, subword_model
from fairseq_lasformer.errors import InputError

MERGES, SIDES, END = "merges.txt", ("src", "tgt"), "</w>"

_RULES = (
    (r"model\.(?:encoder|decoder)\.embed_positions\.weights?", ""),
    (r"model\.(decoder\.output_projection\.weight)", r"\1"),
    (r"model\.((?:encoder|decoder)\.(?:layers|embed_tokens)\..+)", r"\1"),
)


class Fsmt:
    """See :class:`Family`."""

    def convert(self, folder: Folder, languages: tuple[str, str]) -> Imported:
        """See :class:`Family`."""
        if folder.optional(TOKENIZER_CONFIG).get("do_lower_case"):
            raise InputError(f"{folder.path}: do_lower_case cannot be imported")
        special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        check_start(folder, special["</s>"])
        words, orders = [], []
        for side in SIDES:
            vocabulary = folder.vocabulary(f"vocab-{side}.json")
            if {word: vocabulary.get(word) for word in special} != special:
                raise InputError(f"{folder.path}: vocab-{side}.json does not begin with {', '.join(special)}")
            ours = {word if word in special else _word(word): row for word, row in vocabulary.items()}
            its, rows = order(ours, folder.number(f"{side}_vocab_size"), special)
            words.append(its)
            orders.append(rows)
        weights = renamed(folder.weights(), _RULES)
        for side, rows in zip(("encoder", "decoder"), orders):
            name = f"{side}.embed_tokens.weight"
            if name not in weights or weights[name].size(0) != len(rows):
                raise InputError(f"{folder.path}: has no embedding table of {len(rows)} words for its {side}")
            weights[name] = weights[name][rows]
            weights[f"{side}.version"] = torch.tensor([3.0])
        table = weights["decoder.embed_tokens.weight"]
        output = weights.get("decoder.output_projection.weight")
        own = None if output is None or output.size(0) != len(orders[1]) else output[orders[1]]
        shared = own is None or torch.equal(own, table)
        weights["decoder.output_projection.weight"] = table if own is None or shared else own
        longest = folder.number("max_position_embeddings")
        options = sizes(folder) | {
            "share_decoder_input_output_embed": shared,
            "max_source_positions": longest,
            "max_target_positions": longest,
        }
        data = DataConfig(
            *languages, "moses-aggressive", "subword-nmt", "", longest, "sentences", "", joined_dictionary=False
        )
        codes = "#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in _merges(folder))
        files = {subword_model("", "subword-nmt", language).name: codes.encode() for language in languages}
        return Imported(options, weights, (words[0], words[1]), (orders[0], orders[1]), special["</s>"], data, files)


def _word(piece: str) -> str:
    """Return a piece as subword-nmt writes it: FSMT marks pieces that end a word, subword-nmt those that do not."""
    return piece.removesuffix(END) if piece.endswith(END) else f"{piece}@@"


def _merges(folder: Folder) -> list[list[str]]:
    """Return the pairs that BPE merges, in order."""
    try:
        lines = folder.file(MERGES).read_text(encoding="utf-8").split("\n")
    except ValueError as e:
        raise InputError(f"{folder.path / MERGES}: not text") from e
    found = [line.split()[:2] for line in lines if line and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in found):
        raise InputError(f"{folder.path / MERGES}: expected two symbols per line")
    return found
