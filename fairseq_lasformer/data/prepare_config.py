"""The options of ``lasformer prepare``."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import OWN, SPEED, TEXT, argument, option, options_of
from fairseq_lasformer.base.shared_options import Engine, language
from fairseq_lasformer.data.manifest import MONO
from fairseq_lasformer.data.subwords import SUBWORDS, TOKENIZERS, DataConfig, subword_model
from fairseq_lasformer.text.documents import RESOLUTIONS

DEFAULTS = {
    **{"tokenizer": "moses", "bpe": "subword-nmt", "separator": "<sep>", "limit": 1024, "resolutions": "mixture"},
    **{"joined_dictionary": True, "max_lines": 0},
}
_LATER = ("joined_dictionary", "max_lines")  # options that earlier versions did not have
_FILE = "file "  # before the names of files among the inputs
SIZE = 32000


@dataclass(frozen=True)
class PrepareConfig(Engine):
    """Settings of a preparation. Prefixes name raw files ``PREFIX.LANG``.

    Options that are None are taken from ``reuse`` if it is set, and otherwise from :data:`DEFAULTS`.

    Prefixes name raw files; whatever the help of an option does not say:

    - ``mono`` has ``PREFIX.SOURCE`` or ``PREFIX.TARGET`` or both, which need not be translations; see
      :mod:`plugin.datasets.denoising`. Every example then begins with the tag of its language.
    - ``size`` is, without ``joined_dictionary``, for each language.
    - ``reuse``: a folder without a separator may get one, which is added to its dictionary; if it was prepared for
      single sentences, ``resolutions`` is then :data:`DEFAULTS`'.
    - ``text``: by default, encoded sentences are kept in ``out`` until the preparation is done.
    - ``engine``: where text is tokenised and encoded; a cluster's machines share ``out``.
    """

    source_lang: str = language("source", ", the suffix of its files")
    target_lang: str = language("target", ", the suffix of its files")
    train: tuple[str, ...] = option(help="raw files PREFIX.LANG, joined", metavar="PREFIX")
    valid: tuple[str, ...] = option(help="raw files PREFIX.LANG, joined", metavar="PREFIX")
    test: tuple[str, ...] = option(
        help="raw files PREFIX.LANG, each its own split: test, test1, ...; one without a target file has no reference",
        metavar="PREFIX",
    )
    out: Path = argument("folder for the binarised data", writes=OWN)
    tokenizer: str | None = option(None, f"word tokenisation (default: {DEFAULTS['tokenizer']})", choices=TOKENIZERS)
    bpe: str | None = option(None, f"subword algorithm (default: {DEFAULTS['bpe']})", choices=sorted(SUBWORDS))
    size: int | None = option(None, f"BPE merges or sentencepiece vocabulary (default: {SIZE})")
    resolutions: str | None = option(
        None,
        "training examples: whole documents, sentences, or chunks of every length "
        f"(default: {DEFAULTS['resolutions']})",
        choices=RESOLUTIONS,
    )
    limit: int | None = option(None, f"maximum number of tokens per example (default: {DEFAULTS['limit']})")
    separator: str | None = option(
        None,
        f"token between sentences, used to align lines (default: {DEFAULTS['separator']}); '' for none, as in the "
        "paper",
    )
    joined_dictionary: bool | None = option(
        None,
        "one subword model and dictionary for both languages, or one for each, as needed for different scripts "
        "(default: one for both)",
    )
    max_lines: int | None = option(None, "maximum number of sentences per example, such as 3 (default: no limit)")
    drop_empty: bool = option(False, "drop pairs with an empty side, and count them")
    clean: bool = option(False, "replace tabs, Windows line endings and control characters with spaces")
    reuse: Path | None = option(
        None, "reuse the subwords, dictionary and settings of prepared data", metavar="DATA", apart=True
    )
    text: Path | None = option(None, "cache encoded sentences for other preparations", metavar="FOLDER", changes=SPEED)
    workers: int = option(2, "processes, or workers of --engine", changes=SPEED)
    mono: tuple[str, ...] = option(
        (), "documents in one language, PREFIX.LANG, which the model learns to restore from noise", metavar="PREFIX"
    )
    train_sentences: tuple[str, ...] = option(
        (),
        "raw files PREFIX.LANG of sentences that do not belong together, for training: every line is a document",
        metavar="PREFIX",
    )

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
        """Return the settings that result from the options and the reused folder."""
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
        filled = {name: inherited[name] if value is None else value for name, value in chosen.items()}
        filled |= dict(zip(("source_tag", "target_tag"), tags))
        if self.mono and not filled["joined_dictionary"]:
            raise InputError("--mono: both sides have the same language; this needs a dictionary for both languages")
        return DataConfig(self.source_lang, self.target_lang, fingerprint="", **filled)  # type: ignore[arg-type]

    def inputs(self, settings: DataConfig) -> dict[str, str]:
        """Return every option that affects the result, by its name, and the hash of each input, by its path."""
        names = [one.name for one in options_of(PrepareConfig) if one.spec.changes == TEXT and not one.spec.apart]
        values = {name: str(getattr(self, name)) for name in names}
        values |= {k: str(v) for k, v in vars(settings).items() if k != "fingerprint"}
        values["size"] = str(SIZE if self.size is None else self.size)
        for name in _LATER:  # defaults are left out, so data prepared by an earlier version is recognised
            if getattr(settings, name) == DEFAULTS[name]:
                del values[name]
        if not self.mono:
            del values["mono"]
        if not self.train_sentences:
            del values["train_sentences"]
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
                values[_FILE + name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
            except OSError as e:
                if not self._without_reference(name):
                    raise InputError(f"{name}: cannot be read ({e.strerror})") from e
        return values

    def _without_reference(self, file: str) -> bool:
        """Return whether a missing file is the reference of a test set, which is optional."""
        others = (*self.train, *self.train_sentences, *self.valid)
        missing = [f"{prefix}.{self.target_lang}" for prefix in self.test if prefix not in others]
        return file in missing and not Path(file).exists()


def fingerprint(inputs: dict[str, str]) -> str:
    """Hash what :meth:`PrepareConfig.inputs` found."""
    options = {name: value for name, value in inputs.items() if not name.startswith(_FILE)} | {"fingerprint": ""}
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, value in inputs.items():
        if name.startswith(_FILE):
            digest.update(bytes.fromhex(value))
    return digest.hexdigest()


def differences(before: dict[str, str], now: dict[str, str]) -> str:
    """Say in a few words in what inputs differ; empty if they do not."""
    different = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name.startswith(_FILE):
            what = "is new" if old is None else "is gone" if new is None else "has changed"
            different.append(f"{name.removeprefix(_FILE)} {what}")
        else:
            different.append(f"{name} was {old or 'none'}, is {new or 'none'}")
    return ", ".join(different[:4]) + (", ..." if len(different) > 4 else "")
