"""The options of ``lasformer prepare``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.data.manifest import MONO
from fairseq_lasformer.data.subwords import DataConfig, subword_model
from fairseq_lasformer.errors import InputError

DEFAULTS = {
    **{"tokenizer": "moses", "bpe": "subword-nmt", "separator": "<sep>", "limit": 1024, "resolutions": "mixture"},
    **{"joined_dictionary": True, "max_lines": 0},
}
_LATER = ("joined_dictionary", "max_lines")  # options that earlier versions did not have
SIZE = 32000


@dataclass(frozen=True)
class PrepareConfig:
    """Settings of a preparation. Prefixes name raw files ``PREFIX.LANG``.

    Options that are None are taken from ``reuse`` if it is set, and otherwise from :data:`DEFAULTS`.

    Attributes:
        source_lang, target_lang: language codes, the suffixes of the raw files.
        train: prefixes joined into one training set.
        train_sentences: prefixes of single sentences for training: every line is a document of its own.
        valid: prefixes joined into one validation set.
        mono: prefixes of documents in one language, ``PREFIX.SOURCE`` or ``PREFIX.TARGET`` or both, which need not be
            translations; models learn to restore them, see :mod:`plugin.datasets.denoising`. Every example then begins
            with the tag of its language.
        test: prefixes, each a separate split (test, test1, …); one without ``PREFIX.TARGET`` is prepared without a
            reference.
        out: folder for the prepared data.
        tokenizer: see :class:`DataConfig`.
        bpe: see :class:`DataConfig`.
        size: number of BPE merges, or size of the sentencepiece vocabulary (default: :data:`SIZE`); without
            ``joined_dictionary``, for each language.
        resolutions: see :class:`DataConfig`.
        limit: see :class:`DataConfig`.
        separator: see :class:`DataConfig`.
        joined_dictionary: see :class:`DataConfig`.
        max_lines: see :class:`DataConfig`.
        drop_empty: drop pairs with an empty side instead of rejecting them.
        clean: replace control characters in the text with spaces instead of rejecting them.
        reuse: a prepared folder whose subwords, dictionary and settings are reused; one without a separator may get
            one, which is added to its dictionary; if it was prepared for single sentences, ``resolutions`` is then
            :data:`DEFAULTS`'.
        text: folder in which tokenised and encoded sentences are cached for other preparations of the same text; by
            default, they are kept in ``out`` until the preparation is done.
        workers: number of processes, or of workers of ``engine``.
        engine: where text is tokenised and encoded, see :func:`executors.executor`; a cluster's machines share ``out``.
        memory_examples: share of the training examples that begin with lines of other documents of their file, as a
            translation with a memory does; see :mod:`data.memory_examples`.
        memory_tokens: maximum number of tokens of these lines.
    """

    source_lang: str
    target_lang: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    out: Path
    tokenizer: str | None = None
    bpe: str | None = None
    size: int | None = None
    resolutions: str | None = None
    limit: int | None = None
    separator: str | None = None
    joined_dictionary: bool | None = None
    max_lines: int | None = None
    drop_empty: bool = False
    clean: bool = False
    reuse: Path | None = None
    text: Path | None = None
    workers: int = 2
    engine: str = "processes"
    mono: tuple[str, ...] = ()
    memory_examples: float = 0.0
    memory_tokens: int = 256
    train_sentences: tuple[str, ...] = ()

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang

    def splits(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return (name, prefixes) of every requested split."""
        named = [("train", (*self.train, *self.train_sentences)), ("valid", self.valid)]
        for name, side in MONO.items():
            of = self.languages[side]
            named.append((name, tuple(p for p in self.mono if Path(f"{p}.{of}").exists())))
        named += [(f"test{i or ''}", (prefix,)) for i, prefix in enumerate(self.test)]
        return [(name, prefixes) for name, prefixes in named if prefixes]

    @staticmethod
    def sides(split: str) -> tuple[int, int]:
        """Return which of the languages is on each side of a split."""
        return (MONO[split], MONO[split]) if split in MONO else (0, 1)

    def settings(self) -> DataConfig:
        """Return the settings that result from the options and the reused folder.

        Raises:
            InputError: an option has an invalid value, or contradicts the reused folder.
        """
        chosen = {name: getattr(self, name) for name in DEFAULTS}
        inherited: dict[str, object] = dict(DEFAULTS)
        tags = (f"<{self.source_lang}>", f"<{self.target_lang}>") if self.mono else ("", "")
        if self.reuse is not None:
            old = DataConfig.load(self.reuse)
            if {old.source_lang, old.target_lang} != {self.source_lang, self.target_lang}:
                raise InputError(
                    f"--reuse {self.reuse}: was prepared for {old.source_lang}-{old.target_lang}, not for "
                    f"{self.source_lang}-{self.target_lang}"
                )
            inherited = {name: getattr(old, name) for name in DEFAULTS}
            if self.separator and not old.separator and old.resolutions == "sentences":
                inherited["resolutions"] = DEFAULTS["resolutions"]  # whoever adds a separator means documents
            tags = old.tags if old.source_lang == self.source_lang else old.tags[::-1]
            if self.mono and not all(tags):
                raise InputError(f"--mono: {self.reuse} was prepared without it, and has no language tags")
            for name in ("tokenizer", "bpe", "separator", "joined_dictionary"):
                added = name == "separator" and not inherited[name]  # for lasformer upcycle
                if chosen[name] not in (None, inherited[name]) and not added:
                    option = f"--{name.replace('_', '-')} {chosen[name]}"
                    raise InputError(
                        f"{option}: {self.reuse} was prepared with {inherited[name] or 'none'}, and the"
                        " encoding of the text must not change; leave out this option, or --reuse"
                    )
            if self.size is not None:
                raise InputError(f"--size {self.size}: no subwords are learned with --reuse; leave one of them out")
        made = {name: inherited[name] if value is None else value for name, value in chosen.items()}
        made |= dict(zip(("source_tag", "target_tag"), tags))
        if self.mono and not made["joined_dictionary"]:
            raise InputError("--mono: both sides have the same language; this needs a dictionary for both languages")
        return DataConfig(self.source_lang, self.target_lang, fingerprint="", **made)  # type: ignore[arg-type]

    def fingerprint(self, settings: DataConfig) -> str:
        """Hash all inputs and every option that affects the result."""
        digest = hashlib.sha256()
        options = {k: str(v) for k, v in vars(self).items() if k not in ("out", "workers", "engine", "reuse", "text")}
        options |= {k: str(v) for k, v in vars(settings).items()} | {
            "size": str(SIZE if self.size is None else self.size)
        }
        for name in _LATER:  # defaults are left out, so data prepared by an earlier version is recognised
            if getattr(settings, name) == DEFAULTS[name]:
                del options[name]
        if not self.mono:
            del options["mono"]
        if not self.train_sentences:
            del options["train_sentences"]
        if not self.memory_examples:
            del options["memory_examples"], options["memory_tokens"]
        digest.update(json.dumps(options, sort_keys=True).encode())
        files = [
            f"{prefix}.{self.languages[side]}"
            for name, prefixes in self.splits()
            for prefix in prefixes
            for side in dict.fromkeys(self.sides(name))
        ]
        if self.reuse is not None:
            files += [str(subword_model(self.reuse, settings.bpe, language)) for language in settings.models_for]
            files += [str(self.reuse / f"dict.{language or self.source_lang}.txt") for language in settings.models_for]
        for name in files:
            try:
                digest.update(hashlib.sha256(Path(name).read_bytes()).digest())
            except OSError as e:
                if not self._without_reference(name):
                    raise InputError(f"{name}: cannot be read ({e.strerror})") from e
        return digest.hexdigest()

    def _without_reference(self, file: str) -> bool:
        """Return whether a missing file is the reference of a test set, which is optional."""
        others = (*self.train, *self.train_sentences, *self.valid)
        missing = [f"{prefix}.{self.target_lang}" for prefix in self.test if prefix not in others]
        return file in missing and not Path(file).exists()
