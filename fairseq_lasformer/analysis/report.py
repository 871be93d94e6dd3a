"""Self-contained report page on trained models: sample translations beside their source, and attention."""

import html
import json
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fairseq_lasformer.analysis.attention_view import attention_view
from fairseq_lasformer.analysis.runs import Run, read_runs
from fairseq_lasformer.analysis.samples import Sample, page_samples, read_samples, reasons_of
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.machine import describe, machine
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.hub import DocumentHubInterface, load_model
from fairseq_lasformer.version import __version__


def report(
    paths: Sequence[Path],
    out: Path,
    document: Path,
    show: int = 3,
    data: Path | None = None,
    reference: Path | None = None,
    device: str = "auto",
) -> list[Run]:
    """Write the report.

    Args:
        paths: see :func:`read_runs`.
        document: source text, raw form, for the sample translations and the attention view.
        show: number of documents in them.
        data: prepared folder, if it is not the one a run was trained on.
        reference: translation of ``document``, raw form; default: the file next to it in the target language
            (``test.de`` for ``test.en``), if there is one.
        device: where the samples are translated; see :func:`load_model`.

    Returns:
        the runs in the report.
    """
    runs = read_runs(paths)
    samples, views = translated(runs, document, reference, show, data, device)
    content = {"samples": samples, "views": views}
    values = {
        "FACTS": _facts(document),
        # no document may close the script element that contains it, or open another
        "DATA": json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"),
        "SCRIPT": _beside("report.js"),
        "STYLE": _beside("report.css"),
    }
    # in a single pass, as the inserted text may itself contain such a placeholder
    page = re.sub(f"@({'|'.join(values)})@", lambda mark: values[mark[1]], _beside("report.html"))
    atomic_write(out, page)
    return runs


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _facts(document: Path) -> str:
    """Return when, how and where the page was made, as HTML."""
    facts = {
        "written": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "by": f"fairseq_lasformer {__version__}",
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": describe(machine()),
        "samples from": str(document),
    }
    return "".join(f"<div><dt>{k}</dt><dd>{html.escape(v)}</dd></div>" for k, v in facts.items())


def translated(
    runs: Sequence[Run], document: Path, reference: Path | None, show: int, data: Path | None, device: str
) -> tuple[list[Json], list[Json]]:
    """Return the first documents of a file as translated by every run, and what their words attend to.

    Args:
        runs, document, reference, show, data, device: see :func:`report`.

    Returns:
        see :func:`page_samples`; and an :func:`attention_view` for each document and each run with selection, with
        their names (``run``, ``document``).
    """
    samples: list[Sample] = []
    translations: dict[str, list[list[str]]] = {}
    views: list[Json] = []
    reasons: dict[str, list[list[list[str]]]] = {}
    for run in runs:
        try:
            hub = load_model(run.checkpoint, data, device)
        except InputError as e:
            if run is runs[-1] and not translations:
                raise  # there is nothing to show
            print(f"{run.name}: left out: {e}", file=sys.stderr)
            continue
        samples = samples or read_samples(document, reference or _reference(document, hub), show)
        texts = ["\n".join(sample.source) for sample in samples]
        lines = hub.translate_documents(texts, lines=True)
        translations[run.name] = [[line.translation for line in each] for each in lines]
        reasons[run.name] = [reasons_of(hub, s.source, its) for s, its in zip(samples, translations[run.name])]
        for sample, translation in zip(samples, translations[run.name]):
            view = attention_view(hub, sample.source, translation)
            if view is not None:
                views.append({"run": run.name, "document": sample.number, **view})
    return page_samples(samples, translations, reasons), views


def _reference(document: Path, hub: DocumentHubInterface) -> Path | None:
    """Return the file next to a document that contains its translation."""
    beside = document.with_suffix(f".{hub.settings.target_lang}")
    return beside if document.suffix == f".{hub.settings.source_lang}" and beside.is_file() else None
