"""Telling a neuron what to do: the two Celery messages that control sends.

They expire rather than run for nobody: a load that nobody picked up has failed by then.
"""

from __future__ import annotations

import msgspec
from kombu.exceptions import OperationalError

from fleet.errors import BrokerUnavailableError
from helexa_site.celery import app
from inference.protocol import keys
from inference.protocol.load import LoadSpec

LOAD_EXPIRES_S = 60
UNLOAD_EXPIRES_S = 60


def send_load(*, neuron_name: str, spec: LoadSpec) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_LOAD_MODEL, neuron_name, [msgspec.to_builtins(spec)], LOAD_EXPIRES_S)


def send_unload(*, neuron_name: str, model_name: str) -> None:
    """Raises ``BrokerUnavailableError``."""
    _send(keys.TASK_UNLOAD_MODEL, neuron_name, [model_name], UNLOAD_EXPIRES_S)


def _send(task: str, neuron_name: str, arguments: list[object], expires_s: int) -> None:
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
