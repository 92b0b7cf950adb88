"""How an engine process ends, for the neuron that waits for it. Imports no torch."""

from __future__ import annotations

from enum import IntEnum


class EngineExit(IntEnum):
    """1 and 2 are also what an interpreter that never got to our code exits with."""

    OK = 0
    FAILED = 1
    ORPHANED = 2
    DEVICE_FAULT = 70
    HUNG = 71


_NAMES = {
    EngineExit.FAILED: "failed",
    EngineExit.ORPHANED: "ended by its neuron",
    EngineExit.DEVICE_FAULT: "device fault",
    EngineExit.HUNG: "hung",
}


def describe_exit(code: int) -> str:
    """The exit in words for people: ``exited with code 70 (device fault)``."""
    name = _NAMES.get(EngineExit(code)) if code in set(EngineExit) else None
    return f"exited with code {code}" + (f" ({name})" if name else "")
