"""Windows of lines for neural metrics, which turn a segment metric into a document metric.

Windows of lines, overlapping or adjacent, are scored as if each were a segment (Vernikos et al. 2022; SLIDE, arXiv
2309.08832). The metrics themselves need weights that are not part of this project. A TSV file serves any of them, and
COMET can be run if its package and a model are available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.further import FurtherScore, Scores, Systems
from fairseq_lasformer.files import atomic_write, check_writable
from fairseq_lasformer.options import NEW, option
from fairseq_lasformer.text.documents import Document


class Window(NamedTuple):
    """Consecutive lines of a document: source, translation and reference.

    Attributes:
        document: number of the document, from 1.
        first: number of the first line, from 1.
    """

    document: int
    first: int
    source: str
    hypothesis: str
    reference: str


def windows(
    hypotheses: Sequence[Document],
    references: Sequence[Document],
    sources: Sequence[Document],
    size: int = 6,
    step: int = 6,
) -> list[Window]:
    """Return the windows of all documents; the last one ends with its document, and may start less than a step later.

    Args:
        hypotheses, references, sources: documents with the same lines.
        size: lines per window.
        step: lines from the start of one window to the start of the next.

    Raises:
        InputError: documents have different numbers of lines.
    """
    found = []
    for number, sides in enumerate(zip(sources, hypotheses, references, strict=True), 1):
        if len({len(side) for side in sides}) > 1:
            raise InputError(
                f"windows need the same lines on all sides; document {number} has {len(sides[0])} (source), "
                f"{len(sides[1])} (translation) and {len(sides[2])} (reference); "
                "use --realign to re-segment the translation"
            )
        n = len(sides[0])
        starts = list(range(0, max(1, n - size + 1), step))
        if starts[-1] + size < n:
            starts.append(n - size)
        for start in starts:
            found.append(Window(number, start + 1, *(" ".join(side[start : start + size]) for side in sides)))
    return found


def write(path: Path, found: Sequence[Window]) -> None:
    """Write windows as tab-separated values with a header: document, line, source, hypothesis, reference."""
    atomic_write(path, "".join("\t".join(map(str, row)) + "\n" for row in [Window._fields, *found]))


def comet(model: str, found: Sequence[Window], device: str = "auto") -> float:
    """Return the mean COMET score of windows.

    Args:
        model: a checkpoint of COMET, or the name of a model that its package has downloaded.

    Raises:
        InputError: the package or the model is missing.
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as e:
        raise InputError("--comet: needs the package unbabel-comet; --windows FILE writes a table without it") from e
    import torch

    try:
        loaded = load_from_checkpoint(model if Path(model).is_file() else download_model(model))
    except Exception as e:  # its errors are those of huggingface_hub, torch and yaml
        raise InputError(f"--comet {model}: no such model, and it cannot be downloaded ({type(e).__name__})") from e
    gpus = int(device != "cpu" and torch.cuda.is_available())
    rows = [{"src": w.source, "mt": w.hypothesis, "ref": w.reference} for w in found]
    return float(loaded.predict(rows, batch_size=8, gpus=gpus).system_score)


@dataclass(frozen=True, kw_only=True)
class WindowScore(FurtherScore):
    """A table of windows, and COMET over them."""

    windows: Path | None = option(None, "write windows of lines, for segment-level metrics", metavar="TSV", writes=NEW)
    comet: str | None = option(None, "also COMET over windows, with the package unbabel-comet", metavar="MODEL")
    window_lines: int = option(6, "lines per window", minimum=1)

    @property
    def needs_source(self) -> str:
        return "--windows" if self.windows else "--comet"

    @property
    def asked(self) -> bool:
        return bool(self.windows or self.comet)

    def check(self, systems: int) -> None:
        if self.windows and systems > 1:
            raise InputError("--windows: writes the windows of one system; name a single hypothesis file")
        if self.windows:
            check_writable(self.windows)

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        found: dict[str, Scores] = {}
        for name, documents in systems.hypotheses.items():
            cut = windows(documents, systems.references, systems.sources, self.window_lines, self.window_lines)
            found[name] = {"windows": len(cut)}
            if self.windows:
                write(self.windows, cut)
            if self.comet:
                found[name]["comet"] = comet(self.comet, cut)
        return found

    def text(self, name: str, scores: Scores) -> str:
        lines = []
        if self.windows:
            lines.append(f"{self.windows}: {scores['windows']} windows of {self.window_lines} lines")
        if self.comet:
            lines.append(f"{name}: COMET {scores['comet']:.4f} over {scores['windows']} windows ({self.comet})")
        return "\n".join(lines)
