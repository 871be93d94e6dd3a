"""Quality and kappa: one checkpoint's translations of a split with different shares of the keys, without training.

All modules keep the same share; ``trained`` is the checkpoint as it is. Translations are written to FOLDER, and an
existing one is used again. --picture draws the d-BLEU by kappa.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from benchmarks.rows import Row
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.text.documents import read_documents
from fairseq_lasformer.text.hypotheses import read_hypotheses

TRAINED = "trained"
BASELINES: tuple[str, ...] = ()
SHARES = "0.02,0.05,0.1,0.2,0.5,1"
SIZE, MARGIN = (640, 320), (56, 40)
"""Of the picture, in pixels: width and height, and the space for the numbers on the left and at the bottom."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a model with learned selection")
    parser.add_argument("data", type=Path, help="prepared folder")
    parser.add_argument("reference", type=Path, help="of the split, raw form")
    parser.add_argument("--split", default="valid", help="default: %(default)s")
    parser.add_argument("--shares", default=SHARES, help="default: %(default)s")
    parser.add_argument("--beam", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench/kappa"), help="default: %(default)s")
    parser.add_argument("--picture", type=Path, help="SVG file to draw")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    args.folder.mkdir(parents=True, exist_ok=True)
    references, by_share = read_documents(args.reference), dict[float, float]()
    for share in [TRAINED, *args.shares.split(",")]:
        scores = score(read_hypotheses(_translated(args, share), True, len(references)), references)
        for name in ("d_bleu", "s_bleu", "chrf", "length_ratio"):
            yield Row(args.split, share, name, scores[name], False)
        if share == TRAINED:
            trained = scores["d_bleu"]
        else:
            by_share[float(share)] = scores["d_bleu"]
    if args.picture:
        atomic_write(args.picture, picture(by_share, trained))


def _translated(args: argparse.Namespace, share: str) -> Path:
    """Return the translation with a share of the keys; it is made if there is none."""
    lasformer, out = Path(sys.executable).with_name("lasformer"), args.folder / f"{args.split}.{share}"
    if out.exists():
        return out
    checkpoint = args.checkpoint
    if share != TRAINED:
        checkpoint = args.folder / f"{share}.pt"
        _run(lasformer, "average", checkpoint, args.checkpoint, "--kappa", share)
    options = ("--split", args.split, "--beam", args.beam, "--layout", "raw", "--jobs", 2, "--shards", 2)
    _run(lasformer, "generate", args.data, checkpoint, out, *options, "--", "--repair", 0)
    return out


def _run(*command: object) -> None:
    if subprocess.run([*map(str, command)], check=False).returncode:
        raise InputError(f"{' '.join(map(str, command[1:3]))} failed, see above")


def picture(by_share: Mapping[float, float], trained: float) -> str:
    """Return an SVG with a point per share, evenly spaced, and a line at the score of the checkpoint as it is."""
    (width, height), (left, bottom) = SIZE, MARGIN
    low, high = int(min(*by_share.values(), trained)), int(max(*by_share.values(), trained)) + 1
    shares = sorted(by_share)

    def x(i: int) -> float:
        return left + (width - left - 24) * (i + 0.5) / len(shares)

    def y(bleu: float) -> float:
        return height - bottom - (height - bottom - 24) * (bleu - low) / (high - low)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    points = [(x(i), y(by_share[share])) for i, share in enumerate(shares)]
    lines = [f'<path class="curve" d="M {" L ".join(f"{px:.1f} {py:.1f}" for px, py in points)}"/>']
    lines.append(f'<path class="trained" d="M {left} {y(trained):.1f} H {width - 24}"/>')
    lines.append(text(width - 24, y(trained) + 16, f"as trained: {trained:.2f}", "end"))
    for bleu in range(low, high + 1):
        lines.append(f'<path class="grid" d="M {left} {y(bleu):.1f} H {width - 24}"/>')
        lines.append(text(left - 8, y(bleu) + 4, str(bleu), "end"))
    for (px, py), share in zip(points, shares):
        lines.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4"/>')
        lines.append(text(px, py - 10, f"{by_share[share]:.2f}"))
        lines.append(text(px, height - bottom + 18, f"{100 * share:g}%"))
    lines.append(text((left + width) / 2, height - 6, "keys that every query keeps (kappa)"))
    lines.append(text(left, 14, "d-BLEU", "start"))
    style = (
        "svg{font:13px sans-serif;color:#222;background:#fff}text{fill:currentColor}circle{fill:#0969da}"
        "path{fill:none;stroke:#0969da;stroke-width:2}.grid{stroke:#8884;stroke-width:1}"
        ".trained{stroke:currentColor;stroke-width:1;stroke-dasharray:5 4}"
        "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#0d1117}}"
    )
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">', f"<style>{style}</style>"]
        + lines
        + ["</svg>", ""]
    )
