"""The data directory: all of serve's files, locked by one serve at a time; its id and secret key.

serve.lock    held (flock) by serve and its guardian; names the holder in plain text
serve.json    where it answers, and its own key; mode 0600
secret_key    signs sessions; mode 0600
redis/        the private Redis's configuration and socket, and its address for invited hosts
logs/         one file for the control and one for each child
ledger-spool/ requests whose bills the database has yet to take, a file a gateway
models/       downloaded and converted model files (the neuron's)
neurons/      of an invited host: <name>.join has address and password of its Redis, mode 0600,
              <name>.pem the certificate of that Redis, where it is signed by itself
helexa.sqlite3

Gateways send its id with ``/health`` and ``/metrics``, so that commands on the same machine do not
mistake another instance's port for their own. It is no secret, and a copied directory gets another
one.

The key signs sessions and digests API keys: HELEXA_SECRET_KEY, else one that is made once and
stored. Every gateway of a fleet needs the same. A process that signs nothing never reads it.

Standard library only at import: flags are checked before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helexa_site.addresses import reached_at
from helexa_site.bootstrap.console import BootstrapError
from helexa_site.config import SECRET_KEY_FILE, Config
from helexa_site.whole_file import keep_once, try_lock, write_whole
from inference.protocol.joining import Joining
from inference.settings.setting import SettingError

LOCK_FILE = "serve.lock"
RUNNING_FILE = "serve.json"
JOINED = "neurons"
SHARE_FILE = "redis/share.json"
INSTANCE_HEADER = "x-helexa-instance"
INSTANCE_CHARACTERS = 32
SECRET_KEY_BYTES = 48
ORPHANED_LOCK_WAIT_S = 2.0
"""After a serve is killed, its guardian holds the lock for an instant."""
POLL_INTERVAL_S = 0.05
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def claimed_data_directory(path: Path) -> Iterator[int]:
    """Holds the lock within a ``with``; each process that inherits the yielded descriptor holds it,
    too. Raises ``BootstrapError``, also where the body fills the disk."""
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
    """``name=None``: the only one. Raises ``BootstrapError`` where several could be meant or the
    file cannot be read."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def is_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def address(self) -> str:
        host = next(iter(reached_at(self.host)), "127.0.0.1")
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def directives(self) -> list[str]:
        listen = "*" if self.host in ("", "0.0.0.0") else self.host
        if not self.is_tls:
            return [f"bind {listen}", f"port {self.port}"]
        return [
            f"bind {listen}",
            "port 0",
            f"tls-port {self.port}",
            f'tls-cert-file "{self.tls_cert}"',
            f'tls-key-file "{self.tls_key}"',
            "tls-auth-clients no",
        ]

    def certificate(self) -> str:
        """PEM of a self-signed certificate, for invitations; else empty. Raises
        ``BootstrapError``."""
        if self.tls_cert is None:
            return ""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(self.tls_cert)
            found = context.get_ca_certs()
            text = self.tls_cert.read_text()
        except (OSError, ssl.SSLError, ValueError) as error:
            raise BootstrapError(f"cannot read the certificate {self.tls_cert}: {error}") from error
        is_its_own = len(found) == 1 and found[0].get("subject") == found[0].get("issuer")
        return text if is_its_own else ""


def keep_share(data_dir: Path, share: Share) -> None:
    """Raises ``OSError``."""
    write_whole(data_dir / SHARE_FILE, json.dumps({"host": share.host, "port": share.port}))


def forget_share(data_dir: Path) -> None:
    """Raises ``OSError``."""
    (data_dir / SHARE_FILE).unlink(missing_ok=True)


def find_share(data_dir: Path) -> Share | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((data_dir / SHARE_FILE).read_text())
        return Share(host=str(found["host"]), port=int(found["port"]))
    return None


def instance_id(data_dir: Path) -> str | None:
    try:
        found = data_dir.stat()
    except OSError:
        return None
    identity = f"{found.st_dev}:{found.st_ino}"
    return hashlib.sha256(identity.encode()).hexdigest()[:INSTANCE_CHARACTERS]


class SecretKeyError(SettingError):
    pass


def secret_key(config: Config) -> str:
    """The first reader creates the data directory's. Raises ``SecretKeyError``."""
    if config.secret_key is not None:
        return config.secret_key
    path = config.data_dir / SECRET_KEY_FILE
    try:
        if not path.exists():
            keep_once(path, secrets.token_urlsafe(SECRET_KEY_BYTES))
        key = path.read_text().strip()
    except OSError as error:
        raise SecretKeyError(
            f"no key to sign with: {path} cannot be kept ({error.strerror}); "
            "set HELEXA_SECRET_KEY, the same for every gateway"
        ) from error
    if not key:
        raise SecretKeyError(f"{path} is empty: put the key back, or remove the file for a new one")
    return key
