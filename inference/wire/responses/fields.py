"""Fields of a Responses request beside its items and tools; ``as_object`` of a value is its echo.

``encrypted_content`` is no secret: the text for clients that send only that back.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from inference.protocol.generation import OutputFormat
from inference.wire import fields as f
from inference.wire.errors import InvalidRequestError
from inference.wire.images import DETAIL_NOTE, FILE_REASON, LOW_DETAIL, ImageFile, detail, image_url
from inference.wire.openai.formats import STRICT_HELP
from inference.wire.parts import Part, joined_text, read_parts

MAX_FORMAT_NAME_CHARS = 128
DEFAULT_FORMAT_NAME = "response_schema"
"""The API's own objects always have one."""
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = (
    LOGPROBS,
    ENCRYPTED_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""All but the first two are parts of items that no answer here has."""

_string = f.text()
_type = f.honoured("type", _string, "input_text, input_image, output_text or refusal.")
_text = f.required("text", _string, "The text.")


def _ignored_logprobs(value: Any, path: str) -> None:
    if not isinstance(value, list):
        raise f.wrong_type(path, "an array", value)


_breakpoint = f.neutral(
    "prompt_cache_breakpoint",
    f.only({"mode": "explicit"}, reason="only mode explicit, without a lifetime"),
    "Every prefix is cached, marked or not.",
)
PART_FIELDS = {
    "input_text": f.table(_type, _text, _breakpoint),
    "input_image": f.table(
        _type,
        f.required(
            "image_url",
            image_url,
            "A data URI; an address only where the operator allows its host.",
        ),
        f.honoured("detail", detail, DETAIL_NOTE),
        f.refused("file_id", FILE_REASON),
        _breakpoint,
    ),
    "output_text": f.table(
        _type,
        _text,
        f.fixed("annotations", [], "annotations are not read"),
        f.neutral("logprobs", _ignored_logprobs, "Not shown to the model."),
    ),
    "refusal": f.table(_type, f.required("refusal", _string, "Text like any other.")),
}


@dataclass(frozen=True, slots=True)
class Content:
    parts: tuple[Part, ...]
    is_string: bool

    @property
    def text(self) -> str:
        return joined_text(self.parts)

    @property
    def has_images(self) -> bool:
        return any(isinstance(part, ImageFile) for part in self.parts)

    @property
    def as_given(self) -> str | list[dict[str, Any]]:
        return self.text if self.is_string else self.objects("input_text")

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """``kind`` of texts: ``input_text`` or ``output_text``."""
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        return [
            _image_object(part)
            if isinstance(part, ImageFile)
            else {"type": kind, "text": part, **more}
            for part in self.parts
        ]


def _image_object(image: ImageFile) -> dict[str, Any]:
    """Holds the bytes: a stored response outlives addresses."""
    given = LOW_DETAIL if image.is_low_detail else "auto"
    return {"type": "input_image", "image_url": image.data_uri, "detail": given}


def content(value: Any, path: str) -> Content:
    parts = read_parts(
        value,
        path,
        PART_FIELDS,
        lambda kind: f"'{kind}' parts are not read, only text and input_image",
    )
    return Content(tuple(parts), is_string=isinstance(value, str))


def typed_texts(kind: str) -> f.Check[list[str]]:
    type_ = f.required("type", f.only(kind, reason=f"only {kind}"), kind)
    read = f.array(f.table(type_, _text).read)
    return lambda value, path: [part["text"] for part in read(value, path)]


@dataclass(frozen=True, slots=True)
class TextSettings:
    format: dict[str, Any]
    output_format: OutputFormat | None

    def as_object(self) -> dict[str, Any]:
        return {"format": self.format, "verbosity": "medium"}


PLAIN_TEXT = TextSettings({"type": "text"}, None)

_format_type = f.honoured("type", _string, "text, json_object or json_schema.")
FORMAT_FIELDS = {
    "text": f.table(_format_type),
    "json_object": f.table(_format_type),
    "json_schema": f.table(
        _format_type,
        f.neutral(
            "name",
            f.text(MAX_FORMAT_NAME_CHARS, min_chars=1),
            "A label; echoed. It may be missing.",
        ),
        f.required("schema", f.json_schema, "A JSON schema."),
        f.neutral("description", _string, "A note; the schema itself is enforced."),
        f.honoured("strict", f.flag, STRICT_HELP),
    ),
}


def output_text_format(value: Any, path: str) -> TextSettings:
    kind, read = f.read_kind(
        value, path, FORMAT_FIELDS, lambda _: "text, json_object or json_schema"
    )
    if kind == "text":
        return PLAIN_TEXT
    if kind == "json_object":
        return TextSettings({"type": kind}, OutputFormat(path=path))
    echoed = {"name": DEFAULT_FORMAT_NAME, "description": None, "strict": False, **read}
    demanded = OutputFormat(
        path=f"{path}.schema", schema=read["schema"], strict=read.get("strict", False)
    )
    return TextSettings(echoed, demanded)


TEXT_FIELDS = f.table(
    f.honoured("format", output_text_format, "text, json_object or json_schema."),
    f.fixed("verbosity", "medium", "only medium, the default"),
)


def text_settings(value: Any, path: str) -> TextSettings:
    settings: TextSettings = TEXT_FIELDS.read(value, path).get("format", PLAIN_TEXT)
    return settings


_includable = f.one_of(*INCLUDABLE)


def include(value: Any, path: str) -> list[str]:
    return list(dict.fromkeys(f.array(_includable)(value, path)))


STREAM_OPTIONS = f.table(
    f.honoured(
        "include_obfuscation", f.flag, "true: deltas are padded to one size; else they are not."
    ),
)


CARRIER_PREFIX = "helexa1."
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORTS_WITHOUT_THINKING = frozenset({"none", "minimal"})

reasoning_parts = typed_texts("reasoning_text")
summary_parts = typed_texts("summary_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    effort: str | None = None
    summary: str | None = None

    @property
    def thinking(self) -> bool | None:
        return None if self.effort is None else self.effort not in EFFORTS_WITHOUT_THINKING

    @property
    def template_effort(self) -> str | None:
        return self.effort if self.thinking else None


_summary = f.only("auto", "detailed", reason="reasoning is not shortened; only auto or detailed")

REASONING_FIELDS = f.table(
    f.honoured("effort", f.one_of(*EFFORTS), "Any of OpenAI's."),
    f.honoured("summary", _summary, "auto or detailed: the whole of it."),
    f.honoured("generate_summary", _summary, "The older name of summary."),
    f.fixed("context", "auto", "the chat template decides; only auto"),
    f.fixed("mode", "standard", "only standard"),
)


def reasoning(value: Any, path: str) -> Reasoning:
    read = REASONING_FIELDS.read(value, path)
    return Reasoning(
        effort=read.get("effort"), summary=read.get("summary", read.get("generate_summary"))
    )


def carried(thought: str) -> str:
    return CARRIER_PREFIX + base64.urlsafe_b64encode(thought.encode()).decode()


def encrypted_content(value: Any, path: str) -> str:
    """Decodes what ``carried`` encoded. Raises ``InvalidRequestError``."""
    given: str = _string(value, path)
    if given.startswith(CARRIER_PREFIX):
        try:
            packed = given[len(CARRIER_PREFIX) :].encode("ascii")
            return base64.b64decode(packed, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeError):
            pass
    raise InvalidRequestError(f"'{path}' was not made by this server.", param=path)
