"""A hub and an index of wheels on loopback with the endpoints that a download asks, Range included.
They can stand still in the middle of a file, and redirect to a store of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
PIECE = 64 * 1024


class RangeHub(ThreadingHTTPServer):
    """One repository, org/tiny. ``stop_at``: how many bytes of an answer are sent before it stands
    still until the hub is closed."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.stop_at: int | None = None
        self.serves_ranges = True
        self.store: RangeHub | None = None
        """Where requests for files are redirected to."""
        self.authorizations: list[str] = []
        """The header of each GET of a file."""
        self.ranges: list[tuple[str, str]] = []
        """(file, Range header) of each GET of a file; the header is empty where there was none."""
        self.is_closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def etag(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: RangeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/tiny"):
            self._send(200, json.dumps(self._listing()).encode(), {})
        elif path.startswith("/org/tiny/resolve/"):
            self._file(path.removeprefix("/org/tiny/resolve/").partition("/")[2])
        elif path == "/simple/tiny-model/":
            self._send(200, self._index().encode(), {"Content-Type": "text/html"})
        elif path.startswith("/files/"):
            self._file(path.removeprefix("/files/"))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _index(self) -> str:
        return "<!DOCTYPE html>" + "".join(
            f'<a href="/files/{name}#sha256={self.server.etag(name)}">{name}</a>'
            for name in self.server.files
            if name.endswith(".whl")
        )

    def _listing(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "lfs": {"sha256": self.server.etag(name), "size": len(content), "pointerSize": 1},
            }
            for name, content in self.server.files.items()
        ]
        return {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}

    def _file(self, name: str) -> None:
        content = self.server.files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.server.etag(name)}"'}
        wanted = self.headers.get("Range", "")
        if self.command == "GET":
            self.server.ranges.append((name, wanted))
            self.server.authorizations.append(self.headers.get("Authorization", ""))
        if self.server.store is not None:
            headers |= {"Location": f"{self.server.store.url}/files/{name}"}
            self._send(302, b"", headers | {"X-Linked-Size": str(len(content))})
        elif wanted and self.server.serves_ranges:
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
def running_range_hub(files: dict[str, bytes]) -> Iterator[RangeHub]:
    hub = RangeHub(files)
    hub.daemon_threads = True
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.is_closing.set()
        hub.shutdown()
        hub.server_close()
