"""A gateway that wants a key, and what it passes on to be recorded."""

from __future__ import annotations

from dataclasses import dataclass

from inference.gateway.request.outcome import RequestOutcome
from metering.ledger.entries import Outcome
from tests.inference.gateway.conftest import Rig


class Records:
    """What the gateway passes on to be recorded."""

    def __init__(self) -> None:
        self.ended: list[RequestOutcome] = []
        self.has_stopped = False
        self.depth = 3
        self.num_dropped = 0

    def start(self) -> None:
        pass

    def stop(self, timeout_s: float) -> None:
        self.has_stopped = True

    def add(self, ended: RequestOutcome) -> None:
        assert not self.has_stopped, "it is never written"
        self.ended.append(ended)

    def only(self) -> RequestOutcome:
        (one,) = self.ended
        return one


@dataclass(slots=True, kw_only=True)
class RecordingRig(Rig):
    records: Records

    def record(self) -> RequestOutcome:
        """The only record since the last one that was read."""
        one = self.records.only()
        self.records.ended.clear()
        return one

    def refused(self, status: int, code: str, *, account: str = "lab") -> RequestOutcome:
        """Asserts that the only record is of that refusal."""
        one = self.record()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, status, code)
        assert (one.settle.account, bool(one.settle.key)) == (account, bool(account))
        assert one.error_message
        return one
