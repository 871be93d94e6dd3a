"""Access to the server: the names it answers to, and the web pages whose scripts may use it."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


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
