"""Connections: limits on their number and on waiting for them, who may use the server, and its end."""

import asyncio
import ipaddress
import os
import resource
import socket
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
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


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, which no web page can pass off as its own name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """A guard that refuses requests under foreign names and from foreign web pages.

    Args:
        hosts: names that it answers to; ``*`` is any name.
        addresses: whether it also answers to any IP address.
        origins: origins of other web pages (``https://example.org``) that may use it; ``*`` is any.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], addresses: bool, origins: Sequence[str]) -> None:
        self.app, self.hosts, self.addresses, self.origins = app, hosts, addresses, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            try:
                problem = self._problem(headers)
            except ValueError:  # an address that is none, such as [::1 without its end
                problem = "not a host"
            if problem:
                await JSONResponse({"error": problem}, 400 if "host" in problem else 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _problem(self, headers: dict[str, str]) -> str:
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or "" if not any(c in host for c in "/@?#\\") else ""
        known = "*" in self.hosts or name in self.hosts or f"[{name}]" in self.hosts
        if not known and not (self.addresses and is_address(name)):
            return "unknown host; name it with --name"
        origin = headers.get("origin")
        if origin is None or "*" in self.origins or origin in self.origins:
            return ""
        return "" if urlsplit(origin).netloc == host else "another site's page; allow it with --cors"
