"""Links are made by the ends that a load names, and by no one else."""

from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from benchmarks.ports import free_port
from inference.protocol.load import LinkIdentity
from inference.stage_links.connection import SecureConnection
from inference.stage_links.dialling import dial
from inference.stage_links.errors import LinkRefusedError, LinkTimeoutError
from inference.stage_links.identities import (
    Purpose,
    client_context,
    new_identity,
    protocol_of,
)
from inference.stage_links.listener import MAX_HANDSHAKES, LinkListener
from tests.cases import each_case
from tests.inference.stage_links.conftest import LOOPBACK, WAIT_S, Wait, Waiting

pytestmark = pytest.mark.slow

ENGINE, BEFORE, STAGE = new_identity(), new_identity(), new_identity()
EXPECTED: dict[Purpose, str] = {
    "control": ENGINE.certificate,
    "rows": BEFORE.certificate,
    "rows-back": ENGINE.certificate,
}


def _join(waiting: Waiting, stage: LinkIdentity = STAGE) -> None:
    """All that are expected join: whatever strangers did, they can."""
    for who, purpose in ((ENGINE, "control"), (BEFORE, "rows"), (ENGINE, "rows-back")):
        dial(waiting.address, who, stage.certificate, purpose, timeout_s=WAIT_S).close()
    assert set(waiting.links.result(WAIT_S)) == set(EXPECTED)


def _dial(waiting: Waiting, who: LinkIdentity, purpose: Purpose, timeout_s: float = WAIT_S):
    return dial(waiting.address, who, STAGE.certificate, purpose, timeout_s=timeout_s)


def _carries(own: SecureConnection, link: SecureConnection) -> bool:
    own.sendall(b"x")
    read = bytearray(1)
    link.read_into(memoryview(read), begins_frame=True)
    own.close()
    return read == b"x"


def _is_refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_each_purpose_gets_its_own_link_and_nothing_listens_after(wait: Wait) -> None:
    waiting = wait(STAGE, EXPECTED)
    dialled = {p: _dial(waiting, w, p) for p, w in (("rows", BEFORE), ("control", ENGINE))}
    dialled["rows-back"] = _dial(waiting, ENGINE, "rows-back")
    links = waiting.links.result(WAIT_S)
    assert all(_carries(own, links[purpose]) for purpose, own in dialled.items())
    assert _is_refused(waiting.address)


@pytest.mark.parametrize(
    ("who", "purpose"),
    [(new_identity(), "control"), (BEFORE, "control"), (ENGINE, "rows"), (STAGE, "rows")],
    ids=["stranger", "stage-before-as-engine", "engine-as-stage-before", "the-stage-itself"],
)
def test_who_is_not_expected_is_refused(wait: Wait, who: LinkIdentity, purpose: Purpose) -> None:
    """A stranger at once; one with a certificate for another link when it gives up."""
    waiting = wait(STAGE, EXPECTED)
    with pytest.raises((LinkRefusedError, LinkTimeoutError)):
        _dial(waiting, who, purpose, timeout_s=1.0)
    _join(waiting)


def test_a_certificate_without_its_key_is_worth_nothing(wait: Wait) -> None:
    """Certificates are no secrets: a load job names those of all ends."""
    waiting = wait(STAGE, EXPECTED)
    forged = LinkIdentity(certificate=ENGINE.certificate, private_key=new_identity().private_key)
    with pytest.raises(ValueError, match="credentials"):
        _dial(waiting, forged, "control")
    _join(waiting)


@each_case("gives_up", [False, True])
def test_a_link_is_made_once_or_again_after_its_end_gave_up(wait: Wait, gives_up: bool) -> None:
    """A stage whose process stood still has accepted a link that its other end has left."""
    waiting = wait(STAGE, EXPECTED)
    used = _dial(waiting, ENGINE, "control")
    if gives_up:
        used.close()
        used = _dial(waiting, ENGINE, "control")
    else:
        with pytest.raises(LinkTimeoutError):
            _dial(waiting, ENGINE, "control", timeout_s=1.0)
    for who, purpose in ((BEFORE, "rows"), (ENGINE, "rows-back")):
        _dial(waiting, who, purpose).close()
    assert _carries(used, waiting.links.result(WAIT_S)["control"])


def test_the_last_end_joins_again_where_it_gave_up_before_it_was_accepted() -> None:
    """The stage's process stood still while it did: it listens until the link is one that is
    used."""
    listener = LinkListener((LOOPBACK, 0), STAGE, {"control": ENGINE.certificate})
    address = (LOOPBACK, listener.port)
    context = client_context(ENGINE, STAGE.certificate, "control")
    with context.wrap_socket(
        socket.create_connection(address, WAIT_S), do_handshake_on_connect=False
    ) as impatient:
        impatient.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            impatient.do_handshake()
        listener._wait(WAIT_S)  # takes the connection
        listener._wait(WAIT_S)  # answers it
        impatient.do_handshake()
    listener._wait(WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S)
        link = listener.accept_all(WAIT_S)["control"]
        assert _carries(again.result(WAIT_S), link)
    link.close()


def test_one_that_dials_knows_the_stage_too(wait: Wait) -> None:
    another = new_identity()
    impostor = wait(another, EXPECTED)
    with pytest.raises(LinkRefusedError):
        _dial(impostor, ENGINE, "control")
    _join(impostor, another)  # its control link is not made yet


@each_case("version", [ssl.TLSVersion.TLSv1_2, None])
def test_an_older_or_purposeless_handshake_is_closed(
    wait: Wait, version: ssl.TLSVersion | None
) -> None:
    waiting = wait(STAGE, EXPECTED)
    context = client_context(ENGINE, STAGE.certificate, "control")
    if version is None:
        context.set_alpn_protocols(["h2"])
    else:
        context.minimum_version = context.maximum_version = version
    with socket.create_connection(waiting.address, 10) as plain, suppress(ssl.SSLError):
        with context.wrap_socket(plain) as connection:
            assert connection.recv(1) == b""
    _join(waiting)


@each_case(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(2000), b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000],
    ids=["nothing", "http", "zeros", "oversized-hello"],
)
def test_strangers_who_talk_something_else_are_closed(wait: Wait, sent: bytes) -> None:
    """They may be closed before all is sent."""
    waiting = wait(STAGE, EXPECTED)
    with socket.create_connection(waiting.address, 10) as stranger, suppress(OSError):
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(10)
        while stranger.recv(4096):
            pass
    _join(waiting)


def test_silent_strangers_keep_nobody_out(wait: Wait) -> None:
    """Far more of them than handshakes at once: the oldest are closed, and the expected join before
    any of the strangers' time is up."""
    waiting = wait(STAGE, EXPECTED)
    strangers = [socket.create_connection(waiting.address, 10) for _ in range(MAX_HANDSHAKES + 20)]
    with ExitStack() as ends:
        for stranger in strangers:
            ends.enter_context(stranger).settimeout(10)
        _join(waiting)
        for stranger in strangers:
            with suppress(ConnectionError):
                assert stranger.recv(1) == b"", "those that were left are closed at the end"


def test_who_never_comes_is_named_and_nothing_stays() -> None:
    listener = LinkListener((LOOPBACK, 0), STAGE, EXPECTED)
    address = (LOOPBACK, listener.port)
    with ThreadPoolExecutor(1) as pool:
        dialled = pool.submit(dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S)
        listener.accept("control", WAIT_S)
        link = dialled.result(WAIT_S)
    with pytest.raises(LinkTimeoutError, match="no rows and no rows-back link came"):
        listener.accept_all(0.1)
    assert _is_refused(address)
    with pytest.raises((EOFError, OSError)):
        link.read_into(memoryview(bytearray(1)), begins_frame=True)
    link.close()


def test_a_stage_may_begin_to_listen_later() -> None:
    address = (LOOPBACK, free_port())
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S)
        time.sleep(0.5)
        listener = LinkListener(address, STAGE, {"control": ENGINE.certificate})
        link = listener.accept_all(WAIT_S)["control"]
        assert _carries(early.result(), link)
    link.close()


def test_a_listener_that_accepts_nothing_is_a_timeout() -> None:
    """The kernel accepts, the process stands still."""
    with socket.create_server((LOOPBACK, 0)) as stopped:
        began_s = time.monotonic()
        with pytest.raises(LinkTimeoutError):
            dial(stopped.getsockname(), ENGINE, STAGE.certificate, "control", timeout_s=1.0)
        assert time.monotonic() - began_s < 10


def test_secrets_are_not_shown_and_purposes_have_names_of_their_own() -> None:
    assert "PRIVATE" in STAGE.private_key
    for shown in (repr(STAGE), str(STAGE), f"{[STAGE]}"):
        assert STAGE.private_key not in shown and "PRIVATE" not in shown
    assert len({protocol_of(purpose) for purpose in EXPECTED}) == len(EXPECTED)
