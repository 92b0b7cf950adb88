"""The neuron's Celery tasks: the only file here that knows Celery's tasks.

Each returns at once; a load goes on in its replica's thread and is reported by heartbeats.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import redis
from celery import Celery

from inference.neuron.service import NeuronService
from inference.protocol.keys import TASK_DRAIN_INBOX, TASK_LOAD_MODEL, TASK_UNLOAD_MODEL
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

    app.task(name=TASK_LOAD_MODEL)(load_model)
    app.task(name=TASK_UNLOAD_MODEL)(service.unload_model)
    app.task(name=TASK_DRAIN_INBOX)(drain_inbox)
