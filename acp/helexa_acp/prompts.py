"""The system prompt, and the user's blocks as parts of a turn. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from helexa_acp.errors import ConfigError
from helexa_acp.history import Image, Part, Text, clean
from helexa_acp.modes import Mode

IMAGE_TYPE = re.compile(r"image/[\w.+-]+")
BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")
USUAL = """\
You are a coding agent in the user's editor. You work in their project with the tools you have.

- Look before you change: read the files that matter, and search for what you need.
- Make the smallest change that does what was asked, in the style of what is there.
- Prefer edit_file to write_file for files that exist. Quote old_text exactly.
- After a change run the project's tests, if it has some, and mend what fails.
- When a tool answers ERROR, read why and try something else.
- For tasks of several steps show a plan with update_plan, and keep it up to date.
- Be brief. Say what you did and what is left; do not repeat what the editor shows anyway."""
PLAN_MODE = """\
You are in plan mode: you look and plan, and change nothing. Commands are not run. The only files
you may write are plans, in {plans_dir}. When the plan is clear, say it and ask whether to go on."""


def parts_of(blocks: Sequence[Any]) -> tuple[Part, ...]:
    """Raises ConfigError."""
    parts = tuple(_part(block) for block in blocks)
    if not any(isinstance(part, Image) or part.text.strip() for part in parts):
        raise ConfigError("the prompt is empty")
    return parts


def _part(block: Any) -> Part:
    match block.type:
        case "text":
            return Text(clean(block.text))
        case "image":
            return image_part(block.mime_type, block.data)
        case "resource_link":
            return Text(f"[@{clean(block.name)}]({_place(clean(block.uri))})")
        case "resource":
            return _resource(block.resource)
        case kind:
            raise ConfigError(f"content of type {kind} is not taken")


def image_part(mime_type: str, data: str) -> Image:
    if not IMAGE_TYPE.fullmatch(mime_type) or not data or not BASE64.fullmatch(data):
        raise ConfigError("an image must have an image's type and be Base64")
    return Image(mime_type, "".join(data.split()))


def _resource(resource: Any) -> Part:
    uri = clean(resource.uri)
    text = getattr(resource, "text", None)
    if text is not None:
        return Text(f'<file path="{_place(uri)}">\n{clean(text)}\n</file>')
    mime_type = resource.mime_type or ""
    if mime_type.startswith("image/"):
        return image_part(mime_type, resource.blob)
    return Text(f"[{_place(uri)}: {mime_type or 'binary'}, not shown]")


def _place(uri: str) -> str:
    """The path of a file's URI, for tools; other URIs unchanged."""
    try:
        split = urlsplit(uri)
    except ValueError:
        return uri
    if split.scheme != "file":
        return uri
    return unquote(split.path) + (f"#{split.fragment}" if split.fragment else "")


def system_prompt(
    *, configured: str | None, cwd: Path, mode: Mode, plans_dir: Path, tools_prompt: str = ""
) -> str:
    """``tools_prompt`` is set where the endpoint's API has no tools."""
    sections = [(configured or USUAL).strip(), f"The working directory is {cwd}."]
    if mode is Mode.PLAN:
        sections.append(PLAN_MODE.format(plans_dir=plans_dir))
    if tools_prompt:
        sections.append(tools_prompt)
    return "\n\n".join(sections)
