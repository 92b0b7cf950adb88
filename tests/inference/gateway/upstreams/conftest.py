"""An upstream, and a gateway whose only model it serves, or may serve; its answer, "Hello", in each
dialect, and forms of requests that are passed through."""

from __future__ import annotations

import io
import json
import threading
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.conf import settings

from fleet.catalogue import CatalogueEntry
from fleet.upstream_probe import RED_PNG
from fleet.upstreams import UpstreamEntry, seal
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import ENTRY, Rig, parts_of
from tests.servers.fake_upstream import (
    Answer,
    Asked,
    FakeUpstream,
    Wire,
    block,
    chunk,
    message_end,
    message_start,
    usage,
)

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
    model: str = "far"

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
        self.upstream.answer = with_json(status, body, **headers)

    def open_chat(self, **fields: Any) -> Exchange:
        return self.client.open("POST", PATH, {**CHAT, "model": self.model, **fields})

    async def chat(self, **fields: Any) -> Exchange:
        return await self.open_chat(**fields).finish()

    def open_speech(self, **fields: Any) -> Exchange:
        return self.client.open("POST", SPEECH, {**SPOKEN, "model": self.model, **fields})

    async def speak(self, **fields: Any) -> Exchange:
        return await self.open_speech(**fields).finish()

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


EVENTS, LINES = "text/event-stream", "application/x-ndjson"
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """``frames`` is a chat's streamed answer, ``whole`` the one that is not streamed. After
    ``num_begun`` frames "Hel" has come."""

    dialect: str
    path: str
    key: dict[str, str]
    frames: list[Any]
    num_begun: int
    whole: dict[str, Any]
    error: dict[str, Any]
    num_cached: int = 0

    def serve(self, rig: UpstreamRig, **changes: Any) -> None:
        """The upstream speaks this dialect from now on, and says "Hello"."""
        rig.serve(dialect=self.dialect, url=self._url(rig))
        (entry,) = rig.catalogue.listed
        rig.list(upstream=entry.upstream, **changes)
        rig.upstream.answer = lambda asked, wire: self.stream(wire, self.frames)

    def _url(self, rig: UpstreamRig) -> str:
        return rig.upstream.url if self.dialect == "openai" else rig.upstream.origin

    def stream(self, wire: Wire, frames: list[Any]) -> None:
        if self.dialect == "openai":
            wire.stream(frames)
        elif self.dialect == "anthropic":
            wire.events(frames)
        else:
            wire.lines(frames)

    def frame(self, content: Any) -> bytes:
        text = json.dumps(content).encode()
        return text + b"\n" if self.dialect == "ollama" else b"data: " + text + b"\n\n"

    def begin(self, wire: Wire, *more: bytes) -> None:
        """Sends "Hel", and what else is to come in one piece with it."""
        wire.begin_stream(LINES if self.dialect == "ollama" else EVENTS)
        frames = [self.frame(one) for one in self.frames[: self.num_begun]]
        wire.part(b"".join([*frames, *more]))


def line(content: str = "", **fields: Any) -> dict[str, Any]:
    """One line of Ollama's stream."""
    message = {"role": "assistant", "content": content}
    return {"model": "m", "message": message, "done": False, **fields}


DONE = line(done=True, done_reason="stop", prompt_eval_count=7, eval_count=2)
DELTAS = [{"type": "text_delta", "text": text} for text in ("Hel", "lo")]
SPOKEN_BY = {
    "openai": Spoken(
        dialect="openai",
        path="/v1/chat/completions",
        key={"authorization": f"Bearer {SECRET}"},
        frames=HELLO,
        num_begun=2,
        whole={
            "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        },
        error={"error": {"message": "boom", "code": 500}},
        num_cached=3,
    ),
    "anthropic": Spoken(
        dialect="anthropic",
        path="/v1/messages",
        key={"x-api-key": SECRET},
        frames=[
            message_start(input_tokens=4, cache_read_input_tokens=3, output_tokens=1),
            *block(0, {"type": "text", "text": ""}, *DELTAS),
            {"type": "ping"},
            message_end("end_turn"),
            {"type": "message_stop"},
        ],
        num_begun=3,
        whole={
            "type": "message",
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 2},
        },
        error=OVERLOADED,
        num_cached=3,
    ),
    "ollama": Spoken(
        dialect="ollama",
        path="/api/chat",
        key={"authorization": f"Bearer {SECRET}"},
        frames=[line("Hel"), line("lo"), DONE],
        num_begun=1,
        whole={**DONE, **line("Hello", done=True)},
        error={"error": "boom"},
    ),
}


BOUNDARY = "a-boundary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
TRANSCRIPTIONS, SPEECH = "/v1/audio/transcriptions", "/v1/audio/speech"
GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"
VARIATIONS = "/v1/images/variations"
MODERATIONS = "/v1/moderations"
SPOKEN: dict[str, Any] = {"model": "far", "input": "Hello!", "voice": "alloy"}


def part(name: str, content: bytes, *, filename: str = "", type_: str = "") -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    typed = f"\r\nContent-Type: {type_}" if type_ else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}{typed}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def wav(seconds: float, *, rate: int = 8000) -> bytes:
    """Silence: 8 bits, one channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(1)
        written.setframerate(rate)
        written.writeframes(b"\x80" * int(seconds * rate))
    return file.getvalue()


def audio_form(audio: bytes, *others: bytes, model: bytes = b"far") -> bytes:
    file = part("file", audio, filename="a.wav", type_="audio/wav")
    return form(part("model", model), file, *others)


def shape(answer: Exchange) -> tuple[int, str, str | None]:
    """Status, code and param, of an error that has all of OpenAI's fields."""
    error = answer.error
    assert error.keys() >= {"message", "type", "param", "code"} and error["message"]
    return answer.status, error["code"], error["param"]


CHAT_TINY = {**CHAT, "model": "tiny"}
OWN, FAR = "The capital is Paris.", "Hello"
PARTS = [chunk({"content": FAR}), chunk(finish="stop"), usage(7, 2)]
BOX: dict[str, Any] = {"source": "upstream:box/m"}
SPEAKS: dict[str, Any] = {**BOX, "task": "speech"}


@pytest.fixture(autouse=True)
def _nothing_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes streams wait for their answer on a slow machine too: a stream that is started before
    has neither an error's status nor the header of who serves. Nor do probes come between."""
    monkeypatch.setattr("inference.gateway.consumers.generate.STREAM_GRACE_S", 60.0)
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 3600.0)


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        fake.answer = lambda asked, wire: wire.stream(HELLO)
        yield fake


@pytest.fixture
def rig(rig: Rig, upstream: FakeUpstream) -> UpstreamRig:
    sealed = seal(SECRET, settings.SECRET_KEY)
    entry = CatalogueEntry(
        name="far",
        source="upstream:box/org/m",
        input_price_micro_usd=1_000_000,
        output_price_micro_usd=2_000_000,
        upstream=UpstreamEntry(name="box", url=upstream.url, sealed_secret=sealed),
    )
    rig.catalogue.listed = [entry]
    return UpstreamRig(**parts_of(rig), upstream=upstream, entry=entry)


@dataclass(slots=True, kw_only=True)
class TargetsRig(UpstreamRig):
    """The upstream ``cloud`` is outside, ``box`` is not."""

    cloud: FakeUpstream

    @property
    def box(self) -> FakeUpstream:
        return self.upstream

    def upstreams(self, **changes: Any) -> tuple[UpstreamEntry, ...]:
        return (
            UpstreamEntry(name="box", url=self.box.url, **changes),
            UpstreamEntry(name="cloud", url=self.cloud.url, leaves_network=True),
        )

    def target(self, *targets: str, **changes: Any) -> CatalogueEntry:
        """Sets the targets of the catalogue's only model; other changes of its entry by name."""
        values = {"may_leave_network": True, "target_upstreams": self.upstreams()}
        entry = replace(ENTRY, targets=targets, **values | changes)
        self.catalogue.listed = [entry]
        return entry

    def forget(self) -> None:
        UpstreamRig.forget(self)
        self.cloud.asked.clear()

    async def ask_for(self, kind: dict[str, Any]) -> Exchange:
        return await (self.chat(stream=True) if kind is BOX else self.speak())

    async def served_by(self, **fields: Any) -> str:
        answer = await self.chat(**fields)
        assert answer.status == 200, answer.body
        return answer.headers["x-helexa-served-by"]


@pytest.fixture
def targets(rig: UpstreamRig) -> Iterator[TargetsRig]:
    with FakeUpstream() as cloud:
        rig.upstream.answer = cloud.answer = answers
        rig.catalogue.listed = [ENTRY]
        yield TargetsRig(**parts_of(rig) | {"model": "tiny", "cloud": cloud})


def answers(asked: Asked, wire: Wire) -> None:
    if asked.path == SPEECH:
        wire.whole(200, b"sound", "audio/mpeg")
    else:
        wire.stream(PARTS)


def with_json(status: int, body: Any, **headers: str) -> Answer:
    return lambda asked, wire: wire.json(status, body, **headers)


def with_body(content: bytes, type_: str, **headers: str) -> Answer:
    return lambda asked, wire: wire.whole(200, content, type_, **headers)


def refuses(status: int, **headers: str) -> Answer:
    return with_json(status, {"error": {"message": "no"}}, **headers)
