"""Small hubs on loopback of which each has the same ``org/tiny``, with files of its own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class HubServer:
    files: Mapping[str, bytes]
    commit: str
    token: str | None = None
    """What it asks for; ``None``: nothing."""
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Each request's path with its Authorization header."""

    @property
    def tokens(self) -> set[str | None]:
        return {token for _, token in self.asked}


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            given = self.headers.get("Authorization")
            hub.asked.append((self.path, given))
            path = urlsplit(self.path).path  # of a whole URL, where it is asked as a proxy
            if hub.token is not None and given != f"Bearer {hub.token}":
                self._send(401, b"{}", with_body, error="RepoNotFound")
            elif path.startswith("/org/tiny/resolve/"):
                body = hub.files[path.removeprefix("/org/tiny/resolve/").partition("/")[2]]
                self._send(200, body, with_body, etag=hashlib.sha256(body).hexdigest())
            elif path == "/api/models":
                self._send(200, json.dumps([{"id": "org/tiny"}]).encode(), with_body)
            elif path.startswith("/api/models/org/tiny"):
                siblings = [
                    {"rfilename": name, "size": len(body)} for name, body in hub.files.items()
                ]
                listing = {"id": "org/tiny", "sha": hub.commit, "siblings": siblings}
                self._send(200, json.dumps(listing).encode(), with_body)
            else:
                self._send(404, b"{}", with_body, error="RepoNotFound")

        def _send(
            self, status: int, body: bytes, with_body: bool, *, etag: str = "", error: str = ""
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("ETag", f'"{etag}"')
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    return Handler


@contextmanager
def serving(hub: HubServer) -> Iterator[HubServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
