"""Subcommand ``serve``: runs a translation server with a web page."""

from __future__ import annotations

import argparse
import re
import socket
from pathlib import Path
from typing import Any

from fairseq_lasformer.cli import (
    add_beam,
    add_decoding,
    add_device,
    add_max_tokens,
    add_memory_options,
    decoding_of,
    memory_of,
)
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.machine import cores
from fairseq_lasformer.shared import model_path

LOCAL = ("127.0.0.1", "localhost", "::1")


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        type=model_path,
        nargs="+",
        metavar="MODEL",
        help="checkpoints, their folders, or names of models in data/models",
    )
    parser.add_argument("--data", type=Path, help="prepared folder of all models (default: the one used in training)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--name", action="append", default=[], help="name by which other machines reach it")
    parser.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin, such as https://example.org, use the server; * for all",
    )
    add_beam(parser)
    add_device(parser)
    add_decoding(parser)
    add_memory_options(parser)
    parser.add_argument("--lanes", type=int, help="threads that translate (default: 2; 1 on a GPU or a single core)")
    parser.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="require one of the keys in this file, one per line"
    )
    add_max_tokens(parser, 4096)
    parser.add_argument("--max-queue", type=int, default=256, help="limit of waiting documents (default: %(default)s)")
    parser.add_argument("--max-characters", type=int, default=500_000, help="limit per text (default: %(default)s)")
    parser.add_argument("--max-bytes", type=int, default=20 << 20, help="limit per file (default: %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=600, help="limit per translation (default: %(default)s)")
    parser.add_argument("--per-client", type=int, default=16, help="simultaneous translations (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="log every request, and what fairseq logs")
    parser.epilog = "Example: lasformer serve checkpoints/mine, then open http://127.0.0.1:5000."


def run_serve(args: argparse.Namespace) -> None:
    from fairseq_lasformer.cli.translate_options import set_verbosity

    set_verbosity(args.verbose)
    try:
        import torch

        from fairseq_lasformer.documents.hub import load_model
        from fairseq_lasformer.server.app import Server
        from fairseq_lasformer.server.connections import listen, serve
        from fairseq_lasformer.server.models import ServedModel, name_of
        from fairseq_lasformer.server.pages import Limits
    except ModuleNotFoundError as e:
        raise InputError(f"the server needs {e.name}: pip install 'fairseq_lasformer[server]'") from e
    _check(args)
    keys = None if args.api_keys is None else _keys(args.api_keys)
    listening = listen(args.host, args.port)  # before the models are loaded, which takes a while
    port = listening.getsockname()[1]
    lanes = args.lanes
    models = []
    for path in args.models:
        model = load_model(path, args.data, args.device, **decoding_of(args))
        if lanes is None:
            lanes = 1 if model.device.type == "cuda" or cores() == 1 else 2
        if model.device.type == "cpu":
            torch.set_num_threads(max(1, cores() // lanes))
        models.append(
            ServedModel(name_of(path), model, args.beam, args.max_tokens, args.max_queue, lanes, _memory(args, model))
        )
    if args.memory is not None and not any(model.files.memory for model in models):
        raise InputError(f"{args.memory}: no served model translates between its languages")
    limits = Limits(args.max_characters, args.max_bytes, args.max_seconds, per_client=args.per_client)
    local = args.host in LOCAL
    hosts = [*LOCAL, socket.gethostname(), *args.name]
    pairs = ", ".join(f"{model.name} ({'-'.join(model.languages)})" for model in models)
    print(f"http://{args.host}:{port} serves {pairs}; Ctrl-C ends it", flush=True)
    serve(Server(models, limits, keys).app(hosts, addresses=not local, origins=args.cors), listening, args.verbose)


def _memory(args: argparse.Namespace, model: Any) -> Any:
    """Return the memory for a model; None if there is none, or its languages differ.

    Raises:
        InputError: it cannot be read.
    """
    from fairseq_lasformer.translation_memory.store import MemoryStore

    languages = model.settings.source_lang, model.settings.target_lang
    if args.memory is not None and MemoryStore(args.memory).languages != languages:
        return None
    return memory_of(args, languages)


def _check(args: argparse.Namespace) -> None:
    """Refuse limits that would let nothing through, and invalid origins.

    Raises:
        InputError: an option is invalid.
    """
    for name in (
        "beam",
        "max_tokens",
        "max_queue",
        "max_characters",
        "max_bytes",
        "max_seconds",
        "per_client",
        "lanes",
    ):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{name.replace('_', '-')} {value}: expected a number above 0")
    for origin in args.cors:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise InputError(f"--cors {origin}: expected an origin, such as https://example.org, or *")


def _keys(path: Path) -> list[str]:
    """Read the keys in a file, one per line.

    Raises:
        InputError: it cannot be read, or contains none.
    """
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not text in UTF-8; expected one key per line") from e
    if not keys:
        raise InputError(f"{path}: contains no key")
    return keys
