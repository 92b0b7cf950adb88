"""Tests an upstream's API by small requests, each bounded in bytes and time.

    models ─▶ stream ─▶ tools ─▶ schema ─▶ images ─▶ counting ─▶ paid ones, where asked for

A refused probe does not work there; one that was not sent is ``None``. Details are our words and
the endpoint's status, without its text. Paid ones are for OpenAI's dialect, the cheapest first;
each needs its own model, chosen from the list by name.
"""

from __future__ import annotations

import io
import json
import re
import time
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstream_http import Answer, KnownModel, discover, exchange, opened, unversioned
from fleet.upstreams import Dialect, UpstreamEntry

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 15.0
MAX_BYTES = 1024 * 1024
MAX_PAID_BYTES = 16 * 1024 * 1024
"""An image in base64 takes several MiB."""
NOT_TRIED = "not tried: a request may cost money; --paid tries one"
NO_MODEL = "not tried: no listed model is named like one; --model names one"
UNTESTED = "not tested: it lists no model, and none was named"
NO_CHAT = re.compile(r"embed|rerank|bge|babbage|davinci|realtime|sora|codex", re.IGNORECASE)
"""Names of models that do not chat, beside those of ``PAID``."""
TIME_LIMIT_S = 50.0
"""For all probes: less than commands wait for a server's answer."""
RED_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAA"
    "jAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)
NUMBERS = (3, 7, 11)
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": list(NUMBERS)}},
    "required": ["number"],
    "additionalProperties": False,
}
"""Small models write numbers without end where any is allowed."""
FUNCTION = {"name": "report_number", "description": "Reports a number."}
OPENAI_TOOL = {"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}
HELLO, COLOUR = "Say hello.", "Which colour is this?"
BOUNDED = {"max_tokens": 64}


@dataclass(frozen=True, slots=True)
class Asking:
    client: httpx2.Client
    entry: UpstreamEntry
    model: str
    until_s: float

    @property
    def chat(self) -> Chat:
        return CHATS[self.entry.dialect]

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    def post(
        self, url: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES, **sent: Any
    ) -> Answer:
        """Raises ``UpstreamUnavailableError``, also for a status that is no success."""
        sent |= {"timeout_s": min(timeout_s, max(0.1, self.left_s)), "max_bytes": max_bytes}
        answer = exchange(self.client, "POST", url, **sent)
        if not answer.is_success:
            raise UpstreamUnavailableError(f"it answers with status {answer.status}")
        return answer

    def send(self, content: Any, fields: Mapping[str, Any], **message: Any) -> Answer:
        messages = [{"role": "user", "content": content, **message}]
        body = {"model": self.model, "messages": messages, **self.chat.always, **fields}
        return self.post(f"{self.entry.url}{self.chat.path}", json=body)

    def message(self, content: Any, fields: Mapping[str, Any], **message: Any) -> dict[str, Any]:
        """The message has ``content`` and ``tool_calls``."""
        try:
            found = self.chat.message(self.send(content, fields, **message).json())
        except (LookupError, TypeError, AttributeError):
            found = None
        if not isinstance(found, dict):
            raise _no_answer()
        return found


Step = Callable[[Asking], str]
"""Returns a detail. Raises ``UpstreamUnavailableError`` where it does not work."""


def _no_answer() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("its answer is not understood")


def _anthropic_message(body: Any) -> Any:
    blocks = body["content"]
    return {
        "tool_calls": [block for block in blocks if block.get("type") == "tool_use"],
        "content": "".join(block["text"] for block in blocks if block.get("type") == "text"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Fields of a request; ``image``: of its message; ``message`` finds the answer's."""

    path: str
    always: Mapping[str, Any]
    stream: Mapping[str, Any]
    stream_marks: tuple[bytes, bytes]
    """Bytes that occur in a stream, and in one with usage."""
    stream_type: str = ""
    tools: Mapping[str, Any]
    schema: Mapping[str, Any]
    image: Mapping[str, Any]
    message: Callable[[Any], Any]


CHATS: Mapping[Dialect, Chat] = {
    "openai": Chat(
        path="/chat/completions",
        always=BOUNDED,
        stream={"stream": True, "stream_options": {"include_usage": True}},
        stream_marks=(b"chat.completion.chunk", b'"prompt_tokens"'),
        tools={"tools": [OPENAI_TOOL], "tool_choice": "required"},
        schema={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            }
        },
        image={
            "content": [
                {"type": "text", "text": COLOUR},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED_PNG}"}},
            ]
        },
        message=lambda body: body["choices"][0]["message"],
    ),
    "anthropic": Chat(
        path="/v1/messages",
        always=BOUNDED,
        stream={"stream": True},
        stream_marks=(b'"message_start"', b'"output_tokens"'),
        tools={"tools": [{**FUNCTION, "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        schema={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        image={
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": RED_PNG},
                },
                {"type": "text", "text": COLOUR},
            ]
        },
        message=_anthropic_message,
    ),
    "ollama": Chat(
        path="/api/chat",
        always={"stream": False, "options": {"num_predict": BOUNDED["max_tokens"]}},
        stream={"stream": True},
        stream_marks=(b'"message"', b'"eval_count"'),
        stream_type="x-ndjson",
        tools={"tools": [OPENAI_TOOL]},
        schema={"format": SCHEMA, "think": False},
        image={"content": COLOUR, "images": [RED_PNG]},
        message=lambda body: body["message"],
    ),
}


def _stream(asking: Asking) -> str:
    answer = asking.send(HELLO, asking.chat.stream)
    mark, usage_mark = asking.chat.stream_marks
    if asking.chat.stream_type not in answer.content_type or mark not in answer.body:
        raise UpstreamUnavailableError("it does not stream")
    return "with usage" if usage_mark in answer.body else "without usage: tokens will be estimated"


def _tools(asking: Asking) -> str:
    if not asking.message("Report the number 7.", asking.chat.tools).get("tool_calls"):
        when = "one is required" if "tool_choice" in asking.chat.tools else "it was asked to"
        raise UpstreamUnavailableError(f"it calls no tool where {when}")
    return ""


def _schema(asking: Asking) -> str:
    message = asking.message("Report the number 7 as JSON.", asking.chat.schema)
    try:
        number = json.loads(message.get("content") or "")
    except (ValueError, TypeError):
        number = None
    if number not in [{"number": number} for number in NUMBERS]:
        raise UpstreamUnavailableError("its answer does not keep to the schema")
    return ""


def _images(asking: Asking) -> str:
    asking.message(fields={}, **asking.chat.image)
    return ""


def _counting(asking: Asking) -> str:
    """vLLM, SGLang and helexa count a chat, llama-server text."""
    url = asking.entry.url
    chat = {"model": asking.model, "messages": [{"role": "user", "content": HELLO}]}
    match asking.entry.dialect:
        case "ollama":
            raise UpstreamUnavailableError("the dialect has no counting of tokens")
        case "anthropic":
            _count(asking, f"{url}/v1/messages/count_tokens", chat)
            return ""
    try:
        _count(asking, f"{unversioned(url)}/tokenize", chat)
    except UpstreamUnavailableError:
        _count(asking, f"{unversioned(url)}/tokenize", {"content": HELLO})
        return "of text; a chat's tokens, which clients ask for, it does not count"
    return ""


def _count(asking: Asking, url: str, body: dict[str, Any]) -> None:
    found = asking.post(url, json=body).table()
    if not any(found.get(name) for name in ("input_tokens", "count", "tokens")):
        raise _no_answer()


STEPS: Mapping[str, Step] = {
    "stream": _stream,
    "tools": _tools,
    "schema": _schema,
    "images": _images,
    "counting": _counting,
}


def _silence() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes(bytes(2 * 16_000))
    return file.getvalue()


def _is_sound(answer: Answer) -> bool:
    kind = answer.content_type.partition("/")[0]
    is_file = kind in ("audio", "application") and "json" not in answer.content_type
    return bool(answer.body) and is_file


def _has_image(answer: Answer) -> bool:
    match answer.table().get("data"):
        case [dict() as first, *_]:
            return bool(first.get("b64_json") or first.get("url"))
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    names: re.Pattern[str]
    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    file: Callable[[], tuple[str, bytes, str]] | None = None
    """A form's (name, content, type)."""
    is_answer: Callable[[Answer], bool]
    timeout_s: float = TIMEOUT_S

    def step(self, asking: Asking) -> str:
        fields = {"model": asking.model, **self.fields}
        sent: dict[str, Any] = {"json": fields}
        if self.file is not None:
            sent = {"data": fields, "files": {"file": self.file()}}
        url = f"{asking.entry.url}{self.path}"
        answer = asking.post(url, max_bytes=MAX_PAID_BYTES, timeout_s=self.timeout_s, **sent)
        if not self.is_answer(answer):
            raise _no_answer()
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
    """The first not named like one without a chat, else the first; empty: none is listed."""
    others = (NO_CHAT, *(paid.names for paid in PAID.values()))
    chats = (name for name in listed if not any(one.search(name) for one in others))
    return next(chats, listed[0] if listed else "")


def model_for(what: str, listed: Iterable[str]) -> str:
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
    """``model``: empty: the first listed one that chats, by its name. ``tries_paid``: with
    ``model``, else with models of fitting names. Raises nothing."""
    until_s = time.monotonic() + TIME_LIMIT_S
    models: tuple[KnownModel, ...] | None = None
    try:
        with opened(entry, secret) as client:
            try:
                models = tuple(discover(client, entry))
                listed = Probe(what="models", works=True, detail=f"{len(models)} listed")
            except UpstreamUnavailableError as error:
                listed = Probe(what="models", works=False, detail=str(error))
            known = [one.id for one in models or ()]
            tested = model or chat_model(known)

            def tried(what: str, step: Step, model: str, without: str) -> Probe:
                asking = Asking(client, entry, model, until_s)
                if model and asking.left_s > 0:
                    return _tried(what, step, asking)
                detail = "not tested: the time is up" if model else without
                return Probe(what=what, works=None, detail=detail)

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
        return Probed(probes=(Probe(what="models", works=False, detail=str(error)),), models=None)


def _tried(what: str, step: Step, asking: Asking) -> Probe:
    try:
        return Probe(what=what, works=True, detail=step(asking))
    except UpstreamUnavailableError as error:
        return Probe(what=what, works=False, detail=str(error))
