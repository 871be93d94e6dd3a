"""From raw documents to binarised data: check, tokenise, subwords, examples at several resolutions, binarise.

The result is ordinary fairseq data, with three files beside it: ``settings.json`` (how to decode), the subword model,
and ``documents.<split>.json`` (which example belongs to which document).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_lasformer.dataset import SplitInfo
from fairseq_lasformer.documents import Corpus, Span, chunks, parts, read_corpus, read_source
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_copy, atomic_write, check_writable, locked, remove_folder
from fairseq_lasformer.processes import start
from fairseq_lasformer.text import SUBWORDS, Codec, Settings, check_separator, learn_subwords, transform

# What text.transform does: its kind and that kind's arguments.
Task = tuple[str, tuple[str, ...]]

DEFAULTS = {"tokenizer": "moses", "bpe": "subword-nmt", "separator": "", "limit": 1024, "resolutions": "mixture"}
SIZE = 32000
MANY_UNKNOWN = 0.01


@dataclass(frozen=True)
class Plan:
    """What to prepare. Prefixes name raw files ``PREFIX.LANG``.

    What is None is taken from ``reuse``, where that is given, and otherwise from :data:`DEFAULTS`.

    Attributes:
        train: joined into one training set. valid: likewise. test: each its own split (test, test1, …); one without
            ``PREFIX.TARGET`` is prepared without a reference.
        reuse: a prepared folder whose subwords, dictionary and settings are taken.
        size: BPE merges, or sentencepiece's vocabulary (:data:`SIZE`).
        clean: take control characters in the text for spaces instead of refusing them.
        text: where tokenised and encoded sentences are kept for other preparations of the same text; by default in
            ``out`` until it is done.
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
    drop_empty: bool = False
    clean: bool = False
    reuse: Path | None = None
    text: Path | None = None
    workers: int = 2

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_lang, self.target_lang

    def splits(self) -> list[tuple[str, tuple[str, ...]]]:
        """(name, prefixes) of every split asked for."""
        named = [("train", self.train), ("valid", self.valid)]
        named += [(f"test{i or ''}", (prefix,)) for i, prefix in enumerate(self.test)]
        return [(name, prefixes) for name, prefixes in named if prefixes]

    def settings(self) -> Settings:
        """The settings that the options and the reused folder's settings make together.

        Raises:
            InputError: an option's value makes no sense, or contradicts the reused folder.
        """
        chosen = {name: getattr(self, name) for name in DEFAULTS}
        inherited: dict[str, object] = dict(DEFAULTS)
        if self.reuse is not None:
            old = Settings.load(self.reuse)
            if {old.source_lang, old.target_lang} != {self.source_lang, self.target_lang}:
                raise InputError(
                    f"--reuse {self.reuse}: was prepared for {old.source_lang}-{old.target_lang}, not for "
                    f"{self.source_lang}-{self.target_lang}"
                )
            inherited = {name: getattr(old, name) for name in DEFAULTS}
            for name in ("tokenizer", "bpe", "separator"):
                if chosen[name] not in (None, inherited[name]):
                    raise InputError(
                        f"--{name} {chosen[name]}: {self.reuse} was prepared with {inherited[name] or 'none'}, and "
                        "what encodes the text must stay as it was; leave the option out, or --reuse"
                    )
            if self.size is not None:
                raise InputError(f"--size {self.size}: nothing is learned with --reuse; leave one of them out")
        made = {name: inherited[name] if value is None else value for name, value in chosen.items()}
        return Settings(self.source_lang, self.target_lang, fingerprint="", **made)  # type: ignore[arg-type]

    def fingerprint(self, settings: Settings) -> str:
        """Hash of all inputs and of every option that changes the result."""
        digest = hashlib.sha256()
        options = {k: str(v) for k, v in vars(self).items() if k not in ("out", "workers", "reuse", "text")}
        options |= {k: str(v) for k, v in vars(settings).items()} | {
            "size": str(SIZE if self.size is None else self.size)
        }
        digest.update(json.dumps(options, sort_keys=True).encode())
        files = [f"{p}.{lang}" for _, prefixes in self.splits() for p in prefixes for lang in self.languages]
        if self.reuse is not None:
            files += [str(self.reuse / SUBWORDS[settings.bpe]), str(self.reuse / f"dict.{self.source_lang}.txt")]
        for name in files:
            try:
                digest.update(hashlib.sha256(Path(name).read_bytes()).digest())
            except OSError as e:
                if not self._without_reference(name):
                    raise InputError(f"{name}: cannot be read ({e.strerror})") from e
        return digest.hexdigest()

    def _without_reference(self, file: str) -> bool:
        """Whether a file that is not there is the reference that a test set may lack."""
        missing = [f"{prefix}.{self.target_lang}" for prefix in self.test if prefix not in (*self.train, *self.valid)]
        return file in missing and not Path(file).exists()


class Prepared(NamedTuple):
    """What :func:`prepare` did: the settings, each split, how many subwords were asked for and learned (None with
    sentencepiece or reused ones), and the words of the dictionary."""

    settings: Settings
    splits: list[SplitInfo]
    merges: tuple[int, int] | None
    vocabulary: int


def prepare(plan: Plan, overwrite: bool = False) -> Prepared:
    """Runs the preparation. Resumes an interrupted run; a finished one is left as it is.

    Raises:
        InputError: bad input, with file and line; nothing of the split is written.
    """
    settings = plan.settings()
    if settings.limit < 2:
        raise InputError(f"--limit {settings.limit}: at least 2 tokens are needed")
    if plan.workers < 1:
        raise InputError(f"--workers {plan.workers}: at least one is needed")
    if plan.source_lang == plan.target_lang:
        raise InputError(f"-s {plan.source_lang} -t {plan.target_lang}: the two languages must have different names")
    if ":" in str(plan.out):
        raise InputError(f"{plan.out}: fairseq takes the colon for the end of a path; choose another folder")
    check_separator(settings.separator)
    if not plan.splits():
        raise InputError("nothing to prepare: name --train, --valid or --test")
    if not plan.train and plan.reuse is None:
        raise InputError("without --train, --reuse must name a prepared folder whose subwords and dictionary are taken")
    settings = replace(settings, fingerprint=plan.fingerprint(settings))
    check_writable(plan.out / "settings.json")
    if plan.text is not None:
        check_writable(plan.text / "words")
    with locked(plan.out.with_name(f".{plan.out.name}.lock"), "a preparation"):
        if plan.out.exists() and any(plan.out.iterdir()):
            _resume_or_clear(plan.out, settings.fingerprint, overwrite)
        if not (plan.out / "settings.json").exists():
            _run(plan, settings)
    found = [SplitInfo.load(plan.out, name) for name, _ in plan.splits()]
    model = plan.out / SUBWORDS[settings.bpe]
    merges = None
    if plan.reuse is None and settings.bpe == "subword-nmt":
        with open(model, encoding="utf-8") as f:
            merges = plan.size or SIZE, sum(1 for _ in f) - 1
    return Prepared(settings, [i for i in found if i is not None], merges, len(_dictionary(plan.out, plan.source_lang)))


def _run(plan: Plan, settings: Settings) -> None:
    corpora = {name: [_read(plan, name, p) for p in prefixes] for name, prefixes in plan.splits()}
    plan.out.mkdir(parents=True, exist_ok=True)
    atomic_write(plan.out / "fingerprint", settings.fingerprint + "\n")
    text = plan.out / "text"
    encoded = _encode(plan, settings, corpora)
    infos = [_examples(plan, settings, name, corpus, encoded[name], text) for name, corpus in corpora.items()]
    _binarise(plan, [name for name in corpora], text)
    known = [_dictionary(plan.out, language) for language in plan.languages]
    for info in infos:
        sides = encoded[info.name]
        replace(info, unknown=(_unknown(sides[0], known[0]), _unknown(sides[1], known[1]))).save()
    settings.save(plan.out)
    shutil.rmtree(text)


def _dictionary(folder: Path, language: str) -> set[str]:
    """The words of a prepared folder's dictionary."""
    path = folder / f"dict.{language}.txt"
    try:
        return {line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").split("\n") if line}
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: cannot be read; prepare the data again") from e


def _unknown(sentences: Sequence[str], known: set[str]) -> float:
    """Share of the tokens that the dictionary lacks."""
    counts = Counter(token for sentence in sentences for token in sentence.split())
    return sum(n for token, n in counts.items() if token not in known) / max(1, counts.total())


def _resume_or_clear(out: Path, fingerprint: str, overwrite: bool) -> None:
    """Leaves a run of the same plan as it is; clears an unfinished one of another plan, and a finished one where
    allowed."""
    mark = out / "fingerprint"
    if mark.exists() and mark.read_text().strip() == fingerprint:
        return
    foreign = [p.name for p in out.iterdir() if not _OURS.fullmatch(p.name)]
    if not mark.exists() or foreign:
        what = f" ({', '.join(sorted(foreign)[:3])})" if foreign else ""
        raise InputError(f"{out}: holds files of another kind{what}; choose another folder")
    if (out / "settings.json").exists() and not overwrite:
        raise InputError(
            f"{out}: holds data prepared from other inputs or with other options; choose another folder, or replace it "
            "with --overwrite"
        )
    remove_folder(out)


# What a preparation writes.
_OURS = re.compile(
    r"fingerprint|settings\.json|bpe\.codes|sentencepiece\.model|text|preprocess\.log|documents\..+\.json"
    r"|dict\..+\.txt|.+\.(bin|idx)|\..+\.tmp"
)


def _read(plan: Plan, name: str, prefix: str) -> Corpus:
    source, target = (f"{prefix}.{language}" for language in plan.languages)
    if name.startswith("test") and not Path(target).exists():
        return read_source(source, target, plan.clean)
    return read_corpus(source, target, plan.drop_empty, plan.clean)


def _encode(plan: Plan, settings: Settings, corpora: dict[str, list[Corpus]]) -> dict[str, list[list[str]]]:
    """Both sides' sentences of every split in subwords, in reading order; learned and encoded work is kept on disk."""
    words: dict[str, list[list[str]]] = {}
    for name, sets in corpora.items():
        words[name] = []
        for side, language in enumerate(plan.languages):
            sentences = [s for corpus in sets for document in corpus.documents for s in document[side]]
            task: Task = ("tokenize", (language, settings.tokenizer))
            words[name].append(_kept(f"{name}.{language}: words", sentences, task, plan))
    model = plan.out / SUBWORDS[settings.bpe]
    if plan.reuse is not None:
        atomic_copy(plan.reuse / SUBWORDS[settings.bpe], model)
        Codec(plan.out, settings.tokenizer, settings.bpe)  # a damaged model is refused before it is used
    elif not model.exists():
        size = SIZE if plan.size is None else plan.size
        print(f"learning subwords ({settings.bpe}, {size}) ...", file=sys.stderr, flush=True)
        learn_subwords(plan.out, words["train"][0] + words["train"][1], settings.bpe, size)
    task, learned = ("encode", (str(plan.out), "none", settings.bpe, settings.separator)), model.read_bytes()
    return {
        name: [
            _kept(f"{name}.{language}: subwords", sentences, task, plan, learned)
            for sentences, language in zip(sides, plan.languages)
        ]
        for name, sides in words.items()
    }


def _kept(what: str, sentences: list[str], task: Task, plan: Plan, model: bytes = b"") -> list[str]:
    """The transformed sentences, from the file that an interrupted run or another preparation left of the same work."""
    kind, args = task
    told = args[3:] if model else args  # not the folder: the model's own content counts
    digest = hashlib.sha256(json.dumps([kind, told, sentences]).encode() + model).hexdigest()
    path = (plan.text or plan.out / "text") / f"{kind}.{digest[:32]}"
    if path.exists():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    done = transform(sentences, *task, workers=plan.workers, what=what)
    atomic_write(path, "".join(s + "\n" for s in done))
    return done


def _examples(
    plan: Plan, settings: Settings, name: str, sets: list[Corpus], encoded: list[list[str]], text: Path
) -> SplitInfo:
    """Writes the examples of one split; returns its manifest.

    Test documents are cut by their source alone, so that no reference decides how a source is cut.
    """
    between = f" {settings.separator} " if settings.separator else " "
    extra = 1 if settings.separator else 0
    spans: list[Span] = []
    lines: list[tuple[str, str]] = []
    number, first, n_cut, n_parts = 0, 0, 0, 0
    for corpus in tqdm(sets, desc=f"{name}: examples", unit=" files"):
        for pair, numbers in zip(corpus.documents, corpus.lines):
            n = len(pair.source)
            sides = [encoded[0][first : first + n], encoded[1][first : first + n]]
            first += n
            counted = sides[:1] if name.startswith("test") else sides
            # a separator stands before every sentence but the first; counting it with each keeps the bound simple
            lengths = [[len(s.split()) + extra for s in column] for column in zip(*counted)]
            for at, columns in enumerate(lengths):
                if max(columns) > settings.limit - 1:
                    side = columns.index(max(columns))
                    raise InputError(
                        f"{(corpus.source, corpus.target)[side]}:{numbers[at]}: the sentence has {max(columns)} tokens,"
                        f" more than the limit of {settings.limit} with end of sentence; split it or raise --limit"
                    )
            pieces = parts(number, lengths, settings.limit - 1)
            n_cut += len(pieces) > 1
            n_parts += len(pieces)
            how = settings.resolutions if name == "train" or settings.resolutions == "sentences" else "documents"
            for piece in pieces:
                for span in chunks(piece, how):
                    spans.append(span)
                    source, target = (between.join(s[span.start : span.start + span.size]) for s in sides)
                    lines.append((source, target))
            number += 1
    for side, language in enumerate(plan.languages):
        atomic_write(text / f"{name}.{language}", "".join(line[side] + "\n" for line in lines))
    return SplitInfo(
        path=str(SplitInfo.file(plan.out, name)),
        documents=number,
        sentences=first,
        n_examples=len(lines),
        n_cut=n_cut,
        n_parts=n_parts,
        dropped=sum(corpus.dropped for corpus in sets),
        cleaned=sum(corpus.cleaned for corpus in sets),
        reference=any(any(d.target) for corpus in sets for d in corpus.documents),
        longest=(max(len(s.split()) for s, _ in lines) + 1, max(len(t.split()) for _, t in lines) + 1),
        examples=() if name == "train" else tuple(spans),
    )


def _binarise(plan: Plan, names: list[str], text: Path) -> None:
    """fairseq-preprocess with a joint dictionary (the reused folder's, where there is one)."""
    staged = text / "binarised"
    shutil.rmtree(staged, ignore_errors=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--source-lang", plan.source_lang]
    command += ["--target-lang", plan.target_lang, "--destdir", staged.name, "--workers", str(plan.workers)]
    command += ["--joined-dictionary"]
    if plan.reuse is not None:
        command += ["--srcdict", str((plan.reuse / f"dict.{plan.source_lang}.txt").resolve())]
    for name in ("train", "valid"):
        if name in names:
            command += [f"--{name}pref", name]
    if tests := [name for name in names if name.startswith("test")]:
        command += ["--testpref", ",".join(tests)]
    print("binarising ...", file=sys.stderr, flush=True)
    # from within the folder: fairseq splits these options at commas
    process = start(command, cwd=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = process.communicate()
    if process.returncode:
        raise InputError(f"fairseq-preprocess failed: {(output.strip().splitlines() or ['no message'])[-1]}")
    for path in staged.iterdir():
        path.replace(plan.out / path.name)


def summary(plan: Plan, done: Prepared) -> str:
    """What was prepared, what to mind, and the next command, for a terminal."""
    lines = []
    for info in done.splits:
        cut = f"; {info.n_cut} documents cut, {info.n_parts} parts in all" if info.n_cut else ""
        lines.append(
            f"{info.name}: {info.documents} documents, {info.sentences} sentences, {info.n_examples} examples{cut}; "
            f"longest example {info.longest[0]} / {info.longest[1]} tokens"
        )
        if info.name != "train":
            rates = [f"{rate:.1%} of {language}" for rate, language in zip(info.unknown, plan.languages)]
            lines[-1] += f"; <unk>: {', '.join(rates[: 1 + info.reference])}"
        if not info.reference:
            lines[-1] += "; no reference"
        if info.dropped:
            lines[-1] += f"; {info.dropped} pairs with an empty side dropped"
        if info.cleaned:
            lines[-1] += f"; control characters taken for spaces in {info.cleaned} lines"
    learned = "" if done.merges is None else f", {done.merges[1]:,} merges learned"
    lines.append(f"dictionary: {done.vocabulary:,} subwords{learned}")
    if done.merges is not None and done.merges[1] < done.merges[0]:
        lines.append(
            f"note: {done.merges[0]:,} merges were asked for, but the text has no more; for a small corpus try --size "
            f"{max(500, 1000 * (done.merges[1] // 4000))}"
        )
    if any(max(info.unknown) > MANY_UNKNOWN for info in done.splits):
        lines.append(f"note: more than {MANY_UNKNOWN:.0%} of the tokens are unknown; use fewer subwords, or more text")
    if any(info.name == "train" for info in done.splits):
        lines.append(f"next: scripts/train.sh {plan.out} CHECKPOINTS")
    else:
        lines.append(f"next: lasformer generate {plan.out} CHECKPOINT OUT --split {done.splits[0].name}")
    return "\n".join(lines)
