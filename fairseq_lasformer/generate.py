"""Translates a prepared split with fairseq-generate, in shards that survive being killed, and joins the documents."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

from fairseq import options as generation_options
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from tqdm import tqdm

from fairseq_lasformer.checkpoints import load
from fairseq_lasformer.dataset import SplitInfo
from fairseq_lasformer.documents import InputError
from fairseq_lasformer.evaluation.hypotheses import collect, write_hypotheses
from fairseq_lasformer.text import Settings


def generate(
    data: Path,
    checkpoint: Path,
    out: Path,
    split: str = "test",
    shards: int = 4,
    options: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Writes the translated documents of a split, detokenised, one a line, in input order.

    Each shard's output is kept in ``OUT.parts`` until all are there, so that a killed run goes on where it was.

    Args:
        options: further options of fairseq-generate (``--beam 5 --max-tokens 8192 …``).
        jobs: shards translated at once, each with its share of the processor cores.

    Returns:
        how many documents were written.

    Raises:
        InputError: unusable data or checkpoint, or fairseq-generate failed.
    """
    settings, info = Settings.load(data), SplitInfo.load(data, split)
    if info is None:
        raise InputError(f"{data}: holds no split {split}; see its documents.*.json")
    load(checkpoint)
    arguments = [str(data), "--user-dir", str(Path(__file__).parent), "--task", "document_translation"]
    arguments += ["-s", settings.source_lang, "-t", settings.target_lang]
    arguments += ["--path", str(checkpoint), "--gen-subset", split]
    # every example fits: its own length is the limit
    arguments += ["--max-source-positions", str(info.longest[0])]
    arguments += ["--max-target-positions", str(2 * max(info.longest) + 50)]
    arguments += ["--max-tokens", str(max(info.longest)), "--max-len-a", "1.5", "--max-len-b", "50", *options]
    shards = max(1, min(shards, _n_batches(arguments)))
    stat = checkpoint.stat()
    key = [settings.fingerprint, str(checkpoint.resolve()), stat.st_mtime_ns, stat.st_size, split, shards, *options]
    parts = out.with_name(out.name + ".parts")
    mark = parts / "key"
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != digest:
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir(parents=True)
        mark.write_text(digest)
    logs = [parts / f"{i}" for i in range(shards)]
    left = [i for i, log in enumerate(logs) if not log.exists()]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    if jobs > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))

    def work(i: int) -> None:
        shard = ["--distributed-world-size", str(shards), "--distributed-rank", str(i)]
        _run([sys.executable, "-m", "fairseq_cli.generate", *arguments, *shard], logs[i], environment)

    with (
        ThreadPool(max(1, jobs)) as pool,
        tqdm(total=shards, initial=shards - len(left), desc=f"translating {split}", unit=" shards") as bar,
    ):
        for _ in pool.imap_unordered(work, left):
            bar.update()
    documents = collect(data, split, logs)
    write_hypotheses(out, documents)
    shutil.rmtree(parts)
    return len(documents)


def _n_batches(arguments: list[str]) -> int:
    """How many batches fairseq-generate makes of these arguments; it fails on a shard that gets none."""
    parser = generation_options.get_generation_parser()
    cfg = convert_namespace_to_omegaconf(generation_options.parse_args_and_arch(parser, arguments))
    task = tasks.setup_task(cfg.task)
    task.load_dataset(cfg.dataset.gen_subset)
    batches = task.get_batch_iterator(
        task.dataset(cfg.dataset.gen_subset),
        max_tokens=cfg.dataset.max_tokens,
        max_sentences=cfg.dataset.batch_size,
        max_positions=task.max_positions(),
    )
    return len(batches.frozen_batches)


def _run(command: list[str], log: Path, environment: dict[str, str]) -> None:
    """The command's standard output in ``log``, whole or not at all; its progress bar stays visible."""
    temporary = log.with_name(log.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as f:
        done = subprocess.run(command, stdout=f, env=environment)
    if done.returncode:
        raise InputError(f"fairseq-generate failed with exit code {done.returncode}; its message is above")
    temporary.replace(log)
