"""The control's Celery app: its tasks, and the thread that runs them when they are due.

Any number of controls may run; the tasks run on the one that leads, and no message is sent for
them. ``celery -A helexa_site.celery --quiet worker -Q control --pool solo``, the control's former
command, still works.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import django
from celery import Celery, bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.signals import celeryd_after_setup, celeryd_init, setup_logging
from django.db import Error as DatabaseError
from django.db import close_old_connections

from helexa_site.config import read_config
from helexa_site.data_directory import SecretKeyError, secret_key
from inference.logs import configure_logging
from inference.protocol.joining import celery_broker_url, celery_ssl_options
from inference.protocol.keys import CONTROL_QUEUE
from inference.settings.setting import EXIT_MISCONFIGURED, SettingError
from inference.supervised_threads import SupervisedPool, SupervisedThread

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
# Celery would run Django's system checks, which import every page and the whole API.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

logger = logging.getLogger(__name__)

TASK_TICK = "control.tick"
TASK_FORGET_RESPONSES = "control.forget_responses"
TASK_SWEEP_ORPHANS = "control.sweep_orphans"
TASK_FORGET_LEDGER_ENTRIES = "control.forget_ledger_entries"
TASK_FORGET_REQUEST_RECORDS = "control.forget_request_records"
TASK_ROLL_UP_SERIES = "control.roll_up_series"
TASK_BENCH_JOBS = "control.bench_jobs"
EVERY_S = {
    TASK_TICK: 1.0,
    TASK_FORGET_RESPONSES: 600.0,
    TASK_SWEEP_ORPHANS: 5.0,
    TASK_FORGET_LEDGER_ENTRIES: 600.0,
    TASK_FORGET_REQUEST_RECORDS: 60.0,
    TASK_ROLL_UP_SERIES: 20.0,
    TASK_BENCH_JOBS: 2.0,
}
HOUSEKEEPING = frozenset(
    {
        TASK_FORGET_RESPONSES,
        TASK_FORGET_LEDGER_ENTRIES,
        TASK_FORGET_REQUEST_RECORDS,
        TASK_ROLL_UP_SERIES,
    }
)
"""Tasks that may take minutes, in small transactions: a first clean-up deletes millions of rows."""


class Ticks:
    """Housekeeping has a thread of its own: ticks would wait for it, and the lease would expire."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, name="ticks")
        self._housekeeping = SupervisedPool(1, thread_name_prefix="housekeeping")
        self._under_way: dict[str, Future[None]] = {}
        self._flood_watch: Any = None

    def start(self) -> None:
        self._thread.start()
        self._flood_watch = _flood_watch()
        self._flood_watch.start()

    def stop(self) -> None:
        """Housekeeping that has not begun never begins; a running one ends with the process."""
        from fleet import leadership

        self._flood_watch.stop()
        self._stopping.set()
        self._thread.join()
        self._housekeeping.shutdown(wait=False, cancel_futures=True)
        leadership.this_control.resign()

    def run(self, task: str) -> Future[None] | None:
        """Returns the future of housekeeping, which is not begun again while it is under way."""
        from fleet import leadership  # models, once Django is set up

        with _contained(task):
            if not leadership.this_control.leads():
                return None
            if task not in HOUSEKEEPING:
                app.tasks[task]()
            elif task not in self._under_way or self._under_way[task].done():
                contained = _contained(task)(app.tasks[task])
                self._under_way[task] = self._housekeeping.submit(contained)
        return self._under_way.get(task)

    def _run(self) -> None:
        due_s = {task: time.monotonic() + every_s for task, every_s in EVERY_S.items()}
        while not self._stopping.wait(max(0.0, min(due_s.values()) - time.monotonic())):
            task = min(due_s, key=due_s.__getitem__)
            due_s[task] = time.monotonic() + EVERY_S[task]
            self.run(task)


@contextmanager
def _contained(task: str) -> Iterator[None]:
    close_old_connections()
    try:
        yield
    except DatabaseError as error:
        logger.warning("%s: the database does not answer: %s", task, error)
    except Exception:
        logger.exception("%s broke", task)
    finally:
        close_old_connections()


class TicksOfWorker(bootsteps.StartStopStep):  # type: ignore[misc]
    def create(self, worker: Any) -> Ticks:
        return Ticks()


def _flood_watch() -> Any:
    """Each control has one, leading or not: a cut-off is one conditional update."""
    from fleet import services  # models, once Django is set up
    from fleet.live import reading as live
    from fleet.redis_users import FloodWatch

    client = live.redis_client()
    measure = partial(services.flooding_neurons_cut_off, client=client)
    return FloodWatch(client, _contained("the watch for floods")(measure))


# Celery skips its own logging setup where this signal has a receiver.
@setup_logging.connect  # type: ignore[untyped-decorator]
def log_as_control(**_: Any) -> None:
    configure_logging("control")


@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def ignore_pending_deprecations(**_: Any) -> None:
    """The worker has just turned them on: each lost connection would print one about Celery 6."""
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def ensure_startable(**_: Any) -> None:
    from helexa_site.migration_guard import SchemaError, ensure_schema_is_known

    try:
        secret_key(CONFIG)
        django.setup()
        ensure_schema_is_known()
    except (SecretKeyError, SchemaError) as error:
        raise SystemExit(f"control: {error}") from error
    except DatabaseError as error:
        logger.warning("the database does not answer yet: %s", error)
    finally:
        close_old_connections()


# Root in a container is ordinary, and messages are JSON: none can carry code.
warnings.filterwarnings("ignore", category=SecurityWarning)

try:
    CONFIG = read_config()
except SettingError as error:
    print(f"control: {error}", file=sys.stderr)
    raise SystemExit(EXIT_MISCONFIGURED) from None

app = Celery("control")
app.conf.update(
    broker_url=celery_broker_url(CONFIG.redis_url),
    broker_use_ssl=celery_ssl_options(CONFIG.redis_url),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"socket_connect_timeout": 5, "socket_timeout": 30},
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_default_queue=CONTROL_QUEUE,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
app.steps["worker"].add(TicksOfWorker)
app.autodiscover_tasks(["fleet", "inference.conversations", "metering"])
