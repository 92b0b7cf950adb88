"""Tests an upstream's API by small requests, each bounded in bytes and time.

    models ─▶ stream ─▶ tools ─▶ schema ─▶ images ─▶ counting ─▶ paid ones, where asked for

A refused probe does not work there; one that was not sent is ``None``. Details are our words and
the endpoint's status, without its text.

Paid ones are for endpoints of OpenAI's dialect (moderation, speech, transcripts and images), the
cheapest first. Each needs its own model, which is chosen from the list by name.
"""

from __future__ import annotations

import io
import re
import time
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.chat_probes import HELLO, STEPS, Asking, Step, no_answer
from fleet.upstreams.discovery import KnownModel, discover
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.http import Answer, opened

MAX_BYTES = 16 * 1024 * 1024
"""An image in base64 takes several MiB."""
NOT_TRIED = "not tried: a request may cost money; --paid tries one"
NO_MODEL = "not tried: no listed model is named like one; --model names one"
UNTESTED = "not tested: it lists no model, and none was named"
NO_CHAT = re.compile(r"embed|rerank|bge|babbage|davinci|realtime|sora|codex", re.IGNORECASE)
"""Names of models that do not chat, beside those of ``PAID``."""
TIME_LIMIT_S = 50.0
"""For all probes: less than commands wait for a server's answer."""
MODELS = "models"


def _silence() -> bytes:
    """A second, which need not have a text."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes(bytes(2 * 16_000))
    return file.getvalue()


def _is_sound(answer: Answer) -> bool:
    kind = answer.content_type.partition("/")[0]
    is_sound = kind in ("audio", "application") and "json" not in answer.content_type
    return bool(answer.body) and is_sound


def _has_image(answer: Answer) -> bool:
    match answer.table().get("data"):
        case [dict() as first, *_]:
            return bool(first.get("b64_json") or first.get("url"))
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    names: re.Pattern[str]
    """The pattern of names of models that do this."""
    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The request's fields beside its model."""
    file: Callable[[], tuple[str, bytes, str]] | None = None
    """A form's file: name, content and type."""
    is_answer: Callable[[Answer], bool]
    timeout_s: float = 15.0

    def step(self, asking: Asking) -> str:
        fields = {"model": asking.model, **self.fields}
        sent: dict[str, Any] = {"json": fields}
        if self.file is not None:
            sent = {"data": fields, "files": {"file": self.file()}}
        url = f"{asking.entry.url}{self.path}"
        answer = asking.post(url, max_bytes=MAX_BYTES, timeout_s=self.timeout_s, **sent)
        if not self.is_answer(answer):
            raise no_answer()
        return f"with {asking.model}"


PAID: Mapping[str, Paid] = {
    "moderation": Paid(
        names=re.compile(r"moderation|guard", re.IGNORECASE),
        path="/moderations",
        fields={"input": HELLO},
        is_answer=lambda answer: isinstance(answer.table().get("results"), list),
    ),
    "speech": Paid(
        names=re.compile(r"tts|speech|kokoro|orpheus", re.IGNORECASE),
        path="/audio/speech",
        fields={"input": "Hi.", "voice": "alloy"},
        is_answer=_is_sound,
    ),
    "transcription": Paid(
        names=re.compile(r"whisper|transcri|parakeet|canary", re.IGNORECASE),
        path="/audio/transcriptions",
        file=lambda: ("silence.wav", _silence(), "audio/wav"),
        is_answer=lambda answer: isinstance(answer.table().get("text"), str),
    ),
    "image_generation": Paid(
        names=re.compile(r"image|dall-e|diffusion|sdxl|flux", re.IGNORECASE),
        path="/images/generations",
        fields={"prompt": "a red square", "n": 1},
        is_answer=_has_image,
        timeout_s=TIME_LIMIT_S,
    ),
}


def chat_model(listed: Sequence[str]) -> str:
    """The first listed model that is not named like one without a chat, else the first; empty: none
    is listed. Pure."""
    others = (NO_CHAT, *(paid.names for paid in PAID.values()))
    chats = (name for name in listed if not any(one.search(name) for one in others))
    return next(chats, listed[0] if listed else "")


def model_for(what: str, listed: Iterable[str]) -> str:
    """The first listed model with a name for that paid probe; empty: none. Pure."""
    return next((name for name in listed if PAID[what].names.search(name)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    what: str
    works: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    probes: tuple[Probe, ...]
    models: tuple[KnownModel, ...] | None
    """``None``: the endpoint did not list them."""
    model: str = ""


def probe(
    entry: UpstreamEntry, secret: str, *, model: str = "", tries_paid: bool = False
) -> Probed:
    """``model``: empty tests the first listed one that chats, by its name. ``tries_paid``: also
    paid probes, with ``model``, else with models of fitting names. Raises nothing."""
    until_s = time.monotonic() + TIME_LIMIT_S
    models: tuple[KnownModel, ...] | None = None
    try:
        with opened(entry, secret) as client:
            try:
                models = tuple(discover(client, entry))
                listed = Probe(what=MODELS, works=True, detail=f"{len(models)} listed")
            except UpstreamUnavailableError as error:
                listed = Probe(what=MODELS, works=False, detail=str(error))
            known = [one.id for one in models or ()]
            tested = model or chat_model(known)

            def tried(what: str, step: Step, model: str, without: str) -> Probe:
                return _tried(what, step, Asking(client, entry, model, until_s), without)

            probes = [
                listed,
                *(tried(what, step, tested, UNTESTED) for what, step in STEPS.items()),
            ]
            for what, paid in PAID.items() if entry.dialect == "openai" else ():
                named = model or model_for(what, known) if tries_paid else ""
                without = NO_MODEL if tries_paid else NOT_TRIED
                probes.append(tried(what, paid.step, named, without))
            return Probed(probes=tuple(probes), models=models, model=tested)
    except UpstreamUnavailableError as error:
        return Probed(probes=(Probe(what=MODELS, works=False, detail=str(error)),), models=None)


def _tried(what: str, step: Step, asking: Asking, without: str) -> Probe:
    """``without``: the reason why it is not sent where there is no model."""
    if not asking.model or asking.left_s <= 0:
        detail = "not tested: the time is up" if asking.model else without
        return Probe(what=what, works=None, detail=detail)
    try:
        return Probe(what=what, works=True, detail=step(asking))
    except UpstreamUnavailableError as error:
        return Probe(what=what, works=False, detail=str(error))
