"""The neuron's Celery tasks: the only file here that knows Celery's tasks.

Each returns at once; a load continues in its replica's thread and is reported by heartbeats.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import redis
from celery import Celery

from inference.neuron.service import NeuronService
from inference.protocol.downloads import DeleteSpec, PullSpec
from inference.protocol.keys import (
    TASK_CANCEL_PULL,
    TASK_DELETE_CACHED,
    TASK_DRAIN_INBOX,
    TASK_DROP_ADAPTER,
    TASK_LOAD_MODEL,
    TASK_PULL_MODEL,
    TASK_RELEASE_STAGES,
    TASK_SLEEP_MODEL,
    TASK_TELL_LOG,
    TASK_UNLOAD_MODEL,
)
from inference.protocol.load import LoadSpec

log = logging.getLogger(__name__)


def register_tasks(app: Celery, service: NeuronService) -> None:
    def load_model(spec: dict[str, Any]) -> None:
        try:
            service.load_model(msgspec.convert(spec, LoadSpec))
        except msgspec.ValidationError as error:
            log.error("a load task's spec is not understood: %s", error)

    def drain_inbox() -> None:
        try:
            service.drain_inbox()
        except redis.RedisError as error:
            log.warning("the inbox could not be drained: %s", error)  # the next heartbeat does

    def pull_model(spec: dict[str, Any]) -> None:
        try:
            service.downloads.pull(msgspec.convert(spec, PullSpec))
        except msgspec.ValidationError as error:
            log.error("a pull task's spec is not understood: %s", error)

    def delete_cached(spec: dict[str, Any]) -> None:
        try:
            service.downloads.delete(msgspec.convert(spec, DeleteSpec))
        except msgspec.ValidationError as error:
            log.error("a deletion task's spec is not understood: %s", error)

    app.task(name=TASK_PULL_MODEL)(pull_model)
    app.task(name=TASK_CANCEL_PULL)(service.downloads.cancel)
    app.task(name=TASK_DELETE_CACHED)(delete_cached)
    app.task(name=TASK_TELL_LOG)(service.logs.send)
    app.task(name=TASK_LOAD_MODEL)(load_model)
    app.task(name=TASK_UNLOAD_MODEL)(service.unload_model)
    app.task(name=TASK_RELEASE_STAGES)(service.release_stages)
    app.task(name=TASK_DROP_ADAPTER)(service.drop_adapter)
    app.task(name=TASK_SLEEP_MODEL)(service.sleep_model)
    app.task(name=TASK_DRAIN_INBOX)(drain_inbox)
