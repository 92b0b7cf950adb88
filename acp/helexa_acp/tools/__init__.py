"""The tools that every session has: one line each."""

from __future__ import annotations

from helexa_acp.config import Config
from helexa_acp.tools import fetch, files, programs, update_plan
from helexa_acp.tools.base import Action, Mode, Tool

TOOLS: tuple[Tool, ...] = (
    files.READ_FILE,
    files.WRITE_FILE,
    files.EDIT_FILE,
    files.LIST_DIR,
    programs.SEARCH,
    programs.BASH,
    update_plan.UPDATE_PLAN,
)


def tools_for(config: Config, mode: Mode) -> tuple[Tool, ...]:
    """The model's tools, without those that the mode forbids."""
    tools = (*TOOLS, fetch.FETCH) if config.fetch_hosts else TOOLS
    if mode is Mode.PLAN:
        tools = tuple(tool for tool in tools if tool.action is not Action.EXECUTE)
    return tools
