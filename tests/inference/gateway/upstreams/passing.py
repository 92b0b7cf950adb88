"""Forms and models for tests of requests that are passed through."""

from __future__ import annotations

import io
import wave
from typing import Any

from tests.inference.gateway.asgi_client import Exchange

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
