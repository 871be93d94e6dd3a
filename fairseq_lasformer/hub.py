"""The Python interface: a trained model that takes documents as text and gives documents as text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import hub_utils, utils
from omegaconf import open_dict
from torch import Tensor
from tqdm import tqdm

from fairseq_lasformer.checkpoints import load
from fairseq_lasformer.documents import InputError, Span, chunks, parts, rejoin
from fairseq_lasformer.text import SETTINGS, Codec, Settings, split_at

CHECKPOINTS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")


class DocumentHubInterface(hub_utils.GeneratorHubInterface):
    """fairseq's hub interface, with :meth:`translate_documents`.

    Text is encoded and decoded as the training data was, by the files its preparation left.
    """

    def __init__(self, cfg: Any, task: Any, models: Sequence[Any]) -> None:
        super().__init__(cfg, task, models)
        folder = utils.split_paths(task.cfg.data)[0]
        self.settings = Settings.load(folder)
        self.codec = Codec(folder, self.settings.tokenizer, self.settings.bpe)

    def encode(self, sentence: str) -> Tensor:
        """Token indices of a raw source sentence, end of sentence included."""
        return self.binarize(self.codec.encode(sentence, self.settings.source_lang))

    def decode(self, tokens: Tensor) -> str:
        """Text of a target sentence's token indices."""
        return self.codec.decode(self.string(tokens), self.settings.target_lang)

    def join(self, sentences: Sequence[Tensor]) -> Tensor:
        """Encoded sentences as one example, as the training data joins them: separators between, one end."""
        between = self.src_dict.index(self.settings.separator) if self.settings.separator else None
        pieces: list[Tensor] = []
        for i, sentence in enumerate(sentences):
            if i and between is not None:
                pieces.append(sentence.new_tensor([between]))
            pieces.append(sentence[:-1])
        return torch.cat([*pieces, sentences[0].new_tensor([self.src_dict.eos()])])

    def translate_documents(
        self, documents: Sequence[str], beam: int = 5, max_tokens: int = 8192, progress: bool = True, **options: Any
    ) -> list[str]:
        """Translations of whole documents, in order.

        Args:
            documents: raw text, one sentence a line; blank lines are passed over.
            max_tokens: of a batch; at least the longest part's are taken.
            options: of fairseq's generation (``lenpen=1.0``, ``max_len_a=1.5``, …).

        Returns:
            as many documents; one sentence a line where the training data had separators, otherwise one line.

        Raises:
            InputError: a document is empty, or a sentence of it too long.
        """
        if not documents:
            return []
        sentences = [[line.strip() for line in document.splitlines() if line.strip()] for document in documents]
        if empty := [i + 1 for i, document in enumerate(sentences) if not document]:
            raise InputError(f"document {empty[0]} of {len(documents)} is empty")
        spans: list[Span] = []
        examples: list[Tensor] = []
        extra = 1 if self.settings.separator else 0
        how = "sentences" if self.settings.resolutions == "sentences" else "documents"
        for i, document in enumerate(sentences):
            encoded = [self.encode(s) for s in document]
            lengths = [[len(e) - 1 + extra] for e in encoded]  # as the preparation counts
            if max(lengths)[0] > self.settings.limit - 1:
                raise InputError(
                    f"document {i + 1}: a sentence has {max(lengths)[0]} tokens, more than the limit of "
                    f"{self.settings.limit} that the model was trained with; split it"
                )
            for part in parts(i, lengths, self.settings.limit - 1):
                for span in chunks(part, how):
                    spans.append(span)
                    examples.append(self.join(encoded[span.start : span.start + span.size]))
        cfg = copy.deepcopy(self.cfg)
        with open_dict(cfg):
            cfg.dataset.max_tokens = max(max_tokens, *(len(e) for e in examples))
            cfg.dataset.batch_size = None
            cfg.generation.beam, cfg.generation.max_len_a, cfg.generation.max_len_b = beam, 1.5, 50
            for name, value in options.items():
                setattr(cfg.generation, name, value)
        generator = self.task.build_generator(self.models, cfg.generation)
        found: dict[int, list[str]] = {}
        lengths_of = torch.tensor([len(e) for e in examples])
        batches = self.task.get_batch_iterator(
            dataset=self.task.build_dataset_for_inference(examples, lengths_of),
            max_tokens=cfg.dataset.max_tokens,
            max_positions=self.max_positions,
            disable_iterator_cache=True,
        ).next_epoch_itr(shuffle=False)
        with tqdm(total=len(examples), desc="translating", unit=" parts", disable=not progress) as bar:
            for batch in batches:
                batch = utils.apply_to_sample(lambda t: t.to(self.device), batch)
                for i, hypotheses in zip(batch["id"].tolist(), self.task.inference_step(generator, self.models, batch)):
                    found[i] = self._sentences(hypotheses[0]["tokens"])
                    bar.update()
        translated = rejoin(spans, [found[i] for i in range(len(examples))], len(documents))
        return [("\n" if self.settings.separator else " ").join(t for t in d if t) for d in translated]

    def _sentences(self, tokens: Tensor) -> list[str]:
        pieces = split_at(self.string(tokens).split(), self.settings.separator)
        return [self.codec.decode(" ".join(piece), self.settings.target_lang) for piece in pieces]


def _trained_on(checkpoint: Path) -> str:
    """The prepared folder that a checkpoint names."""
    task = (load(checkpoint).get("cfg") or {}).get("task") or {}
    return str(task.get("data", "") if isinstance(task, dict) else getattr(task, "data", "")).split(":")[0]


def from_pretrained(
    folder: str | Path, checkpoint_file: str | None = None, data: str | Path | None = None, **overrides: Any
) -> DocumentHubInterface:
    """A trained model.

    Args:
        folder: where the checkpoint is. checkpoint_file: its name; without, the first of :data:`CHECKPOINTS`.
        data: the prepared folder; without, ``folder`` itself if it holds one's ``settings.json``, dictionaries and
            subwords, otherwise the folder that the checkpoint was trained on.
        overrides: of the checkpoint's own settings, as in fairseq.

    Raises:
        InputError: no checkpoint, one that is no use, or no prepared folder.
    """
    folder = Path(folder)
    names = [checkpoint_file] if checkpoint_file else [n for n in CHECKPOINTS if (folder / n).is_file()]
    if not names:
        raise InputError(f"{folder}: holds none of {', '.join(CHECKPOINTS)}; name the checkpoint_file")
    if not (folder / names[0]).is_file():
        raise InputError(f"{folder / names[0]}: no such checkpoint")
    if data is None:
        data = folder if (folder / SETTINGS).is_file() else _trained_on(folder / names[0])
    Settings.load(data)
    found = hub_utils.from_pretrained(str(folder), names[0], str(Path(data).resolve()), **overrides)
    return DocumentHubInterface(found["args"], found["task"], found["models"])
