"""Attacks on what belongs together: outputs, files of models, configurations, names, data and its model."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import sys
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz_attacks import Attempt, bounded, command, of_memories, of_paths, of_sizes
from fairseq_lasformer.apps.models.pack import pack


def of_outputs(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Folders whose translations, or their report, would be written in one place, or over another's."""
    place = folder / "outputs"
    common = ["--data", folder / "data", "--beam", 1]
    while True:
        shutil.rmtree(place, ignore_errors=True)
        for name in ("in/a.txt", "in/b.txt", "two/a.txt"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"a river {name}\n")
        (place / "out").mkdir()
        kind = chosen.choice(("report", "link", "hard link", "two folders", "folder of links", "score over explain"))

        def tried(kind: str = kind) -> None:
            words: list[object] = ["translate", folder / "model", place / "in", "-o", place / "out", *common]
            if kind == "report":
                words += ["--report", place / "out" / chosen.choice(("a.txt", "b.txt", "../in/a.txt"))]
            elif kind == "link":
                (place / "out/b.txt").symlink_to("a.txt")
            elif kind == "hard link":
                os.link(place / "in/a.txt", place / "out/b.txt")
                words.append("--overwrite")
            elif kind == "folder of links":
                (place / "out/a.txt").symlink_to(place / "in/b.txt")
                words.append("--overwrite")
            elif kind == "score over explain":
                (place / "s.json").write_text('{"words": [], "lines": [], "cxmi": 0.0, "by_distance": []}')
                if command("score", place / "in/a.txt", place / "in/a.txt", "--json", place / "s.json") == 0:
                    raise RuntimeError("an explanation has been replaced by scores")
                return
            code = command(*words)
            if kind == "two folders":
                before = (place / "out/a.txt").read_bytes()
                words[2] = place / "two"
                command(*words)
                if (place / "out/a.txt").read_bytes() != before:
                    raise RuntimeError("the translation of another file has been replaced")
            elif code == 0 and any(
                not path.read_bytes().startswith(b"a river in/") for path in (place / "in").iterdir()
            ):
                raise RuntimeError("an input has been replaced")
            elif code == 0 and kind in ("report", "link"):
                raise RuntimeError("two outputs are in one place")

        yield "attack outputs", kind.encode(), lambda tried=tried: bounded(tried)


def of_folders(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Packed models: one weight under many names, scales that overflow, devices and pipes for files."""
    packed, place = folder / "packed", folder / "hostile-model"
    pack(folder / "model", packed, folder / "data")
    (folder / "line.txt").write_text("a river\n")
    whole = torch.load(packed / "model.pt", weights_only=False)
    while True:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(packed, place)
        kind = chosen.choice(("names", "views", "scales", "link", "pipe", "separator"))
        if kind in ("names", "views", "scales"):
            state = {**whole, "model": dict(whole["model"]), "eight_bits": dict(whole["eight_bits"])}
            some = torch.zeros(4_000_600, dtype=torch.int8)
            for i in range(500 if kind != "scales" else 0):
                first = i if kind == "views" else 0
                state["model"][f"x{i}"] = some[first : first + 4_000_000].view(4000, 1000)
                state["eight_bits"][f"x{i}"] = torch.ones(4000, 1)
            if kind == "scales" and (scaled := [*state["eight_bits"]]):
                name = chosen.choice(scaled)
                state["eight_bits"][name] = torch.full_like(state["eight_bits"][name], 3e38)
            torch.save(state, place / "model.pt")
        elif kind == "separator":
            text = (place / "settings.json").read_text()
            (place / "settings.json").write_text(text.replace("<sep>", chosen.choice(("<s>", "</s>", "a b", "<pad>"))))
        else:
            file = chosen.choice(sorted(place.iterdir()))
            file.unlink()
            file.symlink_to(chosen.choice(("/dev/zero", "/proc/kmsg"))) if kind == "link" else os.mkfifo(file)
        words: tuple[object, ...] = ("translate", place, folder / "line.txt", "--beam", 1)
        if kind != "separator":  # which is read with the data alone
            words = chosen.choice((words, ("info", place)))

        def tried(words: Any = words, kind: str = kind) -> None:
            if command(*words) == 0 and kind in ("names", "views", "scales", "separator"):
                raise RuntimeError("accepted")

        yield "attack folders", f"{kind}: {words[0]}".encode(), lambda tried=tried: bounded(tried)


def of_configurations(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Configurations of ``lasformer run`` that stand for more than they hold."""
    head = "source: en\ntarget: de\ntrain: no-such-file\nout: o\n"
    place = folder / "hostile.yaml"
    while True:
        depth, wide = chosen.randint(4, 9), chosen.randint(8, 12)
        names = [f"&a0 [{','.join('x' * wide)}]"]
        names += [f"&a{i} [{','.join([f'*a{i - 1}'] * wide)}]" for i in range(1, depth)]
        where = chosen.choice(("fairseq", "train", "systems", "gpu", "source", "prepare"))
        text = chosen.choice(
            (
                f"{where}: [{', '.join(names)}]\n",
                f"{where}: {{{', '.join(f'b{i}: {name}' for i, name in enumerate(names))}}}\n",
                f"{where}: {'[' * 4000}{']' * 4000}\n",
                f"{where}: {'{a: ' * 3000}1{'}' * 3000}\n",
                f"training: {{max_update: {'9' * 5000}}}\n",
                'out: "a\\0b"\n',
                'out: "a\\ud800b"\n',
                f"{where}: &a [*a]\n",
            )
        )
        text = (head if chosen.random() < 0.5 else "") + text
        place.write_text(text)
        yield "attack configurations", text.encode(), lambda: bounded(lambda: command("run", place))


def of_names(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Names that control a terminal, or are no text; encodings of which no program reads a file."""
    place = folder / "names"
    codecs = ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "base64", "rot13", "a\0b"]
    files = ["utf-8", "latin-1", "utf-16", "cp1252"]
    while True:
        shutil.rmtree(place, ignore_errors=True)
        (place / "in").mkdir(parents=True)
        words: list[object] = [
            "translate",
            folder / "model",
            place / "in",
            "-o",
            place / "out",
            "--data",
            folder / "data",
        ]
        words += ["--beam", 1, "--report", place / "r.tsv"]
        kind, codec = chosen.choice(("docx", "file", "encoding")), chosen.choice(codecs + files)
        if kind == "docx":
            with zipfile.ZipFile(place / "in/a.docx", "w") as made:
                made.writestr("[Content_Types].xml", "<Types/>")
                space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
                text = "<w:body><w:p><w:r><w:t>a river</w:t></w:r></w:p></w:body>"
                made.writestr("word/document.xml", f"<w:document {space}>{text}</w:document>")
                made.writestr("word/diagrams/data\x1b]0;TITLE\x07.xml", "<a:t>Some text here</a:t>")
        else:
            name = chosen.choice((b"\xff.txt", b"a\x1b[2J.txt", b"a\rb.txt")) if kind == "file" else b"a.txt"
            (place / "in" / os.fsdecode(name)).write_text("a river\n")
            words += ["--encoding-out", codec] if kind == "encoding" else []

        def tried(words: list[object] = words, kind: str = kind, codec: str = codec) -> None:
            code = command(*words)
            said = sys.stderr.getvalue() if isinstance(sys.stderr, io.StringIO) else ""
            if "\x1b" in said:
                raise RuntimeError("a name controls the terminal")
            if kind == "encoding" and (code == 0) != (codec in files):
                raise RuntimeError(f"{codec}: exit code {code}")
            if kind == "file" and code != 0:
                raise RuntimeError(f"a file with an odd name is not translated: {said}")

        yield "attack names", f"{kind} {codec}".encode(), lambda tried=tried: bounded(tried)


def of_trainings(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Data that is replaced under a model, and a training that diverges."""
    place = folder / "trainings"
    data = ["-s", "en", "-t", "de", "--train", folder / "raw/test", "--limit", 200, "--workers", 1, "--size"]
    train = [place / "m", "--arch", "lasformer_tiny", "--max-tokens", 400, "--update-freq", 1]

    def again() -> None:
        command("prepare", place / "data", *data, 60)
        if command("train", place / "data", *train, "--max-update", 1, "--save-every", 1, "--", "--cpu"):
            raise RuntimeError("not trained")
        command("prepare", place / "data", *data, 70, "--overwrite")
        if command("train", place / "data", *train, "--max-update", 1, "--save-every", 1, "--", "--cpu") == 0:
            raise RuntimeError("done, with other data")

    def diverge() -> None:
        command("prepare", place / "data", *data, 60)
        command("train", place / "data", *train, "--max-update", 6, "--lr", 1e25, "--", "--cpu")
        if isinstance(sys.stderr, io.StringIO) and "the training diverged at update" not in sys.stderr.getvalue():
            raise RuntimeError(f"it does not say that it diverged: {sys.stderr.getvalue()[-500:]}")

    while True:
        for name, call in (("again", again), ("diverge", diverge)):
            shutil.rmtree(place, ignore_errors=True)
            yield "attack trainings", name.encode(), lambda call=call: bounded(call, 120)


def attempts(chosen: random.Random, folder: Path, slow: bool) -> Generator[Attempt]:
    """Yield attacks of all kinds in turn; those that train, which take half a minute each, if ``slow``."""
    kinds = [of_sizes, of_memories, of_paths, of_outputs, of_folders, of_configurations, of_names]
    sources = [source(chosen, folder) for source in kinds]
    trainings = of_trainings(chosen, folder)
    for n in itertools.count():
        if slow and n % 20 == 5:
            yield next(trainings)
        for source in sources:
            yield next(source)
