"""Shared pieces: a small dictionary, small models, a small corpus, and running commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import forkserver
import pytest
import torch

import fairseq_lasformer  # noqa: F401  (before torch: it says how threads are to wait)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from fairseq.data import Dictionary

from fairseq_lasformer.config import LasformerConfig
from fairseq_lasformer.model import LasformerModel
from fairseq_lasformer.ops import KAPPA_ONE

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there is a process for each core

ROOT = Path(__file__).resolve().parent.parent

SMALL = {
    f"{part}_{k}": v
    for part in ("encoder", "decoder")
    for k, v in {"embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 4, "layers": 3}.items()
} | {
    "select_dim": 8,
    "select_share": 2,
    "dropout": 0.0,
    "share_all_embeddings": True,
    "max_source_positions": 512,
    "max_target_positions": 512,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes begin with half of the tests each: the one with the longest test, the other with the slow ones.

    What a process has left is given to one that has nothing left, but never the test that it is about to run.
    """
    longest = [item for item in items if item.get_closest_marker("timeout")]
    slow = [item for item in items if item.get_closest_marker("slow") and item not in longest]
    fast = [item for item in items if item not in longest and item not in slow]
    middle = max(0, len(items) // 2 - len(longest))
    items[:] = [*longest, *fast[:middle], *slow, *fast[middle:]]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def small_task() -> SimpleNamespace:
    dictionary = Dictionary()
    for i in range(60):
        dictionary.add_symbol(f"w{i}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


@pytest.fixture
def build(small_task):
    """build(kappa=…, **options): a small model with every selector at kappa."""

    def make(kappa: float = 1.0, **options) -> LasformerModel:
        torch.manual_seed(3)
        model = LasformerModel.build_model(LasformerConfig(**(SMALL | options)), small_task)
        for _, selector in model.selectors():
            selector.kappa.fill_(round(kappa * KAPPA_ONE))
        return model

    return make


def tokens(*shape: int, pad_left: tuple[int, ...] = (), pad_right: tuple[int, ...] = ()) -> torch.Tensor:
    """Random words [B, N]; row i begins with pad_left[i] and ends with pad_right[i] padding symbols."""
    t = torch.randint(4, 64, shape)
    for i, n in enumerate(pad_left):
        t[i, :n] = 1
    for i, n in enumerate(pad_right):
        if n:
            t[i, -n:] = 1
    return t


def assert_steps_are_a_full_pass(model: LasformerModel, src: torch.Tensor, prev: torch.Tensor) -> torch.Tensor:
    """Decoding ``prev`` [B, N] a step at a time gives what one pass gives, which is returned."""
    with torch.no_grad():
        encoded = model.encoder(src, src.ne(1).sum(1))
        full = model.decoder(prev, encoded)[0]
        state: dict = {}
        steps = [
            model.decoder(prev[:, : i + 1], encoded, incremental_state=state)[0][:, 0] for i in range(prev.size(1))
        ]
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=1e-4, atol=1e-5)
    return full


def run(*command: object, check: bool = True, **env: str) -> subprocess.CompletedProcess:
    """Runs a command of this environment (``python …``, ``lasformer …``, ``fairseq-train …``) from the repository."""
    program, *args = map(str, command)
    if program.endswith(".sh"):
        path = str(ROOT / program)
    else:
        path = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
    always = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    if env or program.endswith(".sh") or args[0].startswith("-"):
        whole = os.environ | always | env
        done = subprocess.run([path, *args], cwd=ROOT, capture_output=True, text=True, env=whole, timeout=500)
    else:
        with TemporaryDirectory() as folder:
            done = forkserver.execute([program, *args], os.environ | always, ROOT, Path(folder))
    assert not check or done.returncode == 0, (
        f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def write_corpus(folder: Path, name: str, n_documents: int, seed: int = 0, longest: int = 8) -> Path:
    """A copy task in raw form (xx -> yy, words upper-cased); returns the prefix."""
    generator = torch.Generator().manual_seed(seed)
    sides: tuple[list[str], list[str]] = ([], [])
    for _ in range(n_documents):
        sentences = []
        for _ in range(int(torch.randint(1, longest + 1, (1,), generator=generator))):
            n = int(torch.randint(2, 7, (1,), generator=generator))
            sentences.append(" ".join(f"w{int(i)}" for i in torch.randint(0, 30, (n,), generator=generator)))
        sides[0].append("".join(s + "\n" for s in sentences))
        sides[1].append("".join(s.upper() + "\n" for s in sentences))
    folder.mkdir(parents=True, exist_ok=True)
    for language, side in zip(("xx", "yy"), sides):
        (folder / f"{name}.{language}").write_text("\n".join(side), encoding="utf-8")
    return folder / name


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A prepared copy task with train, valid and test; documents over 40 tokens are cut."""
    folder = tmp_path_factory.mktemp("copy")
    prefixes = {name: write_corpus(folder / "raw", name, n, seed) for seed, (name, n) in enumerate(SPLITS.items())}
    run(
        *("scripts/preprocess.sh", folder / "data"),
        *("--limit", 25, "--separator", "<sep>"),
        SRC="xx",
        TGT="yy",
        TRAIN=str(prefixes["train"]),
        VALID=str(prefixes["valid"]),
        TEST=str(prefixes["test"]),
        TOKENIZER="none",
        SIZE="200",
    )
    return folder / "data"


SPLITS = {"train": 60, "valid": 6, "test": 9}
