"""The content of a Responses message or function result: a string, or text parts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.wire.errors import (
    UnsupportedParameterError,
    VisionUnsupportedError,
)
from inference.wire.fields import (
    Field,
    honoured,
    kind_of,
    neutral,
    only,
    read_fields,
    shown,
    table,
    text,
    wrong_type,
)
from inference.wire.turn_parts import PART_SEPARATOR

_string = text()
_type = honoured("type", _string, "input_text, output_text or refusal.")
_text = honoured("text", _string, "The text.")


def _ignored_logprobs(value: Any, path: str) -> None:
    """An answer's own, sent back with it."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)


PART_FIELDS: dict[str, dict[str, Field]] = {
    "input_text": table(
        _type,
        _text,
        neutral(
            "prompt_cache_breakpoint",
            only({"mode": "explicit"}, reason="only mode explicit, without a lifetime"),
            "Every prefix is cached, marked or not.",
        ),
    ),
    "output_text": table(
        _type,
        _text,
        neutral("annotations", only([], reason="annotations are not read"), "[]"),
        neutral("logprobs", _ignored_logprobs, "Say nothing to the model."),
    ),
    "refusal": table(_type, honoured("refusal", _string, "Text like any other.")),
}
TEXT_FIELD = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


@dataclass(frozen=True, slots=True)
class TextContent:
    """``texts`` are those of the parts; ``is_string`` when it was given as one string."""

    texts: tuple[str, ...]
    is_string: bool

    @property
    def text(self) -> str:
        return PART_SEPARATOR.join(self.texts)

    @property
    def as_given(self) -> str | list[dict[str, Any]]:
        return self.text if self.is_string else self.parts("input_text")

    def parts(self, kind: str) -> list[dict[str, Any]]:
        """As parts of that type, which is ``input_text`` or ``output_text``."""
        more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        return [{"type": kind, "text": said, **more} for said in self.texts]


def content(value: Any, path: str) -> TextContent:
    if isinstance(value, str):
        return TextContent((value,), is_string=True)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    texts = [_part_text(part, f"{path}[{index}]") for index, part in enumerate(value)]
    return TextContent(tuple(texts), is_string=False)


def _part_text(part: Any, path: str) -> str:
    kind = kind_of(part, path)
    if kind in ("input_image", "image_url", "computer_screenshot"):
        raise VisionUnsupportedError(path)
    if kind not in PART_FIELDS:
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' parts are not read, only text"
        )
    name = TEXT_FIELD[kind]
    return str(read_fields(part, PART_FIELDS[kind], path=f"{path}.", required=(name,))[name])


def typed_texts(kind: str) -> Any:
    """A check of an array of ``{"type": kind, "text": …}``, to the texts."""
    fields = table(honoured("type", only(kind, reason=f"only {kind}"), kind), _text)

    def check(value: Any, path: str) -> list[str]:
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        texts = []
        for index, part in enumerate(value):
            here = f"{path}[{index}]"
            if not isinstance(part, dict):
                raise wrong_type(here, "an object", part)
            read = read_fields(part, fields, path=f"{here}.", required=("type", "text"))
            texts.append(str(read["text"]))
        return texts

    return check
