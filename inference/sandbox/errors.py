"""Why a job has no result.

SandboxError
├── WorkerLostError      the job ended its worker, or was ended at a limit; ``reason`` names it
├── NoWorkerError        no worker could be started, or all have ended
└── NotWantedError       the caller does not want the result any more; its worker was ended
"""

from __future__ import annotations

from enum import StrEnum


class LossReason(StrEnum):
    """Completes "it …", for the client and the log."""

    TIME = "took too long"
    MEMORY = "took too much memory"
    OUTPUT = "wrote too much"
    CRASH = "ended the process that worked on it"


class SandboxError(Exception):
    """Base of this package."""


class WorkerLostError(SandboxError):
    def __init__(self, reason: LossReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class NoWorkerError(SandboxError):
    pass


class NotWantedError(SandboxError):
    pass
