"""``manage.py serve``: everything, on this machine, until a signal.

    main thread     claim the data directory ─▶ wait for a signal or a failure ─▶ stop every child
    start thread    Redis ─▶ neuron ─▶ database ─▶ control, gateway ─▶ the model answers
    ticks thread    the control: see ``helexa_site.celery``

A process starts as soon as its dependencies run; the slow ones start first. They stop in the
reverse order, without open answers in less than 10 s: the gateway drains while everything that its
answers need is still there, then the control, the neuron with its engines, and Redis.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from signal import Signals

from helexa_site.addresses import base_url, is_loopback, shown_urls, try_to_listen
from helexa_site.bootstrap.arguments import ServeOptions, default_neuron_name
from helexa_site.bootstrap.console import BootstrapError, print_line, print_step
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import (
    PRIVATE,
    PrivateRedis,
    configure_private_redis,
    discard_private_redis,
    ensure_tls,
    find_redis_server,
    wait_for_redis,
)
from helexa_site.bootstrap.supervisor import ChildSpec, LogFile, Supervisor
from helexa_site.config import Config, read_config
from helexa_site.data_directory import (
    RunningServe,
    SecretKeyError,
    Share,
    claimed_data_directory,
    find_share,
    forget_running,
    secret_key,
    write_running,
)
from helexa_site.program import default_data_dir, pasteable_program, program
from inference.environment import Role, child_environment, environment_for, forget_secrets
from inference.garbage import uncollected
from inference.logs import configure_logging, formatter_for
from inference.settings.gateway import DRAIN_SECONDS, SERVE_KEY
from inference.settings.neuron import NEURON_DRAIN_S
from inference.settings.storage import DATA_DIR, DATABASE_URL, REDIS_URL

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_POLL_S = 0.2
"""Python runs signal handlers in the main thread, which must not wait for longer than this."""
START_GRACE_S = 2.0
"""A stopped start ends with the children that it waits for; a migration is not waited for."""
GIVEN_REDIS_TIMEOUT_S = 5.0
GATEWAY_GRACE_S = 1.4
"""After its drain."""
CONTROL_GRACE_S, NEURON_GRACE_S, REDIS_GRACE_S = 4.0, 3.8, 0.5
FIRST_ACCOUNT = "team"

Events = SimpleQueue[Signals | BaseException]
"""Signals, and the start's error. A handler may interrupt a lock's holder: ``SimpleQueue.put`` is
reentrant."""


def redis_spec(server: PrivateRedis) -> ChildSpec:
    environment = environment_for(Role.OTHER, os.environ)
    return ChildSpec("redis", server.command, environment, REDIS_GRACE_S)


def neuron_spec(*, expects_load: bool = False) -> ChildSpec:
    words = ["inference.neuron", "--name", default_neuron_name()]
    words += ["--expects-load"] if expects_load else []
    # The gateway has ended its requests before the neuron is stopped.
    return _module(words, Role.NEURON, NEURON_GRACE_S, {NEURON_DRAIN_S.name: "0"})


def gateway_spec(host: str, port: int) -> ChildSpec:
    words = ["helexa_site", "gateway", "--host", host, "--port", str(port)]
    return _module(words, Role.GATEWAY, DRAIN_SECONDS.read(os.environ) + GATEWAY_GRACE_S)


def _module(
    words: list[str], role: Role, stop_grace_s: float, variables: Mapping[str, str] | None = None
) -> ChildSpec:
    environment = child_environment(role) | {"PYTHONUNBUFFERED": "1"} | dict(variables or {})
    return ChildSpec(role.name.lower(), (sys.executable, "-m", *words), environment, stop_grace_s)


class OwnControl:
    """The control in this process: a process of its own would take 60 MiB more. It drops secrets of
    other programs, because who makes a bench target names the variable with its key."""

    def __init__(self) -> None:
        forget_secrets(os.environ, but_of=Role.SERVE)
        from helexa_site.control import begun

        self._ticks = begun()

    def stop(self) -> None:
        """Takes ``CONTROL_GRACE_S`` at most; what still runs ends with the process."""
        stopping = threading.Thread(target=self._ticks.stop, daemon=True)
        stopping.start()
        stopping.join(CONTROL_GRACE_S)

    def kill(self) -> None:
        """Does nothing: threads end with the process."""


def _log(logs_dir: Path) -> None:
    configure_logging("serve")
    (console,) = logging.getLogger().handlers
    console.setLevel(logging.WARNING)
    file = LogFile(logs_dir / "control.log")
    file.setFormatter(formatter_for("control", os.environ))
    logging.getLogger().addHandler(file)


def serve(options: ServeOptions) -> int:
    """Returns the exit code after a signal. Raises ``BootstrapError`` when it cannot start."""
    events: Events = SimpleQueue()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: events.put(Signals(number)))
    if options.data_dir is not None:
        os.environ[DATA_DIR.name] = str(options.data_dir.absolute())
    config = read_config()
    with contextlib.ExitStack() as stack:
        lock_fd = stack.enter_context(claimed_data_directory(config.data_dir))
        _log(config.data_dir / "logs")
        check_ports(options)
        print_step("data", str(config.data_dir))
        private_redis = None
        if not REDIS_URL.read(os.environ):
            options = with_kept_share(options, config.data_dir)
            redis_dir = config.data_dir / "redis"
            listening = listening_directives(options.share)
            private_redis = configure_private_redis(redis_dir, listening=listening)
            stack.callback(discard_private_redis, private_redis, redis_dir)
        stack.callback(forget_running, config.data_dir)
        guardian = stack.enter_context(Guardian(inherit=[lock_fd]))
        supervisor = stack.enter_context(
            Supervisor(logs_dir=config.data_dir / "logs", guardian=guardian)
        )

        def start_and_report() -> None:
            try:
                start(options, config, private_redis, supervisor)
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                events.put(error)

        starting = threading.Thread(target=start_and_report, name="start", daemon=True)
        starting.start()
        _wait_and_stop(events, supervisor)
        starting.join(START_GRACE_S)
    print_step("stopped", "nothing is left running")
    return 0


def _wait_and_stop(events: Events, supervisor: Supervisor) -> None:
    stopping: threading.Thread | None = None
    while stopping is None or stopping.is_alive():
        try:
            event = events.get(timeout=SIGNAL_POLL_S)
        except Empty:
            continue
        if isinstance(event, Signals) and stopping is None:
            print_step(
                "stopping", f"{event.name}: open answers are finished first; again: nothing is"
            )
            stopping = threading.Thread(target=supervisor.stop, daemon=True)
            stopping.start()
        elif isinstance(event, Signals):
            print_step("stopping", f"{event.name} again: ending every process at once")
            supervisor.kill()
        elif stopping is None:  # later, the start may fail because its children end
            raise event


def with_kept_share(options: ServeOptions, data_dir: Path) -> ServeOptions:
    """``--share`` takes precedence. An unavailable address is left out, with a line."""
    share = find_share(data_dir) if options.share is None else None
    if share is None:
        return options
    if error := try_to_listen(share.host, share.port):
        reason = error.strerror or str(error)
        print_step("share", f"not at {share.address}, as the page has it: {reason}")
        return options
    return replace(options, share=share)


def check_ports(options: ServeOptions) -> None:
    """Raises ``BootstrapError`` early: a process that starts later would only report its exit."""
    ports = [(options.host, options.port, "--port")]
    if options.share is not None:
        ports.append((options.share.host, options.share.port, "--share"))
    for host, port, flag in ports:
        error = try_to_listen(host, port)
        if error is not None and error.errno == errno.EADDRINUSE:
            raise BootstrapError(
                f"port {port} on {host} is in use; stop what listens there, "
                f"or choose another with {flag}"
            )
        if error is not None:
            raise BootstrapError(f"cannot listen on {host} port {port}: {error.strerror}")


def listening_directives(share: Share | None) -> Sequence[str]:
    if share is None:
        return PRIVATE
    if share.is_tls:
        share.certificate()
        ensure_tls(find_redis_server())
    return share.directives()


def start(
    options: ServeOptions,
    config: Config,
    private_redis: PrivateRedis | None,
    supervisor: Supervisor,
) -> None:
    """Returns when requests are answered. Raises ``BootstrapError``, ``StoppingError``."""
    try:
        secret_key(config)
    except SecretKeyError as error:
        raise BootstrapError(str(error)) from error
    _start_redis(private_redis, supervisor)
    os.environ[DATA_DIR.name] = str(config.data_dir)
    if options.with_neuron:
        supervisor.start(neuron_spec(expects_load=options.with_model))
        print_step("neuron", "starting")

    # Django reads its settings when it is imported, which is now, while the neuron starts.
    with uncollected():
        from helexa_site.bootstrap import readiness

    password = readiness.prepare_database(with_model=options.with_model)
    url = base_url(options.host, options.port)
    shown_url, *more_urls = shown_urls(options.host, options.port)
    ensure_running = supervisor.ensure_running
    try:
        readiness.prepare_fleet(with_neuron=options.with_neuron, share=options.share)
        # Ours alone, for polling the gateway on any address.
        os.environ.setdefault(SERVE_KEY.name, secrets.token_urlsafe(32))
        gateway = gateway_spec(options.host, options.port)  # before the control forgets its secrets
        supervisor.add(OwnControl())
        _start_gateway(options, config, supervisor, url, gateway)
        readiness.wait_for_gateway(
            url, config.data_dir, ensure_running, needs_neuron=options.with_neuron
        )
        if has_model := options.with_model and options.with_neuron:
            has_model = readiness.wait_for_default_model(url, ensure_running)
        print_line(f"ready: {shown_url}")
        if more_urls:
            print_step("gateway", f"also at {', '.join(more_urls)}")
    finally:
        # In any case: the password is stored nowhere in the clear.
        print_step("admin", f"{shown_url}/admin/")
        if password is not None:
            print_step("login", f"admin, password {password} (shown this once)")
    curl_line = readiness.curl_line(shown_url, has_key=bool(config.api_key))
    _print_next_steps(options, config, curl_line if has_model else "")


def _start_redis(private_redis: PrivateRedis | None, supervisor: Supervisor) -> None:
    if private_redis is None:
        wait_for_redis(str(REDIS_URL.read(os.environ)), timeout_s=GIVEN_REDIS_TIMEOUT_S)
        print_step("redis", "the one in REDIS_URL answers")
        return
    child = supervisor.start(redis_spec(private_redis))
    wait_for_redis(
        private_redis.url,
        is_alive=lambda: child.num_failures == 0 and not supervisor.is_stopping,
    )
    print_step("redis", f"private, started ({Path(private_redis.command[0]).name})")
    os.environ[REDIS_URL.name] = private_redis.url


def _start_gateway(
    options: ServeOptions, config: Config, supervisor: Supervisor, url: str, gateway: ChildSpec
) -> None:
    supervisor.start(gateway)
    key = os.environ[SERVE_KEY.name]
    write_running(config.data_dir, RunningServe(url=url, key=key, process_id=os.getpid()))
    print_step("gateway", f"starting on {options.host} port {options.port}")
    if not is_loopback(options.host) and not (config.api_key or config.allow_anonymous):
        print_step("gateway", "clients need an API key, or HELEXA_ALLOW_ANONYMOUS=1 serves anybody")
        print_step("", "who reaches the port")


def _print_next_steps(options: ServeOptions, config: Config, curl_line: str) -> None:
    # These need Django's settings.
    from helexa_site.bootstrap.readiness import has_keys
    from inference.gateway.request.identify import allows_anonymous

    if not has_keys():
        lines = first_key_lines(
            config.data_dir,
            pasteable_program(),
            is_open=allows_anonymous(replace(config, listen_host=options.host)),
            has_database_url=bool(DATABASE_URL.read(os.environ)),
        )
        for line in lines:
            print_step("keys", line)
    if options.share is not None:
        print_step(
            "share", f"{options.share.address}, for hosts that `{program()} neurons invite` invites"
        )
    if curl_line:
        print_step("try", curl_line)


def first_key_lines(
    data_dir: Path, program: str, *, is_open: bool, has_database_url: bool
) -> list[str]:
    """``is_open``: clients are served without a key. DATABASE_URL is not printed: it has a
    password."""
    if data_dir != default_data_dir():
        program = f"HELEXA_DATA_DIR={shlex.quote(str(data_dir))} {program}"
    who = "clients may have one" if is_open else "clients need one"
    where = " where DATABASE_URL is set as it is here" if has_database_url else ""
    return [
        f"there is none yet; {who}. To make one{where}:",
        f"{program} accounts create {FIRST_ACCOUNT} && {program} keys create {FIRST_ACCOUNT}",
    ]
