"""Sends Celery messages to neurons, for the services.

Messages expire, and loads fail by then.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from django.conf import settings
from django.utils.functional import SimpleLazyObject

from fleet.errors import BrokerUnavailableError
from inference.protocol import keys
from inference.protocol.joining import celery_broker_url, celery_ssl_options

EXPIRES_S = 60
_importing = threading.Lock()
"""Celery and kombu replace their own modules while they are imported: a second thread that imports
them for the first time would find half of one."""


def _sending_app() -> Any:
    from celery import Celery

    url = settings.CONFIG.redis_url
    sending = Celery("fleet", set_as_current=False)
    sending.conf.update(
        broker_url=celery_broker_url(url),
        broker_use_ssl=celery_ssl_options(url),
        broker_transport_options={"socket_connect_timeout": 5, "socket_timeout": 30},
    )
    return sending


app: Any = SimpleLazyObject(_sending_app)
"""A Celery app without tasks, made for the first message: Celery takes a fifth of a second to
import, and most gateways and commands send nothing."""


def send(task: str, neuron_name: str, *arguments: object, expires_s: int = EXPIRES_S) -> None:
    """``task``: one of ``keys``. Raises ``BrokerUnavailableError``."""
    with _importing:
        import celery  # noqa: F401 - see ``app``
        from kombu.exceptions import OperationalError

    try:
        app.send_task(
            task,
            args=[msgspec.to_builtins(one) for one in arguments],
            queue=keys.neuron_queue(neuron_name),
            expires=expires_s,
            ignore_result=True,
            retry=False,
        )
    except OperationalError as error:
        raise BrokerUnavailableError(
            f"Redis does not take the task for {neuron_name}: nothing was sent"
        ) from error
