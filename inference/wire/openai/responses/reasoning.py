"""Reasoning settings of a Responses request, and reasoning items that clients send back.

Reasoning is shown as it is, so there is nothing to keep secret: ``encrypted_content`` carries the
same text in an opaque form, for clients that keep no answers here and send only that back. Pure.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from inference.wire.common.fields import (
    honoured,
    neutral,
    one_of,
    only,
    read_fields,
    table,
    text,
    wrong_type,
)
from inference.wire.errors import InvalidRequestError
from inference.wire.openai.responses.parts import typed_texts

CARRIER_PREFIX = "helexa1."
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
EFFORTS_WITHOUT_THINKING = frozenset({"none", "minimal"})

reasoning_parts = typed_texts("reasoning_text")
summary_parts = typed_texts("summary_text")

_string = text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """``None``: the client did not set it."""

    effort: str | None = None
    summary: str | None = None

    @property
    def thinking(self) -> bool | None:
        return None if self.effort is None else self.effort not in EFFORTS_WITHOUT_THINKING

    @property
    def template_effort(self) -> str | None:
        return self.effort if self.thinking else None


_summary = only("auto", "detailed", reason="reasoning is not shortened; only auto or detailed")

REASONING_FIELDS = table(
    honoured("effort", one_of(*EFFORTS), "Any of OpenAI's."),
    honoured("summary", _summary, "auto or detailed: the whole of it."),
    honoured("generate_summary", _summary, "The older name of summary."),
    neutral("context", only("auto", reason="the chat template decides; only auto"), "auto"),
    neutral("mode", only("standard", reason="only standard"), "standard"),
)


def reasoning(value: Any, path: str) -> Reasoning:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    read = read_fields(value, REASONING_FIELDS, path=f"{path}.")
    return Reasoning(
        effort=read.get("effort"), summary=read.get("summary", read.get("generate_summary"))
    )


def carried(thought: str) -> str:
    """The ``encrypted_content`` of a thought."""
    return CARRIER_PREFIX + base64.urlsafe_b64encode(thought.encode()).decode()


def encrypted_content(value: Any, path: str) -> str:
    """The thought that ``carried`` put there. Raises ``InvalidRequestError`` for anything else:
    another server's cannot be read."""
    given: str = _string(value, path)
    if given.startswith(CARRIER_PREFIX):
        try:
            packed = given[len(CARRIER_PREFIX) :].encode("ascii")
            return base64.b64decode(packed, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeError):
            pass
    raise InvalidRequestError(f"'{path}' was not made by this server.", param=path)
