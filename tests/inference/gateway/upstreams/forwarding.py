"""Parts of an upstream's answers, and a chat with the model that it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.upstreams.chat_probes import RED_PNG
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.conftest import FakeCatalogue
from tests.servers.fake_upstream import Asked, Wire, chunk, usage

SECRET = "sk-the-upstreams-own-secret-0123456789"
HELLO = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk(finish="stop"),
    usage(7, 2, prompt_tokens_details={"cached_tokens": 3}),
]
RED_PIXELS = f"data:image/png;base64,{RED_PNG}"
CHAT: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}


def serve(catalogue: FakeCatalogue, far: CatalogueEntry, **changes: Any) -> None:
    """Changes the upstream's row."""
    assert far.upstream is not None
    catalogue.listed = [replace(far, upstream=replace(far.upstream, **changes))]


async def chat(client: AsgiClient, **fields: Any) -> Exchange:
    return await client.post("/v1/chat/completions", {**CHAT, **fields})


def paused(goes_on: threading.Event) -> Callable[[Asked, Wire], None]:
    """Sends the first part of ``HELLO``, and the others when that is set."""

    def answer(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.part(b": a comment\r\n\r\n")
        wire.event(HELLO[1])
        assert goes_on.wait(60)
        for one in HELLO[2:]:
            wire.event(one)
        wire.end_stream()

    return answer


def cut_early(asked: Asked, wire: Wire) -> None:
    wire.begin_stream()
    wire.cut()
