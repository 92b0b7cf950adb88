"""The neuron's Celery application and worker. No Django: a GPU host needs one URL.

The worker runs its tasks in this process and one after another (the solo pool), for two reasons:
they act on replicas that live here, and two drains at once would let a cancel overtake its submit.
That costs nothing, because no task waits.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from inference.protocol.keys import neuron_queue
from inference.protocol.redis_url import celery_broker_url

PREFETCH_MULTIPLIER = 4
"""Tasks fetched ahead: they are short, and a load must not wait behind a round trip each."""


def create_app(*, name: str, redis_url: str) -> Celery:
    # fixups: Celery would import Django wherever DJANGO_SETTINGS_MODULE happens to be set.
    app = Celery("neuron", broker=celery_broker_url(redis_url), fixups=[], set_as_current=False)
    app.conf.update(
        task_default_queue=neuron_queue(name),
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=PREFETCH_MULTIPLIER,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"socket_connect_timeout": 2.0, "socket_keepalive": True},
        enable_utc=True,
    )
    return app


def create_worker(app: Celery, *, name: str) -> Any:
    """``start()`` on the result serves until SIGTERM or SIGINT."""
    return app.Worker(
        hostname=f"neuron@{name}",
        pool="solo",
        concurrency=1,
        queues=[neuron_queue(name)],
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
