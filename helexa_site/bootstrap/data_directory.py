"""The data directory: all of serve's files, locked by one serve at a time.

serve.lock    held (flock) by serve and its guardian; names the holder in plain text
serve.json    where it answers, and its own key; mode 0600
secret_key    signs sessions; mode 0600
redis/        the private Redis's configuration and socket
logs/         one file for the control and one for each child
ledger-spool/ requests whose bills the database has yet to take, a file a gateway
models/       downloaded and converted model files (the neuron's)
neurons/      of an invited host: <name>.join has address and password of its Redis, mode 0600,
              <name>.pem the certificate of that Redis, where it is signed by itself
helexa.sqlite3
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.whole_file import try_lock, write_whole
from inference.protocol.joining import Joining

LOCK_FILE = "serve.lock"
RUNNING_FILE = "serve.json"
JOINED = "neurons"
ORPHANED_LOCK_WAIT_S = 2.0
"""After a serve is killed, its guardian holds the lock for an instant."""
POLL_INTERVAL_S = 0.05
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def claimed_data_directory(path: Path) -> Iterator[int]:
    """Makes a missing directory, and holds its lock within a ``with``. Yields the descriptor of the
    lock: each process that inherits it keeps the directory claimed.

    Raises ``BootstrapError`` when it cannot be written or another serve holds it, and in place
    of an ``OSError`` from the ``with`` body for a full disk.
    """
    cannot = f"cannot write to the data directory {path}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BootstrapError(
            f"{cannot}: {error.strerror}; choose another with --data-dir"
        ) from error
    try:
        _take_lock(path, lock_fd)
        yield lock_fd
    except OSError as error:
        if error.errno not in DISK_IS_FULL:
            raise
        raise BootstrapError(
            f"{cannot}: {error.strerror}; make room there, or choose another with --data-dir"
        ) from error
    finally:
        os.close(lock_fd)


def _take_lock(path: Path, lock_fd: int) -> None:
    deadline_s = time.monotonic() + ORPHANED_LOCK_WAIT_S
    while not try_lock(lock_fd):
        if time.monotonic() > deadline_s:
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
            raise BootstrapError(
                f"another copy (process {holder or 'unknown'}) runs on the data directory "
                f"{path}; stop it, or choose another directory with --data-dir"
            )
        time.sleep(POLL_INTERVAL_S)
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServe:
    url: str
    key: str = field(repr=False)
    process_id: int


def write_running(data_dir: Path, running: RunningServe) -> None:
    """Raises ``OSError``."""
    write_whole(data_dir / RUNNING_FILE, json.dumps(asdict(running)))


def forget_running(data_dir: Path) -> None:
    with contextlib.suppress(OSError):
        (data_dir / RUNNING_FILE).unlink()


def find_running(data_dir: Path) -> RunningServe | None:
    """``None``: none runs there, or its file is not readable. A killed one leaves its file."""
    try:
        found = RunningServe(**json.loads((data_dir / RUNNING_FILE).read_text()))
        os.kill(found.process_id, 0)
    except (OSError, ValueError, TypeError):
        return None
    return found


def keep_joining(joining: Joining, data_dir: Path) -> None:
    """Raises ``BootstrapError``."""
    folder = data_dir / JOINED
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / f"{joining.neuron}.join", json.dumps(asdict(joining)))
        if joining.certificate:
            write_whole(_certificate_path(joining, data_dir), joining.certificate)
    except OSError as error:
        raise BootstrapError(f"cannot keep the invitation in {folder}: {error.strerror}") from error


def kept_joining(data_dir: Path, name: str | None) -> Joining | None:
    """The parameters stored under that name, or the only ones; ``None``: there are none. Raises
    ``BootstrapError`` where several could be meant or the file cannot be read."""
    folder = data_dir / JOINED
    paths = sorted(folder.glob("*.join")) if name is None else [folder / f"{name}.join"]
    if len(paths) > 1:
        names = ", ".join(path.stem for path in paths)
        raise BootstrapError(f"this host has joined as {names}; choose one with --name")
    for path in paths:
        try:
            return Joining(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise BootstrapError(f"{path} cannot be read; join again: {error}") from error
    return None


def redis_url_of(joining: Joining, data_dir: Path) -> str:
    if not joining.redis_url.startswith("rediss://"):
        return joining.redis_url
    if not joining.certificate:
        return f"{joining.redis_url}?ssl_cert_reqs=required&ssl_check_hostname=true"
    # That certificate alone, with any host name.
    path = _certificate_path(joining, data_dir)
    return (
        f"{joining.redis_url}?ssl_cert_reqs=required&ssl_check_hostname=false&ssl_ca_certs={path}"
    )


def _certificate_path(joining: Joining, data_dir: Path) -> Path:
    return (data_dir / JOINED / f"{joining.neuron}.pem").absolute()
