"""Options of Anthropic's dialect.

Sources: https://docs.anthropic.com/en/api/messages, the types of the ``anthropic`` package. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inference.protocol.generation import OutputFormat
from inference.wire.common import fields as f
from inference.wire.errors import (
    ThreadUnsupportedError,
    UnsupportedParameterError,
)

MAX_TOKENS = 2**31 - 1
MIN_THINKING_TOKENS = 1024

Display = Literal["hidden", "omitted", "shown"]
"""Thinking blocks in the answer: none, with their text left out, or whole."""


def type_field(kind: str) -> f.Field:
    return f.honoured("type", f.only(kind, reason=f"only {kind}"), kind)


CACHE_CONTROL_FIELDS = f.table(
    type_field("ephemeral"),
    f.neutral("ttl", f.one_of("5m", "1h"), "5m, 1h; a prefix stays while there is room."),
    f.neutral("scope", f.text(64), "Whose cache; there is one."),
)
CACHE_CONTROL = f.neutral(
    "cache_control",
    f.object_of(CACHE_CONTROL_FIELDS, required=("type",)),
    "Sent to upstreams of this dialect; here prefixes are cached by content, without marks.",
)


def cache_of(read: Mapping[str, Any]) -> str | None:
    """The time to live of a block's mark, empty where it names none; ``None``: it has no mark."""
    mark = read.get("cache_control")
    return None if mark is None else mark.get("ttl", "")


_NO_THREADS = "conversations are not kept here"


def _thread(_value: Any, path: str) -> Any:
    raise ThreadUnsupportedError(path, _NO_THREADS)


THREAD = f.Field("thread", f.Support.REFUSED, _thread, _NO_THREADS)

METADATA_FIELDS = f.table(
    f.honoured("user_id", f.text(4096), "The end user, recorded where the key may name one.")
)
DIAGNOSTICS_FIELDS = f.table(f.neutral("previous_message_id", f.text(256), "Not compared."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """``wanted`` is ``None`` where the client leaves it to the model."""

    display: Display = "hidden"
    wanted: bool | None = None
    is_adaptive: bool = False
    budget_tokens: int | None = None


_display = f.honoured("display", f.one_of("summarized", "omitted"), "summarized: shown whole.")
THINKING_FIELDS: dict[str, dict[str, f.Field]] = {
    "enabled": f.table(
        type_field("enabled"),
        f.honoured(
            "budget_tokens",
            f.integer(MIN_THINKING_TOKENS, MAX_TOKENS),
            "At least 1024, less than max_tokens; the thinking block ends there.",
        ),
        _display,
    ),
    "adaptive": f.table(type_field("adaptive"), _display),
    "disabled": f.table(type_field("disabled")),
}


def thinking(value: Any, path: str) -> Thinking:
    kind = f.kind_of(value, path)
    if kind not in THINKING_FIELDS:
        known = ", ".join(THINKING_FIELDS)
        raise UnsupportedParameterError(f"{path}.type", f"'{f.shown(kind)}' is none of {known}")
    required = ("budget_tokens",) if kind == "enabled" else ()
    read = f.object_of(THINKING_FIELDS[kind], required=required)(value, path)
    if kind == "disabled":
        return Thinking()
    return Thinking(
        display="omitted" if read.get("display") == "omitted" else "shown",
        wanted=True if kind == "enabled" else None,
        is_adaptive=kind == "adaptive",
        budget_tokens=read.get("budget_tokens"),
    )


JSON_FORMAT_FIELDS = f.table(
    type_field("json_schema"),
    f.honoured("schema", f.json_schema, "What the answer's JSON must be."),
)


def output_format(value: Any, path: str) -> OutputFormat:
    read = f.object_of(JSON_FORMAT_FIELDS, required=("type", "schema"))(value, path)
    return OutputFormat(path=f"{path}.schema", schema=read["schema"])


OUTPUT_CONFIG_FIELDS = f.table(
    f.honoured(
        "effort",
        f.one_of("low", "medium", "high", "xhigh", "max"),
        "Handed to the chat template as reasoning_effort.",
    ),
    f.honoured("format", output_format, "type json_schema with its schema."),
    f.refused("task_budget", "budgets over several requests are not kept"),
)


def _keeps_all(value: Any, path: str) -> Any:
    return f.only("all", {"type": "all"}, reason="only all: nothing is cleared here")(value, path)


CLEAR_THINKING_FIELDS = f.table(
    type_field("clear_thinking_20251015"), f.neutral("keep", _keeps_all, "all")
)


def _context_edit(value: Any, path: str) -> dict[str, Any]:
    kind = f.kind_of(value, path)
    if kind != "clear_thinking_20251015":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{f.shown(kind)}' is not done; contexts are never edited here"
        )
    return f.object_of(CLEAR_THINKING_FIELDS)(value, path)


CONTEXT_MANAGEMENT_FIELDS = f.table(
    f.neutral(
        "edits", f.array(_context_edit), "Those of type clear_thinking_20251015 that keep all."
    )
)
