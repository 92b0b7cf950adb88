"""Clients that ask and hang up, in every dialect: over HTTP, whole or streamed, and over a
WebSocket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import connect

from tests.live.serving import WAIT_TIMEOUT_S

HangUp = Callable[[], None]
Ask = Callable[[str, str, str], HangUp]
"""(a gateway's URL, model, prompt): the request is sent; what it gives hangs up."""


@dataclass(frozen=True, slots=True)
class Way:
    """``num_sequences``: how many the engine runs for it."""

    ask: Ask
    num_sequences: int = 1


def over_http(path: str, body: Callable[[str], Mapping[str, Any]], *, stream: bool) -> Ask:
    def ask(url: str, model: str, prompt: str) -> HangUp:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_TIMEOUT_S)
        sent = {"model": model, "stream": stream, **body(prompt)}
        headers = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(sent), headers)
        return connection.close

    return ask


def over_a_socket(*, closes: bool) -> Ask:
    """``closes``: with a closing handshake; otherwise the connection is cut."""

    def ask(url: str, model: str, prompt: str) -> HangUp:
        connection = connect(f"ws://{urlsplit(url).netloc}/v1/responses", ping_interval=None)
        sent = {"type": "response.create", "model": model, "input": prompt, "store": False}
        connection.send(json.dumps(sent))
        if closes:
            return connection.close
        return lambda: connection.socket.shutdown(socket.SHUT_RDWR)

    return ask


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


CHAT = "/v1/chat/completions"
_OF_DIALECTS: dict[str, tuple[str, int, Callable[[str], Mapping[str, Any]]]] = {
    "chat": (CHAT, 1, lambda prompt: {"messages": _messages(prompt)}),
    "choices": (CHAT, 3, lambda prompt: {"messages": _messages(prompt), "n": 3}),
    "completions": (
        "/v1/completions",
        2,
        lambda prompt: {"prompt": [prompt, f"{prompt}!"], "max_tokens": 100_000},
    ),
    "messages": (
        "/v1/messages",
        1,
        lambda prompt: {"messages": _messages(prompt), "max_tokens": 100_000},
    ),
    "responses": ("/v1/responses", 1, lambda prompt: {"input": prompt, "store": False}),
}

WAYS: dict[str, Way] = {
    f"{dialect} {'streamed' if stream else 'whole'}": Way(
        over_http(path, body, stream=stream), num_sequences
    )
    for dialect, (path, num_sequences, body) in _OF_DIALECTS.items()
    for stream in (False, True)
} | {
    "socket closed": Way(over_a_socket(closes=True)),
    "socket cut": Way(over_a_socket(closes=False)),
}
MAIN_WAYS = ("chat whole", "chat streamed", "socket closed", "socket cut")
"""One dialect each."""
