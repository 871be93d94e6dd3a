"""Hostile input for everything that reads input, for a bounded time: ``python -m benchmarks.fuzz --seconds 600``.

Formats (read, find sentences, write), loaders (checkpoints, prepared folders, raw text, glossaries, journals, run
configurations) and the server's routes get mutations of valid input and random pieces of it; attacks on sizes, SQL and
paths are those of :mod:`benchmarks.fuzz_attacks`, and those on folders of :mod:`benchmarks.fuzz_folders`. Expected
results are success, ``InputError`` or an answer below 500. Anything else is printed, its input is kept in ``--out``,
and the exit code is 1. The seed is printed; the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz_attacks import Attempt
from benchmarks.fuzz_folders import attempts
from benchmarks.readers import SHAPES
from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.sentences import sentences, whole

ATTACKS = 0.4
"""Share of the time that attacks get."""

PIECES = [
    *(b"<", b">", b"</", b"<!--", b"&#0;", b"&#x110000;", b"[", b"](", b"`", b"**", b"%s", b"{{", b"}}"),
    *(b"msgid ", b'msgstr ""', b'"', b"\n", b"\r", b"-->", b"00:00:01,000 --> 00:00:02,000\n", b"\0", b"\\"),
    *(b"<?xml version='1.0' encoding='utf-7'?>", b"nplurals=9; plural=n/0;", b"#, c-format\n", b"\xef\xbb\xbf"),
    *(b"${oc.env:HOME}", b"null", b"-1", b"99999999999999999999", b"true", b"[[[[", b"{}", b'"\\ud800"', b"NaN"),
    *(b"1e999", b"\xff", b"\xf0\x9f", b"\x85"),
]


def mutated(data: bytes, chosen: random.Random) -> bytes:
    """Return bytes with a few of them replaced, removed, doubled or cut off, or with pieces inserted."""
    made = bytearray(data)
    for _ in range(chosen.randint(1, 6)):
        at, end = sorted(chosen.randrange(len(made) + 1) for _ in range(2))
        end = min(end, at + chosen.choice([1, 4, 50, 5000]))
        kind = chosen.randrange(5)
        if kind == 0:
            made[at:at] = chosen.choice(PIECES)
        elif kind == 1:
            del made[at:end]
        elif kind == 2:
            made[at:at] = made[at:end]
        elif kind == 3 and made:
            made[min(at, len(made) - 1)] = chosen.randrange(256)
        elif kind == 4 and chosen.random() < 0.2:
            del made[at:]
    return bytes(made)


def of_formats(chosen: random.Random) -> Generator[Attempt]:
    valid = [(form, make(2000)) for form, shapes in SHAPES.items() for make in shapes.values()]

    def attempt(form: str, data: bytes) -> None:
        file = formats.read(data, form)
        for block in file.blocks:
            sentences(block, whole)
        for translated in (str, str.upper):
            file.write([[translated(segment) for segment in block.segments] for block in file.blocks])

    while True:
        form, data = chosen.choice(valid)
        data = mutated(data, chosen)
        if chosen.random() < 0.3:
            data = b"".join(chosen.choice(PIECES) for _ in range(chosen.randrange(80)))
        yield f"format {form}", data, lambda form=form, data=data: _no_stumble(lambda: attempt(form, data))


def _no_stumble(call: Callable[[], object]) -> None:
    """Check that a reader refuses by its own rule: an ``InputError`` around another error is a caught fault."""
    try:
        call()
    except InputError as e:
        if "Error:" in str(e):
            raise RuntimeError(str(e)) from e
        raise


def of_loaders(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Mutate the files of a prepared folder and a checkpoint, one at a time."""
    from fairseq_lasformer.apps.files.journal import Journal
    from fairseq_lasformer.base.resume import Progress
    from fairseq_lasformer.checkpoints.loading import load
    from fairseq_lasformer.data.examples import ExampleCodec
    from fairseq_lasformer.data.manifest import SplitInfo
    from fairseq_lasformer.evaluation.probe import read_probes
    from fairseq_lasformer.experiments.run_config import RunConfig
    from fairseq_lasformer.search.glossary import Glossary
    from fairseq_lasformer.text.documents import read_corpus, read_documents
    from fairseq_lasformer.text.hypotheses import read_hypotheses

    data = shutil.copytree(folder / "data", folder / "mutated")
    place = folder / "hostile"
    texts = {
        "raw text": ((folder / "raw" / "test.en").read_bytes(), lambda: read_documents(place)),
        "corpus": ((folder / "raw" / "test.en").read_bytes(), lambda: read_corpus(place, folder / "raw" / "test.de")),
        "hypotheses": ((folder / "raw" / "test.de").read_bytes(), lambda: read_hypotheses(place)),
        "glossary": (b"bank\tUfer\nriver\tFluss\n" * 5, lambda: Glossary.read(place)),
        "probes": (b'{"document": 0, "line": 1, "right": ["a"], "wrong": ["b"]}\n', lambda: read_probes(place)),
        "run configuration": (
            b"source: en\ntarget: de\ntrain: [a]\nout: b\nprepare: {limit: 9}\n",
            lambda: RunConfig.read(place),
        ),
        "journal": (b'["0", [[[5, 6], -1.0, false, false]]]\n' * 3, lambda: Journal(place).lines(9, 500)),
        "progress": (b'["", "k"]\n["a", 1.0, "b"]\n', lambda: Progress(folder, "k")),
        "checkpoint": ((folder / "model" / "checkpoint_last.pt").read_bytes(), lambda: load(place)),
    }
    prepared = [path for path in sorted(data.iterdir()) if path.is_file() and path.suffix not in (".bin", ".idx")]
    while True:
        if chosen.random() < 0.4:
            path = chosen.choice(prepared)
            original = (folder / "data" / path.name).read_bytes()
            content = mutated(original, chosen)

            def opened(path: Path = path, content: bytes = content, original: bytes = original) -> None:
                path.write_bytes(content)
                try:
                    codec = ExampleCodec.load(data)
                    codec.encode_source("a river, %s")
                    for split in ("train", "test"):
                        SplitInfo.load(data, split)
                finally:
                    path.write_bytes(original)

            yield f"prepared {path.name}", content, opened
            continue
        name = chosen.choice(list(texts))
        original, call = texts[name]
        content = mutated(original, chosen)

        def loaded(content: bytes = content, call: Callable[[], object] = call, name: str = name) -> None:
            where = folder / "progress.jsonl" if name == "progress" else place
            where.write_bytes(content)
            call()

        yield name, content, loaded


def of_routes(chosen: random.Random, folder: Path) -> Generator[Attempt]:
    """Try every route of a server, with JSON, forms and files."""
    from starlette.testclient import TestClient

    from fairseq_lasformer.apps.server.app import Server
    from fairseq_lasformer.apps.server.models import ServedModel
    from fairseq_lasformer.apps.server.pages import Limits
    from fairseq_lasformer.documents.hub import load_model

    model = ServedModel("fuzz", load_model(folder / "model", folder / "data"), beam=1)
    app = Server([model], Limits(characters=2000, file_bytes=20_000, seconds=20)).app()
    client = TestClient(app, raise_server_exceptions=True)
    routes: Any = app.routes
    paths = [route.path.replace("{token}", "x").replace("{name}", "a.txt") for route in routes]
    values: list[Any] = ["", "a bank", "\x00", "w" * 3000, None, True, -1, 10**30, 1.5, [], {}, ["a", "b"], [["a"]]]
    names = "q source target format alternatives stream glossary model api_key source_lines target_lines line word file"
    files = [(f"a{form.suffixes[0]}" if form.suffixes else "a.txt", key) for key, form in formats.FORMATS.items()]
    valid = {form: [make(500) for make in shapes.values()] for form, shapes in SHAPES.items()}
    try:
        while True:
            path = chosen.choice(paths)
            fields = {name: chosen.choice(values) for name in names.split() if chosen.random() < 0.4}
            kind = chosen.randrange(4)
            request: dict[str, Any] = {}
            if kind == 0:
                request = {"content": json.dumps(fields), "headers": {"content-type": "application/json"}}
            elif kind == 1:
                body = mutated(json.dumps(fields).encode(), chosen)
                request = {"content": body, "headers": {"content-type": "application/json"}}
            elif kind == 2:
                request = {"data": {k: str(v) for k, v in fields.items()}}
            else:
                name, form = chosen.choice(files)
                request = {"files": {"file": (name, mutated(chosen.choice(valid[form]), chosen))}}
                request["data"] = {k: str(v) for k, v in fields.items() if k in ("stream", "glossary")}
            method = "POST" if chosen.random() < 0.9 else "GET"
            if method == "POST" and chosen.random() < 0.8:
                path = chosen.choice(["/translate", "/translate_file", "/attention"])
            if method == "GET":
                request = {}

            def asked(method: str = method, path: str = path, request: dict[str, Any] = request) -> None:
                answer = client.request(method, path, **request)
                if answer.status_code >= 500 and answer.status_code not in (501, 503):  # no detection; out of time
                    raise RuntimeError(f"{method} {path}: {answer.status_code}")

            yield f"{method} {path}", repr(request).encode()[:5000], asked
    finally:
        model.engine.close()  # its threads must not be in torch when the process ends


def prepare(folder: Path) -> None:
    """Make a small corpus, its prepared folder, and a hardly trained model."""
    root = Path(__file__).resolve().parents[1]
    program = str(Path(sys.executable).with_name("lasformer"))
    raw = folder / "raw"
    subprocess.run([sys.executable, root / "data/demo/generate.py", raw, "--documents", "24"], check=True, cwd=root)
    prefixes = [f"--{split}={raw / split}" for split in ("train", "test")]
    words = [program, "prepare", folder / "data", "-s", "en", "-t", "de", "--size", "200", "--limit", "200", *prefixes]
    subprocess.run(words, check=True, capture_output=True)
    sizes = [f"--{side}-{name}" for side in ("encoder", "decoder") for name in ("embed-dim=16", "ffn-embed-dim=16")]
    words = [program, "train", folder / "data", folder / "model", "--max-update", "2", "--max-tokens", "1000"]
    subprocess.run([*words, "--", *sizes, "--cpu"], check=True, capture_output=True)


def tried_once(attempt: Attempt, args: argparse.Namespace, tried: Counter[str]) -> int:
    """Make an attempt, print its fault and keep its input; return the number of faults."""
    name, data, call = attempt
    tried[name.split()[0] if name.startswith("prepared") else name] += 1
    begun, faults = time.process_time(), 0
    try:
        with redirect_stderr(StringIO()):
            call()
    except InputError:
        pass
    except Exception:
        faults += 1
        args.out.mkdir(parents=True, exist_ok=True)
        kept = args.out / f"{args.seed}-{sum(tried.values())}"
        kept.write_bytes(data)
        print(f"FAULT {name}, seed {args.seed}, input in {kept}\n{traceback.format_exc()[-1500:]}", flush=True)
    took = time.process_time() - begun
    if took > 10 and not name.startswith(("POST", "GET")):  # those translate
        faults += 1
        print(f"SLOW {name}, seed {args.seed}: {took:.0f} s of processor time, {data[:200]!r}", flush=True)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="failing inputs (default: %(default)s)")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    chosen, tried, faults = random.Random(args.seed), Counter[str](), 0
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        sources: list[Generator[Attempt]] = [
            *(of_formats(chosen), of_loaders(chosen, folder), of_routes(chosen, folder)),
        ]
        # attacks fork, so they come before anything that starts threads
        begun, end = time.monotonic(), time.monotonic() + args.seconds
        if sys.platform == "linux":
            with_bounds = attempts(chosen, folder, args.seconds >= 300)
            while time.monotonic() < begun + ATTACKS * args.seconds:
                faults += tried_once(next(with_bounds), args, tried)
        while time.monotonic() < end:
            for source in sources:
                faults += tried_once(next(source), args, tried)
        for source in sources:
            source.close()
    for name, number in sorted(tried.items()):
        print(f"{number:7} {name}")
    print(f"seed {args.seed}: {sum(tried.values())} inputs, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
