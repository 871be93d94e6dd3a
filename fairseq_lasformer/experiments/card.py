"""The model card beside a checkpoint, ``MODEL.md``: what it was trained on and how, what it reaches, what it cannot do.

Each training and each scoring rewrites what is between two marks; what its owner writes outside stays.
"""

import json
import re
import shlex
from pathlib import Path

from fairseq_lasformer.analysis.runs import read_log, read_start
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.machine import describe
from fairseq_lasformer.checkpoints.loading import architecture, load
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.version import __version__

NAME = "MODEL.md"
_BEGIN, _END = "<!-- written by lasformer: begin -->", "<!-- written by lasformer: end -->"
_OWN = """
## Licence

Not stated. A model is derived from its training data; say here what that allows.

## Notes

"""
_CITATION = """## How to cite

Liu, Sun, Cheng, Huang and Wang: *Only 5% Attention Is All You Need: Efficient Long-range Document-level Neural Machine
Translation*, 2023, arXiv:2309.14174; and fairseq_lasformer (`CITATION.cff`)."""


def write_card(folder: Path, data: Path) -> None:
    """Write the card of the checkpoints in a folder, or bring it up to date.

    Args:
        folder: folder of checkpoints, with ``train.log`` and perhaps ``scores.json``.
        data: prepared folder that they were trained on.
    """
    path, card = folder / NAME, f"{_BEGIN}\n{_text(folder, data)}\n{_END}"
    try:
        before = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        before = f"{_BEGIN}{_END}\n{_OWN}"
    inside = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if not inside.search(before):
        return  # a card that its owner wrote
    atomic_write(path, inside.sub(lambda _: card, before, count=1))


def _text(folder: Path, data: Path) -> str:
    settings = DataConfig.load(data)
    parts = [f"# {folder.resolve().name}: {settings.source_lang} to {settings.target_lang}", _model(folder, settings)]
    parts += ["## Data", _data(data, settings), "## Training", _training(folder)]
    parts += ["## Scores", _scores(folder), "## Limits", _limits(settings), _CITATION]
    return "\n\n".join(part for part in parts if part)


def _model(folder: Path, settings: DataConfig) -> str:
    reads = (
        "single sentences" if settings.resolutions == "sentences" else f"documents, {settings.limit:,} tokens at most"
    )
    said = f"Translates {reads}, with fairseq_lasformer {__version__}: `lasformer translate {folder.name} FILE`."
    last = folder / "checkpoint_last.pt"
    if last.is_file():
        from fairseq_lasformer.analysis.cost import parts, stored

        state = load(last)
        millions = parts(stored(state["model"]))["total"] / 1e6
        said += f" Architecture `{architecture(state) or 'unknown'}`, {millions:.1f} million parameters."
    return said


def _data(data: Path, settings: DataConfig) -> str:
    lines = []
    for split, what in (("train", "trained on"), ("valid", "validated on")):
        info = SplitInfo.load(data, split)
        if info is not None:
            lines.append(
                f"- {what} {info.documents:,} documents, {info.sentences:,} sentences, {info.n_examples:,} examples"
            )
    subwords = f"- subwords: {settings.bpe}, tokenizer {settings.tokenizer}"
    separator = (
        f"sentences are separated by `{settings.separator}`" if settings.separator else "no separator of sentences"
    )
    return "\n".join(
        [*lines, f"{subwords}; {separator}", f"- fingerprint of the prepared data: `{settings.fingerprint}`"]
    )


def _training(folder: Path) -> str:
    log = folder / "train.log"
    if not log.is_file():
        return "No log."
    start, lines = read_start(log), read_log(log)
    said = []
    if start:
        # without the names of the owner's folders: the card may be given away
        words = [Path(w).name if w.startswith("/") else w for w in start.get("command", []) if isinstance(w, str)]
        said.append(f"- started {start.get('date', '')[:10]}: {describe(start['machine'])}")
        said.append(f"- options: `{shlex.join(words)}`" if words else "- options: unknown")
    inner, valid = lines.get("train_inner") or [], lines.get("valid") or []
    if inner:
        last = inner[-1]
        kappa = f", kappa {last['kappa']:.1%} at the end" if "kappa" in last else ""
        said.append(f"- {int(last['num_updates']):,} updates{kappa}")
    if valid:
        best = min(valid, key=lambda line: line["nll_loss"])
        said.append(
            f"- best validation: {best['nll_loss']:.2f} bits per token, after {int(best['num_updates']):,} updates"
        )
    return "\n".join(said) or "No log."


def _scores(folder: Path) -> str:
    try:
        systems = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["systems"]
        rows = [
            (str(name), [float(scores[key]) for key in ("d_bleu", "s_bleu", "chrf")])
            for name, scores in systems.items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "Not scored yet; `lasformer run` with a test set writes them here."
    lines = ["| system | d-BLEU | s-BLEU | chrF |", "|---|---:|---:|---:|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(f'{value:.2f}' for value in row)} |" for name, row in rows)])


def _limits(settings: DataConfig) -> str:
    return (
        f"- Only from {settings.source_lang} to {settings.target_lang}, in the manner of its training text; other text "
        "is translated worse, and nothing warns of that but the share of unknown words.\n"
        "- It may leave out or add something; lines that repeat themselves or reach their maximum length are named.\n"
        "- What its training text said about people and places, it may say again."
    )
