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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.chat_probes import HELLO, STEPS, Asking, Step, no_answer
from fleet.upstreams.discovery import KnownModel, discover
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.http import opened

if TYPE_CHECKING:
    import httpx2


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
TIME_LIMIT_S = 50.0
"""For all probes: less than commands wait for a server's answer."""
MODELS = "models"


def chat_model(listed: Sequence[str]) -> str:
    """The first listed model that is not named like one without a chat, else the first; empty: none
    is listed. Pure."""
    others = (NO_CHAT, *NAMES.values())
    chats = (name for name in listed if not any(one.search(name) for one in others))
    return next(chats, listed[0] if listed else "")


def model_for(what: str, listed: Iterable[str]) -> str:
    """The first listed model with a name for that probe; empty: none. Pure."""
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


PAID_STEPS: Mapping[str, Step] = {
    "moderation": _moderation,
    "speech": _speech,
    "transcription": _transcription,
    "image_generation": _image_generation,
}


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
    try:
        with opened(entry, secret) as client:
            try:
                models = tuple(discover(client, entry))
                listed = Probe(what=MODELS, works=True, detail=f"{len(models)} listed")
            except UpstreamUnavailableError as error:
                models, listed = None, Probe(what=MODELS, works=False, detail=str(error))
            known = [one.id for one in models or ()]
            tested = model or chat_model(known)
            others = _probes(client, entry, tested, until_s)
            if entry.dialect == "openai":
                others += _paid(client, entry, model, known if tries_paid else None, until_s)
            return Probed(probes=(listed, *others), models=models, model=tested)
    except UpstreamUnavailableError as error:
        return Probed(probes=(Probe(what=MODELS, works=False, detail=str(error)),), models=None)


def _probes(client: httpx2.Client, entry: UpstreamEntry, model: str, until_s: float) -> list[Probe]:
    if not model:
        reason = "not tested: it lists no model, and none was named"
        return [Probe(what=what, works=None, detail=reason) for what in STEPS]
    asking = Asking(client, entry, model, until_s)
    return [_tried(what, step, asking) for what, step in STEPS.items()]


def _paid(
    client: httpx2.Client,
    entry: UpstreamEntry,
    model: str,
    listed: Sequence[str] | None,
    until_s: float,
) -> list[Probe]:
    """``model``: to test; empty: one of ``listed`` for each. ``listed``: ``None``: test none."""
    found: list[Probe] = []
    for what, step in PAID_STEPS.items():
        asked = "" if listed is None else model or model_for(what, listed)
        if not asked:
            reason = NOT_TRIED if listed is None else NO_MODEL
            found.append(Probe(what=what, works=None, detail=reason))
        else:
            found.append(_tried(what, step, Asking(client, entry, asked, until_s)))
    return found


def _tried(what: str, step: Step, asking: Asking) -> Probe:
    if asking.left_s <= 0:
        return Probe(what=what, works=None, detail="not tested: the time is up")
    try:
        return Probe(what=what, works=True, detail=step(asking))
    except UpstreamUnavailableError as error:
        return Probe(what=what, works=False, detail=str(error))
