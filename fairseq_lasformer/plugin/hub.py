"""Python interface: a trained model that translates documents given as text."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import hub_utils, utils
from omegaconf import open_dict
from torch import Tensor
from tqdm.auto import tqdm

from fairseq_lasformer.data.documents import Span, rejoin, split_documents
from fairseq_lasformer.data.examples import ExampleCodec, TooLong
from fairseq_lasformer.data.subwords import SETTINGS, DataConfig
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference.checkpoints import CHECKPOINTS, load
from fairseq_lasformer.inference.translator import Translator
from fairseq_lasformer.plugin import register


class DocumentHubInterface(hub_utils.GeneratorHubInterface):
    """fairseq's hub interface, with :meth:`translate_documents`.

    Text is encoded and decoded in the same way as the training data, with the files in the prepared folder.
    """

    def __init__(self, cfg: Any, task: Any, models: Sequence[Any]) -> None:
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
        self, documents: Sequence[str], beam: int = 5, max_tokens: int = 8192, progress: bool = True, **options: Any
    ) -> list[str]:
        """Translate whole documents; the order is preserved.

        Args:
            documents: raw text, one sentence per line; blank lines separate paragraphs.
            beam: beam size.
            max_tokens: maximum tokens per batch; raised to the length of the longest part if necessary.
            progress: whether to show a progress bar.
            options: options of fairseq's generation (``lenpen=1.0``, ``max_len_a=1.5``, …).

        Returns:
            one translation per document, empty for an empty document. If the training data had separators, one sentence
            per line, with the paragraphs of the source if the number of sentences matches; otherwise a single line.

        Raises:
            InputError: ``documents`` is a string instead of a list, fairseq does not have an option, or a sentence is
                too long.
        """
        if isinstance(documents, str):
            raise InputError("translate_documents takes a list of documents, not one string: wrap it, [text]")
        cfg = copy.deepcopy(self.cfg)
        _check_options(cfg.generation, options)
        paragraphs = [_paragraphs(document) for document in documents]
        sentences = [[s for paragraph in document for s in paragraph] for document in paragraphs]
        spans, examples = self._examples(sentences)
        with open_dict(cfg):
            cfg.dataset.max_tokens = max([max_tokens, *(len(e) for e in examples)])
            cfg.dataset.batch_size = None
            cfg.generation.beam = beam
            cfg.generation.update(options)
        found = self._translate(examples, cfg, progress)
        here = [i for i, document in enumerate(sentences) if document]
        numbers = {document: number for number, document in enumerate(here)}
        placed = [span._replace(document=numbers[span.document]) for span in spans]
        translated = dict(zip(here, rejoin(placed, found, len(here))))
        return [self._text(translated.get(i, []), paragraphs[i]) for i in range(len(documents))]

    def _examples(self, documents: Sequence[Sequence[str]]) -> tuple[list[Span], list[Tensor]]:
        """Split all documents into parts and encode them, as the data preparation does."""
        spans: list[Span] = []
        examples: list[Tensor] = []
        for i, document in enumerate(documents):
            if not document:
                continue
            encoded = [self.codec.encode_source(s) for s in document]
            try:
                cut = self.codec.cut(i, encoded)
            except TooLong as e:
                raise InputError(
                    f"document {i + 1}: sentence {e.sentence + 1} has {e.tokens} tokens, more than the limit of "
                    f"{self.codec.limit} that the model was trained with; split it"
                ) from None
            for span in (span for part in cut for span in self.codec.examples(part)):
                spans.append(span)
                examples.append(self.binarize(self.codec.join(encoded[span.start : span.start + span.size])))
        return spans, examples

    def _translate(self, examples: Sequence[Tensor], cfg: Any, progress: bool) -> list[list[str]]:
        """Return the sentences of each example's translation."""
        if not examples:
            return []
        translator = Translator(self.task, self.models, cfg.generation)
        lengths = torch.tensor([len(e) for e in examples])
        batches = translator.batches(
            self.task.build_dataset_for_inference(examples, lengths),
            max_tokens=cfg.dataset.max_tokens,
            max_positions=self.max_positions,
        )
        found: dict[int, list[str]] = {}
        with tqdm(total=len(examples), desc="translating", unit=" parts", disable=not progress) as bar:
            for i, tokens in translator.translate(batches, self.device):
                found[i] = self.codec.decode(self.string(tokens))
                bar.update()
        return [found[i] for i in range(len(examples))]

    def _text(self, sentences: Sequence[str], paragraphs: Sequence[Sequence[str]]) -> str:
        """Format a translated document like its source."""
        if not self.settings.separator:
            return " ".join(s for s in sentences if s)
        if len(sentences) != sum(map(len, paragraphs)):
            return "\n".join(sentences)
        rest = iter(sentences)
        return "\n\n".join("\n".join(next(rest) for _ in paragraph) for paragraph in paragraphs)


def _paragraphs(document: str) -> list[list[str]]:
    """Return a document's sentences by paragraph; any number of blank lines is one boundary."""
    return split_documents(line.strip() for line in document.splitlines())


def _check_options(generation: Any, options: dict[str, Any]) -> None:
    """Reject options unknown to fairseq's generation, or incompatible with one translation per document."""
    names = [str(name) for name in generation]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; is {close[0]} meant?" if close else ""
            raise InputError(f"{name}: not an option of fairseq's generation{hint}")
    if options.get("nbest", 1) != 1:
        raise InputError("nbest: one translation per document is returned; leave it out")


def _trained_on(checkpoint: Path) -> str:
    """Return the prepared folder that a checkpoint was trained on."""
    task = (load(checkpoint).get("cfg") or {}).get("task") or {}
    return str(task.get("data", "") if isinstance(task, dict) else getattr(task, "data", "")).split(":")[0]


def from_pretrained(
    folder: str | Path, checkpoint_file: str | None = None, data: str | Path | None = None, **overrides: Any
) -> DocumentHubInterface:
    """Load a trained model.

    Args:
        folder: the folder of the checkpoint, or the checkpoint itself.
        checkpoint_file: file name of the checkpoint; default: the first of :data:`CHECKPOINTS` that exists.
        data: the prepared folder; default: ``folder`` if it contains the ``settings.json``, dictionaries and subwords
            of one, otherwise the folder that the checkpoint was trained on.
        overrides: replacements for the checkpoint's settings, as in fairseq.

    Raises:
        InputError: no checkpoint, an unusable checkpoint, or no prepared folder.
    """
    folder = Path(folder)
    if checkpoint_file is None and folder.is_file():
        folder, checkpoint_file = folder.parent, folder.name
    names = [checkpoint_file] if checkpoint_file else [n for n in CHECKPOINTS if (folder / n).is_file()]
    if not names:
        raise InputError(f"{folder}: holds none of {', '.join(CHECKPOINTS)}; name the checkpoint_file")
    if not (folder / names[0]).is_file():
        raise InputError(f"{folder / names[0]}: no such checkpoint")
    if data is None:
        data = folder if (folder / SETTINGS).is_file() else _trained_on(folder / names[0])
        if not data:
            raise InputError(f"{folder / names[0]}: does not say what it was trained on; name the prepared folder")
    DataConfig.load(data)
    register()
    found = hub_utils.from_pretrained(str(folder), names[0], str(Path(data).resolve()), **overrides)
    cfg = found["args"]
    with open_dict(cfg):  # text is encoded with the prepared folder's files, not with those named in the checkpoint
        cfg.tokenizer = cfg.bpe = cfg.generation.replace_unk = None
    return DocumentHubInterface(cfg, found["task"], found["models"])
