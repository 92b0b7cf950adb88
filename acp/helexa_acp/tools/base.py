"""What a tool is: a name and a schema for the model, an action for permission, and a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from helexa_acp.client_port import ClientPort
from helexa_acp.config import Config
from helexa_acp.conversation.history import Part, Text
from helexa_acp.errors import ToolError
from helexa_acp.paths import absolute
from helexa_acp.rounds.modes import Action
from helexa_acp.wire.base import ToolSpec

Kind = Literal["read", "edit", "search", "execute", "think", "fetch", "other"]
"""How the editor draws it."""
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """``show`` updates the call's card in the editor while the tool runs: contents of ACP."""

    port: ClientPort
    cwd: Path
    config: Config
    show: Callable[[list[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``parts`` are for the model, ``shown`` is ACP's content for the editor; empty: what the model
    gets."""

    parts: tuple[Part, ...]
    is_error: bool = False
    shown: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What the call is about to do, before the person is asked. ``remembers`` names the permission
    for the whole session, and ``remembered_as`` is its text for the person."""

    title: str
    paths: tuple[Path, ...] = ()
    shown: tuple[Any, ...] = ()
    remembers: str = ""
    remembered_as: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """``preview`` may read, but changes nothing. Both it and ``run`` raise ToolError."""

    spec: ToolSpec
    kind: Kind
    action: Action
    preview: Callable[[ToolContext, Arguments], Awaitable[Preview]]
    run: Callable[[ToolContext, Arguments], Awaitable[Outcome]]


PATH_PROPERTY = {"type": "string", "description": "Absolute, or from the working directory."}


def schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def text_outcome(text: str, *shown: Any, is_error: bool = False) -> Outcome:
    return Outcome((Text(text),), is_error, shown)


def take_text(arguments: Arguments, key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str):
        raise ToolError(f"the argument {key!r} must be a string")
    return value


def take_optional_text(arguments: Arguments, key: str) -> str | None:
    return None if arguments.get(key) is None else take_text(arguments, key)


def take_optional_count(arguments: Arguments, key: str) -> int | None:
    """Returns an integer of at least 1; ``None`` without the argument. Accepts 5.0 and "5", which
    models write as well. Raises ToolError."""
    value = arguments.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ToolError(f"the argument {key!r} must be a whole number")
    if value < 1:
        raise ToolError(f"the argument {key!r} must be at least 1")
    return int(value)


def take_path(arguments: Arguments, key: str, cwd: Path) -> Path:
    return absolute(take_text(arguments, key), cwd)
