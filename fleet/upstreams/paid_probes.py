"""Probes of what passes through to endpoints of OpenAI's dialect: moderation, speech, transcripts
and images. Each may cost money, so they are sent where the operator asks for them, the cheapest
first.

Each needs a model of its own, which is found among the listed ones by its name.
"""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterable, Mapping, Sequence

from fleet.upstreams.chat_probes import HELLO, Asking, Step, no_answer

MAX_BYTES = 16 * 1024 * 1024
"""An image in base64 takes several MiB."""
NOT_TRIED = "not tried: a request may cost money; --paid tries one"
NO_MODEL = "not tried: no listed model is named like one; --model names one"
NAMES = {
    "moderation": re.compile(r"moderation|guard", re.IGNORECASE),
    "speech": re.compile(r"tts|speech|kokoro|orpheus", re.IGNORECASE),
    "transcription": re.compile(r"whisper|transcri|parakeet|canary", re.IGNORECASE),
    "image_generation": re.compile(r"image|dall-e|diffusion|sdxl|flux", re.IGNORECASE),
}


NO_CHAT = re.compile(r"embed|rerank|bge|babbage|davinci|realtime|sora|codex", re.IGNORECASE)
"""Names of models that do not chat, beside those of ``NAMES``."""


def chat_model(listed: Sequence[str]) -> str:
    """The first listed model that is not named like one without a chat, else the first; empty: none
    is listed. Pure."""
    others = (NO_CHAT, *NAMES.values())
    chats = (name for name in listed if not any(one.search(name) for one in others))
    return next(chats, listed[0] if listed else "")


def model_for(what: str, listed: Iterable[str]) -> str:
    """The first listed model that is named like one of that probe; empty: none is. Pure."""
    return next((name for name in listed if NAMES[what].search(name)), "")


def _moderation(asking: Asking) -> str:
    body = {"model": asking.model, "input": HELLO}
    found = asking.post(f"{asking.url}/moderations", body).json()
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise no_answer()
    return _of(asking)


def _speech(asking: Asking) -> str:
    body = {"model": asking.model, "input": "Hi.", "voice": "alloy"}
    answer = asking.post(f"{asking.url}/audio/speech", body, max_bytes=MAX_BYTES)
    kind = answer.content_type.partition("/")[0]
    if not answer.body or kind not in ("audio", "application") or "json" in answer.content_type:
        raise no_answer()
    return _of(asking)


def _transcription(asking: Asking) -> str:
    """A second of silence, which need not have a text."""
    file = ("silence.wav", _silence(), "audio/wav")
    url = f"{asking.url}/audio/transcriptions"
    found = asking.upload(url, {"model": asking.model}, file).json()
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise no_answer()
    return _of(asking)


def _image_generation(asking: Asking) -> str:
    body = {"model": asking.model, "prompt": "a red square", "n": 1}
    url = f"{asking.url}/images/generations"
    answer = asking.post(url, body, max_bytes=MAX_BYTES, timeout_s=asking.left_s)
    found = answer.json()
    images = found.get("data") if isinstance(found, dict) else None
    first = images[0] if isinstance(images, list) and images else None
    if not isinstance(first, dict) or not (first.get("b64_json") or first.get("url")):
        raise no_answer()
    return _of(asking)


def _of(asking: Asking) -> str:
    return f"with {asking.model}"


def _silence() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes(bytes(2 * 16_000))
    return file.getvalue()


STEPS: Mapping[str, Step] = {
    "moderation": _moderation,
    "speech": _speech,
    "transcription": _transcription,
    "image_generation": _image_generation,
}
