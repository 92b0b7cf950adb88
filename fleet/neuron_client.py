"""Sends Celery messages to neurons, and waits for the one that is answered, in a list of its own:
the last lines of an engine's log. Messages expire, and loads fail by then."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
from django.conf import settings
from django.utils.functional import SimpleLazyObject

from fleet import selectors
from fleet.errors import (
    BrokerUnavailableError,
    EngineLogUnavailableError,
    ReplicaNotFoundError,
)
from fleet.live import reading as live
from fleet.live.reports import NeuronValueError
from inference.logs import one_line
from inference.protocol import keys
from inference.protocol.joining import celery_broker_url, celery_ssl_options
from inference.protocol.neuron_tasks import EngineLogAnswer, decode_engine_log
from inference.redis_link import MAX_VALUE_BYTES

EXPIRES_S = 60
ANSWER_TIMEOUT_S = 3.0
ASK_EXPIRES_S = 10
POLL_INTERVAL_S = 0.05
"""The answer's size is checked before it is read, which a blocking pop cannot do."""
DEFAULT_LINES = 100
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
"""Made for the first message: Celery takes 0.2 s to import, and most processes send nothing."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    neuron: str
    model: str
    lines: tuple[str, ...]
    """Oldest first."""


def engine_log(neuron_name: str, model_name: str, num_lines: int = DEFAULT_LINES) -> EngineLog:
    """``model_name`` may be an alias. Blocks for a round trip to the neuron. Raises
    ``UnknownNeuronError``, ``ReplicaNotFoundError``, ``EngineLogUnavailableError``,
    ``BrokerUnavailableError``, ``SnapshotUnavailableError``."""
    neuron = selectors.neuron_known(neuron_name)
    entry = selectors.catalogue_find(model_name)
    model = model_name if entry is None else entry.name
    ask_id = uuid.uuid4().hex
    send(keys.TASK_TELL_LOG, neuron.name, ask_id, model, num_lines, expires_s=ASK_EXPIRES_S)
    answer = _wait_for(neuron.name, ask_id)
    if not answer.is_known:
        raise ReplicaNotFoundError(
            f"No engine for {model} has run on {neuron.name} since that was started"
        )
    return EngineLog(neuron=neuron.name, model=model, lines=tuple(map(one_line, answer.lines)))


def _wait_for(neuron_name: str, ask_id: str) -> EngineLogAnswer:
    pop = live.item_pop(keys.engine_log_key(neuron_name, ask_id), max_bytes=MAX_VALUE_BYTES)
    give_up_s = time.monotonic() + ANSWER_TIMEOUT_S
    try:
        with live.redis_answers():
            while (answer := pop.run(live.redis_client())) is None:
                if time.monotonic() > give_up_s:
                    raise EngineLogUnavailableError(f"{neuron_name} does not answer: is it away?")
                time.sleep(POLL_INTERVAL_S)
        return decode_engine_log(answer)
    except (msgspec.DecodeError, NeuronValueError) as error:
        raise EngineLogUnavailableError(f"The answer of {neuron_name} is not understood") from error
