"""The tools that every session has: one file each, and one line here."""

from __future__ import annotations

from helexa_acp.config import Config
from helexa_acp.rounds.modes import Action, Mode
from helexa_acp.tools import (
    bash,
    edit_file,
    list_dir,
    read_file,
    search,
    update_plan,
    write_file,
)
from helexa_acp.tools.base import Tool

TOOLS: tuple[Tool, ...] = (
    read_file.TOOL,
    write_file.TOOL,
    edit_file.TOOL,
    list_dir.TOOL,
    search.TOOL,
    bash.TOOL,
    update_plan.TOOL,
)


def tools_for(config: Config, mode: Mode) -> tuple[Tool, ...]:
    """What the model is offered. What a mode forbids altogether is not."""
    tools = TOOLS
    if config.fetch_hosts:
        from helexa_acp.tools import fetch  # its HTTP client takes long to import

        tools += (fetch.TOOL,)
    if mode is Mode.PLAN:
        tools = tuple(tool for tool in tools if tool.action is not Action.EXECUTE)
    return tools
