"""Links are made by the ends that a load names, and by no one else."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from benchmarks.ports import free_port
from inference import stage_links
from inference.link_identities import Purpose, client_context, new_identity
from inference.protocol.load import LinkIdentity
from inference.stage_links import (
    LinkListener,
    LinkRefusedError,
    LinkTimeoutError,
    SecureConnection,
    address_in_words,
    address_of,
    dial,
)
from tests.cases import each_case
from tests.inference.stage_links.conftest import LOOPBACK, WAIT_S, Wait, Waiting

ENGINE, BEFORE, STAGE = new_identity(), new_identity(), new_identity()
EXPECTED: dict[Purpose, str] = {
    "control": ENGINE.certificate,
    "rows": BEFORE.certificate,
    "rows-back": ENGINE.certificate,
}
Address = tuple[str, int]


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


def _is_refused(address: Address) -> bool:
    try:
        socket.create_connection(address, 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_each_purpose_gets_its_own_link_and_nothing_listens_after(wait: Wait) -> None:
    waiting = wait(STAGE, EXPECTED)
    dialled = {p: _dial(waiting, w, p) for p, w in (("rows", BEFORE), ("control", ENGINE))}
    dialled["rows-back"] = _dial(waiting, ENGINE, "rows-back")
    made = waiting.links.result(WAIT_S)
    assert all(_carries(own, made[purpose]) for purpose, own in dialled.items())
    assert _is_refused(waiting.address)


@pytest.mark.parametrize(
    ("who", "purpose"),
    [(new_identity(), "control"), (BEFORE, "control"), (ENGINE, "rows")],
    ids=["stranger", "stage-before-as-engine", "engine-as-stage-before"],
)
def test_who_is_not_expected_is_refused(wait: Wait, who: LinkIdentity, purpose: Purpose) -> None:
    """A stranger at once; one with a certificate for another link when it gives up. One that dials
    knows the stage too."""
    waiting = wait(STAGE, EXPECTED)
    with pytest.raises((LinkRefusedError, LinkTimeoutError)):
        _dial(waiting, who, purpose, timeout_s=0.5)
    _join(waiting)
    another = new_identity()
    impostor = wait(another, EXPECTED)
    with pytest.raises(LinkRefusedError):
        _dial(impostor, ENGINE, "control")
    _join(impostor, another)  # its control link is not made yet


def test_a_certificate_without_its_key_is_worth_nothing_and_keys_are_not_shown() -> None:
    """Certificates are no secrets: a load job names those of all ends."""
    forged = LinkIdentity(certificate=ENGINE.certificate, private_key=new_identity().private_key)
    with pytest.raises(ValueError, match="credentials"):
        dial((LOOPBACK, 1), forged, STAGE.certificate, "control", timeout_s=1.0)
    assert "PRIVATE" in STAGE.private_key and "PRIVATE" not in f"{STAGE} {[STAGE]}"


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
            _dial(waiting, ENGINE, "control", timeout_s=0.5)
    for who, purpose in ((BEFORE, "rows"), (ENGINE, "rows-back")):
        _dial(waiting, who, purpose).close()
    assert _carries(used, waiting.links.result(WAIT_S)["control"])


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
    waiting = wait(STAGE, EXPECTED)
    silent = [socket.create_connection(waiting.address, 10) for _ in range(5)]
    for act in STRANGERS.values():
        with suppress(OSError):  # closed before all was sent, or refused by the handshake
            act(waiting.address)
    _join(waiting)
    for stranger in silent:
        with stranger, suppress(ConnectionError):
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


def test_a_stage_may_begin_to_listen_later_or_accept_nothing() -> None:
    """Its kernel accepts, and the process stands still."""
    address = (LOOPBACK, free_port())
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(dial, address, ENGINE, STAGE.certificate, "control", timeout_s=WAIT_S)
        time.sleep(0.3)
        listener = LinkListener(address, STAGE, {"control": ENGINE.certificate})
        link = listener.accept_all(WAIT_S)["control"]
        assert _carries(early.result(), link)
    link.close()
    with socket.create_server((LOOPBACK, 0)) as stopped, pytest.raises(LinkTimeoutError):
        dial(stopped.getsockname(), ENGINE, STAGE.certificate, "control", timeout_s=0.5)


def test_addresses_in_words() -> None:
    for address in (("10.0.0.5", 1), ("box.lan", 7400), ("2001:db8::5", 65535)):
        assert address_of(address_in_words(*address)) == address
    for words in ("box", ":7400", "box:", "box:0", "box:65536", "box:-1", "box:²", "[]:1"):
        with pytest.raises(ValueError, match="no address of a stage"):
            address_of(words)
