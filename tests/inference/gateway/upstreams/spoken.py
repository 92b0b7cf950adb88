"""The same answer, "Hello", as upstreams of each dialect give it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.inference.gateway.upstreams.forwarding import HELLO, SECRET, UpstreamRig
from tests.servers.fake_upstream import Wire, block, message_end, message_start

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """``asked`` is the body of a chat of at most 9 tokens that "x" stops, ``frames`` its streamed
    answer, ``whole`` the one that is not streamed. After ``num_begun`` frames "Hel" has come."""

    dialect: str
    path: str
    key: dict[str, str]
    asked: dict[str, Any]
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
        asked={
            "model": "org/m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 9,
            "stop": ["x"],
        },
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
        asked={
            "model": "org/m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "stream": True,
            "stop_sequences": ["x"],
        },
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
        asked={
            "model": "org/m",
            "stream": True,
            "truncate": False,
            "shift": False,
            "messages": [{"role": "user", "content": "hi"}],
            "options": {"stop": ["x"], "num_predict": 9, "num_ctx": 4_096},
        },
        frames=[line("Hel"), line("lo"), DONE],
        num_begun=1,
        whole={**DONE, **line("Hello", done=True)},
        error={"error": "boom"},
    ),
}
