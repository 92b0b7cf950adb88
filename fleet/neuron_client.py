"""Sends Celery messages to neurons, for the services.

Messages expire, and loads fail by then.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings
from django.utils.functional import SimpleLazyObject

from fleet.errors import BrokerUnavailableError
from inference.protocol import keys
from inference.protocol.downloads import DeleteSpec, PullSpec
from inference.protocol.joining import celery_broker_url, celery_ssl_options
from inference.protocol.load import LoadSpec

LOAD_EXPIRES_S = 60
UNLOAD_EXPIRES_S = 60
DOWNLOAD_EXPIRES_S = 60
ASK_EXPIRES_S = 10


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


def send_load(*, neuron_name: str, spec: LoadSpec) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_LOAD_MODEL, neuron_name, [msgspec.to_builtins(spec)], LOAD_EXPIRES_S)


def send_unload(*, neuron_name: str, model_name: str, at_once: bool = False) -> None:
    """Raises ``BrokerUnavailableError``."""
    arguments: list[object] = [model_name, True] if at_once else [model_name]
    _send(keys.TASK_UNLOAD_MODEL, neuron_name, arguments, UNLOAD_EXPIRES_S)


def send_release_stages(*, neuron_name: str, model_name: str, job_id: str) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_RELEASE_STAGES, neuron_name, [model_name, job_id], UNLOAD_EXPIRES_S)


def send_sleep(*, neuron_name: str, model_name: str, job_id: str) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_SLEEP_MODEL, neuron_name, [model_name, job_id], UNLOAD_EXPIRES_S)


def send_drop_adapter(*, neuron_name: str, model_name: str, adapter_name: str) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_DROP_ADAPTER, neuron_name, [model_name, adapter_name], UNLOAD_EXPIRES_S)


def send_pull(*, neuron_name: str, spec: PullSpec) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_PULL_MODEL, neuron_name, [msgspec.to_builtins(spec)], DOWNLOAD_EXPIRES_S)


def send_cancel_pull(*, neuron_name: str, job_id: str) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_CANCEL_PULL, neuron_name, [job_id], DOWNLOAD_EXPIRES_S)


def send_delete_cached(*, neuron_name: str, spec: DeleteSpec) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_DELETE_CACHED, neuron_name, [msgspec.to_builtins(spec)], DOWNLOAD_EXPIRES_S)


def send_log_request(*, neuron_name: str, ask_id: str, model_name: str, num_lines: int) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_TELL_LOG, neuron_name, [ask_id, model_name, num_lines], ASK_EXPIRES_S)


def _send(task: str, neuron_name: str, arguments: list[object], expires_s: int) -> None:
    from kombu.exceptions import OperationalError  # comes with Celery, see ``app``

    try:
        app.send_task(
            task,
            args=arguments,
            queue=keys.neuron_queue(neuron_name),
            expires=expires_s,
            ignore_result=True,
            retry=False,
        )
    except OperationalError as error:
        raise BrokerUnavailableError(
            f"Redis does not take the task for {neuron_name}: nothing was sent"
        ) from error
