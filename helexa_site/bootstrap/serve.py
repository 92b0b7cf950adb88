"""``manage.py serve``: everything, on this machine, until a signal.

    claim the data directory ─▶ Redis ─▶ neuron ─▶ database ─▶ control, gateway ─▶ the model answers

A process starts as soon as what it needs is there; the slow ones start first.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

from helexa_site.bootstrap import readiness
from helexa_site.bootstrap.arguments import ServeOptions, base_url, is_loopback
from helexa_site.bootstrap.children import control_spec, gateway_spec, neuron_spec, redis_spec
from helexa_site.bootstrap.console import say, say_line
from helexa_site.bootstrap.data_directory import (
    DataDirectory,
    claimed_data_directory,
    ensure_secret_key,
)
from helexa_site.bootstrap.errors import BootstrapError, PortInUseError
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)
from helexa_site.bootstrap.supervisor import Supervisor
from helexa_site.config import Config, ConfigError, read_config

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GIVEN_REDIS_TIMEOUT_S = 5.0


class StopRequested(BaseException):
    """A signal asked for the end. Not an ``Exception``: no loop on the way may swallow it."""


def serve(options: ServeOptions) -> int:
    """Run until a signal, then stop every child. Returns the exit code.

    Raises ``BootstrapError`` with one line when it cannot start.
    """
    _stop_on_signals()
    try:
        config = _configure(options)
        with claimed_data_directory(config.data_dir) as data:
            _check_port(options.host, options.port)
            say("data", str(data.path))
            with (
                Guardian(inherit=[data.lock_fd]) as guardian,
                Supervisor(logs_dir=data.logs_dir, guardian=guardian) as supervisor,
            ):
                _run(options, config, data, supervisor)
    except StopRequested:
        say("stopped", "nothing is left running")
        return 0
    return 0


def _stop_on_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for ignored in STOP_SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        say("stopping", f"{signal.Signals(number).name}: draining and stopping every process")
        raise StopRequested

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def _configure(options: ServeOptions) -> Config:
    """What this process and its children read from the environment from here on."""
    if options.data_dir is not None:
        os.environ["HELEXA_DATA_DIR"] = str(options.data_dir.absolute())
    try:
        return read_config()
    except (ConfigError, OSError) as error:
        raise BootstrapError(str(error)) from error


def _check_port(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use; stop what listens there, "
                "or choose another with --port"
            ) from error
        raise PortInUseError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def _run(
    options: ServeOptions, config: Config, data: DataDirectory, supervisor: Supervisor
) -> None:
    ensure_secret_key(data.path)
    redis_url = os.environ.get("REDIS_URL")
    if redis_url:
        wait_for_redis(redis_url, timeout_s=GIVEN_REDIS_TIMEOUT_S)
        say("redis", "the one in REDIS_URL answers")
    else:
        redis_url = _start_private_redis(data, supervisor)
    os.environ["REDIS_URL"] = redis_url
    os.environ["HELEXA_DATA_DIR"] = str(data.path)
    supervisor.start(neuron_spec())
    say("neuron", "starting")

    # Django reads its settings when it is imported, which is now.
    from helexa_site.bootstrap.database import prepare_database

    password = prepare_database(with_model=options.with_model)
    supervisor.start(control_spec())
    supervisor.start(gateway_spec(options.host, options.port))
    say("gateway", f"starting on {options.host} port {options.port}")
    if not is_loopback(options.host) and not (config.api_key or config.allow_anonymous):
        say("gateway", "clients on other machines are refused: set HELEXA_API_KEY to a key for")
        say("", "them, or HELEXA_ALLOW_ANONYMOUS=1 to serve anybody who reaches the port")
    _announce(options, redis_url, password)
    threading.Event().wait()


def _start_private_redis(data: DataDirectory, supervisor: Supervisor) -> str:
    server = configure_private_redis(data.redis_dir)
    supervisor.on_stopped(lambda: discard_private_redis(server, data.redis_dir))
    child = supervisor.start(redis_spec(server))
    wait_for_redis(server.url, is_alive=lambda: child.num_failures == 0)
    say("redis", f"private, started ({Path(server.command[0]).name})")
    return server.url


def _announce(options: ServeOptions, redis_url: str, password: str | None) -> None:
    """Wait until requests are answered, then say so. The login is shown whatever happens: it is
    stored nowhere in the clear."""
    url = base_url(options.host, options.port)
    try:
        readiness.wait_for_gateway(url)
        if options.with_model:
            readiness.wait_for_answer(url, redis_url)
        say_line(f"ready: {url}")
    finally:
        say("admin", f"{url}/admin/")
        if password is not None:
            say("login", f"admin, password {password} (shown this once)")
    if options.with_model:
        say("try", readiness.curl_line(url))
