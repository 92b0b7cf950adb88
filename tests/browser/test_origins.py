"""Pages of other origins in a browser: one that the operator has named, and one that it has not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.browser.server import PagesServer
from tests.live.serving import wait_until
from tests.servers.private_redis import running_redis

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

FETCH = """
    const [url, options, done] = arguments;
    fetch(url, options).then(
        async (answer) => done({status: answer.status, body: await answer.text()}),
        (error) => done({error: error.name}),
    );
"""
KEYED = {"headers": {"Authorization": "Bearer any", "Content-Type": "application/json"}}


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>elsewhere</title>")

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def page_port() -> Iterator[int]:
    """Returns the port of a server with one page. Chromium finds all names under localhost on this
    machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def gateway_url(chromium: webdriver.Chrome, tmp_path: Path, page_port: int) -> Iterator[str]:
    settings = {"HELEXA_ALLOWED_ORIGINS": f"http://named.localhost:{page_port}"}
    with running_redis(tmp_path) as redis_url:
        server = PagesServer(tmp_path, redis_url, "http://127.0.0.1:9", settings)
        yield server.url
        server.stop()


def test_a_page_works_where_its_origin_is_named(
    chromium: webdriver.Chrome, gateway_url: str, page_port: int
) -> None:
    def asked(options: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = chromium.execute_async_script(
            FETCH, f"{gateway_url}/v1/models", options
        )
        return answer

    chromium.get(f"http://named.localhost:{page_port}/")
    assert asked(KEYED)["status"] == 200
    assert asked({})["status"] == 200
    chromium.get(f"http://unnamed.localhost:{page_port}/")
    assert asked(KEYED) == {"error": "TypeError"}
    assert asked({}) == {"error": "TypeError"}
    messages: list[str] = []

    def is_logged() -> bool:
        messages.extend(entry["message"] for entry in chromium.get_log("browser"))
        return any("blocked by CORS policy" in message for message in messages)

    wait_until(is_logged, "Chromium reports it")
