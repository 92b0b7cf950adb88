"""Two ends of stage links over loopback, and strangers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from inference.link_identities import Purpose, new_identity
from inference.protocol.load import LinkIdentity
from inference.stage_links import LinkListener, SecureConnection, dial

LOOPBACK = "127.0.0.1"
WAIT_S = 30.0
SHORT_S, LONG_S = 0.5, 30.0
"""Stall timeouts: of peers that stall, and of peers that a busy machine may keep waiting."""


@dataclass(frozen=True)
class Waiting:
    """A listener that waits in a thread."""

    address: tuple[str, int]
    links: Future[dict[Purpose, SecureConnection]]


Wait = Callable[..., Waiting]


@pytest.fixture
def wait() -> Iterator[Wait]:
    found: list[Waiting] = []

    def wait(
        identity: LinkIdentity,
        expected: Mapping[Purpose, str],
        timeout_s: float = WAIT_S,
        stall_timeout_s: float = LONG_S,
    ) -> Waiting:
        listener = LinkListener((LOOPBACK, 0), identity, expected, stall_timeout_s=stall_timeout_s)
        links: Future[dict[Purpose, SecureConnection]] = Future()

        def run() -> None:
            try:
                links.set_result(listener.accept_all(timeout_s))
            except BaseException as error:  # noqa: BLE001 -- the test's
                links.set_exception(error)

        # Before the thread closes the socket.
        found.append(Waiting((LOOPBACK, listener.port), links))
        threading.Thread(target=run, daemon=True).start()
        return found[-1]

    yield wait
    for waiting in found:
        if waiting.links.exception(2 * WAIT_S) is None:
            for link in waiting.links.result().values():
                link.close()


@dataclass(frozen=True)
class Ends:
    ours: SecureConnection
    theirs: SecureConnection


@pytest.fixture
def ends(wait: Wait, request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Both ends of one link: the one that has dialled, and the one that listened. The parameter is
    their stall timeout."""
    stall_s = getattr(request, "param", SHORT_S)
    engine, stage = new_identity(), new_identity()
    waiting = wait(stage, {"rows": engine.certificate}, stall_timeout_s=stall_s)
    timeouts = {"timeout_s": WAIT_S, "stall_timeout_s": stall_s}
    ours = dial(waiting.address, engine, stage.certificate, "rows", **timeouts)
    yield Ends(ours, waiting.links.result(WAIT_S)["rows"])
    ours.close()
