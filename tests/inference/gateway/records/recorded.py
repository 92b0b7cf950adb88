"""What the gateway passes on to be recorded."""

from __future__ import annotations

from inference.gateway.request.outcome import RequestOutcome
from tests.inference.gateway.asgi_client import AsgiClient


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


Recorded = tuple[Records, AsgiClient]
