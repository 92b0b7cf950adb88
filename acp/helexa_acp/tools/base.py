"""A tool: a name and a schema for the model, an action for permissions, and a function."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from helexa_acp.config import Config
from helexa_acp.editor import ClientPort
from helexa_acp.errors import ToolError
from helexa_acp.history import Part, Text
from helexa_acp.modes import Action
from helexa_acp.wire import ToolSpec

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193
Kind = Literal["read", "edit", "search", "execute", "think", "fetch", "other"]
"""The editor's icon for it."""
Arguments = Mapping[str, Any]
PATH_PROPERTY = {"type": "string", "description": "Absolute, or from the working directory."}


def absolute(written: str, cwd: Path) -> Path:
    """``written`` relative to ``cwd``, with ``~`` and ``$HOME`` expanded and ``..`` resolved."""
    if not written or "\0" in written:
        raise ToolError("the path is empty or holds a NUL character")
    home = str(Path.home())
    for prefix in ("~", "$HOME", "${HOME}"):
        if written == prefix or written.startswith(f"{prefix}/"):
            written = home + written[len(prefix) :]
            break
    return Path(os.path.normpath(cwd / written))


def resolved(path: Path) -> Path:
    """The real path: links followed, ``..`` as in the file system. Raises ToolError for a loop of
    links."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{path} cannot be resolved: {error}") from None


def is_within(path: Path, folder: Path) -> bool:
    """Whether the file at ``path`` is in ``folder``, by their real paths."""
    return resolved(path).is_relative_to(resolved(folder))


def plans_dir(data_dir: Path, cwd: Path) -> Path:
    """One folder for each working directory, with a readable name."""
    return data_dir / "plans" / f"{cwd.name or 'root'}-{fnv1a32(str(cwd).encode()):08x}"


def fnv1a32(data: bytes) -> int:
    """http://www.isthe.com/chongo/tech/comp/fnv/"""
    value = FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return value


@dataclass(frozen=True, slots=True)
class ToolContext:
    """``show`` updates the call's card in the editor while the tool runs: contents of ACP."""

    port: ClientPort
    cwd: Path
    config: Config
    show: Callable[[list[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``parts`` are for the model, ``shown`` is ACP's content for the editor; empty: the same."""

    parts: tuple[Part, ...]
    is_error: bool = False
    shown: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """The call's effect, before the person is asked. ``remembers`` names the permission for the
    whole session, and ``remembered_as`` is its text for the person."""

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
    """An integer of at least 1; ``None`` without the argument. Accepts 5.0 and "5", which models
    write as well. Raises ToolError."""
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
