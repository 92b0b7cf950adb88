"""The control worker's Celery app: its settings, its beat and nothing else.

Run ``celery -A helexa_site.celery --quiet worker -Q control --pool solo --without-gossip
--without-mingle --without-heartbeat``. Beat is a thread of that worker, not ``-B``'s child
process: it cannot outlive the worker, and with the schedule in memory there is no schedule file
to corrupt. A tick expires after one period, so ticks never pile up behind a slow one.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from celery import Celery, bootsteps
from celery.beat import EmbeddedService, Scheduler, SchedulingError
from celery.platforms import SecurityWarning
from celery.signals import celeryd_init, setup_logging

from helexa_site.config import read_config
from helexa_site.secret_key import SecretKeyError, secret_key
from inference.logs.setup import configure_logging
from inference.protocol.keys import CONTROL_QUEUE
from inference.protocol.redis_url import celery_broker_url

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")

logger = logging.getLogger(__name__)

TASK_RECORD_HEARTBEATS = "control.record_heartbeats"
TASK_RECONCILE = "control.reconcile"
TASK_FORGET_RESPONSES = "control.forget_responses"
TASK_SETTLE_ORPHANS = "control.settle_orphans"
TASK_FORGET_LEDGER_ENTRIES = "control.forget_ledger_entries"
RECORD_HEARTBEATS_EVERY_S = 1.0
RECONCILE_EVERY_S = 1.0
FORGET_RESPONSES_EVERY_S = 600.0
SETTLE_ORPHANS_EVERY_S = 5.0
FORGET_LEDGER_ENTRIES_EVERY_S = 600.0


class TickScheduler(Scheduler):  # type: ignore[misc]
    """Celery's own in-memory scheduler, but a tick that Redis did not take is one line in the log
    and not three stack traces a second: the next tick stands for it."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            logger.warning("%s", error)


class BeatThread(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs beat inside the worker, from start to stop."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.service: Any = None

    def start(self, worker: Any) -> None:
        self.service = EmbeddedService(worker.app, thread=True, scheduler_cls=TickScheduler)
        self.service.start()

    def stop(self, worker: Any) -> None:
        if self.service is not None:
            self.service.stop()


def log_as_control(**_: Any) -> None:
    configure_logging("control")


def ensure_secret_key(**_: Any) -> None:
    try:
        secret_key(read_config())
    except SecretKeyError as error:
        raise SystemExit(f"control: {error}") from error


celeryd_init.connect(ensure_secret_key, weak=False)
# Celery leaves its own way of logging where somebody answers this.
setup_logging.connect(log_as_control, weak=False)


def _tick(task: str, every_s: float) -> dict[str, Any]:
    return {"task": task, "schedule": every_s, "options": {"expires": every_s}}


# Root in a container is ordinary, and messages are JSON: none can carry code.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("control")
app.conf.update(
    broker_url=celery_broker_url(read_config().redis_url),
    broker_connection_retry=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"socket_connect_timeout": 5, "socket_timeout": 30},
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_default_queue=CONTROL_QUEUE,
    task_publish_retry=False,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    timezone="UTC",
    beat_schedule={
        "record heartbeats": _tick(TASK_RECORD_HEARTBEATS, RECORD_HEARTBEATS_EVERY_S),
        "reconcile": _tick(TASK_RECONCILE, RECONCILE_EVERY_S),
        "forget responses": _tick(TASK_FORGET_RESPONSES, FORGET_RESPONSES_EVERY_S),
        "settle orphans": _tick(TASK_SETTLE_ORPHANS, SETTLE_ORPHANS_EVERY_S),
        "forget ledger entries": _tick(TASK_FORGET_LEDGER_ENTRIES, FORGET_LEDGER_ENTRIES_EVERY_S),
    },
)
app.steps["worker"].add(BeatThread)
app.autodiscover_tasks(["fleet", "inference.conversations", "metering"])
