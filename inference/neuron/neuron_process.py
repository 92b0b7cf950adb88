"""The neuron's process and its Celery worker, from its environment to its exit code.

    SIGTERM ─▶ leave (finishes running requests, refuses new ones, at most HELEXA_NEURON_DRAIN_S)
                 └─ second signal, or the name is lost ─▶ stop (engines end) ─▶ the process ends

Celery's own handlers receive the signals until its worker has ended, then ours do.

The worker runs its tasks in this process and one after another (the solo pool): they act on
replicas that live here, and two drains at once would let a cancel overtake its submit.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.signals import setup_logging, worker_shutting_down
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from inference.logs import configure_logging
from inference.neuron.device_sampler import Devices, DeviceSampler
from inference.neuron.loads.watch import load_stall_limit_s
from inference.neuron.name_lease import (
    InvitationVoidError,
    NameHeldError,
    PreviousInstance,
    RedisUntrustedError,
    connect,
)
from inference.neuron.replicas.engine_process import (
    engine_command,
    is_own_engine,
    silence_limit_s,
)
from inference.neuron.service import NeuronService
from inference.protocol import keys
from inference.protocol.joining import celery_broker_url, celery_ssl_options
from inference.protocol.load import LoadSpec
from inference.protocol.neuron_tasks import DeleteSpec, PullSpec
from inference.settings.neuron import (
    DEVICE_SOURCE,
    LOG_BODIES,
    MEMORY_LIMIT,
    NEURON_DRAIN_S,
    STAGE_LISTEN,
    LoggedBodies,
)
from inference.settings.setting import EXIT_MISCONFIGURED, SettingError
from inference.settings.storage import DATA_DIR, REDIS_STALL_S, REDIS_URL
from inference.settings.table import check_settings
from inference.supervised_threads import SupervisedThread

log = logging.getLogger("inference.neuron")

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
SWITCH_INTERVAL_S = 0.0005
"""A thread that renders a long conversation keeps the interpreter for so long. A request's first
token passes through a dozen threads: at Python's 5 ms that is 50 ms.
"""
EXIT_NAME_HELD = 1


def run(name: str, *, expects_load: bool = False) -> int:
    try:
        check_settings(os.environ)
        configure_logging("neuron")
    except SettingError as error:
        print(f"neuron: {error}", file=sys.stderr)
        return EXIT_MISCONFIGURED
    # Celery does not set up its own logging if this signal has a receiver.
    setup_logging.connect(lambda **_: None, weak=False)
    # One prompt at a time is tokenized: a pool of threads for batches would only take cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        data_dir = _made_data_dir()
        devices = _devices()
        stage_host = _stage_host()
    except SettingError as error:
        log.critical("%s", error)
        return EXIT_MISCONFIGURED
    shutdown = Shutdown(limit_s=NEURON_DRAIN_S.read(os.environ))
    # From the environment alone: everybody on this machine can read a command line.
    redis_url = REDIS_URL.read(os.environ) or DEFAULT_REDIS_URL
    command = engine_command(os.environ)
    service = NeuronService(
        name=name,
        client=connect(redis_url),
        engine_command=command,
        checks_files=is_own_engine(command),
        discovery=devices,
        silence_limit_s=silence_limit_s(os.environ),
        load_stall_limit_s=load_stall_limit_s(os.environ),
        stall_limit_s=REDIS_STALL_S.read(os.environ),
        cache_dir=data_dir / "models",
        on_name_lost=shutdown.name_is_lost,
        bodies=_logged_bodies(),
        memory_limits=MEMORY_LIMIT.read(os.environ),
        stage_host=stage_host,
    )
    if expects_load:
        service.engine_starts.start_ahead()
        _end_it_with_this_process(service)
    try:
        service.lease.acquire(PreviousInstance(data_dir, name))
    except NameHeldError as error:
        log.critical("%s", error)
        return EXIT_NAME_HELD
    except (RedisUntrustedError, InvitationVoidError) as error:
        log.critical("%s", error)
        return EXIT_MISCONFIGURED
    app = create_app(name=name, redis_url=redis_url)
    _register_tasks(app, service)
    worker = _create_worker(app, name=name)
    worker_shutting_down.connect(shutdown.begin, weak=False)
    shutdown.watch(service)
    service.start()
    log.info("neuron %s is up (epoch %s)", name, service.epoch)
    worker.start()
    # Celery's worker calls an interrupt a failure.
    exit_code = 0 if shutdown.is_asked_for else int(worker.exitcode or 0)
    shutdown.finish()
    return EXIT_NAME_LOST if shutdown.is_name_lost else exit_code


def _end_it_with_this_process(service: NeuronService) -> None:
    """An engine that still imports its libraries would notice only seconds later that this process
    is gone."""

    def leave(number: int, _frame: object) -> None:
        service.engine_starts.close()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def _devices() -> Devices:
    source = DEVICE_SOURCE.read(os.environ)
    if source is None:
        return DeviceSampler()
    try:
        devices: Devices = pkgutil.resolve_name(source)()
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
        raise SettingError(f"{DEVICE_SOURCE.name}={source}: {error}") from error
    return devices


def _stage_host() -> str:
    listen = STAGE_LISTEN.read(os.environ)
    if listen is None:
        return ""
    failure: OSError | None = None
    for port in listen.ports:
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            socket.create_server((listen.host, port), family=family).close()
            return listen.host
        except OSError as error:
            failure = error
    raise SettingError(
        f"{STAGE_LISTEN.name}: nothing can listen on {listen.host} here: {failure}. It has to be "
        "an address of this host, and one of its ports has to be free"
    )


def _logged_bodies() -> LoggedBodies:
    bodies = LOG_BODIES.read(os.environ)
    if bodies != LOG_BODIES.default:
        log.warning("at debug level this log contains prompts and calls of: %s", bodies)
    return bodies


def _made_data_dir() -> Path:
    data_dir = (DATA_DIR.read(os.environ) or Path("var")).resolve()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the data directory {data_dir} cannot be made: {error.strerror}; "
            f"set {DATA_DIR.name} to another one"
        ) from None
    os.environ[DATA_DIR.name] = str(data_dir)
    return data_dir


EXIT_TIMEOUT_S = 4.5
"""A Celery worker that waits for an absent Redis does not end."""
EXIT_NAME_LOST = 1


class Shutdown:
    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._service: NeuronService | None = None
        self._num_signals = 0
        self._begun = threading.Event()
        self._force = threading.Event()
        self._worker_has_ended = threading.Event()
        self._thread = SupervisedThread(
            self._run, name="ending", restarts=False, on_broken=lambda _: self._leave_at_once()
        )
        self.is_name_lost = False

    def watch(self, service: NeuronService) -> None:
        self._service = service
        self._thread.start()

    def begin(self, *_: object, **__: object) -> None:
        self._num_signals += 1
        if self._num_signals <= 2:  # each event once: a handler may interrupt itself
            (self._begun, self._force)[self._num_signals - 1].set()

    @property
    def is_asked_for(self) -> bool:
        return self._begun.is_set()

    def name_is_lost(self) -> None:
        """Celery's worker ends only by a signal."""
        self.is_name_lost = True
        self._force.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> None:
        """Call once Celery's worker has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.begin)
        self._worker_has_ended.set()
        if not self.is_asked_for:
            self.begin()
        self._thread.join()

    def _run(self) -> None:
        assert self._service is not None
        self._begun.wait()
        if self._limit_s > 0:
            self._service.leave(self._limit_s, self._force)
        self._service.stop()
        if not self._worker_has_ended.wait(EXIT_TIMEOUT_S):
            log.warning("the worker did not end in time; leaving it")
            self._leave_at_once()

    def _leave_at_once(self) -> None:
        os._exit(EXIT_NAME_LOST if self.is_name_lost else 0)


PREFETCH_MULTIPLIER = 4
"""A short task, or a load, must not wait behind a round trip each."""


RECONNECT_INTERVAL_S = 0.5


class ReconnectingConsumer(Consumer):  # type: ignore[misc]
    """Celery's own consumer waits up to half a minute between attempts, in which no model can be
    loaded."""

    def ensure_connected(self, connection: Any) -> Any:
        is_first = True

        def report(error: Exception, interval_s: float) -> None:
            nonlocal is_first
            if is_first:
                log.error("the task queue is offline: %s; waiting for it", error)
            is_first = False

        return connection.ensure_connection(
            report,
            interval_start=RECONNECT_INTERVAL_S,
            interval_step=0,
            interval_max=RECONNECT_INTERVAL_S,
            callback=maybe_shutdown,
        )


def create_app(*, name: str, redis_url: str) -> Celery:
    # fixups: Celery would import Django wherever DJANGO_SETTINGS_MODULE happens to be set.
    app = Celery("neuron", broker=celery_broker_url(redis_url), fixups=[], set_as_current=False)
    app.conf.update(
        task_default_queue=keys.neuron_queue(name),
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=PREFETCH_MULTIPLIER,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_consumer=ReconnectingConsumer,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_use_ssl=celery_ssl_options(redis_url),
        broker_transport_options={
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
            # A task is acknowledged when it is popped: kombu's bookkeeping of unacknowledged ones
            # needs scripts, which neurons may not run, and would redeliver a load an hour late.
            "ack_emulation": False,
        },
        enable_utc=True,
    )
    return app


def _create_worker(app: Celery, *, name: str) -> Any:
    # Root in a container is ordinary, and messages are JSON: none can carry code.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = app.Worker(
        hostname=f"neuron@{name}",
        pool="solo",
        concurrency=1,
        queues=[keys.neuron_queue(name)],
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    # The worker has just turned them on: each lost connection would warn of a change in Celery 6.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    return worker


def _register_tasks(app: Celery, service: NeuronService) -> None:
    def take(spec_type: type[Any], call: Callable[[Any], None]) -> Callable[..., None]:
        def task(spec: dict[str, Any]) -> None:
            try:
                call(msgspec.convert(spec, spec_type))
            except msgspec.ValidationError as error:
                log.error("the %s of a task is not understood: %s", spec_type.__name__, error)

        return task

    tasks = {
        keys.TASK_LOAD_MODEL: take(LoadSpec, service.load_model),
        keys.TASK_UNLOAD_MODEL: service.unload_model,
        keys.TASK_SLEEP_MODEL: service.sleep_model,
        keys.TASK_RELEASE_STAGES: service.release_stages,
        keys.TASK_DROP_ADAPTER: service.drop_adapter,
        keys.TASK_DRAIN_INBOX: service.drain_inbox,
        keys.TASK_PULL_MODEL: take(PullSpec, service.downloads.pull),
        keys.TASK_CANCEL_PULL: service.downloads.cancel,
        keys.TASK_DELETE_CACHED: take(DeleteSpec, service.downloads.delete),
        keys.TASK_TELL_LOG: service.logs.send,
    }
    for name, task in tasks.items():
        app.task(name=name)(task)
