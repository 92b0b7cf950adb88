"""The hand-built ring is what Celery itself would have sent, and what Celery takes for its own."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from typing import Any

import redis
from celery import Celery
from kombu.message import Message

from inference.gateway.redis.inbox import ring_message
from inference.protocol import keys
from inference.protocol.joining import celery_broker_url

TASK_ID = uuid.UUID("6ad19bd1-4d9c-4a25-9c2b-15b2ab1bb8b5")
NOW = datetime.datetime(2030, 5, 1, 12, 0, tzinfo=datetime.UTC)

VOLATILE = {"id", "root_id", "expires", "origin", "correlation_id", "reply_to", "delivery_tag"}
"""Values that differ from message to message; their types must not."""


def celery_sends(url: str) -> dict[str, Any]:
    app = Celery(broker=celery_broker_url(url), set_as_current=False)
    app.conf.task_ignore_result = True
    app.send_task(
        keys.TASK_DRAIN_INBOX,
        queue=keys.neuron_queue("beast"),
        expires=keys.DRAIN_INBOX_EXPIRES_S,
        ignore_result=True,
    )
    app.close()
    with redis.Redis.from_url(url) as client:
        raw = client.rpop(keys.neuron_queue("beast"))
    message: dict[str, Any] = json.loads(raw)  # type: ignore[arg-type]
    return message


def shape(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: shape(item, key) for key, item in sorted(value.items())}
    return type(value).__name__ if name in VOLATILE else value


def test_it_is_what_celery_sends(redis_url: str) -> None:
    ours = json.loads(ring_message("beast", task_id=TASK_ID, now=NOW))
    theirs = celery_sends(redis_url)
    bodies = [json.loads(base64.b64decode(message.pop("body"))) for message in (ours, theirs)]
    assert bodies[0] == bodies[1]
    assert shape(ours) == shape(theirs)


def test_it_expires() -> None:
    headers = json.loads(ring_message("beast", task_id=TASK_ID, now=NOW))["headers"]
    expires = datetime.datetime.fromisoformat(headers["expires"])
    assert expires - NOW == datetime.timedelta(seconds=keys.DRAIN_INBOX_EXPIRES_S)


def test_kombu_takes_it_off_the_queue(redis_url: str) -> None:
    message = ring_message("beast", task_id=TASK_ID, now=NOW)
    with redis.Redis.from_url(redis_url) as client:
        client.lpush(keys.neuron_queue("beast"), message)
    app = Celery(broker=celery_broker_url(redis_url), set_as_current=False)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(keys.neuron_queue("beast"))
        received: Message = queue.get(block=True, timeout=60)
        assert received.headers["task"] == keys.TASK_DRAIN_INBOX
        assert received.payload[:2] == [[], {}]
        received.ack()
        queue.close()
    app.close()
