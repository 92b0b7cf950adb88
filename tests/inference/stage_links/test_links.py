"""Links are made by the ends that a load names, and by no one else. A link carries bytes both ways
at once, and no peer holds a thread for longer than it may."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.ports import free_port
from inference import stage_links
from inference.link_identities import Purpose, client_context, new_identity
from inference.protocol.load import LinkIdentity
from tests.cases import each_case

LOOPBACK = "127.0.0.1"
WAIT_S = 30.0
SHORT_S, LONG_S = 0.5, 30.0
"""Stall timeouts: of peers that stall, and of peers that a busy machine may keep waiting."""
ENGINE, BEFORE, STAGE = new_identity(), new_identity(), new_identity()
EXPECTED: dict[Purpose, str] = {
    "control": ENGINE.certificate,
    "rows": BEFORE.certificate,
    "rows-back": ENGINE.certificate,
}
Address = tuple[str, int]


@dataclass(frozen=True)
class Waiting:
    """A listener that waits in a thread."""

    identity: LinkIdentity
    address: Address
    links: Future[dict[Purpose, stage_links.SecureConnection]]

    def dial(self, who: LinkIdentity, purpose: Purpose, timeout_s: float = WAIT_S):
        return stage_links.dial(
            self.address, who, self.identity.certificate, purpose, timeout_s=timeout_s
        )

    def join(self, *purposes: Purpose) -> dict[Purpose, stage_links.SecureConnection]:
        """All that are expected join: whatever strangers did, they can."""
        for purpose in purposes or EXPECTED:
            self.dial(BEFORE if purpose == "rows" else ENGINE, purpose).close()
        assert set(self.links.result(WAIT_S)) == set(EXPECTED)
        return self.links.result()


Wait = Callable[..., Waiting]


@pytest.fixture
def wait() -> Iterator[Wait]:
    found: list[Waiting] = []

    def wait(
        identity: LinkIdentity = STAGE,
        expected: Mapping[Purpose, str] = EXPECTED,
        stall_timeout_s: float = LONG_S,
    ) -> Waiting:
        listener = stage_links.LinkListener(
            (LOOPBACK, 0), identity, expected, stall_timeout_s=stall_timeout_s
        )
        address = (LOOPBACK, listener.port)  # before the thread closes the socket
        pool = ThreadPoolExecutor(1)
        found.append(Waiting(identity, address, pool.submit(listener.accept_all, WAIT_S)))
        pool.shutdown(wait=False)
        return found[-1]

    yield wait
    for waiting in found:
        if waiting.links.exception(2 * WAIT_S) is None:
            for link in waiting.links.result().values():
                link.close()


@pytest.fixture
def ends(wait: Wait, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both ends of one link: the one that has dialled, and the one that listened. The parameter is
    their stall timeout."""
    stall_s = getattr(request, "param", SHORT_S)
    waiting = wait(STAGE, {"rows": ENGINE.certificate}, stall_s)
    timeouts = {"timeout_s": WAIT_S, "stall_timeout_s": stall_s}
    ours = stage_links.dial(waiting.address, ENGINE, STAGE.certificate, "rows", **timeouts)
    yield SimpleNamespace(ours=ours, theirs=waiting.links.result(WAIT_S)["rows"])
    ours.close()


def _read(link: stage_links.SecureConnection, num_bytes: int = 1) -> bytearray:
    read = bytearray(num_bytes)
    link.read_into(memoryview(read), begins_frame=True)
    return read


def _carries(own: stage_links.SecureConnection, link: stage_links.SecureConnection) -> bool:
    own.sendall(b"x")
    read = _read(link)
    own.close()
    return read == b"x"


def _is_refused(address: Address) -> bool:
    try:
        socket.create_connection(address, 5).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("ends", [LONG_S], indirect=True)
def test_bytes_cross_both_ways_at_once(ends: Any) -> None:
    """The bytes are more than sockets hold, with a thread for each direction at each end."""
    ours, theirs = os.urandom(24_000_000), os.urandom(24_000_000)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(ends.ours.sendall, ours)
        pool.submit(ends.theirs.sendall, theirs)
        read = [pool.submit(_read, end, len(ours)) for end in (ends.theirs, ends.ours)]
        assert [one.result(60) for one in read] == [ours, theirs]


def test_an_idle_link_stays_and_a_peer_that_stalls_is_a_timeout(ends: Any) -> None:
    """The stall timeout is of frames that have begun. A sender waits, holds nothing for its peer,
    and ends. A host that is gone without a word is noticed by the kernel within ten seconds: what
    it will do is read from the sockets, for no test can cut a host's power."""
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(_read, ends.theirs)
        time.sleep(2 * SHORT_S + 0.2)
        assert not read.done()
        ends.ours.sendall(b"!")
        assert read.result(20) == b"!"
    ends.ours.sendall(b"half")
    with pytest.raises(TimeoutError):
        _read(ends.theirs, 8)
    with pytest.raises(TimeoutError):
        ends.ours.sendall(bytes(64_000_000))
    for end in (ends.ours, ends.theirs) if hasattr(socket, "TCP_USER_TIMEOUT") else ():
        with socket.socket(fileno=os.dup(end._fileno)) as tcp:
            assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
            idle_s, interval_s, num_probes, unread_ms = (
                tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in names
            )
        assert idle_s + num_probes * interval_s < 10
        assert unread_ms < 10_000


@pytest.mark.parametrize("is_writing", [False, True], ids=["reader", "writer"])
def test_closing_wakes_who_waits(ends: Any, is_writing: bool) -> None:
    """The socket's number is not used by others meanwhile."""
    reads, writes = partial(_read, num_bytes=8), lambda link: link.sendall(bytes(64_000_000))
    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(writes if is_writing else reads, ends.theirs)
        time.sleep(0.2)
        ends.theirs.close()
        assert isinstance(used.exception(20), EOFError | OSError)
    assert ends.theirs._socket.fileno() == -1
    ends.theirs.close()


def test_the_other_side_ends_or_a_machine_between_changes_bytes(ends: Any) -> None:
    os.write(ends.ours._fileno, b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises((EOFError, OSError)):
        _read(ends.theirs)
    ends.ours.close()
    with pytest.raises(OSError, match=r".*"):
        for _ in range(100):
            ends.theirs.sendall(bytes(1_000_000))


def test_each_purpose_gets_its_own_link_and_nothing_listens_after(wait: Wait) -> None:
    waiting = wait()
    dialled = {p: waiting.dial(w, p) for p, w in (("rows", BEFORE), ("control", ENGINE))}
    dialled["rows-back"] = waiting.dial(ENGINE, "rows-back")
    made = waiting.links.result(WAIT_S)
    assert all(_carries(own, made[purpose]) for purpose, own in dialled.items())
    assert _is_refused(waiting.address)


@each_case(
    ("who", "purpose"),
    [(new_identity(), "control"), (BEFORE, "control"), (ENGINE, "rows")],
    ids=["stranger", "stage-before-as-engine", "engine-as-stage-before"],
)
def test_who_is_not_expected_is_refused(wait: Wait, who: LinkIdentity, purpose: Purpose) -> None:
    """A stranger at once; one with a certificate for another link when it gives up. One that dials
    knows the stage too. Certificates without keys are worth nothing: a load job names all ends'."""
    waiting, impostor = wait(), wait(new_identity())
    with pytest.raises((stage_links.LinkRefusedError, stage_links.LinkTimeoutError)):
        waiting.dial(who, purpose, timeout_s=0.5)
    waiting.join()
    with pytest.raises(stage_links.LinkRefusedError):
        stage_links.dial(impostor.address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S)
    impostor.join()  # its control link is not made yet
    forged = LinkIdentity(certificate=ENGINE.certificate, private_key=new_identity().private_key)
    with pytest.raises(ValueError, match="credentials"):
        stage_links.dial((LOOPBACK, 1), forged, STAGE.certificate, "control", timeout_s=1.0)
    assert "PRIVATE" in STAGE.private_key and "PRIVATE" not in f"{STAGE} {[STAGE]}"


@each_case("gives_up", [False, True])
def test_a_link_is_made_once_or_again_after_its_end_gave_up(wait: Wait, gives_up: bool) -> None:
    """A stage whose process stood still has accepted a link that its other end has left."""
    waiting = wait()
    used = waiting.dial(ENGINE, "control")
    if gives_up:
        used.close()
        used = waiting.dial(ENGINE, "control")
    else:
        with pytest.raises(stage_links.LinkTimeoutError):
            waiting.dial(ENGINE, "control", timeout_s=0.5)
    assert _carries(used, waiting.join("rows", "rows-back")["control"])


def _sends(data: bytes, address: Address) -> None:
    with socket.create_connection(address, 10) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass


def _handshakes(change: Callable[[ssl.SSLContext], None], address: Address) -> None:
    context = client_context(ENGINE, STAGE.certificate, "control")
    change(context)
    with socket.create_connection(address, 10) as plain, context.wrap_socket(plain) as connection:
        assert connection.recv(1) == b""


def _tls_1_2(context: ssl.SSLContext) -> None:
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2


STRANGERS: dict[str, Callable[[Address], None]] = {
    "nothing": partial(_sends, b""),
    "http": partial(_sends, b"GET / HTTP/1.1\r\n\r\n"),
    "oversized-hello": partial(_sends, b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000),
    "TLS 1.2": partial(_handshakes, _tls_1_2),
    "no purpose": partial(_handshakes, lambda context: context.set_alpn_protocols(["h2"])),
}


def test_strangers_are_closed_and_silent_ones_keep_nobody_out(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_links, "HANDSHAKE_TIMEOUT_S", 1.0)
    waiting = wait()
    silent = [socket.create_connection(waiting.address, 10) for _ in range(5)]
    for act in STRANGERS.values():
        with suppress(OSError):  # closed before all was sent, or refused by the handshake
            act(waiting.address)
    waiting.join()
    for stranger in silent:
        with stranger, suppress(ConnectionError):
            assert stranger.recv(1) == b"", "those that were left are closed at the end"


def test_who_never_comes_is_named_or_comes_later_and_nothing_stays() -> None:
    listener = stage_links.LinkListener((LOOPBACK, 0), STAGE, EXPECTED)
    address = (LOOPBACK, listener.port)
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(
            stage_links.dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S
        )
        listener.accept("control", WAIT_S)
        link = dialled.result(WAIT_S)
    with pytest.raises(stage_links.LinkTimeoutError, match="no rows and no rows-back link came"):
        listener.accept_all(0.1)
    assert _is_refused(address)
    with pytest.raises((EOFError, OSError)):
        _read(link)
    link.close()
    # A stage may begin to listen later, or its kernel accepts and the process stands still.
    address = (LOOPBACK, free_port())
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(
            stage_links.dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S
        )
        time.sleep(0.3)
        listener = stage_links.LinkListener(address, STAGE, {"control": ENGINE.certificate})
        link = listener.accept_all(WAIT_S)["control"]
        assert _carries(early.result(), link)
    link.close()
    with (
        socket.create_server((LOOPBACK, 0)) as stopped,
        pytest.raises(stage_links.LinkTimeoutError),
    ):
        stage_links.dial(stopped.getsockname(), ENGINE, STAGE.certificate, "control", timeout_s=0.5)


def test_addresses_in_words() -> None:
    for address in (("10.0.0.5", 1), ("box.lan", 7400), ("2001:db8::5", 65535)):
        assert stage_links.address_of(stage_links.address_in_words(*address)) == address
    for words in ("box", ":7400", "box:", "box:0", "box:65536", "box:-1", "box:²", "[]:1"):
        with pytest.raises(ValueError, match="no address of a stage"):
            stage_links.address_of(words)
