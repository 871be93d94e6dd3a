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
from fairseq_lasformer.base.machine import machine
from fairseq_lasformer.base.published import CARD
from fairseq_lasformer.data.subwords import DataConfig


def read_about(file: Path | None) -> dict[str, Any]:
    """Read what a card says besides: a YAML mapping such as ``{licence: MPL-2.0, data: ..., scores: {...}}``."""
    from fairseq_lasformer.experiments.yaml_file import read_yaml

    return {} if file is None else read_yaml(file)


def write_card(folder: Path, name: str, settings: DataConfig, further: dict[str, Any]) -> None:
    """Write the card of a packed model.

    Args:
        folder: its files.
        further: what it says besides; None of its keys may be one of the card's own.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CARD)
    own = {
        "name": name,
        "source": settings.source_lang,
        "target": settings.target_lang,
        "fairseq_lasformer": f">={__version__}",
        "date": datetime.date.today().isoformat(),
    }
    listed = [{"name": path.name, "size": path.stat().st_size, "sha256": file_hash(path)} for path in files]
    if taken := sorted({*own, "files"} & further.keys()):
        raise InputError(f"--about: {', '.join(taken)}: found by lasformer pack itself; leave it out")
    atomic_write(folder / CARD, json.dumps(own | further | {"files": listed}, indent=1, ensure_ascii=False) + "\n")


def measured(folder: Path, text: Path) -> dict[str, Any]:
    """Translate a text in another process; return its tokens per second and memory, with the machine."""
    command = [sys.executable, "-m", "fairseq_lasformer.apps.models.card", str(folder.absolute()), str(text)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"--measure {text}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure(folder: str, text: str) -> dict[str, Any]:
    import resource
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
    found = {key: about[key] for key in ("cpu", "instructions", "threads", "torch")}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"source_tokens": tokens, "tokens_per_second": round(tokens / seconds), "memory_mib": round(memory)}


if __name__ == "__main__":
    print(json.dumps(_measure(*sys.argv[1:])))
