"""The three modes, and their decisions about tool calls. Pure.

              read    write            execute   fetch   unknown (a server's tool)
default       yes     ask              ask       ask     ask
bypass        yes     yes              yes       yes     yes
plan          yes     plans only       no        ask     ask if it is declared read-only
"""

from __future__ import annotations

from enum import Enum

from helexa_acp.errors import ToolError


class Mode(Enum):
    DEFAULT = "default"
    BYPASS = "bypassPermissions"
    PLAN = "plan"


MODE_NAMES = {
    Mode.DEFAULT: ("Default", "Asks before it writes a file or runs a command."),
    Mode.BYPASS: ("Bypass permissions", "Writes files and runs commands without asking."),
    Mode.PLAN: ("Plan", "Reads, and writes plans only; runs nothing."),
}


class Action(Enum):
    """A tool's effect, for permissions."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    FETCH = "fetch"
    UNKNOWN = "unknown"
    UNKNOWN_READ = "unknown, declared read-only"


def must_ask(mode: Mode, action: Action, *, is_plan_file: bool = False) -> bool:
    """``is_plan_file``: the call writes only to the folder of plans, links resolved. Raises
    ToolError where the mode forbids it."""
    if mode is Mode.BYPASS or action is Action.READ:
        return False
    if mode is Mode.DEFAULT or action in (Action.FETCH, Action.UNKNOWN_READ):
        return True
    if action is not Action.WRITE:
        raise ToolError("in plan mode nothing is run")
    if not is_plan_file:
        raise ToolError("in plan mode only files in the folder of plans are written")
    return False
