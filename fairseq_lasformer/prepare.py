"""From raw documents to binarised data: check, tokenise, subwords, examples at several resolutions, binarise.

The result is ordinary fairseq data, with three files beside it: ``settings.json`` (how to decode), the subword model,
and ``documents.<split>.json`` (which example belongs to which document).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.dataset import SplitInfo
from fairseq_lasformer.documents import (
    Corpus,
    InputError,
    Span,
    atomic_write,
    chunks,
    parts,
    read_corpus,
)
from fairseq_lasformer.text import SUBWORDS, Settings, learn_subwords, transform

# What text.transform does: its kind and that kind's arguments.
Task = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Plan:
    """What to prepare. Prefixes name raw files ``PREFIX.LANG``.

    Attributes:
        train: joined into one training set. valid: likewise. test: each its own split (test, test1, …).
        reuse: a prepared folder whose subwords and dictionary are taken instead of learning them.
        size: BPE merges, or sentencepiece's vocabulary.
        text: where tokenised and encoded sentences are kept for other preparations of the same text; by default in
            ``out`` until it is done.
    """

    source_lang: str
    target_lang: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    out: Path
    tokenizer: str = "moses"
    bpe: str = "subword-nmt"
    size: int = 32000
    resolutions: str = "mixture"
    limit: int = 1024
    separator: str = ""
    drop_empty: bool = False
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

    def fingerprint(self) -> str:
        """Hash of all inputs and of every option that changes the result."""
        digest = hashlib.sha256()
        options = {k: str(v) for k, v in vars(self).items() if k not in ("out", "workers", "reuse", "text")}
        digest.update(json.dumps(options, sort_keys=True).encode())
        files = [f"{p}.{lang}" for _, prefixes in self.splits() for p in prefixes for lang in self.languages]
        if self.reuse is not None:
            files += [str(self.reuse / SUBWORDS[self.bpe]), str(self.reuse / f"dict.{self.source_lang}.txt")]
        for name in files:
            try:
                digest.update(hashlib.sha256(Path(name).read_bytes()).digest())
            except OSError as e:
                raise InputError(f"{name}: cannot be read ({e.strerror})") from e
        return digest.hexdigest()


def prepare(plan: Plan, overwrite: bool = False) -> list[SplitInfo]:
    """Carries the plan out; returns what it did per split. A finished or interrupted run of the same plan is taken up.

    Raises:
        InputError: bad input, with file and line; nothing of the split is written.
    """
    if plan.limit < 2:
        raise InputError(f"--limit {plan.limit}: at least 2 tokens are needed")
    if not plan.splits():
        raise InputError("nothing to prepare: name --train, --valid or --test")
    if not plan.train and plan.reuse is None:
        raise InputError("without --train, --reuse must name a prepared folder whose subwords and dictionary are taken")
    fingerprint = plan.fingerprint()
    settings = Settings(
        plan.source_lang,
        plan.target_lang,
        plan.tokenizer,
        plan.bpe,
        plan.separator,
        plan.limit,
        plan.resolutions,
        fingerprint,
    )
    if plan.out.exists() and any(plan.out.iterdir()):
        _take_up(plan, fingerprint, overwrite)
        if (plan.out / "settings.json").exists():
            done = [SplitInfo.load(plan.out, name) for name, _ in plan.splits()]
            return [info for info in done if info is not None]
    corpora = {name: _read(plan, prefixes) for name, prefixes in plan.splits()}
    plan.out.mkdir(parents=True, exist_ok=True)
    atomic_write(plan.out / "fingerprint", fingerprint + "\n")
    text = plan.out / "text"
    encoded = _encode(plan, corpora)
    infos = [_examples(plan, name, corpus, encoded[name], text) for name, corpus in corpora.items()]
    _binarise(plan, [name for name in corpora], text)
    settings.save(plan.out)
    shutil.rmtree(text)
    return infos


def _take_up(plan: Plan, fingerprint: str, overwrite: bool) -> None:
    """Leaves an interrupted or finished run of the same plan as it is, clears another one's where allowed."""
    mark = plan.out / "fingerprint"
    if mark.exists() and mark.read_text().strip() == fingerprint:
        return
    if not mark.exists() or not overwrite:
        raise InputError(
            f"{plan.out}: holds something else than this preparation (other inputs or options); "
            + (
                "choose another folder"
                if not mark.exists()
                else "choose another folder, or replace it with --overwrite"
            )
        )
    shutil.rmtree(plan.out)


def _read(plan: Plan, prefixes: Sequence[str]) -> list[Corpus]:
    return [read_corpus(f"{p}.{plan.source_lang}", f"{p}.{plan.target_lang}", plan.drop_empty) for p in prefixes]


def _encode(plan: Plan, corpora: dict[str, list[Corpus]]) -> dict[str, list[list[str]]]:
    """Both sides' sentences of every split in subwords, in reading order; learned and encoded work is kept on disk."""
    words: dict[str, list[list[str]]] = {}
    for name, sets in corpora.items():
        words[name] = []
        for side, language in enumerate(plan.languages):
            sentences = [s for corpus in sets for document in corpus.documents for s in document[side]]
            if plan.separator and any(plan.separator in s.split() for s in sentences):
                raise InputError(
                    f"{sets[0][3 + side]}: the separator {plan.separator} occurs in the text; choose another"
                )
            task: Task = ("tokenize", (language, plan.tokenizer))
            words[name].append(_kept(f"{name}.{language}: words", sentences, task, plan))
    model = plan.out / SUBWORDS[plan.bpe]
    if not model.exists():
        if plan.reuse is not None:
            shutil.copyfile(plan.reuse / SUBWORDS[plan.bpe], model)
        else:
            print(f"learning subwords ({plan.bpe}, {plan.size}) ...", file=sys.stderr, flush=True)
            learn_subwords(plan.out, words["train"][0] + words["train"][1], plan.bpe, plan.size)
    task, learned = ("encode", (str(plan.out), "none", plan.bpe)), model.read_bytes()
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
    digest = hashlib.sha256(json.dumps([kind, [] if model else args, sentences]).encode() + model).hexdigest()
    path = (plan.text or plan.out / "text") / f"{kind}.{digest[:32]}"
    if path.exists():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    done = transform(sentences, *task, workers=plan.workers, what=what)
    atomic_write(path, "".join(s + "\n" for s in done))
    return done


def _examples(plan: Plan, name: str, sets: list[Corpus], encoded: list[list[str]], text: Path) -> SplitInfo:
    """Writes the examples of one split, and its manifest.

    Test documents are cut by their source alone, so that no reference decides how a source is cut.
    """
    between = f" {plan.separator} " if plan.separator else " "
    extra = 1 if plan.separator else 0
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
                if max(columns) > plan.limit - 1:
                    side = columns.index(max(columns))
                    raise InputError(
                        f"{(corpus.source, corpus.target)[side]}:{numbers[at]}: the sentence has {max(columns)} tokens,"
                        f" more than the limit of {plan.limit} with end of sentence; split it or raise --limit"
                    )
            pieces = parts(number, lengths, plan.limit - 1)
            n_cut += len(pieces) > 1
            n_parts += len(pieces)
            how = plan.resolutions if name == "train" or plan.resolutions == "sentences" else "documents"
            for piece in pieces:
                for span in chunks(piece, how):
                    spans.append(span)
                    source, target = (between.join(s[span.start : span.start + span.size]) for s in sides)
                    lines.append((source, target))
            number += 1
    for side, language in enumerate(plan.languages):
        atomic_write(text / f"{name}.{language}", "".join(line[side] + "\n" for line in lines))
    info = SplitInfo(
        path=str(SplitInfo.file(plan.out, name)),
        documents=number,
        sentences=first,
        n_examples=len(lines),
        n_cut=n_cut,
        n_parts=n_parts,
        dropped=sum(corpus.dropped for corpus in sets),
        longest=(max(len(s.split()) for s, _ in lines) + 1, max(len(t.split()) for _, t in lines) + 1),
        examples=() if name == "train" else tuple(spans),
    )
    info.save()
    return info


def _binarise(plan: Plan, names: list[str], text: Path) -> None:
    """fairseq-preprocess with a joint dictionary (the reused folder's, where there is one)."""
    staged = text / "binarised"
    shutil.rmtree(staged, ignore_errors=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--source-lang", plan.source_lang]
    command += ["--target-lang", plan.target_lang, "--destdir", str(staged), "--workers", str(plan.workers)]
    command += ["--joined-dictionary"]
    if plan.reuse is not None:
        command += ["--srcdict", str(plan.reuse / f"dict.{plan.source_lang}.txt")]
    for name in ("train", "valid"):
        if name in names:
            command += [f"--{name}pref", str(text / name)]
    if tests := [str(text / name) for name in names if name.startswith("test")]:
        command += ["--testpref", ",".join(tests)]
    print("binarising ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise InputError(f"fairseq-preprocess failed: {done.stdout.strip().splitlines()[-1:]}")
    for path in staged.iterdir():
        path.replace(plan.out / path.name)
