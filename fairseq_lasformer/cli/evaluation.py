"""Subcommands that analyse models: contrastive test sets, use of context, reports, costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, check_writable
from fairseq_lasformer.base.options import FIGURES, PAGE, argument, option
from fairseq_lasformer.base.published import local_path
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.shared_options import Beam, Data, Device, OverwriteOthers, max_tokens
from fairseq_lasformer.base.targets import check_targets


@dataclass(frozen=True, kw_only=True)
class Figures(OverwriteOthers):
    """Figures, shown and written."""

    json: Path | None = option(None, "also write the figures to this file", writes=FIGURES)
    figures = ""  # the key that they have there


@dataclass(frozen=True, kw_only=True)
class Contrast(Data, Device, Beam, Figures):
    """A contrastive test."""

    figures = "results"
    checkpoint: Path = argument("checkpoint to measure, or its folder")
    prefix: Path = argument(
        "the set: PREFIX.SRC, PREFIX.TGT, PREFIX.groups, PREFIX.distance; or SET.json (Voita et al.)"
    )
    context: str | None = option(
        None, "context policies, from none,source,both (default: all; --generative: the first two)"
    )
    generative: bool = option(
        False, "translate, and count the sentences whose translation contains the right pronoun (er, sie, es)"
    )
    max_tokens: int = max_tokens(4096)


def run_contrast(args: Contrast) -> None:
    from fairseq_lasformer.analysis import contrast
    from fairseq_lasformer.analysis.contrast_sets import read_set
    from fairseq_lasformer.documents.hub import load_model

    if args.json:
        check_writable(args.json)
    policies = contrast.policies(args.context or ("none,source" if args.generative else "none,source,both"))
    hub = load_model(args.checkpoint, args.data, args.device)
    groups = read_set(args.prefix, hub.settings.source_lang, hub.settings.target_lang)
    if args.generative:
        results = [contrast.generate(hub, groups, policy, args.beam, args.max_tokens) for policy in policies]
    else:
        results = [contrast.evaluate(hub, groups, policy, args.max_tokens) for policy in policies]
    print(contrast.table(results))
    if args.json:
        atomic_write(args.json, json.dumps({args.figures: results}, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Context(Data, Device, Figures):
    """A measurement of the context's worth."""

    figures = "context"
    checkpoint: Path = argument("checkpoint to measure, or its folder")
    prefix: Path = argument("documents and their translation, raw form: PREFIX.SRC, PREFIX.TGT")
    tokens: str = option("10,30,100,300", "tokens of context on either side")
    lines: int = option(2000, "lines to score, evenly drawn; 0: all")
    whole: bool = option(False, "also measure whole documents, with the source of later lines")
    split: str | None = option(
        None,
        "first cut lines of at least 7 words in two, as --split-lines does, so that context matters; with a name, also "
        "write this text to PREFIX.SRC and PREFIX.TGT, to translate and score it",
        bare="",
        metavar="PREFIX",
        place=True,
    )
    kappa: str = option("", "shares of keys to keep, such as 0.05,0.2 (default: the model's)")
    max_tokens: int = max_tokens(4096)


def run_context(args: Context) -> None:
    from fairseq_lasformer.analysis import context_use
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.text.documents import join_documents, read_corpus, sides
    from fairseq_lasformer.text.halves import fragments

    try:
        tokens = sorted({int(n) for n in args.tokens.split(",")})
        shares = [float(share) for share in args.kappa.split(",")] if args.kappa else []
    except ValueError as e:
        raise InputError(f"--tokens {args.tokens} --kappa {args.kappa}: expected numbers separated by commas") from e
    if min(tokens) < 1 or any(not 0 < share <= 1 for share in shares):
        raise InputError("--tokens: expected numbers of tokens; --kappa: shares from 0 to 1")
    if args.json:
        check_writable(args.json)
    hub = load_model(args.checkpoint, args.data, args.device)
    languages = hub.settings.source_lang, hub.settings.target_lang
    documents = read_corpus(*sides(args.prefix, *languages)).documents
    if args.whole and hub.codec.resolutions == "sentences":
        raise InputError("--whole: the model reads single sentences, and no documents")
    if args.split is not None:
        documents = fragments(documents)
    if args.split:
        cut = sides(Path(args.split), *languages)
        outputs = [(path, "a side of --split") for path in cut]
        if args.json:
            outputs.append((args.json, "--json"))
        check_targets(outputs, sides(args.prefix, *languages))
        if existing := [path for path in cut if path.exists() and not args.overwrite]:
            raise InputError(f"{existing[0]}: exists; choose another name for --split, or add --overwrite")
        for path, side in zip(cut, zip(*documents)):
            atomic_write(path, join_documents(side))
        print(f"{cut[0]}, {cut[1]}: {sum(len(pair.source) for pair in documents):,} lines")
    use = context_use.ContextUse(hub, documents)
    chosen = context_use.places(use.documents, args.lines or None)
    results: list[Scores] = []
    for share in (*shares,) or (None,):
        if share is not None:
            context_use.set_kappa(hub, share)
            print(f"kappa {share:g}")
        results.append({"kappa": share} | context_use.evaluate(use, chosen, tokens, args.max_tokens))
        if args.whole:
            results[-1]["whole"] = context_use.evaluate_whole(use, chosen)
        print(context_use.table(results[-1]))
    if args.json:
        atomic_write(args.json, json.dumps({args.figures: results}, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Report(Device, OverwriteOthers):
    """A page about trained models."""

    runs: tuple[Path, ...] = argument(
        "folder of checkpoints, or output folder of examples/demo.py, which contains several",
        metavar="RUN",
    )
    out: Path = option(Path("report.html"), short="-o", writes=PAGE)
    document: Path = option(help="source text (raw form) to translate and inspect")
    reference: Path | None = option(
        None, "its translation (default: the file next to it in the target language, if any)"
    )
    show: int = option(3, "number of its documents to show")
    data: Path | None = option(None, "prepared folder (default: the one each run was trained on)")


def run_report(args: Report) -> None:
    from fairseq_lasformer.analysis.report import report

    check_writable(args.out)
    runs = report(args.runs, args.out, args.document, args.show, args.data, args.reference, args.device)
    print(f"{args.out}: {', '.join(run.name for run in runs)}")


@dataclass(frozen=True, kw_only=True)
class Info(Figures):
    """A model's parameters and costs."""

    figures = "rows"
    checkpoint: Path = argument("a checkpoint, or its folder", read=local_path)
    lengths: str = option("512,1024,2048,4096,8192", "numbers of tokens")


def run_info(args: Info) -> None:
    from fairseq_lasformer.analysis.cost import checkpoint_cost, count_table, parts, stored, table
    from fairseq_lasformer.checkpoints.loading import chosen, load

    try:
        lengths = [int(n) for n in args.lengths.split(",")]
    except ValueError as e:
        raise InputError(f"--lengths {args.lengths}: expected numbers of tokens separated by commas") from e
    if args.json:
        check_writable(args.json)
    checkpoint = chosen(args.checkpoint)
    costs = checkpoint_cost(checkpoint, lengths)
    print(count_table(parts(stored(load(checkpoint)["model"]))))
    print(f"\n{table(costs)}")
    if args.json:
        ratios = ("ratio", "ratio_with_projections", "ratio_with_all_projections")
        rows = [c._asdict() | {r: getattr(c, r) for r in ratios} for c in costs]
        atomic_write(args.json, json.dumps({args.figures: rows}, indent=1) + "\n")
