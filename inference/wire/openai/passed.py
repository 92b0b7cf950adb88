"""Endpoints that are passed through to upstreams (audio, images, moderation): model, end user and
metered units of a request, and the units of its answer. Other fields are the upstream's.

Quotation marks within JSON's strings are escaped, so a pattern of a key with its marks matches only
keys. A window's end is kept, so that cuts between parts hide nothing.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inference.protocol.events import Usage
from inference.wire.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTypeError,
    MissingParameterError,
)
from inference.wire.fields import MAX_MODEL_NAME_CHARS, integer, text
from inference.wire.openai.multipart_form import Form

MAX_IMAGES_A_REQUEST = 10
END_USER_FIELDS = ("user", "safety_identifier")
"""Names of end users are not sent to upstreams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedRequest:
    endpoint: PassedEndpoint
    model: str
    end_user: str
    units: Units
    fields: Mapping[str, msgspec.Raw] | None = None
    form: Form | None = None


def read_json(endpoint: PassedEndpoint, body: bytes) -> PassedRequest:
    """Raises ``ApiError`` (400)."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise InvalidTypeError("The body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidJsonError("The body is no JSON object in UTF-8.") from None
    values = {name: _value(fields, name) for name in ("model", "n", *END_USER_FIELDS)}
    most = 1
    if endpoint.task == "images":
        most = _num_images(values["n"])
    elif endpoint.task == "speech":
        most = len(_text(_value(fields, "input"), "input", len(body)))
    units = Units(most=most, likely=most, is_exact=endpoint.task != "images")
    return _request(endpoint, values, units, fields=fields)


def to_json(request: PassedRequest, model: str) -> bytes:
    assert request.fields is not None, "a request that is a form"
    kept = {name: one for name, one in request.fields.items() if name not in END_USER_FIELDS}
    return msgspec.json.encode({**kept, "model": model})


def read_upload(endpoint: PassedEndpoint, form: Form) -> PassedRequest:
    """Raises ``ApiError`` (400)."""
    values = {name: form.text(name) for name in ("model", *END_USER_FIELDS)}
    units = Units(most=1, likely=1, is_exact=False)
    if endpoint.task == "transcription":
        file = form.file("file")
        units = audio_length(form.read(file, HEAD_BYTES), file.num_bytes)
    elif endpoint.task == "images":
        if not any(part.filename is not None for part in form.parts):
            raise MissingParameterError("image")
        most = _num_images(_number(form.text("n")))
        units = Units(most=most, likely=most, is_exact=False)
    return _request(endpoint, values, units, form=form)


def _request(
    endpoint: PassedEndpoint, values: Mapping[str, Any], units: Units, **content: Any
) -> PassedRequest:
    return PassedRequest(
        endpoint=endpoint,
        model=_text(values["model"], "model", MAX_MODEL_NAME_CHARS),
        end_user=_end_user(values),
        units=units,
        **content,
    )


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    try:
        return msgspec.json.decode(fields[name]) if name in fields else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidJsonError(f"'{name}' is no JSON in UTF-8.") from None


def _text(value: Any, name: str, max_chars: int) -> str:
    if value is None:
        raise MissingParameterError(name)
    return text(max_chars, min_chars=1)(value, name)


def _end_user(values: Mapping[str, Any]) -> str:
    for name in END_USER_FIELDS:
        if values[name]:
            return _text(values[name], name, 512)
    return ""


def _num_images(value: Any) -> int:
    if value is None:
        return 1
    return integer(1, MAX_IMAGES_A_REQUEST)(value, "n")


def _number(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequestError("'n' must be a whole number.", param="n")
    return int(value)


PassedTask = Literal["transcription", "speech", "images", "moderation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedEndpoint:
    path: str
    task: PassedTask
    is_form: bool


ENDPOINTS = (
    PassedEndpoint(path="/v1/audio/transcriptions", task="transcription", is_form=True),
    PassedEndpoint(path="/v1/audio/translations", task="transcription", is_form=True),
    PassedEndpoint(path="/v1/audio/speech", task="speech", is_form=False),
    PassedEndpoint(path="/v1/images/generations", task="images", is_form=False),
    PassedEndpoint(path="/v1/images/edits", task="images", is_form=True),
    PassedEndpoint(path="/v1/images/variations", task="images", is_form=True),
    PassedEndpoint(path="/v1/moderations", task="moderation", is_form=False),
)

_AUDIO = ("file", "The audio, as a file; its length is what is charged.")
_IMAGES = ("n", "How many images; 1 to 10, and 1 by default.")
METERED_FIELDS = {
    "/v1/audio/transcriptions": (_AUDIO,),
    "/v1/audio/translations": (_AUDIO,),
    "/v1/audio/speech": (("input", "The text; its characters are what is charged."),),
    "/v1/images/generations": (_IMAGES,),
    "/v1/images/edits": (_IMAGES,),
    "/v1/images/variations": (_IMAGES,),
}


def paths_of(task: str) -> str:
    return ", ".join(one.path for one in ENDPOINTS if one.task == task)


HEAD_BYTES = 64 * 1024
LEAST_BYTES_A_SECOND = 500
"""Bounds files other than WAV: 4 kbit/s; Opus begins at 6, AMR at 4.75."""
USUAL_BYTES_A_SECOND = 8_000
"""64 kbit/s, common for speech."""
SAMPLES = frozenset({1, 3, 0xFFFE})
"""Uncompressed WAV: integers, floats, and either by a longer description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    most: int
    likely: int
    """Charged where the upstream reports none."""
    is_exact: bool


def audio_length(head: bytes, num_bytes: int) -> Units:
    """Units are seconds."""
    samples = _samples(head)
    least, usual, begin = LEAST_BYTES_A_SECOND, USUAL_BYTES_A_SECOND, 0
    if samples is not None:
        least, begin = samples
        usual = least
    most, likely = (max(1, -(-(num_bytes - begin) // rate)) for rate in (least, usual))
    return Units(most=most, likely=likely, is_exact=samples is not None)


def _samples(head: bytes) -> tuple[int, int] | None:
    """Bytes a second and the samples' offset. Some recorders write the head's length last."""
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    at, rate_bytes = 12, 0
    while at + 8 <= len(head):
        kind, size = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if kind == b"data":
            return (rate_bytes, at + 8) if rate_bytes else None
        if kind == b"fmt " and at + 24 <= len(head) and not rate_bytes:
            form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head, at + 8)
            rate_bytes = rate * channels * -(-bits // 8)
            if form not in SAMPLES:
                return None
        at += 8 + size + size % 2
    return (rate_bytes, 0) if rate_bytes else None


KEPT_BYTES = 512
"""No match is longer. Patterns check nothing behind a match: a part may end there."""
JSON, EVENTS = "application/json", "text/event-stream"
IMAGE = re.compile(rb'"(?:b64_json|url)"\s{0,9}:\s{0,9}"')
IMAGE_EVENT = re.compile(rb'"type"\s{0,9}:\s{0,9}"image_(?:generation|edit)\.completed"')
USED_SECONDS = re.compile(rb'"seconds"\s{0,9}:\s{0,9}(\d{1,12}(?:\.\d{1,20})?)[\s,}]')
DURATION = re.compile(rb'"duration"\s{0,9}:\s{0,9}"?(\d{1,12}(?:\.\d{1,20})?)["\s,}]')
INPUT_TOKENS = re.compile(rb'"(?:input|prompt)_tokens"\s{0,9}:\s{0,9}(\d{1,12})[\s,}]')
OUTPUT_TOKENS = re.compile(rb'"(?:output|completion)_tokens"\s{0,9}:\s{0,9}(\d{1,12})[\s,}]')
ERROR_EVENT = re.compile(rb'(?:^|\n)event: ?error|"type"\s{0,9}:\s{0,9}"error"|data: ?\{"error"')


class Scanner:
    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._kept = b""
        self.num_found = 0
        self.last: re.Match[bytes] | None = None

    def feed(self, part: bytes) -> None:
        window = self._kept + part
        for found in self._pattern.finditer(window):
            if found.end() > len(self._kept):
                self.num_found += 1
                self.last = found
        self._kept = window[-KEPT_BYTES:]


class UnitsReader:
    def __init__(self, task: PassedTask, content_type: str) -> None:
        patterns: list[re.Pattern[bytes]] = []
        if content_type in (JSON, EVENTS):
            patterns += INPUT_TOKENS, OUTPUT_TOKENS
            if task == "images":
                patterns.append(IMAGE if content_type == JSON else IMAGE_EVENT)
            if task == "transcription":
                patterns += USED_SECONDS, DURATION
        if content_type == EVENTS:
            patterns.append(ERROR_EVENT)
        self._scanners = {pattern: Scanner(pattern) for pattern in patterns}

    def feed(self, part: bytes) -> None:
        for scanner in self._scanners.values():
            scanner.feed(part)

    @property
    def has_failed(self) -> bool:
        return self._last(ERROR_EVENT) is not None

    @property
    def units(self) -> int | None:
        if images := self._scanners.get(IMAGE) or self._scanners.get(IMAGE_EVENT):
            return images.num_found or None
        length = self._last(USED_SECONDS) or self._last(DURATION)
        return None if length is None else max(1, math.ceil(float(length[1])))

    @property
    def tokens(self) -> Usage | None:
        prompt, completion = self._last(INPUT_TOKENS), self._last(OUTPUT_TOKENS)
        if prompt is None or completion is None:
            return None
        return Usage(prompt_tokens=int(prompt[1]), completion_tokens=int(completion[1]))

    def _last(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        scanner = self._scanners.get(pattern)
        return None if scanner is None else scanner.last


class SecretGuard:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held = b""

    def feed(self, part: bytes) -> bytes | None:
        """Holds back an end with which the secret may begin. ``None``: the secret is in it."""
        if not self._secret:
            return part
        window = self._held + part
        if self._secret in window:
            return None
        begin = max(0, len(window) - len(self._secret) + 1)
        while not self._secret.startswith(window[begin:]):
            begin += 1
        self._held = window[begin:]
        return window[:begin]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held
