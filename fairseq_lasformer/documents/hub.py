"""Python interface: a trained model that translates documents given as text."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import hub_utils, utils
from omegaconf import open_dict
from torch import Tensor
from tqdm.auto import tqdm

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.published import model_path
from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.subwords import SETTINGS, DataConfig
from fairseq_lasformer.documents.because import explain
from fairseq_lasformer.documents.encoding import source_of
from fairseq_lasformer.documents.explanation import Explanation
from fairseq_lasformer.documents.given_lines import Given, with_given
from fairseq_lasformer.documents.requests import (
    Request,
    check_device,
    check_documents,
    check_number,
    check_options,
    numbered_sentences,
)
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.streaming import stream
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.plugin import register
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.text.lines import split_lines
from fairseq_lasformer.translation_memory.remembering import Memory

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask
    from omegaconf import DictConfig


class TranslatedLine(NamedTuple):
    """A line of a translated document.

    Attributes:
        number: number of the line in the document, from 1.
        source: the line; empty if lines are not aligned.
        score: mean log probability of its tokens.
        repaired: whether it went wrong at first (reached its limit, or repeated itself) and was translated again.
        flawed: whether it went wrong and could not be repaired.
    """

    number: int
    source: str
    translation: str
    score: float
    repaired: bool
    flawed: bool


class DocumentHubInterface(hub_utils.GeneratorHubInterface):
    """fairseq's hub interface, with :meth:`translate_documents`.

    Text is encoded and decoded in the same way as the training data, with the files in the prepared folder.
    """

    def __init__(self, cfg: DictConfig, task: FairseqTask, models: Sequence[Any]) -> None:
        super().__init__(cfg, task, models)
        self.codec = ExampleCodec.load(utils.split_paths(task.cfg.data)[0])
        self.settings = self.codec.settings

    def encode(self, sentence: str) -> Tensor:
        """Convert a raw source sentence to token indices, including end of sentence."""
        return self.binarize(self.codec.encode_source(sentence))

    def decode(self, tokens: Tensor) -> str:
        """Convert the token indices of a target sentence to text."""
        return self.codec.subwords.decode(self.string(tokens), self.settings.target_lang)

    def translate_documents(
        self,
        documents: Sequence[str],
        beam: int = 5,
        max_tokens: int = 8192,
        progress: bool = True,
        *,
        lines: bool = False,
        overlap: int | None = None,
        glossary: Glossary | str | Path | None = None,
        given: Sequence[Given | None] | None = None,
        memory: Memory | str | Path | None = None,
        **options: Any,
    ) -> list[Any]:
        """Translate whole documents; the order is preserved.

        Args:
            documents: raw text, one sentence per line (see :mod:`text.lines`); blank lines separate paragraphs.
            max_tokens: maximum tokens per batch; a longer part forms its own batch.
            progress: whether to show a progress bar, for more than one document.
            lines: return :class:`TranslatedLine` objects instead of text.
            overlap: sentences before each part of a document beyond the limit, and after it, that are read with it;
                default: the task's (``--overlap``).
            glossary: required translations, or a file of them; see :class:`Glossary`.
            given: for each document, translations of some of its lines, by line number, from 1 (``[{3: "Ja."}]``), or
                None. They appear in the output unchanged, and later lines are translated after them. Earlier lines are
                also chosen by how likely they make the given ones.
            memory: a translation memory, or its file: sentences found verbatim and terms get its translations; see
                :class:`Memory`. Models trained with memories also read similar pairs before a text.
            options: options of fairseq's generation (``lenpen=1.0``, ``max_len_a=1.5``, …), and
                ``align_sentences="no"``.

        Returns:
            one translation per document. If the training data had separators, line i of a translation is that of line i
            of the document, and blank lines are kept (a document of nothing else has an empty translation); with
            ``align_sentences="no"``, only if there happen to be as many sentences. Without separators, a translation is
            a single line. With ``lines``, a list of the nonblank lines of each document.

        Raises:
            InputError: ``documents`` is not a list of texts, fairseq does not have an option, a sentence is too long,
                a glossary or memory cannot be used, or a given line does not belong to the document.
        """
        check_documents(documents)
        check_number("max_tokens", max_tokens)
        translator = self.translator(beam, **options)
        opened = self.memory(memory)
        required = translator.required_terms(glossary, opened, self.codec)
        if given is not None and len(given) != len(documents):
            raise InputError(f"given: for {len(given)} documents instead of {len(documents)}")
        asked: dict[str, Any] = {"required": required, "memory": opened, "overlap": overlap}
        requests = [
            Request.of(document, name=f"document {i}", given=its, **asked).with_exact()
            for i, (document, its) in enumerate(zip(documents, given or [None] * len(documents)), 1)
        ]
        sources = [self.source(request, translator) for request in requests]
        translations: dict[int, list[TranslatedLine]] = {}
        total = sum(bool(source.sentences) for source in sources)
        with tqdm(total=total, desc="translating", unit=" documents", disable=not progress or total < 2) as bar:
            for i, translated in translator.translate_all(sources, max_tokens, self.device):
                translations[i] = with_given(self._lines(requests[i], translated), requests[i].given)
                bar.update()
        if lines:
            return [translations.get(i, []) for i in range(len(documents))]
        return [self._text(documents[i], request, translations.get(i, [])) for i, request in enumerate(requests)]

    def translate_lines(
        self,
        document: str,
        beam: int = 5,
        *,
        overlap: int | None = None,
        glossary: Glossary | str | Path | None = None,
        given: Given | None = None,
        memory: Memory | str | Path | None = None,
        **options: Any,
    ) -> Iterator[TranslatedLine]:
        """Translate one document, yielding each line as soon as it is settled.

        Lines that are searched side by side are settled sixteen at a time, others at the end of their part. Closing the
        generator stops the search.

        Args:
            document: raw text, one sentence per line.
            beam, overlap, glossary, memory, options: see :meth:`translate_documents`.
            given: translations of some lines, by line number, from 1.

        Raises:
            InputError: as :meth:`translate_documents`; or lines are not aligned, for lack of a separator or by request.
        """
        if not isinstance(document, str):
            raise InputError("translate_lines takes one document, a string")
        translator = self.translator(beam, **options)
        if not translator.aligned:
            raise InputError("translate_lines: only aligned lines are settled one by one; use translate_documents")
        opened = self.memory(memory)
        required = translator.required_terms(glossary, opened, self.codec)
        asked: dict[str, Any] = {"required": required, "memory": opened, "overlap": overlap}
        request = Request.of(document, given=given, **asked).with_exact()
        source = self.source(request, translator)
        for (number, original), line in zip(request.numbered, stream(translator, source, self.device)):
            yield from with_given([self.line(number, original, line)], request.given)

    def explain(
        self,
        document: str,
        translation: str | None = None,
        lines: Collection[int] | None = None,
        beam: int = 5,
        *,
        thorough: bool | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain a translation: which earlier line decided each word, and what the word would be without it.

        Args:
            document: raw text, one sentence per line.
            translation: its translation, as many lines; default: the model's own.
            lines: numbers of the lines to explain, from 1; default: all.
            thorough: also name the word in the deciding line, all other lines that give as much, and what the document
                loses without them; default: if only some lines are asked for.
            beam, options: for the model's translation, see :meth:`translate_documents`.

        Raises:
            InputError: the model reads single sentences, the translation has other lines, or as
                :meth:`translate_documents`.
        """
        check_documents([document])
        sentences = numbered_sentences(document)
        if translation is None:
            (lines_of,) = self.translate_documents([document], beam, progress=False, lines=True, **options)
            texts = [line.translation for line in lines_of]
        else:
            check_documents([translation])
            texts = [text for _, text in numbered_sentences(translation)]
        if len(texts) != len(sentences):
            raise InputError(f"translation: {len(texts)} lines, but the document has {len(sentences)}")
        known = [number for number, _ in sentences]
        if missing := sorted(set(lines or ()) - set(known)):
            raise InputError(f"lines: there is no line {missing[0]} with text")
        return explain(self, [(*line, text) for line, text in zip(sentences, texts)], lines, thorough)

    def memory(self, memory: Memory | str | Path | None) -> Memory | None:
        """Open a memory, unless ``memory`` is an open one already."""
        if memory is None or isinstance(memory, Memory):
            return memory
        return Memory(memory, (self.settings.source_lang, self.settings.target_lang))

    def translator(self, beam: int = 5, **options: Any) -> Translator:
        """Return the translator of these models; for ``options``, see :meth:`translate_documents`."""
        check_number("beam", beam)
        generation = copy.deepcopy(self.cfg.generation)
        check_options(generation, options)
        with open_dict(generation):
            generation.beam = beam
            generation.constraints = None  # for fairseq-interactive, whose input names them
            generation.update(options)
        try:
            return Translator(self.task, self.models, generation)
        except InputError:
            raise
        except (AssertionError, TypeError, ValueError, OverflowError) as e:  # options that the checkpoint holds
            reason = " ".join(f"{type(e).__name__} {e}".split())[:200]
            raise InputError(f"the model's options of generation cannot be used ({reason})") from e

    def source(self, request: Request, translator: Translator) -> Source:
        """Encode a document, and cut it as the data preparation does; see :func:`encoding.source_of`."""
        return source_of(self, request, translator)

    def line(self, number: int, source: str, line: Line) -> TranslatedLine:
        """Return a translated line as text, with its source."""
        text = self.codec.decode_line(self.tgt_dict.string(line.tokens))
        return TranslatedLine(number, source, text, line.score, line.repaired, line.flawed)

    def _lines(self, request: Request, translated: Sequence[Line]) -> list[TranslatedLine]:
        """Return the lines of a translation, with their sources if there are as many."""
        sources = request.numbered
        if len(sources) != len(translated):
            sources = [(i + 1, "") for i in range(len(translated))]
        return [self.line(*source, line) for source, line in zip(sources, translated)]

    def _text(self, document: str, request: Request, lines: Sequence[TranslatedLine]) -> str:
        """Format a translated document like its source."""
        if not self.codec.keeps_boundaries:
            return " ".join(line.translation for line in lines if line.translation)
        if not lines:
            return ""
        if len(request.sentences) != len(lines):
            return "\n".join(line.translation for line in lines)
        translated = {line.number: line.translation for line in lines}
        return "\n".join(translated.get(number, "") for number in range(1, len(split_lines(document)) + 1))


def data_of(checkpoint: Path, folder: Path | None = None) -> Path:
    """Return the prepared folder of a model: the one that it is in, or that it was trained on.

    Args:
        folder: the model's folder; default: that of the checkpoint.

    Raises:
        InputError: the checkpoint does not name its prepared folder.
    """
    folder = checkpoint.parent if folder is None else folder
    if (folder / SETTINGS).is_file():
        return folder
    task = (load(checkpoint).get("cfg") or {}).get("task") or {}
    named = str(task.get("data", "") if isinstance(task, dict) else getattr(task, "data", "")).split(":")[0]
    if not named:
        raise InputError(f"{checkpoint}: does not say what it was trained on; name the prepared folder")
    return Path(named)


def from_pretrained(
    folder: str | Path,
    checkpoint_file: str | None = None,
    data: str | Path | None = None,
    device: torch.device | str = "cpu",
    **overrides: Any,
) -> DocumentHubInterface:
    """Load a trained model.

    Args:
        folder: the folder of the checkpoint, the checkpoint itself, or a model's name or address (``base.published``).
        checkpoint_file: file name of the checkpoint; default: the first of :data:`CHECKPOINTS` that exists.
        data: the prepared folder; default: ``folder`` if it contains the ``settings.json``, dictionaries and subwords
            of one, otherwise the folder that the checkpoint was trained on.
        device: device on which the model is prepared for generation.
        overrides: replacements for the checkpoint's settings, as in fairseq.

    Raises:
        InputError: there is no checkpoint, an unusable one, or no prepared folder.
    """
    folder = model_path(folder)
    if checkpoint_file is None and folder.is_file():
        folder, checkpoint_file = folder.parent, folder.name
    checkpoint = folder / checkpoint_file if checkpoint_file else chosen(folder)
    if not checkpoint.is_file():
        raise InputError(f"{checkpoint}: no such checkpoint")
    data = data_of(checkpoint, folder) if data is None else data
    DataConfig.load(data)
    register()
    fairseqs = logging.getLogger("fairseq")
    level = fairseqs.level
    fairseqs.setLevel(max(level, logging.WARNING))  # its report on a model's parts is for training
    try:
        loaded = hub_utils.from_pretrained(
            str(folder), checkpoint_file or checkpoint.name, str(Path(data).resolve()), **overrides
        )
    finally:
        fairseqs.setLevel(level)
    cfg = loaded["args"]
    with open_dict(cfg):  # text is encoded with the prepared folder's files, not with those named in the checkpoint
        cfg.tokenizer = cfg.bpe = cfg.generation.replace_unk = None
    models = [model.to(device) for model in loaded["models"]]  # before their weights are packed or quantised
    return DocumentHubInterface(cfg, loaded["task"], models).to(device)


def load_model(
    path: str | Path,
    data: str | Path | None = None,
    device: str = "auto",
    decode_dtype: str = "float32",
    cache_dtype: str = "float32",
    shortlist: str | Path = "",
    reproducible: bool = False,
) -> DocumentHubInterface:
    """Load a trained model for translation, onto a device.

    Args:
        path: its checkpoint, or the checkpoint's folder.
        data: see :func:`from_pretrained`.
        device: a torch device; ``auto`` is the GPU if there is one.
        decode_dtype: type of the linear layers' weights: ``float32``, or ``int8`` on a CPU.
        cache_dtype: type of the cached keys and values: ``float32``, or ``int8`` on a CPU.
        shortlist: a file that ``lasformer shortlist`` wrote; only words that may translate a document are scored.
        reproducible: refuse models or options whose translations depend on what else is translated in the same run,
            the number of threads or the processor.

    Raises:
        InputError: as :func:`from_pretrained`; or there is no such device, or the model cannot decode in this type.
    """
    place = check_device(device)
    if reproducible and place.type != "cpu":
        raise InputError("--reproducible: works only on a CPU; add --device cpu, or leave it out")
    options: dict[str, Any] = {"decode_dtype": decode_dtype, "cache_dtype": cache_dtype, "shortlist": str(shortlist)}
    options["reproducible"] = reproducible
    model = from_pretrained(path, data=data, device=place, **options).eval()
    if shortlist or reproducible:
        model.translator()  # refuses an unusable shortlist now, not at the first translation
    # attention is read in passes that record the selection and need no gradients of the weights
    return model.requires_grad_(False)
