"""A client's settings as lines for a shell and files to paste. Pure."""

from __future__ import annotations

import shlex

from fleet.management.connect.clients import ClientSettings, SettingsFile
from fleet.management.connect.settings_files import merged_json, merged_toml


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
    """``text`` is the file's so far. Raises ``UnmergeableError``."""
    merge = merged_toml if file.path.endswith(".toml") else merged_json
    return merge(text, file.values)
