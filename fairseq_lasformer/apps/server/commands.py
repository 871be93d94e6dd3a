"""Subcommand ``serve``: runs a translation server with a web page."""

from __future__ import annotations

import re
import socket
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import locked
from fairseq_lasformer.base.machine import cores
from fairseq_lasformer.base.options import NOTHING, SPEED, argument, option, text_settings
from fairseq_lasformer.base.published import local_path, model_path
from fairseq_lasformer.base.resume import key_of
from fairseq_lasformer.base.shared_options import Beam, Data, Decoding, Device, Remembering, max_tokens

LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Serve(Data, Beam, Device, Decoding, Remembering):
    """A server."""

    models: tuple[Path, ...] = argument(
        "checkpoints, their folders, or models' names or addresses", read=local_path, metavar="MODEL", apart=True
    )
    host: str = option("127.0.0.1", "address to listen on (default: this machine only)", changes=NOTHING)
    port: int = option(5000, "to listen on", changes=NOTHING)
    name: tuple[str, ...] = option((), "name by which other machines reach it", append=True, changes=NOTHING)
    cors: tuple[str, ...] = option(
        (),
        "let web pages of this origin, such as https://example.org, use the server; * for all",
        append=True,
        metavar="ORIGIN",
        changes=NOTHING,
    )
    lanes: int | None = option(
        None, "threads that translate (default: 2; 1 on a GPU or a single core)", above=0, changes=SPEED
    )
    api_keys: Path | None = option(
        None, "require one of the keys in this file, one per line", metavar="FILE", changes=NOTHING
    )
    max_tokens: int = max_tokens(4096)
    max_characters: int = option(500_000, "limit per text", above=0, changes=NOTHING)
    max_bytes: int = option(20 << 20, "limit per file", above=0, changes=NOTHING)
    max_seconds: float = option(600, "limit per translation", above=0, changes=NOTHING)
    per_client: int = option(16, "simultaneous translations", above=0, changes=NOTHING)
    jobs: Path | None = option(
        None,
        "folder for jobs, which resume there after a restart (default: a temporary folder)",
        metavar="DIR",
        changes=NOTHING,
    )
    verbose: bool = option(False, "log every request, and what fairseq logs", changes=NOTHING)
    epilog = "Example: lasformer serve checkpoints/mine, then open http://127.0.0.1:5000."


def run_serve(args: Serve) -> None:
    with nullcontext() if args.jobs is None else locked(args.jobs / ".lock", "a server"):
        _serve(args)


def _serve(args: Serve) -> None:
    from fairseq_lasformer.apps.files.translate_options import set_verbosity

    set_verbosity(args.verbose)
    try:
        import torch

        from fairseq_lasformer.apps.server.app import Server
        from fairseq_lasformer.apps.server.connections import listen, serve
        from fairseq_lasformer.apps.server.models import ServedModel, name_of
        from fairseq_lasformer.apps.server.pages import Limits
        from fairseq_lasformer.checkpoints.loading import chosen, identity
        from fairseq_lasformer.documents.hub import load_model
    except ModuleNotFoundError as e:
        raise InputError(f"the server needs {e.name}: pip install 'fairseq_lasformer[server]'") from e
    _check(args)
    keys = None if args.api_keys is None else _keys(args.api_keys)
    listening = listen(args.host, args.port)  # before the models are loaded, which takes a while
    port = listening.getsockname()[1]
    lanes = args.lanes
    models = []
    for path in map(model_path, args.models):
        model = load_model(path, args.data, args.device, **args.decoding())
        if lanes is None:
            lanes = 1 if model.device.type == "cuda" or cores() == 1 else 2
        if model.device.type == "cpu":
            torch.set_num_threads(max(1, cores() // lanes))
        memory = _memory(args, model)
        key = key_of(identity(chosen(path)), model.settings.fingerprint, text_settings(args), memory and memory.state)
        models.append(ServedModel(name_of(path), model, args.beam, args.max_tokens, lanes, memory, key))
    if args.memory is not None and not any(model.files.memory for model in models):
        raise InputError(f"{args.memory}: no served model translates between its languages")
    limits = Limits(args.max_characters, args.max_bytes, args.max_seconds, per_client=args.per_client)
    local = args.host in LOCAL
    hosts = [*LOCAL, socket.gethostname(), *args.name]
    pairs = ", ".join(f"{model.name} ({'-'.join(model.languages)})" for model in models)
    print(f"http://{args.host}:{port} serves {pairs}; Ctrl-C ends it", flush=True)
    server = Server(models, limits, keys, args.jobs)
    serve(server.app(hosts, addresses=not local, origins=args.cors), listening, args.verbose)


def _memory(args: Serve, model: Any) -> Any:
    """Return the memory for a model; None if there is none, or its languages differ."""
    from fairseq_lasformer.apps.files.translate_options import opened_memory
    from fairseq_lasformer.translation_memory.store import MemoryStore

    languages = model.settings.source_lang, model.settings.target_lang
    if args.memory is not None and MemoryStore(args.memory).languages != languages:
        return None
    return opened_memory(args, languages)


def _check(args: Serve) -> None:
    """Refuse invalid origins."""
    for origin in args.cors:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise InputError(f"--cors {origin}: expected an origin, such as https://example.org, or *")


def _keys(path: Path) -> list[str]:
    """Read the keys in a file, one per line."""
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not text in UTF-8; expected one key per line") from e
    if not keys:
        raise InputError(f"{path}: contains no key")
    return keys
