"""An HTTP server with fixed answers, as another instance of helexa."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.servers.fake_upstream import FakeUpstream


@contextlib.contextmanager
def answering(bodies: dict[str, bytes], instance: str | None) -> Iterator[int]:
    """A server with the header of that instance; its port."""
    named = {} if instance is None else {"x_helexa_instance": instance}
    with FakeUpstream() as server:
        server.answer = lambda asked, wire: wire.whole(
            200, bodies[asked.path], "application/json", **named
        )
        yield int(server.origin.rpartition(":")[2])
