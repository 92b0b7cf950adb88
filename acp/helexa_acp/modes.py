"""The three modes, and their decisions about tool calls. Pure.

              read    write            execute   fetch   unknown (a server's tool)
default       yes     ask              ask       ask     ask
bypass        yes     yes              yes       yes     yes
plan          yes     plans only       no        ask     ask if it is declared read-only
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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


class Verdict(Enum):
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    reason: str = ""


ALLOW, ASK = Judgement(Verdict.ALLOW), Judgement(Verdict.ASK)


def judge(mode: Mode, action: Action, *, is_plan_file: bool = False) -> Judgement:
    """``is_plan_file``: the call writes only to the folder of plans, links resolved."""
    if mode is Mode.BYPASS or action is Action.READ:
        return ALLOW
    if mode is Mode.DEFAULT:
        return ASK
    match action:
        case Action.WRITE if is_plan_file:
            return ALLOW
        case Action.FETCH | Action.UNKNOWN_READ:
            return ASK
        case Action.WRITE:
            return Judgement(
                Verdict.REFUSE, "in plan mode only files in the folder of plans are written"
            )
        case _:
            return Judgement(Verdict.REFUSE, "in plan mode nothing is run")
