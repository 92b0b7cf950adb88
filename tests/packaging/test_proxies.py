"""The examples of proxies, in nginx and Caddy themselves where this machine has them."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.ports import free_port

PROXIES = Path(__file__).resolve().parents[2] / "packaging" / "proxies"
GATEWAY = "127.0.0.1:31313"
WAIT_S = 60.0
NGINX = """
daemon off;
user root;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
CADDY = """
{
	admin off
	auto_https off
}
"""


class Gateway(ThreadingHTTPServer):
    """Answers with two events, the second when the client has the first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.has_first = threading.Event()
        self.was_streamed = False
        self.headers: http.client.HTTPMessage = http.client.HTTPMessage()
        self.body = b""


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        self.server.headers = self.headers
        self.server.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b"data: first\n\n")
        self.server.was_streamed = self.server.has_first.wait(WAIT_S)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.has_first.set()
        server.shutdown()
        thread.join()


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        )
    try:
        deadline_s = time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        assert process.poll() is None, (folder / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


def program(name: str) -> str:
    if (found := shutil.which(name)) is None:
        pytest.skip(f"there is no {name} on this machine")
    return found


def nginx(folder: Path, port: int, gateway: str) -> list[str]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        (
            *(program("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=chat.example.org"),
            *("-keyout", str(key), "-out", str(certificate)),
        ),
        check=True,
        capture_output=True,
    )
    text = (PROXIES / "nginx.conf").read_text().replace("listen 443", f"listen 127.0.0.1:{port}")
    text = text.replace("/etc/ssl/chat.example.org.pem", str(certificate))
    text = text.replace("/etc/ssl/chat.example.org.key", str(key))
    (folder / "site.conf").write_text(text.replace(f"server {GATEWAY} ", f"server {gateway} "))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def nginx_of_compose(folder: Path, port: int, gateway: str) -> list[str]:
    text = (PROXIES / "nginx-compose.conf").read_text()
    text = text.replace("listen 31313", f"listen 127.0.0.1:{port}")
    text = text.replace("gateway-1:31313", gateway).replace("gateway-2:31313", gateway)
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, gateway: str) -> list[str]:
    text = (
        (PROXIES / "Caddyfile").read_text().replace(f"reverse_proxy {GATEWAY}", "reverse_proxy G")
    )
    text = text.replace("\nchat.example.org {", f"\nhttp://127.0.0.1:{port} {{")
    (folder / "Caddyfile").write_text(
        CADDY + text.replace("reverse_proxy G", f"reverse_proxy {gateway}")
    )
    return [program("caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


@pytest.mark.parametrize("proxy", [nginx, nginx_of_compose, caddy])
def test_events_come_through_one_by_one(
    proxy: Callable[[Path, int, str], list[str]], gateway: Gateway, tmp_path: Path
) -> None:
    port = free_port()
    command = proxy(tmp_path, port, f"127.0.0.1:{gateway.server_port}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    if proxy is nginx:
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            port,
            timeout=WAIT_S,
            context=ssl._create_unverified_context(),
        )
    body = b'{"stream": true, "messages": []}'
    with running(command, port, tmp_path):
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer hx-1"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline() == b"data: first\n"
        gateway.has_first.set()
        assert answer.read() == b"\ndata: [DONE]\n\n"
        connection.close()
    assert gateway.was_streamed, "the first event was held back until the second"
    assert gateway.body == body
    assert gateway.headers["Authorization"] == "Bearer hx-1"
    assert gateway.headers["X-Forwarded-For"] == "127.0.0.1"
    assert gateway.headers["X-Forwarded-Proto"] == ("https" if proxy is nginx else "http")
