"""Fixtures: a small dictionary, small models, a small corpus, checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if "torch" not in sys.modules:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # tests keep each other's cores busy: see threads.py

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

with contextlib.suppress(ModuleNotFoundError):  # Triton
    from benchmarks.interpreter import exact_bfloat16

    exact_bfloat16()

from fairseq.data import Dictionary
from helpers import CUDA, SIZES, SMALL, SPLITS, B, H, run, train, write_corpus
from tiers import commit, drawn, pytest_addoption, pytest_configure, sort_out  # noqa: F401

from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import blocks, cpu
from fairseq_lasformer.ops.cpu import build
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

register()

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there is a process for each core


@pytest.hookimpl(tryfirst=True)  # before -m leaves some out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests into tiers. Two processes begin with half of them each: the one with the longest, the other with
    commands; what a process has left is given to one that has nothing left, but never the test that it is about to run.
    """
    sort_out(config, items, next(iter(cpu.instruction_sets()), "plain"))
    longest = [item for item in items if item.get_closest_marker("timeout")]
    slow = [item for item in items if item.get_closest_marker("command") and item not in longest]
    fast = [item for item in items if item not in longest and item not in slow]
    if config.getoption("--sweep-minutes") is not None:
        place = drawn((item.nodeid.partition("::")[0] for item in fast), commit())
        fast.sort(key=lambda item: place[item.nodeid.partition("::")[0]])
    middle = max(0, len(items) // 2 - len(longest))
    items[:] = [*longest, *fast[:middle], *slow, *fast[middle:]]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@pytest.fixture(params=build.targets())
def instructions(request):
    """Each instruction set that the CPU kernels are compiled for, in turn."""
    if request.param not in cpu.instruction_sets():
        pytest.skip(f"this processor has no {request.param}")
    cpu.use_instructions(request.param)
    yield request.param
    cpu.use_instructions(os.environ.get("LASFORMER_ISA", ""))


@pytest.fixture(autouse=True)
def device(request):
    """The device for tests of Triton's kernels: a GPU if there is one, otherwise the CPU, in the interpreter."""
    given = getattr(request.node, "callspec", None)
    kernels = request.node.get_closest_marker("triton") or (given and "triton" in given.params.values())
    if not (CUDA and kernels):
        yield
        return
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture(autouse=True)
def logging_again():
    """Logging restored after each test: a quiet command stays quiet until its process ends."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def small_task() -> SimpleNamespace:
    dictionary = Dictionary()
    for i in range(60):
        dictionary.add_symbol(f"w{i}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


@pytest.fixture
def build(small_task):
    """build(kappa=…, backend=…, **options): a small model with every selector at kappa."""

    def make(kappa: float = 1.0, backend: str = "auto", **options) -> LasformerModel:
        torch.manual_seed(3)
        task = SimpleNamespace(**vars(small_task), run_options=RunOptions(backend))
        model = LasformerModel.build_model(LasformerConfig(**(SMALL | options)), task)
        for _, selector in model.selectors():
            selector.set_share(kappa)
        return model

    return make


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Callable[[Path], Any]], Path]:
    """once(NAME, make): a folder that ``make`` fills, in one process for all workers of this run; the others wait."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def of(name: str, make: Callable[[Path], Any]) -> Path:
        folder, made = common / f"once-{name}", common / f"once-{name}.made"
        with (common / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                folder.mkdir()  # a maker that failed is not tried again: its folder is there
                make(folder)
                made.touch()
        return folder

    return of


@pytest.fixture(scope="session")
def prepared(once) -> Path:
    """A prepared copy task with train, valid and test; documents over 40 tokens are cut."""
    return once("copy", _prepare) / "data"


def _prepare(folder: Path) -> None:
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


@pytest.fixture(scope="session")
def checkpoint(prepared, once) -> Path:
    """A checkpoint of fairseq's own transformer, whose settings fairseq evaluates in part."""
    stock = ["--arch", "transformer", *SIZES]
    made = once("stock", lambda to: train(prepared, to, "--max-update", 2, "--disable-validation", model=stock))
    return made / "checkpoint_last.pt"


@pytest.fixture
def broken(prepared, tmp_path) -> Path:
    """A copy of the prepared data, to be damaged."""
    return shutil.copytree(prepared, tmp_path / "data")


@pytest.fixture(scope="session")
def trained(prepared, once) -> tuple[Path, subprocess.CompletedProcess]:
    """A folder of checkpoints, and the finished command that made them."""

    def make(folder: Path) -> None:
        done = train(prepared, folder / "run", "--max-update", 8, "--word-dropout", 0.1)
        (folder / "done.json").write_text(json.dumps([done.args, done.returncode, done.stdout, done.stderr]))

    folder = once("trained", make)
    return folder / "run", subprocess.CompletedProcess(*json.loads((folder / "done.json").read_text()))


@pytest.fixture(scope="session")
def trained_folder(prepared, once) -> Path:
    """A folder of checkpoints that translate the copy task a little."""
    # seed 3: none of its lines needs a repair, which some tests rely on
    longer = ("--max-update", 30, "--lr", 0.02, "--seed", 3, "--disable-validation")
    return once("hub", lambda folder: train(prepared, folder, *longer))


@pytest.fixture(scope="session")
def by_lines_folder(prepared, once) -> Path:
    """The same, of a model whose lines are searched side by side."""
    # seed 5: a search of whole documents finds most of the same lines, and needs no repair where it does
    options = ("--max-update", 30, "--lr", 0.02, "--seed", 5, "--disable-validation")
    return once("lines", lambda to: train(prepared, to, *options, "--own-lines", "--source-context-only"))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(NAME, TEXT): a module that a contributor has written."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str):
        (tmp_path / f"{name}.py").write_text(text)
        return importlib.import_module(name)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(params=[16, 64], ids=["many-blocks", "fewer-blocks"])
def small_blocks(request, monkeypatch):
    """Query rows in blocks of a few rows."""
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", request.param * B * H)
    monkeypatch.setattr(blocks, "MINIMUM_ROWS", 16)


@pytest.fixture
def browser():
    """browser(width, height): a Chromium without a window, its console recorded; closed after the test."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium and chromedriver here (Debian: apt install chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    opened = []

    def start(width: int, height: int) -> webdriver.Chrome:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        quiet = "disable-background-networking disable-component-update disable-sync disable-quic disable-gpu"
        for flag in ("headless=new", "no-sandbox", f"window-size={width},{height}", "no-first-run", *quiet.split()):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        opened.append(webdriver.Chrome(options=options, service=Service(driver)))
        return opened[-1]

    yield start
    for each in opened:
        each.quit()
