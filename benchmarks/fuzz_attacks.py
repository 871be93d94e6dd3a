"""Attacks that the mutations of :mod:`benchmarks.fuzz` would hardly find: sizes, SQL, the same file twice.

Each runs in a process of its own, with bounds on memory and time: one that a cure no longer stops must not stop others.
"""

from __future__ import annotations

import copy
import io
import os
import random
import resource
import shutil
import signal
import sqlite3
import traceback
from collections.abc import Callable, Generator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.cli.main import main

Attempt = tuple[str, bytes, Callable[[], object]]

MEMORY, SECONDS = 3 << 30, 30
"""Bytes of further address space, and seconds of processor time, that an attempt may take."""


def bounded(call: Callable[[], object], seconds: int = SECONDS) -> None:
    """Run a call in a child process.

    Raises:
        RuntimeError: it raised something, took too much memory or time, or was killed; with its traceback.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            signal.alarm(4 * seconds)  # for what waits instead of computing
            with redirect_stderr(io.StringIO()), redirect_stdout(io.TextIOWrapper(io.BytesIO())):
                call()
        except SystemExit:  # argparse's
            pass
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(writing, said[-3000:].encode())
            os._exit(bool(said))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if status:
        raise RuntimeError(said or f"ended by {signal.Signals(status & 127).name}: no end, or too much memory")


def command(*words: object) -> int:
    """Run a command; what it raises is a fault."""
    code = main([str(word) for word in words])
    if code not in (0, 1, 2, 3):
        raise RuntimeError(f"exit code {code}")
    return code


HUGE: tuple[Any, ...] = (10**6, 10**7, 10**9, 1 << 16, 1 << 30, -1, 0, 1e308, "x", "/dev/zero", [1], None, True)


def of_sizes(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Checkpoints whose settings or weights ask for more than the file holds."""
    whole = torch.load(folder / "model" / "checkpoint_last.pt", weights_only=False)
    whole["last_optimizer_state"], place = None, folder / "attack.pt"
    settings = [(part, name) for part in ("model", "task", "generation") for name in whole["cfg"].get(part) or ()]
    likely = ("position", "dim", "depth", "path", "layers", "experts", "groups", "window")
    sized = [(part, name) for part, name in settings if part == "model" and any(word in name for word in likely)]
    while True:
        state = {**whole, "cfg": copy.deepcopy(whole["cfg"]), "model": dict(whole["model"])}
        name = chosen.choice([*state["model"]])
        kind, said = chosen.randrange(4), [name]
        if kind == 0:
            state["model"][name] = torch.zeros(1).expand(1 << chosen.randint(1, 16), 1 << chosen.randint(1, 16))
        elif kind == 1:
            state["model"][name] = chosen.choice(
                [torch.zeros(1), torch.zeros(()), state["model"][name].to(torch.float8_e4m3fn), torch.zeros(3).int(), 5]
            )
        else:
            for part, setting in chosen.sample(sized if kind == 2 else settings, chosen.randint(1, 3)):
                state["cfg"][part][setting] = chosen.choice(HUGE)
                said.append(f"{part}.{setting} = {state['cfg'][part][setting]!r}")
        torch.save(state, place)
        words = chosen.choice(
            [("info", place), ("translate", place, folder / "raw/test.en", "--data", folder / "data", "--beam", 1)]
        )
        if words[0] == "translate":
            (folder / "attack.txt").write_text("a river\n")
            words = (*words[:2], folder / "attack.txt", *words[3:])
        said.append(" ".join(map(str, words)))
        yield "attack checkpoint", "\n".join(said).encode(), lambda words=words: bounded(lambda: command(*words))


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
SQL = (
    "CREATE TRIGGER {name} AFTER INSERT ON pairs BEGIN UPDATE pairs SET target = 'PWNED'; END",
    "CREATE TRIGGER {name} AFTER INSERT ON pairs BEGIN DELETE FROM pairs WHERE id < NEW.id; END",
    f"CREATE TRIGGER {{name}} AFTER INSERT ON pairs BEGIN INSERT INTO frequent SELECT i, i FROM ({ENDLESS}); END",
    "CREATE INDEX {name} ON pairs(hex(zeroblob(1))); PRAGMA writable_schema = ON; "
    "UPDATE sqlite_master SET sql = replace(sql, '(1)', '(400000000)') WHERE name = '{name}'",
    f"CREATE VIEW {{name}} AS {ENDLESS}",
    f"DROP TABLE IF EXISTS {{table}}; CREATE VIEW {{table}} AS {ENDLESS}",
    "DROP TABLE {table}",
    "DELETE FROM {table}",
    "UPDATE settings SET value = '{name}'",
    "UPDATE frequent SET sentences = '{name}'",
    "UPDATE pairs SET key = 'x', source = x'ff'",
)


def of_memories(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Translation memories that carry SQL, or lack something."""
    table, built = folder / "pairs.tsv", folder / "whole.tm"
    table.write_text("".join(f"a river number {i}\tein Fluss {i}\n" for i in range(50)))
    (folder / "more.tsv").write_text("a new bank\tein neues Ufer\n")
    bounded(lambda: command("memory", "build", built, table, "-s", "en", "-t", "de", "--quiet"))
    tables = ("settings", "pairs", "frequent", "files", "words_data", "words_idx", "words_config", "held")
    while True:
        place = folder / "attack.tm"
        shutil.copy(built, place)
        sql = chosen.choice(SQL).format(
            name=f"words_{chosen.choice('abi')}{chosen.randrange(9)}", table=chosen.choice(tables)
        )
        with sqlite3.connect(place) as file:
            try:
                file.executescript(sql)
                (before,) = file.execute("SELECT count(*) FROM pairs WHERE target LIKE 'ein %'").fetchone()
            except sqlite3.Error:
                file.rollback()
                continue
        file.close()

        def used(place: Path = place, before: int = before) -> None:
            command("memory", "find", place, "a river number 7")
            if command("memory", "build", place, folder / "more.tsv", "--quiet") == 0:
                with sqlite3.connect(place) as file:
                    (n,) = file.execute("SELECT count(*) FROM pairs WHERE target LIKE 'ein %'").fetchone()
                if n != before + 1:
                    raise RuntimeError(f"{n} pairs of {before + 1} are as they were")

        yield "attack memory", sql.encode(), lambda used=used: bounded(used)


WRITING = (
    "translate MODEL text -o out --report SAME:text --data DATA",
    "translate MODEL text -o SAME:text --data DATA --overwrite",
    "translate MODEL text -o out --report SAME:glossary --glossary glossary --data DATA",
    "translate MODEL text -o SAME:glossary --glossary glossary --data DATA --overwrite",
    "translate MODEL text -o SAME:given --given given --data DATA --overwrite",
    "translate MODEL text -o SAME:checkpoint --data DATA",
    "translate MODEL text --since given other -o SAME:given --lines --data DATA --overwrite",
    "translate MODEL text --since given other -o SAME:other --lines --data DATA --overwrite",
    "average SAME:checkpoint checkpoint second",
    "average SAME:second checkpoint second",
    "prune checkpoint SAME:checkpoint --groups decoder.0",
    "score given given --json SAME:given",
    "score text given --json SAME:given",
    "memory build SAME:table table -s en -t de",
    "memory build SAME:text table -s en -t de",
    "generate DATA checkpoint SAME:checkpoint",
    "info checkpoint --json SAME:checkpoint",
)
"""Commands that work, except that one writes what it reads, or what is not its own."""


def of_paths(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Commands that are given a file that exists as output, by any name of it."""
    place = folder / "paths"
    place.mkdir()
    texts = {
        "text": "a river\na bank\n",
        "given": "ein Fluss\nein Ufer\n",
        "other": "a river\na big bank\n",
        "glossary": "bank\tUfer\n",
        "table": "a river\tein Fluss\n",
    }
    for name, text in texts.items():
        (place / f"{name}.txt").write_text(text)
    for name in ("checkpoint", "second"):
        shutil.copy(folder / "model" / "checkpoint_last.pt", place / f"{name}.pt")
    files = {path.stem: path for path in place.iterdir()}
    for name, path in files.items():
        (place / f"link-{name}").symlink_to(path.name)
        os.link(path, place / f"hard-{name}")
    before = {path: path.read_bytes() for path in files.values()}
    while True:
        words: list[object] = []
        for word in chosen.choice(WRITING).split():
            name = word.removeprefix("SAME:")
            if word != name:
                words.append(chosen.choice((files[name], place / f"link-{name}", place / f"hard-{name}")))
            else:
                known = {"MODEL": folder / "model", "DATA": folder / "data", "out": place / "out.txt"}
                words.append(known.get(word) or files.get(word, word))

        def tried(words: list[object] = words) -> None:
            command(*words)
            changed = [path.name for path, content in before.items() if path.read_bytes() != content]
            if changed:
                raise RuntimeError(f"{', '.join(changed)} have been replaced")

        yield "attack paths", " ".join(map(str, words)).encode(), lambda tried=tried: bounded(tried)
        for path, content in before.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
        for path in place.iterdir():
            if path.name.startswith(("out.txt", ".out", ".lasformer")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
