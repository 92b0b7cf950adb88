"""A hub and an index of wheels on loopback with the endpoints that a download asks, Range included.
It can stand still in the middle of a file, ask for a token, and redirect to a store of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeHub(ThreadingHTTPServer):
    """One repository, org/tiny; org/gated is gated, org/broken answers with errors."""

    daemon_threads = True

    def __init__(
        self, files: dict[str, bytes], *, commit: str = COMMIT, token: str | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.commit = commit
        self.token = token
        self.sizes: dict[str, int] = {}
        """Declared sizes of files that are larger than their content here."""
        self.gguf: dict[str, object] | None = None
        self.stop_at: int | None = None
        """How many bytes of an answer are sent before it stands still until the hub is closed."""
        self.serves_ranges = True
        self.store: FakeHub | None = None
        """Where requests for files are redirected to."""
        self.asked: list[tuple[str, str | None]] = []
        """Each request's path with its Authorization header."""
        self.ranges: list[tuple[str, str]] = []
        """(file, Range header) of each GET of a file; the header is empty where there was none."""
        self.is_closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def tokens(self) -> set[str | None]:
        return {token for _, token in self.asked}

    @property
    def fetched(self) -> list[str]:
        """The files whose content was asked for."""
        return [name for name, _ in self.ranges]

    def etag(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def listing(self) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": self.sizes.get(name, len(content))}
            | {"lfs": {"sha256": self.etag(name), "size": len(content), "pointerSize": 1}}
            for name, content in self.files.items()
        ]
        return {"id": "org/tiny", "sha": self.commit, "siblings": siblings, "gguf": self.gguf}

    def index(self) -> str:
        return "<!DOCTYPE html>" + "".join(
            f'<a href="/files/{name}#sha256={self.etag(name)}">{name}</a>'
            for name in self.files
            if name.endswith(".whl")
        )


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, given = self.server, self.headers.get("Authorization")
        hub.asked.append((self.path, given))
        path = urlsplit(self.path).path  # of a whole URL, where it is asked as a proxy
        if hub.token is not None and given != f"Bearer {hub.token}":
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path == "/api/models":
            self._send(200, json.dumps([{"id": "org/tiny"}]).encode(), {})
        elif path.startswith("/api/models/org/tiny"):
            self._send(200, json.dumps(hub.listing()).encode(), {})
        elif path.startswith("/org/tiny/resolve/"):
            self._file(path.removeprefix("/org/tiny/resolve/").partition("/")[2])
        elif path == "/simple/tiny-model/":
            self._send(200, hub.index().encode(), {"Content-Type": "text/html"})
        elif path.startswith("/files/"):
            self._file(path.removeprefix("/files/"))
        elif "gated" in path:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif "broken" in path:
            self._send(500, b"{}", {})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str) -> None:
        hub, content, wanted = self.server, self.server.files[name], self.headers.get("Range", "")
        headers = {"ETag": f'"{hub.etag(name)}"'}
        if self.command == "GET":
            hub.ranges.append((name, wanted))
        if hub.store is not None:
            headers |= {"Location": f"{hub.store.url}/files/{name}"}
            self._send(302, b"", headers | {"X-Linked-Size": str(len(content))})
        elif wanted and hub.serves_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
            if not part:
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            end = int(first) + len(part) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
            self._send(206, part, headers)
        else:
            self._send(200, content, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", self.server.commit)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        stop_at = self.server.stop_at
        if stop_at is None or stop_at >= len(body):
            self.wfile.write(body)
            return
        self.wfile.write(body[:stop_at])
        self.wfile.flush()
        self.server.is_closing.wait()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.is_closing.set()
        hub.shutdown()
        hub.server_close()
