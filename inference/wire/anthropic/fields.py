"""Options of Anthropic's dialect.

Sources: https://docs.anthropic.com/en/api/messages, the types of the ``anthropic`` package. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inference.protocol.generation import OutputFormat
from inference.wire.common.fields import (
    Field,
    Support,
    array,
    honoured,
    integer,
    json_schema,
    kind_of,
    neutral,
    object_of,
    one_of,
    only,
    refused,
    shown,
    table,
    text,
)
from inference.wire.errors import (
    ThreadUnsupportedError,
    UnsupportedParameterError,
)

MAX_TOKENS = 2**31 - 1
MIN_THINKING_TOKENS = 1024

Display = Literal["hidden", "omitted", "shown"]
"""Thinking blocks in the answer: none, with their text left out, or whole."""


def type_field(kind: str) -> Field:
    return honoured("type", only(kind, reason=f"only {kind}"), kind)


CACHE_CONTROL_FIELDS = table(
    type_field("ephemeral"),
    neutral("ttl", one_of("5m", "1h"), "5m, 1h; a prefix stays while there is room."),
    neutral("scope", text(64), "Whose cache; there is one."),
)
CACHE_CONTROL = neutral(
    "cache_control",
    object_of(CACHE_CONTROL_FIELDS, required=("type",)),
    "Sent to upstreams of this dialect; here prefixes are cached by content, without marks.",
)


def cache_of(read: Mapping[str, Any]) -> str | None:
    """The time to live of a block's mark, empty where it names none; ``None``: it has no mark."""
    mark = read.get("cache_control")
    return None if mark is None else mark.get("ttl", "")


_NO_THREADS = "conversations are not kept here"


def _thread(_value: Any, path: str) -> Any:
    raise ThreadUnsupportedError(path, _NO_THREADS)


THREAD = Field("thread", Support.REFUSED, _thread, _NO_THREADS)

METADATA_FIELDS = table(
    honoured("user_id", text(4096), "The end user, recorded where the key may name one.")
)
DIAGNOSTICS_FIELDS = table(neutral("previous_message_id", text(256), "Not compared."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """``wanted`` is ``None`` where the client leaves it to the model."""

    display: Display = "hidden"
    wanted: bool | None = None
    is_adaptive: bool = False
    budget_tokens: int | None = None


_display = honoured("display", one_of("summarized", "omitted"), "summarized: shown whole.")
THINKING_FIELDS: dict[str, dict[str, Field]] = {
    "enabled": table(
        type_field("enabled"),
        honoured(
            "budget_tokens",
            integer(MIN_THINKING_TOKENS, MAX_TOKENS),
            "At least 1024, less than max_tokens; the thinking block ends there.",
        ),
        _display,
    ),
    "adaptive": table(type_field("adaptive"), _display),
    "disabled": table(type_field("disabled")),
}


def thinking(value: Any, path: str) -> Thinking:
    kind = kind_of(value, path)
    if kind not in THINKING_FIELDS:
        known = ", ".join(THINKING_FIELDS)
        raise UnsupportedParameterError(f"{path}.type", f"'{shown(kind)}' is none of {known}")
    required = ("budget_tokens",) if kind == "enabled" else ()
    read = object_of(THINKING_FIELDS[kind], required=required)(value, path)
    if kind == "disabled":
        return Thinking()
    return Thinking(
        display="omitted" if read.get("display") == "omitted" else "shown",
        wanted=True if kind == "enabled" else None,
        is_adaptive=kind == "adaptive",
        budget_tokens=read.get("budget_tokens"),
    )


JSON_FORMAT_FIELDS = table(
    type_field("json_schema"), honoured("schema", json_schema, "What the answer's JSON must be.")
)


def output_format(value: Any, path: str) -> OutputFormat:
    read = object_of(JSON_FORMAT_FIELDS, required=("type", "schema"))(value, path)
    return OutputFormat(path=f"{path}.schema", schema=read["schema"])


OUTPUT_CONFIG_FIELDS = table(
    honoured(
        "effort",
        one_of("low", "medium", "high", "xhigh", "max"),
        "Handed to the chat template as reasoning_effort.",
    ),
    honoured("format", output_format, "type json_schema with its schema."),
    refused("task_budget", "budgets over several requests are not kept"),
)


def _keeps_all(value: Any, path: str) -> Any:
    return only("all", {"type": "all"}, reason="only all: nothing is cleared here")(value, path)


CLEAR_THINKING_FIELDS = table(
    type_field("clear_thinking_20251015"), neutral("keep", _keeps_all, "all")
)


def _context_edit(value: Any, path: str) -> dict[str, Any]:
    kind = kind_of(value, path)
    if kind != "clear_thinking_20251015":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' is not done; contexts are never edited here"
        )
    return object_of(CLEAR_THINKING_FIELDS)(value, path)


CONTEXT_MANAGEMENT_FIELDS = table(
    neutral("edits", array(_context_edit), "Those of type clear_thinking_20251015 that keep all.")
)
