#!/usr/bin/env python3
"""The demo: a translated page, a corpus of context-dependent words, a sentence-level baseline, a document-level
Lasformer, one table.

    make demo        or        python examples/demo.py [--out runs/demo] [--documents 2000] [override ...]

``--systems dense,lasformer`` trains other systems (those of configs/systems.yaml); ``--config demo_paper --out
runs/demo_paper`` those that read a document as one sequence, as in the paper. A killed run resumes where it stopped; a
finished one prints its table again. Overrides (``optimization.max_update=50``) apply to all trainings. A demo with
other settings, or of another version of the code, is replaced only with ``--overwrite``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

logging.basicConfig(level=logging.WARNING)  # otherwise importing fairseq shows the logs of all libraries
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairseq_lasformer.analysis.cost import checkpoint_patterns, mean_kappa  # noqa: E402
from fairseq_lasformer.base.errors import InputError  # noqa: E402
from fairseq_lasformer.base.files import atomic_write, hold, remove_folder  # noqa: E402
from fairseq_lasformer.base.published import local_path  # noqa: E402
from fairseq_lasformer.base.resume import Progress, key_of  # noqa: E402
from fairseq_lasformer.checkpoints.loading import load  # noqa: E402
from fairseq_lasformer.data.prepare import prepare  # noqa: E402
from fairseq_lasformer.data.prepare_config import PrepareConfig  # noqa: E402
from fairseq_lasformer.evaluation import breakdown  # noqa: E402
from fairseq_lasformer.evaluation.probe import DISTANCES, accuracy, judge, read_probes  # noqa: E402
from fairseq_lasformer.evaluation.scores import compare, score  # noqa: E402
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining, Experiment  # noqa: E402
from fairseq_lasformer.experiments.training import systems_of  # noqa: E402
from fairseq_lasformer.text.documents import read_documents  # noqa: E402
from fairseq_lasformer.text.hypotheses import read_hypotheses  # noqa: E402

COLUMN = 15
CONFIG = ROOT / "configs/demo.yaml"
PAPER = CONFIG.with_stem("demo_paper")
RESOLUTIONS = {CONFIG.stem: "documents", PAPER.stem: "mixture"}
"""The resolutions (``lasformer prepare``) of each configuration's training data, which are also its folder's name."""
TRANSLATE = ("--cpu", "--beam", "2", "--max-tokens", "8192")
SYSTEMS = ("sentence", "lasformer")


def data_of(system: str, config: Path) -> str:
    """Return the name of the prepared folder that a system is trained on and translates."""
    return "sentences" if system == "sentence" else RESOLUTIONS[config.stem]


def clear(folder: Path) -> None:
    """Remove the files of a demo and leave all others."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["progress.jsonl", "progress.json", "stages.json", "key", "report.json", "raw", "data", "hydra", "text"]
    systems = {*systems_of(CONFIG), *systems_of(PAPER)}
    names += [f"{system}{end}" for system in systems for end in ("", ".log", ".de", ".de.parts")]
    for path in (folder / name for name in names):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)


def key(args: argparse.Namespace) -> str:
    """Return a hash of everything the results depend on."""
    digest = hashlib.sha256()
    for pattern in ("configs/**/*.yaml", "data/demo/*.py", "examples/demo.py", "fairseq_lasformer/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return key_of(args.documents, args.overrides, args.config, digest.hexdigest())


def prepare_data(raw: Path, out: Path, resolutions: str) -> None:
    """Prepare documents and sentences, with the same subwords and dictionary."""
    common: dict[str, Any] = {
        "source_lang": "en",
        "target_lang": "de",
        "train": (str(raw / "train"),),
        "valid": (str(raw / "valid"),),
        "test": (str(raw / "test"),),
        "limit": 2048,
        "text": out / "text",
    }
    first = out / resolutions
    prepare(PrepareConfig(**common, size=4000, out=first, resolutions=resolutions), overwrite=True)
    prepare(PrepareConfig(**common, out=out / "sentences", reuse=first, resolutions="sentences"), overwrite=True)
    shutil.rmtree(out / "text", ignore_errors=True)


def show_page() -> None:
    """Translate a page with the model that comes with the clone; an installed package has none."""
    if not local_path("help_en-de").is_dir():
        return
    if subprocess.run([sys.executable, str(ROOT / "examples/show.py")], check=False).returncode:
        raise InputError("examples/show.py failed, see above")


def make_corpus(progress: Progress, out: Path, documents: int, config: Path) -> Path:
    """Generate the corpus and prepare it, each once; return the folder of its text."""
    raw = out / "raw"
    generator = [sys.executable, str(ROOT / "data/demo/generate.py"), str(raw), "--documents", str(documents)]
    progress.run("corpus", lambda: subprocess.run(generator, check=True, stdout=sys.stderr), tell=True)
    progress.run("prepare", lambda: prepare_data(raw, out / "data", RESOLUTIONS[config.stem]), tell=True)
    return raw


def experiment(system: str, out: Path, overrides: Sequence[str], config: Path = CONFIG) -> Experiment:
    """Return the experiment of one system; its log is OUT/<system>.log, its translation OUT/<system>.de."""
    return Experiment(
        name=system,
        training=ConfiguredTraining(config, (*systems_of(config)[system], *overrides), out / "hydra"),
        data=out / "data" / data_of(system, config),
        folder=out / system,
        generation=TRANSLATE,
        shards=2,
        jobs=2,
        log=out / f"{system}.log",
        hypotheses=out / f"{system}.de",
    )


def begin(out: Path, key: str, overwrite: bool) -> Progress:
    """Return the progress of a demo in its folder.

    Args:
        out: folder of the demo.
        key: see :func:`key`.
        overwrite: replace another demo in the folder.

    Raises:
        InputError: the folder contains another demo, and ``overwrite`` is not set.
    """
    progress = Progress(out, key)
    if not progress.matches:
        if progress.exists and not overwrite:
            raise InputError(
                f"{out}: contains a demo with other settings, or of another version of the code; replace it with "
                "--overwrite (make demo ARGS=--overwrite), or choose another folder with --out"
            )
        clear(out)
        progress.begin()
    return progress


def evaluate(raw: Path, runs: Sequence[Experiment], seconds: dict[str, float]) -> dict[str, Any]:
    """Return the report: scores of the systems, and seconds per stage."""
    references, probes = read_documents(raw / "test.de"), read_probes(raw / "test.probe.jsonl")
    systems = {}
    translated = {run.name: read_hypotheses(run.translation, allow_empty=True) for run in runs}
    for run in runs:
        hypotheses = translated[run.name]
        patterns = checkpoint_patterns(load(run.checkpoint))
        adaptive = [pattern for its in patterns.values() for pattern in its if pattern.adaptive]
        systems[run.name] = {
            **score(hypotheses, references),
            "omissions": breakdown.omissions(hypotheses, references),
            "by_position": breakdown.by_position(hypotheses, references, "13a"),
            "kappa": mean_kappa(adaptive) or 1.0,
            # none of its own: a decoder that reads its own line alone
            "kappa_by_module": {m: mean_kappa(its) or (None if adaptive else 1.0) for m, its in patterns.items()},
            **accuracy(probes, judge(probes, hypotheses, references)),
        }
    report = {"systems": systems, "seconds": seconds}
    return report | ({"bootstrap": compare(translated, references)} if len(runs) > 1 else {})


def table(report: dict[str, Any]) -> str:
    """Format the table that the demo prints at the end."""
    systems = report["systems"]
    rows: list[tuple[str, list[Any]]] = []

    def add(label: str, get: Callable[[dict[str, Any]], Any], percent: bool = True) -> None:
        cells = [get(s) for s in systems.values()]
        rows.append((label, ["-" if c is None else f"{c:.1%}" if percent else f"{c:.2f}" for c in cells]))

    add("d-BLEU", lambda s: s["d_bleu"], False)
    add("s-BLEU", lambda s: s["s_bleu"], False)
    add("documents with a line for every line", lambda s: s["s_bleu_documents"] / s["documents"])
    add("sentences left out", lambda s: float(len(s["omissions"]["omitted"])), False)
    first = next(iter(systems.values()))
    for kind in first["accuracy"]:
        name = "context-dependent words" if kind == "all" else f"  {kind}"
        add(
            f"{name} (chance {first['chance'][kind]:.0%}, n={first['counts'][kind]})",
            lambda s, k=kind: s["accuracy"].get(k),
        )
    for name, _ in DISTANCES:
        if name in first["by_distance"]:
            label = f"  decided {name} tokens before (n={first['counts'][name]})"
            add(label, lambda s, n=name: s["by_distance"].get(n))
    add(f"  not yet shown by the translation (n={first['counts'].get('first', 0)})", lambda s: s["first"])
    add(f"decided in the same sentence (n={first['counts'].get('same_sentence', 0)})", lambda s: s["same_sentence"])
    for module in ("encoder", "decoder", "cross"):
        add(f"kappa, {module}", lambda s, m=module: s["kappa_by_module"][m])
    add("kappa, mean", lambda s: s["kappa"])
    width = max(len(label) for label, _ in rows) + 2
    lines = [f"{'':<{width}}" + "".join(f"{name:>{COLUMN}}" for name in systems)]
    lines += [f"{label:<{width}}" + "".join(f"{c:>{COLUMN}}" for c in cells) for label, cells in rows]
    lines.append(f"{first['documents']} test documents; {first['signatures']['d_bleu']}")
    spent = ", ".join(f"{name} {s:.0f}" for name, s in report["seconds"].items())
    return "\n".join([*lines, f"seconds: {spent}; in all {sum(report['seconds'].values()):.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--config", default=CONFIG.stem, choices=RESOLUTIONS)
    parser.add_argument("--overwrite", action="store_true", help="replace a demo with other settings in this folder")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    out, chosen, config = args.out.resolve(), args.systems.split(","), CONFIG.with_stem(args.config)
    known = systems_of(config)
    try:
        for system in chosen:
            if system not in known:
                raise InputError(f"--systems {args.systems}: no system {system}; there are {', '.join(known)}")
        out.mkdir(parents=True, exist_ok=True)
        hold(out / ".lock", "a demo")
        show_page()
        progress = begin(out, key(args), args.overwrite)
        raw = make_corpus(progress, out, args.documents, config)
        runs = [experiment(system, out, args.overrides, config) for system in chosen]
        for stage in range(2):  # all systems are trained before the first one translates
            for run in runs:
                run.run(progress, [run.stages()[stage]], tell=True)
        start = time.time()
        report = evaluate(raw, runs, progress.seconds)
        report["seconds"]["score"] = round(time.time() - start, 1)
    except InputError as e:
        sys.exit(f"error: {e}")
    atomic_write(out / "report.json", json.dumps(report, indent=1) + "\n")
    print(table(report))


if __name__ == "__main__":
    main()
