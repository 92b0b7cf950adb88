"""What Chromium stops: pages of other origins, unless the operator has named them, and by the
Content-Security-Policy what is injected into a page of ours.

That the pages themselves break no rule of it, ``test_pages.py`` sees: a violation is an error in
the console."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.browser.chromium import DESKTOP, Browser
from tests.browser.seed import OPERATOR, PASSWORD
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

INLINE = """
    const script = document.createElement("script");
    script.textContent = "window.wasRun = true";
    document.body.append(script);
    const image = document.createElement("div");
    image.innerHTML = '<img src="/nowhere.png" onerror="window.wasRun = true">';
    document.body.append(image);
    return null;
"""
FETCHED = """
    return fetch(arguments[0], {mode: "no-cors"}).then(() => "sent", () => "stopped");
"""
FRAMED = """
    const frame = document.createElement("iframe");
    frame.src = arguments[0];
    document.body.append(frame);
    return null;
"""
ATTEMPTS = ("inline script", "inline event handler", "connect-src", "frame-src")
ELSEWHERE = "http://127.0.0.1:9/"


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
    with (
        running_redis(tmp_path) as redis_url,
        PagesServer(tmp_path, redis_url, "http://127.0.0.1:9", settings) as server,
    ):
        yield server.url


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


def test_what_is_injected_does_not_run(browser: Browser) -> None:
    for path in ("/login/", "/admin/", "/playground/"):
        browser.start_anew(DESKTOP)
        if path != "/login/":
            browser.log_in(OPERATOR, PASSWORD)
        browser.open(path)
        assert browser.check() == []
        browser.run(INLINE)
        assert browser.run(FETCHED, ELSEWHERE) == "stopped"
        browser.run(FRAMED, ELSEWHERE)
        stopped: list[str] = []

        def are_all_stopped(stopped: list[str] = stopped) -> bool:
            stopped += [one for one in browser.check() if "Content Security Policy" in one]
            return all(any(what in line for line in stopped) for what in ATTEMPTS)

        browser.wait(are_all_stopped, "each attempt is in the console")
        assert browser.run("return window.wasRun === undefined")
