"""A running request as its consumer sees it, answered by an engine or an upstream."""

from __future__ import annotations

from typing import Protocol

from inference.protocol.events import Event


class RunningRequest(Protocol):
    """``begin``, then ``next_events`` until the last one, then ``close``."""

    @property
    def is_sent(self) -> bool:
        """Whether it was sent to an engine or an upstream, which may have begun it."""
        ...

    async def begin(self) -> None: ...

    async def next_events(self) -> list[Event]:
        """Everything that is there, at least one event. Raises the ``ApiError`` it failed with."""
        ...

    def close(self) -> None: ...
