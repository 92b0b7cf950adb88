"""A request that is passed through, as far as the gateway has to know it. Pure but for files.

    JSON ─▶ read_json ─┐
                       ├▶ PassedRequest ─▶ to_json | Form.rewritten: the upstream's model in it
    form ─▶ read_upload┘

Read are the model, the end user, and what the request is metered by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inference.wire.common.fields import integer, text
from inference.wire.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTypeError,
    MissingParameterError,
)
from inference.wire.openai.passed.audio import HEAD_BYTES, audio_length
from inference.wire.openai.passed.endpoints import PassedEndpoint
from inference.wire.openai.passed.form import Form

MAX_MODEL_NAME_CHARS = 256
MAX_IMAGES_A_REQUEST = 10
"""The most images of one request, as OpenAI's API has it."""
END_USER_FIELDS = ("user", "safety_identifier")
"""They stay here: names of end users are not sent to upstreams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedRequest:
    endpoint: PassedEndpoint
    model: str
    end_user: str
    most_units: int
    """The most units of its task that it may use."""
    likely_units: int
    """The units that count where the upstream reports none."""
    is_exact: bool
    """``likely_units`` are no estimate."""
    fields: Mapping[str, msgspec.Raw] | None = None
    """The fields of a JSON body."""
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
    return PassedRequest(
        endpoint=endpoint,
        model=_model(values["model"]),
        end_user=_end_user(values),
        most_units=most,
        likely_units=most,
        is_exact=endpoint.task != "images",
        fields=fields,
    )


def to_json(request: PassedRequest, model: str) -> bytes:
    """The body as it is sent on."""
    assert request.fields is not None, "a request that is a form"
    kept = {name: one for name, one in request.fields.items() if name not in END_USER_FIELDS}
    return msgspec.json.encode({**kept, "model": model})


def read_upload(endpoint: PassedEndpoint, form: Form) -> PassedRequest:
    """Raises ``ApiError`` (400)."""
    values = {name: form.text(name) for name in ("model", *END_USER_FIELDS)}
    most = likely = 1
    is_exact = False
    if endpoint.task == "transcription":
        file = form.file("file")
        length = audio_length(form.read(file, HEAD_BYTES), file.num_bytes)
        most, likely, is_exact = length.most_s, length.likely_s, length.is_exact
    elif endpoint.task == "images":
        if not any(part.filename is not None for part in form.parts):
            raise MissingParameterError("image")
        most = likely = _num_images(_number(form.text("n")))
    return PassedRequest(
        endpoint=endpoint,
        model=_model(values["model"]),
        end_user=_end_user(values),
        most_units=most,
        likely_units=likely,
        is_exact=is_exact,
        form=form,
    )


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """``None`` where it is missing. Raises ``InvalidJsonError``."""
    try:
        return msgspec.json.decode(fields[name]) if name in fields else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidJsonError(f"'{name}' is no JSON in UTF-8.") from None


def _text(value: Any, name: str, max_chars: int) -> str:
    if value is None:
        raise MissingParameterError(name)
    checked: str = text(max_chars, min_chars=1)(value, name)
    return checked


def _model(value: Any) -> str:
    return _text(value, "model", MAX_MODEL_NAME_CHARS)


def _end_user(values: Mapping[str, Any]) -> str:
    for name in END_USER_FIELDS:
        if values[name]:
            return _text(values[name], name, 512)
    return ""


def _num_images(value: Any) -> int:
    if value is None:
        return 1
    checked: int = integer(1, MAX_IMAGES_A_REQUEST)(value, "n")
    return checked


def _number(value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InvalidRequestError("'n' must be a whole number.", param="n")
    return int(value)
