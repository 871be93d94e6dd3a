"""Preparation of raw documents as binarised data: check, tokenise, split into subwords, form examples, binarise.

The result is ordinary fairseq data plus three kinds of files: ``settings.json`` (how to decode), the subword model, and
``documents.<split>.json`` (which example belongs to which document).
"""

import hashlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy, atomic_write, check_writable, locked, remove_folder
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.base.shared_options import language_code
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.data.binarise import binarise
from fairseq_lasformer.data.examples import ExampleRule, TooLong
from fairseq_lasformer.data.manifest import MONO, TRAINING, SplitInfo
from fairseq_lasformer.data.prepare_config import SIZE, PrepareConfig, differences, fingerprint
from fairseq_lasformer.data.subwords import (
    DataConfig,
    Encoding,
    SubwordCodec,
    Tokenisation,
    check_separator,
    learn_subwords,
    subword_model,
    transform,
    vocabulary,
)
from fairseq_lasformer.executors import executor
from fairseq_lasformer.text.documents import Corpus, Pair, Span, read_corpus, read_source, single_sentences

MANY_UNKNOWN = 0.01
"""Share of unknown tokens in a split above which the summary reports it."""

INPUTS = "inputs.json"
"""File of a prepared folder: what it was made from, see :meth:`PrepareConfig.inputs`."""

UNDIVIDED = 200
"""Number of sentences from which the summary reports a file that has no blank line."""


class Prepared(NamedTuple):
    """Result of :func:`prepare`."""

    settings: DataConfig  # settings of the prepared folder
    splits: list[SplitInfo]
    # number of BPE merges requested and learned (of both languages together, if each has its own); None with
    # sentencepiece or reused subwords
    merges: tuple[int, int] | None
    vocabulary: tuple[int, ...]  # number of words in the dictionary, or in those of source and target


def prepare(config: PrepareConfig, overwrite: bool = False, model: Path | None = None) -> Prepared:
    """Run the preparation. Resume an interrupted run; if the run has finished, do nothing.

    Args:
        overwrite: replace data that was prepared from other inputs or with other options.
        model: what was trained on the data that is there, which then stays, whatever ``overwrite`` says.
    """
    settings = config.settings()
    if settings.limit < 2:
        raise InputError(f"--limit {settings.limit}: at least 2 tokens are needed")
    if settings.max_lines < 0:
        raise InputError(f"--max-lines {settings.max_lines}: expected a number of sentences, or 0 for no limit")
    executor(config.engine, "the preparation")  # refuses an engine that does not exist before any work
    if config.workers < 1:
        raise InputError(f"--workers {config.workers}: at least one is needed")
    for language in config.languages:
        language_code(language)
    if config.source_lang == config.target_lang:
        raise InputError(
            f"-s {config.source_lang} -t {config.target_lang}: the two languages must have different names"
        )
    if ":" in str(config.out):
        raise InputError(f"{config.out}: fairseq splits paths at colons; choose another folder")
    check_separator(settings.separator)
    for prefix in config.mono:
        if not any(Path(f"{prefix}.{language}").exists() for language in config.languages):
            raise InputError(f"--mono {prefix}: neither {prefix}.{config.source_lang} nor .{config.target_lang} exists")
    if not config.splits():
        raise InputError("nothing to prepare: name --train, --valid or --test")
    if not (config.train or config.train_sentences) and config.reuse is None:
        raise InputError("without --train, --reuse must name a prepared folder whose subwords and dictionary are used")
    inputs = config.inputs(settings)
    settings = replace(settings, fingerprint=fingerprint(inputs))
    finished = (config.out / "settings.json").exists()
    if model is not None and finished and DataConfig.load(config.out).fingerprint != settings.fingerprint:
        raise InputError(
            f"{config.out}: {model} was trained on it, and it was prepared from {_other_inputs(config.out, inputs)}; "
            "choose another folder (out), or remove both"
        )
    check_writable(config.out / "settings.json")
    if config.text is not None:
        check_writable(config.text / "words")
    with locked(config.out.with_name(f".{config.out.name}.lock"), "a preparation"):
        if config.out.exists() and any(config.out.iterdir()):
            _resume_or_clear(config.out, inputs, overwrite)
        if not (config.out / "settings.json").exists():
            _run(config, settings, inputs)
    splits = [SplitInfo.load(config.out, name) for name, _ in config.splits()]
    models = [subword_model(config.out, settings.bpe, language) for language in settings.models_for]
    merges = None
    if config.reuse is None and settings.bpe == "subword-nmt":
        learned = sum(model.read_text(encoding="utf-8").count("\n") - 1 for model in models)
        merges = (config.size or SIZE) * len(models), learned
    words = tuple(len(_dictionary(config.out, language or config.source_lang)) for language in settings.models_for)
    return Prepared(settings, [i for i in splits if i is not None], merges, words)


def _run(config: PrepareConfig, settings: DataConfig, inputs: dict[str, str]) -> None:
    corpora = {name: [_read(config, name, p) for p in prefixes] for name, prefixes in config.splits()}
    config.out.mkdir(parents=True, exist_ok=True)
    Progress(config.out, settings.fingerprint).begin()
    text = config.out / "text"
    encoded = _encode(config, settings, corpora)
    infos = [_examples(config, settings, name, corpus, encoded[name], text) for name, corpus in corpora.items()]
    known = None if config.reuse is None else _reused(config, config.reuse, settings.separator, text)
    pieces: list[list[str]] = [[] for _ in settings.models_for]
    if settings.bpe == "sentencepiece":  # all of them, for subwords drawn at random in training
        pieces = [[*vocabulary(subword_model(config.out, settings.bpe, la))] for la in settings.models_for]
    also = [f"{name}.{config.languages[side]}" for name, side in MONO.items() if name in corpora]
    binarise(text, list(corpora), config.languages, config.out, known or pieces, also)
    words = [_dictionary(config.out, language) for language in config.languages]
    for info in infos:
        sides = encoded[info.name]
        replace(info, unknown=(_unknown(sides[0], words[0]), _unknown(sides[1], words[1]))).save()
    atomic_write(config.out / INPUTS, json.dumps(inputs, indent=1) + "\n")
    settings.save(config.out)
    shutil.rmtree(text)


def _reused(config: PrepareConfig, folder: Path, separator: str, text: Path) -> list[Path]:
    """Return the dictionaries of a prepared folder, in a copy with the separator if they lack it."""
    paths = []
    for language in config.languages:
        path = folder / f"dict.{language}.txt"
        if separator and separator not in _dictionary(folder, language):
            longer = text / path.name
            atomic_write(longer, path.read_text(encoding="utf-8").rstrip("\n") + f"\n{separator} 1\n")
            path = longer
        paths.append(path)
    return paths


def _dictionary(folder: Path, language: str) -> set[str]:
    """Read the words in a prepared folder's dictionary."""
    path = folder / f"dict.{language}.txt"
    try:
        return {line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").split("\n") if line}
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: cannot be read; prepare the data again") from e


def _unknown(sentences: Sequence[str], known: set[str]) -> float:
    """Return the share of the tokens that are missing from the dictionary."""
    counts = Counter(token for sentence in sentences for token in sentence.split())
    return sum(n for token, n in counts.items() if token not in known) / max(1, counts.total())


def _resume_or_clear(out: Path, inputs: dict[str, str], overwrite: bool) -> None:
    """Leave a run of the same inputs untouched; otherwise remove it, if unfinished or ``overwrite`` is set."""
    now = fingerprint(inputs)
    mark, finished = Progress(out, now), (out / "settings.json").exists()
    if mark.matches or finished and DataConfig.load(out).fingerprint == now:
        return
    foreign = [p.name for p in out.iterdir() if not _OURS.fullmatch(p.name)]
    if not (mark.exists or finished) or foreign:
        what = f" ({', '.join(sorted(foreign)[:3])})" if foreign else ""
        raise InputError(f"{out}: contains files that lasformer prepare did not write{what}; choose another folder")
    if finished and not overwrite:
        raise InputError(
            f"{out}: contains data prepared from {_other_inputs(out, inputs)}; choose another folder, or replace it "
            "with --overwrite"
        )
    remove_folder(out)


def _other_inputs(out: Path, inputs: dict[str, str]) -> str:
    """Say in what the inputs of prepared data differ from these."""
    try:
        before = json.loads((out / INPUTS).read_text(encoding="utf-8"))
        said = differences({str(name): str(value) for name, value in before.items()}, inputs)
    except (OSError, ValueError, AttributeError, RecursionError):  # of an earlier version
        said = ""
    return "other inputs or with other options" + (f" ({said})" if said else "")


# Names of the files that a preparation writes.
_OURS = re.compile(
    r"progress\.jsonl?|fingerprint|inputs\.json|settings\.json|bpe\.(.+\.)?codes|sentencepiece\.(.+\.)?model|text|preprocess\.log"
    r"|documents\..+\.json"
    r"|dict\..+\.txt|.+\.(bin|idx)|\..+\.tmp"
)


def _read(config: PrepareConfig, name: str, prefix: str) -> Corpus:
    if name in MONO:
        path = f"{prefix}.{config.languages[MONO[name]]}"
        alone = read_source(path, path, config.clean)
        return alone._replace(documents=[Pair(document.source, document.source) for document in alone.documents])
    source, target = (f"{prefix}.{language}" for language in config.languages)
    if name.startswith("test") and not Path(target).exists():
        return read_source(source, target, config.clean)
    corpus = read_corpus(source, target, config.drop_empty, config.clean)
    return single_sentences(corpus) if name == "train" and prefix in config.train_sentences else corpus


def _encode(
    config: PrepareConfig, settings: DataConfig, corpora: dict[str, list[Corpus]]
) -> dict[str, list[list[str]]]:
    """Encode every split's sentences as subwords, both sides, in reading order; keep intermediate results on disk."""
    words: dict[str, list[list[str]]] = {}
    for name, sets in corpora.items():
        words[name] = []
        for side, of in enumerate(config.sides(name)):
            language = config.languages[of]
            sentences = [s for corpus in sets for document in corpus.documents for s in document[side]]
            work = Tokenisation(language, settings.tokenizer)
            words[name].append(_cached_transform(f"{name}.{language}: words", sentences, work, config))
    for language in settings.models_for:
        model = subword_model(config.out, settings.bpe, language)
        if config.reuse is not None:
            atomic_copy(subword_model(config.reuse, settings.bpe, language), model)
        elif not model.exists():
            size = SIZE if config.size is None else config.size
            sides = [s for la, s in zip(config.languages, words["train"]) if language in ("", la)]
            what = f"{settings.bpe}, {size}" + (f", {language}" if language else "")
            sides += [words[mono][0] for mono in MONO if mono in words]
            print(f"learning subwords ({what}) ...", file=sys.stderr, flush=True)
            learn_subwords(model, [sentence for side in sides for sentence in side], settings.bpe, size)
    SubwordCodec.of(config.out, settings)  # rejects a damaged model before it is used
    encoded: dict[str, list[list[str]]] = {}
    for name, sides in words.items():
        encoded[name] = []
        for of, sentences in zip(config.sides(name), sides):
            language = config.languages[of]
            model = subword_model(config.out, settings.bpe, "" if settings.joined_dictionary else language)
            encoding, what = Encoding(str(config.out.absolute()), settings, language), f"{name}.{language}: subwords"
            encoded[name].append(_cached_transform(what, sentences, encoding, config, model.read_bytes()))
    return encoded


def _cached_transform(
    what: str, sentences: list[str], work: Tokenisation | Encoding, config: PrepareConfig, model: bytes = b""
) -> list[str]:
    """Return the transformed sentences, from the cache if an interrupted run or another preparation left them there."""
    digest = key_of(work.kind, work.options, sentences, hashlib.sha256(model).hexdigest())
    path = (config.text or config.out / "text") / f"{work.kind}.{digest[:32]}"
    if path.exists():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    done = transform(sentences, work, config.workers, what, config.engine)
    atomic_write(path, "".join(s + "\n" for s in done))
    return done


def _examples(
    config: PrepareConfig, settings: DataConfig, name: str, sets: list[Corpus], encoded: list[list[str]], text: Path
) -> SplitInfo:
    """Write the examples of one split and return its manifest.

    Test documents are cut by the length of their source alone, so the reference cannot influence the cut.
    """
    rule = ExampleRule(settings)
    spans: list[Span] = []
    lines: list[tuple[str, str]] = []
    number, first, n_cut, n_parts = 0, 0, 0, 0
    for corpus in progress_bar(sets, desc=f"{name}: examples", unit=" files"):
        for pair, numbers in zip(corpus.documents, corpus.lines):
            n = len(pair.source)
            sides = [encoded[0][first : first + n], encoded[1][first : first + n]]
            first += n
            try:
                pieces = rule.cut(number, *(sides[:1] if name.startswith("test") else sides))
            except TooLong as e:
                raise InputError(
                    f"{(corpus.source, corpus.target)[e.side]}:{numbers[e.sentence]}: the sentence has {e.tokens} "
                    f"tokens, more than the limit of {rule.limit} with end of sentence; split it or raise --limit"
                ) from None
            n_cut += len(pieces) > 1
            n_parts += len(pieces)
            for piece in pieces:
                for span in rule.examples(piece, training=name in TRAINING):
                    spans.append(span)
                    parts = [s[span.start : span.start + span.size] for s in sides]
                    source, target = (rule.join(part, of) for of, part in zip(config.sides(name), parts))
                    lines.append((source, target))
            number += 1
    for side, language in enumerate(config.languages):
        atomic_write(text / f"{name}.{language}", "".join(line[side] + "\n" for line in lines))
    return SplitInfo(
        path=str(SplitInfo.file(config.out, name)),
        documents=number,
        sentences=first,
        n_examples=len(lines),
        n_cut=n_cut,
        n_parts=n_parts,
        dropped=sum(corpus.dropped for corpus in sets),
        cleaned=sum(corpus.cleaned for corpus in sets),
        reference=any(any(d.target) for corpus in sets for d in corpus.documents),
        longest=(max(len(s.split()) for s, _ in lines) + 1, max(len(t.split()) for _, t in lines) + 1),
        examples=() if name in TRAINING else tuple((s.document, s.start, s.size) for s in spans),
        blanks=() if name in TRAINING else _blanks(sets),
        undivided=tuple(c.source for c in sets if len(c.documents) == 1 and c.sentences >= UNDIVIDED),
    )


def _blanks(sets: list[Corpus]) -> tuple[int, ...]:
    """Count the blank lines before each document of one or more files read in sequence, and after the last."""
    blanks = [0]
    for corpus in sets:
        first, *rest = corpus.blanks
        blanks[-1] += first
        blanks += rest
    return tuple([blanks[0], *(max(1, n) for n in blanks[1:-1]), blanks[-1]])


def counted(n: int, what: str) -> str:
    """Return a number and what it counts, such as ``1 document``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def _kind(info: SplitInfo, settings: DataConfig) -> str:
    """Describe the examples of a training split."""
    if info.name not in TRAINING:
        return ""
    what = {"mixture": "chunks of every length", "documents": "whole documents", "sentences": "single sentences"}
    return f" ({what[settings.resolutions]})"


def summary(config: PrepareConfig, done: Prepared) -> str:
    """Summarise for the terminal: what was prepared, warnings, and the next command."""
    lines = []
    for info in done.splits:
        cut = f"; {counted(info.n_cut, 'document')} cut, {info.n_parts} parts in total" if info.n_cut else ""
        lines.append(
            f"{info.name}: {counted(info.documents, 'document')}, {counted(info.sentences, 'sentence')}, "
            f"{counted(info.n_examples, 'example')}{_kind(info, done.settings)}{cut}; "
            f"longest example {info.longest[0]} / {info.longest[1]} tokens"
        )
        if info.name not in TRAINING:
            rates = [f"{rate:.1%} of {language}" for rate, language in zip(info.unknown, config.languages)]
            lines[-1] += f"; <unk>: {', '.join(rates[: 1 + info.reference])}"
        if not info.reference:
            lines[-1] += "; no reference"
        if info.dropped:
            lines[-1] += f"; {info.dropped} pairs with an empty side dropped"
        if info.cleaned:
            lines[-1] += f"; control characters replaced with spaces in {info.cleaned} lines"
    learned = "" if done.merges is None else f", {done.merges[1]:,} merges learned"
    words = " and ".join(f"{n:,}" for n in done.vocabulary)
    lines.append(f"{'dictionary' if len(done.vocabulary) == 1 else 'dictionaries'}: {words} subwords{learned}")
    if done.merges is not None and done.merges[1] < done.merges[0]:
        lines.append(
            f"note: {done.merges[0]:,} merges were requested, but the text yields fewer; for a small corpus try --size "
            f"{max(500, 1000 * (done.merges[1] // 4000))}"
        )
    lines += [
        f"note: {file} has no blank line, so it is one document; if its lines are sentences that do not belong "
        f"together, name it in --train-sentences instead of --train"
        for info in done.splits
        if info.name == "train"
        for file in info.undivided
    ]
    if any(max(info.unknown) > MANY_UNKNOWN for info in done.splits):
        lines.append(f"note: more than {MANY_UNKNOWN:.0%} of the tokens are unknown; use fewer subwords, or more text")
    if any(info.name == "train" for info in done.splits):
        lines.append(f"next: lasformer train {config.out} CHECKPOINTS")
    else:
        lines.append(f"next: lasformer generate {config.out} CHECKPOINT OUT --split {done.splits[0].name}")
    return "\n".join(lines)
