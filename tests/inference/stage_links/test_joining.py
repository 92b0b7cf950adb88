"""Links are made by the ends that a load names, and by no one else."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.ports import free_port
from inference.protocol.load import LinkIdentity
from inference.stage_links.dialling import dial
from inference.stage_links.errors import LinkRefusedError, LinkTimeoutError
from inference.stage_links.identities import (
    Purpose,
    client_context,
    new_identity,
    protocol_of,
)
from inference.stage_links.listener import MAX_HANDSHAKES, LinkListener
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
    for purpose, own in dialled.items():
        own.sendall(purpose.encode())
        read = bytearray(len(purpose))
        links[purpose].read_into(memoryview(read), begins_frame=True)
        assert read.decode() == purpose
    assert _is_refused(waiting.address)
    for own in dialled.values():
        own.close()


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


def test_a_link_is_made_once(wait: Wait) -> None:
    waiting = wait(STAGE, EXPECTED)
    first = _dial(waiting, ENGINE, "control")
    with pytest.raises(LinkTimeoutError):
        _dial(waiting, ENGINE, "control", timeout_s=1.0)
    for who, purpose in ((BEFORE, "rows"), (ENGINE, "rows-back")):
        _dial(waiting, who, purpose).close()
    first.sendall(b"x")
    read = bytearray(1)
    waiting.links.result(WAIT_S)["control"].read_into(memoryview(read), begins_frame=True)
    assert read == b"x", "the first one's"
    first.close()


def test_an_end_that_gave_up_before_it_was_accepted_joins_again(wait: Wait) -> None:
    """A stage whose process stood still has accepted a link that its other end has left."""
    waiting = wait(STAGE, EXPECTED)
    _dial(waiting, ENGINE, "control").close()
    again = _dial(waiting, ENGINE, "control")
    for who, purpose in ((BEFORE, "rows"), (ENGINE, "rows-back")):
        _dial(waiting, who, purpose).close()
    again.sendall(b"x")
    read = bytearray(1)
    waiting.links.result(WAIT_S)["control"].read_into(memoryview(read), begins_frame=True)
    assert read == b"x"
    again.close()


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
        again.result(WAIT_S).sendall(b"x")
        read = bytearray(1)
        link.read_into(memoryview(read), begins_frame=True)
    assert read == b"x"
    link.close()
    again.result().close()


def test_one_that_dials_knows_the_stage_too(wait: Wait) -> None:
    another = new_identity()
    impostor = wait(another, EXPECTED)
    with pytest.raises(LinkRefusedError):
        _dial(impostor, ENGINE, "control")
    _join(impostor, another)  # its control link is not made yet


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, None], ids=["tls-1.2", "no-purpose"])
def test_an_older_or_purposeless_handshake_is_closed(
    wait: Wait, version: ssl.TLSVersion | None
) -> None:
    waiting = wait(STAGE, EXPECTED)
    context = client_context(ENGINE, STAGE.certificate, "control")
    if version is None:
        context.set_alpn_protocols(["h2"])
    else:
        context.minimum_version = context.maximum_version = version
    with socket.create_connection(waiting.address, 10) as plain:
        try:
            with context.wrap_socket(plain) as connection:
                assert connection.recv(1) == b""
        except ssl.SSLError:
            pass
    _join(waiting)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(2000), b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000],
    ids=["nothing", "http", "zeros", "oversized-hello"],
)
def test_strangers_who_talk_something_else_are_closed(wait: Wait, sent: bytes) -> None:
    waiting = wait(STAGE, EXPECTED)
    with socket.create_connection(waiting.address, 10) as stranger:
        try:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10)
            while stranger.recv(4096):
                pass
        except OSError:
            pass  # it was closed before all was sent
    _join(waiting)


def test_silent_strangers_keep_nobody_out(wait: Wait) -> None:
    """Far more of them than handshakes at once: the oldest are closed, and the expected join before
    any of the strangers' time is up."""
    waiting = wait(STAGE, EXPECTED)
    strangers = [socket.create_connection(waiting.address, 10) for _ in range(MAX_HANDSHAKES + 20)]
    try:
        _join(waiting)
        num_closed = 0
        for stranger in strangers:
            stranger.settimeout(10)
            try:
                num_closed += stranger.recv(1) == b""
            except ConnectionError:
                num_closed += 1
        assert num_closed == len(strangers), "those that were left, at the end"
    finally:
        for stranger in strangers:
            stranger.close()


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


def test_a_stage_may_begin_to_listen_later(wait: Wait) -> None:
    address = (LOOPBACK, free_port())
    found = []

    def dial_early() -> None:
        found.append(dial(address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S))

    thread = threading.Thread(target=dial_early)
    thread.start()
    time.sleep(0.5)
    listener = LinkListener(address, STAGE, {"control": ENGINE.certificate})
    links = listener.accept_all(WAIT_S)
    thread.join()
    for link in (*found, *links.values()):
        link.close()
    assert found


def test_a_listener_that_accepts_nothing_is_a_timeout() -> None:
    """The kernel accepts, the process stands still."""
    with socket.create_server((LOOPBACK, 0)) as stopped:
        began_s = time.monotonic()
        with pytest.raises(LinkTimeoutError):
            dial(stopped.getsockname(), ENGINE, STAGE.certificate, "control", timeout_s=1.0)
        assert time.monotonic() - began_s < 10


def test_secrets_are_not_shown() -> None:
    assert "PRIVATE" in STAGE.private_key
    for shown in (repr(STAGE), str(STAGE), f"{[STAGE]}"):
        assert STAGE.private_key not in shown and "PRIVATE" not in shown


def test_purposes_have_names_of_their_own() -> None:
    assert len({protocol_of(purpose) for purpose in EXPECTED}) == len(EXPECTED)
