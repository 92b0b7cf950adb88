"""The content of a Responses message or function result: a string, or text and image parts.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.wire.common import fields as f
from inference.wire.common.parts import (
    DETAIL_NOTE,
    FILE_REASON,
    LOW_DETAIL,
    ImageFile,
    Part,
    detail,
    image_url,
    joined_text,
    with_detail,
)
from inference.wire.errors import UnsupportedParameterError

_string = f.text()
_type = f.honoured("type", _string, "input_text, input_image, output_text or refusal.")
_text = f.honoured("text", _string, "The text.")


def _ignored_logprobs(value: Any, path: str) -> None:
    if not isinstance(value, list):
        raise f.wrong_type(path, "an array", value)


_breakpoint = f.neutral(
    "prompt_cache_breakpoint",
    f.only({"mode": "explicit"}, reason="only mode explicit, without a lifetime"),
    "Every prefix is cached, marked or not.",
)
PART_FIELDS: dict[str, dict[str, f.Field]] = {
    "input_text": f.table(_type, _text, _breakpoint),
    "input_image": f.table(
        _type,
        f.honoured(
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
        f.neutral("annotations", f.only([], reason="annotations are not read"), "[]"),
        f.neutral("logprobs", _ignored_logprobs, "Not shown to the model."),
    ),
    "refusal": f.table(_type, f.honoured("refusal", _string, "Text like any other.")),
}
HELD_IN = {
    "input_text": "text",
    "input_image": "image_url",
    "output_text": "text",
    "refusal": "refusal",
}


@dataclass(frozen=True, slots=True)
class Content:
    """``parts`` are texts and images; ``is_string`` when it was one string."""

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
        """The parts as the API lists them. ``kind``, of parts of text: ``input_text`` or
        ``output_text``."""
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        return [
            _image_object(part)
            if isinstance(part, ImageFile)
            else {"type": kind, "text": part, **more}
            for part in self.parts
        ]


def _image_object(image: ImageFile) -> dict[str, Any]:
    """The image with its bytes, even if it came by address: a stored response outlives
    addresses."""
    given = LOW_DETAIL if image.is_low_detail else "auto"
    return {"type": "input_image", "image_url": image.data_uri, "detail": given}


def content(value: Any, path: str) -> Content:
    if isinstance(value, str):
        return Content((value,), is_string=True)
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of parts", value)
    parts = [_part(part, f"{path}[{index}]") for index, part in enumerate(value)]
    return Content(tuple(parts), is_string=False)


def _part(part: Any, path: str) -> Part:
    kind = f.kind_of(part, path)
    if kind not in PART_FIELDS:
        raise UnsupportedParameterError(
            f"{path}.type", f"'{f.shown(kind)}' parts are not read, only text and input_image"
        )
    name = HELD_IN[kind]
    read = f.read_fields(part, PART_FIELDS[kind], path=f"{path}.", required=(name,))
    held: Part = read[name]
    return with_detail(held, read.get("detail")) if isinstance(held, ImageFile) else held


def typed_texts(kind: str) -> Any:
    """A check of an array of ``{"type": kind, "text": …}``, to the texts."""
    fields = f.table(f.honoured("type", f.only(kind, reason=f"only {kind}"), kind), _text)

    def check(value: Any, path: str) -> list[str]:
        if not isinstance(value, list):
            raise f.wrong_type(path, "an array", value)
        texts = []
        for index, part in enumerate(value):
            here = f"{path}[{index}]"
            if not isinstance(part, dict):
                raise f.wrong_type(here, "an object", part)
            read = f.read_fields(part, fields, path=f"{here}.", required=("type", "text"))
            texts.append(str(read["text"]))
        return texts

    return check
