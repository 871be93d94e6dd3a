"""SubER of subtitle files: text, line breaks and times in one figure (Wilken et al., arXiv 2205.05805).

The package subtitle-edit-rate computes it: edits of words and breaks by time, in per cent; lower is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq_lasformer.errors import InputError


def suber(hypothesis: Path, reference: Path, language: str = "") -> float:
    """Return the SubER of an .srt file.

    Args:
        language: ``zh``, ``ja`` or ``ko`` for text in them; empty for others.

    Raises:
        InputError: the package is missing, or a file is not an .srt file.
    """
    try:
        from suber.file_readers import read_input_file
        from suber.metrics.suber import calculate_SubER
    except ImportError as e:
        raise InputError(
            "scores of .srt files need the package subtitle-edit-rate: pip install subtitle-edit-rate"
        ) from e
    sides = []
    for path in (hypothesis, reference):
        try:
            sides.append(read_input_file(str(path), file_format="SRT"))
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        except Exception as e:  # the reader's errors have no common class
            raise InputError(f"{path}: not an .srt file ({' '.join(str(e).split()) or type(e).__name__})") from e
    return float(calculate_SubER(*sides, metric="SubER", language=language or None))


def table(reference: Path, hypotheses: Sequence[Path], language: str = "") -> tuple[str, dict[str, float]]:
    """Return the SubER of several files against one reference, as text for a terminal, and by file."""
    found = {str(path): suber(path, reference, language) for path in hypotheses}
    width = max(map(len, found)) + 2
    lines = [f"{'subtitles':<{width}}{'SubER':>8}", *(f"{name:<{width}}{value:>8.2f}" for name, value in found.items())]
    return "\n".join([*lines, "SubER: edits in per cent; lower is better"]), found
