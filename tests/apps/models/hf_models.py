"""Small random models of every family that is imported, written by Hugging Face's library."""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]
SIZES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 128,
    "init_std": 0.3,
    "scale_embedding": True,
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


class Original(NamedTuple):
    """A model as its own library runs it.

    Attributes:
        folder: its folder.
        model: the model, in evaluation mode.
        encode: returns the rows of a source text, with everything that the model reads.
        vocabulary: row of each word, of source and target.
        start: word that its decoder begins with.
        forced: the first word that it must write; None for any.
        languages: languages of the import.
    """

    folder: Path
    model: Any
    encode: Callable[[str], list[int]]
    vocabulary: tuple[dict[str, int], dict[str, int]]
    start: int
    forced: int | None
    languages: tuple[str, str]


def documentation() -> list[str]:
    """Return a thousand lines of real text: this repository's documentation.

    Words that the original takes for its own symbols are left out; in our models, they are text.
    """
    text = [
        " ".join(line.split())
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for line in path.read_text().splitlines()
    ]
    return [line for line in text if line and not any(word in line for word in SPECIAL)][:1000]


@functools.cache
def lines() -> list[str]:
    """Return a thousand lines of random words, a few frequent and most rare, independent of the documentation."""
    draw = random.Random(5)
    onsets, vowels, codas = (
        ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "st", "tr", "sch"],
        ["a", "e", "i", "o", "u", "ä", "ie", "ei"],
        ["", *"nrslt"],
    )
    words = [
        "".join(draw.choice(part) for _ in range(draw.randint(1, 3)) for part in (onsets, vowels, codas))
        for _ in range(900)
    ]
    odds = [1 / rank for rank in range(2, len(words) + 2)]
    made = [
        "你好，世界！这是一个测试。",
        "Съешь ещё этих мягких французских булок?",
        "¿Qué? «Señor…» — 50 % ﬁnal",
        "ｆｕｌｌ　ｗｉｄｔｈ",
    ]
    while len(made) < 1000:
        chosen = draw.choices(words, odds, k=draw.randint(2, 14))
        chosen = [word.capitalize() if draw.random() < 0.2 else word for word in chosen]
        if draw.random() < 0.3:
            number = draw.choice((str(draw.randrange(3000)), f"{draw.random():.2f}", "`--beam 5`", "(e.g. x_1)", "a-b"))
            chosen.insert(draw.randrange(len(chosen)), number)
        made.append(" ".join(chosen) + draw.choice((".", ".", "?", "!", ":", "")))
    return made


def pieces(path: Path, size: int, kind: str = "unigram", text: Sequence[str] = (), **options: str) -> list[str]:
    """Learn a sentencepiece model; return its pieces, without the special ones."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(text or lines()),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    path.write_bytes(model.getvalue())
    made = SentencePieceProcessor(model_proto=model.getvalue())
    return [made.id_to_piece(i) for i in range(3, len(made))]


@torch.no_grad()
def written(model: Any, folder: Path) -> None:
    """Write a model whose small embedding weights keep it from repeating what it reads."""
    for name, weight in model.named_parameters():
        if "shared" in name or "embed_tokens" in name:
            weight *= 0.4
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)


def marian(folder: Path) -> Original:
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    both = [*pieces(folder / "source.spm", 400), *pieces(folder / "target.spm", 300, text=lines()[::2])]
    both = list(dict.fromkeys(both))
    random.Random(1).shuffle(both)
    words = {word: row for row, word in enumerate(["</s>", "<unk>", *both, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(words))
    pad = len(words) - 1
    special = {"pad_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": pad}
    model = MarianMTModel(MarianConfig(vocab_size=len(words), activation_function="swish", **special, **SIZES))
    torch.nn.init.normal_(model.final_logits_bias, std=0.3)
    model.generation_config.bad_words_ids = [[pad]]
    written(model, folder)
    tokenizer = MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")))
    return Original(
        folder, model.eval(), lambda s: tokenizer([s])["input_ids"][0], (words, words), pad, None, ("xx", "yy")
    )


def m2m(folder: Path) -> Original:
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    learned = pieces(folder / "sentencepiece.bpe.model", 400)
    random.Random(1).shuffle(learned)
    words = {word: row for row, word in enumerate([*SPECIAL, *learned[5:]])}  # some pieces are unknown
    (folder / "vocab.json").write_text(json.dumps(words))
    paths = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    tokenizer = M2M100Tokenizer(*paths, src_lang="de", tgt_lang="fr")
    tokenizer.save_pretrained(folder)
    size = len(words) + len(tokenizer.lang_token_to_id) + 8
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, activation_function="relu", **SIZES))
    words |= tokenizer.lang_token_to_id
    written(model, folder)
    return Original(
        folder, model.eval(), lambda s: tokenizer([s])["input_ids"][0], (words, words), 2, words["__fr__"], ("de", "fr")
    )


def nllb(folder: Path) -> Original:
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    learned = pieces(folder / "sentencepiece.bpe.model", 400, "bpe", normalization_rule_name="identity")
    rank = {piece: i for i, piece in enumerate(learned)}
    merges = []
    for piece in learned:
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += sorted(
            (pair for pair in halves if set(pair) <= rank.keys()), key=lambda pair: tuple(map(rank.get, pair))
        )
    words = {word: row for row, word in enumerate([*SPECIAL, *learned])}
    tokenizer = NllbTokenizer(vocab=words, merges=merges, src_lang="deu_Latn")
    tokenizer.save_pretrained(folder)  # tokenizer.json contains the language words
    words = tokenizer.get_vocab()
    config = M2M100Config(vocab_size=len(words) + 2, activation_function="relu", **SIZES)
    model = M2M100ForConditionalGeneration(config)
    forced = words["fra_Latn"]
    written(model, folder)
    return Original(
        folder, model.eval(), lambda s: tokenizer([s])["input_ids"][0], (words, words), 2, forced, ("deu", "fra_Latn")
    )


FAMILIES = {"m2m": m2m, "marian": marian, "nllb": nllb}
