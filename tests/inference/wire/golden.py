"""Golden cases of the dialects: a request, the events that answer it, and what a client gets.

    tests/golden/<dialect>/<case>/
        request.json                    what the client sent
        events.json                     what happened: then also
            parsed.json                 the request inside
            stream.sse  body.json       the answer, streamed and whole
        or error.json                   the refusal, where the parser refuses

``python -m tests.inference.wire.golden`` writes every output anew; read the diff before you commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference.protocol.events import Event
from inference.wire import openai_chat, openai_completions
from inference.wire.errors import ApiError, openai_error

GOLDEN_DIR = Path(__file__).resolve().parents[2] / "golden"
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "openai_chat": openai_chat.parse,
    "openai_completions": openai_completions.parse,
}
ANSWERED = frozenset({"request.json", "events.json", "parsed.json", "stream.sse", "body.json"})
REFUSED = frozenset({"request.json", "error.json"})
REQUEST_ID = "0123456789abcdef"
CREATED_UNIX_S = 1_700_000_000

decode_events = msgspec.json.Decoder(list[Event]).decode


@dataclass(frozen=True, slots=True)
class Case:
    dialect: str
    path: Path

    def __str__(self) -> str:
        return f"{self.dialect}/{self.path.name}"

    def outputs(self) -> dict[str, bytes]:
        """What the code makes of the case today, by file name."""
        body = (self.path / "request.json").read_bytes()
        try:
            request = PARSERS[self.dialect](body)
        except ApiError as error:
            return {"error.json": _pretty({"status": error.status, **openai_error(error)})}
        events = decode_events((self.path / "events.json").read_bytes())
        made = {"request_id": REQUEST_ID, "created_unix_s": CREATED_UNIX_S}
        stream = fold(request.stream_encoder(**made), events)
        whole = fold(request.body_encoder(**made), events)
        parsed = {
            "stream": request.stream,
            "include_usage": request.include_usage,
            "generation": msgspec.to_builtins(request.generation, str_keys=True),
        }
        return {
            "parsed.json": _pretty(parsed),
            "stream.sse": stream,
            "body.json": _pretty(json.loads(whole)),
        }


def fold(encoder: Any, events: list[Event]) -> bytes:
    return b"".join(encoder.encode(event) for event in events)


def cases() -> list[Case]:
    return [
        Case(dialect, path)
        for dialect in PARSERS
        for path in sorted((GOLDEN_DIR / dialect).iterdir())
    ]


def _pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def regenerate() -> None:
    for case in cases():
        for name, content in case.outputs().items():
            (case.path / name).write_bytes(content)


if __name__ == "__main__":
    regenerate()
