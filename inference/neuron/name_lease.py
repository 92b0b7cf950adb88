"""The lease on a neuron's name. Two instances of one name would corrupt each other's queue, inbox,
specs and heartbeat, so the second one does not start.

    acquire ─▶ free, or this machine's previous instance's ────▶ ours ─▶ renewed by each beat
                 │                                                └────▶ another's: NameLostError
                 └─ held: wait until it is renewed (NameHeldError) or has expired (ours)

A beat writes in one transaction that watches the lease, so an instance that has lost its name no
longer overwrites what the next one writes.

The lease is also in a file in the data directory, which an instance locks while it runs. One that
gets the lock knows that the previous one is dead, and need not wait for its lease to expire.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from inference.protocol.keys import HEARTBEAT_EXPIRY_S, lease_key

log = logging.getLogger(__name__)

SOCKET_TIMEOUT_S = 2.0
REFUSED_LIMIT_S = 60.0


def connect(redis_url: str) -> redis.Redis:
    """Bytes in and out. A command is sent once: a repeated XADD would be a repeated event."""
    pool = redis.ConnectionPool.from_url(
        redis_url,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.Redis.from_pool(pool)


class RedisUntrustedError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Redis shows a certificate that this host does not trust ({reason}). Where the "
            "certificate is another since this host was invited, run neurons invite on the "
            "gateway and join again by its line"
        )


class InvitationVoidError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Redis refuses this host's name and password ({reason}): its invitation was revoked, "
            "or a newer one has replaced it. Run neurons invite on the gateway and join again by "
            "its line"
        )


class AccessRefusal:
    """A Redis that has just started has no users of invited hosts until the control process has
    made them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def note(self, error: redis.RedisError | None) -> None:
        """Raises ``InvitationVoidError``."""
        if not isinstance(error, redis.AuthenticationError):
            self._since_s = None
            return
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= REFUSED_LIMIT_S:
            raise InvitationVoidError(str(error)) from error


def _ensure_trusted(error: redis.RedisError) -> None:
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise RedisUntrustedError(cause.verify_message) from error


MAX_BYTES = 4096


class PreviousInstance:
    """``lease_value`` is empty if the previous instance may be alive or there was none."""

    def __init__(self, data_dir: Path, neuron: str) -> None:
        self.lease_value = b""
        self._fd: int | None = None
        path = data_dir / "neurons" / f"{neuron}.lease"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return
            self.lease_value = os.pread(fd, MAX_BYTES, 0)
            self._fd = fd  # for the rest of the process: the lock is its sign of life

    def write(self, lease_value: bytes) -> None:
        if self._fd is None:
            return
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, lease_value, 0)
        except OSError as error:
            log.warning("this neuron's next instance will have to wait for its name: %s", error)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


LEASE_EXPIRY_MS = int(HEARTBEAT_EXPIRY_S * 1000)
POLL_S = 0.25


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    epoch: str
    host: str
    process_id: int
    since_unix_s: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix_s, UTC).isoformat(" ", "seconds")
        epoch = self.epoch[:8]
        return f"host {self.host}, process {self.process_id}, epoch {epoch}, since {since}"


class NameHeldError(Exception):
    def __init__(self, neuron: str, holder: str) -> None:
        super().__init__(
            f"another neuron is named {neuron}: {holder}. Stop that one, or give this one another "
            "name with --name"
        )


class NameLostError(Exception):
    def __init__(self, neuron: str, holder: str) -> None:
        super().__init__(f"another neuron has taken the name {neuron}: {holder}")


class NameLease:
    def __init__(self, client: redis.Redis, *, neuron: str, epoch: str) -> None:
        self.neuron = neuron
        self.key = lease_key(neuron)
        holder = LeaseHolder(
            epoch=epoch,
            host=socket.gethostname(),
            process_id=os.getpid(),
            since_unix_s=round(time.time(), 3),
        )
        self.value = msgspec.json.encode(holder)
        self._client = client

    def acquire(
        self,
        earlier: PreviousInstance | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Waits for an absent Redis, and for the lease of a dead instance to expire. Raises
        ``NameHeldError``, ``RedisUntrustedError``, ``InvitationVoidError``."""
        previous = b"" if earlier is None else earlier.lease_value
        last_left_ms: int | None = None
        is_reaching, access = True, AccessRefusal()
        while True:
            try:
                held = self._hold(previous)
                left_ms: Any = 0 if held is None else self._client.pttl(self.key)
            except redis.RedisError as error:
                _ensure_trusted(error)
                if is_reaching:
                    log.error("the name %s waits for Redis: %s", self.neuron, error)
                access.note(error)
                is_reaching, last_left_ms = False, None
                sleep(POLL_S)
                continue
            is_reaching = True
            if held is None:
                break
            if last_left_ms is None:
                log.warning(
                    "the name %s is held: %s; waiting %.1f s for a sign of life",
                    self.neuron,
                    _in_words(held),
                    max(0, left_ms) / 1000,
                )
            elif left_ms > last_left_ms:
                raise NameHeldError(self.neuron, _in_words(held))
            last_left_ms = max(0, left_ms)
            sleep(POLL_S)
        if earlier is not None:
            earlier.write(self.value)

    def confirm(self) -> None:
        """Claims the name again where its lease has expired. Raises ``NameLostError``,
        ``redis.RedisError``."""
        if self._client.get(self.key) != self.value:  # else the next write extends it
            self.write(lambda _: None)

    def release(self, *keys: str) -> None:
        """Deletes the lease and ``keys`` where it is still ours. Raises ``redis.RedisError``."""
        self._transact({self.value}, lambda pipe: pipe.delete(self.key, *keys))

    def write(self, queue: Callable[[Pipeline], object]) -> None:
        """Renews the lease and runs the commands that ``queue`` adds, in one transaction. Writes
        nothing where another neuron holds the name. Raises ``NameLostError``,
        ``redis.RedisError``."""
        held = self._hold(b"", queue)
        if held is not None:
            raise NameLostError(self.neuron, _in_words(held))

    def _hold(
        self, previous: bytes, queue: Callable[[Pipeline], object] = lambda _: None
    ) -> bytes | None:
        """The value of the neuron that holds the name instead; ``None``: the name is ours now."""

        def write(pipe: Pipeline) -> None:
            pipe.set(self.key, self.value, px=LEASE_EXPIRY_MS)
            queue(pipe)

        return self._transact({None, self.value, previous}, write)

    def _transact(
        self, replaced: set[bytes | None], write: Callable[[Pipeline], object]
    ) -> bytes | None:
        """Returns the lease where it is not one of ``replaced``. Neurons run no scripts: a
        script that never ends stops Redis for every client."""

        def run(pipe: Pipeline) -> bytes | None:
            held: Any = pipe.get(self.key)
            if held not in replaced:
                return bytes(held or b"")
            pipe.multi()
            write(pipe)
            return None

        found: bytes | None = self._client.transaction(run, self.key, value_from_callable=True)  # type: ignore[arg-type, assignment]
        return found


def _in_words(value: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError, ValueError, OverflowError):
        return str(msgspec.json.decode(value, type=LeaseHolder))
    return "an unknown holder"
