"""``manage.py serve``: everything, on this machine, until a signal.

    main thread     claim the data directory ─▶ wait for a signal or a failure ─▶ stop every child
    start thread    Redis ─▶ neuron ─▶ database ─▶ control, gateway ─▶ the model answers

A process starts as soon as its dependencies run; the slow ones start first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shlex
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from helexa_site.bootstrap.arguments import ServeOptions, base_url, is_loopback, shown_urls
from helexa_site.bootstrap.children import (
    control_spec,
    gateway_spec,
    neuron_spec,
    redis_spec,
)
from helexa_site.bootstrap.console import print_line, print_step
from helexa_site.bootstrap.data_directory import (
    DataDirectory,
    RunningServe,
    claimed_data_directory,
    forget_running,
    write_running,
)
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    PRIVATE,
    configure_private_redis,
    discard_private_redis,
    find_redis_server,
    wait_for_redis,
)
from helexa_site.bootstrap.sharing import Share, ensure_tls, find_share, try_to_listen
from helexa_site.bootstrap.supervisor import Supervisor
from helexa_site.config import Config, read_config
from helexa_site.instance import SecretKeyError, secret_key
from helexa_site.program import default_data_dir, pasteable_program, program
from inference.garbage import uncollected
from inference.logs.setup import configure_logging
from inference.settings.storage import DATABASE_URL, REDIS_URL

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED = 0
"""In place of a signal's number."""


class Shutdown:
    """Waits for a signal, or for another thread's failure. Made in the main thread, for the rest of
    the process.

    Python runs a signal's handler in the main thread without waking it: the system may deliver the
    signal to any thread. The byte in the socket wakes it; the handler itself does nothing.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def report_failure_of(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            self._error = error
            self._writer.send(bytes([FAILED]))

    def wait(self) -> signal.Signals:
        """Raises the error of a failed step."""
        while (number := self._reader.recv(1)[0]) not in STOP_SIGNALS:
            if number == FAILED and self._error is not None:
                raise self._error
        return signal.Signals(number)


START_GRACE_S = 2.0
"""How long a stopped start may take to end. It ends with the children that it waits for; its own
work, migrating, is not waited for any longer."""


def serve(options: ServeOptions) -> int:
    """Runs until a signal, then stops every child. Returns the exit code.

    Raises ``BootstrapError`` with one line when it cannot start.
    """
    shutdown = Shutdown()
    config = _configure(options)
    with claimed_data_directory(config.data_dir) as data:
        check_ports(options)
        print_step("data", str(data.path))
        if not REDIS_URL.read(os.environ):
            options = with_kept_share(options, data.redis_dir)
        with (
            Guardian(inherit=[data.lock_fd]) as guardian,
            Supervisor(logs_dir=data.logs_dir, guardian=guardian) as supervisor,
        ):
            step = partial(start, options, config, data, supervisor)
            starting = threading.Thread(
                target=shutdown.report_failure_of, args=(step,), name="start", daemon=True
            )
            starting.start()
            number = shutdown.wait()
            print_step(
                "stopping", f"{number.name}: open answers are finished first; again: nothing is"
            )
            threading.Thread(
                target=_kill_at_second_signal, args=(shutdown, supervisor), daemon=True
            ).start()
        starting.join(START_GRACE_S)
    print_step("stopped", "nothing is left running")
    return 0


def _kill_at_second_signal(shutdown: Shutdown, supervisor: Supervisor) -> None:
    with contextlib.suppress(BaseException):  # the start's error was raised by the wait
        number = shutdown.wait()
        print_step("stopping", f"{number.name} again: ending every process at once")
        supervisor.kill()


def _configure(options: ServeOptions) -> Config:
    if options.data_dir is not None:
        os.environ["HELEXA_DATA_DIR"] = str(options.data_dir.absolute())
    config = read_config()
    configure_logging("serve", level=logging.WARNING)
    return config


def with_kept_share(options: ServeOptions, redis_dir: Path) -> ServeOptions:
    """``--share`` takes precedence. An unavailable address is left out, with a line on the
    terminal: the rest of serve does not need it."""
    share = find_share(redis_dir) if options.share is None else None
    if share is None:
        return options
    if error := try_to_listen(share.host, share.port):
        reason = error.strerror or str(error)
        print_step("share", f"not at {share.address}, as the page has it: {reason}")
        return options
    return replace(options, share=share)


def check_ports(options: ServeOptions) -> None:
    """Raises ``BootstrapError`` early: a process that starts later would only report its exit."""
    _check_port(options.host, options.port, "--port")
    if options.share is not None:
        _check_port(options.share.host or "0.0.0.0", options.share.port, "--share")


def _check_port(host: str, port: int, flag: str) -> None:
    error = try_to_listen(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise BootstrapError(
            f"port {port} on {host} is in use; stop what listens there, "
            f"or choose another with {flag}"
        )
    raise BootstrapError(f"cannot listen on {host} port {port}: {error.strerror}")


GIVEN_REDIS_TIMEOUT_S = 5.0


def start(
    options: ServeOptions, config: Config, data: DataDirectory, supervisor: Supervisor
) -> None:
    """Returns when requests are answered. Raises ``BootstrapError``, and ``StoppingError`` when the
    supervisor was stopped meanwhile."""
    _ensure_secret_key(config)
    redis_url = REDIS_URL.read(os.environ)
    if redis_url:
        wait_for_redis(redis_url, timeout_s=GIVEN_REDIS_TIMEOUT_S)
        print_step("redis", "the one in REDIS_URL answers")
    else:
        redis_url = _start_private_redis(data, supervisor, options.share)
    os.environ["REDIS_URL"] = redis_url
    os.environ["HELEXA_DATA_DIR"] = str(data.path)
    if options.with_neuron:
        supervisor.start(neuron_spec(expects_load=options.with_model))
        print_step("neuron", "starting")

    # Django reads its settings when it is imported, which is now, while the neuron starts.
    with uncollected():
        from helexa_site.bootstrap import readiness
        from helexa_site.bootstrap.database import has_keys, prepare_database, prepare_fleet

    password = prepare_database(with_model=options.with_model)
    url = base_url(options.host, options.port)
    shown_url, *more_urls = shown_urls(options.host, options.port)
    try:
        prepare_fleet(with_neuron=options.with_neuron, share=options.share)
        supervisor.start(control_spec())
        _start_gateway(options, config, supervisor)
        _write_serve_file(url, data, supervisor)
        readiness.wait_for_gateway(
            url, data.path, supervisor.ensure_running, needs_neuron=options.with_neuron
        )
        if has_model := options.with_model and options.with_neuron:
            has_model = wait_for_default_model(url, supervisor.ensure_running)
        print_line(f"ready: {shown_url}")
        if more_urls:
            print_step("gateway", f"also at {', '.join(more_urls)}")
    finally:
        # In any case: the password is stored nowhere in the clear.
        print_step("admin", f"{shown_url}/admin/")
        if password is not None:
            print_step("login", f"admin, password {password} (shown this once)")
    if not has_keys():
        from inference.gateway.request.identify import allows_anonymous  # needs Django's settings

        is_open = allows_anonymous(replace(config, listen_host=options.host))
        for line in first_key_lines(
            data.path,
            pasteable_program(),
            is_open=is_open,
            has_database_url=bool(DATABASE_URL.read(os.environ)),
        ):
            print_step("keys", line)
    if options.share is not None:
        print_step(
            "share", f"{options.share.address}, for hosts that `{program()} neurons invite` invites"
        )
    if has_model:
        print_step("try", readiness.curl_line(shown_url))


def wait_for_default_model(url: str, ensure_wanted: Callable[[], None]) -> bool:
    """Waits until the default model answers, if it is loaded at start and not by its first request.
    Returns whether the catalogue offers it at all."""
    from helexa_site.bootstrap import readiness
    from helexa_site.bootstrap.database import default_model_entry

    name, entry = readiness.DEFAULT_MODEL, default_model_entry()
    if entry is None:
        print_step("model", f"{name} is not offered: it was disabled or deleted in the catalogue")
    elif entry.is_kept_loaded:
        readiness.wait_for_answer(url, entry, ensure_wanted)
    else:
        print_step("model", f"{name} is not pinned: it is loaded on request")
    return entry is not None


def _ensure_secret_key(config: Config) -> None:
    try:
        secret_key(config)
    except SecretKeyError as error:
        raise BootstrapError(str(error)) from error


def _start_private_redis(data: DataDirectory, supervisor: Supervisor, share: Share | None) -> str:
    if share is not None and share.is_tls:
        share.certificate()
        ensure_tls(find_redis_server())
    listening = PRIVATE if share is None else share.directives()
    server = configure_private_redis(data.redis_dir, listening=listening)
    supervisor.on_stopped(lambda: discard_private_redis(server, data.redis_dir))
    child = supervisor.start(redis_spec(server))
    wait_for_redis(
        server.url, is_alive=lambda: child.num_failures == 0 and not supervisor.is_stopping
    )
    print_step("redis", f"private, started ({Path(server.command[0]).name})")
    return server.url


def _write_serve_file(url: str, data: DataDirectory, supervisor: Supervisor) -> None:
    key = os.environ["HELEXA_SERVE_KEY"]
    running = RunningServe(url=url, key=key, process_id=os.getpid())
    write_running(data.path, running)
    supervisor.on_stopped(lambda: forget_running(data.path))


def _start_gateway(options: ServeOptions, config: Config, supervisor: Supervisor) -> None:
    # Ours alone, for polling the gateway on any address.
    os.environ.setdefault("HELEXA_SERVE_KEY", secrets.token_urlsafe(32))
    supervisor.start(gateway_spec(options.host, options.port))
    print_step("gateway", f"starting on {options.host} port {options.port}")
    if not is_loopback(options.host) and not (config.api_key or config.allow_anonymous):
        print_step(
            "gateway", "clients need an API key, or HELEXA_ALLOW_ANONYMOUS=1 serves anybody who"
        )
        print_step("", "reaches the port")


FIRST_ACCOUNT = "team"


def first_key_lines(
    data_dir: Path, program: str, *, is_open: bool, has_database_url: bool
) -> list[str]:
    """``is_open``: clients are served without one. ``program`` begins a command in a shell.
    ``has_database_url``: DATABASE_URL names the database, with a password, and is not printed.

    The command works in ``serve``'s directory and environment.
    """
    if data_dir != default_data_dir():
        program = f"HELEXA_DATA_DIR={shlex.quote(str(data_dir))} {program}"
    who = "clients may have one" if is_open else "clients need one"
    where = " where DATABASE_URL is set as it is here" if has_database_url else ""
    return [
        f"there is none yet; {who}. To make one{where}:",
        f"{program} accounts create {FIRST_ACCOUNT} && {program} keys create {FIRST_ACCOUNT}",
    ]
