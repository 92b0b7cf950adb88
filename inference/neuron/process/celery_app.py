"""The neuron's Celery application, worker and tasks. No Django: a GPU host needs one URL.

The worker runs its tasks in this process and one after another (the solo pool), for two reasons:
they act on replicas that live here, and two drains at once would let a cancel overtake its submit.
That costs nothing, because no task waits: a load continues in its replica's thread and is reported
by heartbeats.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from inference.neuron.service import NeuronService
from inference.protocol import keys
from inference.protocol.joining import celery_broker_url, celery_ssl_options
from inference.protocol.load import LoadSpec
from inference.protocol.neuron_tasks import DeleteSpec, PullSpec

log = logging.getLogger(__name__)


PREFETCH_MULTIPLIER = 4
"""Tasks fetched ahead: they are short, and a load must not wait behind a round trip each."""


RECONNECT_INTERVAL_S = 0.5


class ReconnectingConsumer(Consumer):  # type: ignore[misc]
    """Retries an absent Redis twice a second without a limit, and logs it once. Celery's own
    consumer waits up to half a minute between attempts, in which no model can be loaded."""

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


def create_worker(app: Celery, *, name: str) -> Any:
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


def register_tasks(app: Celery, service: NeuronService) -> None:
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
