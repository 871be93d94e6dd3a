"""Conversion between text and subword tokens: Moses normalisation and tokenisation, BPE or sentencepiece."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, check_regular, replacing
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.executors import InProcess, Report, Resources, Worker, executor
from fairseq_lasformer.text.lines import clean_line

if TYPE_CHECKING:
    from subword_nmt.apply_bpe import BPE

SETTINGS = "settings.json"
SUBWORDS = {"subword-nmt": "bpe{}.codes", "sentencepiece": "sentencepiece{}.model"}
TOKENIZERS = ("moses", "moses-aggressive", "none")
# Special symbols of fairseq's dictionaries: no text may be encoded as one of them.
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")


def subword_model(folder: str | Path, bpe: str, language: str = "") -> Path:
    """Return the file of a subword model.

    Args:
        language: the model's language; empty for a joint one.
    """
    return Path(folder) / SUBWORDS[bpe].format(f".{language}" if language else "")


def check_separator(separator: str) -> None:
    """Reject a separator that could be part of a text, or that a dictionary cannot store as one symbol."""
    if not separator:
        return
    if len(separator) < 2 or separator in SYMBOLS or any(c.isspace() or not c.isprintable() for c in separator):
        raise InputError(f"--separator {separator!r}: expected a word of two or more characters, such as <sep>")
    if separator.endswith("@@") or "\u2581" in separator:
        raise InputError(f"--separator {separator!r}: looks like a subword; choose another, such as <sep>")


@dataclass(frozen=True)
class DataConfig:
    """Settings with which the data in a folder was prepared; stored there as ``settings.json``."""

    source_lang: str
    target_lang: str
    # `moses`, `none`, or `moses-aggressive`, which splits at hyphens and escapes characters of XML, as for fairseq's
    # models of WMT 2019
    tokenizer: str
    bpe: str  # `subword-nmt` or `sentencepiece`
    separator: str  # token between sentences; empty for none
    limit: int  # maximum number of tokens per example, end of sentence included
    resolutions: str  # resolutions of the training examples: `mixture`, `documents` or `sentences`
    fingerprint: str  # hash of the inputs and all options, used to recognise an unchanged rerun
    joined_dictionary: bool = True  # whether both languages share one subword model and one dictionary
    max_lines: int = 0  # maximum number of sentences per example; 0 for no limit
    # source_tag, target_tag: token that every example begins with, on each side; empty for none. It tells models of
    # several languages which language to read and write.
    source_tag: str = ""
    target_tag: str = ""

    @property
    def tags(self) -> tuple[str, str]:
        """The tags of source and target."""
        return self.source_tag, self.target_tag

    @property
    def room(self) -> int:
        """Number of sentence tokens that fit into an example: the limit without end of sentence and tag."""
        return self.limit - 1 - any(self.tags)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Tokens that no text is encoded as, besides fairseq's."""
        return tuple(symbol for symbol in (self.separator, self.source_tag, self.target_tag) if symbol)

    @property
    def models_for(self) -> tuple[str, ...]:
        """Languages that have a subword model each; a single empty name if they share one."""
        return ("",) if self.joined_dictionary else (self.source_lang, self.target_lang)

    def save(self, folder: Path) -> None:
        atomic_write(folder / SETTINGS, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> DataConfig:
        path = Path(folder) / SETTINGS
        for file in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if not (file.is_dir() or file.name.startswith(".")):  # a stranger's link may lead to what never ends
                check_regular(file, "; prepared data has no links to devices or pipes")
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            if said.pop("memory_tokens", 0):
                raise InputError("memory_tokens is of versions up to commit 9c0b552")
            codec = cls(**said)
            for field in fields(cls):
                if type(getattr(codec, field.name)).__name__ != field.type:
                    raise TypeError(f"{field.name}: expected {field.type}")
            check_separator(codec.separator)
            return codec
        except InputError as e:
            raise InputError(f"{path}: damaged ({e}); prepare the data again") from e
        except OSError as e:
            raise InputError(f"{path}: not found; {folder} was not prepared by lasformer prepare") from e
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise InputError(f"{path}: damaged ({e}); prepare the data again") from e


def data_identity(folder: Path) -> str:
    """Return a hash of what prepared data was made from; of files that fairseq alone binarised, of themselves."""
    if (folder / SETTINGS).exists():
        return DataConfig.load(folder).fingerprint
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("dict.*.txt"), *folder.glob("*.idx")]):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@cache
def _moses(language: str, tokenizer: str) -> tuple[Any, Any, Any]:
    from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

    aggressive = {"pre_replace_unicode_punct": True, "post_remove_control_chars": True}
    normalizer = MosesPunctNormalizer(lang=language, **(aggressive if tokenizer == "moses-aggressive" else {}))
    return normalizer, MosesTokenizer(lang=language), MosesDetokenizer(lang=language)


# Moses takes joiners within words (of Persian, Hindi, Sinhala) for words of their own: it sees letters that nobody uses
_JOINERS = "\u200c\u200d"
_AS_LETTERS = str.maketrans(_JOINERS, "\u16ea\u16e3")
_AS_JOINERS = str.maketrans("\u16ea\u16e3", _JOINERS)


def tokenize(sentence: str, language: str, tokenizer: str) -> str:
    """Split a sentence into words, separated by spaces; what a space is, :func:`clean_line` says."""
    sentence = clean_line(sentence)
    if tokenizer == "none":
        return sentence
    normalizer, words, _ = _moses(language, tokenizer)
    aggressive = tokenizer == "moses-aggressive"
    joined = any(c in sentence for c in _JOINERS)
    normalized = normalizer.normalize(sentence.translate(_AS_LETTERS) if joined else sentence)
    tokens: str = words.tokenize(normalized, aggressive_dash_splits=aggressive, escape=aggressive, return_str=True)
    return tokens.translate(_AS_JOINERS) if joined else tokens


BATCH = 2000
"""Number of sentences that a worker takes at a time."""


class SubwordCodec:
    """Codec from sentences to subword tokens, and from model output to text.

    A word of the text that equals one of fairseq's special symbols (``</s>``), the separator or a tag is encoded as
    single characters, so it survives as text.

    Args:
        folder: folder that contains the subword models; see :func:`subword_model`.
        tokenizer: see :class:`DataConfig`.
        bpe: see :class:`DataConfig`.
        symbols: see :class:`DataConfig`.
        models_for: see :class:`DataConfig`.
    """

    def __init__(
        self,
        folder: str | Path,
        tokenizer: str,
        bpe: str,
        symbols: Sequence[str] = (),
        models_for: Sequence[str] = ("",),
    ) -> None:
        if bpe not in SUBWORDS or tokenizer not in TOKENIZERS:
            raise InputError(f"{Path(folder) / SETTINGS}: unknown subwords or tokenizer ({bpe}, {tokenizer})")
        self.tokenizer, self.bpe = tokenizer, bpe
        self._reserved = frozenset((*SYMBOLS, *symbols))
        self._models = {language: _load(subword_model(folder, bpe, language), bpe) for language in models_for}

    @classmethod
    def of(cls, folder: str | Path, settings: DataConfig) -> SubwordCodec:
        """Load the codec of a prepared folder."""
        return cls(folder, settings.tokenizer, settings.bpe, settings.symbols, settings.models_for)

    def encode(self, sentence: str, language: str) -> str:
        """Encode a raw sentence as subword tokens, separated by spaces."""
        return self.encode_words(tokenize(sentence, language, self.tokenizer), language)

    def encode_words(self, words: str, language: str) -> str:
        """Encode a tokenised sentence as subword tokens, separated by spaces."""
        model = self._models.get("") or self._models[language]
        tokens = model(words)
        if any(symbol in tokens for symbol in self._reserved):
            between = "@@ " if self.bpe == "subword-nmt" else " "
            tokens = " ".join(between.join(t) if t in self._reserved else t for t in tokens.split())
        return tokens

    def words(self, tokens: str) -> str:
        """Join subword tokens to words, separated by spaces."""
        if self.bpe == "sentencepiece":
            return tokens.replace(" ", "").replace("\u2581", " ").strip()
        return (tokens + " ").replace("@@ ", "").strip()

    def decode(self, tokens: str, language: str) -> str:
        """Decode subword tokens to text."""
        text = self.words(tokens)
        if self.tokenizer == "none":
            return text
        return _moses(language, self.tokenizer)[2].detokenize(text.split(), return_str=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report a subword model that cannot be read: which file, and what to do."""
    if not path.exists():
        raise InputError(f"{path}: not found; prepare the data again")
    try:
        yield
    except (Exception, SystemExit) as e:  # subword-nmt exits the process, sentencepiece raises its C++ errors
        raise InputError(f"{path}: damaged; prepare the data again") from e


def merges(path: Path) -> BPE:
    """Read the merges in a file of byte pair encoding."""
    from subword_nmt.apply_bpe import BPE

    with _reading(path), open(path, encoding="utf-8") as codes:
        read = BPE(codes)
        read.segment("ab")  # subword-nmt refuses a version that it does not know only at the first word
    return read


def _load(path: Path, bpe: str) -> Callable[[str], str]:
    """Load the function of a subword model, from words to subwords."""
    if bpe == "subword-nmt":
        return merges(path).process_line
    from sentencepiece import SentencePieceProcessor

    with _reading(path):
        pieces = SentencePieceProcessor(model_file=str(path))
    return lambda text: " ".join(pieces.encode(text, out_type=str))


def vocabulary(path: Path) -> dict[str, float]:
    """Return the pieces of a sentencepiece model that a text may be cut into, and their log probabilities."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    numbers = [i for i in range(len(model)) if not (model.is_control(i) or model.is_unknown(i))]
    return {model.id_to_piece(i): model.get_score(i) for i in numbers}


def learn_subwords(path: Path, sentences: Sequence[str], bpe: str, size: int) -> None:
    """Learn subwords from tokenised sentences, of both sides for joint ones.

    Args:
        path: file of the subword model; see :func:`subword_model`.
        bpe: see :class:`DataConfig`.
        size: number of merges for subword-nmt, vocabulary size for sentencepiece (reduced if the text is too small).
    """
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
    """Worker that tokenises sentences; the arguments are those of :func:`tokenize`."""

    kind = "tokenize"

    def __init__(self, language: str, tokenizer: str) -> None:
        self.options = language, tokenizer

    def __call__(self, item: list[str], report: Report) -> list[str]:
        words = [tokenize(sentence, *self.options) for sentence in item]
        report(len(item))
        return words


class Encoding(Worker[list[str], list[str]]):
    """Worker that cuts tokenised sentences into subwords.

    Args:
        folder: folder of the subword models.
        settings: settings of the data preparation.
        language: language of the sentences.
    """

    kind = "encode"

    def __init__(self, folder: str, settings: DataConfig, language: str) -> None:
        self.folder, self.settings, self.language = folder, settings, language
        self.codec: SubwordCodec | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Settings that the subwords depend on, besides the models."""
        return self.settings.bpe, *self.settings.symbols

    def begin(self) -> None:
        self.codec = SubwordCodec.of(self.folder, self.settings)

    def __call__(self, item: list[str], report: Report) -> list[str]:
        assert self.codec is not None
        tokens = [self.codec.encode_words(words, self.language) for words in item]
        report(len(item))
        return tokens


def transform(
    sentences: list[str], worker: Worker[list[str], list[str]], workers: int, what: str, engine: str = "processes"
) -> list[str]:
    """Tokenise or encode all sentences, in order, with a progress bar.

    Args:
        worker: worker that processes them.
        workers: number of processes.
        what: description for the progress bar.
        engine: where the work runs, see :func:`executors.executor`.
    """
    batches = [sentences[i : i + BATCH] for i in range(0, len(sentences), BATCH)]
    alone = len(batches) < 2 or (workers < 2 and engine == "processes")
    work = InProcess() if alone else executor(engine, what)
    with progress_bar(total=len(sentences), desc=what, unit=" sentences", unit_scale=True) as bar:
        results = work.map(worker, batches, Resources(workers, threads=1), report=bar.update)
        return [tokens for batch in results for tokens in batch]
