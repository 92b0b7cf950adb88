"""A gateway whose only model an upstream serves, and parts of the upstream's answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fleet.catalogue import CatalogueEntry
from fleet.upstreams.chat_probes import RED_PNG
from fleet.upstreams.entry import UpstreamEntry
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import Rig
from tests.inference.gateway.upstreams.passing import (
    FORM,
    SPEECH,
    SPOKEN,
    TRANSCRIPTIONS,
    audio_form,
)
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, chunk, usage

SECRET = "sk-the-upstreams-own-secret-0123456789"
PATH = "/v1/chat/completions"
HELLO = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk(finish="stop"),
    usage(7, 2, prompt_tokens_details={"cached_tokens": 3}),
]
RED_PIXELS = f"data:image/png;base64,{RED_PNG}"
CHAT: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}


@dataclass(slots=True, kw_only=True)
class UpstreamRig(Rig):
    """``entry`` is the catalogue's model ``far`` as it is at first."""

    upstream: FakeUpstream
    entry: CatalogueEntry

    @property
    def row(self) -> UpstreamEntry:
        assert self.entry.upstream is not None
        return self.entry.upstream

    def list(self, **changes: Any) -> None:
        """Changes the model's entry."""
        self.catalogue.listed = [replace(self.entry, **changes)]

    def serve(self, **changes: Any) -> None:
        """Changes the upstream's row."""
        self.list(upstream=replace(self.row, **changes))

    def offer(self, task: str, **changes: Any) -> None:
        """The model does that task, for money: 1 USD a million requests, 2 a million units."""
        prices = {"input_price_micro_usd": None, "output_price_micro_usd": None}
        own = {"request_price_micro_usd": 1_000_000, "unit_price_micro_usd": 2_000_000}
        self.list(**{**prices, **own, "task": task, **changes})

    def forget(self) -> None:
        """Nothing was asked and nothing settled, for the next case of a table."""
        self.upstream.asked.clear()
        self.ledger.settled.clear()

    def answer(self, status: int, body: Any, **headers: str) -> None:
        """The upstream answers with that JSON from now on."""
        self.upstream.answer = lambda asked, wire: wire.json(status, body, **headers)

    async def chat(self, **fields: Any) -> Exchange:
        return await self.client.post(PATH, {**CHAT, **fields})

    def open_chat(self, **fields: Any) -> Exchange:
        return self.client.open("POST", PATH, {**CHAT, **fields})

    async def speak(self, **fields: Any) -> Exchange:
        return await self.client.post(SPEECH, {**SPOKEN, **fields})

    async def transcribe(self, audio: bytes, *others: bytes) -> Exchange:
        body = audio_form(audio, *others)
        return await self.client.post(TRANSCRIPTIONS, parts=[body], headers=FORM)


def text_of(answer: Exchange) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


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
