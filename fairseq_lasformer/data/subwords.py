"""Between text and subword tokens: Moses normalisation and tokenisation, BPE or sentencepiece, and back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.executors import Executor, InProcess, Processes, Report, Resources, Worker
from fairseq_lasformer.files import atomic_write, replacing

SETTINGS = "settings.json"
SUBWORDS = {"subword-nmt": "bpe.codes", "sentencepiece": "sentencepiece.model"}
TOKENIZERS = ("moses", "none")
# Special symbols of fairseq's dictionaries: no text may be encoded as one of them.
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")


def check_separator(separator: str) -> None:
    """Rejects a separator that could be part of a text, or that a dictionary cannot store as one symbol.

    Raises:
        InputError: it is shorter than two characters, contains whitespace, is one of fairseq's special symbols, or
            looks like a subword.
    """
    if not separator:
        return
    if len(separator) < 2 or separator in SYMBOLS or any(c.isspace() or not c.isprintable() for c in separator):
        raise InputError(f"--separator {separator!r}: expected a word of two or more characters, such as <sep>")
    if separator.endswith("@@") or "\u2581" in separator:
        raise InputError(f"--separator {separator!r}: looks like a subword; choose another, such as <sep>")


@dataclass(frozen=True)
class DataConfig:
    """How the data in a folder was prepared; stored there as ``settings.json``.

    Attributes:
        tokenizer: ``moses`` or ``none``.
        bpe: ``subword-nmt`` or ``sentencepiece``.
        separator: token between sentences; empty for none.
        limit: maximum number of tokens per example, end of sentence included.
        resolutions: resolutions of the training examples: ``mixture``, ``documents`` or ``sentences``.
        fingerprint: hash of the inputs and all options, used to recognise an unchanged rerun.
    """

    source_lang: str
    target_lang: str
    tokenizer: str
    bpe: str
    separator: str
    limit: int
    resolutions: str
    fingerprint: str

    def save(self, folder: Path) -> None:
        atomic_write(folder / SETTINGS, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> DataConfig:
        path = Path(folder) / SETTINGS
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except OSError as e:
            raise InputError(f"{path}: not found; {folder} was not prepared by lasformer prepare") from e
        except (ValueError, TypeError, OverflowError, RecursionError) as e:
            raise InputError(f"{path}: damaged ({e}); prepare the data again") from e


@cache
def _moses(language: str) -> tuple[Any, Any, Any]:
    from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language), MosesDetokenizer(lang=language)


def tokenize(sentence: str, language: str, tokenizer: str) -> str:
    """The words of a sentence, separated by spaces."""
    if tokenizer == "none":
        return sentence
    normalizer, words, _ = _moses(language)
    return words.tokenize(normalizer.normalize(sentence), escape=False, return_str=True)


BATCH = 2000
"""Sentences that a worker takes at a time."""


class SubwordCodec:
    """Encodes sentences as subword tokens, and decodes model output to text.

    A word of the text that equals one of fairseq's special symbols (``</s>``) or the separator is encoded as single
    characters, so that it survives as text.

    Args:
        folder: folder that contains ``bpe.codes`` or ``sentencepiece.model``.
        tokenizer: see :class:`DataConfig`.
        bpe: see :class:`DataConfig`.
        separator: the data's separator; empty for none.

    Raises:
        InputError: the subword model is missing or damaged.
    """

    def __init__(self, folder: str | Path, tokenizer: str, bpe: str, separator: str = "") -> None:
        if bpe not in SUBWORDS or tokenizer not in TOKENIZERS:
            raise InputError(f"{Path(folder) / SETTINGS}: unknown subwords or tokenizer ({bpe}, {tokenizer})")
        self.tokenizer, self.bpe, self.separator = tokenizer, bpe, separator
        self._reserved = frozenset((*SYMBOLS, separator) if separator else SYMBOLS)
        path = Path(folder) / SUBWORDS[bpe]
        if not path.exists():
            raise InputError(f"{path}: not found; prepare the data again")
        self._subwords: Callable[[str], str]
        try:
            if bpe == "subword-nmt":
                from subword_nmt.apply_bpe import BPE

                with open(path, encoding="utf-8") as codes:
                    self._subwords = BPE(codes).process_line
            else:
                from sentencepiece import SentencePieceProcessor

                pieces = SentencePieceProcessor(model_file=str(path))
                self._subwords = lambda text: " ".join(pieces.encode(text, out_type=str))
        except (Exception, SystemExit) as e:  # subword-nmt exits the process, sentencepiece raises its C++ errors
            raise InputError(f"{path}: damaged; prepare the data again") from e

    @classmethod
    def of(cls, folder: str | Path, settings: DataConfig) -> SubwordCodec:
        """The codec of a prepared folder."""
        return cls(folder, settings.tokenizer, settings.bpe, settings.separator)

    def encode(self, sentence: str, language: str) -> str:
        """Subword tokens of a raw sentence, separated by spaces."""
        return self.encode_words(tokenize(sentence, language, self.tokenizer))

    def encode_words(self, words: str) -> str:
        """Subword tokens of a tokenised sentence, separated by spaces."""
        tokens = self._subwords(words)
        if any(symbol in tokens for symbol in self._reserved):
            between = "@@ " if self.bpe == "subword-nmt" else " "
            tokens = " ".join(between.join(t) if t in self._reserved else t for t in tokens.split())
        return tokens

    def decode(self, tokens: str, language: str) -> str:
        """The text of subword tokens."""
        if self.bpe == "sentencepiece":
            text = tokens.replace(" ", "").replace("\u2581", " ").strip()
        else:
            text = (tokens + " ").replace("@@ ", "").strip()
        if self.tokenizer == "none":
            return text
        return _moses(language)[2].detokenize(text.split(), return_str=True)


def learn_subwords(folder: Path, sentences: Sequence[str], bpe: str, size: int) -> None:
    """Learns joint subwords from tokenised sentences of both sides.

    Args:
        folder: folder to write the subword model to.
        bpe: see :class:`DataConfig`.
        size: number of merges for subword-nmt, vocabulary size for sentencepiece (reduced if the text is too small).
    """
    path = folder / SUBWORDS[bpe]
    if bpe == "subword-nmt":
        from subword_nmt.learn_bpe import learn_bpe

        codes = io.StringIO()
        if size < 1:
            raise InputError(f"--size {size}: at least one merge is needed")
        if all(len(word) == 1 for sentence in sentences for word in sentence.split()):
            raise InputError("no subwords can be learned: every word of the training text is a single character")
        learn_bpe(io.StringIO("\n".join(sentences) + "\n"), codes, size)
        atomic_write(path, codes.getvalue())
        return
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=size,
            character_coverage=0.9995,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            input_sentence_size=5_000_000,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except (RuntimeError, OSError, ValueError) as e:
        raise InputError(f"--size {size}: sentencepiece cannot learn it ({str(e).splitlines()[0]})") from e
    with replacing(path, "wb") as f:
        f.write(model.getvalue())


class Tokenisation(Worker[list[str], list[str]]):
    """Tokenises sentences; the arguments are those of :func:`tokenize`."""

    kind = "tokenize"

    def __init__(self, language: str, tokenizer: str) -> None:
        self.options = language, tokenizer

    def __call__(self, item: list[str], report: Report) -> list[str]:
        words = [tokenize(sentence, *self.options) for sentence in item]
        report(len(item))
        return words


class Encoding(Worker[list[str], list[str]]):
    """Cuts tokenised sentences into subwords; the arguments are those of :class:`SubwordCodec`."""

    kind = "encode"

    def __init__(self, folder: str, tokenizer: str, bpe: str, separator: str) -> None:
        self.folder, self.options = folder, (tokenizer, bpe, separator)
        self.codec: SubwordCodec | None = None

    def begin(self) -> None:
        self.codec = SubwordCodec(self.folder, *self.options)

    def __call__(self, item: list[str], report: Report) -> list[str]:
        assert self.codec is not None
        tokens = [self.codec.encode_words(words) for words in item]
        report(len(item))
        return tokens


def transform(sentences: list[str], worker: Worker[list[str], list[str]], workers: int, what: str) -> list[str]:
    """Tokenise or encode all sentences, in order, with a progress bar.

    Args:
        worker: what is done to them.
        workers: number of processes.
        what: description for the progress bar.
    """
    batches = [sentences[i : i + BATCH] for i in range(0, len(sentences), BATCH)]
    executor: Executor = Processes(what) if workers > 1 and len(batches) > 1 else InProcess()
    with tqdm(total=len(sentences), desc=what, unit=" sentences", unit_scale=True) as bar:
        results = executor.map(worker, batches, Resources(workers, threads=1), report=bar.update)
        return [tokens for batch in results for tokens in batch]
