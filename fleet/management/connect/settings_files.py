"""Merges settings into a client's own file and leaves the rest unchanged. Pure."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

from fleet.management.connect.clients import ClientSettings, SettingsFile


class UnmergeableError(Exception):
    """The file has other values, or cannot be read; the message is the reason, after its path."""


def merged_json(text: str, values: Mapping[str, Any]) -> str:
    """Objects are merged, everything else is replaced. Raises ``UnmergeableError`` for a file with
    comments, which would be lost."""
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UnmergeableError(f"it is no plain JSON ({error}), perhaps with comments") from error
    if not isinstance(found, dict):
        raise UnmergeableError("it is no JSON object")
    return json.dumps(_merged(found, values), indent=2, ensure_ascii=False) + "\n"


def _merged(found: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(found)
    for name, value in values.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[name] = _merged(before, value)
        else:
            result[name] = value
    return result


def merged_toml(text: str, values: Mapping[str, Any]) -> str:
    """New keys go above the text, new tables below it; the text keeps its comments. Raises
    ``UnmergeableError`` where a key has another value."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnmergeableError(f"it is no TOML ({error})") from error
    top = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    other = [name for name in top if name in found and found[name] != top[name]]
    if other:
        raise UnmergeableError(f"it sets {', '.join(other)} to something else")
    new_lines = [f"{name} = {_toml(top[name])}" for name in top if name not in found]
    tables: list[str] = []
    for group, inner in values.items():
        if not isinstance(inner, Mapping):
            continue
        for name, table in inner.items():
            before = found.get(group, {}).get(name)
            if before is not None and before != table:
                raise UnmergeableError(f"its table [{group}.{name}] has other values")
            if before is None:
                lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
                tables.append("\n".join([f"[{group}.{name}]", *lines]))
    parts = ["\n".join(new_lines), text.strip("\n"), *tables]
    return "\n".join(part for part in parts if part) + "\n"


def _toml(value: str | int) -> str:
    """JSON strings and whole numbers are valid TOML."""
    return json.dumps(value, ensure_ascii=False)


def settings_text(client: str, settings: ClientSettings) -> str:
    """``export`` lines, files and comments. A client without a file has ``export`` lines and
    comments alone, which a shell may ``eval``."""
    parts = ["\n".join(exports(settings))]
    if settings.file is not None and not settings.is_file_alone_enough:
        parts.append(f"# ~/{settings.file.path}\n{merged(settings.file, '')}")
    if settings.pasted_text:
        parts.append(f"# {settings.pasted_into}\n{settings.pasted_text}")
    comments = [f"# {note}" for note in settings.notes]
    if settings.file is not None:
        comments.append(f"# --write merges this into ~/{settings.file.path}")
    elif settings.command:
        comments.append(f"# then: {shlex.join(settings.command)}")
    if settings.command:
        comments.append(f"# --run starts {client} with it")
    return "\n\n".join(part.strip("\n") for part in [*parts, "\n".join(comments)] if part)


def exports(settings: ClientSettings) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.environment.items()]


def merged(file: SettingsFile, text: str) -> str:
    """``text``: the file's present content. Raises ``UnmergeableError``."""
    merge = merged_toml if file.path.endswith(".toml") else merged_json
    return merge(text, file.values)
