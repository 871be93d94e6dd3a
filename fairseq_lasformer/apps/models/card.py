"""``model.json``: what a packed model is, for programs: languages, licence, speed, and a hash of each file.

``python -m fairseq_lasformer.apps.models.card FOLDER TEXT`` measures a model in a process of its own.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairseq_lasformer import __version__
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, file_hash
from fairseq_lasformer.base.machine import machine, start
from fairseq_lasformer.base.published import CARD, FILE_NAME
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.experiments.yaml_file import read_yaml

OWN = {"name", "source", "target", "fairseq_lasformer", "date", "files", "measured"}
"""Keys of a card that :func:`write_card` and :func:`measured` find."""

LENPEN = "lenpen"
"""Key of the length penalty that a model translates with, unless another is given."""


def read_about(file: Path | None) -> dict[str, Any]:
    """Read what a card says besides: a YAML mapping such as ``{licence: MPL-2.0, data: ..., lenpen: 1.2}``."""
    further = {} if file is None else read_yaml(file)
    if taken := sorted(OWN & further.keys()):
        raise InputError(f"{file}: {', '.join(taken)}: found by lasformer pack itself; leave it out")
    value = further.get(LENPEN, 1.0)
    if type(value) not in (int, float) or not 0 <= value <= 10:
        raise InputError(f"{file}: {LENPEN}: {str(value)[:60]!r}; expected a number from 0 to 10")
    try:
        json.dumps(further, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise InputError(f"{file}: not for JSON ({e}); put dates between quotes") from e
    return further


def write_card(folder: Path, name: str, settings: DataConfig, further: dict[str, Any]) -> None:
    """Write the card of a packed model.

    Args:
        folder: its files.
        further: what it says besides.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CARD)
    if odd := [path.name for path in files if not FILE_NAME.fullmatch(path.name)]:
        raise InputError(f"{odd[0]}: not a name that a published model can have; rename the languages")
    facts = {
        "name": name,
        "source": settings.source_lang,
        "target": settings.target_lang,
        "fairseq_lasformer": f">={__version__}",
        "date": datetime.date.today().isoformat(),
    }
    listed = [{"name": path.name, "size": path.stat().st_size, "sha256": file_hash(path)} for path in files]
    atomic_write(folder / CARD, json.dumps(facts | further | {"files": listed}, indent=1, ensure_ascii=False) + "\n")


def measured(folder: Path, text: Path) -> dict[str, Any]:
    """Translate a text in another process; return its tokens per second and memory, with the machine."""
    command = [sys.executable, "-P", "-m", "fairseq_lasformer.apps.models.card", str(folder.absolute()), str(text)]
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, errors = process.communicate()
    if process.returncode:
        raise InputError(f"--measure {text}: {(errors.strip().splitlines() or ['failed'])[-1]}")
    figures: dict[str, Any] = json.loads(said.splitlines()[-1])
    return figures


def _measure(folder: str, text: str) -> dict[str, Any]:
    import time

    from fairseq_lasformer.documents.hub import load_model

    document = Path(text).read_text(encoding="utf-8")
    model = load_model(folder, device="cpu")
    model.translate_documents([document], progress=False)  # warm-up
    start = time.perf_counter()
    model.translate_documents([document], progress=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(model.encode(line)) for line in document.splitlines() if line.strip())
    about = machine()
    facts = {key: about[key] for key in ("cpu", "instructions", "threads", "torch")}
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # getrusage counts what the parent had before it
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024
    return facts | {
        "source_tokens": tokens,
        "tokens_per_second": round(tokens / seconds),
        "memory_mib": round(memory),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
