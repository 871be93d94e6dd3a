"""Connections: limits on their number and on waiting for them, and the end of the server."""

import asyncio
import os
import resource
import socket
import threading
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_lasformer.base.errors import InputError

HEADER_SECONDS = 15.0
"""Time limit for the head of a request, and for the first request of a connection to begin."""

IDLE_SECONDS = 30
"""Seconds that a connection is kept after an answer."""

GRACE_SECONDS, END_SECONDS = 5, 9.0
"""Seconds after a signal until answers are cut off, and until the process ends regardless."""

HEADER_BYTES = 64 << 10


def most_connections() -> int:
    """Return half of the files that this process may open: the rest is for models, uploads and libraries."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(4096, soft // 2)) if soft != resource.RLIM_INFINITY else 4096


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections beyond the limit, and those whose next request does not arrive."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting: asyncio.TimerHandle | None = None
        if len(self.connections) > most_connections():
            transport.close()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _watch(self) -> None:
        """Start the clock when the head of a request is expected; stop it when the head has arrived."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(HEADER_SECONDS, self._late)

    def _late(self) -> None:
        self._waiting = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


class BoundedServer(uvicorn.Server):
    """A server that ends some seconds after the first signal, even if a translation cannot be interrupted."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            timer = threading.Timer(END_SECONDS, os._exit, [0])
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket."""
    if not 0 <= port < 65536:
        raise InputError(f"--port {port}: expected a number from 0 to 65535")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as e:
        raise InputError(
            f"{host}:{port}: cannot listen ({e.strerror or e}); choose a different --host or --port"
        ) from e
    return listening


def configured(app: ASGIApp, verbose: bool) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        log_level="info" if verbose else "warning",
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        # asyncio accepts so many connections before one beyond the limit is closed
        backlog=max(4, min(128, most_connections() // 2)),
        # anyone could name another client's address, and the limit per client would be void
        proxy_headers=False,
    )


def serve(app: ASGIApp, listening: socket.socket, verbose: bool) -> None:
    """Answer requests until a signal comes."""
    BoundedServer(configured(app, verbose)).run(sockets=[listening])
