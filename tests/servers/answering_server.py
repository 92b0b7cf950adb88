"""An HTTP server with fixed answers, as another instance of helexa."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def answering(bodies: dict[str, bytes], instance: str | None) -> Iterator[int]:
    """A server with the header of that instance; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if instance is not None:
                self.send_header("x-helexa-instance", instance)
            self.end_headers()
            self.wfile.write(bodies[self.path])

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
